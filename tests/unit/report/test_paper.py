"""Files for a paper: names of methods, the bold row compared with an independent test, LaTeX, figure and commands."""

from __future__ import annotations

import csv
import itertools
import json
import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from adadepth.metrics.significance import LEVEL
from adadepth.models.registry import families
from adadepth.report.figure import Scatter
from adadepth.report.paper import (
    build_method_tables,
    draw_tradeoff,
    find_evaluation_set,
    format_latex_table,
    name_metric,
    write_paper,
)
from adadepth.report.run_files import read_run
from adadepth.report.run_groups import compare, find_runs
from tests.figures_support import find_inked_pixels
from tests.unit.report.recorded import record
from tests.unit.report.synthetic_exits import add_exit_files

TITLES = {"albert_act": "ACT-ALBERT", "ponder_albert": "PonderALBERT"}
PONDER: dict[str, Any] = {"model": {"name": "ponder_albert"}}
LOW, HIGH, OTHER = (0.70, 0.71, 0.72), (0.80, 0.81, 0.83), (0.75, 0.60, 0.68)


def record_method(folder: Path, scores: tuple[float, ...], macs: float = 2e6, **settings: Any) -> None:
    """Write a run for each seed; settings are those of `record`."""
    for seed, score in enumerate(scores):
        more = {"cost/macs_per_token": macs + 1000 * seed, "eval/tokens_per_second": 5000.0, "eval/runtime": 3.0}
        run = {"git_commit": "abc123", "command": f"python -m adadepth seed={seed}", "parameters": 1000}
        groups = {"run": run | settings.get("run", {})}
        record(folder / f"{len(list(folder.glob('*')))}", seed, score=score, more=more, **{**settings, **groups})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of one model at two depths, and another family."""
    runs = tmp_path / "runs"
    record_method(runs, LOW, 2e6)
    record_method(runs, HIGH, 4e6, budget={"target": 5.0})
    record_method(runs, OTHER, 3e6, run={"parameters": 77}, **PONDER)
    return runs


def write_files(folder: Path) -> Path:
    write_paper(folder.parent / "paper", compare(find_runs(folder)), TITLES)
    return folder.parent / "paper"


def read_rows(folder: Path) -> list[dict[str, str]]:
    with (write_files(folder) / "table.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def check_latex(text: str) -> list[list[str]]:
    """Check braces, environments and columns of a table, and return the cells of its rows."""
    plain = re.sub(r"\\[&%$#_{}]|^%.*$", "", text, flags=re.M)
    depths = list(itertools.accumulate({"{": 1, "}": -1}.get(sign, 0) for sign in plain))
    assert min(depths) == 0 == depths[-1]
    assert plain.count("$") % 2 == 0
    opened = re.findall(r"\\(begin|end)\{(\w+)\}", text)
    assert opened == [("begin", "table"), ("begin", "tabular"), ("end", "tabular"), ("end", "table")]
    (form,) = re.findall(r"\\begin\{tabular\}\{(\w+)\}", text)
    rows = [line for line in text.splitlines() if line.endswith(r" \\")]
    cells = [re.split(r"(?<!\\)&", row) for row in rows if r"\multicolumn" not in row]
    assert {len(row) for row in cells} == {len(form)}
    assert all(int(width) == len(form) for width in re.findall(r"\\multicolumn\{(\d+)\}", text))
    return cells


# ---- rows


def test_rows_are_methods_over_seeds_with_mean_and_deviation(folder: Path) -> None:
    rows = {row["method"]: row for row in read_rows(folder)}
    assert list(rows) == ["ACT-ALBERT (target 2.5)", "ACT-ALBERT (target 5)", "PonderALBERT"]
    low = rows["ACT-ALBERT (target 2.5)"]
    assert float(low["score/mean"]) == pytest.approx(0.71)
    assert float(low["score/std"]) == pytest.approx(math.sqrt((0.01**2 + 0.01**2) / 2))
    assert (low["score/n"], low["metric"]) == ("3", "eval/score")
    assert float(low["cost/macs_per_token/mean"]) == pytest.approx(2_001_000)
    assert float(low["cost/ms_per_token/mean"]) == pytest.approx(0.2)


def test_matched_baselines_are_named_by_their_depth(folder: Path) -> None:
    record_method(folder, LOW, model={"fixed_depth": 2, "num_hidden_layers": 2}, rival_of="/runs/a")
    methods = {row["method"] for row in read_rows(folder)}
    assert methods == {
        "ACT-ALBERT (target 2.5)", "ACT-ALBERT (target 5)", "ACT-ALBERT, fixed depth 2", "PonderALBERT",
    }  # fmt: skip


def test_baselines_with_fewer_layers_have_depths_of_the_adaptive_network(tmp_path: Path) -> None:
    """Use a network of two layers with one exit: it counts one update, but it is fixed depth 2."""
    runs = tmp_path / "runs"
    command, rows = {"command": "python -m adadepth rival_of=a", "owner": "all"}, []
    for depth in (2, 3):
        model = {"name": "early_exit", "num_hidden_layers": depth}
        record(runs / f"part{depth}", 0, depth=1.0, score=0.1 * depth, model=model, rival_of="/runs/a", run=command)
        rows.append({"kind": "fixed depth", "run": f"/elsewhere/part{depth}", "depth": depth, "group": "all"})
    (runs / "all").mkdir()
    (runs / "all" / "rivals.json").write_text(json.dumps({"rows": rows}))
    write_paper(tmp_path / "paper", compare([read_run(runs / f"part{depth}") for depth in (2, 3)]), {"early_exit": "X"})
    with (tmp_path / "paper" / "table.csv").open(encoding="utf-8", newline="") as file:
        depths = {row["method"]: float(row["halting/all/mean/mean"]) for row in csv.DictReader(file)}
    assert depths == {"X, fixed depth 2": 2.0, "X, fixed depth 3": 3.0}
    text = (tmp_path / "paper" / "commands.txt").read_text()
    for depth in (2, 3):
        network = f"# the network with model.num_hidden_layers={depth}, of 2 that this command trains"
        assert f"X, fixed depth {depth}, seed 0, git commit not recorded\n{network}\npython -m adadepth" in text


def test_no_name_or_column_has_a_folder_or_a_runtime(folder: Path) -> None:
    record_method(folder, (0.5, 0.5), model={"pretrained": "/data/weights"})
    record_method(folder, (0.5, 0.5), model={"pretrained": "/data/others"})
    text = (write_files(folder) / "table.csv").read_text() + (folder.parent / "paper" / "table.tex").read_text()
    assert not re.search(r"/data|weights|others|runtime|per_second|outputs", text)


def test_data_sets_are_named_by_their_files_without_folders(tmp_path: Path) -> None:
    for path in ("/data/texts/one.txt", "/data/texts/two.txt"):
        record_method(tmp_path, (0.5, 0.5), dataset={"path": path})
    tables = build_method_tables(compare(find_runs(tmp_path)), TITLES)
    assert [table.data for table in tables] == ["hops, one.txt", "hops, two.txt"]


def test_data_sets_are_named_by_the_settings_that_differ(tmp_path: Path) -> None:
    for name, length in (("hops", 16), ("addition", 24)):
        record_method(tmp_path, LOW, dataset={"name": name, "sequence_length": length})
    tables = build_method_tables(compare(find_runs(tmp_path)), TITLES)
    assert {table.data for table in tables} == {"hops", "addition"}


def test_methods_on_different_settings_of_the_data_are_not_compared(tmp_path: Path) -> None:
    for nodes, scores in ((16, LOW), (24, HIGH)):
        record_method(tmp_path, scores, dataset={"nodes": nodes})
    tables = build_method_tables(compare(find_runs(tmp_path)), TITLES)
    assert [table.data for table in tables] == ["hops (nodes 16)", "hops (nodes 24)"]
    assert [(method.name, method.p) for table in tables for method in table.methods] == [("ACT-ALBERT", None)] * 2


def test_a_failed_seed_is_neither_counted_nor_listed(folder: Path) -> None:
    failed = {"final_metrics": None, "status": "failed", "command": "failed command"}
    record(folder / "failed", 7, run=failed, more={})
    assert read_rows(folder)[0]["score/n"] == "3"
    assert "failed command" not in (folder.parent / "paper" / "commands.txt").read_text()


@pytest.mark.parametrize("names", [("/nets/base", "/nets/large"), ("org/base", "org/large")])
def test_methods_are_named_by_their_pretrained_network_and_not_by_its_storage(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    for path, is_stored in zip(names, (True, False), strict=True):
        record_method(tmp_path, (0.5, 0.5), model={"pretrained": path, "save_base": is_stored})
    (table,) = build_method_tables(compare(find_runs(tmp_path)), TITLES)
    assert [method.name for method in table.methods] == [
        "ACT-ALBERT (pretrained base)",
        "ACT-ALBERT (pretrained large)",
    ]


def test_methods_with_equal_names_get_letters(tmp_path: Path) -> None:
    for path in ("/a/model", "/b/model"):
        record_method(tmp_path, (0.5, 0.5), model={"pretrained": path})
    (table,) = build_method_tables(compare(find_runs(tmp_path)), TITLES)
    assert [method.name for method in table.methods] == ["ACT-ALBERT A", "ACT-ALBERT B"]


def test_every_family_of_the_package_has_a_unique_title() -> None:
    titles = [family.title for name, family in families().items() if family.settings.__module__.startswith("adadepth.")]
    assert all(titles)
    assert len(set(titles)) == len(titles)


def test_a_score_is_named_by_its_metrics() -> None:
    assert name_metric("eval/score", {"dataset": {"metrics": ["exact_match", "f1"]}}) == "exact match and f1"
    assert name_metric("eval/mlm_loss", {"dataset": {}}) == "mlm loss"


# ---- significance


def correct_by_holm(p_values: dict[tuple[int, int], float]) -> dict[tuple[int, int], float]:
    ordered = sorted(p_values, key=lambda pair: p_values[pair])
    corrected = {}
    for rank, pair in enumerate(ordered):
        corrected[pair] = min(1.0, max((len(ordered) - rank) * p_values[pair], *[0.0, *corrected.values()]))
    return corrected


@pytest.mark.parametrize(
    ("scores", "is_decided"),
    [((LOW, HIGH, OTHER), False), ((LOW, HIGH, (0.60, 0.61, 0.62)), True), ((LOW, HIGH, (0.829, 0.83, 0.831)), False)],
)
def test_bold_is_significantly_better_than_all_others(
    tmp_path: Path, scores: tuple[tuple[float, ...], ...], is_decided: bool
) -> None:
    for number, values in enumerate(scores):
        record_method(tmp_path / "runs", values, budget={"target": float(number + 1)})
    rows = read_rows(tmp_path / "runs")

    def compute_welch(first: int, second: int) -> float:
        """Compute Welch's t with at most S - 1 degrees of freedom for each error, as scipy computes it."""
        return float(stats.ttest_ind(scores[first], scores[second], equal_var=False).pvalue)

    corrected = correct_by_holm({pair: compute_welch(*pair) for pair in itertools.combinations(range(3), 2)})
    for number, row in enumerate(rows):
        largest = max(p for pair, p in corrected.items() if number in pair)
        assert float(row["corrected_p"]) == pytest.approx(largest)
        leads = all(float(row["score/mean"]) >= float(other["score/mean"]) for other in rows)
        assert (row["best"] == "True") == (leads and largest < LEVEL)
    assert any(row["best"] == "True" for row in rows) == is_decided
    cells = check_latex((tmp_path / "paper" / "table.tex").read_text())
    assert [r"\textbf" in row[1] for row in cells[1:]] == [row["best"] == "True" for row in rows]


