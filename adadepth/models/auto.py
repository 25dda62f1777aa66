"""Registration of all model families with the Auto classes of transformers."""

from functools import cache
from typing import Any

import transformers

from adadepth.models.registry import ConfigClass, Family, families


@cache
def register_auto_classes() -> None:
    """Register the configurations, models and tokenizers of all families with transformers' Auto classes, once."""
    for family in families().values():
        if not (config := family.config()).__module__.startswith("transformers."):
            _register(family, config)


def _register(family: Family, config: ConfigClass) -> None:
    transformers.AutoConfig.register(family.name, config)
    if family.tokenizer is not None:
        transformers.AutoTokenizer.register(config, fast_tokenizer_class=family.tokenizer())
    for auto, importer in family.auto_classes().items():
        getattr(transformers, auto).register(config, importer())
    for published in family.published:
        if published not in transformers.CONFIG_MAPPING:
            transformers.AutoConfig.register(published, _make_reader(published, config))


def _make_reader(published: str, config: Any) -> Any:
    """Create a configuration class that converts the configurations of a published model type to those of a family."""

    def from_dict(cls: type, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        return config.from_dict(config_dict, **kwargs)

    members = {"model_type": published, "from_dict": classmethod(from_dict), "__module__": config.__module__}
    return type(f"Published{config.__name__}", (config,), members)
