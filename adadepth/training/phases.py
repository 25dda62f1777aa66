"""A search in two phases: weights and gates take turns, and each learns from text that the other does not read."""

from __future__ import annotations

import math

from torch import nn

from adadepth.config import SearchConfig, SearchMethod
from adadepth.data.streams.load import TwoPhase

GATES = "gates"


def two_phase(search: SearchConfig, updates: int) -> TwoPhase:
    """When the gates learn, and from which share of the text (FBNet, Wu et al. 2019, section 3.3, as PAR uses it).

    Args:
        search: Its settings.
        updates: All updates of the search.
    """
    first = search.weights_only if search.weights_only >= 1 else search.weights_only * updates
    return TwoPhase(math.ceil(first), round(1 / search.architecture_share), search.architecture_share)


def trains_gates(search: SearchConfig, stream: str) -> bool:
    """Whether the gates learn from this stream."""
    return search.method is not SearchMethod.two_phase or stream == "architecture"


def keep_phase(model: nn.Module, stream: str) -> None:
    """Drop the gradients of what does not learn from this stream: an optimiser passes over parameters without one."""
    for name, parameter in model.named_parameters():
        is_gate = name.removeprefix("module.") == GATES
        if is_gate != (stream == "architecture"):
            parameter.grad = None
