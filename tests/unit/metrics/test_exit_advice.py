"""Advice on exit rules: selected on one half of the examples and scored on the other."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from adadepth.halting.exit_rules import ExitRule, apply_rule, parse_rule
from adadepth.metrics.exit_rule_selection import KEEP, advise, readings
from adadepth.metrics.step_records import StepRecords
from adadepth.report.exits import format_advice
from tests.unit.metrics.exits_support import EXAMPLES, N, count_macs, make_records

RULES = ["margin:0.5", "patience:2", "fixed:6"]


def select_advice(records: StepRecords, rules: list[str] = RULES) -> dict[str, Any]:
    parsed: list[ExitRule] = [parse_rule(rule) for rule in rules]
    measured = {"problem": "classification", "metrics": ["accuracy"]}
    return advise(records, records.index, parsed, macs=count_macs, **measured)


def test_the_cheapest_rule_that_keeps_the_score_is_scored_on_other_examples() -> None:
    records = make_records()
    advice = select_advice(records)
    assert advice["rule"]["rule"].startswith("margin:")
    assert advice["chosen_on"] == advice["told_on"] == EXAMPLES // 2
    assert advice["full"] == advice["rule"]["score"] == 1.0
    assert advice["fixed"]["rule"] == "fixed:6"
    assert advice["fixed"]["work"] == 1.0
    # a margin exits where the example knows, so that the work is that of the needed steps and of reading at each
    assert advice["rule"]["work"] == pytest.approx(advice["rule"]["mean_updates"] * 11 / (N * 10))
    assert (advice["difference"], advice["interval"]) == (0.0, 0.0)
    whole = apply_rule(parse_rule(advice["rule"]["rule"]), records.step_logits, None).double()
    assert advice["rule"]["mean_updates"] == pytest.approx(float(whole.mean()), abs=4 * float(whole.std()) / 150**0.5)


def test_a_fixed_depth_is_advised_if_certainty_misleads() -> None:
    advice = select_advice(make_records(sure_when_wrong=20.0))
    assert advice["rule"] == advice["fixed"]
    assert advice["rule"]["rule"] == "fixed:6"
    text = format_advice({"advice": advice, "unit": "sequence", "max_steps": N, "rows": []})
    assert text.startswith(
        f"use full depth for all sequences, the cheapest rule that keeps {KEEP:.0%} of full depth's score"
    )


def test_the_first_step_is_advised_for_equally_easy_examples() -> None:
    records = make_records()
    assert records.step_logits is not None
    easy = records.step_logits[:, -1:].expand(-1, N, -1)
    advice = select_advice(StepRecords(**{**vars(records), "step_logits": easy}))
    assert advice["rule"]["rule"] == "fixed:1"
    assert advice["rule"]["work"] == pytest.approx(1 / N)


def test_thresholds_are_rounded_to_short_numbers() -> None:
    _, _, threshold = select_advice(make_records())["rule"]["rule"].partition(":")
    assert len(threshold.removeprefix("0.").lstrip("0")) <= 3


def test_one_sequence_gives_no_advice() -> None:
    records = make_records()
    rules = [parse_rule("margin:0.5")]
    measured = {"problem": "classification", "metrics": ["accuracy"]}
    assert advise(records, torch.zeros(EXAMPLES), rules, macs=count_macs, **measured) == {}
    assert format_advice({"advice": {}, "rows": []}) == ""


def test_operating_points_cover_rules_and_fixed_depths_of_both_halves() -> None:
    """Use N = 6 and examples that are right from the step that they need."""
    records = make_records()
    rules: list[ExitRule] = [parse_rule(rule) for rule in RULES]
    measured: Any = {"problem": "classification", "metrics": ["accuracy"]}
    points = readings(records, records.index, rules, macs=count_macs, **measured)
    assert set(points) == {"fixed", "margin", "patience"}
    fixed = points["fixed"]
    assert [point["updates"] for point in fixed] == list(range(1, N + 1))
    assert [point["macs"] for point in fixed] == [10.0 * step * 4 for step in range(1, N + 1)]
    both = [(point["chosen_score"] + point["score"]) / 2 for point in fixed]
    right = [float((records.depth <= step).double().mean()) for step in range(1, N + 1)]
    assert both == pytest.approx(right)  # halves of equal size
    for point in fixed:
        share = point["score"]
        assert point["score_error"] == pytest.approx((share * (1 - share) / (EXAMPLES // 2 - 1)) ** 0.5)
    margins = points["margin"]
    assert [point["macs"] for point in margins] == sorted(point["macs"] for point in margins)
    assert max(point["score"] for point in margins) == 1.0
