"""Comparison of adaptive-depth methods by the compute that each needs for the same score.

A *halting method* is a trained method with the rule that decides when a unit stops: the run itself, a budget that was
set afterwards, fixed depths, or an exit rule. It has operating points for every seed, from little compute to much.
Methods are compared on one task, for one share of the best score that any halting method reaches:

    1. The threshold is that share of the best mean over seeds of the largest score of a halting method. Scores below 0
       are log-likelihoods in nats. The threshold is then that share of the likelihood.
    2. For each halting method and seed, the operating point of least compute is selected among those with a score that
       reaches the threshold. If settings are selected on one half of the examples, the score is that of this half. A
       halting method reaches the threshold only if it has such a point for every seed. The compute that it needs is
       interpolated between this point and the next cheaper one, at the threshold: a mixture of both, drawn at random
       for every unit, has this compute and this score. Without interpolation, two equal methods whose score at a
       setting lies near the threshold would differ by a whole step between settings.
    3. Compute and score are estimated on the other half: means over seeds, with the standard error of
       `adadepth.metrics.significance.average_over_seeds`. It includes the variation over seeds and over examples.
    4. The halting method of least compute is recommended. Every pair of methods is tested (Welch's t with its degrees
       of freedom), and p-values are corrected for the number of pairs (Holm). Methods whose difference from the
       recommended one is not significant, or below 1 % of the compute of full depth, are named.

A method that misses the threshold with some seeds is tested on its best score, because its compute is unknown.

A budget is fitted on one half of the examples, so its points have scores only on halves. If a task has budgets, all its
points are therefore selected on the first half and scored on the second. If a method has no score on the second half,
the points of budgets are left out.

Compute is counted in multiply-accumulates of a unit, or in updates if some points of a set have no such count. The
multiply-accumulates of exit rules include the predictions that a unit needs. Those of runs and budgets are measured
without the prediction, which is added if all of these points have its compute. The error of compute is the error of the
updates times the mean compute of an update.

All compared methods were trained for the same number of steps, or with the same *training compute*. Training compute is
the number of steps times the compute of a unit in a step. It is counted at full depth if units have different depths.

A *comparison* asks whether one group of halting methods needs less compute than another at the same threshold. It tests
the cheapest method of one group against the cheapest of the other. The best of many equal methods is better by chance:
if the group with the cheaper method is larger, the p-value is multiplied by the ratio of the numbers of methods. The
p-values of a comparison are then corrected for its number of tasks (Holm).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from statistics import fmean, mode
from typing import Any, NamedTuple

from adadepth.metrics.significance import LEVEL, SeedMean, average_over_seeds, compare_means, correct_p_values

QUALITY_SHARES = (0.95, 0.98, 0.99)
BUDGET = "budget"  # rule of the points whose mean depth was fitted to a target after training
_WITHOUT_PREDICTION = ("run", BUDGET)  # rules whose compute is measured without the prediction of a unit
RELEVANT_SHARE = 0.01  # least relevant difference in compute, as a share of the compute of full depth
_COMPUTE_TOLERANCE = 0.1  # relative difference in training compute up to which methods count as equal


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
        method that does not reach the threshold with every seed of the bench. `is_below` is whether the measured score
        is below the threshold, and `is_between_networks` whether figures are interpolated between separately trained
        networks with some seed.
    """
    seeds = {seed for by_seed in points.values() for seed in by_seed}
    requirements: dict[HaltingMethod, dict[str, Any] | None] = {}
    for method, by_seed in points.items():
        selected = {seed: _find_requirement(seed_points, threshold) for seed, seed_points in by_seed.items()}
        reached = {seed: point for seed, point in selected.items() if point is not None}
        requirements[method] = _estimate_requirement(reached, threshold) if set(reached) == seeds else None
    return requirements


