"""Required output fields of every kind of model head, and their validation on the first batch.

Shape legend: B rows, T tokens, C classes, P tokens with a label, V words or symbols, L cells.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from adadepth.errors import ConfigError
from adadepth.halting.trace import DepthTrace
from adadepth.models.contract import DepthModel
from adadepth.models.registry import families


class Field(NamedTuple):
    """Required output tensor of a model head: number of dimensions and description.

    A field that is not `trained` may be missing in training, because only an evaluation reads it.
    """

    dimensions: int
    words: str
    trained: bool = True


_WORDS = {"token_losses": Field(1, "the cross-entropy of each of the P tokens with a label in nats, detached")}
# Kind of head, as in `Family.heads`, to fields of the output of a batch with targets, beside those of every output.
OUTPUTS: dict[str, dict[str, Field]] = {
    "pretraining": {"prediction_logits": Field(2, "(P, V), in the row order of `labels >= 0`", False), **_WORDS},
    "classification": {"logits": Field(2, "(B, C), with one column for a value")},
    "tagging": {"logits": Field(3, "(B, T, C)")},
    "question_answering": {"start_logits": Field(2, "(B, T)"), "end_logits": Field(2, "(B, T)")},
    "multiple_choice": {"logits": Field(2, "(B, choices)")},
    "language_model": _WORDS,
    "search": _WORDS,
    "puzzle": {"logits": Field(3, "(B, L, V)")},
}
# Further measures of an evaluation: `measures`, sums over counts (`LossTerm`) by name, which become metrics.
# Other fields depend on the model: `sop_logits` (B, 2) on the loss part `sop`; `memory` on `Remembers`;
# `carry` on `trains_in_slots`; of a puzzle that is evaluated, `step_logits` (B, N, L, V) and `exit_steps` (B,), as of
# any model with `exit_signals` under a rule.


def check_output(model: DepthModel, outputs: Any) -> None:
    """Raise an error if a model's output for the first batch has missing or wrong fields.

    Every output has `loss`, `loss_parts` and `trace`. `loss_parts` are scalars by name, normalised and weighted by
    `combine_terms`. `loss` is their sum, a scalar. `trace` is the `DepthTrace` of the batch.

    Args:
        model: Model that returned the output.
        outputs: Output for the first batch with targets.

    Raises:
        ConfigError: Names the family, the class, and every wrong field with its specification, in one line.
    """
    wrong = _check_common_fields(model, outputs)
    for kind in list_head_kinds(model):
        for name, field in OUTPUTS.get(kind, {}).items():
            value = getattr(outputs, name, None)
            if value is None and model.training and not field.trained:
                continue
            if not isinstance(value, Tensor) or value.dim() != field.dimensions:
                wrong.append(f"{name} must be {field.words}, not {_describe(value)}")
    if wrong:
        owner = type(model).__name__
        raise ConfigError(f"model={model.config.model_type}: the output of {owner}: {'; '.join(dict.fromkeys(wrong))}")


def list_head_kinds(model: DepthModel) -> list[str]:
    """Return the kinds of tasks, such as classification, for which a family uses the class of a model."""
    heads = [(kind, importer()) for spec in families().values() for kind, importer in spec.heads.items()]
    return [kind for kind, head in heads if isinstance(model, head)]


def _check_common_fields(model: DepthModel, outputs: Any) -> list[str]:
    """Return the errors in the output fields that every model must return: loss, loss parts and depth trace."""
    wrong = []
    loss, parts, trace = (getattr(outputs, name, None) for name in ("loss", "loss_parts", "trace"))
    if not isinstance(loss, Tensor) or loss.dim() != 0:
        wrong.append(f"loss must be a scalar, the sum of loss_parts, not {_describe(loss)}")
    if not isinstance(parts, dict):
        wrong.append(f"loss_parts must be a dictionary, name to scalar, not {_describe(parts)}")
    if not isinstance(trace, DepthTrace):
        wrong.append(f"trace must be a DepthTrace, not {_describe(trace)}")
    elif trace.unit != model.depth_unit:
        wrong.append(f"trace must have unit {model.depth_unit}, as declared by the model, not {trace.unit}")
    elif trace.max_updates != model.max_updates and not model.training:  # training may draw numbers of updates
        most = model.max_updates
        wrong.append(f"trace must have max_updates {most}, as declared by the model, not {trace.max_updates}")
    return wrong


def _describe(value: Any) -> str:
    """Describe a value by its shape or type, for error messages."""
    return f"of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"{type(value).__name__}"
