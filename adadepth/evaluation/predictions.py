"""Records of all examples of a set, for metrics that need them together and for studies of exit rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adadepth.families.contract import DepthModel
from adadepth.measure.exit_records import StepRecorder, StepRecords, merge
from adadepth.settings.kinds import Problem
from adadepth.system.processes import of_all_processes


def seeded_exits(model: DepthModel) -> dict[str, Any]:
    """Arguments of the forward pass with which rules that draw do so alike in every evaluation."""
    return {"generator": torch.Generator().manual_seed(0)} if model.exit_signals else {}


def merge_processes(recorder: StepRecorder) -> StepRecords:
    """The records of all processes, on each of them."""
    return merge(of_all_processes(recorder.parts()))


_DIGITS = 6  # of a probability, and of a mean depth
_Row = dict[str, Any]


def example_rows(records: StepRecords, labels: Sequence[str], problem: Problem = "classification") -> list[_Row]:
    """One row an example, in the order of their ids.

    Args:
        records: Of a set.
        labels: Names of the classes, or of the choices, in order; empty for a regression.
        problem: What is predicted; of several labels, `label` and `prediction` are lists of names.

    Returns:
        `id`, the number of the row in the data; of a labelled set `label`, and `prediction`, names or values;
        `probabilities` of the classes at the example's own exit, not of a regression; `updates`, a mean over tokens
        where those halt; `exit_step`, None where whole examples do not exit.
    """
    unknown = [None] * len(records)
    exits = unknown if records.exit_steps is None else records.exit_steps.tolist()
    gold = unknown if records.labels is None else records.labels.tolist()
    columns = zip(records.index.tolist(), gold, records.logits, records.depth.tolist(), exits, strict=True)
    return [
        {"id": number, **_label(label, labels), **_predicted(logits, labels, problem), **_depth(updates, step)}
        for number, label, logits, updates, step in columns
    ]


def _label(label: Any, names: Sequence[str]) -> _Row:
    if label is None:
        return {}
    if isinstance(label, list):
        return {"label": [name for name, there in zip(names, label, strict=True) if there]}
    return {"label": names[int(label)] if names else label}


def _depth(updates: float, step: int | None) -> _Row:
    return {"updates": round(updates, _DIGITS), "exit_step": step}


def _predicted(logits: Tensor, names: Sequence[str], problem: Problem) -> _Row:
    if problem == "multi_label":
        chosen = [name for name, logit in zip(names, logits.tolist(), strict=True) if logit > 0]
        return {"prediction": chosen, "probabilities": logits.double().sigmoid().numpy().round(_DIGITS).tolist()}
    if not names:
        return {"prediction": logits.item()}
    return {"prediction": names[int(logits.argmax())], "probabilities": probabilities(logits)}


def probabilities(logits: Tensor) -> list[Any]:
    """The softmax of logits (..., C) as nested lists."""
    values: list[Any] = logits.float().softmax(dim=-1).double().cpu().numpy().round(_DIGITS).tolist()
    return values


def word_columns(outputs: Any, firsts: Sequence[np.ndarray]) -> list[_Row]:
    """What is known of the words of every sentence of a batch: lists over the words that are not cut off.

    Args:
        outputs: `logits` (B, T, C), `trace`; where tokens exit `unit_slots` and `exit_steps` (K,).
        firsts: Of every sentence, where the words begin, (words,).

    Returns:
        For each sentence `probabilities`, `updates`, and where tokens exit `exit_step`.
    """
    trace, shape = outputs.trace, outputs.logits.shape[:2]
    updates = trace.updates if trace.unit == "token" else trace.updates[:, None].expand(shape)
    columns = {"updates": updates}
    if (slots := getattr(outputs, "unit_slots", None)) is not None:
        steps = torch.zeros(shape.numel(), dtype=torch.long, device=slots.device)
        columns["exit_step"] = steps.index_copy_(0, slots, outputs.exit_steps).view(shape)
    return [
        {"probabilities": probabilities(outputs.logits[row, words])}
        | {name: column[row, words].tolist() for name, column in columns.items()}
        for row, words in enumerate(map(torch.from_numpy, firsts))
    ]


def word_row(number: int, labels: list[str], predicted: list[str], columns: Mapping[str, list[Any]]) -> _Row:
    """One sentence: lists over its words, None where a word was cut off and the model has not seen it."""
    padded = {name: [*values, *[None] * (len(labels) - len(values))] for name, values in columns.items()}
    return {"id": number, "label": labels, "prediction": predicted, **padded}
