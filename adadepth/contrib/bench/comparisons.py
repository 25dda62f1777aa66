"""Research questions on adaptive depth that papers answer differently, and the answer of each task of a bench.

Each comparison has one of three answers on a task: the first group needs less compute, the second does, or they are not
significantly different. The p-values of a comparison are corrected for its number of tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from adadepth.contrib.bench.measures import (
    RELEVANT_SHARE,
    Candidates,
    Comparison,
    ComparisonResult,
    HaltingMethod,
    evaluate_comparison,
)
from adadepth.metrics.significance import SeedMean, correct_p_values
from adadepth.report.table import Column, Table, format_p_value, percent, text

Requirements = Mapping[HaltingMethod, Mapping[str, Any] | None]

_PREDICTION_RULES = frozenset({"margin", "confidence", "entropy", "kl", "patience", "distance"})
_GATE_RULES = frozenset({"quantile", "hazard", "correct"})
_OWN_RULES = frozenset({"run", "budget"})  # the depths of training, and another mean depth set afterwards
_HALTING_PREFIXES = ("act", "ponder", "halting")  # names of methods that learn where to stop
_ROUTERS = frozenset({"mor", "mor_token", "mor_untied", "mod", "router_tuning"})


def _is_learned(method: HaltingMethod) -> bool:
    return method.rule in _GATE_RULES or (method.rule in _OWN_RULES and method.name.startswith(_HALTING_PREFIXES))


def _is_router(method: HaltingMethod) -> bool:
    return method.name in _ROUTERS and method.rule in _OWN_RULES


def _has_different_layers(method: HaltingMethod) -> bool:
    """Return whether a method exits between different layers, instead of repeating one block."""
    return method.rule in _PREDICTION_RULES and method.name.startswith("early_exit")


def has_adaptive_depth(method: HaltingMethod) -> bool:
    """Return whether a method gives tokens or sequences different depths, by exits, learned halting or routers."""
    return method.rule in _PREDICTION_RULES or _is_learned(method) or _is_router(method)


def has_fixed_depth(method: HaltingMethod) -> bool:
    """Return whether a method gives all tokens or sequences one depth: a shallower network, or a fixed exit step."""
    return method.rule == "fixed" or (method.rule == "run" and method.name.startswith(("fixed", "layers")))


def _match_names(*names: str, rules: Iterable[str] = ()) -> Callable[[HaltingMethod], bool]:
    """Build a predicate that is true for halting methods with one of these names and one of these rules.

    Without rules, every rule matches.
    """
    allowed = frozenset(rules)
    return lambda method: method.name in names and (not allowed or method.rule in allowed)


COMPARISONS = (
    Comparison(
        "Does adaptive depth need less compute than one fixed depth for all units?",
        "Most papers on early exits report that adaptive depth needs less compute, but few of them compare it with a "
        "fixed-depth network of equal compute.",
        "adaptive depth",
        has_adaptive_depth,
        "fixed depth",
        has_fixed_depth,
    ),
    Comparison(
        "Does an exit rule that is applied after training need less compute than learned halting?",
        "According to arXiv 2607.20519, an exit rule that is applied after training needs far less compute than "
        "learned halting. ACT (arXiv 1603.08983) and PonderNet (arXiv 2107.05407) are methods of learned halting. This "
        "comparison has only methods that apply one block repeatedly.",
        "a post-training exit rule",
        lambda method: method.rule in _PREDICTION_RULES and not _has_different_layers(method),
        "learned halting",
        _is_learned,
    ),
    Comparison(
        "Does an exit rule that is applied after training need less compute than a trained router?",
        "Mixture-of-Recursions (arXiv 2507.10524) and Mixture-of-Depths (arXiv 2404.02258) train routers that choose "
        "the tokens of a recursion or layer. Both papers compare routers with networks of fixed depth, and not with "
        "exit rules.",
        "a post-training exit rule",
        lambda method: method.rule in _PREDICTION_RULES,
        "a trained router",
        _is_router,
    ),
    Comparison(
        "Does a gate that is trained with the network need less compute than a gate that is trained on the frozen "
        "network?",
        "Ouro (arXiv 2510.25741) first trains its gate together with the network, and then trains the gate alone on "
        "the frozen network.",
        "joint training",
        _match_names("gate", "ponder_uniform", rules=("quantile", "run")),
        "training on the frozen network",
        _match_names("gate_alone", "halting_alone", rules=("quantile", "run")),
    ),
    Comparison(
        "Does the margin rule need less compute than other exit rules on predictions?",
        "The margin is the difference between the probabilities of the two most probable answers. Papers more often "
        "use entropy (arXiv 1709.01686), confidence or patience (arXiv 2006.04152) as the exit rule.",
        "the margin rule",
        lambda method: method.rule == "margin",
        "the best other exit rule",
        lambda method: method.rule in _PREDICTION_RULES - {"margin"},
        is_within_method=True,
    ),
    Comparison(
        "Does one repeated block need less compute than a network of different layers?",
        "A repeated block has fewer parameters than different layers (arXiv 1909.11942). According to arXiv "
        "2510.25741, a repeated block has the same quality as different layers at equal compute.",
        "one repeated block",
        _match_names("fixed", rules=("run",)),
        "a stack of different layers",
        _match_names("layers"),
    ),
    Comparison(
        "Does early exit from different layers need less compute than early exit from one repeated block?",
        "LayerSkip (arXiv 2404.16710) and DeeBERT (arXiv 2004.12993) exit between different layers. PABEE on ALBERT "
        "(arXiv 2006.04152) and Ouro (arXiv 2510.25741) exit between updates of one block.",
        "early exit from different layers",
        _has_different_layers,
        "early exit from one repeated block",
        _match_names("mean", "multi_exit", "gate", rules=_PREDICTION_RULES),
    ),
    Comparison(
        "Does ACT with the weighted sum of states need less compute than ACT with the interpolated state?",
        "Graves (arXiv 1603.08983) sums the states of all updates, weighted by their halting probabilities. ACT-ALBERT "
        "and the Universal Transformer (arXiv 1807.03819) interpolate between the old and the new state at every "
        "update. The two groups also differ in recall (every update reads the input again) and in readouts (a loss "
        "after every update). Networks with the interpolated state have neither recall nor readouts, as in ACT-ALBERT. "
        "Networks with the weighted sum have recall and readouts for pointers and mazes, only recall for addition, and "
        "neither of the two for text.",
        "the weighted sum",
        _match_names("act"),
        "the interpolated state",
        _match_names("act_single"),
    ),
)


class ComparisonOutcome(NamedTuple):
    """A comparison of two groups of methods, and its result on each task that has both groups, with corrected p."""

    comparison: Comparison
    results: Mapping[str, ComparisonResult]


def evaluate_comparisons(
    candidates: Mapping[str, Candidates], full_depth: Mapping[str, float]
) -> list[ComparisonOutcome]:
    """Evaluate all comparisons of groups of methods on all tasks.

    Args:
        candidates: Methods of each task from `adadepth.contrib.bench.measures.measure_candidates`.
        full_depth: Compute of full depth by task.
    """
    outcomes = []
    for comparison in COMPARISONS:
        by_task = {
            task: evaluate_comparison(comparison, methods, RELEVANT_SHARE * full_depth[task])
            for task, methods in candidates.items()
        }
        results = {task: result for task, result in by_task.items() if result is not None}
        p_values = correct_p_values([result.p for result in results.values()])
        corrected = {task: results[task]._replace(p=p) for task, p in zip(results, p_values, strict=True)}
        outcomes.append(ComparisonOutcome(comparison, corrected))
    return outcomes


def format_outcome(outcome: ComparisonOutcome) -> str:
    """Format which group of methods needs less compute on which tasks."""
    if not outcome.results:
        return f"No task of this bench has both groups: {outcome.comparison.first} and {outcome.comparison.second}."
    first, second, total = outcome.comparison.first, outcome.comparison.second, len(outcome.results)
    sentences = []
    for cheaper, start in (
        ("first", f"{first} needs less compute than {second}"),
        ("second", f"{second} needs less compute than {first}"),
        (None, f"{first} and {second} do not differ significantly in compute"),
    ):
        if tasks := [task for task, result in outcome.results.items() if result.significantly_cheaper == cheaper]:
            sentences.append(f"{start} on {len(tasks)} of {total} tasks ({', '.join(tasks)}).")
    return " ".join(sentence[0].upper() + sentence[1:] for sentence in sentences)


def build_comparisons_table(
    outcomes: Iterable[ComparisonOutcome], full_depth: Mapping[str, float], requirements: Mapping[str, Requirements]
) -> Table:
    """Build the table of comparisons, with a row for each comparison and task.

    Args:
        outcomes: Results of the comparisons.
        full_depth: Compute of full depth by task.
        requirements: Requirement of each method by task.
    """
    columns = [
        Column("comparison", "comparison", text, "text"),
        Column("task", "task", text, "text"),
        Column("cheaper", "group with less compute", text, "text"),
        Column("p", "p", format_p_value),
        Column("first", "least compute in the first group", text, "text"),
        Column("second", "least compute in the second group", text, "text"),
    ]
    rows = [
        {
            "comparison": f"{comparison.first} or {comparison.second}",
            "task": task,
            **_build_row(comparison, result, full_depth[task], requirements[task]),
        }
        for comparison, results in outcomes
        for task, result in results.items()
    ]
    return Table("comparisons", columns, rows)


def _build_row(
    comparison: Comparison, result: ComparisonResult, full_depth: float, requirements: Requirements
) -> dict[str, str | float]:
    answers = {"first": comparison.first, "second": comparison.second, None: "not significantly different"}
    return {
        "first": _format_cheapest(result.first, full_depth, requirements),
        "second": _format_cheapest(result.second, full_depth, requirements),
        "cheaper": answers[result.significantly_cheaper],
        "p": result.p,
    }


def describe_p_value(p: float) -> str:
    """Format a p-value for a sentence."""
    return f"p = {format_p_value(p)}" if p >= 0.001 else f"p {format_p_value(p)}"


def _format_cheapest(
    cheapest: tuple[HaltingMethod, SeedMean] | None, full_depth: float, requirements: Requirements
) -> str:
    if cheapest is None:
        return "no method reaches the threshold"
    method, _ = cheapest
    return f"{method.label}: {format_requirement(requirements[method], full_depth)}"


def format_requirement(requirement: Mapping[str, Any] | None, full_depth: float) -> str:
    """Format the compute that a method needs, relative to full depth.

    `≈` marks compute that is interpolated between separately trained networks, and `†` a measured score below the
    threshold.
    """
    assert requirement is not None, "the method reaches the threshold"
    between, below = "≈ " * requirement["is_between_networks"], "†" * requirement["is_below"]
    return f"{between}{format_share(requirement['compute'], full_depth)}{below}"


def format_share(compute: SeedMean, full_depth: float) -> str:
    """Format compute relative to full depth, with its standard error."""
    error = "" if compute.error is None else f" ± {100 * compute.error / full_depth:.1f}"
    return percent(compute.mean / full_depth) + error
