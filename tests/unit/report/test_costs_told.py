"""Compute of a run: the same figures on its page and in comparisons, independent of how an evaluation was executed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adadepth.metrics.unit_costs import format_count
from adadepth.report.budgets import format_budgets
from adadepth.report.comparison import compare_tradeoffs
from adadepth.report.compute_cost import build_compute_section, format_rule, measure_unit_costs
from adadepth.report.figure import Scatter
from adadepth.report.pages import write_comparison
from adadepth.report.run_files import SEEDS, read_run
from adadepth.report.run_groups import compare, find_runs
from adadepth.report.seeds import build_seed_table, seeds
from tests.marks_support import keep_one_quick
from tests.pages_support import check_costs, extract_sections, extract_text
from tests.unit.report.recorded import record
from tests.unit.report.synthetic import make_run
from tests.unit.report.synthetic_architectures import make_comparison, make_search_run
from tests.unit.report.synthetic_exits import add_exit_files
from tests.unit.report.synthetic_layers import make_layer_run


def update_json(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(json.dumps(content))


def make_token_run(folder: Path) -> Path:
    """Write a run with a measured speed-up."""
    make_run(folder, max_updates=6, evaluations=2)
    speeds = {"cost/speedup_over_dense": 1.73, "cost/training_speedup_over_dense": 1.2}
    update_json(folder / "run.json", lambda run: run["final_metrics"].update(speeds))
    return folder


def make_every_step_run(folder: Path) -> Path:
    """Write a run whose evaluation ran all steps, as that of models that predict after every one does."""
    make_run(folder, max_updates=6, evaluations=2)
    update_json(folder / "halting.json", lambda content: content["cost"].update(executed_over_full=1.026))
    return add_exit_files(folder)


def make_searched_run(folder: Path) -> Path:
    make_search_run(folder, evaluations=2)
    make_comparison(folder)
    return folder


FAMILIES: dict[str, Callable[[Path], Path]] = {
    "tokens": make_token_run, "every step": make_every_step_run, "searched": make_searched_run,
    "layers": lambda folder: make_layer_run(folder, evaluations=2),
    "layers from a cache": lambda folder: make_layer_run(folder, evaluations=2, from_cache=True),
}  # fmt: skip


REASONS = {  # evaluations that ran something else than the depths need
    "every step": "The evaluation ran every step for all tokens",
    "layers from a cache": "read the states of the base from a cache",
}


@pytest.mark.parametrize("kind", keep_one_quick(5, FAMILIES))
def test_sections_agree_on_compute(kind: str, tmp_path: Path) -> None:
    check_costs(FAMILIES[kind](tmp_path))
    page = extract_sections((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert REASONS.get(kind, "") in page["compute"]


def test_the_section_on_compute_has_a_measured_speed_up(tmp_path: Path) -> None:
    check_costs(make_token_run(tmp_path))
    page = extract_sections((tmp_path / "report.html").read_text(encoding="utf-8"))
    for section in ("verdict", "compute"):
        assert "evaluation 1.73 times as fast, training 1.20 times as fast" in page[section]


def test_a_measured_speed_up_names_the_machine_and_the_largest_possible_one(tmp_path: Path) -> None:
    executions = {
        "machine": "AMD EPYC, torch 2.13.0, 2 threads", "width": 64,
        "evaluation": {"speedup": 1.73, "speedup_range": [0.9, 1.8], "allowed": 2.25, "sequences": 512},
        "training": {"speedup": 1.2, "allowed": 1.5, "sequences": 64},
    }  # fmt: skip
    update_json(make_token_run(tmp_path) / "run.json", lambda run: run.update(executions=executions))
    check_costs(tmp_path)
    page = extract_sections((tmp_path / "report.html").read_text(encoding="utf-8"))
    for section in ("verdict", "compute"):
        assert (
            "on AMD EPYC, torch 2.13.0, 2 threads at width 64: evaluation no measurable "
            "difference in time (0.90 to 1.80 times as fast) (batches of 512; the saved compute "
            "allows 2.25), training 1.20 times as fast (batches of 64; the saved compute allows 1.50)."
        ) in page[section]


def test_a_comparison_has_the_compute_that_depths_need(tmp_path: Path) -> None:
    """Include a model whose depths need 17 % and whose evaluation ran 150 % of full depth, also in an old verdict."""
    run = record(tmp_path / "run", work=0.17)
    stale = {"cost": {"answer": None, "sentences": ["The work executed is 150 % of full depth."], "figures": {}}}
    update_json(run / "run.json", lambda content: content["verdict"].update(stale))
    other = record(tmp_path / "other", work=0.4, model={"act_penalty": 0.5})
    page = write_comparison(tmp_path / "page", compare([read_run(run), read_run(other)])).read_text(encoding="utf-8")
    sections = extract_sections(page)
    assert "17.0% of full depth" in sections["verdicts"]
    assert "need 17 % of the multiply-accumulates of full depth" in sections["verdicts"]
    assert "150" not in extract_text(page)
    assert "compute needed, share of full depth" in page
    assert "regardless of how the evaluation ran" in sections["quality"]


# ---- compute and time of a token


def test_older_runs_have_compute_and_time_of_a_token(tmp_path: Path) -> None:
    """Use the statistics and the speed of the evaluation, which all runs recorded."""
    folder = make_token_run(tmp_path / "run")
    update_json(folder / "run.json", lambda run: run["final_metrics"].update({"eval/tokens_per_second": 4000.0}))
    files = read_run(folder)
    halting, costs = files.halting, measure_unit_costs(files)
    assert costs["cost/macs_per_token"] == pytest.approx(halting["cost"]["adaptive_macs"] / halting["n"])
    assert costs["cost/ms_per_token"] == 0.25


def test_recorded_compute_of_a_token_is_not_computed_again(tmp_path: Path) -> None:
    folder = make_token_run(tmp_path / "run")
    update_json(folder / "halting.json", lambda content: content["cost"].update(macs_per_token=7.0))
    assert measure_unit_costs(read_run(folder))["cost/macs_per_token"] == 7.0


@pytest.mark.parametrize(
    ("macs", "written"), [(0.5, "0.5"), (999.0, "999"), (1234.0, "1.23k"), (2.5e6, "2.5M"), (4e12, "4T")]
)
def test_counts_have_three_digits(macs: float, written: str) -> None:
    assert format_count(macs) == written


def test_the_table_of_compute_has_compute_of_a_token(tmp_path: Path) -> None:
    files = read_run(make_token_run(tmp_path / "run"))
    section = build_compute_section(files)
    assert section is not None
    (table,) = section.tables
    for row, name in zip(table.rows, ("adaptive", "full", "executed", "dense"), strict=True):
        macs = files.halting["cost"][f"{name}_macs"]
        assert row["cost/macs_per_token"] == pytest.approx(macs / files.halting["n"])


def test_comparisons_have_compute_and_time_of_a_token_for_every_share(tmp_path: Path) -> None:
    for seed in (0, 1):
        more = {"cost/macs_per_token": 1000.0 + seed, "eval/tokens_per_second": 500.0}
        record(tmp_path / f"act_{seed}", seed, more=more)
        other = {"cost/macs_per_token": 9000.0, "eval/tokens_per_second": 50.0}
        record(tmp_path / f"ponder_{seed}", seed, unit="sequence", more=other, model={"name": "ponder_albert"})
    comparison = compare(find_runs(tmp_path))
    for table in ("final_figures", "verdicts"):
        write_comparison(tmp_path / "page", comparison)
        text = (tmp_path / "page" / "tables" / f"{table}.csv").read_text()
        assert "1000.5" in text
        assert "9000" in text
        assert "cost/ms_per_token" in text
    drawing = (tmp_path / "page" / "figures" / "quality_and_work.svg").read_text()
    assert "1k MACs per token, 2 ms per token" in drawing
    assert "Against ms per token" in drawing
    seeds = build_seed_table(comparison.groups[0].summary)
    assert {"cost/macs_per_token", "cost/ms_per_token"} <= {row["name"] for row in seeds.rows}


def test_pareto_lines_join_points_of_one_model(tmp_path: Path) -> None:
    """Draw a Pareto set for every model, since full depth differs between models."""
    points = {"a": (0.2, 0.5, 1e6), "b": (0.4, 0.6, 2e6), "c": (0.3, 0.4, 9e6), "d": (0.5, 0.55, 10e6)}
    for target, (name, (needed, score, count)) in enumerate(points.items()):
        family = "albert_act" if name in "ab" else "ponder_albert"
        record(
            tmp_path / name, work=needed, score=score, more={"cost/macs_per_token": count}, model={"name": family},
            budget={"target": float(target)},
        )  # fmt: skip
    section = compare_tradeoffs(compare(find_runs(tmp_path)), tmp_path)
    assert section is not None
    panels = {panel.title: panel for panel in section.figures[0].panels}
    macs, share = panels["Against MACs per token"], panels["Against compute needed"]
    assert isinstance(share.mark, Scatter)
    assert share.mark.lines == [[(0.2, 0.5), (0.4, 0.6)], [(0.3, 0.4), (0.5, 0.55)]]
    assert isinstance(macs.mark, Scatter)
    assert macs.mark.lines == [[(1e6, 0.5), (2e6, 0.6)]], "the other model is worse at more compute"


@pytest.mark.parametrize("prediction_macs", [0.0, 9.0])
def test_budgets_and_seeds_say_that_predictions_at_exits_are_left_out(tmp_path: Path, prediction_macs: float) -> None:
    row = {"target": None, "fit": None, "adaptive_over_full": 0.5, "prediction_macs": prediction_macs, "metrics": {}}
    budgets = {"rows": [row], "unit": "updates", "knob": "k", "set": "s", "fitted_on": 5, "measured_on": 6}
    directory = record(tmp_path / "run")
    update_json(directory / "halting.json", lambda halting: halting.update(prediction_macs=prediction_macs))
    summary = {"seeds": [0], "n": 1, "metrics": {}, "runs": {"0": "."}}
    files = dataclasses.replace(read_run(directory), others={SEEDS: summary})
    section = seeds(files)
    assert section is not None
    for content in (format_budgets(budgets).partition("\n\n")[0], format_budgets(budgets), section.html):
        assert ("without predictions" in content) == bool(prediction_macs)


@pytest.mark.parametrize(("rule", "formatted"), [
    ("margin:0.58312345678901234", "margin:0.583123"), ("margin:0.99999", "margin:0.99999"),
    ("patience:2", "patience:2"),
    ("oracle:expected:0.25", "oracle:expected:0.25"), ("mine:a=0.5", "mine:a=0.5"), ("expectation", "expectation"),
])  # fmt: skip
def test_thresholds_of_rules_are_shown_with_six_digits(rule: str, formatted: str) -> None:
    assert format_rule(rule) == formatted
