"""Validation and defaults of the arguments of a prediction pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedModel

from adadepth.config.answers import AnswerSpec
from adadepth.errors import ConfigError
from adadepth.halting.exit_rules import ExitRule, check_rule, parse_rule
from adadepth.models.contract import Remembers
from adadepth.models.shared.losses import count_head_classes, takes_one_class

_MAX_NEW_TOKENS, _MAX_BEAMS = 2**20, 1024


def move_to_device(model: PreTrainedModel, device: torch.device | str) -> PreTrainedModel:
    """Move a model to a device; raise an error if this machine does not have that device."""
    try:
        return model.to(device)  # type: ignore[arg-type]
    except (RuntimeError, AssertionError, TypeError) as error:  # torch's errors for a missing device, driver or name
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ConfigError(f"device={device}: {reason}") from error


def check_count(name: str, value: Any) -> None:
    """Raise an error if an argument is not a positive integer."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{name}={value!r}: must be a whole number of at least 1")


def resolve_segment_length(length: int | None, model: Any) -> int | None:
    """Return the number of tokens per segment for a model with memory, or None to read a text at once."""
    if length is not None:
        check_count("segment_length", length)
        if not isinstance(model, Remembers):
            raise ConfigError(f"segment_length={length}: {type(model).__name__} has no memory between segments")
        return length
    return model.context(None, None, False).memory_length or None if isinstance(model, Remembers) else None


def resolve_new_tokens(count: int | None, model: Any, answers: AnswerSpec) -> int | None:
    """Return the number of tokens to generate after each text, after checking that the model can generate them.

    A number that the model cannot generate raises an error.
    """
    if count is not None:
        check_count("new_tokens", count)
        if not answers.continues_texts or not model.can_generate():
            raise ConfigError(f"new_tokens={count}: {type(model).__name__} does not generate text")
        most = _MAX_NEW_TOKENS if model.longest_sequence is None else model.longest_sequence - 1
        if count > most:
            raise ConfigError(
                f"new_tokens={count}: must be at most {most}, the number of positions after one token of text"
            )
    return count


def check_beams(model: Any, generation: Mapping[str, Any]) -> None:
    """Raise an error if the number of beams or returned sequences is out of range.

    Raises:
        ConfigError: If a number is out of range. The message names its key, which may come from the model's
            generation_config.json.
    """
    for name in ("num_beams", "num_return_sequences"):
        count = generation.get(name, getattr(getattr(model, "generation_config", None), name, None))
        if count is not None and not (isinstance(count, int) and 1 <= count <= _MAX_BEAMS):
            raise ConfigError(f"{name}={count!r}: must be from 1 to {_MAX_BEAMS}")


def read_exit_rule(rule: str | ExitRule | None, model: Any) -> ExitRule | None:
    """Parse an exit rule and check that the model supports it; None keeps the model's own rule."""
    if rule is None:
        return None
    parsed = parse_rule(rule) if isinstance(rule, str) else rule
    config = model.config
    check_rule(
        parsed, model.exit_signals, count_head_classes(config), model.max_updates, config.model_type,
        one_class=takes_one_class(config),
    )  # fmt: skip
    return parsed
