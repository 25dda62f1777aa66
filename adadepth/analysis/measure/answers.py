"""How good the answers to questions are: exact match and F1, as SQuAD's official script (version 2.0) computes them."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

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
