"""Exact match and F1 of answers, compared with SQuAD's official script on the same texts."""

from __future__ import annotations

import pytest

from adadepth.errors import ConfigError
from adadepth.metrics.task_metrics import check_metrics, score_answer, score_answers

# (prediction, answers, exact match, F1) as evaluate-v2.0.py gives them.
CASES = [
    ("The Cat!", ["cat"], 1, 1),
    ("a cat, an owl", ["the owl cat"], 0, 1),
    ("Denver Broncos", ["the Broncos", "Denver Broncos (AFC)"], 0, 0.8),
    ("theatre", ["the atre"], 0, 0),
    ("12.5%", ["125"], 1, 1),
    ("", ["cat"], 0, 0),
    ("", [], 1, 1),
    ("cat", [], 0, 0),
    ("an", ["the"], 1, 1),
    ("cat cat dog", ["cat dog dog bird"], 0, 4 / 7),
    ("naïve  CAT\u00a0sat", ["naïve cat sat"], 1, 1),
    ("the", ["", "dog"], 0, 0),
]


@pytest.mark.parametrize(("prediction", "answers", "exact", "overlap"), CASES)
def test_scores_equal_the_official_ones(prediction: str, answers: list[str], exact: float, overlap: float) -> None:
    assert score_answer(prediction, answers) == pytest.approx({"exact_match": exact, "f1": overlap})


def test_means_of_all_questions_and_of_either_kind() -> None:
    scores = score_answers(["exact_match", "f1"], ["cat", "", "dog", "owl"], [["cat"], ["cat"], [], ["an owl bird"]])
    assert scores == pytest.approx({
        "exact_match": 0.25, "f1": (1 + 2 / 3) / 4, "exact_match/answerable": 1 / 3,
        "exact_match/unanswerable": 0, "f1/answerable": (1 + 2 / 3) / 3, "f1/unanswerable": 0,
        "score": (0.25 + (1 + 2 / 3) / 4) / 2,
    })  # fmt: skip
    assert score_answers(["f1"], ["cat"], [["cat"]]) == {"f1": 1, "score": 1}


@pytest.mark.parametrize(("metrics", "problem", "message"), [
    (["f2"], "question_answering", "no such metric; known: exact_match, f1$"),
    (["accuracy"], "question_answering", "not a metric of question answering; known: exact_match, f1$"),
    (["f1"], "multiple_choice", "not a metric of multiple choice; known: accuracy$"),
    (["exact_match"], "classification", "not a metric of a classification"),
])  # fmt: skip
def test_names_are_checked_by_the_kind_of_task(metrics: list[str], problem: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_metrics(metrics, problem)
    check_metrics(["exact_match", "f1"], "question_answering")
