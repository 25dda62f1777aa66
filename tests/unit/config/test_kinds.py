"""Kinds of data and of predictions: what they name is there, and asks for nothing that it is not told."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pytest

from adadepth.config import LabelledConfig, StreamConfig, TaggingConfig, Task
from adadepth.config.data import HopsConfig, LabelledUnit, SentEvalConfig, SequenceProblem
from adadepth.config.kinds import KINDS, PREDICTED, TASKS, call_by_path, get_kind, get_problem
from adadepth.config.plugins import load
from adadepth.data.editable_grid import EditableGrid
from adadepth.models.registry import families

TOLD = {
    "loader": {"tokenizer", "seed", "cls_tokens", "double_cls_pairs", "classes"},
    "scorer": {"model", "data", "examples", "groups", "dataset", "wants_rows"},
}


def needed(function: Callable[..., Any]) -> set[str]:
    """The arguments without which a function cannot be called."""
    return {name for name, each in inspect.signature(function).parameters.items() if each.default is each.empty}


def test_what_a_kind_names_is_there_and_takes_what_it_is_told() -> None:
    for name, kind in KINDS.items():
        for place in kind.places:
            assert callable(load(place)) or isinstance(load(place), EditableGrid), place
        for place in kind.checks:
            first, *others = inspect.signature(load(place)).parameters
            assert first == "dataset", place
            assert set(others) <= {"config"}, place
        if kind.problem is not None:
            first, *others = inspect.signature(load(kind.loader or "")).parameters
            assert first == "dataset", name
            assert needed(load(kind.loader or "")) <= {"dataset", *TOLD["loader"]}, name
            assert set(others) <= TOLD["loader"], name
    for predicted in PREDICTED.values():
        assert set(inspect.signature(load(predicted.scorer)).parameters) <= TOLD["scorer"], predicted
    for each in (*KINDS.values(), *families().values()):
        for place in each.extensions:
            told = {"config", "args", "model", "data", "seed"}
            assert set(inspect.signature(load(place)).parameters) <= told, place


def test_every_kind_has_a_loader_and_a_task_of_the_core_has_its_module() -> None:
    assert [name for name, kind in KINDS.items() if kind.loader is None] == []
    assert set(TASKS) == set(Task)
    for task in Task:
        assert callable(import_module(f"adadepth.tasks.{task}").train)


def test_what_is_predicted_follows_from_the_settings() -> None:
    @dataclass
    class OfAPackage(TaggingConfig):
        """Extends a kind, and is of it."""

    assert get_problem(StreamConfig()) is None
    assert get_problem(LabelledConfig()) == get_problem(SentEvalConfig()) == "classification"
    assert get_problem(LabelledConfig(problem=SequenceProblem.regression)) == "regression"
    assert get_problem(HopsConfig()) == "tagging"
    assert get_problem(HopsConfig(unit=LabelledUnit.sequence)) == "classification"
    assert get_kind(OfAPackage()) is KINDS["tagging"]


def test_a_function_is_told_what_its_arguments_name() -> None:
    assert call_by_path("builtins:pow", 2, exp=5, seed=1) == 32
    with pytest.raises(TypeError, match="missing"):
        call_by_path("builtins:pow", 2, seed=1)
