"""The Auto classes of transformers learn of every family from its descriptor."""

from functools import cache

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
