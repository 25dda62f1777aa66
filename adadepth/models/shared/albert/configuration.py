"""Base classes for the configurations of ALBERT families, and conversion between these configurations."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from adadepth.config.declaration import Allowed, at_least, setting
from adadepth.errors import ConfigError
from adadepth.models.shared.albert.settings import AlbertSettings
from adadepth.models.shared.configuration import BESIDE_LOGITS, FamilyConfig, check_field_names

Config = TypeVar("Config", bound=PreTrainedConfig)

_ONLY_ONE = Allowed(lambda value: value == 1, "1, the only supported value")


@strict
class AlbertShape(FamilyConfig, settings=AlbertSettings):
    """Base configuration of all ALBERT families: sizes and dropout, named as in transformers."""

    # The settings of `AlbertSettings`, described there; the defaults here apply to a file that lacks the field.
    vocab_size: int = 30000
    embedding_size: int = 128
    hidden_size: int = 4096
    num_hidden_layers: int = 12
    num_attention_heads: int = 64
    intermediate_size: int = 16384
    hidden_act: str = "gelu_new"
    hidden_dropout_prob: int | float = 0.0
    attention_probs_dropout_prob: int | float = 0.0
    classifier_dropout_prob: int | float = 0.1
    max_position_embeddings: int = 512
    initializer_range: int | float = 0.02
    layer_norm_eps: int | float = 1e-12

    inner_group_num: int = setting(1, "unused; present in published configurations", _ONLY_ONE)
    type_vocab_size: int = setting(2, "segment types", at_least(1), shape=True)
    pad_token_id: int | None = 0
    bos_token_id: int | None = 2
    eos_token_id: int | list[int] | None = 3
    tie_word_embeddings: bool = True

    def __post_init__(self, **kwargs: object) -> None:
        super().__post_init__(**kwargs)
        if self.hidden_size % self.num_attention_heads:
            raise ConfigError(
                f"num_attention_heads={self.num_attention_heads} must divide hidden_size={self.hidden_size}"
            )

    @property
    def max_updates(self) -> int:
        """Maximum number of steps N, which is the number of layers."""
        return self.num_hidden_layers


@strict
class StepwiseAlbertShape(AlbertShape):
    """Base configuration of ALBERT families whose heads predict after every step."""

    keys_to_ignore_at_inference = BESIDE_LOGITS
    num_hidden_groups: int = setting(1, "unused; present in configurations of transformers", _ONLY_ONE)


def derive_config(target: type[Config], source: PreTrainedConfig, overrides: Mapping[str, Any]) -> Config:
    """Convert the configuration of any ALBERT to that of another family.

    Within one family all fields are copied, between families only shape and labels.

    Without overrides, a configuration of the same family is returned unchanged.

    Args:
        target: Class of the result.
        source: Configuration with the fields of `AlbertShape`.
        overrides: Fields of the result by name. `num_labels` is allowed, too.

    Raises:
        ConfigError: If the target does not have an overridden field, or a value is not allowed.
    """
    if isinstance(source, target) and not overrides:
        return source
    check_field_names(target, overrides)
    shared = [*AlbertShape.__annotations__, "num_hidden_groups", "problem_type", "id2label", "label2id"]
    target_names = [field.name for field in fields(target)]
    names = target_names if isinstance(source, target) else [name for name in shared if name in target_names]
    if {"num_labels", "id2label", "label2id"} & set(overrides):
        names = [name for name in names if name not in ("id2label", "label2id")]
    derived = target(**({name: getattr(source, name) for name in names if hasattr(source, name)} | dict(overrides)))
    derived._attn_implementation = source._attn_implementation
    derived.name_or_path = source.name_or_path
    return derived
