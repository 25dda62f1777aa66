"""Exit rule with learned parameters, the example of docs/plugins.md, fitted on one half and scored on the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

import adadepth
from adadepth import EarlyExitConfig
from adadepth.errors import ConfigError
from adadepth.halting import exit_rules
from adadepth.halting.exit_rules import LOGITS, ExitRule, RecordedSteps, StepView, apply_rule, parse_rule
from adadepth.metrics.exit_rule_fitting import fit_rules, try_fit
from adadepth.metrics.exit_rule_selection import advise, readings
from adadepth.metrics.step_records import StepRecords
from adadepth.tasks.exit_study import parse_exit_rules
from tests.plugins_support import example_extensions
from tests.unit.models.early_exit.early_exit_support import IDS, build_early_exit

M, N, C = 400, 5, 3
MEASURED: Any = {"problem": "classification", "metrics": ["accuracy"]}


@pytest.fixture(scope="module", autouse=True)
def _install_rule(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with example_extensions(tmp_path_factory.mktemp("package")):
        yield


def build_records(seed: int = 0) -> StepRecords:
    """Return predictions that grow surer from step to step, and change their answer now and then."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, C, (M,), generator=generator)
    noise = torch.randn(M, N, C, generator=generator).cumsum(dim=1)
    logits = noise + 0.7 * torch.arange(1, N + 1).view(1, N, 1) * torch.nn.functional.one_hot(labels, C).unsqueeze(1)
    index = torch.arange(M)
    return StepRecords(index, torch.ones(M).long(), logits[:, -1], torch.full((M,), float(N)), N, labels, None, logits)


