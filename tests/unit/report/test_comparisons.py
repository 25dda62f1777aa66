"""Comparison of several runs on one page: groups, differing settings, figures, and excluded runs."""

from __future__ import annotations

import csv
import itertools
import json
import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from adadepth.report import svg
from adadepth.report.baseline_comparison import ANSWERS
from adadepth.report.comparison import MAX_CURVES, build_comparison_sections
from adadepth.report.comparison_tables import build_verdict_table, format_best_line
from adadepth.report.figure import Lines, Scatter
from adadepth.report.pages import draw_comparison, write_comparison, write_report
from adadepth.report.paper import build_method_tables
from adadepth.report.run_files import read_run
from adadepth.report.run_groups import (
    Comparison,
    Quality,
    compare,
    curves,
    find_pareto_groups,
    find_runs,
    find_sweep_runs,
    get_compared_quality,
    get_differing_keys,
    get_unshared_keys,
    join_names,
)
from adadepth.report.section import Section
from adadepth.report.style import LINES, get_dash
from tests.marks_support import keep_one_quick
from tests.pages_support import read_report
from tests.unit.report.recorded import record

BEFORE = Path(__file__).parents[2] / "before"
SCORES = {2.5: (0.50, 0.58, 0.54), 5.0: (0.61, 0.57, 0.65)}
WORKS = {2.5: (0.30, 0.36, 0.33), 5.0: (0.60, 0.58, 0.62)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of two budgets in three seeds."""
    folder = tmp_path_factory.mktemp("runs")
    for target, scores in SCORES.items():
        for seed, score in enumerate(scores):
            record(
                folder / f"{target}_{seed}", seed, score=score, work=WORKS[target][seed], depth=target + 0.1 * seed,
                budget={"target": target}, classes={"correct": target + seed},
                losses={10: 0.9 - 0.1 * seed, 15 + seed: 0.7, 20: 0.5 + 0.02 * seed},
            )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def budget_comparison(folder: Path) -> Comparison:
    return compare(find_runs(folder))


def find_section(comparison: Comparison, anchor: str) -> Section:
    return next(entry for entry in build_comparison_sections(comparison, Path()) if entry.anchor == anchor)


def test_quality_against_compute_is_the_first_figure(budget_comparison: Comparison) -> None:
    sections = build_comparison_sections(budget_comparison, Path())
    assert sections[0].anchor == "quality"
    assert sections[0].figures
    assert [section.anchor for section in sections].count("quality") == 1


def test_runs_that_differ_in_the_seed_are_a_group(budget_comparison: Comparison) -> None:
    assert [(group.label, len(group.runs)) for group in budget_comparison.groups] == [
        ("target=2.5", 3),
        ("target=5", 3),
    ]
    assert get_differing_keys([group.settings for group in budget_comparison.groups]) == ["budget.target"]
    assert budget_comparison.left_out == []


@pytest.mark.parametrize("target", SCORES)
def test_mean_and_sample_deviation_over_seeds(budget_comparison: Comparison, target: float) -> None:
    group = budget_comparison.groups[list(SCORES).index(target)]
    for name, values in (("eval/score", SCORES[target]), ("cost/adaptive_over_full", WORKS[target])):
        figure = group.figure(name)
        assert figure is not None
        assert figure["n"] == 3
        assert figure["mean"] == pytest.approx(np.mean(values))
        assert figure["std"] == pytest.approx(math.sqrt(sum((v - sum(values) / 3) ** 2 for v in values) / 2))


def test_the_table_holds_the_same_figures(budget_comparison: Comparison) -> None:
    (table,) = find_section(budget_comparison, "figures").tables
    row = next(row for row in table.rows if row["metric"] == "eval/score")
    assert row["target=5/mean"] == pytest.approx(0.61)
    assert row["target=5/std"] == pytest.approx(0.04)
    view = next(column for column in table.of("view") if column.heading == "target=5")
    assert view.write(row["target=5"]) == "0.6100 ± 0.0400"


@pytest.mark.parametrize("less_is_better", [False, True])
def test_no_group_beats_those_of_the_pareto_set(tmp_path: Path, less_is_better: bool) -> None:
    draws = np.random.default_rng(3).integers(0, 5, (12, 2)) / 10
    for number, (work, score) in enumerate(draws):
        record(tmp_path / f"{number:02}", score=float(score), work=float(work), budget={"target": float(number)})
    groups = compare(find_runs(tmp_path)).groups
    is_in_pareto_set = find_pareto_groups(groups, "cost/adaptive_over_full", Quality("eval/score", less_is_better))
    sign = -1 if less_is_better else 1

    def beats(one: np.ndarray, other: np.ndarray) -> bool:
        return one[0] <= other[0] and sign * one[1] >= sign * other[1] and tuple(one) != tuple(other)

    assert is_in_pareto_set == [not any(beats(other, point) for other in draws) for point in draws]
    assert 0 < sum(is_in_pareto_set) < len(is_in_pareto_set)


def test_points_have_bars_of_one_deviation_and_the_best_are_marked(budget_comparison: Comparison) -> None:
    work, depth = find_section(budget_comparison, "quality").figures[0].panels
    assert isinstance(work.mark, Scatter)
    (low,), (high,) = (dots for _, dots in work.mark.groups)
    assert (low.x, low.y, low.marked) == (pytest.approx(0.33), pytest.approx(0.54), True)
    assert (high.spread_x, high.spread_y) == (pytest.approx(0.02), pytest.approx(0.04))
    assert work.mark.lines == [[(low.x, low.y), (high.x, high.y)]]
    assert depth.title == "Against mean depth"
    bars = re.search(r'd="M([\d.]+) [\d.]+H([\d.]+)M', str(svg.render_chart(work)))
    assert bars is not None
    assert float(bars[1]) < float(bars[2])


def test_a_mean_curve_has_the_steps_of_all_seeds(budget_comparison: Comparison) -> None:
    mean, members = curves(budget_comparison.groups[0], "eval/loss")
    assert mean == [(10, pytest.approx(0.8)), (20, pytest.approx(0.52))]
    assert [len(points) for points in members] == [3, 3, 3], "each is drawn as it is"
    panel = next(
        p for p in find_section(budget_comparison, "training").figures[0].panels if p.title == "Loss in evaluation"
    )
    assert isinstance(panel.mark, Lines)
    assert str(svg.render_chart(panel)).count('stroke-opacity=".35"') == 6


def test_classes_stand_side_by_side(budget_comparison: Comparison) -> None:
    (table,) = find_section(budget_comparison, "classes").tables
    assert [row["class"] for row in table.rows] == ["all", "correct"]
    correct = table.rows[1]
    assert (correct["target=2.5/mean"], correct["target=2.5/std"]) == (pytest.approx(3.5), pytest.approx(1.0))


def test_the_page_is_one_file_with_its_tables_and_figures_beside_it(
    budget_comparison: Comparison, tmp_path: Path
) -> None:
    page = write_comparison(tmp_path / "new", budget_comparison).read_text(encoding="utf-8")
    assert not re.search(r'(?:src|href)="(?!data:|#|figures/|\.\./)', page)
    assert "<script" not in page
    rows = list(csv.DictReader((tmp_path / "new" / "tables" / "final_figures.csv").open()))
    score = next(row for row in rows if row["metric"] == "eval/score")
    assert float(score["target=2.5/std"]) == pytest.approx(0.04)
    assert r"$\pm$" in (tmp_path / "new" / "tables" / "final_figures.tex").read_text()
    for name in re.findall(r'download="([^"]+\.svg)"', page):
        ElementTree.parse(tmp_path / "new" / "figures" / name)
    assert re.search(r"of \d settings", page)
    for section_of_page in build_comparison_sections(budget_comparison, tmp_path):
        assert section_of_page.of == "n = 6 runs of 2 settings"


def test_figures_are_drawn_as_png_and_pdf(budget_comparison: Comparison, tmp_path: Path) -> None:
    paths = draw_comparison(tmp_path, budget_comparison)
    assert {path.suffix for path in paths} == {".png", ".pdf"}
    assert all(path.stat().st_size > 1000 for path in paths)
    assert {path.stem for path in paths} == {"curves", "quality_and_work", "depth_by_class"}


# ---- runs that cannot be compared


def test_no_run_is_the_best_across_different_data(tmp_path: Path) -> None:
    record(tmp_path / "a")
    record(tmp_path / "b", score=0.9, dataset={"name": "maze"})
    comparison = compare(find_runs(tmp_path))
    assert "are not comparable" in find_section(comparison, "differs").html
    assert "their values of eval/score are not comparable" in find_section(comparison, "quality").html
    panel = find_section(comparison, "quality").figures[0].panels[0]
    assert isinstance(panel.mark, Scatter)
    assert not any(dot.marked for _, dots in panel.mark.groups for dot in dots)


@pytest.mark.parametrize(
    ("scores", "line", "title", "note"),
    [
        ((0.5, 0.6, 0.4), "best by eval/score: 0.6000, target=1: ", "Best by eval/score", None),
        ((0.5, 0.6, 0.6), "best by eval/score: 0.6000, in 2 of 3 settings, such as target=1: ", "Best by eval/score",
         "The first 2 have the same value."),
        ((0.5, 0.5, 0.5), "equal by eval/score: 0.5000 in all 3 settings, none is the best; the first is target=0: ",
         "Equal by eval/score", "All 3 have the same value, so none is the best."),
    ],
)  # fmt: skip
def test_equal_runs_are_not_the_best(
    tmp_path: Path, scores: tuple[float, ...], line: str, title: str, note: str | None
) -> None:
    for number, score in enumerate(scores):
        record(tmp_path / str(number), score=score, budget={"target": float(number)})
    comparison = compare(find_runs(tmp_path))
    assert (format_best_line(comparison) or "").startswith(line)
    assert find_section(comparison, "best").title == title
    assert ("have the same value" in find_section(comparison, "best").html) == (note is not None)
    assert note is None or note in find_section(comparison, "best").html


@pytest.mark.parametrize(("key", "differs"), [("nodes", True), ("drawing", True), ("train_examples", False)])
def test_settings_of_data_make_other_data_except_those_of_training(tmp_path: Path, key: str, differs: bool) -> None:
    for value in (16, 24):
        record(tmp_path / str(value), dataset={key: value})
    assert compare(find_runs(tmp_path)).other_data == ([f"dataset.{key}"] if differs else [])


@pytest.mark.parametrize("data", [{}, {"tokenizer": {"vocab_size": 300}}])
def test_another_tokenizer_makes_other_data_only_for_text(tmp_path: Path, data: dict[str, object]) -> None:
    for size in (300, 400):
        config = record(tmp_path / str(size), run={"data": data}) / "config.yaml"
        config.write_text(config.read_text() + f"tokenizer: {{vocab_size: {size}}}\n")
    assert compare(find_runs(tmp_path)).other_data == (["tokenizer.vocab_size"] if data else [])


@pytest.mark.parametrize("is_recorded", [True, False])
def test_equal_tokenizers_in_different_folders_are_the_same_data(tmp_path: Path, is_recorded: bool) -> None:
    """Use digests of the record of a run and, of runs of earlier versions, those of the model's configuration."""
    for number, (folder, digest) in enumerate((("base", "ab12"), ("copy", "ab12"), ("other", "cd34"))):
        data = {"tokenizer": {"path": folder, "vocab_size": 300, **({"digest": digest} if is_recorded else {})}}
        run = record(tmp_path / folder, number, run={"data": data})
        (run / "config.yaml").write_text((run / "config.yaml").read_text() + f"tokenizer: {{path: /texts/{folder}}}\n")
        (run / "model").mkdir()
        stored = {} if is_recorded else {"training_data": {"tokenizer": digest}}
        (run / "model" / "config.json").write_text(json.dumps(stored))
    comparison = compare(find_runs(tmp_path))
    assert [[run.run["seed"] for run in group.runs] for group in comparison.groups] == [[0, 1], [2]]
    assert [group.label for group in comparison.groups] == [
        "tokenizer.path=/texts/base",
        "tokenizer.path=/texts/other",
    ]
    assert comparison.other_data == ["tokenizer.path"]
    tables = build_method_tables(comparison, {})
    assert [table.data for table in tables] == ["hops (tokenizer.path base)", "hops (tokenizer.path other)"]


def test_depths_of_different_units_are_excluded_with_a_remark(tmp_path: Path) -> None:
    record(tmp_path / "a")
    record(tmp_path / "b", unit="sequence", model={"name": "ponder_albert"}, run={"config_name": "ponder_hops"})
    comparison = compare(find_runs(tmp_path))
    assert [group.label for group in comparison.groups] == ["act_hops", "ponder_hops"]
    assert "classes" not in {entry.anchor for entry in build_comparison_sections(comparison, Path())}
    training = find_section(comparison, "training")
    assert [panel.title for panel in training.figures[0].panels] == ["Loss in evaluation"]
    assert "Depth is excluded" in training.html
    assert "Losses of different model families" in training.html
    (table,) = find_section(comparison, "figures").tables
    assert "halting/all/mean" not in str(table)


def test_settings_and_figures_that_some_runs_lack_are_named(tmp_path: Path) -> None:
    record(tmp_path / "a", model={"patience": 3}, more={"eval/f1": 0.5})
    record(tmp_path / "b", budget={"target": 7.0})
    comparison = compare(find_runs(tmp_path))
    assert get_unshared_keys([group.settings for group in comparison.groups]) == ["model.patience"]
    assert "Excluded, because only some runs have them: model.patience." in find_section(comparison, "differs").html
    assert "Excluded, because only some runs have them: eval/f1." in find_section(comparison, "figures").html
    assert join_names(list("abcdefghij"), 8) == "a, b, c, d, e, f, g, h and 2 more"


def test_neutral_settings_make_no_groups(tmp_path: Path) -> None:
    record(tmp_path / "a", 0, dataset={"cache_dir": "here"})
    record(tmp_path / "b", 1, dataset={"cache_dir": "there"})
    comparison = compare(find_runs(tmp_path))
    assert len(comparison.groups) == 1
    assert [entry.label for entry in comparison.entries] == ["seed 0", "seed 1"]
    assert "differ only in the seed" in find_section(comparison, "differs").html


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [("run.json", None, "there is no run.json"), ("run.json", "{", "run.json is damaged"),
     ("run.json", '{"final_metrics": [1]}', "run.json is damaged"),
     ("run.json", '{"final_metrics": {"eval/loss": "x"}}', "run.json is damaged"),
     ("run.json", '{"verdict": {"adapts": 3}}', "run.json is damaged"),
     ("config.yaml", "{model: 3, dataset: []}", "config.yaml is damaged"),
     ("config.yaml", "{model: , dataset: }", "config.yaml is damaged"),
     ("config.yaml", "[1, 2", "config.yaml is damaged"), ("config.yaml", None, "there is no config.yaml")],
)  # fmt: skip
def test_a_damaged_run_is_excluded_in_one_line(tmp_path: Path, file: str, content: str | None, reason: str) -> None:
    record(tmp_path / "a")
    damaged = record(tmp_path / "b", 1) / file
    damaged.unlink() if content is None else damaged.write_text(content)
    comparison = compare(find_runs(tmp_path))
    (left_out,) = comparison.left_out
    assert left_out.startswith(f"{tmp_path / 'b'}: excluded, {reason}")
    assert "\n" not in left_out
    assert len(comparison.runs) == 1
    assert reason in write_comparison(tmp_path / "page", comparison).read_text()


