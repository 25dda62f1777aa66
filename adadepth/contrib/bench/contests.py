"""Comparisons of methods on which papers disagree, and the table of their results on each task; see `measures`.

A row of the table has one of three answers: the first group needs less compute, the second does, or they are not
significantly different.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from adadepth.contrib.bench.measures import (
    Comparison,
    ComparisonResult,
    Estimate,
    HaltingMethod,
    evaluate_comparison,
)
from adadepth.report.table import Column, Table, percent, text

_PREDICTION_RULES = frozenset({"margin", "confidence", "entropy", "kl", "patience", "distance"})
_GATE_RULES = frozenset({"quantile", "correct", "budget"})
_HALTING_PREFIXES = ("act", "ponder", "halting", "router")  # names of methods that learn where to stop


def _is_learned(method: HaltingMethod) -> bool:
    return method.rule in _GATE_RULES or (method.rule == "run" and method.name.startswith(_HALTING_PREFIXES))


def has_uniform_depth(method: HaltingMethod) -> bool:
    """Return whether all units get the same depth: networks of one depth, or one network at a fixed depth."""
    return method.rule == "fixed" or (method.rule == "run" and method.name.startswith(("fixed", "layers")))


def _match_names(*names: str, rules: Iterable[str] = ()) -> Callable[[HaltingMethod], bool]:
    """Return a predicate of halting methods with one of these names and rules; no rules: any rule."""
    allowed = frozenset(rules)
    return lambda method: method.name in names and (not allowed or method.rule in allowed)


COMPARISONS = (
    Comparison(
        "Does depth that differs from unit to unit need less work than one depth for all?",
        "Yes, say most papers on early exits; controls of equal work are rarely shown.",
        "differing depth",
        lambda method: method.rule in _PREDICTION_RULES or _is_learned(method),
        "one depth",
        has_uniform_depth,
    ),
    Comparison(
        "Does a rule read off the prediction afterwards need less than what learned to stop?",
        "Yes, by far (arXiv 2607.20519); ACT (arXiv 1603.08983) and PonderNet (arXiv 2107.05407) learn to stop.",
        "rule afterwards",
        lambda method: method.rule in _PREDICTION_RULES,
        "learned halting",
        _is_learned,
    ),
    Comparison(
        "Does a gate that was trained with the network need less than one that learned behind the frozen network?",
        "Ouro (arXiv 2510.25741) trains its gate twice, the second time alone.",
        "trained together",
        _match_names("gate", "ponder_uniform", rules=("quantile", "run")),
        "trained alone",
        _match_names("gate_alone", "halting_alone", rules=("quantile", "run")),
    ),
    Comparison(
        "Does the margin of the two likeliest answers need less than another sign of a sure prediction?",
        "Entropy (arXiv 1709.01686), confidence and patience (arXiv 2006.04152) are more usual.",
        "margin",
        lambda method: method.rule == "margin",
        "another sign",
        lambda method: method.rule in _PREDICTION_RULES - {"margin"},
        is_within_method=True,
    ),
    Comparison(
        "Does one block, applied as often as it takes, need less than a network with more layers of its own?",
        "Looped models save parameters (arXiv 1909.11942) and keep quality at equal work (arXiv 2510.25741).",
        "one block",
        _match_names("fixed", rules=("run",)),
        "more layers",
        _match_names("layers"),
    ),
    Comparison(
        "ACT: does the weighted sum of states need less than the interpolated state?",
        "Graves (arXiv 1603.08983) sums; ACT-ALBERT and the Universal Transformer (arXiv 1807.03819) interpolate. The "
        "interpolated state comes without recall and readouts, as in ACT-ALBERT; with the sum, pointers and mazes have "
        "both, additions recall, texts neither.",
        "weighted sum",
        _match_names("act"),
        "interpolated state",
        _match_names("act_single"),
    ),
)


def build_comparisons_table(
    requirements: Mapping[str, Mapping[HaltingMethod, Mapping[str, Any] | None]], full_depth: Mapping[str, float]
) -> Table:
    """Build the table of comparisons, a row for each comparison and task that has both groups.

    Args:
        requirements: Requirements by task from `adadepth.contrib.bench.measures.find_requirements`.
        full_depth: Compute of full depth by task.
    """
    columns = [
        Column("contest", "between", text, "text"),
        Column("task", "task", text, "text"),
        Column("less", "needs less", text, "text"),
        Column("one", "cheapest of the first", text, "text"),
        Column("other", "cheapest of the second", text, "text"),
    ]
    rows = [
        {
            "contest": f"{comparison.first} or {comparison.second}",
            "task": task,
            **_build_row(comparison, result, full_depth[task]),
        }
        for comparison in COMPARISONS
        for task, task_requirements in requirements.items()
        if (result := evaluate_comparison(comparison, task_requirements)) is not None
    ]
    return Table("contests", columns, rows)


def _build_row(comparison: Comparison, result: ComparisonResult, full_depth: float) -> dict[str, str]:
    answers = {"first": comparison.first, "second": comparison.second, None: "not told apart"}
    return {
        "one": _format_cheapest(result.first, full_depth),
        "other": _format_cheapest(result.second, full_depth),
        "less": answers[result.cheaper],
    }


def _format_cheapest(cheapest: tuple[HaltingMethod, Estimate] | None, full_depth: float) -> str:
    if cheapest is None:
        return "none is good enough"
    method, compute = cheapest
    return f"{method.label}: {format_share(compute, full_depth)}"


def format_share(compute: Estimate, full_depth: float) -> str:
    """Format compute as a share of that of full depth, with its standard error."""
    error = "" if compute.error is None else f" ± {100 * compute.error / full_depth:.1f}"
    return percent(compute.mean / full_depth) + error
