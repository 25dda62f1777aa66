"""Comparison of adaptive-depth methods by the compute that each needs for the same score.

A *halting method* is a trained method with the rule that decides when a unit stops: the run itself, a budget that was
set afterwards, fixed depths, or an exit rule. It has operating points for every seed, from little compute to much.
Methods are compared on one task, for one share of the best score that any halting method reaches:

    1. The threshold is that share of the best mean over seeds of the largest score of a halting method. Scores below 0
       are log-likelihoods in nats. The threshold is then that share of the likelihood.
    2. For each halting method and seed, the operating point of least compute is selected among those with a score that
       reaches the threshold. If settings are selected on one half of the examples, the score is that of this half. A
       halting method reaches the threshold only if it has such a point for every seed.
    3. Compute and score are estimated on the other half: means over S seeds, with the standard error sqrt(var / S +
       mean(e^2) / S), where var is the variance over seeds and e the error over the examples of each seed. For a single
       seed, the error is e.
    4. The halting method of least compute is recommended. Other methods are not significantly different from it if
       their compute differs by less than 1.96 standard errors of the difference.

A budget is fitted on one half of the examples, so its points have scores only on halves. If a task has budgets, all its
points are therefore selected on the first half and scored on the second. If a method has no score on the second half,
the points of budgets are left out.

Compute is counted in multiply-accumulates of a unit, or in updates if some points of a set have no such count. The
multiply-accumulates of exit rules include the predictions that a unit needs. Those of runs and budgets are measured
without the prediction, which is added if all of these points have its compute. The error of compute is the error of the
updates times the mean compute of an update.

All compared methods were trained for the same number of steps, or with the same *training compute*. Training compute is
the number of steps times the compute of a unit in a step. It is counted at full depth if units have different depths.

A *comparison* asks whether one group of halting methods needs less compute than another at the same threshold. The
answer of a task compares the cheapest halting method of each group with the test of step 4. A group that does not reach
the threshold loses to one that does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, mode, variance
from typing import Any, NamedTuple

QUALITY_SHARES = (0.95, 0.98, 0.99)
BUDGET = "budget"  # rule of the points whose mean depth was fitted to a target after training
_WITHOUT_PREDICTION = ("run", BUDGET)  # rules whose compute is measured without the prediction of a unit
_COMPUTE_TOLERANCE = 0.1  # relative difference in training compute up to which methods count as equal
_CRITICAL_VALUE = 1.96  # standard errors beyond which a difference is significant


class Estimate(NamedTuple):
    """Mean over seeds with its standard error, which is None if it was not measured."""

    mean: float
    error: float | None


class HaltingMethod(NamedTuple):
    """Trained method, with the rule that decides when a token or sequence stops.

    Attributes:
        name: Name of the trained method.
        rule: `run` for the run itself, `budget`, `fixed`, or the name of an exit rule.
    """

    name: str
    rule: str

    @property
    def label(self) -> str:
        """Name of the method and of its rule for tables."""
        return self.name if self.rule == "run" else f"{self.name}, {self.rule}"


OperatingPoints = dict[HaltingMethod, dict[int, list[dict[str, Any]]]]  # points by halting method and seed


def collect_points(results: Iterable[Mapping[str, Any]], set_name: str) -> OperatingPoints:
    """Return the operating points on one set of a task, by halting method and seed, sorted by compute.

    The settings of a trained method, such as fixed depths, are points of the same halting method. If a method has a
    budget, all points are scored on the same half, or the points of budgets are left out; see `BudgetScores`.
    """
    results = list(results)
    budgets = find_budget_scores(results, set_name)
    is_on_half = bool(budgets.methods) and budgets.are_comparable
    key = "half_readings" if is_on_half else "readings"
    collected: OperatingPoints = {}
    for result in results:
        for rule, points in result["sets"].get(set_name, {}).get(key, {}).items():
            scored = [{**point, "setting": result["setting"]} for point in points if point["score"] is not None]
            if scored and (is_on_half or rule != BUDGET):
                method = HaltingMethod(result["way"], rule)
                collected.setdefault(method, {}).setdefault(result["seed"], []).extend(scored)
    point_lists = [points for by_seed in collected.values() for points in by_seed.values()]
    has_macs, has_predictions = _have_field(collected, "macs"), not _list_methods_without_predictions(collected)
    for points in point_lists:
        for point in points:
            predictions = (point.get("prediction_macs") or 0.0) if has_predictions else 0.0
            point["compute"] = float(point["macs"] + predictions if has_macs else point["updates"])
        points.sort(key=_get_compute)
    return collected


def find_uncounted_predictions(points: OperatingPoints) -> list[str]:
    """Return the names of the methods whose compute leaves out the prediction, beside exit rules that include it."""
    has_exit_rules = any(method.rule not in _WITHOUT_PREDICTION for method in points)
    return _list_methods_without_predictions(points) if has_exit_rules and _have_field(points, "macs") else []


def _list_methods_without_predictions(points: OperatingPoints) -> list[str]:
    """Return the names of the methods whose runs or budgets have no compute of a prediction, sorted."""
    measured = {method: by_seed for method, by_seed in points.items() if method.rule in _WITHOUT_PREDICTION}
    return sorted(
        {method.name for method in measured if not _have_field({method: measured[method]}, "prediction_macs")}
    )


def _have_field(points: OperatingPoints, name: str) -> bool:
    """Return whether all operating points have a value in a field."""
    return all(
        point.get(name) is not None
        for by_seed in points.values()
        for seed_points in by_seed.values()
        for point in seed_points
    )


class BudgetScores(NamedTuple):
    """Trained methods with a budget on one set of a task, and those that cannot be compared with budgets.

    Attributes:
        methods: Names of the methods with operating points of budgets.
        unscored: Names of the methods with points that have no score on the half on which no budget was fitted.
    """

    methods: list[str]
    unscored: list[str]

    @property
    def are_comparable(self) -> bool:
        """Whether all points of the set have scores on the same half."""
        return not self.unscored


def find_budget_scores(results: Iterable[Mapping[str, Any]], set_name: str) -> BudgetScores:
    """Return which methods have budgets, and which methods have no score on the half on which budgets are scored."""
    methods, unscored = set(), set()
    for result in results:
        measured = result["sets"].get(set_name, {})
        readings, halves = measured.get("readings", {}), measured.get("half_readings", {})
        if BUDGET in readings or BUDGET in halves:
            methods.add(result["way"])
        if not readings.keys() <= halves.keys():
            unscored.add(result["way"])
    return BudgetScores(sorted(methods), sorted(unscored))


# ---- selection of what was trained alike


def select_equal_steps(results: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Select the results whose training took at most the usual number of steps, for a fair comparison.

    A second training stage may have fewer steps, because it follows a first stage.
    """
    usual = mode(result["steps"] for result in results)
    return [result for result in results if result["steps"] <= usual]


