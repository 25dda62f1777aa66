"""Content of the file texts.json: predictions for texts, with the depth spent on each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from adadepth.prediction.outputs import Prediction
from adadepth.prediction.pipeline import Pipeline


def describe_texts(pipeline: Pipeline, texts: Sequence[str | tuple[str, str] | list[str]]) -> dict[str, Any]:
    """Predict texts, and return the content of the file texts.json.

    Besides the fields of `describe_predictions`, it has `work_with_predictions`, the share with predictions at exits.
    """
    predictions, compute = pipeline.priced(texts, every_step=True)
    parts = [[text] if isinstance(text, str) else list(text) for text in texts]
    for text, prediction in zip(parts, predictions, strict=True):
        text[-1] += prediction.continuation or ""
    described = describe_predictions(pipeline, parts, predictions, compute.share)
    return {**described, "work_with_predictions": compute.share_with_predictions}


def describe_predictions(
    pipeline: Pipeline, texts: Sequence[Sequence[str]], predictions: Sequence[Prediction], work: float
) -> dict[str, Any]:
    """Return the content of the file texts.json for given predictions.

    Args:
        pipeline: Pipeline that made the predictions.
        texts: Parts of every text.
        predictions: One prediction for each text.
        work: Compute of the predicted depths as a share of full-depth compute.

    Returns:
        A mapping with `unit` and `max_depth` as in halting.json, the kind of prediction `predicts`, the mean updates of
        a unit `mean`, and `work`. Its entry `texts` holds the parts of every text with the fields of its `Prediction`.
    """
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
