"""Classes of sequences by correctness, label, length and difficulty."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from adadepth.metrics.metric_names import definition
from adadepth.metrics.unit_classes import SequenceClasses, compute_bucket_edges

CLASSES = SequenceClasses(("no", "yes"), length_edges=(4, 9), difficulty_edges=(1, 2))
LOGITS = torch.tensor([[2.0, 1.0], [0.0, 1.0], [3.0, 0.0], [0.0, 5.0]])
LABELS = torch.tensor([0, 1, 1, 0])
LENGTHS = torch.tensor([4, 5, 9, 30])
DIFFICULTY = torch.tensor([1, 2, 3, 3])


def test_every_class_equals_a_hand_made_mask() -> None:
    expected = {
        "all": [1, 1, 1, 1],
        "correct": [1, 1, 0, 0],
        "wrong": [0, 0, 1, 1],
        "label: no": [1, 0, 0, 1],
        "label: yes": [0, 1, 1, 0],
        "length <= 4": [1, 0, 0, 0],
        "length 5-9": [0, 1, 1, 0],
        "length > 9": [0, 0, 0, 1],
        "difficulty <= 1": [1, 0, 0, 0],
        "difficulty 2": [0, 1, 0, 0],
        "difficulty > 2": [0, 0, 1, 1],
    }
    masks = CLASSES.masks(LOGITS, LABELS, LENGTHS, DIFFICULTY)
    assert {name: mask.int().tolist() for name, mask in masks.items()} == expected
    assert CLASSES.names == tuple(expected)
    assert all(definition(name) for name in expected)


def test_names_are_the_same_when_a_batch_lacks_labels_or_difficulty() -> None:
    masks = CLASSES.masks(LOGITS, None, LENGTHS)
    assert tuple(masks) == CLASSES.names
    empty = [name for name, mask in masks.items() if not mask.any()]
    assert empty == [name for name in CLASSES.names if name.startswith(("correct", "wrong", "label", "difficulty"))]


def test_a_regression_has_neither_labels_nor_correctness() -> None:
    classes = SequenceClasses((), length_edges=(4,))
    assert classes.names == ("all", "length <= 4", "length > 4")
    assert tuple(classes.masks(torch.randn(4, 1), torch.randn(4), LENGTHS)) == classes.names


def test_the_tokens_of_a_sequence_are_in_its_class() -> None:
    valid = torch.arange(6) < torch.tensor([[6], [2], [1], [4]])
    tokens = CLASSES.masks(LOGITS, LABELS, LENGTHS, DIFFICULTY, valid=valid)
    for name, mask in CLASSES.masks(LOGITS, LABELS, LENGTHS, DIFFICULTY).items():
        assert torch.equal(tokens[name], mask[:, None] & valid), name


@given(st.lists(st.integers(0, 40), min_size=1, max_size=60), st.integers(1, 8))
def test_buckets_partition_the_set_and_none_is_empty(values: list[int], buckets: int) -> None:
    lengths = torch.tensor(values)
    edges = compute_bucket_edges(lengths, buckets)
    assert list(edges) == sorted(set(edges))
    assert len(edges) < max(buckets, 2)
    masks = SequenceClasses((), length_edges=edges).masks(torch.zeros(len(values), 1), None, lengths)
    parts = [mask for name, mask in masks.items() if name != "all"]
    assert all(part.any() for part in parts)
    if parts:
        assert torch.equal(sum(part.int() for part in parts), torch.ones(len(values), dtype=torch.int32))
    else:
        assert len(set(values)) == 1 or buckets == 1


def test_quartiles_hold_a_quarter_each() -> None:
    edges = compute_bucket_edges(torch.arange(1, 101), 4)
    assert edges == (25, 50, 75)
