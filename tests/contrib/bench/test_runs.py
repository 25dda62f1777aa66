"""The runs of a bench: which there are, in which order, and how a repeated command knows them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from adadepth.contrib.bench.runs import BenchRun, ready, really_run, runs_of, with_needed
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


def swept(overrides: Sequence[str]) -> list[list[str]]:
    """The combinations of values that stand between commas."""
    each = [[f"{key}={value}" for value in values.split(",")] for key, values in (o.split("=", 1) for o in overrides)]
    return [list(job) for job in itertools.product(*each)]


def cells(tasks: dict[str, Any] = TASKS, seeds: Sequence[int] = (0, 1)) -> list[BenchRun]:
    return runs_of(tasks, seeds, ["trainer.max_steps=3"], swept)


def test_a_way_has_a_run_a_setting_and_seed() -> None:
    found = cells()
    assert [(cell.way, cell.setting, cell.seed) for cell in found] == [
        ("gate", (), 0), ("gate", (), 1),
        ("fixed", ("model.depth=1",), 0), ("fixed", ("model.depth=2",), 0),
        ("fixed", ("model.depth=1",), 1), ("fixed", ("model.depth=2",), 1),
        ("mean", (), 0), ("mean", (), 1),
    ]  # fmt: skip
    fixed = found[2]
    assert fixed.training == (
        "dataset=hops", "model.loss=last", "model.depth=1", "trainer.max_steps=3", "seed=0", "seeds=1",
    )  # fmt: skip
    assert (found[0].evaluation, fixed.evaluation) == (("exit_rules=[quantile:0.5]",), ())
    assert len({cell.name for cell in found}) == len(found)


def test_a_run_that_starts_from_another_follows_it_with_its_own_seed(tmp_path: Path) -> None:
    found = cells()
    first = [cell for cell, _ in ready(found, {}, set())]
    assert {cell.way for cell in first} == {"fixed", "mean"}
    done = {cell: tmp_path / str(cell.seed) for cell in first if cell.way == "mean" and cell.seed == 1}
    later = [named for cell, named in ready(found, done, set(first) - set(done))]
    assert [(named.way, named.seed) for named in later] == [("gate", 1)]
    assert f"model.pretrained={tmp_path / '1'}/model" in later[0].training


@pytest.mark.parametrize(
    ("ways", "message"),
    [
        ({}, "hydra.sweeper.tasks.hops: has no ways"),
        ({"gate": ["model.pretrained=@no/model"]}, "hydra.sweeper.tasks.hops.ways.gate: no other way is named no"),
        ({"gate": ["model.pretrained=@gate/model"]}, "hydra.sweeper.tasks.hops.ways.gate: no other way is named gate"),
    ],
)
def test_mistakes_are_one_line(ways: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        cells({"hops": {"ways": ways}})
    assert str(raised.value) == message


def test_what_is_missing_brings_what_it_starts_from() -> None:
    every = cells()
    gate = next(cell for cell in every if cell.way == "gate" and cell.seed == 1)
    assert [(cell.way, cell.seed) for cell in with_needed([gate], every)] == [("gate", 1), ("mean", 1)]


def ran(rule: str, score: float, online: float | None) -> dict[str, Any]:
    return {
        "rule": rule, "score": score, "online": online, "updates": 2.0, "online_updates": 3.0, "macs": 20.0,
        "spearman": 0.5,
    }  # fmt: skip


def test_rules_are_told_as_they_ran_where_exits_change_what_others_see() -> None:
    rules = [ran("margin:0.5", 0.8, 0.7), ran("margin:0.9", 0.9, 0.9), ran("fixed:2", 0.6, 0.6)]
    found = really_run(rules)
    assert set(found) == {"margin"}
    first = found["margin"][0]
    assert (first["rule"], first["score"], first["updates"], first["macs"]) == ("margin:0.5", 0.7, 3.0, 30.0)
    assert really_run([ran("margin:0.5", 0.8, 0.799), ran("margin:0.9", 0.9, None)]) == {}


def test_where_files_are_is_no_part_of_what_a_run_is() -> None:
    (here,), (there,) = (
        cells({"text": {"places": [f"dataset.path={place}"], "ways": {"mean": ["model.loss=mean"]}}}, seeds=[0])
        for place in ("here", "there")
    )
    assert "dataset.path=there" in there.training
    assert here.overrides == there.overrides == ["model.loss=mean", "trainer.max_steps=3", "seed=0", "seeds=1"]
