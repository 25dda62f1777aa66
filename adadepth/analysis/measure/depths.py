"""Where tables and axes of depth begin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def least_depth(histograms: Iterable[Sequence[float]]) -> int:
    """0 if a unit received no update at all, else 1.

    Args:
        histograms: Counts, or shares, of the depths from 0.
    """
    return 0 if any(histogram[0] for histogram in histograms) else 1


def first_depth(halting: Mapping[str, Any]) -> int:
    """`least_depth` of all classes of halting.json."""
    classes = halting.get("classes", {}).values()
    return least_depth(described["histogram"] for described in classes if described.get("histogram"))