@pytest.mark.parametrize(
    "content", keep_one_quick(5, ['{"unit": 3}', '{"max_depth": -1}', '{"n": "x"}', '{"classes": {"all": 3}}', "[1]"])
)
def test_damaged_statistics_are_excluded(tmp_path: Path, content: str) -> None:
    record(tmp_path / "a")
    (record(tmp_path / "b", 1) / "halting.json").write_text(content)
    comparison = compare(find_runs(tmp_path))
    assert comparison.runs[1].missing["halting.json"].startswith("halting.json is damaged (")
    assert write_comparison(tmp_path / "page", comparison).is_file()
    assert write_report(read_report(tmp_path / "b")).is_file()


def test_a_failed_run_is_named_with_its_error_and_counts_in_no_mean(tmp_path: Path) -> None:
    record(tmp_path / "a", 0, score=0.4)
    record(tmp_path / "b", 1, run={"status": "failed", "error": "ValueError: not finite", "final_metrics": None})
    comparison = compare(find_runs(tmp_path))
    assert comparison.left_out == [f"{tmp_path / 'b'}: failed, so it has no final figures; ValueError: not finite."]
    figure = comparison.groups[0].figure("eval/score")
    assert figure is not None
    assert (figure["n"], figure["mean"]) == (1, 0.4)
    assert write_comparison(tmp_path / "page", comparison).is_file()


