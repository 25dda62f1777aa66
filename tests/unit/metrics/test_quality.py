"""Metrics of predictions, compared with their formulas, and metrics of the `evaluate` library."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adadepth.errors import ConfigError, DataError
from adadepth.metrics.task_metrics import (
    QUALITY_METRICS,
    UNDEFINED,
    check_metrics,
    get_metric_key,
    load_metrics,
    quality,
)


def make_arrays(*columns: list[float]) -> list[np.ndarray]:
    return [np.array(column) for column in columns]


BINARY = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=30)


@settings(deadline=None)  # the first call imports scikit-learn or scipy
@given(BINARY)
def test_binary_metrics_against_their_counts(pairs: list[tuple[int, int]]) -> None:
    predictions, labels = make_arrays(*map(list, zip(*pairs, strict=True)))
    tp, fp, fn, tn = (pairs.count(pair) for pair in ((1, 1), (1, 0), (0, 1), (0, 0)))
    f1 = [2 * hit / (2 * hit + fp + fn) if hit else 0.0 for hit in (tp, tn)]
    occurs = [bool(tp + fp + fn), bool(tn + fp + fn)]
    product = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    scores = quality(["accuracy", "f1", "f1_macro", "matthews"], predictions, labels)
    expected = {
        "accuracy": (tp + tn) / len(pairs),
        "f1": f1[0],
        "f1_macro": sum(f1) / sum(occurs),
        "matthews": (tp * tn - fp * fn) / product**0.5 if product else 0.0,
    }
    assert scores == pytest.approx({**expected, "score": sum(expected.values()) / 4}, abs=1e-12)


VALUES = st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=2, max_size=20)


@settings(deadline=None)  # the first call imports scikit-learn or scipy
@given(VALUES)
def test_correlations_against_their_formula(pairs: list[tuple[int, int]]) -> None:
    predictions, labels = make_arrays(*map(list, zip(*pairs, strict=True)))
    scores = quality(["pearson", "spearman"], predictions / 3, labels / 7)
    if len(set(predictions)) == 1 or len(set(labels)) == 1:
        assert scores == {"score": 0.0}
        return

    def correlation(x: np.ndarray, y: np.ndarray) -> float:
        x, y = x - x.mean(), y - y.mean()
        return float((x * y).sum() / ((x * x).sum() * (y * y).sum()) ** 0.5)

    def ranks(x: np.ndarray) -> np.ndarray:
        return np.array([(x < value).sum() + ((x == value).sum() - 1) / 2 for value in x])

    expected = {"pearson": correlation(predictions, labels), "spearman": correlation(ranks(predictions), ranks(labels))}
    assert scores == pytest.approx({**expected, "score": sum(expected.values()) / 2}, abs=1e-9)


def test_an_undefined_metric_is_absent_and_counts_as_zero_in_the_score() -> None:
    predictions, labels = make_arrays([1.5, 1.5, 1.5], [1.0, 2.0, 3.0])
    assert quality(["pearson", "spearman"], predictions, labels) == {"score": 0.0}
    assert quality(["pearson"], np.array([1.0, np.nan, 2.0]), labels) == {"score": 0.0}
    assert "constant" in UNDEFINED
    assert quality(["matthews"], np.array([1, 1]), np.array([0, 1])) == {"matthews": 0.0, "score": 0.0}


def test_a_higher_score_is_better_for_errors_too() -> None:
    predictions, labels = make_arrays([1.0, 2.0, 5.0], [1.0, 3.0, 3.0])
    assert quality(["mse"], predictions, labels) == pytest.approx({"mse": 5 / 3, "score": -5 / 3})


def test_an_error_that_is_not_finite_is_the_worst_score() -> None:
    predictions, labels = make_arrays([1.0, np.nan, 5.0], [1.0, 3.0, 3.0])
    assert quality(["mse"], predictions, labels) == {"score": -np.inf}
    assert quality(["mse", "pearson"], predictions, labels) == {"score": -np.inf}


@pytest.mark.parametrize(("metrics", "problem", "classes", "text"), [
    (["acuracy"], "classification", None, "dataset.metrics=acuracy: no such metric (did you mean 'accuracy'?)"),
    (["pearson"], "classification", None, "dataset.metrics=pearson: not a metric of a classification"),
    (["accuracy"], "regression", None, "dataset.metrics=accuracy: not a metric of a regression"),
    ([], "regression", None, "dataset.metrics=[]: at least one is needed, of pearson, spearman, mse"),
    (["f1"], "classification", 3, "dataset.metrics=f1: needs 2 classes, but there are 3; use f1_macro"),
    (["accuracy", "evaluate:a/accuracy"], "classification", 2, "accuracy appears twice"),
])  # fmt: skip
def test_a_wrong_name_is_a_one_line_error(metrics: list[str], problem: str, classes: int | None, text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        check_metrics(metrics, problem, classes)
    assert text in str(raised.value)
    assert "\n" not in str(raised.value)


def test_valid_names_are_accepted() -> None:
    for kind in ("classification", "regression"):
        check_metrics([name for name, metric in QUALITY_METRICS.items() if metric.kind == kind], kind, 2)
    check_metrics(["evaluate:glue:f1", "evaluate:./mine"], "classification")


@pytest.mark.parametrize(("name", "key"), [
    ("f1", "f1"), ("evaluate:f1", "f1"), ("evaluate:user/f1", "f1"), ("evaluate:./a/b/:recall", "recall"),
])  # fmt: skip
def test_a_metric_is_reported_by_its_key(name: str, key: str) -> None:
    assert get_metric_key(name) == key


# --- metrics of the evaluate library

METRIC = """
import datasets, evaluate

