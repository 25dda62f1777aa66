"""Recommended method of each task of a bench, as sentence, table and figure; `measures` has the definitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from adadepth.contrib.bench.comparisons import (
    ComparisonOutcome,
    Requirements,
    describe_p_value,
    evaluate_comparisons,
    format_requirement,
    format_share,
    has_adaptive_depth,
    has_fixed_depth,
)
from adadepth.contrib.bench.descriptions import describe_method
from adadepth.contrib.bench.measures import (
    RELEVANT_SHARE,
    Candidates,
    ComparisonResult,
    HaltingMethod,
    OperatingPoints,
    Recommendation,
    collect_points,
    compute_best_score,
    compute_threshold,
    find_budget_scores,
    find_cheapest_method,
    find_requirements,
    find_uncounted_predictions,
    measure_candidates,
    recommend_method,
    select_equal_steps,
)
from adadepth.metrics.significance import SeedMean
from adadepth.report.figure import Axis, Dot, Figure, Panel, Scatter
from adadepth.report.table import Column, Table, make_number_format, number, percent, text

ADVISED_SHARE = 0.98  # share of the best score at which a method is recommended
_BETWEEN = " (interpolated between separately trained networks)"
RECOMMENDATIONS = "recommendations"  # name of the table and of the figure

Results = Sequence[Mapping[str, Any]]


class TaskOutcome(NamedTuple):
    """Compute that each method needs on the first evaluation set of a task, after equal training steps.

    Attributes:
        task: Name of the task.
        runs: Results of the task.
        best_score: Best score that any method reaches.
        threshold: Score that a method must reach.
        full_depth: Compute of full depth.
        requirements: Requirement of each method for the threshold, or None for a method that does not reach it.
        candidates: Compute and best score of each method, for tests.
        recommendation: Recommended method, or None if no method reaches the threshold.
        depth_comparison: Comparison of adaptive with fixed depth, corrected for the number of tasks, or None if the
            task lacks one of both.
    """

    task: str
    runs: Results
    best_score: float
    threshold: float
    full_depth: float
    requirements: Requirements
    candidates: Candidates
    recommendation: Recommendation | None
    depth_comparison: ComparisonResult | None = None

    @property
    def seeds(self) -> list[int]:
        """Seeds of the runs."""
        return list_seeds(self.runs)

    def get_requirement(self, method: HaltingMethod) -> Mapping[str, Any]:
        """Return the compute that a method needs, which must reach the threshold score."""
        requirement = self.requirements[method]
        assert requirement is not None
        return requirement

    def find_cheapest(self, is_adaptive: bool) -> tuple[HaltingMethod, SeedMean] | None:
        """Return the cheapest method of adaptive or fixed depth, or None if none reaches the threshold."""
        is_member = has_adaptive_depth if is_adaptive else has_fixed_depth
        return find_cheapest_method(filter(is_member, self.candidates), self.candidates)


def list_tasks(results: Results) -> list[str]:
    """Return the names of the tasks that occur in the results, in order."""
    return list(dict.fromkeys(result["task"] for result in results))


def list_sets(runs: Results) -> list[str]:
    """Return the names of the evaluation sets. Methods are compared on the first one."""
    return list(dict.fromkeys(name for run in runs for name in run["sets"]))


def list_seeds(runs: Results) -> list[int]:
    """Return the seeds of the runs in ascending order."""
    return sorted({run["seed"] for run in runs})


def format_seeds(runs: Results) -> str:
    """Format the number of seeds, or its range over tasks."""
    counts = {len(list_seeds(select_task(runs, task))) for task in list_tasks(runs)}
    least, most = min(counts), max(counts)
    return f"n = {least if least == most else f'{least} to {most}'} seed{'' if most == 1 else 's'}"


def select_task(results: Results, task: str) -> list[Mapping[str, Any]]:
    """Select the results of one task."""
    return [result for result in results if result["task"] == task]


def find_full_depth_compute(points: OperatingPoints) -> float:
    """Return the compute of full depth on a task, the reference of relative compute.

    It is the maximum over halting methods of the compute of the most expensive point, averaged over seeds.
    """
    largest = [
        fmean(max(point["compute"] for point in seed_points) for seed_points in by_seed.values())
        for by_seed in points.values()
    ]
    return max(largest)


def evaluate_tasks(results: Results) -> list[TaskOutcome]:
    """Return the outcome of every task for which there are scores."""
    outcomes = []
    for task in list_tasks(results):
        runs = select_task(results, task)
        points = collect_points(select_equal_steps(runs), list_sets(runs)[0])
        if points:
            threshold = compute_threshold(points, ADVISED_SHARE)
            requirements = find_requirements(points, threshold)
            candidates = measure_candidates(points, requirements)
            full_depth = find_full_depth_compute(points)
            outcomes.append(
                TaskOutcome(
                    task,
                    runs,
                    compute_best_score(points),
                    threshold,
                    full_depth,
                    requirements,
                    candidates,
                    recommend_method(candidates, RELEVANT_SHARE * full_depth),
                )
            )
    (_, by_task), *_ = evaluate_all(outcomes)
    return [outcome._replace(depth_comparison=by_task.get(outcome.task)) for outcome in outcomes]


def evaluate_all(outcomes: Sequence[TaskOutcome]) -> list[ComparisonOutcome]:
    """Evaluate the comparisons of groups of methods on all tasks."""
    return evaluate_comparisons(
        {outcome.task: outcome.candidates for outcome in outcomes},
        {outcome.task: outcome.full_depth for outcome in outcomes},
    )


# ---- sentences


def format_omitted_budgets(runs: Results, set_name: str) -> str | None:
    """Format which budgets cannot be compared with the other methods of a set and why, or return None if all can."""
    budgets = find_budget_scores(runs, set_name)
    if not budgets.methods or budgets.are_comparable:
        return None
    return (
        f"Left out: mean depths that were set after training ({', '.join(budgets.methods)}). They are scored on the "
        f"half of the examples on which they were not fitted. Runs of {', '.join(budgets.unscored)} have no score on "
        "this half."
    )


def format_uncounted_predictions(runs: Results, set_name: str) -> str | None:
    """Format whose compute leaves out the prediction while that of exit rules includes it, or return None."""
    uncounted = find_uncounted_predictions(collect_points(runs, set_name))
    if not uncounted:
        return None
    return (
        "Compute of exit rules, and of fixed depths of a deeper network, includes the prediction head. Compute of runs "
        "and budgets includes it only for PonderNet, TRM, and ALBERT without ACT, because the results of "
        f"{', '.join(uncounted)} do not have the compute of a prediction."
    )


class Advice(NamedTuple):
    """Recommended method for a task, with the reason in sentences."""

    method: str
    reason: str


def format_advice(outcome: TaskOutcome, quote: str = "") -> Advice | None:
    """Format the recommended method for a task with the reason; return None if none reaches the threshold.

    Args:
        outcome: Outcome of the task.
        quote: Quotation mark around names of methods and settings.
    """
    if outcome.recommendation is None:
        return None
    method = outcome.recommendation.method
    requirement = outcome.get_requirement(method)
    setting = f"{quote}{format_setting(requirement)}{quote}" if has_fixed_depth(method) else ""
    details = "; ".join(filter(None, [describe_method(method), setting]))
    name = f"{quote}{method.label}{quote}"
    needs = f"{name} needs {_describe_compute(outcome, method)}.{_describe_low_score(outcome, method)}"
    reason = f"{needs} {_format_alternative(outcome, method, quote)}"
    return Advice(name + (f" ({details})" if details else ""), reason)


def _format_alternative(outcome: TaskOutcome, method: HaltingMethod, quote: str) -> str:
    """Format the compute of the cheapest method other than `method`.

    The alternative has fixed depth if `method` has adaptive depth, and adaptive depth otherwise.
    """
    is_fixed = has_fixed_depth(method)
    kind = "adaptive depth" if is_fixed else "fixed depth"
    if not any(map(has_adaptive_depth if is_fixed else has_fixed_depth, outcome.requirements)):
        return f"The task has no method of {kind}."
    alternative = outcome.find_cheapest(is_adaptive=is_fixed)
    if alternative is None:
        return f"No method of {kind} reaches {percent(ADVISED_SHARE)} of the best score."
    name, _ = alternative
    assert outcome.depth_comparison is not None
    is_significant = outcome.depth_comparison.significantly_cheaper is not None
    difference = "which is significantly more" if is_significant else "which is not significantly more"
    difference += f" ({describe_p_value(outcome.depth_comparison.p)})"
    label = f"{quote}{name.label}{quote}"
    needs = f"The cheapest method of {kind} ({label}) needs {_describe_compute(outcome, name)}, {difference}."
    return needs + _describe_low_score(outcome, name)


def _describe_compute(outcome: TaskOutcome, method: HaltingMethod) -> str:
    """Describe the compute that a method needs, and whether it is interpolated between trained networks."""
    requirement = outcome.get_requirement(method)
    compute = f"{format_share(requirement['compute'], outcome.full_depth)} of the compute of full depth"
    return f"{compute}{_BETWEEN}" if requirement["is_between_networks"] else compute


def _describe_low_score(outcome: TaskOutcome, method: HaltingMethod) -> str:
    """Return a sentence on a measured score below the threshold, or an empty text if it reaches the threshold."""
    requirement = outcome.get_requirement(method)
    if not requirement["is_below"]:
        return ""
    score = format_estimate(requirement["score"], 4)
    return f" Its measured score, {score}, is below the required {outcome.threshold:.4f}."


def format_recommendation(outcome: TaskOutcome) -> str:
    """Format the recommended method for a task, the reason, and equally good methods."""
    advice = format_advice(outcome)
    if advice is None:
        threshold = f"{outcome.threshold:.4f}, {percent(ADVISED_SHARE)} of the best score"
        return f"no method reaches the threshold of {threshold}, with every seed."
    ties = (
        f" These methods do not differ significantly from the recommended method in compute: {names}."
        if (names := format_ties(outcome))
        else ""
    )
    return f"use {advice.method}. {advice.reason}{ties}"


def format_recommendations(results: Results) -> list[tuple[str, str]]:
    """Format the recommended method for each task, and the reason."""
    outcomes = {outcome.task: outcome for outcome in evaluate_tasks(results)}
    return [
        (task, format_recommendation(outcomes[task]) if task in outcomes else "no run has a score.")
        for task in list_tasks(results)
    ]


def format_ties(outcome: TaskOutcome) -> str:
    """Format the methods whose compute does not differ significantly from the recommended one's.

    A method that misses the threshold has no compute to compare.
    """
    ties = outcome.recommendation.ties if outcome.recommendation is not None else ()
    reached = [(tie.label, needs) for tie in ties if (needs := outcome.requirements[tie]) is not None]
    return "; ".join(f"{label}{'†' * needs['is_below']}" for label, needs in reached)


def format_setting(requirement: Mapping[str, Any]) -> str:
    """Format the settings that were selected over seeds, each once."""
    return ", ".join(sorted(set(requirement["settings"].values())))


def format_estimate(value: SeedMean, digits: int) -> str:
    """Format a mean with its standard error."""
    return number(value.mean, digits) + ("" if value.error is None else f" ± {number(value.error, digits)}")


# ---- table


def make_error_columns(key: str, title: str) -> list[Column]:
    """Return the table columns of a value with standard error: two numbers in files, one text on pages."""
    return [
        Column(key, where="file"),
        Column(f"{key}_error", where="file"),
        Column(f"{key}_text", title, text, where="view"),
    ]


def build_recommendations_table(outcomes: Iterable[TaskOutcome], descriptions: Mapping[str, str]) -> Table:
    """Build the table of the recommended method of each task, with its compute."""
    score = make_number_format(4)
    columns = [
        Column("task", "task", text, "text", remark="about"),
        Column("method", "method", text, "text"),
        *make_error_columns("compute", "compute"),
        *make_error_columns("fixed", "compute of the cheapest fixed depth"),
        *make_error_columns("updates", "updates"),
        *make_error_columns("score", "score"),
        Column("threshold", "threshold", score),
        Column("best", "best score", score),
        Column("setting", "selected setting", text, "text"),
        Column("ties", "not significantly different in compute", text, "text", where="page", absent="none"),
        Column("overrides", "train with", text, "text"),
        Column("seeds"),
    ]
    return Table(RECOMMENDATIONS, columns, [_build_row(outcome, descriptions) for outcome in outcomes])


def _build_row(outcome: TaskOutcome, descriptions: Mapping[str, str]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "task": outcome.task,
        "about": descriptions.get(outcome.task, ""),
        "threshold": outcome.threshold,
        "best": outcome.best_score,
        "seeds": len(outcome.seeds),
    }
    if outcome.recommendation is not None:
        method = outcome.recommendation.method
        requirement = outcome.get_requirement(method)
        row |= {
            "method": method.label,
            "setting": format_setting(requirement),
            "ties": format_ties(outcome) or None,
            "overrides": _format_overrides(outcome.runs, method),
        }
        row |= format_share_cells("compute", requirement, outcome.full_depth)
        row |= _format_cells("updates", requirement["updates"], 2) | _format_cells("score", requirement["score"], 4)
    if (fixed := outcome.find_cheapest(is_adaptive=False)) is not None:
        row |= format_share_cells("fixed", outcome.get_requirement(fixed[0]), outcome.full_depth)
    return row


def format_share_cells(key: str, requirement: Mapping[str, Any], full_depth: float) -> dict[str, Any]:
    """Return the cells for compute relative to full depth; see `make_error_columns`."""
    compute: SeedMean = requirement["compute"]
    error = None if compute.error is None else compute.error / full_depth
    words = format_requirement(requirement, full_depth)
    return {key: compute.mean / full_depth, f"{key}_error": error, f"{key}_text": words}


def _format_cells(key: str, value: SeedMean, digits: int) -> dict[str, Any]:
    return {key: value.mean, f"{key}_error": value.error, f"{key}_text": format_estimate(value, digits)}


def _format_overrides(runs: Results, method: HaltingMethod) -> str:
    """Format the overrides that are specific to one method of a task.

    The settings that the bench compares are skipped.
    """
    override_sets = [set(run["overrides"]) for run in select_equal_steps(runs)]
    method_overrides = [run["overrides"] for run in runs if run["way"] == method.name]
    shared = set.intersection(*map(set, method_overrides)) - set.intersection(*override_sets)
    distinct = [
        override
        for override in method_overrides[0]
        if override in shared and override.partition("=")[0] not in _COMPARED_KEYS
    ]
    return " ".join(distinct) or "the task's own settings"


_COMPARED_KEYS = {
    "exit_rules", "budget.targets", "seed", "trainer.max_steps", "trainer.eval_steps", "dataset.train_examples",
}  # fmt: skip


# ---- figure


def build_recommendations_figure(outcomes: Sequence[TaskOutcome]) -> Figure:
    """Plot the compute of the cheapest adaptive and the cheapest fixed-depth method of each task.

    A ring marks the recommended method.
    """
    groups: dict[str, list[Dot]] = {"adaptive depth": [], "fixed depth": []}
    for row, outcome in enumerate(outcomes):
        for (name, dots), is_adaptive, offset in zip(groups.items(), (True, False), (-0.12, 0.12), strict=True):
            if (cheapest := outcome.find_cheapest(is_adaptive)) is not None:
                dots.append(_build_dot(outcome, *cheapest, name, row + offset))
    names = [outcome.task for outcome in outcomes]
    x_axis = Axis("compute, share of full depth; ring: recommended method", (0.0, 1.0), percent=True)
    y_axis = Axis("", (len(names) - 0.4, -0.6), range(len(names)), names)
    title = f"Least compute that keeps {percent(ADVISED_SHARE)} of the best score"
    description = f"{title}, cheapest method of adaptive and of fixed depth, for the tasks {', '.join(names)}"
    panel = Panel(title, Scatter(list(groups.items())), x_axis, y_axis, description, max(1.0, len(names) / 6))
    return Figure(
        RECOMMENDATIONS, [panel], columns=1, of=format_seeds([run for outcome in outcomes for run in outcome.runs])
    )


def _build_dot(outcome: TaskOutcome, method: HaltingMethod, compute: SeedMean, group: str, y: float) -> Dot:
    is_recommended = outcome.recommendation is not None and outcome.recommendation.method == method
    share = compute.mean / outcome.full_depth
    needs = format_requirement(outcome.get_requirement(method), outcome.full_depth)
    title = f"{outcome.task}, {group}: {method.label}, {needs}"
    return Dot(share, y, title, is_recommended, (compute.error or 0.0) / outcome.full_depth)
