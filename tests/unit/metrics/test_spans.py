"""Best span of a window, and token classes of spans and choices, compared with plain loops."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from adadepth.metrics.spans import SPAN_CLASSES, classify_span_tokens, find_best_spans
from adadepth.metrics.unit_classes import CHOICE_CLASSES, classify_choice_tokens


def find_best_by_loop(
    starts: list[float], ends: list[float], allowed: list[bool], n_best: int, longest: int
) -> tuple[float, int, int]:
    """Return the best span by BERT's loop: the n best starts and ends, every combination that is a span."""
    positions = [position for position, is_allowed in enumerate(allowed) if is_allowed]
    first = sorted(positions, key=lambda position: -starts[position])[:n_best]
    last = sorted(positions, key=lambda position: -ends[position])[:n_best]
    spans = [(starts[i] + ends[j], i, j) for i in first for j in last if i <= j < i + longest]
    return max(spans, default=(-math.inf, -1, -1))


@pytest.mark.parametrize(("n_best", "longest"), [(1, 30), (3, 2), (5, 4), (20, 1), (64, 64)])
def test_the_best_span_equals_that_of_a_plain_loop(n_best: int, longest: int) -> None:
    generator = torch.Generator().manual_seed(n_best)
    starts, ends = torch.randn(2, 40, 24, generator=generator)
    allowed = torch.rand(40, 24, generator=generator) < 0.6
    allowed[0] = False
    score, first, last = find_best_spans(starts, ends, allowed, n_best=n_best, max_length=longest)
    without = 0
    for row in range(40):
        expected = find_best_by_loop(starts[row].tolist(), ends[row].tolist(), allowed[row].tolist(), n_best, longest)
        assert score[row].item() == pytest.approx(expected[0], rel=1e-6)
        if math.isfinite(expected[0]):
            assert (first[row].item(), last[row].item()) == expected[1:]
        else:
            without += 1
    assert without


def test_low_precision_logits_are_added_in_full() -> None:
    starts = torch.tensor([[256.0, 0.0]], dtype=torch.bfloat16)
    ends = torch.tensor([[0.0, 1.0]], dtype=torch.bfloat16)
    score, _, last = find_best_spans(starts, ends, torch.ones(1, 2, dtype=torch.bool), n_best=2, max_length=2)
    assert (score.item(), last.item()) == (257, 1)


def test_tokens_of_windows_are_classified() -> None:
    # [CLS] q q [SEP] c c c [SEP] pad
    kinds = torch.tensor([[0, 1, 1, 0, 2, 2, 2, 0, 0]] * 4)
    real = torch.tensor([[1] * 8 + [0]] * 4).bool()
    start, end = torch.tensor([5, 0, 5, -100]), torch.tensor([6, 0, 6, -100])
    logits = torch.zeros(2, 4, 9)
    logits[:, :, 8] = 9  # padding is no guess
    logits[0, [0, 2], 5] = logits[1, 0, 6] = 1
    masks = classify_span_tokens((logits[0], logits[1]), (start, end), real, kinds == 1, kinds == 2)
    assert tuple(masks) == SPAN_CLASSES
    positions = {name: [row.nonzero().flatten().tolist() for row in mask] for name, mask in masks.items()}
    whole = list(range(8))
    assert positions["all"] == [whole] * 4
    assert positions["correct"] == [whole, whole, [], []]
    assert positions["wrong"] == [[], [], whole, []]
    assert positions["question"] == [[1, 2]] * 4
    assert positions["context"] == [[4, 5, 6]] * 4
    assert positions["answer"] == [[5, 6], [], [5, 6], []]
    assert positions["cls"] == [[0]] * 4
    assert positions["sep"] == [[3, 7]] * 4


def test_tokens_of_choices_are_classified() -> None:
    texts = torch.tensor([0, 1, 1, 0, 2, 0, 0]).expand(2, 3, 7)  # [CLS] c c [SEP] e [SEP] pad
    real = torch.tensor([1] * 6 + [0]).bool().expand(2, 3, 7)
    logits = torch.tensor([[0.0, 2.0, 1.0], [0.0, 2.0, 1.0]])
    masks = classify_choice_tokens(logits, torch.tensor([1, 0]), real, texts == 1, texts == 2)
    assert tuple(masks) == CHOICE_CLASSES

    def rows(name: str) -> list[list[bool]]:
        mask: Tensor = masks[name]
        assert mask.shape == real.shape
        assert not (mask & ~real).any()
        return mask.any(dim=-1).tolist()

    assert rows("correct") == [[True] * 3, [False] * 3]
    assert rows("wrong") == [[False] * 3, [True] * 3]
    assert rows("right") == [[False, True, False], [True, False, False]]
    assert rows("other") == [[True, False, True], [False, True, True]]
    assert rows("taken") == [[False, True, False]] * 2
    assert masks["context"].sum() == 12
    assert masks["ending"].sum() == 6
    assert masks["cls"].sum() == 6
    assert masks["sep"].sum() == 12