class {name}(evaluate.Metric):
    def _info(self):
        features = datasets.Features({{"predictions": datasets.Value("int64"), "references": datasets.Value("int64")}})
        return evaluate.MetricInfo(description="", citation="", features=features)

    def _compute(self, predictions, references):
        return {{"hits": sum(p == r for p, r in zip(predictions, references)){more}}}
"""


def write_metric(folder: Path, name: str, more: str = "") -> str:
    (folder / name).mkdir()
    text = METRIC.format(name=name.title(), more=more).replace(
        "import datasets, evaluate", "import datasets\nimport evaluate"
    )
    (folder / name / f"{name}.py").write_text(text)
    return f"evaluate:{folder / name}"


@pytest.mark.slow  # the library takes seconds to import
def test_a_metric_of_a_local_folder(tmp_path: Path) -> None:
    name = write_metric(tmp_path, "single")
    scores = quality(["accuracy", name], np.array([0, 1, 2, 1]), np.array([0, 1, 1, 2]))
    assert scores == {"accuracy": 0.5, "single": 2.0, "score": 1.25}


@pytest.mark.slow
def test_an_error_metric_of_the_library_is_better_when_lower(tmp_path: Path) -> None:
    """Check a mean error, which was maximised in EleutherAI/lm-evaluation-harness#1581."""
    name = write_metric(tmp_path, "mae")
    scores = quality([name], np.array([0, 1, 2, 1]), np.array([0, 1, 1, 2]))
    assert scores == {"mae": 2.0, "score": -2.0}


@pytest.mark.slow
def test_one_of_several_values_is_chosen_by_its_key(tmp_path: Path) -> None:
    name = write_metric(tmp_path, "several", ', "total": len(references)')
    predictions, labels = np.array([0, 1, 1]), np.array([0, 1, 0])
    assert quality([f"{name}:total"], predictions, labels) == {"total": 3.0, "score": 3.0}
    with pytest.raises(DataError, match="choose one of its values, evaluate:METRIC:KEY with KEY in hits, total"):
        quality([name], predictions, labels)
    with pytest.raises(DataError, match="it has no value 'totl' \\(did you mean 'total'\\?\\)"):
        quality([f"{name}:totl"], predictions, labels)


@pytest.mark.slow
def test_offline_a_metric_of_the_hub_fails_at_once() -> None:
    labels = np.array([0, 1])
    with pytest.raises(DataError, match=r"dataset.metrics=evaluate:nobody/nothing: .*give a local folder"):
        quality(["evaluate:nobody/nothing"], labels, labels)


def test_without_a_network_a_metric_of_the_hub_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_connection(*_: object, **__: object) -> None:
        raise OSError("no route")

    labels = np.array([0, 1])
    with pytest.raises(DataError, match=r"dataset.metrics=evaluate:./nowhere: no such folder"):
        quality(["evaluate:./nowhere"], labels, labels)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("urllib.request.urlopen", refuse_connection)
    with pytest.raises(DataError, match=r"evaluate:nobody/else: .* cannot be reached \(no route\)"):
        load_metrics(["accuracy", "evaluate:nobody/else"])
