"""What every family has."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from adadepth.declaration import MISSING, setting

Activation = StrEnum("Activation", ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu"])
Attention = StrEnum("Attention", ["eager", "sdpa", "flash_attention_2", "flex_attention"])


def family_name(name: str) -> Any:
    """The field `name` of a family's settings; its descriptor and its configuration's `model_type` follow from it."""
    return setting(name, "the family", in_model=False)


@dataclass
class ModelConfig:
    """What every family has: a name from the registry of families, and where to start from."""

    name: str = family_name(MISSING)
    pretrained: str | None = setting(None, "folder or hub id whose weights are loaded before training", in_model=False)
