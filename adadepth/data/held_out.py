"""Held-out rows: how many and which rows of a data set are evaluated instead of trained on.

The result is the same for every seed. Tables hold out the same share of every class (`select_held_out`), running text
and conversations hold out their last rows, and corpora hold out the documents with the smallest hashes, so that a text
that occurs twice is on one side only (`adadepth.data.text.corpora.Split`).
"""

from __future__ import annotations

import numpy as np

from adadepth.data.randomness import EVALUATION_SEED, FIXED_EPOCH, Purpose, random_generator
from adadepth.errors import DataError

HELD_OUT = "held_out"  # name of the set of held-out rows or text


def select_held_out(rows: int, share: float, classes: np.ndarray | None) -> np.ndarray:
    """Return which rows of a table are held out, (rows,) bool.

    Args:
        rows: Number of rows.
        share: Share of the rows of every class, as nearly as whole rows allow.
        classes: Class of each row, (rows,), or None if rows have no classes.
    """
    order = random_generator(EVALUATION_SEED, Purpose.HELD_OUT, FIXED_EPOCH, 0).permutation(rows)
    if classes is not None:
        order = order[np.argsort(classes[order], kind="stable")]  # class by class
    # Every 1/share-th row of that order: of n rows of a class, n · share, rounded up or down.
    marks = np.floor(np.arange(1, rows + 1) * share + 0.5)
    aside = np.zeros(rows, dtype=bool)
    aside[order[np.diff(marks, prepend=0.0) > 0]] = True
    return aside


def count_held_out(rows: int, share: float, *, subject: str, unit: str, advice: str) -> int:
    """Return how many rows of a text are held out: at least one, and not all.

    Args:
        rows: Number of rows, lines, conversations or different documents.
        share: Share of the rows to hold out.
        subject: Setting and value that name the text, for the message.
        unit: Name of the rows, for the message.
        advice: Advice on the settings that define a held-out text, for the message.

    Raises:
        DataError: If there are fewer than two rows.
    """
    if rows < 2:
        raise DataError(f"{subject}: {rows} {unit} found, but a held-out text needs at least 2; {advice}")
    return min(max(1, round(share * rows)), rows - 1)
