"""Table of the first minutes: which commands it runs, what it reads of their runs, and what it does not repeat."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.configs.support import CONFIGS, configured
from tests.marks_support import mark_mostly_slow
from tests.scripts_support import ROOT, load_script

# Quick: two of the defaults lists that others inherit from.
EXTENDED = ("act_hops", "par_tiny")
NAMES = (
    "act_tiny", "act_small", "act_base", "act_hops", "act_addition", "act_maze", "ponder_tiny", "ponder_hops",
    "ponder_parity", "adalayers_tiny", "par_tiny", "trm_tiny", "loop_tiny", "loop_hops", "loop_mano", "loop_trace",
    "exit_hops", "exit_bigram", "exit_tiny",
)  # fmt: skip


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load_script("benchmarks/first_minutes.py", monkeypatch)


def test_every_configuration_without_a_download_is_run(script: ModuleType) -> None:
    assert sorted(script.CONFIGURATIONS) == sorted(NAMES)
    assert all((CONFIGS / f"{name}.yaml").is_file() for name in NAMES)


@pytest.mark.parametrize("name", mark_mostly_slow(NAMES, lambda name: name in EXTENDED))
def test_every_configuration_has_a_matched_baseline_that_can_be_left_out(name: str) -> None:
    assert configured(name).matched_baseline
    assert not configured(name, "baseline=none").matched_baseline
    assert not configured(name, "baseline=none").bag_of_words
    assert not configured(name, "debug=default").matched_baseline


def write_run(output: Path, name: str, *, worth: str, score: float) -> None:
    """Write the files of a finished run of a tagger."""
    folder = output / name / "2026-01-01"
    folder.mkdir(parents=True)
    figures = {"gain_over_fixed_step/inside": 0.1, "gain_over_random_depths/inside": 0.2, "gain_over_unigram": 1.0}
    verdict: dict[str, Any] = {
        "adapts": {"answer": "yes", "sentences": [], "figures": {}},
        "worth": {"answer": worth, "sentences": [], "figures": figures},
    }
    record = {"status": "finished", "verdict": verdict, "final_metrics": {"eval/score": score, "eval/loss": 1.0}}
    halting = {"unit": "token", "max_depth": 8, "classes": {"all": {"n": 9, "mean": 3.126, "std": 1.0}}}
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "halting.json").write_text(json.dumps(halting))


def test_finished_runs_are_not_repeated_and_fill_the_table(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands: list[list[str]] = []

    def call(command: list[str], **options: Any) -> int:
        commands.append(command)
        if command[-2] == "seed=1" and len(commands) == 2:
            return 1  # fails the first time
        assert options["env"]["OMP_NUM_THREADS"] == "1"
        output = Path(command[-1].removeprefix("output_dir="))
        write_run(
            output,
            command[3],
            worth="yes" if command[-2] == "seed=0" else "partly",
            score=0.75 if command[-2] == "seed=0" else 0.5,
        )
        return 0

    page = tmp_path / "page.md"
    page.write_text(f"before\n{script.BEGIN}\nold\n{script.END}\nafter\n")
    arguments = ["first_minutes.py", "--folder", str(tmp_path), "--only", "act_hops", "--seeds", "0", "1"]
    monkeypatch.setattr(script.subprocess, "call", call)
    monkeypatch.setattr("sys.argv", [*arguments, "--page", str(page)])
    with pytest.raises(SystemExit, match="act_hops seed 1: failed with status 1"):
        script.main()
    script.main()
    assert [command[1:5] for command in commands] == [
        ["adadepth/run.py", "--config-name", "act_hops", f"seed={seed}"] for seed in (0, 1, 1)
    ]
    written = page.read_text()
    (row,) = [line for line in written.splitlines() if line.startswith("| `act_hops`")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[2:] == [
        "yes, yes", "yes, in part", "3.1 of 8", "0.500 to 0.750 score", script.UNKNOWN,
    ]  # fmt: skip
    assert row in capsys.readouterr().out
    assert written.startswith(f"before\n{script.BEGIN}\n\n| ")
    assert written.endswith(f"|\n\n{script.END}\nafter\n")


def test_configurations_without_a_shown_gain_are_in_a_table_of_their_own(script: ModuleType) -> None:
    row = {"minutes": [1.0] * 5, "adapts": ["yes"] * 5, "depth": [[3.0, "of 8"]], "quality": [[0.5, "score"]]}
    row["compared"] = ["one fixed depth"]
    rows = [{**row, "name": "act_hops", "worth": ["yes"] * 4 + ["in part"]}]
    rows += [{**row, "name": "loop_mano", "worth": ["yes"] * 3 + ["not shown"] * 2}]
    first, heading, second = script.format_tables(rows).split("\n\n")
    assert "`act_hops`" in first
    assert "`loop_mano`" not in first
    assert heading == "**What does not work**"
    assert "`loop_mano`" in second
    assert script.REASONS["loop_mano"] in second


def test_every_reason_is_that_of_a_configuration(script: ModuleType) -> None:
    assert set(script.REASONS) <= set(script.CONFIGURATIONS)


def test_results_on_the_page_stay_beside_those_of_other_runs(script: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "page.json"
    script.merge_results(file, {("act_hops", 0): {"worth": "no"}, ("act_maze", 10): {"worth": "yes"}})
    merged = script.merge_results(file, {("act_hops", 0): {"worth": "yes"}})
    assert merged == {("act_hops", 0): {"worth": "yes"}, ("act_maze", 10): {"worth": "yes"}}
    assert json.loads(file.read_text()) == {"act_hops.0": {"worth": "yes"}, "act_maze.10": {"worth": "yes"}}


@pytest.mark.slow  # the whole commands of the quickest configurations
@pytest.mark.parametrize("name", ["act_addition", "ponder_hops", "adalayers_tiny"])
def test_the_quickest_commands_answer_both_questions(script: ModuleType, name: str, tmp_path: Path) -> None:
    assert script.run_cell(tmp_path, name, 0, 1) is None, (tmp_path / f"{name}.0.log").read_text()
    (row,) = script.summarise({(name, 0): script.read_result(tmp_path, name, 0)})
    assert script.UNKNOWN not in [*row["adapts"], *row["worth"]]
    assert row["compared"]


def test_the_table_on_the_page_is_that_of_the_stored_results(script: ModuleType, tmp_path: Path) -> None:
    file = shutil.copy(ROOT / "docs" / "first_minutes.json", tmp_path)
    results = script.merge_results(Path(file), {})
    table = script.format_tables(list(script.summarise(results)))
    assert table in (ROOT / "docs" / "first_minutes.md").read_text(encoding="utf-8")


def test_the_page_has_the_markers_of_the_table(script: ModuleType) -> None:
    text = (ROOT / "docs" / "first_minutes.md").read_text(encoding="utf-8")
    assert text.index(script.BEGIN) < text.index(script.END)
