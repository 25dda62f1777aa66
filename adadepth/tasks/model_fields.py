"""What data and a family's descriptor decide about each other: fields of a head, and options of a loader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adadepth.data import LabelledData
from adadepth.families.registry import family, load
from adadepth.settings.kinds import PREDICTED

_PROBLEM_TYPES = {"classification": "single_label_classification", "multi_label": "multi_label_classification"}


def cls_options(name: str, model: Any) -> dict[str, Any]:
    """How many [CLS] a family's texts begin with, from settings or configuration; 0 leaves them to the tokenizer."""
    place = family(name).first_tokens
    return {} if place is None else load(place)(model)


def head_fields(data: LabelledData) -> dict[str, Any]:
    """What the data decide about the model: its classes, the size of its input vectors, the columns of a grid."""
    fields = {**data.model_fields, **data.least_fields}
    return fields | class_fields(data.problem, data.labels)


def class_fields(problem: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return what the names of classes decide about the model of a kind of prediction."""
    if not PREDICTED[problem].has_classes:
        return {}
    if problem == "regression":
        return {"num_labels": 1, "problem_type": "regression"}
    return {
        "id2label": dict(enumerate(names)),
        "label2id": {name: place for place, name in enumerate(names)},
        "problem_type": _PROBLEM_TYPES.get(problem),
    }
