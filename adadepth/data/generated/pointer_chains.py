"""Pointer chains: each position has a value or points to an earlier position, and the chain ends at a value."""

from __future__ import annotations

import numpy as np


def draw_pointer_chains(
    rows: int, length: int, links: tuple[int, int], values: int, reach: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw rows in which each position i has a value or points to one of the min(i, reach) positions before it.

    All choices are equally likely, so a position has a value with probability values / (min(i, reach) + values). Most
    chains are short. If the lowest number of ``links`` is not 0, each row gets one more chain. The length of this chain
    is uniform in the range.

    Args:
        rows: Number of rows.
        length: Number of positions in a row, which must exceed the highest number of links.
        links: Lowest and highest length of the additional chain of each row.
        values: Number of different values.
        reach: Largest distance of a pointer, in positions.
        generator: Generator of the random numbers.

    Returns:
        Three arrays (rows, length). ``targets``, int64, is the position that each position points to. A position with a
        value points to itself. ``link_counts``, int8, is the number of pointers between a position and its value.
        ``end_values``, int8, is this value.
    """
    positions = np.arange(length)
    near = np.minimum(positions, reach)
    lots = (generator.random((rows, length)) * (near + values)).astype(np.int64)
    targets = np.where(lots < near, positions - near + lots, positions)
    end_values = np.where(lots < near, 0, lots - near).astype(np.int8)
    if links[0] > 0:
        _add_chains(targets, links, reach, generator)
        end_values = np.where(
            targets == positions, generator.integers(0, values, end_values.shape, dtype=np.int8), end_values
        )
    link_counts = np.zeros((rows, length), dtype=np.int8)
    row = np.arange(rows)
    for position in range(1, length):
        target = targets[:, position]
        points = target != position
        link_counts[:, position] = np.where(points, link_counts[row, target] + 1, 0)
        end_values[:, position] = np.where(points, end_values[row, target], end_values[:, position])
    return targets, link_counts, end_values


def _add_chains(targets: np.ndarray, links: tuple[int, int], reach: int, generator: np.random.Generator) -> None:
    """Add a chain of pointers to each row, in place. Its length is drawn from the range, and its end is random."""
    rows, length = targets.shape
    row: np.ndarray = np.arange(rows)
    remaining: np.ndarray = generator.integers(links[0], links[1] + 1, (rows,))
    position: np.ndarray = (generator.random(rows) * (length - remaining)).astype(np.int64)
    targets[row, position] = position
    while (row := row[remaining > 0]).size:
        position, remaining = position[remaining > 0], remaining[remaining > 0]
        most = np.minimum(reach, length - position - remaining)  # leaves room for the remaining links
        after = position + 1 + (generator.random(len(row)) * most).astype(np.int64)
        targets[row, after] = position
        position, remaining = after, remaining - 1