def select_halves(sequences: Tensor) -> tuple[list[int], list[int]]:
    """Return the examples that fit a rule and those that score it, from the definition of the split."""
    count = len(sequences.unique())
    first = {int(owner) for owner in np.random.default_rng(0).permutation(count)[: count // 2]}
    rows = [[row for row in range(M) if (int(sequences[row]) in first) == is_first] for is_first in (True, False)]
    return rows[0], rows[1]


def describe(logits: Tensor, step: int) -> list[float]:
    p = sorted(torch.softmax(logits.double(), dim=0).tolist(), reverse=True)
    return [1.0, p[0] - p[1], -sum(value * math.log(value) for value in p), step / N]


def test_a_rule_is_fitted_on_the_first_half_alone() -> None:
    """Compare the parameters with those of scikit-learn's logistic regression on the same numbers."""
    records, sequences = build_records(), torch.arange(M) // 4
    (fixed, rule), scored = fit_rules(
        [parse_rule("fixed:2"), parse_rule("agreement")], records, sequences, "classification"
    )
    first, second = select_halves(sequences)
    assert scored.nonzero().flatten().tolist() == second
    assert fixed == parse_rule("fixed:2")
    assert records.step_logits is not None
    answers = records.step_logits.argmax(dim=-1)
    rows = [(describe(records.step_logits[row, step], step + 1), answers[row, step] == answers[row, -1])
            for row in first for step in range(N - 1)]  # fmt: skip
    regression = LogisticRegression(C=1.0, fit_intercept=False, tol=1e-10, max_iter=1000)
    regression.fit([x for x, _ in rows], [bool(y) for _, y in rows])
    assert [getattr(rule, name) for name in rule.fitted] == pytest.approx(regression.coef_[0].tolist(), rel=1e-4)
    logits = records.step_logits.clone()
    logits[torch.tensor(second)] = 0.0
    (again,), _ = fit_rules(
        [parse_rule("agreement")], replace(records, step_logits=logits), sequences, "classification"
    )
    assert again == rule


def test_exits_of_a_fitted_rule_equal_a_plain_loop() -> None:
    records = build_records()
    (rule,), _ = fit_rules([parse_rule("agreement:0.7")], records, records.index, "classification")
    weights = [getattr(rule, name) for name in rule.fitted]
    assert records.step_logits is not None
    expected = []
    for row in range(M):
        probabilities = [
            1
            / (
                1
                + math.exp(
                    -sum(w * x for w, x in zip(weights, describe(records.step_logits[row, n], n + 1), strict=True))
                )
            )
            for n in range(N - 1)
        ]
        expected.append(next((n + 1 for n, p in enumerate(probabilities) if p > 0.7), N))
    assert apply_rule(rule, records.step_logits, None).tolist() == expected
    assert len(set(expected)) > 2


def test_the_text_of_a_rule_keeps_every_digit_of_fitted_parameters() -> None:
    records = build_records()
    (rule,), _ = fit_rules([parse_rule("agreement")], records, records.index, "classification")
    assert parse_rule(rule.label) == rule
    assert parse_exit_rules([rule.label], build_early_exit())[0] == rule
    (again,), scored = fit_rules([rule], records, records.index, "classification")
    assert again is rule, "a fitted rule is not fitted again"
    assert scored.all()


def test_selection_rounds_thresholds_and_no_fitted_parameter() -> None:
    records = build_records()

    def macs(records: StepRecords, steps: Tensor, reads: Any) -> float:
        return float(steps.double().sum())

    (rule,), _ = fit_rules([parse_rule("agreement")], records, records.index, "classification")
    points = readings(records, records.index, [rule], macs=macs, **MEASURED)["agreement"]
    parsed: list[Any] = [parse_rule(point["rule"]) for point in points]
    assert len({candidate.threshold for candidate in parsed}) > 3
    for candidate in parsed:
        assert [getattr(candidate, name) for name in rule.fitted] == [getattr(rule, name) for name in rule.fitted]
        assert len(f"{candidate.threshold}".removeprefix("0.").lstrip("0")) <= 3
    advice = advise(records, records.index, [rule], macs=macs, **MEASURED)
    assert (advice["chosen_on"], advice["told_on"]) == (M // 2, M // 2)


def test_a_regression_has_squared_errors_and_no_right_answers() -> None:
    seen: list[RecordedSteps] = []

    @dataclass(frozen=True)
    class Watching(ExitRule):
        name = "watching"
        needs = frozenset({LOGITS})
        fitted = ("value",)
        value: float = 0.0

        def fit(self, recorded: RecordedSteps) -> Watching:
            seen.append(recorded)
            return replace(self, value=float(recorded.losses.mean()))

        def decide(self, view: StepView, memory: Tensor) -> tuple[Tensor, Tensor]:
            return memory[:, 0] > 0, memory

    values = torch.linspace(0, 1, M).view(M, 1, 1).expand(M, N, 1).contiguous()
    records = replace(build_records(), step_logits=values, labels=torch.zeros(M))
    (rule,), scored = fit_rules([Watching()], records, records.index, "regression")
    expected = values[~scored, :, 0] ** 2
    torch.testing.assert_close(seen[0].losses, expected)
    assert seen[0].right is None
    assert [view.step for view in seen[0].views] == [1, 2, 3, 4, 5]
    assert rule == Watching(float(expected.mean()))


# ---- Refused rules


def test_an_unfitted_rule_is_refused_without_a_fit() -> None:
    message = (
        r"^exit rule 'agreement:0\.9': its parameters bias, margin, entropy, step are not fitted; "
        r"exit_rules=\[agreement\] fits them, and adopt_rule=true saves the model with the recommended rule$"
    )
    model = build_early_exit()
    with pytest.raises(ConfigError, match=message):
        model(IDS, exit_rule="agreement")
    with pytest.raises(ConfigError, match=message):
        EarlyExitConfig(exit_rule="agreement")
    with pytest.raises(ConfigError, match=message):
        parse_exit_rules(["agreement"], model, may_fit=False)
    assert "agreement" not in {rule.name for rule in parse_exit_rules(["all"], model, may_fit=False)}
    assert "agreement" in {rule.name for rule in parse_exit_rules(["all"], model)}


def test_one_sequence_fits_no_rule() -> None:
    records = build_records()
    with pytest.raises(
        ConfigError, match=r"^exit rule 'agreement:0.9': needs at least two sequences, to fit it on one"
    ):
        fit_rules([parse_rule("agreement")], records, torch.zeros(M).long(), "classification")


@pytest.mark.parametrize(("mistake", "problem", "is_early"), [
    (lambda recorded: recorded.correct, "fit raised AttributeError: 'RecordedSteps' object has no attribute 'correct'; "
     "recorded steps have views, losses, right", True),
    (lambda recorded: recorded.views[0].moves + 1, "fit raised TypeError: unsupported operand type(s) for +: "
     "'NoneType' and 'int'", True),
    (lambda recorded: torch.linalg.inv(torch.zeros(2, 2)), "fit raised _LinAlgError: linalg.inv: ", False),
    (lambda recorded: "high", "fit returned value='high', which is no number", True),
])  # fmt: skip
def test_a_mistake_in_a_fit_is_a_one_line_error_before_the_evaluation(
    mistake: Callable[[RecordedSteps], Any], problem: str, is_early: bool
) -> None:
    """Check that a failure that may depend on the data shows with them, and that both name the rule."""

    @dataclass(frozen=True)
    class Mistaken(ExitRule):
        name = "mistaken"
        needs = frozenset({LOGITS})
        fitted = ("value",)
        value: float = 0.0

        def fit(self, recorded: RecordedSteps) -> Any:
            torch.rand(3)  # draws of a trial must not change those of the run
            return replace(self, value=mistake(recorded))

        def decide(self, view: StepView, memory: Tensor) -> tuple[Tensor, Tensor]:
            return memory[:, 0] > 0, memory

    state, early = torch.get_rng_state(), None
    try:
        try_fit(Mistaken(), 3, 5)
    except ConfigError as error:
        early = str(error)
    assert torch.equal(torch.get_rng_state(), state)
    assert (early is not None) == is_early
    records = build_records()
    with pytest.raises(ConfigError) as raised:
        fit_rules([Mistaken()], records, records.index, "classification")
    for message in filter(None, [early, str(raised.value)]):
        assert message.startswith(f"exit rule 'mistaken:0': {problem}")
        assert "\n" not in message


def test_the_rule_of_the_documentation_fits_drawn_outputs() -> None:
    for classes in (2, 5):
        try_fit(parse_rule("agreement"), classes, 4)


@pytest.mark.parametrize(("result", "message"), [
    (math.nan, "exit rule 'failing:0': fit returned value=nan"),
    (None, "exit rule 'failing:0': fit returned Fixed, not Failing"),
])  # fmt: skip
def test_a_fit_without_parameters_is_a_one_line_error(result: float | None, message: str) -> None:
    @dataclass(frozen=True)
    class Failing(ExitRule):
        name = "failing"
        needs = frozenset({LOGITS})
        fitted = ("value",)
        value: float = 0.0

        def fit(self, recorded: RecordedSteps) -> Any:
            return parse_rule("fixed:1") if result is None else replace(self, value=result)

        def decide(self, view: StepView, memory: Tensor) -> tuple[Tensor, Tensor]:
            return memory[:, 0] > 0, memory

    records = build_records()
    with pytest.raises(ConfigError) as raised:
        fit_rules([Failing()], records, records.index, "classification")
    assert str(raised.value) == message


@dataclass(frozen=True)
class Unfitting(ExitRule):
    name = "unfitting"
    needs = frozenset({LOGITS})
    fitted = ("value",)
    value: float = 0.0


@dataclass(frozen=True)
class Strange(ExitRule):
    name = "strange"
    needs = frozenset({LOGITS})
    fitted = ("other",)
    value: float = 0.0


@dataclass(frozen=True)
class Margins(ExitRule):
    name = "margin"
    needs = frozenset({LOGITS})


@pytest.mark.parametrize(("rule", "message"), [
    (Unfitting, "exit rule 'unfitting': must define fit, because it has fitted parameters"),
    (Strange, "exit rule 'strange': fits other, which is no parameter"),
    (Margins, "exit rule 'margin': an exit rule of that name already exists"),
])  # fmt: skip
def test_a_broken_rule_is_a_one_line_error(rule: Any, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        adadepth.register_exit_rule(rule)
    assert str(raised.value) == message


def test_a_program_registers_a_rule_and_replaces_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exit_rules, "_registered", {})
    for default in (1, 2):

        @adadepth.register_exit_rule
        @dataclass(frozen=True)
        class After(ExitRule):
            name = "after"
            needs = frozenset({LOGITS})
            step: int = default

            def decide(self, view: StepView, memory: Tensor) -> tuple[Tensor, Tensor]:
                return torch.full_like(memory[:, 0], view.step > self.step).bool(), memory

        assert parse_rule("after") == After(default)
        exits = build_early_exit()(IDS, exit_rule="after").exit_steps
        assert exits.unique().tolist() == [default + 1]
    exit_rules.exit_rules.cache_clear()