def test_a_run_without_depths_is_left_out_of_depth_figures(tmp_path: Path) -> None:
    record(tmp_path / "a", classes={"correct": 2.0})
    failed = record(tmp_path / "b", budget={"target": 7.0}, run={"status": "failed", "final_metrics": None})
    (failed / "halting.json").unlink()
    comparison = compare(find_runs(tmp_path))
    (table,) = find_section(comparison, "classes").tables
    assert [(row["class"], row["target=2.5/mean"]) for row in table.rows] == [("all", 2.0), ("correct", 2.0)]
    assert "Mean depth" in [panel.title for panel in find_section(comparison, "training").figures[0].panels]


def test_the_last_finished_run_of_a_repeated_seed_counts(tmp_path: Path) -> None:
    record(tmp_path / "a", score=0.4)
    record(tmp_path / "b", score=0.6)
    record(tmp_path / "c", run={"status": "interrupted", "final_metrics": None})
    comparison = compare(find_runs(tmp_path))
    assert comparison.left_out == [
        f"{tmp_path / other}: excluded, because {tmp_path / 'b'} has the same settings and seed." for other in "ac"
    ]
    assert [run.directory.name for run in comparison.runs] == ["b"]


def test_runs_without_metrics_and_halting_have_a_page(tmp_path: Path) -> None:
    for name in "ab":
        directory = record(tmp_path / name, ord(name))
        (directory / "metrics.jsonl").unlink()
        (directory / "halting.json").write_text("{")
    comparison = compare(find_runs(tmp_path))
    assert all("no curves" in sentence for sentence in comparison.left_out)
    assert "eval/score" in write_comparison(tmp_path / "page", comparison).read_text()


