"""Exit rules against plain loops over one example."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch
from scipy.stats import chisquare

from adadepth.errors import ConfigError
from adadepth.halting.distribution import halting_distribution, halting_logits
from adadepth.halting.exit_rules import (
    ExitRule,
    Expectation,
    Fixed,
    Hazard,
    Patience,
    Quantile,
    Sample,
    StepView,
    apply_rule,
    check_rule,
    parse_rule,
    select_predictions,
)
from adadepth.metrics.exit_study import list_standard_rules
from adadepth.models.depth.engine import ReadingRule
from tests.sources_support import ROOT

BOTH = frozenset({"logits", "halting"})
ALL = BOTH | {"states"}
LOGITS = frozenset({"logits"})


def compute_softmax(values):
    powers = [math.exp(value) for value in values]
    return [power / sum(powers) for power in powers]


def compute_entropy(values):
    return -sum(p * math.log(p) for p in compute_softmax(values))


def compute_margin(values):
    first, second = sorted(compute_softmax(values), reverse=True)[:2]
    return first - second


def compute_kl(before, now):
    return sum(p * math.log(p / q) for p, q in zip(compute_softmax(before), compute_softmax(now), strict=True))


def find_first(conditions):
    """Return the 1-based position of the first true condition, or the last position."""
    return next((n for n, holds in enumerate(conditions, 1) if holds), len(conditions))


def has_repeated_predictions(steps, count):
    """Return whether the last `count` steps each predicted the same class as the step before."""
    classes = [max(range(len(step)), key=step.__getitem__) for step in steps]
    return len(classes) > count and len(set(classes[-count - 1 :])) == 1


PLAIN = {
    "entropy:0.6": lambda steps: find_first([compute_entropy(step) < 0.6 for step in steps]),
    "normalised_entropy:0.6": lambda steps: find_first([compute_entropy(step) / math.log(3) < 0.6 for step in steps]),
    "confidence:0.7": lambda steps: find_first([max(compute_softmax(step)) > 0.7 for step in steps]),
    "margin:0.5": lambda steps: find_first([compute_margin(step) > 0.5 for step in steps]),
    "kl:0.3": lambda steps: find_first([False, *(compute_kl(*pair) < 0.3 for pair in pairwise(steps))]),
    "patience:1": lambda steps: find_first([has_repeated_predictions(steps[: n + 1], 1) for n in range(len(steps))]),
    "patience:2": lambda steps: find_first([has_repeated_predictions(steps[: n + 1], 2) for n in range(len(steps))]),
    "fixed:4": lambda steps: 4,
    "fixed:1": lambda steps: 1,
}


@pytest.mark.parametrize("label", PLAIN)
def test_rules_on_logits_equal_their_definition(label):
    step_logits = torch.randn(200, 6, 3, generator=torch.Generator().manual_seed(1)) * 1.2
    exits = apply_rule(parse_rule(label), step_logits, None).tolist()
    assert exits == [PLAIN[label](example) for example in step_logits.tolist()]
    assert len(set(exits)) > 2 or label.startswith("fixed")


def test_patience_of_a_regression_counts_small_changes():
    # Changes of 0.1, 0.5, 0.1, 0.1, 0.1.
    values = torch.tensor([[1.0, 1.1, 1.6, 1.7, 1.8, 1.9]]).unsqueeze(-1)
    assert [apply_rule(Patience(count, 0.2), values, None).item() for count in (1, 2, 3, 4)] == [2, 5, 6, 6]
    assert apply_rule(Patience(1, 0.6), values, None).item() == 2
    assert apply_rule(Patience(2, 0.6), values, None).item() == 3


def test_the_level_of_a_quantile_is_strict():
    halves = torch.zeros(1, 5)  # the cdf is 1/2, 3/4, 7/8, ... without rounding
    assert [apply_rule(Quantile(q), None, halves).item() for q in (0.49, 0.5, 0.74, 0.75)] == [1, 2, 2, 3]


def test_a_quantile_with_reached_exits_at_equality():
    halves = torch.zeros(1, 5)
    rules = [parse_rule(f"quantile:{q}:1") for q in (0.49, 0.5, 0.74, 0.75)]
    assert [apply_rule(rule, None, halves).item() for rule in rules] == [1, 1, 2, 2]
    assert parse_rule("quantile:0.5:1").label == "quantile:0.5:1"
    assert parse_rule("quantile:0.5:1").with_level(0.75) == Quantile(0.75, 1)
    assert parse_rule("quantile:0.5:0").label == "quantile:0.5"
    with pytest.raises(ConfigError, match="reached=2 must be between 0 and 1"):
        parse_rule("quantile:0.5:2")


def test_quantile_at_the_edges():
    certain = halting_logits(torch.tensor([[0.0, 1.0, 0.5], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]))
    assert apply_rule(Quantile(0.5), None, certain).tolist() == [2, 3, 1]
    assert apply_rule(Quantile(0.0), None, certain).tolist() == [2, 3, 1]
    assert apply_rule(Quantile(1.0), None, certain).tolist() == [3, 3, 3]
    infinite = torch.tensor([[-math.inf, math.inf, 0.0], [-math.inf] * 3])
    assert apply_rule(Quantile(0.5), None, infinite).tolist() == [2, 3]


def test_a_hazard_forgets_earlier_steps():
    lambdas = torch.tensor([[0.4, 0.4, 0.4, 0.6, 0.1], [0.4, 0.5, 0.5, 0.5, 0.9], [0.51, 0.1, 0.1, 0.1, 0.1]])
    logits = halting_logits(lambdas)
    assert apply_rule(Hazard(0.55), None, logits).tolist() == [4, 5, 5]
    assert apply_rule(Hazard(0.5), None, logits[2:]).tolist() == [1]
    assert apply_rule(Quantile(0.55), None, logits).tolist() == [2, 2, 2]
    assert parse_rule("hazard").with_level(0.75) == Hazard(0.75)
    with pytest.raises(ConfigError, match=r"exit rule hazard: threshold=1\.5 must be between 0 and 1"):
        parse_rule("hazard:1.5")


def test_samples_follow_the_halting_distribution():
    lambdas = torch.tensor([0.15, 0.4, 0.05, 0.5, 0.3])
    logits = halting_logits(lambdas).expand(10_000, 5)
    exits = apply_rule(Sample(), None, logits, torch.Generator().manual_seed(7))
    expected = halting_distribution(logits[0], "leftover").pmf.double()
    counts = torch.bincount(exits, minlength=6)[1:]
    assert chisquare(counts.numpy(), (expected / expected.sum() * 10_000).numpy(), sum_check=False)[1] > 0.01


def test_expectation_mixes_probabilities_and_runs_every_step():
    step_logits, halting = torch.randn(7, 4, 3), torch.randn(7, 4)
    rule = Expectation()
    exits = apply_rule(rule, step_logits, halting)
    assert exits.tolist() == [4] * 7
    predictions = select_predictions(rule, step_logits, halting, exits).softmax(-1)
    for row in range(7):
        reached, expected = 1.0, torch.zeros(3)
        for step in range(4):
            halts = 1.0 if step == 3 else halting[row, step].sigmoid()
            expected += reached * halts * step_logits[row, step].softmax(-1)
            reached *= 1 - halts
        torch.testing.assert_close(predictions[row], expected)


def test_expectation_mixes_values_in_regression():
    values = torch.tensor([[1.0, 3.0]]).unsqueeze(-1)
    halting = halting_logits(torch.tensor([[0.25, 0.1]]))
    predictions = select_predictions(Expectation(), values, halting, torch.tensor([2]))
    assert predictions.tolist() == [[pytest.approx(0.25 * 1 + 0.75 * 3)]]


def test_each_example_is_predicted_at_its_exit_step():
    step_logits = torch.arange(24.0).view(3, 4, 2)
    step_logits[0, 2:] = math.nan
    predictions = select_predictions(Fixed(1), step_logits, None, torch.tensor([2, 4, 1]))
    assert predictions.tolist() == [[2.0, 3.0], [14.0, 15.0], [16.0, 17.0]]


@pytest.mark.parametrize("label", ["quantile:0.5", "hazard:0.4", "sample", "expectation", "fixed:3", "entropy:0.5",
                                   "normalised_entropy:0.5", "confidence:0.75", "margin:0.5", "kl:0.1", "patience:2",
                                   "distance:0.5", "acceleration:0.5:1"])  # fmt: skip
def test_a_batch_exits_as_its_rows_alone_and_as_a_shrinking_batch(label):
    """Compare a batch of B with B batches of one and with a loop in which finished rows leave the batch."""
    rule = parse_rule(label)
    step_logits, halting, moves = torch.randn(37, 6, 3) * 1.5, torch.randn(37, 6) - 0.5, torch.rand(37, 6, 2)
    together = apply_rule(rule, step_logits, halting, torch.Generator().manual_seed(0), moves)
    generator = torch.Generator().manual_seed(0)
    rows = [slice(n, n + 1) for n in range(37)]
    alone = [apply_rule(rule, step_logits[n], halting[n], generator, moves[n]).item() for n in rows]
    assert together.tolist() == alone

    running, exits = torch.arange(37), torch.full((37,), 6)
    memory = rule.start(37, "cpu", torch.Generator().manual_seed(0))
    assert memory.dtype == torch.float32
    for step in range(1, 6):
        signals = (values[running, step - 1] for values in (step_logits, halting, moves))
        view = StepView(step, 6, *signals)
        leaves, memory = rule.decide(view, memory)
        exits[running[leaves]] = step
        running, memory = running[~leaves], memory[~leaves]
    assert exits.tolist() == alone


@dataclass(frozen=True)
class Returning(ExitRule):
    """A rule that starts with and returns what a test gives it."""

    name = "returning"
    needs = LOGITS
    first: Any = None
    decision: Any = None
    memory: Any = None

    def start(self, rows, device, generator=None):
        return self.first

    def decide(self, view, memory):
        return self.decision, self.memory


ROWS, NO = torch.zeros(3, 1), torch.zeros(3, dtype=torch.bool)


@pytest.mark.parametrize(("rule", "message"), [
    (Returning(torch.zeros(3)), r"returned a memory of shape \(3,\), not \(3, k\)"),
    (Returning(torch.zeros(1, 3)), r"returned a memory of shape \(1, 3\), not \(3, k\)"),
    (Returning(ROWS, NO, torch.zeros(3)), r"returned a memory of shape \(3,\), not \(3, k\)"),
    (Returning(ROWS, NO, torch.zeros(1, 1)), r"returned a memory of shape \(1, 1\), not \(3, k\)"),
    (Returning(ROWS, NO.unsqueeze(1), ROWS), r"returned a decision of shape \(3, 1\) and torch.bool, not \(3,\)"),
    (Returning(ROWS, NO.float(), ROWS), r"returned a decision of shape \(3,\) and torch.float32, not \(3,\) and "),
])  # fmt: skip
@pytest.mark.parametrize("wraps", [False, True])
def test_a_rule_that_returns_other_shapes_is_refused_at_its_first_call(rule, message, wraps):
    """Check the rule alone and in the wrapper that predicts over a vocabulary for some rows at a time."""
    applied = ReadingRule(rule, lambda step, states: states) if wraps else rule
    with pytest.raises(ConfigError, match=rf"^exit rule 'returning': {message}"):
        apply_rule(applied, torch.randn(3, 4, 2), None)


def test_memory_may_grow_after_the_first_step():
    rule = Returning(ROWS, NO, torch.zeros(3, 5))
    assert apply_rule(rule, torch.randn(3, 4, 2), None).tolist() == [4, 4, 4]


def test_the_example_rule_of_the_plugins_page_needs_consecutive_steps():
    page = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    (source,) = (code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "class SteadyMargin" in code)
    names: dict[str, Any] = {"__name__": __name__}
    exec(source.replace("@adadepth.register_exit_rule\n", ""), names)
    step_logits = torch.randn(50, 6, 3, generator=torch.Generator().manual_seed(0)) * 2.0

    def find_expected_exit(row):
        margins = [compute_margin(logits) for logits in row.tolist()]
        return find_first([n >= 2 and min(margins[n - 2 : n]) > 0.5 for n in range(1, 6)] + [True])

    exits = apply_rule(names["SteadyMargin"](), step_logits, None)
    assert exits.tolist() == list(map(find_expected_exit, step_logits))
    assert len(set(exits.tolist())) > 3


def test_a_label_parses_to_the_same_rule():
    labels = ("acceleration:0.1", "patience:2:0.05", "entropy:0.123456789", "quantile:1")
    for label in (*list_standard_rules(ALL, 3, 24), *labels):
        assert parse_rule(label).label == label
        assert parse_rule(parse_rule(label).label) == parse_rule(label)


def test_a_bare_name_takes_the_published_default():
    assert parse_rule("quantile") == Quantile(0.5)
    assert parse_rule("patience").label == "patience:3"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("quantil", r"exit rule 'quantil': must be one of .*did you mean 'quantile'"),
        ("", r"exit rule '': must be one of"),
        ("fixed", r"'fixed': a parameter is missing, the form is fixed:<k>"),
        ("fixed:0", r"fixed: k=0 must be at least 1"),
        ("fixed:1.5", r"'fixed:1.5': a parameter has the wrong type"),
        ("quantile:high", r"'quantile:high': a parameter has the wrong type"),
        ("quantile:1.01", r"quantile: q=1.01 must be between 0 and 1"),
        ("quantile:nan", r"q=nan must be between 0 and 1"),
        ("entropy:-1", r"entropy: threshold=-1.0 must be at least 0"),
        ("entropy:inf", r"threshold=inf"),
        ("normalised_entropy:2", r"between 0 and 1"),
        ("sample:3", r"'sample:3': too many"),
        ("patience:0", r"patience: patience=0 must be at least 1"),
        ("kl", r"'kl': a parameter is missing, the form is kl:<threshold>"),
        ("kl:-1", r"kl: threshold=-1.0 must be at least 0"),
        ("distance:-1", r"distance: threshold=-1.0 must be at least 0"),
        ("acceleration:0.1:0", r"acceleration: times=0 must be at least 1"),
    ],
)
def test_an_invalid_label_is_refused_in_one_line(text, message):
    with pytest.raises(ConfigError, match=message) as caught:
        parse_rule(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("label", "signals", "classes", "message"),
    [
        ("quantile", LOGITS, 2, r"'quantile:0.5': needs halting probabilities, which some_model does not .*fixed"),
        ("expectation", frozenset(), 2, r"needs halting probabilities and logits of every step.*no exit rule"),
        ("confidence:0.9", BOTH, 1, r"needs classes, but this is a regression; .*patience$"),
        ("fixed:7", BOTH, 2, r"'fixed:7': the model has 6 steps"),
        ("distance:0.1", BOTH, 2, r"'distance:0.1': needs states of every step, which some_model does not have"),
        ("kl:0.1", BOTH, 1, r"'kl:0.1': needs classes, but this is a regression"),
    ],
)
def test_a_rule_that_a_model_cannot_support_is_refused_in_one_line(label, signals, classes, message):
    with pytest.raises(ConfigError, match=message) as caught:
        check_rule(parse_rule(label), signals, classes, 6, "some_model")
    assert "\n" not in str(caught.value)


def test_kl_of_many_cells_exits_when_every_cell_is_stable():
    still, moving = torch.zeros(3, 2), torch.tensor([[0.0, 0.0], [3.0, 0.0], [3.0, 0.1]])
    cells = torch.stack([still, moving], dim=1).unsqueeze(0)  # (1, N, L, C)
    assert apply_rule(parse_rule("kl:0.1"), cells[:, :, :1], None).item() == 2
    assert apply_rule(parse_rule("kl:0.1"), torch.cat([cells, cells[:, -1:]], dim=1), None).item() == 3


def test_classes_of_probability_zero_do_not_delay_exits():
    logits = torch.tensor([[[1.0, 0.0, -math.inf]] * 3])
    assert apply_rule(parse_rule("kl:0.001"), logits, None).item() == 2


@pytest.mark.parametrize("label", ["quantile", "correct", "confidence:0.1", "margin:0.1", "entropy:9",
                                   "normalised_entropy", "kl:9", "distance:9", "acceleration:9:1"])  # fmt: skip
def test_a_higher_level_never_exits_earlier(label):
    """Check what bisection over the level relies on: all exit early at the lowest level, none at the highest."""
    logits, halting, moves = torch.randn(50, 6, 3) * 2, torch.randn(50, 6), torch.rand(50, 6, 2)
    levels = [1 / (1 + math.exp(-logit)) for logit in (-9, -4, -2, -1, 0, 1, 2, 4, 8, 13)]
    rules = [parse_rule(label).with_level(level) for level in levels]
    assert [parse_rule(rule.label) for rule in rules] == rules
    depths = torch.stack([apply_rule(rule, logits, halting, None, moves) for rule in rules])
    assert (depths.diff(dim=0) >= 0).all()
    assert depths[0].float().mean() < 2.1
    assert depths[-1].float().mean() > 5.5


def test_rules_without_a_threshold_have_no_level():
    for label in ("fixed:2", "patience", "sample", "expectation"):
        assert parse_rule(label).with_level(0.5) is None


def test_rules_declare_the_signals_they_read():
    reads = {
        "fixed:2": set(), "quantile": {"halting"}, "kl:1": {"logits"}, "distance:1": {"states"},
        "expectation": {"logits", "halting"},
    }  # fmt: skip
    assert {label: parse_rule(label).reads for label in reads} == reads
