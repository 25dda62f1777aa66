"""Questions that papers answer differently, and the answer of each task of a bench; see `measures`.

Each comparison has one of three answers on a task: the first group needs less compute, the second does, or they are not
significantly different.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

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


def _has_different_layers(method: HaltingMethod) -> bool:
    """Return whether a method exits by a prediction between different layers, instead of updates of one block."""
    return method.rule in _PREDICTION_RULES and method.name.startswith("early_exit")


def has_adaptive_depth(method: HaltingMethod) -> bool:
    """Return whether units get different depths, by an exit rule or because the method learns when to stop."""
    return method.rule in _PREDICTION_RULES or _is_learned(method)


def has_fixed_depth(method: HaltingMethod) -> bool:
    """Return whether all units get the same depth: a network of one depth, or a network at a fixed exit step."""
    return method.rule == "fixed" or (method.rule == "run" and method.name.startswith(("fixed", "layers")))


def _match_names(*names: str, rules: Iterable[str] = ()) -> Callable[[HaltingMethod], bool]:
    """Return a predicate for halting methods with one of these names and one of these rules.

    Without rules, every rule matches.
    """
    allowed = frozenset(rules)
    return lambda method: method.name in names and (not allowed or method.rule in allowed)


COMPARISONS = (
    Comparison(
        "Does adaptive depth need less compute than one fixed depth for all units?",
        "Most papers on early exits say that it does, but they rarely show controls of equal compute.",
        "adaptive depth",
        has_adaptive_depth,
        "fixed depth",
        has_fixed_depth,
    ),
    Comparison(
        "Does an exit rule that is applied after training need less compute than learned halting?",
        "According to arXiv 2607.20519 it needs far less. ACT (arXiv 1603.08983) and PonderNet (arXiv 2107.05407) are "
        "methods of learned halting. All compared methods apply one block repeatedly.",
        "exit rule after training",
        lambda method: method.rule in _PREDICTION_RULES and not _has_different_layers(method),
        "learned halting",
        _is_learned,
    ),
    Comparison(
        "Does a gate that is trained with the network need less compute than a gate that is trained on the frozen "
        "network?",
        "Ouro (arXiv 2510.25741) trains its gate first with the network, and then on the frozen network.",
        "joint training",
        _match_names("gate", "ponder_uniform", rules=("quantile", "run")),
        "frozen network",
        _match_names("gate_alone", "halting_alone", rules=("quantile", "run")),
    ),
    Comparison(
        "Does the margin rule need less compute than other exit rules on predictions?",
        "The margin is the difference in probability of the two most probable answers. Entropy (arXiv 1709.01686), "
        "confidence and patience (arXiv 2006.04152) are more common in papers.",
        "margin",
        lambda method: method.rule == "margin",
        "another exit rule",
        lambda method: method.rule in _PREDICTION_RULES - {"margin"},
        is_within_method=True,
    ),
    Comparison(
        "Does one repeated block need less compute than a network with more layers of its own?",
        "A repeated block saves parameters (arXiv 1909.11942). According to arXiv 2510.25741, it has equal quality at "
        "equal compute.",
        "repeated block",
        _match_names("fixed", rules=("run",)),
        "more layers",
        _match_names("layers"),
    ),
    Comparison(
        "Do exits of different layers need less compute than exits of one repeated block?",
        "LayerSkip (arXiv 2404.16710) and DeeBERT (arXiv 2004.12993) exit between different layers. PABEE on ALBERT "
        "(arXiv 2006.04152) and Ouro (arXiv 2510.25741) exit between updates of one block.",
        "different layers",
        _has_different_layers,
        "repeated block",
        _match_names("mean", "multi_exit", "gate", rules=_PREDICTION_RULES),
    ),
    Comparison(
        "Does ACT with the weighted sum of states need less compute than ACT with the interpolated state?",
        "Graves (arXiv 1603.08983) sums the states, while ACT-ALBERT and the Universal Transformer (arXiv 1807.03819) "
        "interpolate them. Networks with the interpolated state have neither recall nor readouts, as in ACT-ALBERT. "
        "Networks with the weighted sum have both for pointers and mazes, only recall for addition, and neither for "
        "text.",
        "weighted sum",
        _match_names("act"),
        "interpolated state",
        _match_names("act_single"),
    ),
)

Requirements = Mapping[HaltingMethod, Mapping[str, Any] | None]


class ComparisonOutcome(NamedTuple):
    """A comparison and its result on each task that has both groups."""

    comparison: Comparison
    results: Mapping[str, ComparisonResult]


def evaluate_comparisons(requirements: Mapping[str, Requirements]) -> list[ComparisonOutcome]:
    """Evaluate all comparisons on all tasks.

    Args:
        requirements: Requirements by task from `adadepth.contrib.bench.measures.find_requirements`.
    """
    outcomes = []
    for comparison in COMPARISONS:
        by_task = {
            task: evaluate_comparison(comparison, task_requirements) for task, task_requirements in requirements.items()
        }
        decided = {task: result for task, result in by_task.items() if result is not None}
        outcomes.append(ComparisonOutcome(comparison, decided))
    return outcomes


def format_outcome(outcome: ComparisonOutcome) -> str:
    """Format the tasks on which each group of a comparison needs less compute."""
    if not outcome.results:
        return "no task of this bench has both groups."
    comparison, total = outcome.comparison, f" of {len(outcome.results)} tasks"
    phrases = {}
    for cheaper in ("first", "second", None):
        if tasks := [task for task, result in outcome.results.items() if result.cheaper == cheaper]:
            phrases[cheaper] = f"on {len(tasks)}{total} ({', '.join(tasks)})"
            total = ""
    names = {"first": comparison.first, "second": comparison.second}
    cheaper_groups = [f"{name} {phrases[cheaper]}" for cheaper, name in names.items() if cheaper in phrases]
    sentences = [f"less compute is needed with {' and with '.join(cheaper_groups)}."] if cheaper_groups else []
    if None in phrases:
        sentences.append(f"{'The' if sentences else 'the'} difference is not significant {phrases[None]}.")
    return " ".join(sentences)


def build_comparisons_table(outcomes: Iterable[ComparisonOutcome], full_depth: Mapping[str, float]) -> Table:
    """Build the table of comparisons, with one row for each comparison and task that has both groups.

    Args:
        outcomes: Results of the comparisons.
        full_depth: Compute of full depth by task.
    """
    columns = [
        Column("comparison", "comparison", text, "text"),
        Column("task", "task", text, "text"),
        Column("cheaper", "less compute", text, "text"),
        Column("first", "cheapest of the first group", text, "text"),
        Column("second", "cheapest of the second group", text, "text"),
    ]
    rows = [
        {
            "comparison": f"{comparison.first} or {comparison.second}",
            "task": task,
            **_build_row(comparison, result, full_depth[task]),
        }
        for comparison, results in outcomes
        for task, result in results.items()
    ]
    return Table("comparisons", columns, rows)


def _build_row(comparison: Comparison, result: ComparisonResult, full_depth: float) -> dict[str, str]:
    answers = {"first": comparison.first, "second": comparison.second, None: "not significantly different"}
    return {
        "first": _format_cheapest(result.first, full_depth),
        "second": _format_cheapest(result.second, full_depth),
        "cheaper": answers[result.cheaper],
    }


def _format_cheapest(cheapest: tuple[HaltingMethod, Estimate] | None, full_depth: float) -> str:
    if cheapest is None:
        return "none reaches the threshold"
    method, compute = cheapest
    return f"{method.label}: {format_share(compute, full_depth)}"


def format_share(compute: Estimate, full_depth: float) -> str:
    """Format compute as a share of full depth's compute, with its standard error."""
    error = "" if compute.error is None else f" ± {100 * compute.error / full_depth:.1f}"
    return percent(compute.mean / full_depth) + error