# ---- selection of runs


def test_a_folder_contains_its_trainings_without_their_evaluations(tmp_path: Path) -> None:
    record(tmp_path / "act" / "b", 1)
    run = record(tmp_path / "act" / "a", 0)
    record(run / "evaluations" / "c", 0, run={"mode": "evaluate"})
    record(tmp_path / "act" / "d", 0, run={"mode": "evaluate"})
    assert [entry.directory.name for entry in find_runs(tmp_path)] == ["a", "b"]
    assert [entry.directory.name for entry in find_runs(run / "evaluations")] == ["c"]
    assert [entry.directory for entry in find_runs(run)] == [run]


def write_seed_summary(folder: Path, runs: dict[str, str]) -> Path:
    record(folder)
    (folder / "halting.json").unlink()
    content = {"seeds": [0, 1], "n": 2, "metrics": {"eval/score": {"n": 2, "mean": 0.5, "std": 0.1, "values": {}}}}
    (folder / "seeds.json").write_text(json.dumps({**content, "runs": runs}))
    return folder


def test_a_summary_of_seeds_contains_its_runs_and_its_page_shows_them(tmp_path: Path) -> None:
    for seed in (0, 1):
        record(tmp_path / f"run_{seed}", seed)
    summary = write_seed_summary(tmp_path / "summary", {"0": "../run_0", "1": "../run_1"})
    assert sorted(entry.directory.resolve().name for entry in find_runs(summary)) == ["run_0", "run_1"]
    assert len(find_runs(tmp_path)) == 2
    page = write_report(read_report(summary)).read_text()
    assert page.index("Over 2 seeds") < page.index('id="training"') < page.index('id="runs"')
    assert (summary / "figures" / "curves.svg").is_file()