def test_a_difference_below_the_least_relevant_one_is_not_bold(tmp_path: Path) -> None:
    for number, values in enumerate([(0.5, 0.50001, 0.50002), (0.504, 0.50401, 0.50402)]):
        record_method(tmp_path / "runs", values, budget={"target": float(number + 1)})
    rows = read_rows(tmp_path / "runs")
    assert all(float(row["corrected_p"]) < LEVEL for row in rows)
    assert {row["best"] for row in rows} == {"False"}


def test_one_seed_is_never_bold_and_has_no_interval(tmp_path: Path) -> None:
    for number, score in enumerate((0.1, 0.9)):
        record_method(tmp_path / "runs", (score,), budget={"target": float(number + 1)})
    (table,) = build_method_tables(compare(find_runs(tmp_path / "runs")), TITLES)
    assert [(method.is_best, method.p, method.score.half_width) for method in table.methods] == [(False, 1.0, None)] * 2
    figure = draw_tradeoff([table])
    assert figure is not None
    assert figure.of == ""


def test_the_lowest_loss_is_best(tmp_path: Path) -> None:
    for target, loss in ((1.0, 2.0), (2.0, 1.0)):
        for seed in range(3):
            final = {"eval/mlm_loss": loss + 0.01 * seed}
            record(tmp_path / f"{target}_{seed}", seed, budget={"target": target}, run={"final_metrics": final})
    (table,) = build_method_tables(compare(find_runs(tmp_path)), TITLES)
    assert table.title == "mlm loss ↓"
    assert [method.is_best for method in table.methods] == [False, True]


