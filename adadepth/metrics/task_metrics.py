"""Task metrics: accuracy, F1, correlations, entity F1, answer scores, and metrics of the ``evaluate`` library."""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from adadepth.config.kinds import Problem
from adadepth.errors import ConfigError, DataError, nearest
from adadepth.metrics.metric_names import is_loss
from adadepth.runtime.hub_access import check_hub, get_first_line, log_remote_code

if TYPE_CHECKING:  # the names of metrics are checked before anything that takes long is imported
    import numpy as np

HUB_PREFIX = "evaluate:"


def load_hub_metric(name: str) -> Callable[[np.ndarray, np.ndarray], float]:
    """Load the metric ``evaluate:METRIC[:KEY]`` as a function of predictions and labels, (M,) each.

    METRIC is a name on the hub or a local folder. The library runs its code. KEY selects one value if the metric
    returns several.

    Raises:
        DataError: If the metric cannot be loaded. The returned function raises it if the metric cannot be computed or
            has no value KEY.
    """
    path, _, key = name.removeprefix(HUB_PREFIX).partition(":")
    module = _load(name, path)

    def compute(predictions: np.ndarray, labels: np.ndarray) -> float:
        try:
            values = module.compute(predictions=predictions.tolist(), references=labels.tolist())
        except (ValueError, TypeError) as error:
            raise DataError(f"dataset.metrics={name}: {get_first_line(error)}") from error
        return _select_value(name, key, values or {})

    return compute


@lru_cache
def _load(name: str, path: str) -> Any:
    """Load a metric of the ``evaluate`` library, or fail at once if it is neither cached nor downloadable."""
    alternative = "give a local folder with evaluate:FOLDER, or a built-in metric"
    if not Path(path).expanduser().exists():
        if path.startswith((".", "/", "~")):
            raise DataError(f"dataset.metrics={name}: no such folder")
        check_hub(f"dataset.metrics={name}", alternative)
    import evaluate

    log_remote_code(path)
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:  # the library ignores it
        evaluate.config.HF_EVALUATE_OFFLINE = True
    try:
        return evaluate.load(str(Path(path).expanduser()) if Path(path).expanduser().exists() else path)
    except (OSError, ImportError, ValueError) as error:
        raise DataError(f"dataset.metrics={name}: {get_first_line(error)}; {alternative}") from error


def _select_value(name: str, key: str, values: dict[str, Any]) -> float:
    if not key and len(values) == 1:
        return float(next(iter(values.values())))
    if key not in values:
        hint = "choose one of its values" if not key else f"it has no value {key!r}{nearest(key, values)}"
        raise DataError(f"dataset.metrics={name}: {hint}, evaluate:METRIC:KEY with KEY in {', '.join(values)}")
    return float(values[key])


_ENTITY_METRICS = {"entity_f1": "f1-score", "entity_precision": "precision", "entity_recall": "recall"}
_AVERAGES = {"micro avg", "macro avg", "weighted avg"}