def test_a_summary_of_seeds_begins_with_its_means_its_baselines_and_every_seed(tmp_path: Path) -> None:
    works, scores = (0.3, 0.4), (0.9, 0.8)
    for seed in (0, 1):
        record(tmp_path / f"run_{seed}", seed, work=works[seed], score=scores[seed])
    summary = write_seed_summary(tmp_path / "summary", {"0": "../run_0", "1": "../run_1"})
    (alone, *_) = read_report(summary).sections
    assert (alone.anchor, [figure.name for figure in alone.figures]) == ("quality", ["quality_and_work"])
    rows = [
        {"kind": kind, "group": kind, "max_depth": 3, "mean": 2.0, "std": 0.0, "adaptive_macs": macs,
         "metrics": {"eval/score": score}}
        for kind, macs, values in (("adaptive", 30.0, scores), ("fixed depth", 60.0, (0.7, 0.6))) for score in values
    ]  # fmt: skip
    (summary / "rivals.json").write_text(json.dumps({"rows": rows}))
    sections = read_report(summary).sections
    assert [section.anchor for section in sections].count("quality") == 1
    assert [figure.name for figure in sections[0].figures] == ["quality_against_compute", "quality_and_work"]
    (panel,) = sections[0].figures[0].panels
    assert isinstance(panel.mark, Scatter)
    points = [(name, dot.x, dot.y) for name, (dot,) in panel.mark.groups]
    assert points[0] == ("these 2 seeds", pytest.approx(0.35), pytest.approx(0.85))
    assert points[1][1:] == (pytest.approx(2 * 0.35), pytest.approx(0.65))


