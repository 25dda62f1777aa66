"""The Auto classes of transformers learn of every family from its descriptor."""

from functools import cache
from typing import Any

import transformers

from adadepth.families.registry import Family, families, load

_OWN = "transformers"


@cache
def register_auto_classes() -> None:
    """Register configurations, models and tokenizers of all families, once; those of transformers itself are there."""
    for family in families().values():
        if family.config.partition(":")[0].partition(".")[0] != _OWN:
            _register(family)


def _register(family: Family) -> None:
    config = load(family.config)
    transformers.AutoConfig.register(family.name, config)
    if family.tokenizer is not None:
        transformers.AutoTokenizer.register(config, fast_tokenizer_class=load(family.tokenizer))
    for auto, model in family.auto_classes().items():
        getattr(transformers, auto).register(config, load(model))
    for published in family.published:
        if published not in transformers.CONFIG_MAPPING:
            transformers.AutoConfig.register(published, _reader(published, config))


def _reader(published: str, config: Any) -> Any:
    """Make a class of the name of a published type of model, which reads its configurations as a family's own."""

    def from_dict(cls: type, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        return config.from_dict(config_dict, **kwargs)

    members = {"model_type": published, "from_dict": classmethod(from_dict), "__module__": config.__module__}
    return type(f"Published{config.__name__}", (config,), members)
