"""Last screen of a run, which fits a terminal of 24 lines and 80 columns."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path
from typing import Any

import pytest

from adadepth.models.albert_act.report import reference_depth
from adadepth.report.baseline_comparison import QUESTIONS, Finding
from adadepth.report.console_summary import (
    format_command_lines,
    format_result,
    format_screen,
    format_table_lines,
    format_verdict_lines,
)
from adadepth.report.run_files import EXITS, RIVALS, SEEDS, RunFiles, read_run
from adadepth.report.verdict import verdict
from tests.marks_support import keep_one_quick
from tests.unit.report.recorded import record
from tests.unit.report.synthetic import make_run
from tests.unit.report.synthetic_architectures import make_fixed_run, make_search_run
from tests.unit.report.synthetic_exits import add_halting_files
from tests.unit.report.synthetic_layers import make_layer_run

COMMAND = ["python", "adadepth/run.py", "--config-name", "act_tiny", "mode=evaluate", "checkpoint=latest", "a=[b,c]"]
REPORT = Path("outputs/act_tiny/2026-11-25_17-15-21_b1c414c3-78b7/report.html")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("run"), max_updates=6, evaluations=2)


def format_lines(files: RunFiles, **options: Any) -> list[str]:
    screen = format_screen(files, verdict(files), report=REPORT, commands=[COMMAND] * 3, **options).splitlines()
    assert len(screen) <= 24
    assert max(map(len, screen)) <= 80
    return screen


def add_rivals(files: RunFiles, *accuracies: float) -> RunFiles:
    """Return files of a run that was right in 60 % of 10,000 cases, beside networks of one depth."""
    everyone = {**files.halting["classes"]["all"], "accuracy": 0.6, "accuracy_error": 0.005}
    halting = {**files.halting, "classes": {**files.halting["classes"], "all": everyone}}
    rows = [{"metrics": {"eval/score": accuracy}, "max_depth": 3} for accuracy in (0.6, *accuracies)]
    return dataclasses.replace(files, halting=halting, others={RIVALS: {"rows": rows}})


def test_an_interrupted_run_names_the_evaluation_of_its_figures(run: Path) -> None:
    files = read_run(run)
    files = dataclasses.replace(files, run={**files.run, "status": "interrupted"})
    step = files.halting["step"]
    assert format_lines(files)[0] == f"Interrupted: these are the figures of the evaluation at step {step:,}."


@pytest.mark.parametrize(("reason", "done", "end"), [
    ("time budget spent", 44, ", ended early: time budget spent at step 44 of 100"),
    ("time budget spent", 100, ""),
    (None, 44, ""),
])  # fmt: skip
def test_the_result_of_a_cut_training_has_a_remark(reason: str | None, done: int, end: str, run: Path) -> None:
    files = read_run(run)
    metrics = {"halting/all/mean": 2.994, "cost/adaptive_over_full": 0.5}
    record = {
        "config_name": "act_tiny", "seed": 3, "final_metrics": metrics, "stopped_because": reason,
        "steps": {"done": done, "planned": 100},
    }  # fmt: skip
    assert format_result(dataclasses.replace(files, run=record), REPORT).splitlines() == [
        f"act_tiny, seed 3: mean depth 2.99, compute 50% of full depth{end}", f"report: {REPORT}",
    ]  # fmt: skip


def test_the_result_of_several_seeds_is_called_their_mean(run: Path) -> None:
    record = {"config_name": "cmp_exit", "seed": 0, "final_metrics": {"eval/score": 0.689}}
    files = dataclasses.replace(
        read_run(run), run=record, config={"optimise": "eval/score"}, others={SEEDS: {"seeds": [0, 1], "n": 2}}
    )
    assert format_result(files, REPORT).splitlines()[0] == "cmp_exit, 2 seeds (mean): eval/score 0.6890"


def test_a_quiet_result_counts_predictions_at_exits_as_the_verdict_does(run: Path) -> None:
    """Count 100 for full depth and 50 for a prediction: (30 + 2 * 50) / 150 with one after each of two updates."""
    files = read_run(run)
    cost = {"adaptive_macs": 300.0, "adaptive_over_full": 0.3}
    halting = {**files.halting, "n": 10, "cost": cost, "prediction_macs": 50.0, "predictions_per_unit": 2.0}
    record = {"config_name": "act_tiny", "seed": 3, "final_metrics": {"cost/adaptive_over_full": 0.3}}
    (line, _) = format_result(dataclasses.replace(files, run=record, halting=halting), REPORT).splitlines()
    assert line == "act_tiny, seed 3: compute 87% of full depth (30% without predictions)"


@pytest.mark.parametrize(("selected", "line"), [
    ({"step": 400, "metric": "eval/loss", "value": 6.68204, "extreme": "lowest"},
     "model: step 400 of 1,000, which has the lowest eval/loss, 6.6820"),
    (None, "model: the last step, 1,000"),
])  # fmt: skip
def test_the_screen_names_the_selected_step_and_its_reason(selected: Any, line: str, run: Path) -> None:
    files = read_run(run)
    record = {**files.run, "steps": {"done": 1000, "planned": 1000}, "selected": selected}
    screen = format_lines(dataclasses.replace(files, run=record))
    assert screen[screen.index(f"report: {REPORT}") - 1] == line


def test_verdict_table_report_and_commands_have_this_order(run: Path) -> None:
    files = read_run(run)
    screen = format_lines(files)
    everyone = files.halting["classes"]["all"]
    assert screen[0].startswith(f"Does depth adapt? Yes: {everyone['mean']:.2f} +- {everyone['std']:.2f} of 6 updates")
    heading = next(index for index, line in enumerate(screen) if line.startswith("class "))
    cells = screen[heading + 1].split()
    assert screen[heading].endswith("depths 1...6")
    assert cells[:3] == ["all", f"{everyone['n']:,}", f"{everyone['mean']:.2f}"]
    assert screen[-8:-6] == [f"report: {REPORT}", "next:"]


@pytest.mark.parametrize(
    "make", keep_one_quick(2, [make_layer_run, make_search_run, make_fixed_run, lambda path: make_run(path, 24, 2)])
)
def test_every_kind_of_table_fits(make: Any, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    files = read_run(make(directory) or directory)
    assert len(format_lines(files)) > 12
    assert 2 <= len(format_table_lines(files, 10)) <= 11


def test_the_hard_and_the_large_of_many_classes_are_shown(tmp_path: Path) -> None:
    depths = {f"difficulty {level}": 2.0 for level in range(4)} | {f"label: {'long ' * 9}{at}": 1.0 for at in range(20)}
    files = read_run(record(tmp_path / "run", classes=depths))
    lines = format_table_lines(files, 6)
    assert lines[0].startswith("class (6 of 25)")
    assert [line.split("  ")[0] for line in lines[1:6]] == ["all", *(f"difficulty {level}" for level in range(4))]
    assert len(lines) == 7
    format_lines(files)


def test_both_ends_of_many_difficulties_are_shown(tmp_path: Path) -> None:
    depths = {"correct": 2.0} | {f"difficulty {level}": float(level) for level in range(1, 9)}
    files = read_run(record(tmp_path / "run", classes=depths))
    lines = format_table_lines(files, 5)
    assert lines[0].startswith("class (4 of 10)")
    assert [line.split("  ")[0] for line in lines[1:]] == [
        "all", "difficulty 1", "difficulty 2", "... 5 more difficulties, in the report", "difficulty 8",
    ]  # fmt: skip


def test_columns_with_one_value_become_a_remark(tmp_path: Path) -> None:
    path = record(tmp_path / "run", classes={"correct": 2.0, "label: a": 1.0})
    files = read_run(path)
    classes = {name: {**row, "at_cap": 0.0, "accuracy": 1.0} for name, row in files.halting["classes"].items()}
    lines = format_table_lines(dataclasses.replace(files, halting={**files.halting, "classes": classes}), 6)
    assert "accuracy" not in lines[0]
    assert "at max" not in lines[0]
    assert lines[-1] == "every row: accuracy 100.0%"
    rows = [{**row, "accuracy": 0.5} if name == "all" else row for name, row in classes.items()]
    classes = dict(zip(classes, rows, strict=True))
    lines = format_table_lines(dataclasses.replace(files, halting={**files.halting, "classes": classes}), 6)
    assert "accuracy" in lines[0]


def test_long_answers_displace_the_last_commands(run: Path) -> None:
    files, brief = read_run(run), " ".join(["many words"] * 70)
    findings = {**verdict(files), "worth": Finding("yes", [], {}, brief)}
    screen = format_screen(files, findings, report=REPORT, commands=[COMMAND] * 3).splitlines()
    assert len(screen) <= 24
    assert 1 <= sum(line.startswith("  python") for line in screen) < 3


def test_sentences_of_the_verdict_are_complete() -> None:
    brief = " ".join(["many words"] * 40)
    lines = format_verdict_lines({"worth": Finding("yes", [], {}, brief)})
    assert " ".join(" ".join(lines).split()) == f"{QUESTIONS['worth']} Yes: {brief}."
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("accuracies", "answer", "figures", "wins"),
    [((0.5,), "yes", "0.500 of the matched baseline trained at fixed depth 3, better by 0.100", ""),
     ((0.7, 0.5), "no", "0.700 of the matched baseline trained at fixed depth 3, worse by 0.100",
      "better than the matched baseline trained at fixed depth 3, worse than the matched baseline"),
     ((0.7,) * 30, "no", "0.700 of the matched baseline trained at fixed depth 3, worse by 0.100",
      "better than 0 of 30 baselines")],
)  # fmt: skip
def test_the_deciding_comparison_is_shown(
    run: Path, accuracies: tuple[float, ...], answer: str, figures: str, wins: str
) -> None:
    files = add_rivals(read_run(run), *accuracies)
    finding = verdict(files)["worth"]
    assert finding.answer == answer
    assert f"score 0.600 against {figures} (95 % interval" in finding.brief
    assert wins in finding.brief
    assert finding.brief.endswith("one seed")
    format_lines(files)


@pytest.mark.parametrize("words", [
    COMMAND,
    ["python", "text=\"it's $HOME, let alone * 'two'\"", *["model.a_long_key=1"] * 9, "output_dir=" + 90 * "x"],
])  # fmt: skip
def test_a_shell_parses_a_printed_command(words: list[str]) -> None:
    lines = format_command_lines(words)
    assert all(len(line) <= 80 or len(line.split()) <= 2 for line in lines)
    arguments = "\n".join([lines[0].replace(" python", "printf '%s\\n' python", 1), *lines[1:]])
    assert subprocess.run(["bash", "-c", arguments], capture_output=True, text=True).stdout.splitlines() == words


def test_exits_come_first_without_an_exit_rule(tmp_path: Path) -> None:
    files = read_run(add_halting_files(make_run(tmp_path, 6, 1)))
    everyone = {**files.halting["classes"]["all"], "mean": 6.0, "std": 0.0, "entropy": 0.0}
    halting = {**files.halting, "classes": {"all": everyone}, "adaptation": {}}
    steps = [{"step": step, "share": float(step == 6), "loss": 4.0 - step / 4} for step in range(1, 7)]
    exits = {"sets": {"held_out": {"n": 9, "max_steps": 6, "problem": "language_model", "exit": {}, "steps": steps}}}
    config = {**files.config, "model": {"exit_rule": None}}
    screen = format_lines(dataclasses.replace(files, halting=halting, config=config, others={EXITS: exits}))
    assert screen[0].split() == ["exit", "(of", "6)", "updates", "exit", "here", "loss", "perplexity"]
    assert screen[2].split() == ["2", "33.3%", "0.0%", "3.500", "33.12"]
    assert screen[8].startswith("Does depth adapt? No")
    record = {**files.run, "status": "interrupted"}
    files = dataclasses.replace(files, run=record, halting=halting, config=config, others={EXITS: exits})
    assert format_lines(files)[0].startswith("Interrupted: ")


def test_exits_of_running_text_come_first_with_their_compute(tmp_path: Path) -> None:
    """Show exits of running text, which has no classes, as its result also where depths differ."""
    files = read_run(add_halting_files(make_run(tmp_path, 2, 1)))
    halting = {**files.halting, "classes": {"all": files.halting["classes"]["all"]}}
    assert halting["classes"]["all"]["std"] > 0
    steps = [
        {"step": 1, "share": 0.7, "compute": 0.22, "loss": 4.0},
        {"step": 2, "share": 0.3, "compute": 1.0, "loss": 3.5},
    ]
    exits = {"sets": {"held_out": {"n": 9, "max_steps": 2, "problem": "language_model", "exit": {}, "steps": steps}}}
    screen = format_lines(dataclasses.replace(files, halting=halting, others={EXITS: exits}))
    assert screen[0].split() == ["exit", "(of", "2)", "compute", "exit", "here", "loss", "perplexity"]
    assert screen[1].split() == ["1", "22.0%", "70.0%", "4.000", "54.60"]


def test_a_column_without_values_is_left_out(tmp_path: Path) -> None:
    files = read_run(record(tmp_path / "run"))
    assert format_table_lines(files, 6)[0].split() == ["class", "n", "mean", "sd", "p10", "p90", "depths", "1...3"]


def test_rows_of_a_supernet_are_complete(tmp_path: Path) -> None:
    make_search_run(tmp_path)
    head, *rows = format_table_lines(read_run(tmp_path), 9)
    assert head.endswith("entropy (nats)")
    assert all(row[-1].isdigit() for row in rows)


def test_headings_of_a_fixed_architecture_are_complete(tmp_path: Path) -> None:
    files = read_run(make_fixed_run(tmp_path))
    qualities = {"loss": 7.786, "perplexity": 2406.648, "word_perplexity": 237647.0024, "bits_per_character": 3.1971}
    halting = {**files.halting, "evaluations": {"network": qualities}}
    head = format_table_lines(dataclasses.replace(files, halting=halting), 9)[0]
    assert head.endswith(("perplexity per word", "bits per character"))


# README of the source: [all, unmasked, MASK/MASK, MASK/original, CLS, SEP] of tiny, small, base.
PUBLISHED = {
    6: [3.8, 3.5, 5.8, 4.0, 6.0, 2.5],
    12: [7.1, 6.5, 10.9, 7.4, 12.0, 7.6],
    24: [10.0, 9.2, 16.0, 10.5, 22.5, 8.4],
}


@pytest.mark.parametrize("most", keep_one_quick(3, PUBLISHED))
def test_published_depths_stand_beside_those_of_a_run(most: int, tmp_path: Path) -> None:
    files = read_run(make_run(tmp_path, most, 2))
    config = {
        "task": "pretrain",
        "model": {"hidden_size": 128, "act_penalty": 0.0},
        "dataset": {"name": "python_docs", "sentence_order": False},
        "trainer": {"max_steps": 1600, "per_device_train_batch_size": 16, "gradient_accumulation_steps": 2},
        "budget": {"target": 3.8},
    }
    files = dataclasses.replace(files, config=config)
    reference = reference_depth(files)
    assert reference is not None
    screen = format_lines(files, reference=reference)
    begin = next(index for index, line in enumerate(screen) if line.startswith("class "))
    rows = screen[begin + 1 : screen.index("", begin)]
    at = screen[begin].index("paper")
    names = ("all", "unmasked", "mask/mask", "mask/original", "cls", "sep")
    column = {line.split()[0]: line[at : at + 5].strip() for line in rows}
    assert [float(column[name]) for name in names] == PUBLISHED[most]
    for phrase in (
        "width 128 (768)",
        "other text (python_docs)",
        "1,600 steps of 32",
        "no sentence pairs",
        "a depth budget",
    ):
        assert phrase in reference.remark
    assert reference_depth(dataclasses.replace(files, config={**config, "task": "finetune"})) is None


def test_no_published_depths_exist_for_another_cap(tmp_path: Path) -> None:
    files = dataclasses.replace(read_run(make_run(tmp_path, 8, 2)), config={"task": "pretrain"})
    assert reference_depth(files) is None
