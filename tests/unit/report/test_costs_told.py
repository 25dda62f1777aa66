"""What a run costs is said in one way on its page and in comparisons: never how an evaluation happened to run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adadepth.report.pages import write_comparison
from adadepth.report.run_files import read_run
from adadepth.report.run_groups import compare
from tests.marks_support import quick_one_in
from tests.pages_support import check_costs, sections_of_page, told
from tests.unit.report.recorded import record
from tests.unit.report.synthetic import make_run
from tests.unit.report.synthetic_architectures import make_comparison, make_search_run
from tests.unit.report.synthetic_exits import add_exit_files
from tests.unit.report.synthetic_layers import make_layer_run


def lay_over(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    found = json.loads(path.read_text(encoding="utf-8"))
    change(found)
    path.write_text(json.dumps(found))


def tokens(folder: Path) -> Path:
    """With a measured speed-up."""
    make_run(folder, max_updates=6, evaluations=2)
    speeds = {"cost/speedup_over_dense": 1.73, "cost/training_speedup_over_dense": 1.2}
    lay_over(folder / "run.json", lambda run: run["final_metrics"].update(speeds))
    return folder


def every_step(folder: Path) -> Path:
    """Whose evaluation ran all steps, as that of models that predict after every one does."""
    make_run(folder, max_updates=6, evaluations=2)
    lay_over(folder / "halting.json", lambda found: found["cost"].update(executed_over_full=1.026))
    return add_exit_files(folder)


def searched(folder: Path) -> Path:
    make_search_run(folder, evaluations=2)
    make_comparison(folder)
    return folder


FAMILIES: dict[str, Callable[[Path], Path]] = {
    "tokens": tokens, "every step": every_step, "searched": searched,
    "layers": lambda folder: make_layer_run(folder, evaluations=2),
    "layers from a cache": lambda folder: make_layer_run(folder, evaluations=2, from_cache=True),
}  # fmt: skip


WHY = {  # an evaluation ran something else than the depths need
    "every step": "The evaluation ran every step for all examples",
    "layers from a cache": "read the states of the base from a cache",
}


@pytest.mark.parametrize("kind", quick_one_in(5, FAMILIES))
def test_no_two_sections_contradict_each_other(kind: str, tmp_path: Path) -> None:
    check_costs(FAMILIES[kind](tmp_path))
    page = sections_of_page((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert WHY.get(kind, "") in page["compute"]


def test_a_measured_speed_up_stands_in_the_section_about_work_too(tmp_path: Path) -> None:
    check_costs(tokens(tmp_path))
    page = sections_of_page((tmp_path / "report.html").read_text(encoding="utf-8"))
    for section in ("verdict", "compute"):
        assert "evaluation 1.73 times as fast, training 1.20 times as fast" in page[section]


def test_a_measured_speed_up_names_the_machine_and_what_the_work_allows(tmp_path: Path) -> None:
    executions = {
        "machine": "AMD EPYC, torch 2.13.0, 2 threads", "width": 64,
        "evaluation": {"speedup": 1.73, "allowed": 2.25, "sequences": 512},
        "training": {"speedup": 1.2, "allowed": 1.5, "sequences": 64},
    }  # fmt: skip
    lay_over(tokens(tmp_path) / "run.json", lambda run: run.update(executions=executions))
    check_costs(tmp_path)
    page = sections_of_page((tmp_path / "report.html").read_text(encoding="utf-8"))
    for section in ("verdict", "compute"):
        assert (
            "on AMD EPYC, torch 2.13.0, 2 threads at width 64: evaluation 1.73 times as fast (batches "
            "of 512; the saved compute "
            "allows 2.25), training 1.20 times as fast (batches of 64; the saved compute allows 1.50)."
        ) in page[section]


def test_a_comparison_tells_what_the_depths_need(tmp_path: Path) -> None:
    """An evaluation that ran 150 % of full depth, of a model whose depths need 17 %, also where a verdict is old."""
    run = record(tmp_path / "run", work=0.17)
    stale = {"cost": {"answer": None, "sentences": ["The work executed is 150 % of full depth."], "figures": {}}}
    lay_over(run / "run.json", lambda found: found["verdict"].update(stale))
    other = record(tmp_path / "other", work=0.4, model={"act_penalty": 0.5})
    page = write_comparison(tmp_path / "page", compare([read_run(run), read_run(other)])).read_text(encoding="utf-8")
    sections = sections_of_page(page)
    assert "17.0% of full depth" in sections["verdicts"]
    assert "need 17 % of the multiply-accumulates of full depth" in sections["verdicts"]
    assert "150" not in told(page)
    assert "compute needed, share of full depth" in page
    assert "regardless of how the evaluation ran" in sections["quality"]
