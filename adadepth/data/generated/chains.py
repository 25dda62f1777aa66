"""Chains that lead back: each place has a value or points to an earlier place, and leads to the value at its end."""

from __future__ import annotations

import numpy as np


def draw_chains(
    rows: int, places: int, links: tuple[int, int], values: int, reach: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rows in which place i has one of the values or points to one of min(i, reach) places before it, all alike.

    So it has a value with probability values / (min(i, reach) + values), and most places are near one. Where the lowest
    number of ``links`` is not 0, each row has a chain besides whose length is any number of the range: few rows would
    have one of themselves.

    Args:
        rows: How many.
        places: Of a row; more than the highest number of links.
        links: Lowest and highest length of the chain that each row has for certain.
        values: How many there are.
        reach: How many places back a place may point.
        generator: Of the draws.

    Returns:
        ``targets``, the place that each points to, its own where it has a value, int64; ``followed``, how many pointers
        are between a place and its value, and ``found``, that value, int8; all (rows, places).
    """
    own = np.arange(places)
    near = np.minimum(own, reach)
    lots = (generator.random((rows, places)) * (near + values)).astype(np.int64)
    targets = np.where(lots < near, own - near + lots, own)
    found = np.where(lots < near, 0, lots - near).astype(np.int8)
    if links[0] > 0:
        _add_chains(targets, links, reach, generator)
        found = np.where(targets == own, generator.integers(0, values, found.shape, dtype=np.int8), found)
    followed = np.zeros((rows, places), dtype=np.int8)
    row = np.arange(rows)
    for place in range(1, places):
        target = targets[:, place]
        points = target != place
        followed[:, place] = np.where(points, followed[row, target] + 1, 0)
        found[:, place] = np.where(points, found[row, target], found[:, place])
    return targets, followed, found


def _add_chains(targets: np.ndarray, links: tuple[int, int], reach: int, generator: np.random.Generator) -> None:
    """Make a place of each row the end of a chain whose length is drawn from the range, in place."""
    rows, places = targets.shape
    row: np.ndarray = np.arange(rows)
    left: np.ndarray = generator.integers(links[0], links[1] + 1, (rows,))
    place: np.ndarray = (generator.random(rows) * (places - left)).astype(np.int64)
    targets[row, place] = place
    while (row := row[left > 0]).size:
        place, left = place[left > 0], left[left > 0]
        most = np.minimum(reach, places - place - left)  # so that the other links have room
        after = place + 1 + (generator.random(len(row)) * most).astype(np.int64)
        targets[row, after] = place
        place, left = after, left - 1
