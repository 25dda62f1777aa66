"""How good predictions are: a task's metrics by name, and the mean of the wanted ones, on which models are selected."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from adadepth.analysis.measure.answers import ANSWER_METRICS
from adadepth.analysis.measure.entities import entity_scores
from adadepth.analysis.measure.hub_metrics import HUB_PREFIX, hub_metric
from adadepth.errors import ConfigError, nearest
from adadepth.kinds import Problem

SCORE = "score"
UNDEFINED = "predictions or labels are constant, or a prediction is not a finite number"


class Metric(NamedTuple):
    """A metric by its kind of task, and its value for predictions and labels, both (M,); NaN where undefined.

    Of puzzles they are (M, L), of several labels (M, C).
    """

    kind: Problem
    compute: Callable[[np.ndarray, np.ndarray], float]


def _accuracy(predictions: np.ndarray, labels: np.ndarray) -> float:
    return float((predictions == labels).mean())


def _f1(predictions: np.ndarray, labels: np.ndarray) -> float:
    """F1 of class 1, GLUE's for MRPC and QQP; 0 where class 1 is neither predicted nor there."""
    from sklearn.metrics import f1_score

    return float(f1_score(labels == 1, predictions == 1, zero_division=0.0))


def _f1_macro(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Unweighted mean of the F1 of every class that is predicted or there."""
    from sklearn.metrics import f1_score

    return float(f1_score(labels, predictions, average="macro", zero_division=0.0))


def _f1_of_labels(average: str, predictions: np.ndarray, labels: np.ndarray) -> float:
    """F1 of the labels of texts, (M, C): of all decisions together, or the unweighted mean over labels."""
    from sklearn.metrics import f1_score

    return float(f1_score(labels, predictions, average=average, zero_division=0.0))


def _all_labels(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Share of texts all of whose labels are right, (M, C)."""
    return float((predictions == labels).all(axis=1).mean())


def _matthews(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Matthews correlation, 0 for constant predictions: their limit, and what GLUE's scorer gives."""
    from sklearn.metrics import matthews_corrcoef

    return float(matthews_corrcoef(labels, predictions)) if _varies(predictions, labels) else 0.0


def _pearson(predictions: np.ndarray, labels: np.ndarray) -> float:
    from scipy.stats import pearsonr

    return float(pearsonr(predictions, labels).statistic) if _varies(predictions, labels) else float("nan")


def _spearman(predictions: np.ndarray, labels: np.ndarray) -> float:
    from scipy.stats import spearmanr

    return float(spearmanr(predictions, labels).statistic) if _varies(predictions, labels) else float("nan")


def _mse(predictions: np.ndarray, labels: np.ndarray) -> float:
    return float(np.square(predictions - labels).mean())


def _exact_accuracy(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Share of puzzles, (M, L), all of whose labelled cells are right."""
    return float(((predictions == labels) | (labels < 0)).all(axis=1).mean())


def _cell_accuracy(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Share of labelled cells that are right."""
    return float((predictions == labels)[labels >= 0].mean())


def _varies(*columns: np.ndarray) -> bool:
    return all(np.isfinite(values).all() and np.ptp(values) > 0 for values in columns)


METRICS: dict[str, Metric] = {
    "accuracy": Metric("classification", _accuracy),
    "f1": Metric("classification", _f1),
    "f1_macro": Metric("classification", _f1_macro),
    "matthews": Metric("classification", _matthews),
    "micro_f1": Metric("multi_label", partial(_f1_of_labels, "micro")),
    "macro_f1": Metric("multi_label", partial(_f1_of_labels, "macro")),
    "all_labels": Metric("multi_label", _all_labels),
    "pearson": Metric("regression", _pearson),
    "spearman": Metric("regression", _spearman),
    "mse": Metric("regression", _mse),
    "exact_accuracy": Metric("puzzle", _exact_accuracy),
    "cell_accuracy": Metric("puzzle", _cell_accuracy),
}
# Kinds of tasks whose predictions and labels are numbers.
_MEASURED: tuple[Problem, ...] = ("classification", "multi_label", "regression", "puzzle")
_ERRORS = {"mse"}  # the lower the better
_ENTITY_METRICS = ("entity_f1", "entity_precision", "entity_recall")
TAGGING_METRICS = (*_ENTITY_METRICS, "token_accuracy")
# What predictions of each kind can be measured by; the F1 of question answering is not that of a classification.
_ALLOWED: dict[Problem, Sequence[str]] = {
    **{kind: [name for name, metric in METRICS.items() if metric.kind == kind] for kind in _MEASURED},
    "tagging": TAGGING_METRICS,
    "question_answering": ANSWER_METRICS,
    "multiple_choice": ["accuracy"],
}
_NAMES = {  # in messages
    "multi_label": "classification into several labels",
    "question_answering": "question answering",
    "multiple_choice": "multiple choice",
}
_ENTITY_TAG = re.compile(r"O|[BI]-.+")


def metric_key(name: str) -> str:
    """Name under which a metric's value is reported: ``evaluate:FOLDER/METRIC:KEY`` is ``KEY``, else ``METRIC``."""
    if not is_hub_metric(name):
        return name
    return name.rpartition(":")[2].rstrip("/").rpartition("/")[2]


def is_hub_metric(name: str) -> bool:
    """Whether a metric is one of the ``evaluate`` library, which is code of somebody's."""
    return name.startswith(HUB_PREFIX)


def check_metrics(metrics: Sequence[str], problem: Problem, num_classes: int | None = None) -> None:
    """Check the names before a run; those of the hub are checked by `load_metrics`.

    Args:
        metrics: Those of the kind of task; of classes and values also ``evaluate:NAME[:KEY]``.
        problem: What the predictions are.
        num_classes: Where it is known already.

    Raises:
        ConfigError: A name is unknown, twice there, or for another kind of task; no name is given.
    """
    allowed = _ALLOWED[problem]
    takes_hub = problem in ("classification", "regression")
    if not metrics:
        raise ConfigError(f"dataset.metrics=[]: at least one is needed, of {', '.join(allowed)}")
    keys = [metric_key(name) for name in metrics]
    for name in metrics:
        if keys.count(metric_key(name)) > 1:
            raise ConfigError(f"dataset.metrics={list(metrics)}: {metric_key(name)} is named twice")
        is_of_hub = is_hub_metric(name)
        if is_of_hub and takes_hub:
            continue
        if name not in allowed:
            is_known = is_of_hub or any(name in names for names in _ALLOWED.values())
            reason = f"not a metric of {_NAMES.get(problem, f'a {problem}')}" if is_known else "no such metric"
            known = ", ".join([*allowed, f"{HUB_PREFIX}NAME[:KEY]"] if takes_hub else allowed)
            raise ConfigError(f"dataset.metrics={name}: {reason}{nearest(name, allowed)}; known: {known}")
        if name == "f1" and num_classes is not None and num_classes != 2:
            raise ConfigError(f"dataset.metrics=f1: is of class 1 of 2, but there are {num_classes}; use f1_macro")


def check_tags(metrics: Sequence[str], labels: Sequence[str]) -> None:
    """Check that the tags mark entities where a metric counts those.

    Raises:
        ConfigError: A tag is neither ``O`` nor ``B-TYPE`` nor ``I-TYPE``.
    """
    wrong = [label for label in labels if not _ENTITY_TAG.fullmatch(label)]
    for name in metrics:
        if name in _ENTITY_METRICS and wrong:
            raise ConfigError(
                f"dataset.metrics={name}: needs tags O, B-TYPE and I-TYPE, but there is {wrong[0]}; "
                "name them with dataset.labels, or use token_accuracy"
            )


def load_metrics(metrics: Sequence[str]) -> None:
    """Load the metrics of the hub, so that a run that cannot have them fails before it trains.

    Raises:
        DataError: One cannot be loaded.
    """
    for name in metrics:
        if is_hub_metric(name):
            hub_metric(name)


def quality(metrics: Sequence[str], predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Return the named metrics, and ``score``, their mean as GLUE averages the two of MRPC, QQP and STS-B.

    A higher score is better: an error counts with a minus sign. Matthews' correlation of constant predictions is 0.
    Pearson's and Spearman's are undefined there: they are left out (``UNDEFINED`` says why), and count as 0 in
    ``score``, because a model has to be selected and such predictions rank nothing.

    Args:
        metrics: Names that `check_metrics` accepts.
        predictions: Classes (M,) int64, or values (M,) float.
        labels: Likewise.

    Raises:
        DataError: A metric of the hub cannot be had.
    """
    assert len(predictions) == len(labels) > 0, "nothing to measure"
    found: dict[str, float] = {}
    for name in metrics:
        compute = hub_metric(name) if name.startswith(HUB_PREFIX) else METRICS[name].compute
        value = compute(np.asarray(predictions), np.asarray(labels))
        if np.isfinite(value):
            found[metric_key(name)] = value
    total = sum(-value if key in _ERRORS else value for key, value in found.items())
    return {**found, SCORE: total / len(metrics)}


def tagging_quality(
    metrics: Sequence[str], predictions: Sequence[Sequence[str]], labels: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Return the named metrics of tags, with ``entity_f1`` also that of each type, and ``score``, the named ones' mean.

    Args:
        metrics: Of TAGGING_METRICS.
        predictions: The tag of every word, sentence by sentence.
        labels: Likewise.
    """
    pairs = [pair for sentence in zip(predictions, labels, strict=True) for pair in zip(*sentence, strict=True)]
    assert pairs, "nothing to measure"
    found = {"token_accuracy": sum(predicted == label for predicted, label in pairs) / len(pairs)}
    if set(metrics) & set(_ENTITY_METRICS):
        found |= entity_scores(predictions, labels)
    shown = {name: value for name, value in found.items() if name.partition("/")[0] in metrics}
    return {**shown, SCORE: sum(found[name] for name in metrics) / len(metrics)}
