"""Content of the file texts.json: predictions for texts, with the depth spent on each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from adadepth.prediction.outputs import Prediction, PredictionCompute
from adadepth.prediction.pipeline import Pipeline


def describe_texts(pipeline: Pipeline, texts: Sequence[str | tuple[str, str] | list[str]]) -> dict[str, Any]:
    """Predict texts, and return the content of the file texts.json, which `describe_predictions` lists."""
    predictions, compute = pipeline.priced(texts, every_step=True)
    parts = [[text] if isinstance(text, str) else list(text) for text in texts]
    for text, prediction in zip(parts, predictions, strict=True):
        text[-1] += prediction.continuation or ""
    return describe_predictions(pipeline, parts, predictions, compute)


def describe_predictions(
    pipeline: Pipeline,
    texts: Sequence[Sequence[str]],
    predictions: Sequence[Prediction],
    compute: PredictionCompute,
) -> dict[str, Any]:
    """Return the content of the file texts.json for given predictions.

    Args:
        pipeline: Pipeline that made the predictions.
        texts: Parts of every text.
        predictions: One prediction for each text.
        compute: Compute of the predictions.

    Returns:
        A mapping with `unit` and `max_depth` as in halting.json, the kind of prediction `predicts`, the mean updates of
        a unit `mean`, and the compute of the predicted depths as a share of full depth: `work` without predictions at
        exits, and `work_with_predictions`. Its entry `texts` holds the parts of every text with the fields of its
        `Prediction`.
    """
    depths = [depth for prediction in predictions for depth in prediction.depths()]
    return {
        "unit": pipeline.model.depth_unit,
        "max_depth": pipeline.model.max_updates,
        "predicts": pipeline.predicts,
        "mean": sum(depths) / len(depths),
        "work": compute.share,
        "work_with_predictions": compute.share_with_predictions,
        "texts": [
            {"text": list(parts), **asdict(prediction)} for parts, prediction in zip(texts, predictions, strict=True)
        ],
    }
