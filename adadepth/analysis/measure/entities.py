"""Entities that tags mark, counted as CoNLL's scorer counts them: the one place that uses the ``seqeval`` library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_FIGURES = {"entity_f1": "f1-score", "entity_precision": "precision", "entity_recall": "recall"}
_AVERAGES = {"micro avg", "macro avg", "weighted avg"}


def entity_scores(predictions: Sequence[Sequence[str]], labels: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return how many entities are found whole, with the right bounds and the right type.

    Args:
        predictions: Tags of each sentence: ``O``, ``B-TYPE`` or ``I-TYPE``.
        labels: Likewise, as many of each sentence.

    Returns:
        ``entity_f1``, ``entity_precision`` and ``entity_recall`` of all entities together, 0 where undefined, and
        ``entity_f1/TYPE`` of each type that is predicted or there.
    """
    if not any(tag != "O" for tags in (*labels, *predictions) for tag in tags):
        return dict.fromkeys(_FIGURES, 0.0)  # a report on no entity at all is nothing but warnings
    from seqeval.metrics import classification_report

    report: dict[str, Any] = classification_report(
        [list(tags) for tags in labels], [list(tags) for tags in predictions], output_dict=True, zero_division=0
    )
    together = {name: float(report["micro avg"][theirs]) for name, theirs in _FIGURES.items()}
    types = {name: float(values["f1-score"]) for name, values in report.items() if name not in _AVERAGES}
    return together | {f"entity_f1/{name}": value for name, value in types.items()}
