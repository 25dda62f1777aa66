"""Metrics of the ``evaluate`` library, from the hub or a local folder: the one place that uses it."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from adadepth.errors import ConfigError, DataError, nearest
from adadepth.measure.names import is_loss
from adadepth.settings.kinds import Problem
from adadepth.system.places import first_line, require_hub, say_trusted

HUB_PREFIX = "evaluate:"


def hub_metric(name: str) -> Callable[[np.ndarray, np.ndarray], float]:
    """Return the function of predictions and labels, both (M,), that ``evaluate:METRIC[:KEY]`` names.

    METRIC is a name of the hub or a folder; its code is run, as the library does. KEY chooses among several values.

    Raises:
        DataError: The metric cannot be loaded; of the function: it cannot be computed, or has no such value.
    """
    path, _, key = name.removeprefix(HUB_PREFIX).partition(":")
    module = _load(name, path)

    def compute(predictions: np.ndarray, labels: np.ndarray) -> float:
        try:
            values = module.compute(predictions=predictions.tolist(), references=labels.tolist())
        except (ValueError, TypeError) as error:
            raise DataError(f"dataset.metrics={name}: {first_line(error)}") from error
        return _choose(name, key, values or {})

    return compute


@lru_cache
def _load(name: str, path: str) -> Any:
    """Return the library's metric; without a connection or an earlier download it fails at once."""
    alternative = "give a local folder with evaluate:FOLDER, or a metric of adadepth's own"
    if not Path(path).expanduser().exists():
        if path.startswith((".", "/", "~")):
            raise DataError(f"dataset.metrics={name}: no such folder")
        require_hub(f"dataset.metrics={name}", alternative)
    import evaluate

    say_trusted(path)
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:  # which the library does not read
        evaluate.config.HF_EVALUATE_OFFLINE = True
    try:
        return evaluate.load(str(Path(path).expanduser()) if Path(path).expanduser().exists() else path)
    except (OSError, ImportError, ValueError) as error:
        raise DataError(f"dataset.metrics={name}: {first_line(error)}; {alternative}") from error


def _choose(name: str, key: str, values: dict[str, Any]) -> float:
    if not key and len(values) == 1:
        return float(next(iter(values.values())))
    if key not in values:
        hint = "choose one of its values" if not key else f"it has no {key!r}{nearest(key, values)}"
        raise DataError(f"dataset.metrics={name}: {hint}, evaluate:METRIC:KEY with KEY in {', '.join(values)}")
    return float(values[key])


_FIGURES = {"entity_f1": "f1-score", "entity_precision": "precision", "entity_recall": "recall"}
_AVERAGES = {"micro avg", "macro avg", "weighted avg"}


def entity_scores(predictions: Sequence[Sequence[str]], labels: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return how many entities are found whole, with the right bounds and the right type.

    Args:
        predictions: Tags of each sentence: ``O``, ``B-TYPE`` or ``I-TYPE``.
        labels: Right tags, as many of each sentence.

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


ANSWER_METRICS = ("exact_match", "f1")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(text: str) -> str:
    """Return a text in lower case, without punctuation and articles, and with single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(prediction: str, answer: str) -> float:
    """Return 1 if both are the same but for what `normalised` takes away, else 0."""
    return float(normalised(prediction) == normalised(answer))


def f1(prediction: str, answer: str) -> float:
    """Return the F1 of the words of both; where one has none, 1 if the other has none either, else 0."""
    predicted, wanted = normalised(prediction).split(), normalised(answer).split()
    if not predicted or not wanted:
        return float(predicted == wanted)
    common = sum((Counter(predicted) & Counter(wanted)).values())
    return 2 * common / (len(predicted) + len(wanted))


def answer_scores(prediction: str, answers: Sequence[str]) -> dict[str, float]:
    """Return both metrics of a prediction: each the best over the answers of the question.

    An empty prediction is the right one where there is no answer. Answers of which `normalised` leaves nothing do not
    count, as in version 2.0 of the script (version 1.1 counts them).
    """
    known = [answer for answer in answers if normalised(answer)] or [""]
    return {
        "exact_match": max(exact_match(prediction, answer) for answer in known),
        "f1": max(f1(prediction, answer) for answer in known),
    }


def answer_quality(
    metrics: Sequence[str], predictions: Sequence[str], answers: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Return the named metrics as means over questions, from 0 to 1, and ``score``, the mean of these.

    Where some questions have an answer and others have none, also those of either kind: ``f1/answerable``,
    ``f1/unanswerable``.

    Args:
        metrics: Of ANSWER_METRICS.
        predictions: A text for each question, empty for no answer.
        answers: All right answers of each question.
    """
    scores = [answer_scores(text, known) for text, known in zip(predictions, answers, strict=True)]
    assert scores, "nothing to measure"
    kinds = ["answerable" if known else "unanswerable" for known in answers]
    found = {name: _mean([score[name] for score in scores]) for name in metrics}
    by_kind = {
        f"{name}/{kind}": _mean([score[name] for score, own in zip(scores, kinds, strict=True) if own == kind])
        for name in metrics
        for kind in ("answerable", "unanswerable")
        if len(set(kinds)) > 1
    }
    return {**found, **by_kind, "score": _mean(list(found.values()))}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


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


QUALITY_METRICS: dict[str, Metric] = {
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
_ENTITY_METRICS = ("entity_f1", "entity_precision", "entity_recall")
TAGGING_METRICS = (*_ENTITY_METRICS, "token_accuracy")
# What predictions of each kind can be measured by; the F1 of question answering is not that of a classification.
_ALLOWED: dict[Problem, Sequence[str]] = {
    **{kind: [name for name, metric in QUALITY_METRICS.items() if metric.kind == kind] for kind in _MEASURED},
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
        metrics: Names of the kind of task; of classes and values also ``evaluate:NAME[:KEY]``.
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
        labels: Right classes or values, of the same shape and type.

    Raises:
        DataError: A metric of the hub cannot be had.
    """
    assert len(predictions) == len(labels) > 0, "nothing to measure"
    found: dict[str, float] = {}
    for name in metrics:
        compute = hub_metric(name) if name.startswith(HUB_PREFIX) else QUALITY_METRICS[name].compute
        value = compute(np.asarray(predictions), np.asarray(labels))
        if np.isfinite(value):
            found[metric_key(name)] = value
    total = sum(-value if is_loss(key) else value for key, value in found.items())
    return {**found, SCORE: total / len(metrics)}


def tagging_quality(
    metrics: Sequence[str], predictions: Sequence[Sequence[str]], labels: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Return the named metrics of tags, with ``entity_f1`` also that of each type, and ``score``, the named ones' mean.

    Args:
        metrics: Of TAGGING_METRICS.
        predictions: The tag of every word, sentence by sentence.
        labels: The right tag of every word, sentence by sentence.
    """
    pairs = [pair for sentence in zip(predictions, labels, strict=True) for pair in zip(*sentence, strict=True)]
    assert pairs, "nothing to measure"
    found = {"token_accuracy": sum(predicted == label for predicted, label in pairs) / len(pairs)}
    if set(metrics) & set(_ENTITY_METRICS):
        found |= entity_scores(predictions, labels)
    shown = {name: value for name, value in found.items() if name.partition("/")[0] in metrics}
    return {**shown, SCORE: sum(found[name] for name in metrics) / len(metrics)}
