"""From a model, an input and a setting to what it says: the one function that the page asks, by the code of prediction.

What it says of a text is what `mode=predict` says, and of a drawn example what `mode=evaluate` counts.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from adadepth.contrib.serve.checkpoint import (
    MAX_CHARACTERS,
    DepthQuality,
    InputExample,
    ServedCheckpoint,
    arrange_rows,
    find_cell_positions,
    get_cell_symbols,
)
from adadepth.contrib.serve.knobs import FULL, Setting, apply_setting
from adadepth.contrib.serve.scheduling import call_with_timeout
from adadepth.data.text.passages import Text
from adadepth.errors import DataError
from adadepth.prediction.pipeline import describe_predictions, describe_texts

_QUICK_SECONDS = 1.0  # seconds: what takes less is timed again, and the median told
_REPEATS = 3


@dataclass(frozen=True)
class BoardCell:
    """A cell of a board: what is there, what is asked of it, and what the model did.

    Attributes:
        symbol: As it was given.
        difficulty: How far away its answer is; None: nobody knows.
        label: What is right; None: nothing is asked, or nobody knows.
        predicted: What the model answered; None: it was not asked.
        updates: How often it was updated; None: not by itself.
        steps: What would have been answered after every step.
    """

    symbol: str
    difficulty: int | None
    label: str | None
    predicted: str | None
    updates: float | None
    steps: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """What a model said of one input at one setting.

    Attributes:
        found: As texts.json has it, of this input alone.
        setting: How deep it was asked.
        changed: The settings of its configuration that this changes.
        seconds: Of a pass as it is set, and of one at full depth.
        full: What it said at full depth, as `found`.
        board: Of a drawn example: its cells, in rows.
        label: Of a drawn example with one label: what is right.
        difficulty: And how hard it is.
        source: The evaluation set that it is from, with its number; None: it is the visitor's own.
        steps: Of a text, by the position of a token: what would have been said of it after every step.
    """

    result: Mapping[str, Any]
    setting: Setting
    overrides: Mapping[str, Any]
    seconds: tuple[float, float]
    full_result: Mapping[str, Any]
    board: list[list[BoardCell]] | None = None
    label: str | None = None
    difficulty: int | None = None
    source: str | None = None
    steps: Mapping[int, Sequence[str]] = field(default_factory=dict)

    @property
    def row(self) -> Mapping[str, Any]:
        """What was said of the input."""
        row: Mapping[str, Any] = self.result["texts"][0]
        return row


def compute_answer(checkpoint: ServedCheckpoint, model_input: Text | InputExample, setting: Setting) -> Answer:
    """What a model says of a text, or of a drawn example, at a setting, and at full depth.

    Raises:
        DataError: The text is too long, or nothing the model reads; or the answer takes too long.
        ConfigError: There is no such setting.
    """
    if not isinstance(model_input, InputExample):
        validate_text(model_input)
    return call_with_timeout(checkpoint.lock.seconds, partial(_compute_answer, checkpoint, model_input, setting))


def _compute_answer(checkpoint: ServedCheckpoint, model_input: Text | InputExample, setting: Setting) -> Answer:
    with checkpoint.lock.hold(checkpoint.model):
        with apply_setting(checkpoint.model, checkpoint.knobs, Setting(FULL)):
            full_result, full_seconds = (
                _describe_input(checkpoint, model_input),
                _measure_seconds(checkpoint, model_input),
            )
        with apply_setting(checkpoint.model, checkpoint.knobs, setting) as changed:
            result, seconds = _describe_input(checkpoint, model_input), _measure_seconds(checkpoint, model_input)
            if isinstance(model_input, InputExample):
                board, details = _board(checkpoint, model_input, result), _describe_truth(checkpoint, model_input)
            else:
                board, details = None, {"steps": checkpoint.pipeline.predict_text_steps(model_input)}
    return Answer(result, setting, changed, (seconds, full_seconds), full_result, board, **details)


def measure_quality(checkpoint: ServedCheckpoint, setting: Setting) -> DepthQuality | None:
    """How good the model is at a setting, measured once; None: its data are not at hand."""
    if checkpoint.evaluator is None:
        return None
    if setting not in checkpoint.measurements:
        checkpoint.measurements[setting] = call_with_timeout(
            checkpoint.lock.seconds, partial(_measure, checkpoint, setting)
        )
    return checkpoint.measurements[setting]


def _measure(checkpoint: ServedCheckpoint, setting: Setting) -> DepthQuality:
    assert checkpoint.evaluator is not None
    with checkpoint.lock.hold(checkpoint.model), apply_setting(checkpoint.model, checkpoint.knobs, setting):
        return checkpoint.evaluator.evaluate()


def validate_text(text: Text) -> None:
    """Refuse what a visitor may not ask about.

    Raises:
        DataError: It is too long, or empty; one line.
    """
    parts = [text] if isinstance(text, str) else list(text)
    if (length := sum(map(len, parts))) > MAX_CHARACTERS:
        raise DataError(f"the text has {length:,} characters; at most {MAX_CHARACTERS:,} are read")
    if not any(part.strip() for part in parts):
        raise DataError("there is no text: type one")


def _describe_input(checkpoint: ServedCheckpoint, model_input: Text | InputExample) -> dict[str, Any]:
    if not isinstance(model_input, InputExample):
        return describe_texts(checkpoint.pipeline, [model_input])
    prediction, work = checkpoint.pipeline.predict_example(model_input.example, _collate_input(checkpoint, model_input))
    cells = (
        "".join(get_cell_symbols(checkpoint, model_input.example))
        if checkpoint.pipeline.predicts == "cells"
        else model_input.board
    )
    return describe_predictions(checkpoint.pipeline, [[cells]], [prediction], work)


def _collate_input(checkpoint: ServedCheckpoint, model_input: InputExample) -> Mapping[str, Any]:
    assert checkpoint.synthetic is not None
    return checkpoint.synthetic.collate([model_input.example])


def _measure_seconds(checkpoint: ServedCheckpoint, model_input: Text | InputExample) -> float:
    """Seconds of a pass without looking at every step, once for what is slow, else the median of some."""
    time_pass = _build_timed_pass(checkpoint, model_input)
    seconds = [time_pass()]
    while sum(seconds) < _QUICK_SECONDS and len(seconds) < _REPEATS:
        seconds.append(time_pass())
    return statistics.median(seconds)


def _build_timed_pass(checkpoint: ServedCheckpoint, model_input: Text | InputExample) -> Callable[[], float]:
    def time_pass() -> float:
        start = perf_counter()
        if isinstance(model_input, InputExample):
            checkpoint.pipeline.predict_example(
                model_input.example, _collate_input(checkpoint, model_input), every_step=False
            )
        else:
            checkpoint.pipeline.priced([model_input])
        return perf_counter() - start

    return time_pass


# ---- examples whose answer is known


def _describe_truth(checkpoint: ServedCheckpoint, model_input: InputExample) -> dict[str, Any]:
    """What is right of an example with one label, how hard it is, and where it is from."""
    details: dict[str, Any] = {"source": model_input.source}
    if "label" in model_input.example:
        details["label"] = checkpoint.model.config.id2label[int(model_input.example["label"])]
    if (difficulty := int(model_input.example.get("difficulty", -1))) >= 0:
        details["difficulty"] = difficulty
    return details


def _board(checkpoint: ServedCheckpoint, model_input: InputExample, result: Mapping[str, Any]) -> list[list[BoardCell]]:
    """The cells of an example with all that is known of them."""
    example, row = model_input.example, result["texts"][0]
    positions = find_cell_positions(example).tolist()
    cells = get_cell_symbols(checkpoint, example)
    if checkpoint.pipeline.predicts == "cells":
        return arrange_rows(checkpoint, _build_puzzle_cells(checkpoint, example, cells, row))
    tokens, step_predictions = (
        row["tokens"],
        checkpoint.pipeline.predict_token_steps(_collate_input(checkpoint, model_input)),
    )
    labels, names = _get_labels(checkpoint, example, positions), checkpoint.model.config.id2label
    difficulties = np.asarray(example.get("difficulties", np.full(len(example["input_ids"]), -1)))
    squares = []
    for cell, position, label in zip(cells, positions, labels, strict=True):
        token = tokens[position] if tokens else {}
        difficulty = int(difficulties[position])
        squares.append(
            BoardCell(
                cell,
                difficulty if difficulty >= 0 else None,
                None if label is None else names[label],
                token.get("label") if label is not None else None,
                token.get("updates"),
                tuple(step_predictions.get(position, ())),
            )
        )
    return arrange_rows(checkpoint, squares)


def _get_labels(checkpoint: ServedCheckpoint, example: Mapping[str, Any], positions: list[int]) -> list[int | None]:
    labels = example.get("labels")
    if labels is None:
        return [None] * len(positions)
    return [int(labels[position]) if labels[position] >= 0 else None for position in positions]


def _build_puzzle_cells(
    checkpoint: ServedCheckpoint, example: Mapping[str, Any], cells: list[str], row: Mapping[str, Any]
) -> list[BoardCell]:
    """A puzzle halts as a whole: its cells have an answer after every step."""
    names = checkpoint.pipeline.tokenizer.convert_ids_to_tokens(np.asarray(example["labels"]).tolist())
    targets = [name if label else None for name, label in zip(names, np.asarray(example["labels"]), strict=True)]
    steps = [step["label"] for step in row["steps"] or []][: round(row["updates"])]
    return [
        BoardCell(cell, None, label, row["label"][position], None, tuple(step[position] for step in steps))
        for position, (cell, label) in enumerate(zip(cells, targets, strict=True))
    ]
