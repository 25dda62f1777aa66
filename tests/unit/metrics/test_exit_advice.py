from __future__ import annotations

from typing import Any

import pytest
import torch

from adadepth.halting.exit_rules import ExitRule, apply_rule, parse_rule
from adadepth.metrics.exit_rule_selection import KEEP, advise, readings
from adadepth.metrics.step_records import StepRecords
from adadepth.report.exits import format_advice
from tests.unit.metrics.exits_support import EXAMPLES, N, macs, records_that_know

RULES = ["margin:0.5", "patience:2", "fixed:6"]


def advised(records: StepRecords, rules: list[str] = RULES) -> dict[str, Any]:
    parsed: list[ExitRule] = [parse_rule(rule) for rule in rules]
    measured = {"problem": "classification", "metrics": ["accuracy"]}
    return advise(records, records.index, parsed, macs=macs, **measured)


def test_the_cheapest_rule_that_keeps_the_score_is_found_and_told_of_other_examples() -> None:
    records = records_that_know()
    found = advised(records)
    assert found["rule"]["rule"].startswith("margin:")
    assert found["chosen_on"] == found["told_on"] == EXAMPLES // 2
    assert found["full"] == found["rule"]["score"] == 1.0
    assert found["fixed"]["rule"] == "fixed:6"
    assert found["fixed"]["work"] == 1.0
    # a margin exits where the example knows, so that the work is that of the needed steps and of reading at each
    assert found["rule"]["work"] == pytest.approx(found["rule"]["mean_updates"] * 11 / (N * 10))
    assert (found["difference"], found["interval"]) == (0.0, 0.0)
    whole = apply_rule(parse_rule(found["rule"]["rule"]), records.step_logits, None).double()
    assert found["rule"]["mean_updates"] == pytest.approx(float(whole.mean()), abs=4 * float(whole.std()) / 150**0.5)


def test_where_certainty_misleads_a_fixed_depth_is_advised() -> None:
    found = advised(records_that_know(sure_when_wrong=20.0))
    assert found["rule"] == found["fixed"]
    assert found["rule"]["rule"] == "fixed:6"
    text = format_advice({"advice": found, "max_steps": N, "rows": []})
    assert text.startswith(
        f"use full depth for all examples, the cheapest rule that keeps {KEEP:.0%} of full depth's score"
    )


def test_of_equal_examples_the_first_step_is_advised() -> None:
    records = records_that_know()
    assert records.step_logits is not None
    easy = records.step_logits[:, -1:].expand(-1, N, -1)
    found = advised(StepRecords(**{**vars(records), "step_logits": easy}))
    assert found["rule"]["rule"] == "fixed:1"
    assert found["rule"]["work"] == pytest.approx(1 / N)


def test_thresholds_are_such_that_a_person_types_them() -> None:
    _, _, threshold = advised(records_that_know())["rule"]["rule"].partition(":")
    assert len(threshold.removeprefix("0.").lstrip("0")) <= 3


def test_one_sequence_gives_no_advice() -> None:
    records = records_that_know()
    rules = [parse_rule("margin:0.5")]
    measured = {"problem": "classification", "metrics": ["accuracy"]}
    assert advise(records, torch.zeros(EXAMPLES), rules, macs=macs, **measured) == {}
    assert format_advice({"advice": {}, "rows": []}) == ""


def test_readings_are_points_of_rules_and_fixed_depths_of_both_halves() -> None:
    """At N = 6, of examples that are right from the step on that they need."""
    records = records_that_know()
    rules: list[ExitRule] = [parse_rule(rule) for rule in RULES]
    measured: Any = {"problem": "classification", "metrics": ["accuracy"]}
    found = readings(records, records.index, rules, macs=macs, **measured)
    assert set(found) == {"fixed", "margin", "patience"}
    fixed = found["fixed"]
    assert [point["updates"] for point in fixed] == list(range(1, N + 1))
    assert [point["macs"] for point in fixed] == [10.0 * step * 4 for step in range(1, N + 1)]
    both = [(point["chosen_score"] + point["score"]) / 2 for point in fixed]
    right = [float((records.depth <= step).double().mean()) for step in range(1, N + 1)]
    assert both == pytest.approx(right)  # halves of equal size
    for point in fixed:
        share = point["score"]
        assert point["score_error"] == pytest.approx((share * (1 - share) / (EXAMPLES // 2 - 1)) ** 0.5)
    margins = found["margin"]
    assert [point["macs"] for point in margins] == sorted(point["macs"] for point in margins)
    assert max(point["score"] for point in margins) == 1.0