def test_seeds_have_the_answer_of_their_summary_on_every_page(tmp_path: Path) -> None:
    """Answer `not known` without trained baselines, whatever single seeds answer; with them, these decide."""
    spread = {"more": {"halting/all/std": 0.7}}
    for seed, score in enumerate((0.90, 0.91, 0.92)):
        record(tmp_path / f"run_{seed}", seed, score=score, run={"owner": "summary"}, **spread)
    record(tmp_path / "run_z", 0, budget={"target": 5.0}, **spread)
    summary = write_seed_summary(tmp_path / "summary", {str(seed): f"../run_{seed}" for seed in range(3)})
    stored = json.loads((summary / "seeds.json").read_text())
    stored["metrics"]["halting/all/std"] = {"n": 3, "mean": 0.7, "std": 0.0, "values": {}}
    (summary / "seeds.json").write_text(json.dumps(stored))

    def read_answers() -> tuple[str, str]:
        """Return the answer on the page of the summary, and that of its runs in a comparison."""
        group, _ = build_verdict_table(compare(find_runs(tmp_path))).rows
        return ANSWERS[read_report(summary).verdict["worth"].answer], group["worth"]

    assert read_answers() == ("not known", "not known")
    rows = [
        {"kind": kind, "group": kind, "max_depth": 3, "mean": 2.0, "std": 0.0, "adaptive_macs": 30.0,
         "metrics": {"eval/score": score}}
        for kind, scores in (("adaptive", (0.90, 0.91, 0.92)), ("fixed depth", (0.7, 0.71, 0.72))) for score in scores
    ]  # fmt: skip
    (summary / "rivals.json").write_text(json.dumps({"rows": rows}))
    assert read_answers() == ("yes", "yes")


