"""Study of exit rules, compared with plain loops over examples: quality, compute, oracles, controls and times."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr
from torch import Tensor

from adadepth.halting.exit_rules import apply_rule, parse_rule
from adadepth.metrics.exit_pareto import batches, format_pareto_axes, pareto
from adadepth.metrics.exit_study import DRAWS, add_timings, study
from adadepth.metrics.step_records import StepRecords
from adadepth.report.exits import build_screen_table, format_advice, format_exit_study, format_exits, write_exit_study
from adadepth.report.run_files import read_run, write_exits
from adadepth.report.table import to_text
from adadepth.tasks.exit_study import MOST_TIMED, choose_timed_rules
from tests.unit.report.synthetic_exits import count_macs, make_records, make_study, make_summary

STEPS = 6
MEASURED: dict[str, Any] = {"problem": "classification", "metrics": ["accuracy"], "macs": count_macs}


@pytest.fixture(scope="module")
def records() -> StepRecords:
    return make_records(size=400, steps=STEPS)


@pytest.fixture(scope="module")
def whole(records: StepRecords) -> dict[str, Any]:
    return make_study(records)


@pytest.fixture(scope="module")
def untimed(records: StepRecords) -> dict[str, Any]:
    return make_study(records, timed=False)


@pytest.fixture(scope="module")
def rows(whole: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["rule"]: row for row in whole["rows"]}


def study_rules(records: StepRecords, *rules: str, seed: int = 0) -> dict[str, dict[str, Any]]:
    parsed = [parse_rule(rule) for rule in rules]
    content = study(records, parsed, seed=seed, **MEASURED)
    return {row["rule"]: row for row in content["rows"]}


@pytest.mark.parametrize("label", ["quantile:0.5", "confidence:0.9", "patience:2", "fixed:3"])
def test_a_row_equals_a_plain_loop_over_examples(
    records: StepRecords, rows: dict[str, dict[str, Any]], label: str
) -> None:
    steps = apply_rule(parse_rule(label), records.step_logits, records.halting_logits).tolist()
    right, macs, full = 0, 0.0, 0.0
    for example, step in enumerate(steps):
        right += int(records.step_logits[example, step - 1].argmax() == records.labels[example])
        macs += 1e6 * int(records.lengths[example]) * (7 * step + 1)
        full += 1e6 * int(records.lengths[example]) * (7 * STEPS + 1)
    row = rows[label]
    assert row["quality"]["accuracy"] == pytest.approx(right / 400)
    assert row["mean_updates"] == pytest.approx(sum(steps) / 400)
    assert row["layer_ratio"] == pytest.approx(STEPS / (sum(steps) / 400))
    assert row["macs"] == pytest.approx(macs / 400, rel=1e-6)
    assert row["macs_ratio"] == pytest.approx(full / macs, rel=1e-6)
    assert row["shares"] == pytest.approx([steps.count(step) / 400 for step in range(1, STEPS + 1)])


def test_permuted_exits_cost_the_same_and_choose_worse(rows: dict[str, dict[str, Any]]) -> None:
    row = rows["quantile:0.5"]
    control = row["permuted"]
    assert control["macs"] == pytest.approx(row["macs"], rel=0.05)  # lengths differ, exit steps do not
    gap = row["quality"]["score"] - control["quality"]["score"]
    assert gap > 5 * control["quality_std"]["score"] > 0
    assert "permuted" not in rows["fixed:3"]
    assert "permuted" not in rows["expectation"]
    assert "permuted" not in rows["oracle"]


def test_the_oracle_bounds_every_exit_and_is_in_no_pareto_set(rows: dict[str, dict[str, Any]]) -> None:
    oracle = rows["oracle"]
    other_rows = [row for label, row in rows.items() if label not in ("oracle", "expectation")]
    assert all(oracle["quality"]["accuracy"] >= row["quality"]["accuracy"] for row in other_rows)
    assert oracle["pareto"] == []
    assert format_pareto_axes(oracle) == "uses the labels"


def test_the_stays_oracle_has_the_quality_of_full_depth_at_the_fewest_updates(
    records: StepRecords, rows: dict[str, dict[str, Any]]
) -> None:
    settled, full = rows["oracle:stays"], rows[f"fixed:{STEPS}"]
    assert settled["quality"] == full["quality"]
    assert settled["pareto"] == []
    assert settled["from_oracle"] == {"updates": 0.0, "early": 0.0, "late": 0.0}
    exits = apply_rule(parse_rule("confidence:0.9"), records.step_logits, None).tolist()
    right = (records.step_logits.argmax(-1) == records.labels.unsqueeze(1)).tolist()
    best = [next((n for n in range(1, STEPS + 1) if all(row[n - 1 :])), STEPS) for row in right]
    assert settled["mean_updates"] == pytest.approx(sum(best) / 400)
    distances = rows["confidence:0.9"]["from_oracle"]
    assert distances["updates"] == pytest.approx(sum(abs(a - b) for a, b in zip(exits, best, strict=True)) / 400)
    assert distances["early"] == pytest.approx(sum(a < b for a, b in zip(exits, best, strict=True)) / 400)
    assert distances["late"] == pytest.approx(sum(a > b for a, b in zip(exits, best, strict=True)) / 400)


def test_two_fixed_depths_are_mixed_to_the_compute_of_a_rule(rows: dict[str, dict[str, Any]]) -> None:
    row = rows["quantile:0.5"]
    mixture = row["mixture"]
    low, high = mixture["depths"]
    assert high == low + 1
    assert rows[f"fixed:{low}"]["macs"] <= row["macs"] <= rows[f"fixed:{high}"]["macs"]
    assert mixture["macs"] == pytest.approx(row["macs"], rel=0.01)  # lengths differ
    ends = [rows[f"fixed:{depth}"]["quality"]["accuracy"] for depth in (low, high)]
    expected = ends[0] + mixture["share"] * (ends[1] - ends[0])
    assert mixture["quality"]["accuracy"] == pytest.approx(expected, abs=4 * mixture["quality_std"]["accuracy"] + 1e-9)
    assert row["quality"]["accuracy"] > mixture["quality"]["accuracy"]
    assert "mixture" not in rows["fixed:3"]


def test_a_rule_costlier_than_full_depth_is_compared_with_full_depth(records: StepRecords) -> None:
    def count_costly_macs(records: StepRecords, steps: Tensor, reads: Collection[str]) -> float:
        return float(steps.sum()) * (100.0 if "logits" in reads else 1.0)

    rules = [parse_rule("confidence:0.9"), parse_rule(f"fixed:{STEPS}")]
    rule, full, *_ = study(records, rules, **MEASURED | {"macs": count_costly_macs})["rows"]
    assert rule["macs"] > full["macs"]
    assert rule["mixture"]["share"] == 1.0
    assert rule["mixture"]["quality"] == pytest.approx(full["quality"])


def test_overthinking_is_the_gap_between_best_and_last_step(records: StepRecords, whole: dict[str, Any]) -> None:
    assert whole["overthinking"]["gap"] < 0.1
    logits = records.step_logits.clone()
    right = torch.nn.functional.one_hot(records.labels, 2).float()
    logits[:, 2], logits[:100, -1] = right, 1 - right[:100]
    logits[100:, -1] = right[100:]
    overthinking = study(replace(records, step_logits=logits), [parse_rule("fixed:1")], **MEASURED)["overthinking"]
    assert overthinking == {"step": 3, "best": 1.0, "last": 0.75, "gap": 0.25, "lost": 0.25}


def test_exits_of_rules_are_grouped_by_difficulty(records: StepRecords, whole: dict[str, Any]) -> None:
    row = next(row for row in whole["rows"] if row["rule"] == "quantile:0.5")
    exits = apply_rule(parse_rule("quantile:0.5"), None, records.halting_logits).double()
    assert sum(whole["groups"].values()) == 400
    assert row["by_difficulty"].keys() == whole["groups"].keys()
    easiest = row["by_difficulty"]["difficulty <= 1"]
    assert easiest == pytest.approx(float(exits[records.difficulty == 1].mean()))
    assert row["spearman"]["value"] == pytest.approx(spearmanr(exits, records.difficulty)[0])
    unknown = study(replace(records, difficulty=None), [parse_rule("quantile:0.5")], **MEASURED)
    assert unknown["groups"] == {}
    assert not any("by_difficulty" in row for row in unknown["rows"])


def test_draws_have_a_deviation_and_depend_on_the_seed_alone(records: StepRecords) -> None:
    first, again, other = (study_rules(records, "sample", seed=seed)["sample"] for seed in (0, 0, 1))
    assert first["draws"] == DRAWS
    assert first == again
    assert first["quality"] != other["quality"]
    assert 0 < first["quality_std"]["accuracy"] < 0.1
    assert first["mean_updates_std"] > 0
    assert "quality_std" not in study_rules(records, "fixed:2")["fixed:2"]


@pytest.mark.parametrize(
    ("rule", "words"),
    [("entropy:0", "never fires"), ("confidence:0", "always fires at step 1"), ("quantile:1", "never fires")],
)
def test_a_rule_without_effect_is_a_warning(records: StepRecords, rule: str, words: str) -> None:
    row = study_rules(records, rule)[parse_rule(rule).label]
    assert words in row["warning"]
    assert "permuted" not in row
    (gain,) = row["gains"].values()  # over a fixed step of at most its compute, beside that of all its examples
    assert 1 <= gain["baseline_depth"] <= row["mean_updates"]
    assert gain["baseline"] >= gain["adaptive"] or gain["baseline_depth"] < row["mean_updates"]


def test_rules_that_ignore_their_input_by_design_are_no_warning(rows: dict[str, dict[str, Any]]) -> None:
    assert not [label for label, row in rows.items() if "warning" in row and not label.startswith(("fixed", "exp"))]
    assert "warning" not in rows["fixed:1"]
    assert "warning" not in rows["expectation"]


def test_a_regression_is_studied_too() -> None:
    entries = {row["rule"]: row for row in make_study(make_records(classes=1, steps=4))["rows"]}
    assert not any(label.startswith(("entropy", "confidence", "margin")) for label in entries)
    assert entries["fixed:4"]["quality"]["pearson"] > entries["fixed:1"]["quality"]["pearson"]
    assert entries["oracle"]["quality"]["pearson"] > entries["fixed:4"]["quality"]["pearson"]


# ---- Pareto sets

POINTS = st.none() | st.tuples(st.integers(0, 6).map(float), st.integers(0, 6).map(float))


@given(st.lists(POINTS, max_size=12))
def test_the_pareto_set_equals_its_definition(points: list[tuple[float, float] | None]) -> None:
    marked = pareto(points)
    assert len(marked) == len(points)
    for point, is_best in zip(points, marked, strict=True):
        if point is None:
            assert not is_best
            continue
        better = [
            other
            for other in points
            if other is not None
            and other[0] <= point[0]
            and other[1] >= point[1]
            and (other[0] < point[0] or other[1] > point[1])
        ]
        assert is_best == (not better)


# ---- wall clock


def test_times_have_their_own_ratios_and_pareto_set(records: StepRecords) -> None:
    rules = [parse_rule(rule) for rule in ("fixed:6", "fixed:1", "quantile:0.5")]
    content = study(records, rules, **MEASURED)
    assert batches(content) == []
    # Here the adaptive rule is slower than full depth at batch 8: fewer layers are not less time.
    timings = {
        "fixed:6": {1: [0.6, 0.9, 0.6], 8: [0.3]},
        "fixed:1": {1: [0.1, 0.1, 0.1], 8: [0.1]},
        "quantile:0.5": {1: [0.4, 0.5, 0.8], 8: [0.45]},
    }
    timed = add_timings(content, timings, {"device": "CPU"})
    rows = {row["rule"]: row for row in timed["rows"]}
    assert batches(timed) == ["1", "8"]
    assert rows["quantile:0.5"]["time_ratio"] == pytest.approx({"1": 1.5, "8": 0.3 / 0.45})
    assert rows["quantile:0.5"]["time_ratio_range"]["1"] == pytest.approx([0.75, 1.8])  # of rounds, not of medians
    assert rows["quantile:0.5"]["seconds"] == {"1": 0.5, "8": 0.45}
    assert rows["quantile:0.5"]["layer_ratio"] > 1
    assert "seconds/8" not in rows["quantile:0.5"]["pareto"]
    assert "seconds/8" in rows["fixed:6"]["pareto"]
    assert "seconds" not in rows["oracle"]
    assert batches(content) == []  # the study that was given is as it was
    assert "time_ratio" in rows["fixed:1"]


def test_only_the_pareto_front_and_the_recommended_rule_of_many_are_timed(records: StepRecords) -> None:
    names = [f"fixed:{k}" for k in range(1, 7)] + [f"quantile:{q / 10}" for q in range(1, 10)]
    rules = [parse_rule(name) for name in names]
    advice = {"rule": {"rule": "quantile:0.55"}}
    comparison = study(records, rules, **MEASURED) | {"advice": advice}
    best = [row["rule"] for row in comparison["rows"] if row["pareto"]]
    timed = [rule.label for rule in choose_timed_rules(rules, comparison)]
    assert set(timed) == {*best, "fixed:6", "quantile:0.55"}
    assert len(timed) < len(rules)
    few = rules[:MOST_TIMED]
    assert choose_timed_rules(few, study(records, few, **MEASURED) | {"advice": {}}) == few


def test_the_recommended_rule_has_its_speed_up(records: StepRecords) -> None:
    advised = {"rule": "quantile:0.55", "mean_updates": 3.0, "work": 0.5, "score": 0.9}
    fixed = {"rule": "fixed:6", "mean_updates": 6.0, "work": 1.0, "score": 0.9}
    advice = {"rule": advised, "fixed": fixed, "full": 0.9, "keep": 0.99, "chosen_on": 5, "told_on": 5}
    comparison = study(records, [parse_rule("fixed:6")], **MEASURED) | {"advice": advice}
    timed = add_timings(comparison, {
        "fixed:6": {1: [0.6, 0.6], 8: [0.3, 0.3]}, "quantile:0.55": {1: [0.4, 0.5], 8: [0.2, 0.4]}
    }, {})  # fmt: skip
    assert timed["advice"]["rule"]["time_ratio"] == pytest.approx({"1": 1.35, "8": 1.125})
    sentence = (
        "against full depth 1.35 times as fast (1.20 to 1.50) at batch size 1 and no measurable difference in time "
        "(0.75 to 1.50 times as fast) at batch size 8"
    )
    assert sentence in format_advice(timed)
    assert "time_ratio" not in advised  # the study that was given is as it was


def test_no_time_ratio_without_a_time_of_full_depth(records: StepRecords) -> None:
    content = study(records, [parse_rule("fixed:1")], **MEASURED)
    row, *_ = add_timings(content, {"fixed:1": {8: [0.1]}}, {})["rows"]
    assert row["time_ratio"] == {}
    assert row["seconds"] == {"8": 0.1}


# ---- files and tables


def test_files_hold_the_study(whole: dict[str, Any], untimed: dict[str, Any], tmp_path: Path) -> None:
    write_exit_study(tmp_path, {"validation": whole, "other": untimed})
    assert read_run(tmp_path).of("exit_rules.json")["sets"]["validation"] == json.loads(json.dumps(whole))
    with (tmp_path / "pareto.csv").open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    assert len(table) == 2 * len(whole["rows"])
    for row, line in zip(whole["rows"], table, strict=False):
        assert line["set"] == "validation"
        assert line["rule"] == row["rule"]
        assert float(line["accuracy"]) == row["quality"]["accuracy"]
        assert float(line["macs_ratio"]) == row["macs_ratio"]
        assert line["seconds/8"] == (str(row["seconds"]["8"]) if "seconds" in row else "")
        for axis in ("mean_updates", "macs", "seconds/1", "seconds/8", "seconds/32"):
            assert line[f"pareto/{axis}"] == str(int(axis in row["pareto"]))
    assert table[-1]["seconds/8"] == ""


def test_exits_are_read_back(records: StepRecords, tmp_path: Path) -> None:
    summary = make_summary(records)
    write_exits(tmp_path, {"validation": summary}, step=12)
    assert read_run(tmp_path).of("exits.json") == {"step": 12, "sets": {"validation": summary}}


def test_console_tables_are_ascii_and_name_missing_figures(whole: dict[str, Any], untimed: dict[str, Any]) -> None:
    table = format_exit_study(untimed)
    assert table.isascii()
    assert "time: not measured" in table
    timed = format_exit_study(whole)
    assert "device CPU" in timed
    line = next(line for line in timed.splitlines() if line.startswith("oracle"))
    assert " - " in line, "an oracle is not permuted"


def test_the_console_table_of_exit_rules_fits_a_terminal(whole: dict[str, Any]) -> None:
    lines = to_text(build_screen_table(whole)).splitlines()
    assert max(map(len, lines)) <= 80
    assert re.split(r"  +", lines[0]) == ["rule", "accuracy", "permuted exits", "updates", "compute"]
    rows = {row["rule"]: row for row in whole["rows"]}
    for line in lines[2:]:
        rule, quality, _, updates, work = re.split(r"  +", line)
        row = rows[rule.removesuffix(" *")]
        assert rule.endswith(" *") == ("macs" in row["pareto"])
        assert (quality, updates) == (f"{row['quality']['accuracy']:.4f}", f"{row['mean_updates']:.2f}")
        assert float(work.removesuffix("%")) == pytest.approx(100 / row["macs_ratio"], abs=0.06)


def test_the_exits_table_prints_the_numbers(records: StepRecords) -> None:
    summary = make_summary(records)
    table = format_exits(summary)
    assert table.isascii()
    assert f"accuracy at exit: {summary['exit']['quality']['accuracy']:.4f}" in table
    for row in summary["steps"]:
        assert f"{100 * row['share']:.1f}" in table
        assert f"{row['quality']['score']:.4f}" in table
    bare = make_summary(records, truncation=None)
    assert "not available: halting: the model has no halting probabilities" in format_exits(bare)


def test_the_global_random_state_of_torch_is_unchanged(records: StepRecords) -> None:
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    study_rules(records, "sample", "quantile:0.5")
    assert torch.equal(before, torch.random.get_rng_state())


def test_calibration_error_follows_from_probabilities_at_the_exits(records: StepRecords) -> None:
    row = study_rules(records, "margin:0.5")["margin:0.5"]
    assert records.step_logits is not None
    assert records.labels is not None
    exits = apply_rule(parse_rule("margin:0.5"), records.step_logits, None)
    bins: dict[int, list[tuple[float, float]]] = {}
    for at, label, logits in zip(exits.tolist(), records.labels.tolist(), records.step_logits, strict=True):
        probability, predicted = logits[at - 1].softmax(dim=-1).max(dim=-1)
        bin_number = min(int(-(-15 * probability.item() // 1)), 15)
        bins.setdefault(bin_number, []).append((probability.item(), float(predicted.item() == label)))
    gaps = [
        abs(sum(confidence for confidence, _ in pairs) - sum(right for _, right in pairs)) for pairs in bins.values()
    ]
    assert row["calibration"] == pytest.approx(sum(gaps) / len(exits), abs=1e-6)


def test_an_unlisted_fixed_step_keeps_a_rule_out_of_the_pareto_set(records: StepRecords) -> None:
    """Add costlier rules of no use next to fixed steps: the only points of the front are fixed."""

    def expensive_rules(records: StepRecords, steps: Tensor, reads: Collection[str]) -> float:
        return float(steps.sum()) + (100.0 * len(steps) if reads else 0.0)

    rules = [parse_rule("patience:5"), parse_rule("margin:0.99999")]
    compared = study(records, rules, **MEASURED | {"macs": expensive_rules})
    rows = {row["rule"]: row for row in compared["rows"]}
    assert {f"fixed:{step}" for step in range(1, STEPS + 1)} <= rows.keys()
    scores = {step: rows[f"fixed:{step}"]["quality"]["score"] for step in range(1, STEPS + 1)}
    best = {f"fixed:{step}" for step, score in scores.items() if all(score > scores[less] for less in range(1, step))}
    assert {rule for rule, row in rows.items() if "macs" in row["pareto"]} == best
    screen = to_text(build_screen_table(compared))
    assert set(re.findall(r"(\S+) \*", screen)) == best
    assert all(rule in screen for rule in ("patience:5", "margin:0.99999"))  # the requested rules
    assert not set(re.findall(r"fixed:\d", screen)) - best