# ---- data sets


def test_every_data_set_has_a_part_and_one_correction(folder: Path) -> None:
    record_method(folder, (0.2, 0.21, 0.22), dataset={"name": "maze_%"})
    record_method(folder, (0.3, 0.31, 0.32), dataset={"name": "maze_%"}, budget={"target": 5.0})
    tables = build_method_tables(compare(find_runs(folder)), TITLES)
    assert [(table.data, len(table.methods)) for table in tables] == [("hops", 3), ("maze_%", 2)]
    text = format_latex_table(tables)
    check_latex(text)
    assert text.count(r"\multicolumn{6}") == 2
    assert r"maze\_\%: score $\uparrow$" in text
    assert "4 comparisons" in text
    alone = float(stats.ttest_ind((0.2, 0.21, 0.22), (0.3, 0.31, 0.32), equal_var=False).pvalue)
    assert tables[1].methods[0].p is not None
    assert tables[1].methods[0].p > alone


def test_nothing_is_written_without_a_common_metric(tmp_path: Path) -> None:
    record(tmp_path / "runs" / "a", run={"final_metrics": None, "status": "failed"})
    assert write_paper(tmp_path / "paper", compare(find_runs(tmp_path / "runs")), TITLES) == []
    assert not (tmp_path / "paper").exists()