def _find_requirement(points: Sequence[dict[str, Any]], threshold: float) -> dict[str, Any] | None:
    """Return the operating point at which a method reaches the threshold, or None if no point reaches it.

    Its figures are interpolated between the first point that reaches the threshold and the point before it. Its setting
    is that of the first point that reaches it.
    """
    for position, point in enumerate(points):
        if (score := _get_selection_score(point)) >= threshold:
            if position == 0:
                return point
            before = points[position - 1]
            share = (threshold - (low := _get_selection_score(before))) / (score - low)
            mixed = {key: _mix(before.get(key), point.get(key), share) for key in _MIXED_FIGURES}
            is_between_networks = before["setting"] != point["setting"] and share < 1
            mixed["is_between_networks"] = is_between_networks
            return {**point, **{key: value for key, value in mixed.items() if value is not None}}
    return None


# Means over units, which a random mixture of two settings interpolates.
_MIXED_FIGURES = ("compute", "updates", "score", "updates_error", "score_error")


def _mix(first: float | None, second: float | None, share: float) -> float | None:
    return None if first is None or second is None else first + share * (second - first)


def _get_selection_score(point: Mapping[str, Any]) -> float:
    score = point.get("chosen_score")
    return float(point["score"] if score is None else score)


def _get_compute(point: Mapping[str, Any]) -> float:
    return float(point["compute"])


def _estimate_requirement(selected: Mapping[int, Mapping[str, Any]], threshold: float) -> dict[str, Any]:
    points = list(selected.values())
    correlations = [point["spearman"] for point in points if point.get("spearman") is not None]
    score = _average_scores(points)
    return {
        "compute": _average_compute(points),
        "updates": average_over_seeds(
            [float(point["updates"]) for point in points], [point.get("updates_error") for point in points]
        ),
        "score": score,
        "is_below": score.mean < threshold,
        "is_between_networks": any(point.get("is_between_networks", False) for point in points),
        "spearman": fmean(correlations) if correlations else None,
        "settings": {
            seed: point["rule"] or " ".join(point["setting"]) or "as trained" for seed, point in selected.items()
        },
    }


def _average_compute(points: Sequence[Mapping[str, Any]]) -> SeedMean:
    update_errors = [point.get("updates_error") for point in points]
    errors = [
        None if error is None else error * point["compute"] / max(point["updates"], 1e-12)
        for error, point in zip(update_errors, points, strict=True)
    ]
    return average_over_seeds(list(map(_get_compute, points)), errors)


def _average_scores(points: Sequence[Mapping[str, Any]]) -> SeedMean:
    return average_over_seeds(
        [float(point["score"]) for point in points], [point.get("score_error") for point in points]
    )


# ---- tests


class Candidate(NamedTuple):
    """Halting method at a threshold score, as it is tested against other methods.

    Attributes:
        compute: Compute that the method needs, or None if some seed misses the threshold.
        best_score: Largest score.
    """

    compute: SeedMean | None
    best_score: SeedMean

    @property
    def order(self) -> float:
        """Compute that sorts methods; infinite for a method that misses the threshold."""
        return math.inf if self.compute is None else self.compute.mean


Candidates = dict[HaltingMethod, Candidate]


def measure_candidates(
    points: OperatingPoints, requirements: Mapping[HaltingMethod, Mapping[str, Any] | None]
) -> Candidates:
    """Return the compute and the best score of every method that has points for all seeds of the bench.

    Args:
        points: Operating points of the task.
        requirements: Requirement of each method from `find_requirements`.
    """
    seeds = {seed for by_seed in points.values() for seed in by_seed}
    return {
        method: Candidate(
            None if requirement is None else requirement["compute"],
            _average_scores([max(seed_points, key=_get_selection_score) for seed_points in points[method].values()]),
        )
        for method, requirement in requirements.items()
        if set(points[method]) == seeds
    }


