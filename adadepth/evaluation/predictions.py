"""Predictions for the examples of a data set: merged over processes, and converted to rows of result files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adadepth.config.kinds import Problem
from adadepth.metrics.step_records import StepRecorder, StepRecords, merge
from adadepth.models.contract import DepthModel
from adadepth.runtime.distributed import gather_from_processes


def make_exit_kwargs(model: DepthModel) -> dict[str, Any]:
    """Return forward arguments with a seeded generator, so that sampled exits are the same in every evaluation."""
    return {"generator": torch.Generator().manual_seed(0)} if model.exit_signals else {}


def merge_processes(recorder: StepRecorder) -> StepRecords:
    """Merge the recorded predictions of all processes; every process gets all of them."""
    return merge(gather_from_processes(recorder.parts()))


_DIGITS = 6  # decimals of a probability and of a mean depth
_Row = dict[str, Any]


def build_example_rows(records: StepRecords, labels: Sequence[str], problem: Problem = "classification") -> list[_Row]:
    """Build a row of results for each example, in the order of example numbers.

    Args:
        records: Records of a data set.
        labels: Names of the classes, or of the choices, in order; empty for a regression.
        problem: Problem type. If an example has several labels, `label` and `prediction` are lists of names.

    Returns:
        Rows with these fields. `id` is the number of the row in the data. `label` (if the set is labelled) and
        `prediction` are names or values. `probabilities` are those of the classes at the exit, absent for a regression.
        `updates` is the mean over tokens if tokens halt. `exit_step` is None if examples do not exit as a whole.
    """
    empty = [None] * len(records)
    exits = empty if records.exit_steps is None else records.exit_steps.tolist()
    targets = empty if records.labels is None else records.labels.tolist()
    columns = zip(records.index.tolist(), targets, records.logits, records.depth.tolist(), exits, strict=True)
    return [
        {
            "id": number,
            **_format_label(label, labels),
            **_format_prediction(logits, labels, problem),
            "updates": round(updates, _DIGITS),
            "exit_step": step,
        }
        for number, label, logits, updates, step in columns
    ]


def _format_label(label: Any, names: Sequence[str]) -> _Row:
    if label is None:
        return {}
    if isinstance(label, list):
        return {"label": [name for name, is_set in zip(names, label, strict=True) if is_set]}
    return {"label": names[int(label)] if names else label}


def _format_prediction(logits: Tensor, names: Sequence[str], problem: Problem) -> _Row:
    if problem == "multi_label":
        predicted = [name for name, logit in zip(names, logits.tolist(), strict=True) if logit > 0]
        return {"prediction": predicted, "probabilities": logits.double().sigmoid().numpy().round(_DIGITS).tolist()}
    if not names:
        return {"prediction": logits.item()}
    return {"prediction": names[int(logits.argmax())], "probabilities": probabilities(logits)}


def probabilities(logits: Tensor) -> list[Any]:
    """Return the softmax of logits (..., C) as nested lists."""
    values: list[Any] = logits.float().softmax(dim=-1).double().cpu().numpy().round(_DIGITS).tolist()
    return values


def build_word_columns(outputs: Any, firsts: Sequence[np.ndarray]) -> list[_Row]:
    """Return the predictions for the words of every sentence in a batch, without truncated words.

    Args:
        outputs: Output with `logits` (B, T, C) and `trace`, and, if tokens exit, `unit_slots` and `exit_steps` (K,).
        firsts: Positions of the first token of every word, one array (words,) per sentence.

    Returns:
        One row per sentence with `probabilities`, `updates` and, if tokens exit, `exit_step`.
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


def build_word_row(number: int, labels: list[str], predicted: list[str], columns: Mapping[str, list[Any]]) -> _Row:
    """Build the result row of a sentence: lists over its words, with None for truncated ones."""
    padded = {name: [*values, *[None] * (len(labels) - len(values))] for name, values in columns.items()}
    return {"id": number, "label": labels, "prediction": predicted, **padded}