def select_equal_compute(results: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Select the results of methods with the same training compute as full depth.

    The list is empty if no result has more than the usual steps.
    """
    equal_steps = select_equal_steps(results)
    if len(equal_steps) == len(results):
        return []
    most = max(map(_compute_training_macs, equal_steps))
    return [result for result in results if abs(_compute_training_macs(result) / most - 1.0) <= _COMPUTE_TOLERANCE]


def _compute_training_macs(result: Mapping[str, Any]) -> float:
    """Compute the training compute per token or sequence: optimiser steps times multiply-accumulates.

    For a network of one depth, they are measured on its first set. For any other network, they are the maximum number
    of updates times the mean compute of an update.
    """
    point = next(iter(result["sets"].values()))["readings"]["run"][0]
    scale = result["max_updates"] / point["updates"] if point["updates_error"] else 1.0
    return float(result["steps"] * point["macs"] * scale)


# ---- requirements of each halting method


def compute_best_score(points: OperatingPoints) -> float:
    """Return the best score that any method reaches on a task.

    It is the maximum over halting methods of their largest score, averaged over seeds.
    """
    return max(
        fmean(max(map(_get_selection_score, seed_points)) for seed_points in by_seed.values())
        for by_seed in points.values()
    )


def compute_threshold(points: OperatingPoints, share: float) -> float:
    """Return the threshold score: a given share of the best score.

    For log-likelihoods, it is the given share of the likelihood.
    """
    best = compute_best_score(points)
    return best + math.log(share) if best < 0.0 else share * best


def find_requirements(points: OperatingPoints, threshold: float) -> dict[HaltingMethod, dict[str, Any] | None]:
    """Return the compute that each halting method needs to reach a threshold score.

    Returns:
        Estimates of `compute`, `updates` and `score`, the mean `spearman` and the `settings` by seed, or None for a
        method that does not reach the threshold with every seed of the bench.
    """
    seeds = {seed for by_seed in points.values() for seed in by_seed}
    requirements: dict[HaltingMethod, dict[str, Any] | None] = {}
    for method, by_seed in points.items():
        cheapest = {seed: _find_cheapest_point(seed_points, threshold) for seed, seed_points in by_seed.items()}
        selected = {seed: point for seed, point in cheapest.items() if point is not None}
        requirements[method] = _estimate_requirement(selected) if set(selected) == seeds else None
    return requirements


def _find_cheapest_point(points: Sequence[dict[str, Any]], threshold: float) -> dict[str, Any] | None:
    return next((point for point in points if _get_selection_score(point) >= threshold), None)


def _get_selection_score(point: Mapping[str, Any]) -> float:
    score = point.get("chosen_score")
    return float(point["score"] if score is None else score)


def _get_compute(point: Mapping[str, Any]) -> float:
    return float(point["compute"])


def _estimate_requirement(selected: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    points = list(selected.values())
    compute, updates = list(map(_get_compute, points)), [float(point["updates"]) for point in points]
    errors = [
        None if point.get("updates_error") is None else point["updates_error"] * macs / max(steps, 1e-12)
        for point, macs, steps in zip(points, compute, updates, strict=True)
    ]
    scores, score_errors = [float(point["score"]) for point in points], [point.get("score_error") for point in points]
    return {
        "compute": average_over_seeds(compute, errors),
        "updates": average_over_seeds(updates, [point.get("updates_error") for point in points]),
        "score": average_over_seeds(scores, score_errors),
        "spearman": _average_measured(point.get("spearman") for point in points),
        "settings": {seed: _format_setting(point) for seed, point in selected.items()},
    }


def _format_setting(point: Mapping[str, Any]) -> str:
    """Format the settings that were selected."""
    return point["rule"] or " ".join(point["setting"]) or "as trained"


def _average_measured(values: Iterable[float | None]) -> float | None:
    measured = [value for value in values if value is not None]
    return fmean(measured) if measured else None


def average_over_seeds(values: Sequence[float], errors: Sequence[float | None]) -> Estimate:
    """Return the mean over seeds, with a standard error from the variation between seeds and examples."""
    within = [error**2 for error in errors if error is not None]
    if len(within) < len(values) and len(values) == 1:
        return Estimate(values[0], None)
    between = variance(values) if len(values) > 1 else 0.0
    return Estimate(fmean(values), math.sqrt((between + (fmean(within) if within else 0.0)) / len(values)))


class Recommendation(NamedTuple):
    """Halting method with the least compute, and the methods that do not differ significantly from it."""

    method: HaltingMethod
    ties: list[HaltingMethod]


def recommend_method(requirements: Mapping[HaltingMethod, Mapping[str, Any] | None]) -> Recommendation | None:
    """Recommend the halting method with the least compute, or return None if none reaches the threshold."""
    compute = {method: needs["compute"] for method, needs in requirements.items() if needs is not None}
    if not compute:
        return None
    best, *rest = sorted(compute, key=lambda method: compute[method].mean)
    return Recommendation(best, [method for method in rest if not differ_significantly(compute[best], compute[method])])


def differ_significantly(first: Estimate, second: Estimate) -> bool:
    """Return whether two means differ significantly. An error that was not measured counts as 0."""
    error = math.hypot(first.error or 0.0, second.error or 0.0)
    return abs(first.mean - second.mean) > _CRITICAL_VALUE * error


# ---- comparisons


class Comparison(NamedTuple):
    """Research question, its answers in the literature, and the two groups of halting methods that decide it.

    Attributes:
        question: The question, as shown on the page.
        literature: Answers of papers, as shown on the page.
        first: Name of the first group.
        is_first: Predicate of the halting methods in the first group.
        second: Name of the second group.
        is_second: Predicate of the halting methods in the second group.
        is_within_method: Whether only trained methods that have rules of both groups count.
    """

    question: str
    literature: str
    first: str
    is_first: Callable[[HaltingMethod], bool]
    second: str
    is_second: Callable[[HaltingMethod], bool]
    is_within_method: bool = False


class ComparisonResult(NamedTuple):
    """Result of the comparison of two groups of methods on one task.

    Attributes:
        first: Cheapest halting method of the first group and its compute, or None if no method reaches the threshold.
        second: The same for the second group.
        cheaper: `first`, `second`, or None if they are not significantly different.
    """

    first: tuple[HaltingMethod, Estimate] | None
    second: tuple[HaltingMethod, Estimate] | None
    cheaper: str | None


def evaluate_comparison(
    comparison: Comparison, requirements: Mapping[HaltingMethod, Mapping[str, Any] | None]
) -> ComparisonResult | None:
    """Compare two groups of methods on one task; return None if a group is missing or none reaches the threshold.

    Args:
        comparison: The comparison to decide.
        requirements: Requirements of the task from `find_requirements`.
    """
    predicates = (comparison.is_first, comparison.is_second)
    groups = [[method for method in requirements if is_member(method)] for is_member in predicates]
    if comparison.is_within_method:
        shared = set.intersection(*({method.name for method in group} for group in groups))
        groups = [[method for method in group if method.name in shared] for group in groups]
    first, second = (find_cheapest_method(group, requirements) for group in groups)
    if not all(groups) or (first is None and second is None):
        return None
    if first is None or second is None:
        return ComparisonResult(first, second, "second" if first is None else "first")
    cheaper = "first" if first[1].mean < second[1].mean else "second"
    return ComparisonResult(first, second, cheaper if differ_significantly(first[1], second[1]) else None)


def find_cheapest_method(
    group: Iterable[HaltingMethod], requirements: Mapping[HaltingMethod, Mapping[str, Any] | None]
) -> tuple[HaltingMethod, Estimate] | None:
    """Return the halting method with the least compute in a group, with its compute.

    The result is None if no method of the group reaches the threshold.
    """
    compute = [(method, needs["compute"]) for method in group if (needs := requirements[method]) is not None]
    return min(compute, key=lambda pair: pair[1].mean) if compute else None
