"""What adadepth knows of nested brackets: settings, checks, and where the rest is. Read for `--help`, without torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from adadepth.config.data import GeneratedConfig
from adadepth.config.declaration import OPEN_SHARE, at_least, between, setting
from adadepth.config.kinds import Kind
from adadepth.models.registry import ReportSection


@dataclass
class BracketsConfig(GeneratedConfig):
    """How many brackets are open after each one? The answer is the label of a bracket, and its difficulty."""

    name: str = setting("brackets", "name of the data set in reports")
    pairs: int = setting(8, "of brackets in an example", between(2, 64))
    deepest: int = setting(4, "most brackets that are open at once", at_least(1))
    stress: float = setting(1.0, "weight of the loss at brackets nested as deep as has been reached", at_least(0))
    advance_at: float = setting(0.8, "share of these that must be right for the next depth", OPEN_SHARE)


def check_brackets(dataset: BracketsConfig) -> Iterator[str]:
    """Whether the brackets can be nested so deep, and fit into a sequence."""
    if dataset.deepest > dataset.pairs:
        yield f"dataset.deepest={dataset.deepest}: must be at most dataset.pairs={dataset.pairs}"
    if 2 * dataset.pairs > dataset.sequence_length:
        yield f"dataset.sequence_length={dataset.sequence_length}: there are {2 * dataset.pairs} brackets"


def _import_loader() -> Callable[..., Any]:
    from adadepth_brackets.drawing import load_brackets

    return load_brackets


def _import_scorer() -> Callable[..., Any]:
    from adadepth_brackets.scorer import BracketsScorer

    return BracketsScorer


def _import_deepening() -> Callable[..., Any]:
    from adadepth_brackets.training import deepening

    return deepening


def _import_section() -> ReportSection:
    from adadepth_brackets.report import depths_reached

    return depths_reached


BRACKETS = Kind(
    settings=BracketsConfig,
    problem="tagging",
    loader=_import_loader,
    checks=(check_brackets,),
    own_symbols=True,
    scorer=_import_scorer,
    metrics=("loss", "task_loss", "score", "token_accuracy", "whole_accuracy"),
    extensions=(_import_deepening,),
    sections=(_import_section,),
)
