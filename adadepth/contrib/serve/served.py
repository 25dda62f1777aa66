"""A checkpoint that is asked: its model, what it reads, what can be turned, and how good it is at a depth."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from adadepth.contrib.serve.knobs import Knob, Setting
from adadepth.contrib.serve.turns import Turns
from adadepth.data.editable_grid import EditableGrid
from adadepth.errors import DataError
from adadepth.prediction import Pipeline

LONGEST_TEXT = 5_000  # characters that a visitor may ask about
MOST_NEW_TOKENS = 200


class Standing(NamedTuple):
    """How good a model is at a depth, on some examples of its evaluation set."""

    quality: float
    work: float  # share of full depth's
    updates: float


@dataclass(frozen=True)
class Drawn:
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
class Measured:
    """How good the model is where a slider stands.

    Attributes:
        name: The metric.
        of: The examples that it is measured on, in words.
        here: Evaluates the model as it is set now.
    """

    name: str
    of: str
    here: Callable[[], Standing]


@dataclass(frozen=True)
class Served:
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
    pairs: bool = False
    drawn: Drawn | None = None
    measured: Measured | None = None
    curve: tuple[str, Sequence[tuple[float, float]]] | None = None
    beginning: str = ""
    turns: Turns = field(default_factory=Turns)
    standings: dict[Setting, Standing] = field(default_factory=dict)

    @property
    def model(self) -> Any:
        """The model."""
        return self.pipeline.model

    @property
    def segment_length(self) -> int | None:
        """Tokens that a model with memory reads at a time; None: it remembers nothing."""
        return self.pipeline.segment_length

    @property
    def writes(self) -> bool:
        """Whether it continues texts."""
        return self.pipeline.predicts == "next" and bool(self.model.can_generate())


class GivenExample(NamedTuple):
    """An example of drawn data, where it is from, and its cells as text."""

    example: dict[str, Any]
    board: str
    source: str | None  # `inside 17`; None: it was edited


def drawn_example(served: Served, name: str, number: int) -> GivenExample:
    """An example of an evaluation set: the one that mode=evaluate reads under that number.

    Raises:
        DataError: There is no such set.
    """
    drawn = served.drawn
    assert drawn is not None
    if name not in drawn.sets:
        raise DataError(f"{name!r:.40}: no set of examples; there are {', '.join(drawn.sets)}")
    examples = drawn.sets[name]
    number %= len(examples)
    example = dict(examples[number])
    return GivenExample(example, board_text(served, example), f"{name} {number}")


def edited_example(served: Served, before: GivenExample, text: str) -> GivenExample:
    """What a visitor made of an example.

    Raises:
        DataError: It is none; one line.
    """
    drawn = served.drawn
    assert drawn is not None
    if text.rstrip("\n") == before.board:
        return before
    if drawn.board is None:
        raise DataError("examples of these data cannot be edited; draw another one")
    if len(text) > LONGEST_TEXT:
        raise DataError(f"the board has {len(text):,} characters; at most {LONGEST_TEXT:,} are read")
    cells = symbols_of_cells(served, before.example)
    found = drawn.board.edited(drawn.dataset, text, before.example, len(cells))
    return GivenExample({"index": 0, **found}, text.rstrip("\n"), None)


def cell_positions(example: Mapping[str, Any]) -> np.ndarray:
    """Where in the sequence of an example its cells are: at all tokens but special ones."""
    marks = example.get("special_tokens_mask")
    return np.arange(len(example["input_ids"])) if marks is None else np.flatnonzero(np.asarray(marks) == 0)


def symbols_of_cells(served: Served, example: Mapping[str, Any]) -> list[str]:
    """The symbols of the cells of an example."""
    ids = np.asarray(example["input_ids"])[cell_positions(example)].tolist()
    return list(map(str, served.pipeline.tokenizer.convert_ids_to_tokens(ids)))


def rows_of(served: Served, cells: Sequence[Any]) -> list[list[Any]]:
    """Cells, or what is known of each, in the rows of the board."""
    drawn = served.drawn
    assert drawn is not None
    if drawn.board is None:
        return [list(cells)]
    return drawn.board.rows(drawn.dataset, cells)


def board_text(served: Served, example: Mapping[str, Any]) -> str:
    """The cells of an example as text."""
    cells, drawn = symbols_of_cells(served, example), served.drawn
    assert drawn is not None
    return " ".join(cells) if drawn.board is None else drawn.board.written(drawn.dataset, cells)
