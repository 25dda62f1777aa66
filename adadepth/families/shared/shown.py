"""States and attentions that a call asks to see, by the conventions of transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from transformers import PreTrainedConfig

# Every state, some of them by number (negative ones from the end), or none.
Choice = bool | int | Sequence[int]
_NAMES = ("hidden_states", "attentions")


def shown(config: PreTrainedConfig, options: Mapping[str, Any]) -> dict[str, Choice]:
    """What a call, or else the configuration, asks to see: `hidden_states`, `attentions`; empty where it is nothing."""
    asked = {name: options.get(f"output_{name}") for name in _NAMES}
    found = {name: getattr(config, f"output_{name}") if value is None else value for name, value in asked.items()}
    return {name: value for name, value in found.items() if value is not None and value is not False}


def choose_states(states: Sequence[Tensor], choice: Choice) -> tuple[Tensor | None, ...]:
    """All states, or None in place of those that were not chosen."""
    if choice is True:
        return tuple(states)
    chosen = (choice,) if isinstance(choice, int) else choice
    numbers = {number % len(states) for number in chosen if -len(states) <= number < len(states)}
    return tuple(state if number in numbers else None for number, state in enumerate(states))