def score_entities(predictions: Sequence[Sequence[str]], labels: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return F1, precision and recall of whole entities. An entity is right if both its bounds and its type are right.

    Args:
        predictions: Predicted tags of each sentence: ``O``, ``B-TYPE`` or ``I-TYPE``.
        labels: Right tags of each sentence.

    Returns:
        ``entity_f1``, ``entity_precision`` and ``entity_recall`` over all entities, 0 if undefined, and
        ``entity_f1/TYPE`` of each type that occurs among predictions or labels.
    """
    if not any(tag != "O" for tags in (*labels, *predictions) for tag in tags):
        return dict.fromkeys(_ENTITY_METRICS, 0.0)  # without entities the report only warns
    from seqeval.metrics import classification_report

    report: dict[str, Any] = classification_report(
        [list(tags) for tags in labels], [list(tags) for tags in predictions], output_dict=True, zero_division=0
    )
    together = {name: float(report["micro avg"][key]) for name, key in _ENTITY_METRICS.items()}
    types = {name: float(values["f1-score"]) for name, values in report.items() if name not in _AVERAGES}
    return together | {f"entity_f1/{name}": value for name, value in types.items()}


ANSWER_METRICS = ("exact_match", "f1")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(text: str) -> str:
    """Return an answer text in lower case, without punctuation and articles, and with single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(prediction: str, answer: str) -> float:
    """Return 1 if two answer texts are equal after `normalised`, else 0."""
    return float(normalised(prediction) == normalised(answer))


def f1(prediction: str, answer: str) -> float:
    """Return the F1 of the words of two texts: 1 if neither text has words, 0 if only one of them has words."""
    predicted, target = normalised(prediction).split(), normalised(answer).split()
    if not predicted or not target:
        return float(predicted == target)
    common = sum((Counter(predicted) & Counter(target)).values())
    return 2 * common / (len(predicted) + len(target))


def score_answer(prediction: str, answers: Sequence[str]) -> dict[str, float]:
    """Return exact match and F1 of a predicted answer, each the maximum over the reference answers.

    An empty prediction is right if there is no answer. Answers that are empty after `normalised` are ignored, as in
    version 2.0 of the SQuAD script (version 1.1 counts them).
    """
    candidates = [answer for answer in answers if normalised(answer)] or [""]
    return {
        "exact_match": max(exact_match(prediction, answer) for answer in candidates),
        "f1": max(f1(prediction, answer) for answer in candidates),
    }


def score_answers(
    metrics: Sequence[str], predictions: Sequence[str], answers: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Return metrics as means over questions, from 0 to 1, and ``score``, their mean.

    If only some questions have an answer, the metrics of both groups are added, such as ``f1/answerable`` and
    ``f1/unanswerable``.

    Args:
        metrics: Names among ANSWER_METRICS.
        predictions: Predicted text of each question, or an empty string for no answer.
        answers: Right answers of each question.
    """
    scores = [score_answer(text, targets) for text, targets in zip(predictions, answers, strict=True)]
    assert scores, "nothing to measure"
    kinds = ["answerable" if targets else "unanswerable" for targets in answers]
    means = {name: _mean([score[name] for score in scores]) for name in metrics}
    by_kind = {
        f"{name}/{kind}": _mean([score[name] for score, of in zip(scores, kinds, strict=True) if of == kind])
        for name in metrics
        for kind in ("answerable", "unanswerable")
        if len(set(kinds)) > 1
    }
    return {**means, **by_kind, "score": _mean(list(means.values()))}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


SCORE = "score"
UNDEFINED = "predictions or labels are constant, or a prediction is not a finite number"


class Metric(NamedTuple):
    """Metric of a task: its kind of task, and its function of predictions and labels, (M,) each.

    Both arrays are (M, L) for puzzles and (M, C) for multi-label tasks. The function returns NaN if the metric is
    undefined.
    """

    kind: Problem
    compute: Callable[[np.ndarray, np.ndarray], float]


def _accuracy(predictions: np.ndarray, labels: np.ndarray) -> float:
    return float((predictions == labels).mean())


def _f1(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Return the F1 of class 1, as GLUE does for MRPC and QQP. It is 0 if class 1 never occurs."""
    from sklearn.metrics import f1_score

    return float(f1_score(labels == 1, predictions == 1, zero_division=0.0))


def _averaged_f1(average: str, predictions: np.ndarray, labels: np.ndarray) -> float:
    """Return the F1 averaged over classes, from predictions (M,), or over labels, from multi-label predictions (M, C).

    Args:
        average: `micro`, over all decisions together, or `macro`, the unweighted mean over the classes or labels that
            are predicted or right.
        predictions: Predicted classes or labels.
        labels: Right classes or labels, of the same shape.
    """
    from sklearn.metrics import f1_score

    return float(f1_score(labels, predictions, average=average, zero_division=0.0))


def _all_labels(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Return the share of texts whose labels are all right, from predictions and labels (M, C)."""
    return float((predictions == labels).all(axis=1).mean())


def _matthews(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Return the Matthews correlation of predictions and labels, which is set to 0 for constant predictions."""
    from sklearn.metrics import matthews_corrcoef

    return float(matthews_corrcoef(labels, predictions)) if _has_variation(predictions, labels) else 0.0


def _pearson(predictions: np.ndarray, labels: np.ndarray) -> float:
    from scipy.stats import pearsonr

    return float(pearsonr(predictions, labels).statistic) if _has_variation(predictions, labels) else float("nan")


def _spearman(predictions: np.ndarray, labels: np.ndarray) -> float:
    from scipy.stats import spearmanr

    return float(spearmanr(predictions, labels).statistic) if _has_variation(predictions, labels) else float("nan")


def _mse(predictions: np.ndarray, labels: np.ndarray) -> float:
    return float(((predictions - labels) ** 2).mean())


def _exact_accuracy(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Return the share of puzzles, (M, L), whose labelled cells are all right."""
    return float(((predictions == labels) | (labels < 0)).all(axis=1).mean())


def _cell_accuracy(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Return the share of labelled cells that are right."""
    return float((predictions == labels)[labels >= 0].mean())


def _has_variation(*columns: np.ndarray) -> bool:
    ranges = [(float(values.min()), float(values.max())) for values in columns]  # NaN if any value is
    return all(math.isfinite(high - low) and low < high for low, high in ranges)


QUALITY_METRICS: dict[str, Metric] = {
    "accuracy": Metric("classification", _accuracy),
    "f1": Metric("classification", _f1),
    "f1_macro": Metric("classification", partial(_averaged_f1, "macro")),
    "matthews": Metric("classification", _matthews),
    "micro_f1": Metric("multi_label", partial(_averaged_f1, "micro")),
    "macro_f1": Metric("multi_label", partial(_averaged_f1, "macro")),
    "all_labels": Metric("multi_label", _all_labels),
    "pearson": Metric("regression", _pearson),
    "spearman": Metric("regression", _spearman),
    "mse": Metric("regression", _mse),
    "exact_accuracy": Metric("puzzle", _exact_accuracy),
    "cell_accuracy": Metric("puzzle", _cell_accuracy),
}
# Kinds of tasks whose predictions and labels are numbers.
_NUMERIC: tuple[Problem, ...] = ("classification", "multi_label", "regression", "puzzle")
TAGGING_METRICS = (*_ENTITY_METRICS, "token_accuracy")
# Metrics of each kind of task; the F1 of question answering is not that of a classification.
_ALLOWED: dict[Problem, Sequence[str]] = {
    **{kind: [name for name, metric in QUALITY_METRICS.items() if metric.kind == kind] for kind in _NUMERIC},
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


def get_metric_key(name: str) -> str:
    """Return the reported name of a metric: ``KEY`` for ``evaluate:FOLDER/METRIC:KEY``, otherwise ``METRIC``."""
    if not is_hub_metric(name):
        return name
    return name.rpartition(":")[2].rstrip("/").rpartition("/")[2]


def is_hub_metric(name: str) -> bool:
    """Return whether a metric belongs to the ``evaluate`` library, which loads code from the hub or a folder."""
    return name.startswith(HUB_PREFIX)


def check_metrics(metrics: Sequence[str], problem: Problem, num_classes: int | None = None) -> None:
    """Check the names of metrics before a run starts; `load_metrics` checks those of the ``evaluate`` library.

    Args:
        metrics: Names of metrics. For classes and values, ``evaluate:NAME[:KEY]`` is allowed too.
        problem: Kind of prediction.
        num_classes: Number of classes, or None if it is not known yet.

    Raises:
        ConfigError: If a name is unknown, repeated, or for another kind of task, or if there is no name.
    """
    allowed = _ALLOWED[problem]
    takes_hub = problem in ("classification", "regression")
    if not metrics:
        raise ConfigError(f"dataset.metrics=[]: at least one is needed, of {', '.join(allowed)}")
    keys = [get_metric_key(name) for name in metrics]
    for name in metrics:
        if keys.count(get_metric_key(name)) > 1:
            raise ConfigError(f"dataset.metrics={list(metrics)}: {get_metric_key(name)} appears twice")
        is_of_hub = is_hub_metric(name)
        if is_of_hub and takes_hub:
            continue
        if name not in allowed:
            is_known = is_of_hub or any(name in names for names in _ALLOWED.values())
            reason = f"not a metric of {_NAMES.get(problem, f'a {problem}')}" if is_known else "no such metric"
            allowed_names = ", ".join([*allowed, f"{HUB_PREFIX}NAME[:KEY]"] if takes_hub else allowed)
            raise ConfigError(f"dataset.metrics={name}: {reason}{nearest(name, allowed)}; known: {allowed_names}")
        if name == "f1" and num_classes is not None and num_classes != 2:
            raise ConfigError(f"dataset.metrics=f1: needs 2 classes, but there are {num_classes}; use f1_macro")


def check_tags(metrics: Sequence[str], labels: Sequence[str]) -> None:
    """Raise an error if entity metrics are configured but a tag is not O, B-TYPE or I-TYPE.

    Raises:
        ConfigError: If a tag is neither ``O`` nor ``B-TYPE`` nor ``I-TYPE``.
    """
    wrong = [label for label in labels if not _ENTITY_TAG.fullmatch(label)]
    for name in metrics:
        if name in _ENTITY_METRICS and wrong:
            raise ConfigError(
                f"dataset.metrics={name}: needs tags O, B-TYPE and I-TYPE, but the data have {wrong[0]}; set the names "
                "with dataset.labels, or use token_accuracy"
            )


def load_metrics(metrics: Sequence[str]) -> None:
    """Load the metrics of the ``evaluate`` library before training, so that an unavailable one fails early.

    Raises:
        DataError: If a metric cannot be loaded.
    """
    for name in metrics:
        if is_hub_metric(name):
            load_hub_metric(name)


def quality(metrics: Sequence[str], predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Return the metrics of predictions, and ``score``, their mean as in GLUE.

    A higher score is better, so errors count with a minus sign. Matthews' correlation of constant predictions is 0.
    Pearson's and Spearman's correlations of constant predictions are undefined. They are absent (``UNDEFINED`` is the
    reason) and count as 0 in ``score``, so that every model can be ranked. An error that is not finite is absent too,
    and the score is then minus infinity.

    Args:
        metrics: Names of metrics that `check_metrics` accepts.
        predictions: Classes (M,) int64, or values (M,) float.
        labels: Right classes or values, of the same shape and type.

    Raises:
        DataError: If a metric of the hub cannot be loaded or computed.
    """
    assert len(predictions) == len(labels) > 0, "nothing to measure"
    values: dict[str, float] = {}
    for name in metrics:
        compute = load_hub_metric(name) if is_hub_metric(name) else QUALITY_METRICS[name].compute
        value = compute(predictions, labels)
        if math.isfinite(value):
            values[get_metric_key(name)] = value
    keys = map(get_metric_key, metrics)
    gains = [-values.get(key, math.inf) if is_loss(key) else values.get(key, 0.0) for key in keys]
    return {**values, SCORE: sum(gains) / len(metrics)}


def score_tagging(
    metrics: Sequence[str], predictions: Sequence[Sequence[str]], labels: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Return the metrics of predicted tags, and ``score``, their mean. ``entity_f1`` adds the F1 of each type.

    Args:
        metrics: Names among TAGGING_METRICS.
        predictions: Tag of every word, sentence by sentence.
        labels: Right tag of every word, sentence by sentence.
    """
    pairs = [pair for sentence in zip(predictions, labels, strict=True) for pair in zip(*sentence, strict=True)]
    assert pairs, "nothing to measure"
    values = {"token_accuracy": sum(predicted == label for predicted, label in pairs) / len(pairs)}
    if set(metrics) & set(_ENTITY_METRICS):
        values |= score_entities(predictions, labels)
    selected = {name: value for name, value in values.items() if name.partition("/")[0] in metrics}
    return {**selected, SCORE: sum(values[name] for name in metrics) / len(metrics)}
