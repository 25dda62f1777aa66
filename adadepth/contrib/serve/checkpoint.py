"""A checkpoint that is asked: its model, what it reads, what can be turned, and how good it is at a depth."""

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

MAX_CHARACTERS = 5_000  # characters that a visitor may ask about
MAX_NEW_TOKENS = 200


class DepthQuality(NamedTuple):
    """How good a model is at a depth, on some examples of its evaluation set."""

    quality: float
    work: float  # share of full depth's
    updates: float


@dataclass(frozen=True)
class SyntheticData:
    """Examples that are drawn, so that there is always another one.

    Attributes:
        dataset: The settings.
        sets: Evaluation sets by name: the first is like those that were trained on, others are harder.
        collate: Makes a batch of examples.
        board: How one is edited; None: it is shown only.
    """

    dataset: Any
    sets: Mapping[str, Any]
    collate: Callable[[Sequence[dict[str, Any]]], Mapping[str, Any]]
    board: EditableGrid | None = None


@dataclass(frozen=True)
class QualityEvaluator:
    """How good the model is where a slider stands.

    Attributes:
        name: The metric.
        of: The examples that it is measured on, in words.
        here: Evaluates the model as it is set now.
    """

    name: str
    description: str
    evaluate: Callable[[], DepthQuality]


@dataclass(frozen=True)
class ServedCheckpoint:
    """A checkpoint that is asked.

    Attributes:
        name: Of the run, or where the model lies.
        pipeline: Predicts with it.
        knobs: What can be turned.
        command: What asks it from a terminal, without mode and input.
        pairs: Whether it reads two texts.
        drawn: Its examples, where they are drawn; None: it reads texts of the visitor's own.
        measured: Where its data are at hand.
        curve: (work, quality) of settings that the run has measured, and the name of that quality.
        beginning: A text to begin with.
        turns: Taken while the model is set and asked.
        standings: What was measured, by setting.
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
        """The model."""
        return self.pipeline.model

    @property
    def segment_length(self) -> int | None:
        """Tokens that a model with memory reads at a time; None: it remembers nothing."""
        return self.pipeline.segment_length

    @property
    def generates_text(self) -> bool:
        """Whether it continues texts."""
        return self.pipeline.predicts == "next" and bool(self.model.can_generate())


class InputExample(NamedTuple):
    """An example of drawn data, where it is from, and its cells as text."""

    example: dict[str, Any]
    board: str
    source: str | None  # `inside 17`; None: it was edited


def get_synthetic_example(checkpoint: ServedCheckpoint, name: str, number: int) -> InputExample:
    """An example of an evaluation set: the one that mode=evaluate reads under that number.

    Raises:
        DataError: There is no such set.
    """
    synthetic = checkpoint.synthetic
    assert synthetic is not None
    if name not in synthetic.sets:
        raise DataError(f"{name!r:.40}: no set of examples; there are {', '.join(synthetic.sets)}")
    examples = synthetic.sets[name]
    number %= len(examples)
    example = dict(examples[number])
    return InputExample(example, format_board(checkpoint, example), f"{name} {number}")


def parse_edited_example(checkpoint: ServedCheckpoint, original: InputExample, text: str) -> InputExample:
    """What a visitor made of an example.

    Raises:
        DataError: It is none; one line.
    """
    synthetic = checkpoint.synthetic
    assert synthetic is not None
    if text.rstrip("\n") == original.board:
        return original
    if synthetic.board is None:
        raise DataError("examples of these data cannot be edited; draw another one")
    if len(text) > MAX_CHARACTERS:
        raise DataError(f"the board has {len(text):,} characters; at most {MAX_CHARACTERS:,} are read")
    cells = get_cell_symbols(checkpoint, original.example)
    fields = synthetic.board.edited(synthetic.dataset, text, original.example, len(cells))
    return InputExample({"index": 0, **fields}, text.rstrip("\n"), None)


def find_cell_positions(example: Mapping[str, Any]) -> np.ndarray:
    """Where in the sequence of an example its cells are: at all tokens but special ones."""
    marks = example.get("special_tokens_mask")
    return np.arange(len(example["input_ids"])) if marks is None else np.flatnonzero(np.asarray(marks) == 0)


def get_cell_symbols(checkpoint: ServedCheckpoint, example: Mapping[str, Any]) -> list[str]:
    """The symbols of the cells of an example."""
    ids = np.asarray(example["input_ids"])[find_cell_positions(example)].tolist()
    return list(map(str, checkpoint.pipeline.tokenizer.convert_ids_to_tokens(ids)))


def arrange_rows(checkpoint: ServedCheckpoint, cells: Sequence[Any]) -> list[list[Any]]:
    """Cells, or what is known of each, in the rows of the board."""
    synthetic = checkpoint.synthetic
    assert synthetic is not None
    if synthetic.board is None:
        return [list(cells)]
    return synthetic.board.rows(synthetic.dataset, cells)


def format_board(checkpoint: ServedCheckpoint, example: Mapping[str, Any]) -> str:
    """The cells of an example as text."""
    cells, synthetic = get_cell_symbols(checkpoint, example), checkpoint.synthetic
    assert synthetic is not None
    return " ".join(cells) if synthetic.board is None else synthetic.board.written(synthetic.dataset, cells)
