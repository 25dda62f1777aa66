"""Rows and table of one checkpoint at several depths: the loss at the decided depths, on a screen of 100 columns."""

from __future__ import annotations

from typing import Any

import pytest

from adadepth.report.budgets import build_budget_row, build_budget_table, format_budgets, select_drawn_quality

STATISTICS = {
    "classes": {"all": {"n": 10, "mean": 2.5, "std": 0.5, "loss": 0.7271}},
    "cost": {"adaptive_over_full": 0.8, "macs_per_token": 2e5, "ms_per_token": 0.3},
    "prediction_macs": 9.0,
}
LIKELIHOOD = {
    "lm_loss": 0.7271, "perplexity": 2.0690755681, "word_perplexity": 2.3811053, "bits_per_character": 0.25986933,
    "bits_per_byte": 0.25986933, "lm_loss_step_1": 0.78718495, "lm_loss_step_2": 0.73252289, "lm_loss_step_3": 0.7271,
}  # fmt: skip


def build_budgets(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"rows": rows, "unit": "updates", "knob": "k", "set": "held_out", "fitted_on": 5, "measured_on": 6}


def test_the_loss_of_a_frozen_language_model_is_that_of_the_decided_depths() -> None:
    """Use rows whose `loss`, as trained, is that of early exits; with an exit rule, it equals `lm_loss`."""
    fit = {"level": 0.98, "depth": 2.5, "is_reached": True}
    as_trained = build_budget_row({"loss": 0.7507, **LIKELIHOOD}, STATISTICS, None, None)
    fitted = build_budget_row({"loss": 0.7271, **LIKELIHOOD}, STATISTICS, 2.5, fit, "margin:0.98")
    budgets = build_budgets(as_trained, fitted)
    keys = [column.key for column in build_budget_table(budgets).columns]
    assert "loss" not in as_trained["metrics"]
    assert fitted["metrics"]["loss"] == 0.7271
    assert "loss" not in keys, "the rows would hold two quantities"
    assert "lm_loss" in keys
    assert select_drawn_quality(budgets) == "lm_loss"


def test_the_compute_of_a_budget_has_its_predictions() -> None:
    """Count 10 units of 80 of 100, with 2.5 predictions of 9 a unit: (8 + 22.5) / (10 + 9) of full depth."""
    cost = {"adaptive_macs": 80.0, "adaptive_over_full": 0.8}
    statistics = {**STATISTICS, "n": 10, "cost": cost, "predictions_per_unit": 2.5}
    row = build_budget_row(LIKELIHOOD, statistics, None, None, "margin:0.5")
    assert row["share_with_predictions"] == pytest.approx(30.5 / 19)
    screen = format_budgets(build_budgets(row))
    assert "compute as a share of full depth, with predictions" in screen
    assert "1.605" in screen
    headings = [column.heading for column in build_budget_table(build_budgets(row)).columns]
    assert {"compute with predictions", "compute without predictions"} <= set(headings)
    without = build_budget_row(LIKELIHOOD, STATISTICS, None, None)
    assert "compute as a share of full depth, without predictions" in format_budgets(build_budgets(row, without))


@pytest.mark.parametrize(("decided", "is_listed"), [(0.78, False), (0.585, True)])
def test_a_task_loss_of_several_exits_is_no_metric_of_a_depth(decided: float, is_listed: bool) -> None:
    metrics = {"loss": 0.59, "task_loss": 0.585, "kl_loss": 0.005, "score": 0.7}
    statistics = {**STATISTICS, "classes": {"all": {"n": 10, "mean": 2.5, "std": 0.5, "loss": decided}}}
    row = build_budget_row(metrics, statistics, None, None)
    assert row["metrics"] == (metrics if is_listed else {"kl_loss": 0.005, "score": 0.7})


def test_the_screen_has_at_most_100_columns() -> None:
    rows = [
        build_budget_row(LIKELIHOOD, STATISTICS, target, fit, rule)
        for target, fit, rule in (
            (None, None, None),
            (2.5, {"level": 1.23e-4, "depth": 1.5, "is_reached": False}, "margin:0.00012339457598623172"),
        )
    ]
    lines = format_budgets(build_budgets(*rows)).splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[4].split() == ["target", "exit", "rule", "depth", "sd", "compute", "lm_loss"]
    assert "MACs per token" in [column.heading for column in build_budget_table(build_budgets(*rows)).columns]