# ---- files


def test_latex_is_well_formed_with_label_and_caption(folder: Path) -> None:
    cells = check_latex((write_files(folder) / "table.tex").read_text())
    assert cells[0][0].strip() == "Method"
    assert "MACs per token (M)" in cells[0][3]
    text = (folder.parent / "paper" / "table.tex").read_text()
    assert r"\label{tab:methods}" in text
    assert re.search(r"\\caption\{.*n seeds.*Holm.*\}$", text, re.M)
    assert all(rule in text for rule in (r"\toprule", r"\midrule", r"\bottomrule"))


def test_the_evaluation_set_is_named_with_its_size(folder: Path, tmp_path: Path) -> None:
    """Read sizes from the record of the data and, for tokens, from the halting statistics."""
    assert "Quality, depth and compute on hops (inside, 4 tokens)." in (write_files(folder) / "table.tex").read_text()
    data = {"evaluation": {"inside": {"examples": 1512}, "beyond": {"examples": 7}}}
    runs = tmp_path / "more"
    record_method(runs, LOW, run={"data": data})
    row, text = read_rows(runs)[0], (write_files(runs) / "table.tex").read_text()
    assert (row["evaluation_set"], row["sequences"], row["tokens"]) == ("inside", "1512", "4")
    assert "on hops (inside, 1,512 sequences, 4 tokens)." in text
    assert "7" not in text.partition("on hops (")[2].partition(")")[0]


@pytest.mark.parametrize(
    ("evaluation", "unit", "expected"),
    [
        ({"blocks": 143, "tokens": 13511}, "token", ("inside", 143, 4)),  # a text without splits of its own
        ({"examples": 90, "examples_used": 60}, "token", ("inside", 60, 4)),
        ({"inside": {"examples": 4}}, "sequence", ("inside", 4, None)),
        ({}, "sequence", ("inside", 4, None)),
        ({}, "token", ("inside", None, 4)),
    ],
)
def test_the_size_of_an_evaluation_set_is_that_of_every_record(
    tmp_path: Path, evaluation: dict[str, Any], unit: str, expected: tuple[str, int | None, int | None]
) -> None:
    record(tmp_path / "run", unit=unit, run={"data": {"evaluation": evaluation}})
    assert find_evaluation_set(read_run(tmp_path / "run")) == expected


