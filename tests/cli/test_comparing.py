"""The comparison `mode=report runs=[...]`, and the page that a sweep ends with."""

from __future__ import annotations

import csv
import json
import re
import shlex
from pathlib import Path

import pytest

import adadepth.tasks
from adadepth.config import ExperimentConfig
from adadepth.errors import DataError
from adadepth.runs.directory import open_run, run_directory
from tests.cli.support import Command, Result
from tests.marks_support import keep_one_quick
from tests.unit.report.recorded import record

GRID = ["--config-name", "act_tiny", "budget=none", "-m", "model.act_penalty=1e-3,2e-3"]


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> set[float]:
    """Replace trainings by instant ones; those with some penalties fail before they have a folder, or in it."""
    failing: set[float] = set()

    def run(config: ExperimentConfig) -> float:
        penalty: float = config.model.act_penalty  # type: ignore[attr-defined]
        if penalty in failing:
            raise DataError("no data")
        directory = run_directory(config)
        with open_run(config, directory) as opened:
            if -penalty in failing:
                raise DataError("the loss is not finite")
            (directory / "metrics.jsonl").write_text('{"step": 1, "eval/loss": 2.0}\n')
            final = {"eval/loss": 2.0, "eval/mlm_loss": 1 + penalty}
            opened.update(final_metrics=final)
        return final[config.optimise]

    monkeypatch.setattr(adadepth.tasks, "run", run, raising=False)
    return failing


def read_page(result: Result) -> str:
    """Return the one page whose path a command printed."""
    (path,) = re.findall(r"^comparison: (outputs/comparisons/[\d_-]+_[0-9a-f]{8}/report.html)$", result.out, re.M)
    return Path(path).read_text(encoding="utf-8")


def test_a_grid_of_two_jobs_ends_with_one_page(command: Command, trainings: set[float]) -> None:
    command("--config-name", "act_tiny").checked()  # no part of the sweep
    result = command(*GRID).checked()
    page = read_page(result)
    assert "act_penalty=0.001" in page
    assert "act_penalty=0.002" in page
    assert "n = 2 runs" in page
    records = [json.loads(path.read_text()) for path in Path("outputs/act_tiny").glob("*/run.json")]
    assert sorted(record["sweep"] is None for record in records) == [False, False, True]
    assert len({record["sweep"] for record in records}) == 2


@pytest.mark.parametrize(("failing", "why"), [(2e-3, "no data"), (-2e-3, "the loss is not finite")])
def test_a_failed_job_is_named_once(command: Command, trainings: set[float], failing: float, why: str) -> None:
    trainings.add(failing)
    result = command(*GRID)
    assert result.status == 2
    assert read_page(result).count(f"DataError: {why}") == 1


@pytest.mark.slow
def test_two_jobs_that_fail_alike_are_both_named(command: Command, trainings: set[float]) -> None:
    trainings |= {2e-3, 3e-3}
    page = read_page(command("--config-name", "act_tiny", "budget=none", "-m", "model.act_penalty=1e-3,2e-3,3e-3"))
    assert re.findall(r"act_penalty=([\d.]+): failed; DataError: no data", page) == ["0.002", "0.003"]


@pytest.mark.slow
def test_a_sweep_of_failed_jobs_has_no_page(command: Command, trainings: set[float]) -> None:
    trainings |= {1e-3, 2e-3}
    result = command(*GRID)
    assert result.status == 2
    assert "comparison:" not in result.out
    assert not Path("outputs").exists()


@pytest.mark.slow
def test_a_continued_search_shows_earlier_trials(command: Command, trainings: set[float]) -> None:
    pytest.importorskip("optuna")
    for trials in (1, 3):
        result = command(
            "--config-name", "act_tiny", "sweep=optuna_penalty", f"hydra.sweeper.n_trials={trials}"
        ).checked()
        assert f"n = {trials} run" in read_page(result)


