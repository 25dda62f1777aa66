"""Checkpoint served by the web demo, with its depth controls and data, and conversions of examples to text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from adadepth.contrib.serve.knobs import Knob, Setting
from adadepth.contrib.serve.scheduling import ModelLock
from adadepth.data.editable_grid import EditableGrid
from adadepth.errors import DataError
from adadepth.prediction import Pipeline

MAX_CHARACTERS = 5_000  # of an input
MAX_NEW_TOKENS = 200


class DepthQuality(NamedTuple):
    """Metric, compute and mean number of updates of a model at one depth setting."""

    quality: float
    compute: float  # as a share of full depth, with predictions at exits
    updates: float


@dataclass(frozen=True)
class SyntheticData:
    """Generated task examples that visitors of the web demo can draw and edit.

    Attributes:
        dataset: Settings of the dataset.
        sets: Evaluation sets by name. The first set resembles the training data, and the others are harder.
        collate: Function that builds a batch of examples.
        board: Parser and formatter of edited boards, or None if the board is read-only.
    """

    dataset: Any
    sets: Mapping[str, Any]
    collate: Callable[[Sequence[dict[str, Any]]], Mapping[str, Any]]
    board: EditableGrid | None = None


@dataclass(frozen=True)
class QualityEvaluator:
    """Evaluator that measures a model's metric at its current depth on a few examples.

    Attributes:
        name: Name of the metric.
        description: Description of the evaluated examples.
        evaluate: Function that evaluates the model at its current depth.
    """

    name: str
    description: str
    evaluate: Callable[[], DepthQuality]


@dataclass(frozen=True)
class ServedCheckpoint:
    """Checkpoint that the web demo serves, with its pipeline, depth controls and data.

    Attributes:
        name: Name of the run, or path of the model.
        pipeline: Prediction pipeline of the model.
        knobs: Depth knobs of the model.
        command: Command line for the same checkpoint, without mode and input.
        reads_pairs: Whether the model reads two texts.
        synthetic: Synthetic data of the run, or None if the visitor writes texts.
        evaluator: Evaluator of the quality, or None if the evaluation data are not available.
        curve: Name of a quality metric, and (compute, quality) of the settings that the run compared.
        initial_text: Initial text of the input box.
        lock: Lock that a query holds while it sets and runs the model.
        measurements: Measured quality by setting.
    """

    name: str
    pipeline: Pipeline
    knobs: list[Knob]
    command: Sequence[str]
    reads_pairs: bool = False
    synthetic: SyntheticData | None = None
    evaluator: QualityEvaluator | None = None
    curve: tuple[str, Sequence[tuple[float, float]]] | None = None
    initial_text: str = ""
    lock: ModelLock = field(default_factory=ModelLock)
    measurements: dict[Setting, DepthQuality] = field(default_factory=dict)

    @property
    def model(self) -> Any:
        """Model of the checkpoint."""
        return self.pipeline.model

    @property
    def segment_length(self) -> int | None:
        """Number of tokens per segment for a model with memory between segments, or None for other models."""
        return self.pipeline.segment_length

    @property
    def generates_text(self) -> bool:
        """Whether the model is a language model that can continue texts."""
        return self.pipeline.answers.continues_texts and bool(self.model.can_generate())


class InputExample(NamedTuple):
    """Generated example as model input, with its grid as text and its source."""

    example: dict[str, Any]
    board: str
    source: str | None  # as `inside 17`; None: edited by the visitor


def get_synthetic_example(checkpoint: ServedCheckpoint, name: str, number: int) -> InputExample:
    """Return the generated example with a given number from an evaluation set, numbered as in mode=evaluate.

    Raises:
        DataError: If the set does not exist.
    """
    synthetic = checkpoint.synthetic
    assert synthetic is not None
    if name not in synthetic.sets:
        raise DataError(f"{name!r:.40}: unknown evaluation set; must be one of {', '.join(synthetic.sets)}")
    examples = synthetic.sets[name]
    number %= len(examples)
    example = dict(examples[number])
    return InputExample(example, format_board(checkpoint, example), f"{name} {number}")


def parse_edited_example(checkpoint: ServedCheckpoint, original: InputExample, text: str) -> InputExample:
    """Parse a grid that a visitor has edited into an example for the model.

    Raises:
        DataError: If the board is invalid.
    """
    synthetic = checkpoint.synthetic
    assert synthetic is not None
    if text.rstrip("\n") == original.board:
        return original
    if synthetic.board is None:
        raise DataError("examples of this data set cannot be edited; choose another example")
    if len(text) > MAX_CHARACTERS:
        raise DataError(f"the grid has {len(text):,} characters; the limit is {MAX_CHARACTERS:,}")
    cells = get_cell_symbols(checkpoint, original.example)
    fields = synthetic.board.parse(synthetic.dataset, text, original.example, len(cells))
    return InputExample({"index": 0, **fields}, text.rstrip("\n"), None)


def find_cell_positions(example: Mapping[str, Any]) -> np.ndarray:
    """Return the sequence positions of an example's grid cells, which excludes special tokens."""
    marks = example.get("special_tokens_mask")
    return np.arange(len(example["input_ids"])) if marks is None else np.flatnonzero(np.asarray(marks) == 0)


def get_cell_symbols(checkpoint: ServedCheckpoint, example: Mapping[str, Any]) -> list[str]:
    """Return the symbols of an example's grid cells, row by row."""
    ids = np.asarray(example["input_ids"])[find_cell_positions(example)].tolist()
    return list(map(str, checkpoint.pipeline.tokenizer.convert_ids_to_tokens(ids)))


def arrange_rows(checkpoint: ServedCheckpoint, cells: Sequence[Any]) -> list[list[Any]]:
    """Return the cells of an example, or one value per cell, as the rows of its grid."""
    synthetic = checkpoint.synthetic
    assert synthetic is not None
    if synthetic.board is None:
        return [list(cells)]
    return synthetic.board.rows(synthetic.dataset, cells)


def format_board(checkpoint: ServedCheckpoint, example: Mapping[str, Any]) -> str:
    """Format the grid of an example as text."""
    cells, synthetic = get_cell_symbols(checkpoint, example), checkpoint.synthetic
    assert synthetic is not None
    return " ".join(cells) if synthetic.board is None else synthetic.board.to_text(synthetic.dataset, cells)
