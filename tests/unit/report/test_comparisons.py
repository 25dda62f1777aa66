"""Several runs on one page: groups, what differs, figures against independent arithmetic, and what is left out."""

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
from tests.marks_support import quick_one_in
from tests.pages_support import read_report
from tests.unit.report.recorded import record

BEFORE = Path(__file__).parents[2] / "before"
SCORES = {2.5: (0.50, 0.58, 0.54), 5.0: (0.61, 0.57, 0.65)}
WORKS = {2.5: (0.30, 0.36, 0.33), 5.0: (0.60, 0.58, 0.62)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two budgets in three seeds."""
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
def compared(folder: Path) -> Comparison:
    return compare(find_runs(folder))


def section(comparison: Comparison, anchor: str) -> Section:
    return next(found for found in build_comparison_sections(comparison, Path()) if found.anchor == anchor)


def test_quality_against_compute_is_the_first_figure(compared: Comparison) -> None:
    sections = build_comparison_sections(compared, Path())
    assert sections[0].anchor == "quality"
    assert sections[0].figures
    assert [found.anchor for found in sections].count("quality") == 1


def test_runs_that_differ_in_the_seed_are_a_group(compared: Comparison) -> None:
    assert [(group.label, len(group.runs)) for group in compared.groups] == [("target=2.5", 3), ("target=5", 3)]
    assert get_differing_keys([group.settings for group in compared.groups]) == ["budget.target"]
    assert compared.left_out == []


@pytest.mark.parametrize("target", SCORES)
def test_mean_and_sample_deviation_over_seeds(compared: Comparison, target: float) -> None:
    group = compared.groups[list(SCORES).index(target)]
    for name, values in (("eval/score", SCORES[target]), ("cost/adaptive_over_full", WORKS[target])):
        found = group.figure(name)
        assert found is not None
        assert found["n"] == 3
        assert found["mean"] == pytest.approx(np.mean(values))
        assert found["std"] == pytest.approx(math.sqrt(sum((v - sum(values) / 3) ** 2 for v in values) / 2))


def test_the_table_holds_the_same_figures(compared: Comparison) -> None:
    (table,) = section(compared, "figures").tables
    row = next(row for row in table.rows if row["metric"] == "eval/score")
    assert row["target=5/mean"] == pytest.approx(0.61)
    assert row["target=5/std"] == pytest.approx(0.04)
    view = next(column for column in table.of("view") if column.heading == "target=5")
    assert view.write(row["target=5"]) == "0.6100 ± 0.0400"


@pytest.mark.parametrize("less_is_better", [False, True])
def test_no_other_group_beats_those_of_the_pareto_set(tmp_path: Path, less_is_better: bool) -> None:
    draws = np.random.default_rng(3).integers(0, 5, (12, 2)) / 10
    for number, (work, score) in enumerate(draws):
        record(tmp_path / f"{number:02}", score=float(score), work=float(work), budget={"target": float(number)})
    groups = compare(find_runs(tmp_path)).groups
    found = find_pareto_groups(groups, "cost/adaptive_over_full", Quality("eval/score", less_is_better))
    sign = -1 if less_is_better else 1

    def beats(one: np.ndarray, other: np.ndarray) -> bool:
        return one[0] <= other[0] and sign * one[1] >= sign * other[1] and tuple(one) != tuple(other)

    assert found == [not any(beats(other, point) for other in draws) for point in draws]
    assert 0 < sum(found) < len(found)


def test_points_have_bars_of_one_deviation_and_the_best_are_marked(compared: Comparison) -> None:
    work, depth = section(compared, "quality").figures[0].panels
    assert isinstance(work.mark, Scatter)
    (low,), (high,) = (dots for _, dots in work.mark.groups)
    assert (low.x, low.y, low.marked) == (pytest.approx(0.33), pytest.approx(0.54), True)
    assert (high.spread_x, high.spread_y) == (pytest.approx(0.02), pytest.approx(0.04))
    assert work.mark.lines == [[(low.x, low.y), (high.x, high.y)]]
    assert depth.title == "Against mean depth"
    bars = re.search(r'd="M([\d.]+) [\d.]+H([\d.]+)M', str(svg.render_chart(work)))
    assert bars is not None
    assert float(bars[1]) < float(bars[2])


def test_a_mean_curve_is_where_all_seeds_have_a_value(compared: Comparison) -> None:
    mean, members = curves(compared.groups[0], "eval/loss")
    assert mean == [(10, pytest.approx(0.8)), (20, pytest.approx(0.52))]
    assert [len(points) for points in members] == [3, 3, 3], "each is drawn as it is"
    panel = next(p for p in section(compared, "training").figures[0].panels if p.title == "Loss in evaluation")
    assert isinstance(panel.mark, Lines)
    assert str(svg.render_chart(panel)).count('stroke-opacity=".35"') == 6


def test_classes_stand_side_by_side(compared: Comparison) -> None:
    (table,) = section(compared, "classes").tables
    assert [row["class"] for row in table.rows] == ["all", "correct"]
    correct = table.rows[1]
    assert (correct["target=2.5/mean"], correct["target=2.5/std"]) == (pytest.approx(3.5), pytest.approx(1.0))


def test_the_page_is_one_file_with_its_tables_and_figures_beside_it(compared: Comparison, tmp_path: Path) -> None:
    page = write_comparison(tmp_path / "new", compared).read_text(encoding="utf-8")
    assert not re.search(r'(?:src|href)="(?!data:|#|figures/|\.\./)', page)
    assert "<script" not in page
    rows = list(csv.DictReader((tmp_path / "new" / "tables" / "final_figures.csv").open()))
    score = next(row for row in rows if row["metric"] == "eval/score")
    assert float(score["target=2.5/std"]) == pytest.approx(0.04)
    assert r"$\pm$" in (tmp_path / "new" / "tables" / "final_figures.tex").read_text()
    for name in re.findall(r'download="([^"]+\.svg)"', page):
        ElementTree.parse(tmp_path / "new" / "figures" / name)
    assert re.search(r"of \d settings", page)
    for found in build_comparison_sections(compared, tmp_path):
        assert found.of == "n = 6 runs of 2 settings"


def test_figures_are_drawn_as_png_and_pdf(compared: Comparison, tmp_path: Path) -> None:
    drawn = draw_comparison(tmp_path, compared)
    assert {path.suffix for path in drawn} == {".png", ".pdf"}
    assert all(path.stat().st_size > 1000 for path in drawn)
    assert {path.stem for path in drawn} == {"curves", "quality_and_work", "depth_by_class"}


# ---- what does not compare


def test_of_other_data_no_run_is_the_best(tmp_path: Path) -> None:
    record(tmp_path / "a")
    record(tmp_path / "b", score=0.9, dataset={"name": "maze"})
    comparison = compare(find_runs(tmp_path))
    assert "are not comparable" in section(comparison, "differs").html
    assert "their values of eval/score are not comparable" in section(comparison, "quality").html
    panel = section(comparison, "quality").figures[0].panels[0]
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
    assert section(comparison, "best").title == title
    assert ("have the same value" in section(comparison, "best").html) == (note is not None)
    assert note is None or note in section(comparison, "best").html


@pytest.mark.parametrize(("key", "differs"), [("nodes", True), ("drawing", True), ("train_examples", False)])
def test_another_setting_of_the_data_is_other_data_unless_it_is_of_training_alone(
    tmp_path: Path, key: str, differs: bool
) -> None:
    for value in (16, 24):
        record(tmp_path / str(value), dataset={key: value})
    assert compare(find_runs(tmp_path)).other_data == ([f"dataset.{key}"] if differs else [])


@pytest.mark.parametrize("data", [{}, {"tokenizer": {"vocab_size": 300}}])
def test_another_tokenizer_is_other_data_where_there_is_text(tmp_path: Path, data: dict[str, object]) -> None:
    for size in (300, 400):
        config = record(tmp_path / str(size), run={"data": data}) / "config.yaml"
        config.write_text(config.read_text() + f"tokenizer: {{vocab_size: {size}}}\n")
    assert compare(find_runs(tmp_path)).other_data == (["tokenizer.vocab_size"] if data else [])


def test_depths_of_other_units_are_left_out_and_it_is_said(tmp_path: Path) -> None:
    record(tmp_path / "a")
    record(tmp_path / "b", unit="sequence", model={"name": "ponder_albert"}, run={"config_name": "ponder_hops"})
    comparison = compare(find_runs(tmp_path))
    assert [group.label for group in comparison.groups] == ["act_hops", "ponder_hops"]
    assert "classes" not in {found.anchor for found in build_comparison_sections(comparison, Path())}
    training = section(comparison, "training")
    assert [panel.title for panel in training.figures[0].panels] == ["Loss in evaluation"]
    assert "Depth is excluded" in training.html
    assert "Losses of different model families" in training.html
    (table,) = section(comparison, "figures").tables
    assert "halting/all/mean" not in str(table)


def test_settings_and_figures_that_not_all_have_are_named(tmp_path: Path) -> None:
    record(tmp_path / "a", model={"patience": 3}, more={"eval/f1": 0.5})
    record(tmp_path / "b", budget={"target": 7.0})
    comparison = compare(find_runs(tmp_path))
    assert get_unshared_keys([group.settings for group in comparison.groups]) == ["model.patience"]
    assert "Excluded, because only some runs have them: model.patience." in section(comparison, "differs").html
    assert "Excluded, because only some runs have them: eval/f1." in section(comparison, "figures").html
    assert join_names(list("abcdefghij"), 8) == "a, b, c, d, e, f, g, h and 2 more"


def test_neutral_settings_make_no_groups(tmp_path: Path) -> None:
    record(tmp_path / "a", 0, dataset={"cache_dir": "here"})
    record(tmp_path / "b", 1, dataset={"cache_dir": "there"})
    comparison = compare(find_runs(tmp_path))
    assert len(comparison.groups) == 1
    assert [entry.label for entry in comparison.entries] == ["seed 0", "seed 1"]
    assert "differ only in the seed" in section(comparison, "differs").html


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [("run.json", None, "there is no run.json"), ("run.json", "{", "run.json is damaged"),
     ("run.json", '{"final_metrics": [1]}', "run.json is damaged"),
     ("run.json", '{"final_metrics": {"eval/loss": "x"}}', "run.json is damaged"),
     ("run.json", '{"verdict": {"adapts": 3}}', "run.json is damaged"),
     ("config.yaml", "{model: 3, dataset: []}", "config.yaml is damaged"),
     ("config.yaml", "{model: , dataset: }", "config.yaml is damaged"),
     ("config.yaml", "[1, 2", "config.yaml is damaged"), ("config.yaml", None, "there is no config.yaml")],
)  # fmt: skip
def test_a_damaged_run_is_named_in_a_line(tmp_path: Path, file: str, content: str | None, said: str) -> None:
    record(tmp_path / "a")
    damaged = record(tmp_path / "b", 1) / file
    damaged.unlink() if content is None else damaged.write_text(content)
    comparison = compare(find_runs(tmp_path))
    (left_out,) = comparison.left_out
    assert left_out.startswith(f"{tmp_path / 'b'}: excluded, {said}")
    assert "\n" not in left_out
    assert len(comparison.runs) == 1
    assert said in write_comparison(tmp_path / "page", comparison).read_text()


@pytest.mark.parametrize(
    "content", quick_one_in(5, ['{"unit": 3}', '{"max_depth": -1}', '{"n": "x"}', '{"classes": {"all": 3}}', "[1]"])
)
def test_damaged_statistics_are_left_out_of_a_comparison(tmp_path: Path, content: str) -> None:
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
    found = comparison.groups[0].figure("eval/score")
    assert found is not None
    assert (found["n"], found["mean"]) == (1, 0.4)
    assert write_comparison(tmp_path / "page", comparison).is_file()


def test_a_run_without_depths_takes_them_from_no_other(tmp_path: Path) -> None:
    record(tmp_path / "a", classes={"correct": 2.0})
    failed = record(tmp_path / "b", budget={"target": 7.0}, run={"status": "failed", "final_metrics": None})
    (failed / "halting.json").unlink()
    comparison = compare(find_runs(tmp_path))
    (table,) = section(comparison, "classes").tables
    assert [(row["class"], row["target=2.5/mean"]) for row in table.rows] == [("all", 2.0), ("correct", 2.0)]
    assert "Mean depth" in [panel.title for panel in section(comparison, "training").figures[0].panels]


def test_of_a_repeated_seed_the_last_finished_one_counts(tmp_path: Path) -> None:
    record(tmp_path / "a", score=0.4)
    record(tmp_path / "b", score=0.6)
    record(tmp_path / "c", run={"status": "interrupted", "final_metrics": None})
    comparison = compare(find_runs(tmp_path))
    assert comparison.left_out == [
        f"{tmp_path / other}: excluded, because {tmp_path / 'b'} has the same settings and seed." for other in "ac"
    ]
    assert [run.directory.name for run in comparison.runs] == ["b"]


def test_without_metrics_and_halting_there_is_still_a_page(tmp_path: Path) -> None:
    for name in "ab":
        directory = record(tmp_path / name, ord(name))
        (directory / "metrics.jsonl").unlink()
        (directory / "halting.json").write_text("{")
    comparison = compare(find_runs(tmp_path))
    assert all("no curves" in sentence for sentence in comparison.left_out)
    assert "eval/score" in write_comparison(tmp_path / "page", comparison).read_text()


# ---- which runs


def test_a_folder_stands_for_its_trainings_and_not_for_what_lies_in_them(tmp_path: Path) -> None:
    record(tmp_path / "act" / "b", 1)
    run = record(tmp_path / "act" / "a", 0)
    record(run / "evaluations" / "c", 0, run={"mode": "evaluate"})
    record(tmp_path / "act" / "d", 0, run={"mode": "evaluate"})
    assert [found.directory.name for found in find_runs(tmp_path)] == ["a", "b"]
    assert [found.directory.name for found in find_runs(run / "evaluations")] == ["c"]
    assert [found.directory for found in find_runs(run)] == [run]


def summary_of_seeds(folder: Path, runs: dict[str, str]) -> Path:
    record(folder)
    (folder / "halting.json").unlink()
    found = {"seeds": [0, 1], "n": 2, "metrics": {"eval/score": {"n": 2, "mean": 0.5, "std": 0.1, "values": {}}}}
    (folder / "seeds.json").write_text(json.dumps({**found, "runs": runs}))
    return folder


def test_a_summary_of_seeds_stands_for_its_runs_and_its_page_shows_them(tmp_path: Path) -> None:
    for seed in (0, 1):
        record(tmp_path / f"run_{seed}", seed)
    summary = summary_of_seeds(tmp_path / "summary", {"0": "../run_0", "1": "../run_1"})
    assert sorted(found.directory.resolve().name for found in find_runs(summary)) == ["run_0", "run_1"]
    assert len(find_runs(tmp_path)) == 2
    page = write_report(read_report(summary)).read_text()
    assert page.index("Over 2 seeds") < page.index('id="training"') < page.index('id="runs"')
    assert (summary / "figures" / "curves.svg").is_file()


def test_a_summary_of_seeds_begins_with_its_means_its_baselines_and_every_seed(tmp_path: Path) -> None:
    works, scores = (0.3, 0.4), (0.9, 0.8)
    for seed in (0, 1):
        record(tmp_path / f"run_{seed}", seed, work=works[seed], score=scores[seed])
    summary = summary_of_seeds(tmp_path / "summary", {"0": "../run_0", "1": "../run_1"})
    (alone, *_) = read_report(summary).sections
    assert (alone.anchor, [figure.name for figure in alone.figures]) == ("quality", ["quality_and_work"])
    rows = [
        {"kind": kind, "group": kind, "max_depth": 3, "mean": 2.0, "std": 0.0, "adaptive_macs": macs,
         "metrics": {"eval/score": score}}
        for kind, macs, values in (("adaptive", 30.0, scores), ("fixed depth", 60.0, (0.7, 0.6))) for score in values
    ]  # fmt: skip
    (summary / "rivals.json").write_text(json.dumps({"rows": rows}))
    sections = read_report(summary).sections
    assert [found.anchor for found in sections].count("quality") == 1
    assert [figure.name for figure in sections[0].figures] == ["quality_against_compute", "quality_and_work"]
    (panel,) = sections[0].figures[0].panels
    assert isinstance(panel.mark, Scatter)
    points = [(name, dot.x, dot.y) for name, (dot,) in panel.mark.groups]
    assert points[0] == ("these 2 seeds", pytest.approx(0.35), pytest.approx(0.85))
    assert points[1][1:] == (pytest.approx(2 * 0.35), pytest.approx(0.65))


def test_seeds_have_the_answer_of_their_summary_on_every_page(tmp_path: Path) -> None:
    """Without trained baselines it is not known, whatever the single seeds say; with them, their comparison decides."""
    spread = {"more": {"halting/all/std": 0.7}}
    for seed, score in enumerate((0.90, 0.91, 0.92)):
        record(tmp_path / f"run_{seed}", seed, score=score, run={"owner": "summary"}, **spread)
    record(tmp_path / "run_z", 0, budget={"target": 5.0}, **spread)
    summary = summary_of_seeds(tmp_path / "summary", {str(seed): f"../run_{seed}" for seed in range(3)})
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
        panels = section(comparison, "quality").figures[0].panels
        titles = [panel.x.title for panel in panels if panel.x is not None]
        headings = [column.heading for column in build_verdict_table(comparison).columns]
        pages = [str(section(comparison, anchor).html) for anchor in ("verdicts", "figures")]
        return " | ".join([*titles, *headings, *pages])

    assert "without predictions" not in read_texts()
    halting = json.loads((directories[0] / "halting.json").read_text())
    (directories[0] / "halting.json").write_text(json.dumps(halting | {"prediction_macs": 9.0}))
    text = read_texts()
    assert "compute needed without predictions at exits, share of full depth" in text
    assert text.count("MACs per token without predictions at exits") == 3  # axis, heading, and heading on the page
    assert "without padding or predictions at exits" in text
    assert "(<code>cost/</code>) is without predictions at exits" in text


def test_runs_of_a_sweep_know_its_name(tmp_path: Path) -> None:
    run = record(tmp_path / "a" / "x", run={"sweep": "sweep-1"})
    record(run / "evaluations" / "y", 1, run={"sweep": "sweep-1", "mode": "evaluate"})
    record(tmp_path / "a" / "z", 2, run={"sweep": "sweep-2"})
    assert [found.directory.name for found in find_sweep_runs([tmp_path], "sweep-1")] == ["y", "x"]


def test_recorded_runs_of_every_family_are_on_one_page(tmp_path: Path) -> None:
    comparison = compare(find_runs(BEFORE))
    assert len(comparison.groups) >= 8
    assert len({group.label for group in comparison.groups}) == len(comparison.groups)
    page = write_comparison(tmp_path, comparison).read_text()
    assert all(group.label in page for group in comparison.groups)


def test_what_is_too_long_for_a_label_is_a_letter(tmp_path: Path) -> None:
    for number in range(2):
        many = {f"setting_{key}": number for key in range(4)}
        record(tmp_path / f"{number}", model=many)
    assert [group.label for group in compare(find_runs(tmp_path)).groups] == ["act_hops A", "act_hops B"]


# ---- many


def test_of_many_groups_the_best_have_curves_in_the_colours_of_all(tmp_path: Path) -> None:
    for number in range(MAX_CURVES + 3):
        record(tmp_path / f"{number:02}", score=number / 100, budget={"target": float(number)})
    comparison = compare(find_runs(tmp_path))
    panel = section(comparison, "training").figures[0].panels[0]
    assert isinstance(panel.mark, Lines)
    assert [bool(points) for _, points in panel.mark.curves] == [False] * 3 + [True] * MAX_CURVES
    assert (
        f"The curves show the best {MAX_CURVES} of {MAX_CURVES + 3} by eval/score."
        in section(comparison, "training").html
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
def test_quality_is_what_was_optimised_but_no_total_loss(
    tmp_path: Path, optimise: str, selecting: str | None, greater: bool | None, expected: tuple[str, bool]
) -> None:
    trainer = {"metric_for_best_model": selecting, "greater_is_better": greater}
    directory = record(tmp_path / "a", more={"eval/f1": 0.3}, trainer=trainer)
    config = (directory / "config.yaml").read_text().replace("optimise: eval/score", f"optimise: {optimise}")
    (directory / "config.yaml").write_text(config)
    assert get_compared_quality(compare([read_run(directory)])) == expected
