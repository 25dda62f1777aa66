"""The bench command: a plug-in's method beside fixed depths, run once, and its page."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from adadepth.contrib.bench.page import read_results, to_markdown
from tests.toy_support import execute, install_toy_family

ROOT = Path(__file__).resolve().parents[3]
TINY = (
    "dataset.train_examples=640", "dataset.max_evaluation_examples=32", "trainer.disable_tqdm=true",
    "trainer.per_device_train_batch_size=16", "trainer.max_steps=4", "trainer.eval_steps=4", "trainer.save_steps=4",
)  # fmt: skip
TASK = (
    '{about: pointers, overrides: ["dataset=hops", "trainer=hops", "model.hidden_size=32", '
    '"model.embedding_size=16", "model.intermediate_size=32", "model.num_hidden_layers=4"], ways: {'
    'fixed: ["model=albert_act_hops", "model.fixed_depth=1,3", "budget=none"],'
    'act: ["model=albert_act_hops", "budget=hops", "budget.targets=[2]"],'
    'router: ["model=router_mini", "model.update_price=0.1"]}}'
)


def read_comparable_results(folder: Path) -> list[dict[str, Any]]:
    """Return the results in a folder without times and identifiers of single runs."""

    def drop_times(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: drop_times(entry) for key, entry in value.items() if key not in ("seconds", "time")}
        return [drop_times(entry) for entry in value] if isinstance(value, list) else value

    return [drop_times(result) for result in read_results(folder)]


@pytest.mark.slow
def test_a_twice_killed_bench_has_the_results_of_an_uninterrupted_one(tmp_path: Path) -> None:
    read = '["model.fixed_depth=3", "model.readout_weight=1", "exit_rules=[margin:0.5]"]'
    task = TASK[: TASK.index("ways: ")] + f'ways: {{fixed: ["model.fixed_depth=1,3"], mean: {read}}}}}'
    task = task.replace('"dataset=hops"', '"dataset=hops", "model=albert_act_hops", "budget=none"')
    drops = ("~hydra.sweeper.tasks.hops_causal", "~hydra.sweeper.tasks.hops_sequence")

    def start(folder: str) -> subprocess.Popen[bytes]:
        overrides = (*drops, f"+hydra.sweeper.tasks.hops={task}", *TINY, f"output_dir={tmp_path / folder}")
        command = [sys.executable, str(ROOT / "adadepth" / "run.py"), "--config-name", "depth_bench", *overrides]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"})

    assert start("alone").wait(300) == 0
    for enough in (1, 2):
        killed = start("killed")
        while len(list((tmp_path / "killed").glob("depth_bench/runs/*/*/run.json"))) < enough:
            assert killed.poll() is None
            time.sleep(0.05)
        killed.kill()
        killed.wait()
    assert start("killed").wait(300) == 0
    folders = [tmp_path / name / "depth_bench" / "results" for name in ("alone", "killed")]
    assert read_comparable_results(folders[0]) == read_comparable_results(folders[1])
    assert len(read_comparable_results(folders[0])) == 3


@pytest.mark.slow
def test_a_bench_runs_once_and_continues(tmp_path: Path) -> None:
    tasks = (
        "~hydra.sweeper.tasks.hops_causal",
        "~hydra.sweeper.tasks.hops_sequence",
        f"+hydra.sweeper.tasks.hops={TASK}",
    )
    command = ("--config-name", "depth_bench", *tasks, *TINY, f"output_dir={tmp_path}")
    folder = tmp_path / "depth_bench"
    (tmp_path / "site").mkdir()
    with install_toy_family(tmp_path / "site"):
        assert execute(*command) == 0
        runs = sorted(folder.glob("runs/*/*/run.json"))
        page = (folder / "results.md").read_text(encoding="utf-8")
        results = read_results(folder / "results")
        assert [(result["way"], result["setting"]) for result in results] == [
            ("act", []), ("fixed", ["model.fixed_depth=1"]), ("fixed", ["model.fixed_depth=3"]), ("router", []),
        ]  # fmt: skip
        fixed = results[2]["sets"]["inside"]["readings"]["run"][0]
        recorded = [json.loads(run.read_text(encoding="utf-8")) for run in runs]
        assert fixed["score"] in [record["final_metrics"]["eval/score"] for record in recorded]
        assert fixed["updates"] == 3.0
        # A method has a budget, so every method is scored on the half on which no budget was fitted.
        halves = [result["sets"]["inside"]["half_readings"] for result in results]
        assert [list(half) for half in halves] == [["run", "budget"], ["run"], ["run"], ["run"]]
        assert [point["rule"] for point in halves[0]["budget"]] == ["budget.target=2"]
        for point in (point for half in halves for points in half.values() for point in points):
            assert point["score"] is not None
            assert point["chosen_score"] is not None
        assert "score_halves=true" not in results[1]["overrides"]
        assert "| act | budget |" in page
        assert "Left out" not in page
        assert to_markdown(results, {"hops": "pointers"}) == page
        assert "| router | run |" in page
        # Without scores on the half, as in earlier results, the budget is not compared, and the page says so.
        for result in results[1:]:
            del result["sets"]["inside"]["half_readings"]
        earlier = to_markdown(results, {"hops": "pointers"})
        assert "| act | budget |" not in earlier
        assert "Runs of fixed, router have no score on this half." in earlier
        # Existing results are not computed again, missing ones are.
        runs[0].unlink()
        assert execute(*command) == 0
        # Elsewhere its results are enough.
        other = tmp_path / "elsewhere"
        assert (
            execute(*command[:-1], "bench=quick", f"output_dir={other}", f"hydra.sweeper.results={folder / 'results'}")
            == 0
        )
    again = sorted(folder.glob("runs/*/*/run.json"))
    assert len(again) == len(runs)
    assert len(set(again) - set(runs)) == 1
    assert (folder / "results.md").read_text(encoding="utf-8") == page
    assert not list(other.glob("depth_bench/runs/*/*/run.json"))
    assert (other / "depth_bench" / "results.md").read_text(encoding="utf-8") == page
