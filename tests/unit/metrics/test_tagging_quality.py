"""Metrics of tagging, compared with a plain matcher of entities."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adadepth.errors import ConfigError
from adadepth.metrics.task_metrics import check_metrics, check_tags, score_tagging

TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
METRICS = ["entity_f1", "entity_precision", "entity_recall", "token_accuracy"]
Span = tuple[int, int, int, str]


def find_spans(sentences: list[list[str]]) -> set[Span]:
    """Return the entities of CoNLL's scorer: an I- that continues nothing of its type begins an entity as well."""
    entities: set[Span] = set()
    for number, tags in enumerate(sentences):
        start, kind = 0, ""
        for position, tag in enumerate([*tags, "O"]):
            prefix, _, tag_kind = tag.partition("-")
            if kind and (prefix != "I" or tag_kind != kind):
                entities.add((number, start, position, kind))
                kind = ""
            if tag_kind and not kind:
                start, kind = position, tag_kind
    return entities


def compute_f1(predicted: set[Span], expected: set[Span]) -> tuple[float, float, float]:
    hits = len(predicted & expected)
    precision, recall = (hits / len(part) if part else 0.0 for part in (predicted, expected))
    return 2 * precision * recall / (precision + recall) if hits else 0.0, precision, recall


SENTENCE = st.lists(st.tuples(st.sampled_from(TAGS), st.sampled_from(TAGS)), min_size=1, max_size=8)


@settings(deadline=None)  # the first call imports seqeval
@given(st.lists(SENTENCE, min_size=1, max_size=4))
def test_entities_against_a_plain_matcher(sentences: list[list[tuple[str, str]]]) -> None:
    predictions = [[pair[0] for pair in sentence] for sentence in sentences]
    labels = [[pair[1] for pair in sentence] for sentence in sentences]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scores = score_tagging(METRICS, predictions, labels)
    predicted, expected_spans = find_spans(predictions), find_spans(labels)
    words = [pair for sentence in sentences for pair in sentence]
    expected = dict(
        zip(METRICS, (*compute_f1(predicted, expected_spans), sum(a == b for a, b in words) / len(words)), strict=True)
    )
    expected["score"] = sum(expected.values()) / 4
    for kind in {span[3] for span in predicted | expected_spans}:
        of_kind = [{span for span in part if span[3] == kind} for part in (predicted, expected_spans)]
        expected[f"entity_f1/{kind}"] = compute_f1(*of_kind)[0]
    assert scores == pytest.approx(expected, abs=1e-12)


def test_only_requested_metrics_are_computed() -> None:
    tags = [["B-PER", "O"], ["O"]]
    assert score_tagging(["token_accuracy"], tags, [["B-PER", "O"], ["B-LOC"]]) == {
        "token_accuracy": pytest.approx(2 / 3), "score": pytest.approx(2 / 3),
    }  # fmt: skip
    assert score_tagging(["entity_recall"], tags, tags) == {"entity_recall": 1.0, "score": 1.0}


@pytest.mark.parametrize(("metrics", "text"), [
    (["entity_f"], "dataset.metrics=entity_f: no such metric (did you mean 'entity_f1'?); known: entity_f1, "
                   "entity_precision, entity_recall, token_accuracy"),
    (["accuracy"], "dataset.metrics=accuracy: not a metric of a tagging (did you mean 'token_accuracy'?); known: "),
    (["evaluate:seqeval"], "dataset.metrics=evaluate:seqeval: not a metric of a tagging; known: "),
    ([], "dataset.metrics=[]: "),
])  # fmt: skip
def test_a_wrong_name_is_a_one_line_error(metrics: list[str], text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        check_metrics(metrics, "tagging")
    assert text in str(raised.value)
    assert "\n" not in str(raised.value)


def test_entity_metrics_need_tags_that_mark_entities() -> None:
    check_tags(METRICS, TAGS)
    check_tags(["token_accuracy"], ["NOUN", "VERB"])
    with pytest.raises(ConfigError, match=r"^dataset.metrics=entity_f1: needs tags .*, but the data have "):
        check_tags(["entity_f1"], ["O", "NOUN"])
    with pytest.raises(ConfigError, match="not a metric of a classification"):
        check_metrics(["entity_f1"], "classification")
