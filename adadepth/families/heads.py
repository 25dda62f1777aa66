"""What the output of every kind of head holds, and the check of a first batch.

Shape legend: B rows, T tokens, C classes, P tokens with a label, V words or symbols, L cells.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from adadepth.errors import ConfigError
from adadepth.families.contract import DepthModel
from adadepth.families.registry import families, load
from adadepth.halting.trace import DepthTrace


class Field(NamedTuple):
    """A tensor of an output: how many dimensions it has, and what is in it."""

    dimensions: int
    words: str


_WORDS = {"token_losses": Field(1, "the cross-entropy of each of the P tokens with a label in nats, detached")}
# Kind of head, as in `Family.heads`, to what the output of a batch with targets holds, beside what `of_all` says.
OUTPUTS: dict[str, dict[str, Field]] = {
    "pretraining": {"prediction_logits": Field(2, "(P, V), row by row of `labels >= 0`"), **_WORDS},
    "classification": {"logits": Field(2, "(B, C), one column for values")},
    "tagging": {"logits": Field(3, "(B, T, C)")},
    "question_answering": {"start_logits": Field(2, "(B, T)"), "end_logits": Field(2, "(B, T)")},
    "multiple_choice": {"logits": Field(2, "(B, choices)")},
    "language_model": _WORDS,
    "search": _WORDS,
    "puzzle": {"logits": Field(3, "(B, L, V)")},
}
# Further fields follow from others: `sop_logits` (B, 2) from the loss part `sop`; `memory` from `Remembers`;
# `carry` from `trains_in_slots`; of a puzzle that is evaluated, `step_logits` (B, N, L, V) and `exit_steps` (B,), as of
# any model with `exit_signals` under a rule.


def check_output(model: DepthModel, outputs: Any) -> None:
    """Refuse the output of a batch with targets that lacks something, or has it wrongly.

    Every output holds `loss`, a scalar that is the sum of `loss_parts`, name to scalar, each normalised and weighted as
    `combine_terms` does; and `trace`, the `DepthTrace` of the depth that the batch was given.

    Args:
        model: Whose output it is.
        outputs: Of its first batch with targets.

    Raises:
        ConfigError: In one line: the family, the class, every such field, and what it has to be.
    """
    wrong = [*_of_all(model, outputs)]
    for kind in kinds_of(model):
        for name, field in OUTPUTS.get(kind, {}).items():
            found = getattr(outputs, name, None)
            if not isinstance(found, Tensor) or found.dim() != field.dimensions:
                wrong.append(f"{name} must be {field.words}, not {_told(found)}")
    if wrong:
        owner = type(model).__name__
        raise ConfigError(f"model={model.config.model_type}: the output of {owner}: {'; '.join(dict.fromkeys(wrong))}")


def kinds_of(model: DepthModel) -> list[str]:
    """The kinds of tasks that a model's class serves in its family; none of a class that no family names."""
    heads = [(kind, load(place)) for each in families().values() for kind, place in each.heads.items()]
    return [kind for kind, head in heads if isinstance(model, head)]


def _of_all(model: DepthModel, outputs: Any) -> list[str]:
    """What is wrong with the fields that every output holds."""
    wrong = []
    loss, parts, trace = (getattr(outputs, name, None) for name in ("loss", "loss_parts", "trace"))
    if not isinstance(loss, Tensor) or loss.dim() != 0:
        wrong.append(f"loss must be a scalar, the sum of loss_parts, not {_told(loss)}")
    if not isinstance(parts, dict):
        wrong.append(f"loss_parts must be a dictionary, name to scalar, not {_told(parts)}")
    if not isinstance(trace, DepthTrace):
        wrong.append(f"trace must be a DepthTrace, not {_told(trace)}")
    elif trace.unit != model.depth_unit:
        wrong.append(f"trace must be of unit {model.depth_unit}, as the model says, not of {trace.unit}")
    elif trace.max_updates != model.max_updates and not model.training:  # numbers of updates drawn in training differ
        most = model.max_updates
        wrong.append(f"trace must have max_updates {most}, as the model says, not {trace.max_updates}")
    return wrong


def _told(found: Any) -> str:
    """What is there instead."""
    return f"of shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"{type(found).__name__}"