def compare_candidates(cheaper: Candidate, other: Candidate, least: float = 0.0) -> float:
    """Return the p-value of the difference between a method, which reaches the threshold, and one of more compute.

    A method that misses the threshold is tested on its best score. If both reach it, a difference in compute below
    `least` is irrelevant, and the p-value is 1.
    """
    assert cheaper.compute is not None
    if other.compute is None:
        is_worse = other.best_score.mean < cheaper.best_score.mean
        return compare_means(other.best_score, cheaper.best_score) if is_worse else 1.0
    is_relevant = other.compute.mean - cheaper.compute.mean >= least
    return compare_means(cheaper.compute, other.compute) if is_relevant else 1.0


class Recommendation(NamedTuple):
    """Halting method with the least compute, and the methods that do not differ significantly from it."""

    method: HaltingMethod
    ties: list[HaltingMethod]


def recommend_method(candidates: Candidates, least: float = 0.0) -> Recommendation | None:
    """Recommend the halting method with the least compute, or return None if none reaches the threshold.

    The p-values are corrected for all pairs of methods, not only for those with the recommended one, because it was
    selected by the same measurements.

    Args:
        candidates: Methods of the task from `measure_candidates`.
        least: Least relevant difference in compute.
    """
    ordered = sorted(candidates, key=lambda method: candidates[method].order)
    if not ordered or candidates[ordered[0]].compute is None:
        return None
    pairs = [pair for pair in combinations(ordered, 2) if candidates[pair[0]].compute is not None]
    p_values = correct_p_values(
        [compare_candidates(candidates[first], candidates[second], least) for first, second in pairs]
    )
    ties = [second for (first, second), p in zip(pairs, p_values, strict=True) if first == ordered[0] and p >= LEVEL]
    return Recommendation(ordered[0], ties)


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
        cheaper: `first` or `second`, the group with the cheapest method.
        p: p-value of the claim that this group needs less compute.
        seeds: Number of seeds.
    """

    first: tuple[HaltingMethod, SeedMean] | None
    second: tuple[HaltingMethod, SeedMean] | None
    cheaper: str
    p: float
    seeds: int

    @property
    def significantly_cheaper(self) -> str | None:
        """The group that needs less compute, or None if the difference is not significant."""
        return self.cheaper if self.p < LEVEL else None


def evaluate_comparison(comparison: Comparison, candidates: Candidates, least: float = 0.0) -> ComparisonResult | None:
    """Compare two groups of methods on one task; return None if a group is missing or none reaches the threshold.

    Args:
        comparison: The comparison to decide.
        candidates: Methods of the task from `measure_candidates`.
        least: Least relevant difference in compute.
    """
    predicates = (comparison.is_first, comparison.is_second)
    groups = [[method for method in candidates if is_member(method)] for is_member in predicates]
    if comparison.is_within_method:
        shared = set.intersection(*({method.name for method in group} for group in groups))
        groups = [[method for method in group if method.name in shared] for group in groups]
    if not all(groups):
        return None
    best = [min(group, key=lambda method: candidates[method].order) for group in groups]
    winner = min((0, 1), key=lambda index: candidates[best[index]].order)
    cheaper, other = candidates[best[winner]], candidates[best[1 - winner]]
    if cheaper.compute is None:
        return None
    if other.compute is None:  # the best of a group that misses the threshold
        other = max((candidates[method] for method in groups[1 - winner]), key=lambda method: method.best_score.mean)
    advantage = max(1.0, len(groups[winner]) / len(groups[1 - winner]))
    p = min(1.0, advantage * compare_candidates(cheaper, other, least))
    first, second = (find_cheapest_method(group, candidates) for group in groups)
    return ComparisonResult(first, second, "second" if winner else "first", p, cheaper.compute.seeds)


def find_cheapest_method(
    group: Iterable[HaltingMethod], candidates: Candidates
) -> tuple[HaltingMethod, SeedMean] | None:
    """Return the halting method with the least compute in a group, with its compute.

    The result is None if no method of the group reaches the threshold.
    """
    compute = [(method, needs) for method in group if (needs := candidates[method].compute) is not None]
    return min(compute, key=lambda pair: pair[1].mean) if compute else None
