"""Initial weights as Keras draws them, whose defaults the original implementation has.

A kernel is uniform within sqrt(6 / (inputs + outputs)) (Glorot & Bengio 2010). Where the original has one matrix and
here are several maps, inputs and outputs are those of the one.
"""

from __future__ import annotations

from torch import nn
from transformers import initialization as init

_EMBEDDING_BOUND = 0.05  # Keras' default, whatever the shape
_OUTPUTS = "outputs_as_one"


def as_one(*maps: nn.Linear) -> None:
    """Say that maps of the same inputs are parts of one matrix in the original.

    The maps remember it, because transformers initialises no module without parameters of its own.
    """
    outputs = sum(linear.out_features for linear in maps)
    for linear in maps:
        setattr(linear, _OUTPUTS, outputs)


def init_glorot(module: nn.Module) -> None:
    """Draw the weights of a map or of an embedding."""
    if isinstance(module, nn.Linear):
        bound = (6.0 / (module.in_features + getattr(module, _OUTPUTS, module.out_features))) ** 0.5
        init.uniform_(module.weight, -bound, bound)
    elif isinstance(module, nn.Embedding):
        init.uniform_(module.weight, -_EMBEDDING_BOUND, _EMBEDDING_BOUND)
