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
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, variance
from typing import Any, NamedTuple

KEEPS = (0.95, 0.98, 0.99)
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