def test_runs_are_put_side_by_side(command: Command) -> None:
    for seed in (0, 1):
        record(Path(f"all/run_{seed}"), seed)
    other = record(Path("other"), budget={"target": 7.0})
    result = command("mode=report", f"runs=[all,{other}]").checked()
    assert "n = 3 runs of 2 settings" in read_page(result)
    (paper,) = Path("outputs/comparisons").glob("*/paper")
    assert f"paper: {paper} (table.csv, table.tex, commands.txt)" in result.out, "these runs have no MACs of a token"
    assert r"ACT-ALBERT (target 7) & 0.500" in (paper / "table.tex").read_text()
    assert sorted(path.name for path in Path("all/run_0").iterdir()) == [
        "config.yaml", "halting.json", "metrics.jsonl", "run.json",
    ]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), keep_one_quick(2, [
    (["mode=report", "runs=[al]"], "runs: folder not found: al (did you mean 'all'?)"),
    (["mode=report", "runs=[all/run_1]"], "runs: folder not found: all/run_1 (did you mean 'all/run_0'?)"),
    (["mode=report", "runs=[empty]"], "runs: no run found in empty"),
    (["mode=report", "runs=[broken]"], "runs=['broken']: no runs to compare: broken: excluded, run.json is damaged ("),
    (["mode=report", "runs=[all]", "run=all/run_0"], "runs=['all']: only used without run=all/run_0"),
    (["runs=[all]"], "runs=['all']: only used"),
    (["--config-name", "act_tiny", "mode=report", "runs=[latest]"], "latest: no run with run.json "
                                                                    "found in outputs/act_tiny"),
    (["mode=report", "runs=[latest]"], "latest: means the newest run of a configuration; give the configuration with "
                                       "--config-name"),
]))  # fmt: skip
def test_a_mistake_is_a_one_line_error(command: Command, arguments: list[str], message: str) -> None:
    record(Path("all/run_0"))
    Path("empty").mkdir()
    (record(Path("broken")) / "run.json").write_text("{")
    result = command(*arguments)
    assert result.status == 2
    assert re.fullmatch(rf"error: [^\n]*{re.escape(message)}[^\n]*\n", result.err), result.err


@pytest.mark.slow
def test_a_sweep_s_page_begins_with_the_best_jobs(command: Command, trainings: set[float]) -> None:
    """Check the order by the metric of `optimise`, each job with its folder and a command that repeats it alone."""
    result = command(
        "--config-name", "act_tiny", "budget=none", "-m", "model.act_penalty=2e-3,1e-3,3e-3", "optimise=eval/mlm_loss"
    ).checked()
    page = read_page(result)
    headings = re.findall(r"<h2[^>]*>([^<]*)", page)
    assert headings[:2] == ["Best by eval/mlm_loss", "Settings that differ"]
    (table,) = Path("outputs/comparisons").glob("*/tables/best.csv")
    rows = list(csv.DictReader(table.read_text(encoding="utf-8").splitlines()))
    assert [row["run"] for row in rows] == [f"act_penalty={value}" for value in (0.001, 0.002, 0.003)]
    assert f"best by eval/mlm_loss: 1.0010, act_penalty=0.001: {rows[0]['folder']}\n" in result.out
    again = shlex.split(rows[0]["command"])
    assert again[again.index("--config-name") :] == [
        "--config-name", "act_tiny", "budget=none", "model.act_penalty=0.001", "optimise=eval/mlm_loss",
    ]  # fmt: skip
    final = json.loads((Path(rows[0]["folder"]) / "run.json").read_text())["final_metrics"]
    assert final["eval/mlm_loss"] == 1.001


@pytest.mark.slow
def test_a_search_reports_the_importance_of_parameters(command: Command, trainings: set[float]) -> None:
    """Check trials in which the penalty decides the metric, and the rate nothing."""
    pytest.importorskip("optuna")
    overrides = ("optimise=eval/mlm_loss", "hydra.sweeper.n_trials=12")
    result = command("--config-name", "act_tiny", "sweep=optuna_penalty", *overrides).checked()
    page = read_page(result)
    assert re.findall(r"<h2[^>]*>([^<]*)", page)[:2] == ["Best by eval/mlm_loss", "Importance of parameters"]
    (folder,) = Path("outputs/comparisons").glob("*")
    assert {"importances.svg", "parallel_coordinates.svg"} <= {path.name for path in (folder / "figures").iterdir()}
    rows = list(csv.DictReader((folder / "tables" / "search.csv").read_text(encoding="utf-8").splitlines()))
    share = {row["parameter"]: float(row["importance"]) for row in rows}
    assert share["model.act_penalty"] > 0.8
    assert sum(share.values()) == pytest.approx(1)


def test_many_differing_settings_are_in_a_file(command: Command) -> None:
    many = {f"setting_{number}": number for number in range(12)}
    record(Path("all/run_0"), trainer=many)
    record(Path("all/run_1"), trainer={name: -value - 1 for name, value in many.items()})
    result = command("mode=report", "runs=[all]").checked()
    page = read_page(result)
    section = page[page.index('id="differs"') :].partition("<h2")[0]
    assert "The files of the table have more" in section
    (table,) = Path("outputs/comparisons").glob("*/tables/settings.csv")
    assert all(name in table.read_text() for name in many)
