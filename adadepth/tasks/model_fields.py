"""Model configuration fields that follow from the data, and data-loader options that follow from the model family."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adadepth.config.kinds import PREDICTED
from adadepth.data import RunData
from adadepth.models.registry import family

_PROBLEM_TYPES = {"classification": "single_label_classification", "multi_label": "multi_label_classification"}


def cls_options(name: str, model: Any) -> dict[str, Any]:
    """Return the data-loader option for the number of leading [CLS] tokens that a model family needs.

    With 0 the tokenizer decides.

    Args:
        name: Name of the family.
        model: Settings of the model, or its loaded configuration.
    """
    first_tokens = family(name).first_tokens
    return {} if first_tokens is None else first_tokens(model)


def head_fields(data: RunData) -> dict[str, Any]:
    """Return model configuration fields that the data determine, such as classes and input size."""
    return {**data.model_fields, **data.least_fields, **class_fields(data.problem, data.labels)}


def class_fields(problem: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return model configuration fields for a problem type and its class names."""
    if not PREDICTED[problem].has_classes:
        return {}
    if problem == "regression":
        return {"num_labels": 1, "problem_type": "regression"}
    return {
        "id2label": dict(enumerate(names)),
        "label2id": {name: number for number, name in enumerate(names)},
        "problem_type": _PROBLEM_TYPES.get(problem),
    }