def test_parameters_are_a_column(folder: Path) -> None:
    record_method(folder, LOW, run={"parameters": 2_345_678}, budget={"target": 7.0})
    heading, *rows = check_latex((write_files(folder) / "table.tex").read_text())
    assert heading[-2].strip() == "Params"
    assert [row[-2].strip() for row in rows] == ["1k", "2.35M", "1k", "77"]
    assert [row["parameters"] for row in read_rows(folder)] == ["1000", "2345678", "1000", "77"]


def test_degrees_of_freedom_are_those_of_the_deciding_test(folder: Path) -> None:
    """Compare with scipy's Welch test; the deciding test of a method is the one with the largest p."""
    scores = (LOW, HIGH, OTHER)
    tests = {
        pair: stats.ttest_ind(scores[pair[0]], scores[pair[1]], equal_var=False)
        for pair in itertools.combinations(range(3), 2)
    }
    expected = []
    for number in range(3):
        deciding = max((test for pair, test in tests.items() if number in pair), key=lambda test: float(test.pvalue))
        expected.append(float(deciding.df))
    rows = read_rows(folder)
    assert [float(row["degrees_of_freedom"]) for row in rows] == pytest.approx(expected)
    text = (folder.parent / "paper" / "table.tex").read_text()
    assert f"Welch's t-test with {min(expected):.1f} to {max(expected):.1f} degrees of freedom" in text


def test_signs_of_latex_are_escaped(tmp_path: Path) -> None:
    record_method(tmp_path / "runs", (0.5, 0.6), dataset={"name": "50%_of_{a}&b"}, model={"note": "x_1#2"})
    record_method(tmp_path / "runs", (0.5, 0.6), dataset={"name": "50%_of_{a}&b"}, model={"note": "y^~\\"})
    check_latex((write_files(tmp_path / "runs") / "table.tex").read_text())


def test_times_of_separate_runs_are_in_the_csv_alone(folder: Path) -> None:
    assert "ime" not in (write_files(folder) / "table.tex").read_text()
    add_exit_files(folder / "0")
    remarks = [row["cost/ms_per_token/remark"] for row in read_rows(folder)]
    assert all("at another moment" in remark for remark in remarks)
    assert ["time of full depth" in remark for remark in remarks] == [True, False, False]


def count_predictions(run: Path, macs: float, often: float) -> None:
    """Record the compute of four tokens, and predictions of 1e6 multiply-accumulates each."""
    halting = json.loads((run / "halting.json").read_text())
    halting["cost"] |= {"adaptive_macs": 4 * macs, "macs_per_token": macs}
    halting |= {"prediction_macs": 1e6, "predictions_per_unit": often}
    (run / "halting.json").write_text(json.dumps(halting))


def test_macs_have_the_predictions_that_an_exit_rule_reads(tmp_path: Path) -> None:
    for number, often in enumerate((1.0, 2.5)):
        record_method(tmp_path / "runs", (0.5,), 4e6, budget={"target": float(number)})
        count_predictions(tmp_path / "runs" / str(number), 4e6, often)
    rows = read_rows(tmp_path / "runs")
    text = (tmp_path / "paper" / "table.tex").read_text()
    assert [float(row["cost/macs_per_token_with_predictions/mean"]) for row in rows] == [5e6, 6.5e6]
    assert [float(row["cost/macs_per_token/mean"]) for row in rows] == [4e6, 4e6]
    assert [row[3].strip() for row in check_latex(text)] == ["MACs per token (M)", "5.00", "6.50"]
    assert "without padding, with predictions: one after every update if the exit rule reads predictions" in text
    figure = draw_tradeoff(build_method_tables(compare(find_runs(tmp_path / "runs")), TITLES))
    assert figure is not None
    assert figure.of == "compute with predictions"
    assert [dot.x for _, (dot,) in figure.panels[0].mark.groups] == [5.0, 6.5]


def test_macs_are_without_predictions_if_a_method_did_not_record_them(tmp_path: Path) -> None:
    for number in range(2):
        record_method(tmp_path / "runs", (0.5,), 4e6, budget={"target": float(number)})
    count_predictions(tmp_path / "runs" / "0", 4e6, 2.0)
    rows = read_rows(tmp_path / "runs")
    assert [float(row["cost/macs_per_token/mean"]) for row in rows] == [4e6, 4e6]
    assert "without padding or predictions." in (tmp_path / "paper" / "table.tex").read_text()


