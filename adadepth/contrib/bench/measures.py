"""Many ways of allocating depth, side by side: what each needs for the same quality, and which to take.

A *reading* of a way is what decides who stops: the run itself, a budget it was set to, fixed depths, a rule. It has
points, from little work to much, with every seed. For a task and a share of the best score that any reading reaches,

    1. the bar is that share of the best mean over seeds of the largest score of a reading; of scores below 0, which are
       likelihoods in nats, that share of the likelihood;
    2. of each reading and seed the point of least work is taken whose score on the choosing half is at the bar, or
       whose score is, where nothing was chosen; a reading that has none with some seed does not reach the bar;
    3. work and score are then told of the other half: means over S seeds, with the standard error
       sqrt(var / S + mean(e^2) / S), var the variance over seeds, e the error of each over its examples; a single seed
       has e alone;
    4. the reading of least work is to be taken. Those whose work differs from its by less than 1.96 standard errors of
       the difference are not told apart from it.

Work is counted in multiply-accumulates of a unit, and in updates where they were not counted for all points of a set;
its error is that of the updates at the mean price of an update.

What is compared was trained alike: for as many steps, or for as much *training work*, steps times the work of a unit in
a step, which is taken for that of full depth where units have several depths.

A *contest* asks whether one group of readings needs less work than another at the same bar. A task decides it by the
cheapest reading of each group, told apart as above; a group of which no reading reaches the bar loses to one that does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, mode, variance
from typing import Any, NamedTuple

KEEPS = (0.95, 0.98, 0.99)
_EQUAL_WORK = 0.1  # by which the training work of ways may differ that count as trained for equal work
_APART = 1.96  # standard errors of a difference beyond which it is told apart


class Told(NamedTuple):
    """A mean over seeds and its standard error; None where nobody measured one."""

    mean: float
    error: float | None


class Way(NamedTuple):
    """What decides who stops: a way, and what is read of it."""

    way: str
    read: str

    @property
    def label(self) -> str:
        """Of both, as people read it."""
        return self.way if self.read == "run" else f"{self.way}, {self.read}"


WayPoints = dict[Way, dict[int, list[dict[str, Any]]]]  # by reading and seed


def points_of(results: Iterable[Mapping[str, Any]], name: str) -> WayPoints:
    """All points of a task in one of its sets, by reading and seed, from little `work` to much.

    The settings of a way, such as fixed depths, are points of the same reading.
    """
    found: WayPoints = {}
    for result in results:
        for read, points in result["sets"].get(name, {}).get("readings", {}).items():
            known = [{**point, "setting": result["setting"]} for point in points if point["score"] is not None]
            if known:
                found.setdefault(Way(result["way"], read), {}).setdefault(result["seed"], []).extend(known)
    every = [points for seeds in found.values() for points in seeds.values()]
    is_counted = all(point.get("macs") is not None for points in every for point in points)
    for points in every:
        for point in points:
            point["work"] = float(point["macs" if is_counted else "updates"])
        points.sort(key=_work)
    return found


# ---- what was trained alike


def of_equal_steps(results: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Of a task's results those trained for as many steps as most, or fewer: a second stage comes on top of a first."""
    usual = mode(result["steps"] for result in results)
    return [result for result in results if result["steps"] <= usual]


