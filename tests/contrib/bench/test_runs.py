"""Runs of a bench: their list and order, and how a repeated command recognises them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from adadepth.contrib.bench.runs import (
    BenchRun,
    add_prerequisites,
    build_evaluation_overrides,
    build_half_readings,
    collect_online_points,
    find_ready_runs,
    list_bench_runs,
)
from adadepth.errors import ConfigError

TASKS: dict[str, Any] = {
    "hops": {
        "about": "pointers",
        "overrides": ["dataset=hops", "model.loss=all"],
        "ways": {
            "gate": ["model.pretrained=@mean/model", "exit_rules=[quantile:0.5]"],
            "fixed": ["model.depth=1,2", "model.loss=last"],
            "mean": "model.loss=mean",
            "gone": None,
        },
    }
}


def expand(overrides: Sequence[str]) -> list[list[str]]:
    """Return the combinations of comma-separated values."""
    choices = [
        [f"{key}={value}" for value in values.split(",")] for key, values in (o.split("=", 1) for o in overrides)
    ]
    return [list(job) for job in itertools.product(*choices)]


def make_runs(tasks: dict[str, Any] = TASKS, seeds: Sequence[int] = (0, 1)) -> list[BenchRun]:
    return list_bench_runs(tasks, seeds, ["trainer.max_steps=3"], expand)


def test_a_method_has_a_run_for_each_setting_and_seed() -> None:
    runs = make_runs()
    assert [(run.method, run.setting, run.seed) for run in runs] == [
        ("gate", (), 0), ("gate", (), 1),
        ("fixed", ("model.depth=1",), 0), ("fixed", ("model.depth=2",), 0),
        ("fixed", ("model.depth=1",), 1), ("fixed", ("model.depth=2",), 1),
        ("mean", (), 0), ("mean", (), 1),
    ]  # fmt: skip
    fixed = runs[2]
    assert fixed.training == (
        "dataset=hops", "model.loss=last", "model.depth=1", "trainer.max_steps=3", "seed=0", "seeds=1",
    )  # fmt: skip
    assert (runs[0].evaluation, fixed.evaluation) == (("exit_rules=[quantile:0.5]",), ())
    assert len({run.name for run in runs}) == len(runs)


def test_a_run_that_starts_from_another_follows_it_with_its_own_seed(tmp_path: Path) -> None:
    runs = make_runs()
    first = [run for run, _ in find_ready_runs(runs, {}, set())]
    assert {run.method for run in first} == {"fixed", "mean"}
    done = {run: tmp_path / str(run.seed) for run in first if run.method == "mean" and run.seed == 1}
    later = [resolved for run, resolved in find_ready_runs(runs, done, set(first) - set(done))]
    assert [(resolved.method, resolved.seed) for resolved in later] == [("gate", 1)]
    assert f"model.pretrained={tmp_path / '1'}/model" in later[0].training


@pytest.mark.parametrize(
    ("ways", "message"),
    [
        ({}, "hydra.sweeper.tasks.hops: has no methods (ways)"),
        (
            {"gate": ["model.pretrained=@no/model"]},
            "hydra.sweeper.tasks.hops.ways.gate: refers to no, which is not another method",
        ),
        (
            {"gate": ["model.pretrained=@gate/model"]},
            "hydra.sweeper.tasks.hops.ways.gate: refers to gate, which is not another method",
        ),
    ],
)
def test_mistakes_are_one_line_errors(ways: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        make_runs({"hops": {"ways": ways}})
    assert str(raised.value) == message


def test_missing_runs_are_joined_by_their_prerequisites() -> None:
    all_runs = make_runs()
    gate = next(run for run in all_runs if run.method == "gate" and run.seed == 1)
    assert [(run.method, run.seed) for run in add_prerequisites([gate], all_runs)] == [("gate", 1), ("mean", 1)]


def make_rule(rule: str, score: float, online: float | None) -> dict[str, Any]:
    return {
        "rule": rule, "score": score, "online": online, "updates": 2.0, "online_updates": 3.0, "macs": 20.0,
        "spearman": 0.5,
    }  # fmt: skip


def test_rules_whose_exits_change_other_units_have_online_points() -> None:
    rules = [make_rule("margin:0.5", 0.8, 0.7), make_rule("margin:0.9", 0.9, 0.9), make_rule("fixed:2", 0.6, 0.6)]
    points = collect_online_points(rules)
    assert set(points) == {"margin"}
    first = points["margin"][0]
    assert (first["rule"], first["score"], first["updates"], first["macs"]) == ("margin:0.5", 0.7, 3.0, 30.0)
    assert collect_online_points([make_rule("margin:0.5", 0.8, 0.799), make_rule("margin:0.9", 0.9, None)]) == {}


def test_file_locations_are_not_part_of_the_identity_of_a_run() -> None:
    (first,), (second,) = (
        make_runs({"text": {"places": [f"dataset.path={location}"], "ways": {"mean": ["model.loss=mean"]}}}, seeds=[0])
        for location in ("here", "there")
    )
    assert "dataset.path=there" in second.training
    assert first.overrides == second.overrides == ["model.loss=mean", "trainer.max_steps=3", "seed=0", "seeds=1"]


def test_a_stored_run_is_recognised_in_any_order_and_notation() -> None:
    task = {"hops": {"ways": {"gate": ["model.gate=False", "model.rate=0.01", "exit_rules=[margin:0.5,kl:0.01]"]}}}
    (run,) = make_runs(task, seeds=[0])
    stored = ["exit_rules=[margin:0.5, kl:0.01]", "seed=0", "seeds=1", "model.gate=false", "model.rate=1e-2"]
    assert run.has_overrides([*stored, "trainer.max_steps=3"])
    assert not run.has_overrides(stored)
    assert not run.has_overrides([*stored, "trainer.max_steps=4"])
    assert not run.has_overrides([*stored, "trainer.max_steps=3", "model.width=2"])


def test_the_name_of_a_run_has_only_differing_overrides() -> None:
    def expand_as_hydra(overrides: Sequence[str]) -> list[list[str]]:
        return [[override.replace("false", "False") for override in setting] for setting in expand(overrides)]

    task = {"hops": {"ways": {"fixed": ["model.depth=1,2", "model.gate=false"]}}}
    runs = list_bench_runs(task, [0], [], expand_as_hydra)
    assert [run.name for run in runs] == ["hops.fixed.model.depth_1.0", "hops.fixed.model.depth_2.0"]


BUDGETS: dict[str, Any] = {
    "ways": {"fixed": ["model.depth=1"], "act": ["budget=hops", "budget.targets=[2]"], "mean": ["exit_rules=[kl:0.01]"]}
}


def test_runs_of_a_task_with_budgets_are_scored_on_both_halves_and_keep_their_identity() -> None:
    runs = make_runs({"hops": BUDGETS}, seeds=[0])
    assert [run.evaluation for run in runs] == [
        ("score_halves=true",), ("budget.targets=[2]", "score_halves=true"),
        ("exit_rules=[kl:0.01]", "score_halves=true"),
    ]  # fmt: skip
    assert runs[0].overrides == ["model.depth=1", "trainer.max_steps=3", "seed=0", "seeds=1"]
    assert runs[1].has_overrides(["budget=hops", "budget.targets=[2]", "trainer.max_steps=3", "seed=0", "seeds=1"])
    assert "score_halves=true" in build_evaluation_overrides(runs[0], Path("folder"))
    without = make_runs({"hops": {"ways": {"fixed": ["model.depth=1"], "mean": ["exit_rules=[kl:0.01]"]}}}, seeds=[0])
    assert [run.evaluation for run in without] == [(), ("exit_rules=[kl:0.01]",)]


def make_budget_row(target: float | None, chosen_score: float, score: float) -> dict[str, Any]:
    return {
        "target": target, "fit": None, "n": 400, "mean": 2.0, "std": 1.0, "adaptive_macs": 8000.0, "spearman": 0.5,
        "metrics": {"score": score}, "fitting_metrics": {"score": chosen_score},
    }  # fmt: skip


def make_study(online: float) -> dict[str, Any]:
    halves = [
        {"quality": {"score": online - 0.1}, "mean_updates": 3.0},
        {"quality": {"score": online}, "mean_updates": 2.5},
    ]
    row = {
        "rule": "margin:0.5", "quality": {"score": 0.8}, "mean_updates": 2.0, "macs": 20.0,
        "online": {"quality": {"score": online}, "mean_updates": 3.0, "halves": halves},
    }  # fmt: skip
    points = {"margin": [{"rule": "margin:0.5", "chosen_score": 0.7, "score": 0.8}], "fixed": [{"rule": "fixed:1"}]}
    return {"rows": [row], "readings": points, "overthinking": {}, "has_budget_halves": True}


def test_points_of_budgets_runs_and_exit_rules_are_scored_on_one_half() -> None:
    rows = [make_budget_row(None, 0.9, 0.8), make_budget_row(1.5, 0.7, 0.5)]
    readings = build_half_readings(rows, None)
    assert readings == {
        "run": [
            {"rule": None, "chosen_score": 0.9, "score": 0.8, "score_error": pytest.approx(0.02), "updates": 2.0,
             "updates_error": 0.05, "macs": 20.0, "spearman": 0.5},
        ],
        "budget": [
            {"rule": "budget.target=1.5", "chosen_score": 0.7, "score": 0.5, "score_error": 0.025, "updates": 2.0,
             "updates_error": 0.05, "macs": 20.0, "spearman": 0.5},
        ],
    }  # fmt: skip
    study = make_study(online=0.8)
    assert build_half_readings(rows, study) == readings | study["readings"]
    # Exits that change the inputs of other tokens: points of the online run, on the same halves.
    (point,) = build_half_readings(rows, make_study(online=0.6))["margin"]
    assert (point["chosen_score"], point["score"]) == (0.5, 0.6)
    assert (point["updates"], point["macs"]) == (2.5, pytest.approx(25.0))
    # A sample of the tokens of a text is not the half.
    assert build_half_readings(rows, study | {"has_budget_halves": False}) == readings