def test_headings_of_compute_say_that_predictions_at_exits_are_left_out(tmp_path: Path) -> None:
    costs = {"more": {"cost/macs_per_token": 2e6}}
    directories = [record(tmp_path / "a", 0, **costs), record(tmp_path / "b", 0, budget={"target": 5.0}, **costs)]

    def read_texts() -> str:
        comparison = compare(find_runs(tmp_path))
        panels = find_section(comparison, "quality").figures[0].panels
        titles = [panel.x.title for panel in panels if panel.x is not None]
        headings = [column.heading for column in build_verdict_table(comparison).columns]
        pages = [str(find_section(comparison, anchor).html) for anchor in ("verdicts", "figures")]
        return " | ".join([*titles, *headings, *pages])

    assert "without predictions" not in read_texts()
    halting = json.loads((directories[0] / "halting.json").read_text())
    (directories[0] / "halting.json").write_text(json.dumps(halting | {"prediction_macs": 9.0}))
    text = read_texts()
    assert "compute needed without predictions, share of full depth" in text
    assert text.count("MACs per token without predictions") == 3  # axis, heading, and heading on the page
    assert "without padding or predictions" in text
    assert "(<code>cost/</code>) is without predictions" in text


def test_runs_of_a_sweep_are_found_by_its_name(tmp_path: Path) -> None:
    run = record(tmp_path / "a" / "x", run={"sweep": "sweep-1"})
    record(run / "evaluations" / "y", 1, run={"sweep": "sweep-1", "mode": "evaluate"})
    record(tmp_path / "a" / "z", 2, run={"sweep": "sweep-2"})
    assert [entry.directory.name for entry in find_sweep_runs([tmp_path], "sweep-1")] == ["y", "x"]


def test_recorded_runs_of_every_family_are_on_one_page(tmp_path: Path) -> None:
    comparison = compare(find_runs(BEFORE))
    assert len(comparison.groups) >= 8
    assert len({group.label for group in comparison.groups}) == len(comparison.groups)
    page = write_comparison(tmp_path, comparison).read_text()
    assert all(group.label in page for group in comparison.groups)


def test_a_setting_too_long_for_a_label_is_a_letter(tmp_path: Path) -> None:
    for number in range(2):
        many = {f"setting_{key}": number for key in range(4)}
        record(tmp_path / f"{number}", model=many)
    assert [group.label for group in compare(find_runs(tmp_path)).groups] == ["act_hops A", "act_hops B"]


# ---- many groups


def test_the_best_of_many_groups_have_curves_in_their_colours(tmp_path: Path) -> None:
    for number in range(MAX_CURVES + 3):
        record(tmp_path / f"{number:02}", score=number / 100, budget={"target": float(number)})
    comparison = compare(find_runs(tmp_path))
    panel = find_section(comparison, "training").figures[0].panels[0]
    assert isinstance(panel.mark, Lines)
    assert [bool(points) for _, points in panel.mark.curves] == [False] * 3 + [True] * MAX_CURVES
    assert (
        f"The curves show the best {MAX_CURVES} of {MAX_CURVES + 3} by eval/score."
        in find_section(comparison, "training").html
    )


def test_no_two_of_36_lines_look_the_same() -> None:
    looks = {(index % len(LINES), get_dash(index, 6)) for index in range(36)}
    assert looks == set(itertools.product(range(6), range(6)))


@pytest.mark.parametrize(
    ("optimise", "selecting", "greater", "expected"),
    [("eval/score", "eval_loss", False, ("eval/score", False)), ("eval/loss", "eval_f1", True, ("eval/f1", False)),
     ("eval/loss", "eval_f1", False, ("eval/f1", True)), ("eval/loss", "eval_loss", False, ("eval/score", False)),
     ("eval/nothing", None, None, ("eval/score", False))],
)  # fmt: skip
def test_quality_is_the_selecting_metric_but_no_total_loss(
    tmp_path: Path, optimise: str, selecting: str | None, greater: bool | None, expected: tuple[str, bool]
) -> None:
    trainer = {"metric_for_best_model": selecting, "greater_is_better": greater}
    directory = record(tmp_path / "a", more={"eval/f1": 0.3}, trainer=trainer)
    config = (directory / "config.yaml").read_text().replace("optimise: eval/score", f"optimise: {optimise}")
    (directory / "config.yaml").write_text(config)
    assert get_compared_quality(compare([read_run(directory)])) == expected
