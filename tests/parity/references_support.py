"""Weights and hyper-parameters of models in the form that the reference implementations take."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn


def select_options(function: Callable[..., Any], config: Any) -> dict[str, Any]:
    """Return the fields of a configuration that a function of a reference takes by keyword alone."""
    parameters = inspect.signature(function).parameters.items()
    names = [name for name, parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    return {name: getattr(config, name) for name in names if hasattr(config, name)}


def copy_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of a model's parameters and buffers by name, with gradients of their own; tied ones stay tied."""
    copies: dict[int, Tensor] = {}
    state = model.state_dict(keep_vars=True)
    for weight in state.values():
        copies.setdefault(id(weight), weight.detach().clone().requires_grad_(weight.requires_grad))
    return {name: copies[id(weight)] for name, weight in state.items()}
