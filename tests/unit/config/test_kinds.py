"""Kinds of data and of predictions: the functions they name exist and need only the arguments they are given."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from adadepth.cli.checks.data import check_dataset
from adadepth.config import LabelledConfig, StreamConfig, TaggingConfig, Task
from adadepth.config.data import HopsConfig, LabelledUnit, SentEvalConfig, SequenceProblem
from adadepth.config.kinds import KINDS, PREDICTED, TASKS, Kind, get_kind, get_problem
from adadepth.config.plugins import call_accepting, find_wrong_path, replace_paths
from adadepth.data.registry import LOADERS
from adadepth.evaluation.scorers import SCORERS
from adadepth.tasks import import_tasks

AVAILABLE_ARGUMENTS = {
    "loader": {"tokenizer", "seed", "cls_tokens", "double_cls_pairs", "classes"},
    "scorer": {"model", "data", "examples", "groups", "dataset", "wants_rows"},
}


def list_required_arguments(function: Callable[..., Any]) -> set[str]:
    """Return the arguments without which a function cannot be called."""
    return {
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is parameter.empty
    }


def find_loader(settings: type) -> Callable[..., Any]:
    """Return the loader of a built-in type, or of the type that it extends."""
    return next(LOADERS[base] for base in settings.__mro__ if base in LOADERS)


def test_every_kind_has_a_loader_of_known_arguments() -> None:
    for name, kind in KINDS.items():
        first, *rest = inspect.signature(find_loader(kind.settings)).parameters
        assert first == "dataset", name
        if kind.problem is not None:
            assert list_required_arguments(find_loader(kind.settings)) <= {"dataset", *AVAILABLE_ARGUMENTS["loader"]}, (
                name
            )
            assert set(rest) <= AVAILABLE_ARGUMENTS["loader"], name


def test_every_problem_has_a_scorer_of_known_arguments() -> None:
    assert set(SCORERS) == {*PREDICTED, None}
    for problem in PREDICTED:
        assert set(inspect.signature(SCORERS[problem]).parameters) <= AVAILABLE_ARGUMENTS["scorer"], problem


def test_every_kind_except_mazes_and_sudokus_of_paths_is_checked() -> None:
    unchecked = {name for name, kind in KINDS.items() if check_dataset.dispatch(kind.settings) is get_default_check()}
    assert unchecked == {"maze_path_task", "sudoku_task"}


def get_default_check() -> Callable[..., Any]:
    return check_dataset.dispatch(object)


def test_every_task_of_the_core_has_its_functions() -> None:
    assert set(TASKS) == set(Task) == set(import_tasks())
    assert all(callable(functions.train) for functions in import_tasks().values())


def test_the_problem_follows_from_the_settings() -> None:
    @dataclass
    class OfAPackage(TaggingConfig):
        """Extends a kind, and is of it."""

    assert get_problem(StreamConfig()) is None
    assert get_problem(LabelledConfig()) == get_problem(SentEvalConfig()) == "classification"
    assert get_problem(LabelledConfig(problem=SequenceProblem.regression)) == "regression"
    assert get_problem(HopsConfig()) == "tagging"
    assert get_problem(HopsConfig(unit=LabelledUnit.sequence)) == "classification"
    assert get_kind(OfAPackage()) is KINDS["tagging"]


def test_a_function_gets_the_values_that_its_arguments_name() -> None:
    assert call_accepting(pow, 2, exp=5, seed=1) == 32
    with pytest.raises(TypeError, match="missing"):
        call_accepting(pow, 2, seed=1)


def test_a_plug_in_may_name_code_by_strings() -> None:
    kind = Kind(LabelledConfig, loader="builtins:pow", checks=("builtins:pow",), sections=("math:floor",))  # type: ignore[arg-type]
    lazy = replace_paths(kind, ["loader", "sections", "board"], ["checks"])
    assert lazy.loader is not None
    assert lazy.loader() is pow
    assert [importer() for importer in lazy.sections] == [math.floor]
    assert lazy.board is None
    assert call_accepting(lazy.checks[0], 2, exp=5, seed=1) == 32
    assert find_wrong_path((kind.loader, kind.checks, {"a": "math.floor"}, None)) == "math.floor"
    assert find_wrong_path((kind.loader, kind.checks)) is None
