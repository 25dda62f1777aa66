"""What is kept of predictions: the content of texts.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from adadepth.prediction.pipeline import Pipeline
from adadepth.prediction.results import Prediction


def describe_texts(pipeline: Pipeline, texts: Sequence[str | tuple[str, str] | list[str]]) -> dict[str, Any]:
    """What texts.json holds.

    `unit` and `max_depth` as in halting.json; what is predicted (`classes`, `tags`, `masks` or `next`); the mean
    updates of a unit; `work`, the share of the work of full depth; and of every text its parts, and what a `Prediction`
    has.
    """
    predictions, work = pipeline.examine(texts)
    return describe(pipeline, [_shown(text, found) for text, found in zip(texts, predictions, strict=True)],
                    predictions, work)  # fmt: skip


def describe(
    pipeline: Pipeline, texts: Sequence[Sequence[str]], predictions: Sequence[Prediction], work: float
) -> dict[str, Any]:
    """The same of predictions that were made: of each the parts of its text, see `describe_texts`."""
    depths = [depth for prediction in predictions for depth in prediction.depths()]
    return {
        "unit": pipeline.model.depth_unit,
        "max_depth": pipeline.model.max_updates,
        "predicts": pipeline.predicts,
        "mean": sum(depths) / len(depths),
        "work": work,
        "texts": [
            {"text": list(parts), **asdict(prediction)} for parts, prediction in zip(texts, predictions, strict=True)
        ],
    }


def _shown(text: str | tuple[str, str] | list[str], prediction: Prediction) -> list[str]:
    """The parts of a text, the last one with what was written behind it."""
    parts = [text] if isinstance(text, str) else list(text)
    return [*parts[:-1], parts[-1] + (prediction.continuation or "")]
