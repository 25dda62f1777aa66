"""Properties of the exit rules, for any logits."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adadepth.halting.distribution import halting_distribution
from adadepth.halting.exit_rules import (
    Expectation,
    Patience,
    Quantile,
    apply_rule,
    parse_rule,
    select_predictions,
)
from adadepth.metrics.exit_study import find_oracle_exits, find_settled_exits
from tests.marks_support import keep_one_quick

LABELS = [
    "quantile:0.5", "sample", "fixed:4", "entropy:0.5", "normalised_entropy:0.3", "confidence:0.8", "margin:0.5",
    "kl:0.5", "patience:2", "distance:0.5", "acceleration:0.5:1", "acceleration:0.5:3",
]  # fmt: skip
SEEDS = st.integers(0, 10_000)


def draw_records(seed, rows=9, steps=7, classes=3):
    generator = torch.Generator().manual_seed(seed)
    step_logits = 2 * torch.randn(rows, steps, classes, generator=generator)
    halting_logits = 3 * torch.randn(rows, steps, generator=generator) - 1
    moves = torch.rand(rows, steps, 2, generator=generator)
    moves[:, 0, 1] = torch.nan
    return step_logits, halting_logits, moves


def apply_label(label, seed, step_logits, halting, moves):
    return apply_rule(parse_rule(label), step_logits, halting, torch.Generator().manual_seed(seed), moves)


@pytest.mark.parametrize("label", keep_one_quick(3, LABELS))
@given(seed=SEEDS, step=st.integers(1, 6))
def test_decisions_do_not_depend_on_later_steps(label, seed, step):
    signals = draw_records(seed)
    before = apply_label(label, seed, *signals)
    for values in signals:
        values[:, step:] *= -3
    after = apply_label(label, seed, *signals)
    early = before <= step
    assert torch.equal(before[early], after[early])
    assert (after[~early] > step).all()


@given(seed=SEEDS)
def test_oracle_exits_are_earliest_and_settled_exits_stay_correct(seed):
    step_logits, *_ = draw_records(seed)
    generator = torch.Generator().manual_seed(seed)
    labels, exits = torch.randint(0, 3, (9,), generator=generator), torch.randint(1, 8, (9,), generator=generator)
    right = step_logits.argmax(-1) == labels.unsqueeze(1)
    best, settled, rows = (
        find_oracle_exits(step_logits, labels),
        find_settled_exits(step_logits, labels),
        torch.arange(9),
    )
    correct = right[rows, exits - 1]
    assert (right[rows, best - 1] | ~correct).all()
    assert (best[correct] <= exits[correct]).all()
    assert torch.equal(right[rows, settled - 1], right[:, -1])
    assert (settled >= best).all()
    for row, step in enumerate(settled.tolist()):
        assert not right[row, -1] or (right[row, step - 1 :].all() and (step == 1 or not right[row, step - 2]))


@given(seed=SEEDS, counts=st.tuples(st.integers(1, 7), st.integers(1, 7)))
def test_more_patience_never_exits_earlier(seed, counts):
    less, more = (apply_rule(Patience(count), draw_records(seed)[0], None) for count in sorted(counts))
    assert (less <= more).all()


@given(seed=SEEDS, q=st.floats(0.0, 0.96875, width=32))
def test_the_quantile_rule_equals_the_quantile_of_the_distribution(seed, q):
    _, halting, _ = draw_records(seed)
    cdf = halting_distribution(halting, "leftover").cdf()
    decided = ((cdf - q).abs() > 1e-5).all(-1)  # within rounding of the level the two sums may differ
    exits = apply_rule(Quantile(q), None, halting)
    assert torch.equal(exits[decided], halting_distribution(halting, "leftover").quantile(q)[decided])


@given(seed=SEEDS)
def test_a_mixture_is_a_distribution_between_its_steps(seed):
    step_logits, halting, _ = draw_records(seed)
    mixed = select_predictions(Expectation(), step_logits, halting, torch.full((9,), 7)).exp()
    torch.testing.assert_close(mixed.sum(-1), torch.ones(9))
    steps = step_logits.softmax(-1)
    assert ((mixed >= steps.amin(1) - 1e-6) & (mixed <= steps.amax(1) + 1e-6)).all()
