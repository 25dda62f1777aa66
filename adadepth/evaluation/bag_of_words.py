"""Bag-of-words baselines: a linear model on the tokens of a text, and the most frequent tag of every word.

They train in seconds on the tokens that the model of a run reads, without those that are cut from long texts. Their
scores show how much a model gains by reading words in context.
"""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from typing import Any

import numpy as np

from adadepth.data.labelled.sequence_classification import LabelledExamples
from adadepth.data.labelled.splits import spread_rows
from adadepth.data.labelled.token_classification import TaggingExamples
from adadepth.data.run_data import RunData
from adadepth.evaluation.tagging import OUTSIDE
from adadepth.metrics.task_metrics import quality, score_tagging

_MOST_ROWS = 20_000  # training rows of a baseline, evenly spread
_PAIRS = 2**18  # shared columns of pairs of neighbouring pieces

Scores = dict[str, dict[str, float]]


def score_bag_of_words(data: RunData) -> tuple[str, Scores] | None:
    """Train a bag-of-words baseline, and return its description and its metrics on every evaluation set.

    The result is None if there is no baseline for the data.

    The baseline of sentences and sentence pairs is a logistic regression, or a ridge regression if labels are values.
    Its features are TF-IDF weights of tokens and of pairs of adjacent tokens. Tagged words get their most frequent tag.

    Args:
        data: Training and evaluation sets of a run.
    """
    train = data.train
    if isinstance(train, LabelledExamples):
        kind = "ridge" if data.problem == "regression" else "logistic"
        return f"{kind} regression on word pieces and pairs of pieces", _score_sentences(train, data)
    if isinstance(train, TaggingExamples):
        return "the most frequent tag of each word", _score_tags(train, data)
    return None


def _score_sentences(train: LabelledExamples, data: RunData) -> Scores:
    from sklearn.feature_extraction.text import TfidfTransformer

    rows = train.rows[spread_rows(len(train.rows), _MOST_ROWS)]
    weigh, model = TfidfTransformer(sublinear_tf=True), _linear_model(data.problem)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about classes that no row or every row has
        inputs = weigh.fit_transform(_count_pieces(train, rows, data))
        model.fit(inputs, _labels(train, rows))
    scores: Scores = {}
    for name, examples in data.evaluation.items():
        assert isinstance(examples, LabelledExamples)
        predicted = model.predict(weigh.transform(_count_pieces(examples, examples.rows, data)))
        labels = _labels(examples, examples.rows)
        scores[name] = quality(data.metrics, predicted.astype(labels.dtype), labels)
    return scores


def _linear_model(problem: str) -> Any:
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.multiclass import OneVsRestClassifier

    if problem == "regression":
        return Ridge(solver="lsqr")
    return OneVsRestClassifier(LogisticRegression(solver="liblinear", C=10.0))


def _labels(examples: LabelledExamples, rows: np.ndarray) -> np.ndarray:
    """Return the labels of selected rows of a data set.

    They are values (rows,) float64, class numbers (rows,) int64, or, with several labels per row, 0 or 1 for every
    class, (rows, C) int64.
    """
    labels: np.ndarray = np.asarray(examples.store.classes()[rows])
    return labels if examples.problem == "regression" else labels.astype(np.int64)


def _count_pieces(examples: LabelledExamples, rows: np.ndarray, data: RunData) -> Any:
    """Return the counts of tokens and of pairs of adjacent tokens in each text, a sparse (rows, columns) matrix.

    Texts are truncated as for the model.

    The two texts of a pair have separate columns. Pairs of adjacent tokens are hashed to columns.
    """
    from scipy.sparse import csr_matrix

    size = 0 if data.tokenizer is None else len(data.tokenizer)
    columns, ends = [], [0]
    for row in rows:
        for number, text in enumerate(examples.layout.truncate(examples.store.row(int(row)))):
            pieces, first = text.astype(np.int64), number * (size + _PAIRS)
            columns += [first + pieces, first + size + (pieces[:-1] * size + pieces[1:]) % _PAIRS]
        ends.append(ends[-1] + sum(len(part) for part in columns[-2 * examples.store.texts :]))
    indices = np.concatenate(columns) if columns else np.empty(0, dtype=np.int64)
    shape = (len(rows), examples.store.texts * (size + _PAIRS))
    matrix = csr_matrix((np.ones(len(indices)), indices, ends), shape=shape)
    matrix.sum_duplicates()
    return matrix


def _score_tags(train: TaggingExamples, data: RunData) -> Scores:
    counts: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    for index in spread_rows(len(train), _MOST_ROWS).tolist():
        for word, tag in zip(_words(train, index), train.gold(index), strict=False):
            counts[word][tag] += 1
    total: Counter[int] = Counter()
    for tags in counts.values():
        total.update(tags)
    default = total.most_common(1)[0][0]
    best = {word: tags.most_common(1)[0][0] for word, tags in counts.items()}
    scores: Scores = {}
    for name, examples in data.evaluation.items():
        assert isinstance(examples, TaggingExamples)
        numbers = range(len(examples))
        labels = [[data.labels[tag] for tag in examples.gold(index)] for index in numbers]
        predicted = [[data.labels[best.get(word, default)] for word in _words(examples, index)] for index in numbers]
        for sentence, gold in zip(predicted, labels, strict=True):  # as for the model, of truncated words
            sentence += [OUTSIDE] * (len(gold) - len(sentence))
        scores[name] = score_tagging(data.metrics, predicted, labels)
    return scores


def _words(examples: TaggingExamples, index: int) -> list[tuple[int, ...]]:
    """Return the words of a tokenised sentence, each as a tuple of token ids, without truncated tokens."""
    pieces, starts = examples.store.pieces(int(examples.rows[index]))
    (pieces,) = examples.layout.truncate([pieces])
    return [tuple(part.tolist()) for part in np.split(pieces, starts[starts < len(pieces)][1:])]
