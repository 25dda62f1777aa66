"""Laws of the exit rules, for any logits."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adadepth.halting.distribution import halting_distribution
from adadepth.halting.exit_rules import (
    Confidence,
    Entropy,
    Expectation,
    Margin,
    Patience,
    Quantile,
    apply_rule,
    parse_rule,
    predictions_at,
)
from adadepth.measure.exit_study import oracle_exits, settled_exits

LABELS = [
    "quantile:0.5",
    "sample",
    "expectation",
    "fixed:4",
    "entropy:0.5",
    "normalised_entropy:0.3",
    "confidence:0.8",
    "margin:0.5",
    "kl:0.5",
    "patience:2",
]
SEEDS = st.integers(0, 10_000)
LEVELS = st.floats(0.0, 1.0, width=32)


def recorded(seed, rows=9, steps=7, classes=3):
    generator = torch.Generator().manual_seed(seed)
    step_logits = 2 * torch.randn(rows, steps, classes, generator=generator)
    return step_logits, 3 * torch.randn(rows, steps, generator=generator) - 1


@pytest.mark.parametrize("label", LABELS)
@given(seed=SEEDS)
def test_everybody_exits_at_a_step_that_exists(label, seed):
    step_logits, halting = recorded(seed)
    exits = apply_rule(parse_rule(label), step_logits, halting, torch.Generator().manual_seed(seed))
    assert exits.dtype == torch.int64
    assert ((exits >= 1) & (exits <= 7)).all()


@pytest.mark.parametrize("label", [label for label in LABELS if label != "expectation"])
@given(seed=SEEDS, step=st.integers(1, 6))
def test_decisions_do_not_look_ahead(label, seed, step):
    step_logits, halting = recorded(seed)
    before = apply_rule(parse_rule(label), step_logits, halting, torch.Generator().manual_seed(seed))
    step_logits[:, step:] *= -3
    halting[:, step:] *= -3
    after = apply_rule(parse_rule(label), step_logits, halting, torch.Generator().manual_seed(seed))
    early = before <= step
    assert torch.equal(before[early], after[early])
    assert (after[~early] > step).all()


@pytest.mark.parametrize(
    ("rule", "deeper_when_larger"), [(Quantile, True), (Confidence, True), (Margin, True), (Entropy, False)]
)
@given(seed=SEEDS, levels=st.tuples(LEVELS, LEVELS))
def test_depth_is_monotone_in_the_threshold(rule, deeper_when_larger, seed, levels):
    low, high = (apply_rule(rule(level), *recorded(seed)) for level in sorted(levels))
    assert ((low <= high) if deeper_when_larger else (low >= high)).all()


@given(seed=SEEDS, levels=st.tuples(st.floats(0, 4), st.floats(0, 4)))
def test_rules_on_states_are_monotone_and_never_look_ahead(seed, levels):
    moves = torch.rand(9, 7, 2, generator=torch.Generator().manual_seed(seed))
    moves[:, 0, 1] = torch.nan
    for name in ("distance:{}", "acceleration:{}:1", "acceleration:{}:3"):
        tight, loose = (apply_rule(parse_rule(name.format(level)), None, None, None, moves) for level in sorted(levels))
        assert (loose <= tight).all()
        cut = moves.clone()
        cut[:, 4:] = 9.0
        early = apply_rule(parse_rule(name.format(max(levels))), None, None, None, cut)
        assert torch.equal(early[loose <= 4], loose[loose <= 4])


@given(seed=SEEDS)
def test_right_for_good_is_as_right_as_the_end_and_no_earlier_than_right_at_all(seed):
    step_logits, _ = recorded(seed)
    labels = torch.randint(0, 3, (9,), generator=torch.Generator().manual_seed(seed))
    right = step_logits.argmax(-1) == labels.unsqueeze(1)
    settled = settled_exits(step_logits, labels)
    assert torch.equal(right[torch.arange(9), settled - 1], right[:, -1])
    assert (settled >= oracle_exits(step_logits, labels)).all()
    for row, step in enumerate(settled.tolist()):
        assert not right[row, -1] or (right[row, step - 1 :].all() and (step == 1 or not right[row, step - 2]))


@given(seed=SEEDS, counts=st.tuples(st.integers(1, 7), st.integers(1, 7)))
def test_more_patience_never_exits_earlier(seed, counts):
    less, more = (apply_rule(Patience(count), *recorded(seed)) for count in sorted(counts))
    assert (less <= more).all()


@given(seed=SEEDS, q=st.floats(0.0, 0.96875, width=32))
def test_the_quantile_rule_is_the_distributions_quantile(seed, q):
    _, halting = recorded(seed)
    cdf = halting_distribution(halting, "leftover").cdf()
    decided = ((cdf - q).abs() > 1e-5).all(-1)  # within rounding of the level the two sums may differ
    exits = apply_rule(Quantile(q), None, halting)
    assert torch.equal(exits[decided], halting_distribution(halting, "leftover").quantile(q)[decided])


@given(seed=SEEDS)
def test_a_mixture_is_a_distribution_between_its_steps(seed):
    step_logits, halting = recorded(seed)
    mixed = predictions_at(Expectation(), step_logits, halting, torch.full((9,), 7)).exp()
    torch.testing.assert_close(mixed.sum(-1), torch.ones(9))
    steps = step_logits.softmax(-1)
    assert ((mixed >= steps.amin(1) - 1e-6) & (mixed <= steps.amax(1) + 1e-6)).all()


@pytest.mark.parametrize("label", LABELS)
@given(seed=SEEDS)
def test_no_rule_beats_the_oracle(label, seed):
    step_logits, halting = recorded(seed)
    labels = torch.randint(0, 3, (9,), generator=torch.Generator().manual_seed(seed))
    rule, best = parse_rule(label), oracle_exits(step_logits, labels)
    exits = apply_rule(rule, step_logits, halting, torch.Generator().manual_seed(seed))
    own = step_logits[torch.arange(9), exits - 1].argmax(-1) == labels
    oracles = step_logits[torch.arange(9), best - 1].argmax(-1) == labels
    assert (oracles | ~own).all()
    assert (best[own] <= exits[own]).all()
