"""Fields of a model's configuration that follow from the classes of the data."""

from __future__ import annotations

from typing import Any

import pytest

from adadepth.tasks.model_fields import class_fields

NAMES: dict[str, Any] = {"id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}}


@pytest.mark.parametrize(("problem", "names", "fields"), [
    ("regression", (), {"num_labels": 1, "problem_type": "regression"}),
    ("classification", ("no", "yes"), NAMES | {"problem_type": "single_label_classification"}),
    ("multi_label", ("no", "yes"), NAMES | {"problem_type": "multi_label_classification"}),
    ("tagging", ("no", "yes"), NAMES | {"problem_type": None}),
    ("question_answering", (), {}),
])  # fmt: skip
def test_classes_determine_head_and_loss(problem: str, names: tuple[str, ...], fields: dict[str, Any]) -> None:
    assert class_fields(problem, names) == fields