@pytest.mark.parametrize(("steps", "is_named"), [(48, False), (10, True)])
def test_the_caption_names_different_numbers_of_steps(tmp_path: Path, steps: int, is_named: bool) -> None:
    record_method(tmp_path / "runs", LOW, run={"steps": {"done": 48, "planned": 200}})
    baseline: dict[str, Any] = {"model": {"fixed_depth": 2}, "rival_of": "/runs/a"}
    record_method(tmp_path / "runs", HIGH, run={"steps": {"done": steps, "planned": 10}}, **baseline)
    sentence = "different numbers of steps: ACT-ALBERT: 48; ACT-ALBERT, fixed depth 2: 10."
    assert (sentence in (write_files(tmp_path / "runs") / "table.tex").read_text()) == is_named


def test_commands_and_commits_of_every_run_are_listed(folder: Path) -> None:
    text = (write_files(folder) / "commands.txt").read_text()
    assert text.count("\npython -m adadepth seed=") == 9
    assert text.count("git commit abc123\n") == 9
    assert "# hops, ACT-ALBERT (target 5), seed 2, git commit abc123\npython -m adadepth seed=2\n" in text


def test_a_command_with_several_seeds_is_listed_once(tmp_path: Path) -> None:
    record_method(tmp_path / "runs", LOW, run={"command": "python -m adadepth seeds=3"})
    text = (write_files(tmp_path / "runs") / "commands.txt").read_text()
    assert text == "# hops, ACT-ALBERT, seeds 0, 1, 2, git commit abc123\npython -m adadepth seeds=3\n"


def test_the_figure_has_intervals_over_seeds_and_joins_one_model(folder: Path) -> None:
    tables = build_method_tables(compare(find_runs(folder)), TITLES)
    figure = draw_tradeoff(tables)
    assert figure is not None
    mark = figure.panels[0].mark
    assert isinstance(mark, Scatter)
    dots = [dot for _, (dot,) in mark.groups]
    low, high = stats.t.interval(0.95, 2, loc=0.71, scale=0.01 / math.sqrt(3))
    assert (dots[0].y - dots[0].spread_y, dots[0].y + dots[0].spread_y) == (pytest.approx(low), pytest.approx(high))
    assert mark.lines == [[(dots[0].x, dots[0].y), (dots[1].x, dots[1].y)]], "the other family is another model"
    assert dots[0].x == pytest.approx(2.001)


def test_no_line_joins_a_model_and_its_matched_baselines(tmp_path: Path) -> None:
    record_method(tmp_path, HIGH, 3e6)
    for depth, macs in ((2, 2e6), (3, 4e6)):
        record_method(tmp_path, LOW, macs, model={"fixed_depth": depth}, rival_of="/runs/a")
    figure = draw_tradeoff(build_method_tables(compare(find_runs(tmp_path)), TITLES))
    assert figure is not None
    mark = figure.panels[0].mark
    assert isinstance(mark, Scatter)
    assert [[x for x, _ in line] for line in mark.lines] == [[pytest.approx(2.001), pytest.approx(4.001)]]


def test_the_figure_fits_a_column_with_readable_letters_and_embedded_fonts(folder: Path) -> None:
    paper = write_files(folder)
    root = ElementTree.parse(paper / "figure.svg").getroot()
    points = 12.0 * 3.3 * 72 / float(root.attrib["width"])  # of letters in a column of 3.3 inches
    assert points > 7
    pdf = (paper / "figure.pdf").read_bytes()
    assert b"/FontFile" in pdf
    assert len(set(re.findall(rb"/FontName/(\S+?)[/\s]", pdf))) == pdf.count(b"/FontFile3") + pdf.count(b"/FontFile2")
    assert 0.005 < find_inked_pixels(paper / "figure.png").mean() < 0.5
    names = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"ACT-ALBERT (target 2.5)", "PonderALBERT", "MACs per token (M)"} <= {
        str(name).partition(" · ")[0] for name in names
    }


def test_no_figure_is_drawn_without_common_compute(tmp_path: Path) -> None:
    record(tmp_path / "runs" / "a")
    paths = write_paper(tmp_path / "paper", compare(find_runs(tmp_path / "runs")), TITLES)
    assert [path.name for path in paths] == ["table.csv", "table.tex", "commands.txt"]
