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

from adadepth.contrib.serve.knobs import FULL, Setting, turned
from adadepth.contrib.serve.served import (
    LONGEST_TEXT,
    GivenExample,
    Served,
    Standing,
    cell_positions,
    rows_of,
    symbols_of_cells,
)
from adadepth.contrib.serve.turns import call_within
from adadepth.data.text.passages import Text
from adadepth.errors import DataError
from adadepth.prediction.pipeline import describe_predictions, describe_texts

_QUICK = 1.0  # seconds: what takes less is timed again, and the median told
_TIMES = 3


@dataclass(frozen=True)
class Square:
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
class Reply:
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

    found: Mapping[str, Any]
    setting: Setting
    changed: Mapping[str, Any]
    seconds: tuple[float, float]
    full: Mapping[str, Any]
    board: list[list[Square]] | None = None
    label: str | None = None
    difficulty: int | None = None
    source: str | None = None
    steps: Mapping[int, Sequence[str]] = field(default_factory=dict)

    @property
    def row(self) -> Mapping[str, Any]:
        """What was said of the input."""
        row: Mapping[str, Any] = self.found["texts"][0]
        return row


def ask(served: Served, given: Text | GivenExample, setting: Setting) -> Reply:
    """What a model says of a text, or of a drawn example, at a setting, and at full depth.

    Raises:
        DataError: The text is too long, or nothing the model reads; or the answer takes too long.
        ConfigError: There is no such setting.
    """
    if not isinstance(given, GivenExample):
        refuse_text(given)
    return call_within(served.turns.seconds, partial(_ask, served, given, setting))


def _ask(served: Served, given: Text | GivenExample, setting: Setting) -> Reply:
    with served.turns.take(served.model):
        with turned(served.model, served.knobs, Setting(FULL)):
            full, full_seconds = _described(served, given), _timed(served, given)
        with turned(served.model, served.knobs, setting) as changed:
            found, seconds = _described(served, given), _timed(served, given)
            if isinstance(given, GivenExample):
                board, about = _board(served, given, found), _truth(served, given)
            else:
                board, about = None, {"steps": served.pipeline.predict_text_steps(given)}
    return Reply(found, setting, changed, (seconds, full_seconds), full, board, **about)


def standing(served: Served, setting: Setting) -> Standing | None:
    """How good the model is at a setting, measured once; None: its data are not at hand."""
    if served.measured is None:
        return None
    if setting not in served.standings:
        served.standings[setting] = call_within(served.turns.seconds, partial(_measure, served, setting))
    return served.standings[setting]


def _measure(served: Served, setting: Setting) -> Standing:
    assert served.measured is not None
    with served.turns.take(served.model), turned(served.model, served.knobs, setting):
        return served.measured.here()


def refuse_text(text: Text) -> None:
    """Refuse what a visitor may not ask about.

    Raises:
        DataError: It is too long, or empty; one line.
    """
    parts = [text] if isinstance(text, str) else list(text)
    if (length := sum(map(len, parts))) > LONGEST_TEXT:
        raise DataError(f"the text has {length:,} characters; at most {LONGEST_TEXT:,} are read")
    if not any(part.strip() for part in parts):
        raise DataError("there is no text: type one")


def _described(served: Served, given: Text | GivenExample) -> dict[str, Any]:
    if not isinstance(given, GivenExample):
        return describe_texts(served.pipeline, [given])
    prediction, work = served.pipeline.predict_example(given.example, _batch(served, given))
    parts = "".join(symbols_of_cells(served, given.example)) if served.pipeline.predicts == "cells" else given.board
    return describe_predictions(served.pipeline, [[parts]], [prediction], work)


def _batch(served: Served, given: GivenExample) -> Mapping[str, Any]:
    assert served.drawn is not None
    return served.drawn.collate([given.example])


def _timed(served: Served, given: Text | GivenExample) -> float:
    """Seconds of a pass without looking at every step, once for what is slow, else the median of some."""
    once = _pass(served, given)
    seconds = [once()]
    while sum(seconds) < _QUICK and len(seconds) < _TIMES:
        seconds.append(once())
    return statistics.median(seconds)


def _pass(served: Served, given: Text | GivenExample) -> Callable[[], float]:
    def once() -> float:
        start = perf_counter()
        if isinstance(given, GivenExample):
            served.pipeline.predict_example(given.example, _batch(served, given), every_step=False)
        else:
            served.pipeline.priced([given])
        return perf_counter() - start

    return once


# ---- examples whose answer is known


def _truth(served: Served, given: GivenExample) -> dict[str, Any]:
    """What is right of an example with one label, how hard it is, and where it is from."""
    found: dict[str, Any] = {"source": given.source}
    if "label" in given.example:
        found["label"] = served.model.config.id2label[int(given.example["label"])]
    if (difficulty := int(given.example.get("difficulty", -1))) >= 0:
        found["difficulty"] = difficulty
    return found


def _board(served: Served, given: GivenExample, found: Mapping[str, Any]) -> list[list[Square]]:
    """The cells of an example with all that is known of them."""
    example, row = given.example, found["texts"][0]
    positions = cell_positions(example).tolist()
    cells = symbols_of_cells(served, example)
    if served.pipeline.predicts == "cells":
        return rows_of(served, _puzzle_squares(served, example, cells, row))
    tokens, known = row["tokens"], served.pipeline.predict_token_steps(_batch(served, given))
    labels, names = _labels(served, example, positions), served.model.config.id2label
    difficulties = np.asarray(example.get("difficulties", np.full(len(example["input_ids"]), -1)))
    squares = []
    for cell, position, label in zip(cells, positions, labels, strict=True):
        token = tokens[position] if tokens else {}
        hard = int(difficulties[position])
        squares.append(
            Square(
                cell,
                hard if hard >= 0 else None,
                None if label is None else names[label],
                token.get("label") if label is not None else None,
                token.get("updates"),
                tuple(known.get(position, ())),
            )
        )
    return rows_of(served, squares)


def _labels(served: Served, example: Mapping[str, Any], positions: list[int]) -> list[int | None]:
    labels = example.get("labels")
    if labels is None:
        return [None] * len(positions)
    return [int(labels[position]) if labels[position] >= 0 else None for position in positions]


def _puzzle_squares(
    served: Served, example: Mapping[str, Any], cells: list[str], row: Mapping[str, Any]
) -> list[Square]:
    """A puzzle halts as a whole: its cells have an answer after every step."""
    names = served.pipeline.tokenizer.convert_ids_to_tokens(np.asarray(example["labels"]).tolist())
    asked = [name if label else None for name, label in zip(names, np.asarray(example["labels"]), strict=True)]
    steps = [step["label"] for step in row["steps"] or []][: round(row["updates"])]
    return [
        Square(cell, None, right, row["label"][place], None, tuple(step[place] for step in steps))
        for place, (cell, right) in enumerate(zip(cells, asked, strict=True))
    ]
