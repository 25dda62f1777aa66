"""Answers of a served model to one input of the web demo: predictions, depth, compute and time.

The values for a text are those of `mode=predict`. The values for a synthetic example are those of `mode=evaluate`.
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
from adadepth.prediction.texts_file import describe_predictions, describe_texts

_QUICK_SECONDS = 1.0  # a shorter pass is repeated, and its median reported
_REPEATS = 3


@dataclass(frozen=True)
class BoardCell:
    """Cell of a grid or puzzle in the web demo: its symbol, correct answer and the model's prediction.

    Attributes:
        symbol: Symbol of the input.
        difficulty: Distance to the answer of the cell, or None if it is unknown.
        label: Correct answer, or None if the cell has no target or the target is unknown.
        predicted: Answer of the model, or None if the cell has no target.
        updates: Number of updates of the cell, or None if the cell has no depth of its own.
        steps: Answers after every step.
    """

    symbol: str
    difficulty: int | None
    label: str | None
    predicted: str | None
    updates: float | None
    steps: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """Prediction of a model for one input of the web demo at one depth setting, with compute and time.

    Attributes:
        result: Description of this input, with the fields of texts.json.
        setting: Depth at which the model answered.
        overrides: Settings of the model's configuration that `setting` changes.
        seconds: Duration in seconds of a forward pass at `setting`, and of one at full depth.
        full_result: Description at full depth, with the fields of `result`.
        board: Cells of a synthetic example, in rows, or None if the input is a text.
        label: Correct label of a synthetic example with one label.
        difficulty: Difficulty of that example.
        source: Name of the evaluation set and number of the example, or None if the visitor wrote or edited the input.
        steps: Predictions after every step by token position, for a text.
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
        """Prediction for the input, in the format of the file texts.json."""
        row: Mapping[str, Any] = self.result["texts"][0]
        return row


def compute_answer(checkpoint: ServedCheckpoint, model_input: Text | InputExample, setting: Setting) -> Answer:
    """Run a model on a text or generated example, both at the chosen depth setting and at full depth.

    Raises:
        DataError: If the text is too long or unreadable for the model, or if the answer takes too long.
        ConfigError: If the setting does not exist.
    """
    if not isinstance(model_input, InputExample):
        validate_text(model_input)
    return call_with_timeout(checkpoint.lock.seconds, partial(_compute_answer, checkpoint, model_input, setting))


def _compute_answer(checkpoint: ServedCheckpoint, model_input: Text | InputExample, setting: Setting) -> Answer:
    with checkpoint.lock.hold(checkpoint.model):
        with apply_setting(checkpoint.model, checkpoint.knobs, Setting(FULL)):
            full_result = _describe_input(checkpoint, model_input)
            full_seconds = _measure_seconds(checkpoint, model_input)
        with apply_setting(checkpoint.model, checkpoint.knobs, setting) as overrides:
            result, seconds = _describe_input(checkpoint, model_input), _measure_seconds(checkpoint, model_input)
            if isinstance(model_input, InputExample):
                board, details = _build_board(checkpoint, model_input, result), _describe_truth(checkpoint, model_input)
            else:
                board, details = None, {"steps": checkpoint.pipeline.predict_text_steps(model_input)}
    return Answer(result, setting, overrides, (seconds, full_seconds), full_result, board, **details)


def measure_quality(checkpoint: ServedCheckpoint, setting: Setting) -> DepthQuality | None:
    """Measure the quality of a model at a depth setting, or return None without evaluation data.

    The quality is measured once for each setting.
    """
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
    """Raise an error if an input text is empty or too long.

    Raises:
        DataError: If the text is too long or empty.
    """
    parts = [text] if isinstance(text, str) else list(text)
    if (length := sum(map(len, parts))) > MAX_CHARACTERS:
        raise DataError(f"the text has {length:,} characters; the limit is {MAX_CHARACTERS:,}")
    if not any(part.strip() for part in parts):
        raise DataError("no text: enter a text")