def of_equal_work(results: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Of a task's results those whose training took as much work as that of full depth for the usual steps.

    Empty where nothing was trained for more steps than most.
    """
    alike = of_equal_steps(results)
    if len(alike) == len(results):
        return []
    most = max(map(_training_work, alike))
    return [result for result in results if abs(_training_work(result) / most - 1.0) <= _EQUAL_WORK]


def _training_work(result: Mapping[str, Any]) -> float:
    """Steps times the multiply-accumulates of a unit in a step: of a network of one depth those of its first set.

    Of others the most updates, at the mean price of one.
    """
    own = next(iter(result["sets"].values()))["readings"]["run"][0]
    share = result["max_updates"] / own["updates"] if own["updates_error"] else 1.0
    return float(result["steps"] * own["macs"] * share)


# ---- what each reading needs


def best_score(points: WayPoints) -> float:
    """The largest mean over seeds of a reading's largest score."""
    return max(fmean(max(map(_chosen, each)) for each in seeds.values()) for seeds in points.values())


def bar_of(points: WayPoints, keep: float) -> float:
    """The score that is a share of the best one."""
    best = best_score(points)
    return best + math.log(keep) if best < 0.0 else keep * best


def needed(points: WayPoints, bar: float) -> dict[Way, dict[str, Any] | None]:
    """By reading what it needs to be at the bar: `work`, `updates` and `score`, estimates, and its `settings` by seed.

    None where it is not reached with every seed of the bench.
    """
    seeds = {seed for by_seed in points.values() for seed in by_seed}
    found: dict[Way, dict[str, Any] | None] = {}
    for reading, by_seed in points.items():
        taken = {seed: _cheapest(each, bar) for seed, each in by_seed.items()}
        chosen = {seed: point for seed, point in taken.items() if point is not None}
        found[reading] = _told(chosen) if set(chosen) == seeds else None
    return found


def _cheapest(points: Sequence[dict[str, Any]], bar: float) -> dict[str, Any] | None:
    return next((point for point in points if _chosen(point) >= bar), None)


def _chosen(point: Mapping[str, Any]) -> float:
    chosen = point.get("chosen_score")
    return float(point["score"] if chosen is None else chosen)


def _work(point: Mapping[str, Any]) -> float:
    return float(point["work"])


def _told(chosen: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    each = list(chosen.values())
    work, updates = [_work(point) for point in each], [float(point["updates"]) for point in each]
    errors = [
        None if point.get("updates_error") is None else point["updates_error"] * of / max(steps, 1e-12)
        for point, of, steps in zip(each, work, updates, strict=True)
    ]
    return {
        "work": mean_of_seeds(work, errors),
        "updates": mean_of_seeds(updates, [point.get("updates_error") for point in each]),
        "score": mean_of_seeds([float(point["score"]) for point in each], [point.get("score_error") for point in each]),
        "spearman": _mean_of(point.get("spearman") for point in each),
        "settings": {seed: _setting(point) for seed, point in chosen.items()},
    }


def _setting(point: Mapping[str, Any]) -> str:
    """What to set, in words."""
    return point["rule"] or " ".join(point["setting"]) or "as trained"


def _mean_of(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def mean_of_seeds(values: Sequence[float], errors: Sequence[float | None]) -> Told:
    """A mean over seeds, and the standard error of seeds and examples together."""
    within = [error**2 for error in errors if error is not None]
    if len(within) < len(values) and len(values) == 1:
        return Told(values[0], None)
    between = variance(values) if len(values) > 1 else 0.0
    return Told(fmean(values), math.sqrt((between + (fmean(within) if within else 0.0)) / len(values)))


def recommendation(needs: Mapping[Way, Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """The reading to take and those that are not told apart from it; None where none reaches the bar."""
    reached = sorted(
        ((reading, told) for reading, told in needs.items() if told is not None), key=lambda each: each[1]["work"].mean
    )
    if not reached:
        return None
    (taken, best), *others = reached
    alike = [reading for reading, told in others if not are_apart(best["work"], told["work"])]
    return {"take": taken, "not_told_apart": alike}


def are_apart(first: Told, second: Told) -> bool:
    """Whether two means differ by more than chance explains; an error that nobody measured counts as none."""
    error = math.hypot(first.error or 0.0, second.error or 0.0)
    return abs(first.mean - second.mean) > _APART * error


# ---- contests


class Contest(NamedTuple):
    """What is asked, who has said what, and the two groups that it compares, as tests of a reading.

    Attributes:
        is_within: Whether only ways count that have readings of both groups.
    """

    asked: str
    said: str
    one: str
    is_one: Callable[[Way], bool]
    other: str
    is_other: Callable[[Way], bool]
    is_within: bool = False


class Outcome(NamedTuple):
    """Of one task: the cheapest reading of each group and what it needs, None where none is at the bar; who needs less.

    `less` is `one`, `other`, or None where they are not told apart.
    """

    one: tuple[Way, Told] | None
    other: tuple[Way, Told] | None
    less: str | None


def outcome_of(contest: Contest, needs: Mapping[Way, Mapping[str, Any] | None]) -> Outcome | None:
    """What a task says of a contest; None where it lacks one of the groups, or neither is at the bar.

    Args:
        contest: To decide.
        needs: See `needed`.
    """
    groups = [[way for way in needs if belongs(way)] for belongs in (contest.is_one, contest.is_other)]
    if contest.is_within:
        shared = set.intersection(*({way.way for way in group} for group in groups))
        groups = [[way for way in group if way.way in shared] for group in groups]
    one, other = (_cheapest_of(group, needs) for group in groups)
    if not all(groups) or (one is None and other is None):
        return None
    if one is None or other is None:
        return Outcome(one, other, "other" if one is None else "one")
    less = "one" if one[1].mean < other[1].mean else "other"
    return Outcome(one, other, less if are_apart(one[1], other[1]) else None)


def _cheapest_of(group: Iterable[Way], needs: Mapping[Way, Mapping[str, Any] | None]) -> tuple[Way, Told] | None:
    reached = [(way, told["work"]) for way in group if (told := needs[way]) is not None]
    return min(reached, key=lambda each: each[1].mean) if reached else None
