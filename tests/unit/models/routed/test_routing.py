"""Routing decisions and losses of routers against closed forms."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from adadepth.halting.routing import (
    balance_loss,
    choice_losses,
    count_chosen,
    count_depths,
    nudge_bias,
    pass_gradient,
    select_largest,
    squared_logits,
)

CAPACITIES = st.fractions(0, 1, max_denominator=12).filter(bool)
# Rows of equal length: a score of few values, so that there are ties, and whether the token is a candidate.
BATCHES = st.integers(1, 9).flatmap(
    lambda width: st.lists(
        st.lists(st.tuples(st.integers(-2, 2), st.booleans()), min_size=width, max_size=width), min_size=1, max_size=4
    )
)


def split_batch(batch: list[list[tuple[int, bool]]]) -> tuple[Tensor, Tensor]:
    """Split pairs into scores, (B, T), and candidates, (B, T)."""
    scores = torch.tensor([[score for score, _ in row] for row in batch], dtype=torch.float64)
    return scores, torch.tensor([[is_candidate for _, is_candidate in row] for row in batch])


@given(CAPACITIES, st.lists(st.integers(0, 30), min_size=1, max_size=5))
def test_a_part_selects_its_capacity_and_at_least_one_token(capacity: object, lengths: list[int]) -> None:
    expected = [min(max(1, math.floor(capacity * length)), length) for length in lengths]  # type: ignore[operator]
    assert count_chosen(float(capacity), torch.tensor(lengths)).tolist() == expected  # type: ignore[arg-type]


def test_products_just_below_a_whole_number_are_not_rounded_down() -> None:
    assert int(0.29 * 100) == 28
    assert count_chosen(0.29, torch.tensor([100])).tolist() == [29]
    assert count_chosen(0.57, torch.tensor([100])).tolist() == [57]


@pytest.mark.parametrize("capacity", [0.001, 0.125, 0.3, 1 / 3, 0.57, 2 / 3, 0.7, 1.0])
def test_capacities_of_long_rows_equal_exact_arithmetic(capacity: float) -> None:
    lengths = torch.cat([torch.arange(1, 20_000), torch.tensor([2**19 - 1])])
    exact = Fraction(capacity).limit_denominator(1000)
    expected = [max(1, math.floor(exact * length)) for length in lengths.tolist()]
    assert count_chosen(capacity, lengths).tolist() == expected


@given(BATCHES, st.data())
def test_the_candidates_with_the_largest_scores_are_selected(batch: list[list[tuple[int, bool]]], data: st.DataObject):
    scores, candidates = split_batch(batch)
    counts = torch.tensor([data.draw(st.integers(0, scores.shape[1])) for _ in batch])
    selected = select_largest(scores, candidates, counts)
    assert not bool((selected & ~candidates).any())
    assert torch.equal(selected.sum(dim=1), counts.minimum(candidates.sum(dim=1)))
    for row, count in enumerate(counts.tolist()):
        tokens = candidates[row].nonzero().flatten().tolist()
        best = sorted(tokens, key=lambda token: (-float(scores[row, token]), token))[:count]  # of ties, the first
        assert selected[row].nonzero().flatten().tolist() == sorted(best)


@given(BATCHES, CAPACITIES, CAPACITIES)
def test_recursions_are_nested_and_rows_are_independent(
    batch: list[list[tuple[int, bool]]], more: float, less: float
) -> None:
    scores, real = split_batch(batch)
    candidates = select_largest(scores, real, count_chosen(float(max(more, less)), real.sum(dim=1)))
    counts = count_chosen(float(min(more, less)), real.sum(dim=1))
    selected = select_largest(-scores, candidates, counts)
    assert not bool((selected & ~candidates).any())
    assert torch.equal(selected.sum(dim=1), counts)
    for row in range(len(batch)):
        alone = select_largest(-scores[row : row + 1], candidates[row : row + 1], counts[row : row + 1])
        assert torch.equal(alone[0], selected[row])


def test_a_row_without_tokens_selects_none_and_has_no_loss() -> None:
    real = torch.tensor([[False, False], [True, False]])
    assert count_chosen(0.1, real.sum(dim=1)).tolist() == [0, 1]
    assert select_largest(torch.zeros(2, 2), real, count_chosen(1.0, real.sum(dim=1))).tolist() == real.tolist()
    logits = torch.tensor([[3.0, 4.0], [2.0, 9.0]])
    assert choice_losses(logits, real, real)[0] == 0
    assert squared_logits(logits, real).tolist() == [0, 4]
    empty = torch.zeros(1, 2, dtype=torch.bool)
    assert balance_loss(torch.full((1, 2, 3), 1 / 3), torch.zeros(1, 2, dtype=torch.long), empty) == 0


@pytest.mark.parametrize("logit", [-0.7, 0.0, 1.3])
def test_a_hard_decision_has_the_gradient_of_its_probability(logit: float) -> None:
    logits = torch.tensor([[logit, logit]], dtype=torch.float64, requires_grad=True)
    choice = pass_gradient(torch.tensor([[True, False]]), logits.sigmoid())
    torch.testing.assert_close(choice.detach(), torch.tensor([[1.0, 0.0]], dtype=torch.float64))
    choice.sum().backward()
    sigmoid = 1 / (1 + math.exp(-logit))
    torch.testing.assert_close(logits.grad, torch.full((1, 2), sigmoid * (1 - sigmoid), dtype=torch.float64))


def test_the_routing_loss_is_a_cross_entropy_over_candidates() -> None:
    logits = torch.tensor([[1.0, -2.0, 5.0], [0.5, 0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    selected = torch.tensor([[True, False, False], [False, False, False]])
    candidates = torch.tensor([[True, True, False], [True, True, True]])
    losses = choice_losses(logits, selected, candidates)
    first = (math.log1p(math.exp(-1)) + math.log1p(math.exp(-2))) / 2
    second = (math.log1p(math.exp(0.5)) + 2 * math.log(2)) / 3
    torch.testing.assert_close(losses.detach().double(), torch.tensor([first, second], dtype=torch.float64))
    losses.sum().backward()
    assert logits.grad is not None
    assert float(logits.grad[0, 2]) == 0


def test_the_z_loss_is_the_squared_log_sum_of_exponentials() -> None:
    candidates = torch.tensor([[True, True, False]])
    assert squared_logits(torch.tensor([[3.0, -1.0, 7.0]]), candidates).tolist() == [5]
    depths = torch.tensor([[[0.0, 0.0], [1.0, 1.0], [9.0, 9.0]]], dtype=torch.float64)
    expected = (math.log(2) ** 2 + (1 + math.log(2)) ** 2) / 2
    torch.testing.assert_close(squared_logits(depths, candidates), torch.tensor([expected], dtype=torch.float64))


def test_the_balance_loss_is_one_for_equal_loads_and_largest_for_one_depth() -> None:
    real = torch.ones(2, 3, dtype=torch.bool)
    depths = torch.tensor([[0, 1, 2], [2, 1, 0]])
    assert float(balance_loss(torch.full((2, 3, 3), 1 / 3), depths, real)) == pytest.approx(1)
    certain = torch.zeros(2, 3, 3)
    certain[..., 1] = 1
    assert float(balance_loss(certain, torch.ones(2, 3, dtype=torch.long), real)) == pytest.approx(3)


def test_padding_does_not_count_in_the_balance() -> None:
    probabilities = torch.tensor([[[0.7, 0.3], [0.4, 0.6], [0.0, 1.0]]])
    real, depths = torch.tensor([[True, True, False]]), torch.tensor([[0, 1, 1]])
    assert count_depths(depths, real, 2).tolist() == [1, 1]
    assert float(balance_loss(probabilities, depths, real)) == pytest.approx(2 * (0.5 * 0.55 + 0.5 * 0.45))


@given(st.lists(st.integers(0, 50), min_size=2, max_size=6))
def test_a_bias_moves_towards_the_depths_with_less_load(load: list[int]) -> None:
    bias = torch.linspace(-1, 1, len(load), dtype=torch.float64)
    moved = nudge_bias(bias, torch.tensor(load), 0.25) - bias
    mean = sum(load) / len(load)
    assert moved.tolist() == pytest.approx([0.25 * ((mean > count) - (mean < count)) for count in load])