def _describe_input(checkpoint: ServedCheckpoint, model_input: Text | InputExample) -> dict[str, Any]:
    if not isinstance(model_input, InputExample):
        return describe_texts(checkpoint.pipeline, [model_input])
    batch = _collate_input(checkpoint, model_input)
    prediction, compute = checkpoint.pipeline.predict_example(model_input.example, batch)
    cells = model_input.board
    if checkpoint.pipeline.answers.solves_puzzles:
        cells = "".join(get_cell_symbols(checkpoint, model_input.example))
    return describe_predictions(checkpoint.pipeline, [[cells]], [prediction], compute)


def _collate_input(checkpoint: ServedCheckpoint, model_input: InputExample) -> Mapping[str, Any]:
    assert checkpoint.synthetic is not None
    return checkpoint.synthetic.collate([model_input.example])


def _measure_seconds(checkpoint: ServedCheckpoint, model_input: Text | InputExample) -> float:
    """Measure the duration of a forward pass in seconds, without intermediate predictions.

    A slow pass is measured once. Otherwise the result is the median of several passes.
    """
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
    """Return the source of a generated example and, if known, its correct label and difficulty."""
    details: dict[str, Any] = {"source": model_input.source}
    if "label" in model_input.example:
        details["label"] = checkpoint.model.config.id2label[int(model_input.example["label"])]
    if (difficulty := int(model_input.example.get("difficulty", -1))) >= 0:
        details["difficulty"] = difficulty
    return details


def _build_board(
    checkpoint: ServedCheckpoint, model_input: InputExample, result: Mapping[str, Any]
) -> list[list[BoardCell]]:
    """Build the grid of an example: rows of cells with symbols, correct answers, predictions and updates."""
    example, row = model_input.example, result["texts"][0]
    positions = find_cell_positions(example).tolist()
    cells = get_cell_symbols(checkpoint, example)
    if checkpoint.pipeline.answers.solves_puzzles:
        return arrange_rows(checkpoint, _build_puzzle_cells(checkpoint, example, cells, row))
    tokens = row["tokens"]
    step_predictions = checkpoint.pipeline.predict_token_steps(_collate_input(checkpoint, model_input))
    labels, names = _get_labels(checkpoint, example, positions), checkpoint.model.config.id2label
    difficulties = np.asarray(example.get("difficulties", np.full(len(example["input_ids"]), -1)))
    board_cells = []
    for cell, position, label in zip(cells, positions, labels, strict=True):
        token = tokens[position] if tokens else {}
        difficulty = int(difficulties[position])
        board_cells.append(
            BoardCell(
                cell,
                difficulty if difficulty >= 0 else None,
                None if label is None else names[label],
                token.get("label") if label is not None else None,
                token.get("updates"),
                tuple(step_predictions.get(position, ())),
            )
        )
    return arrange_rows(checkpoint, board_cells)


def _get_labels(checkpoint: ServedCheckpoint, example: Mapping[str, Any], positions: list[int]) -> list[int | None]:
    labels = example.get("labels")
    if labels is None:
        return [None] * len(positions)
    return [int(labels[position]) if labels[position] >= 0 else None for position in positions]


def _build_puzzle_cells(
    checkpoint: ServedCheckpoint, example: Mapping[str, Any], cells: list[str], row: Mapping[str, Any]
) -> list[BoardCell]:
    """Build the cells of a puzzle, each with the model's prediction after every step."""
    names = checkpoint.pipeline.tokenizer.convert_ids_to_tokens(np.asarray(example["labels"]).tolist())
    targets = [name if label else None for name, label in zip(names, np.asarray(example["labels"]), strict=True)]
    steps = [step["label"] for step in row["steps"] or []][: round(row["updates"])]
    return [
        BoardCell(cell, None, label, row["label"][position], None, tuple(step[position] for step in steps))
        for position, (cell, label) in enumerate(zip(cells, targets, strict=True))
    ]
