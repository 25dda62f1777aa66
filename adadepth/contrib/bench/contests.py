"""Questions that papers answer differently, answered task by task by what each way needs; see `measures`.

A sentence of the page is one of three, by the rule for contests there: the first group needs less, the second does, or
they are not told apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from adadepth.contrib.bench.measures import Contest, Outcome, Told, Way, outcome_of
from adadepth.report.table import Column, Table, percent, text

_OF_PREDICTIONS = frozenset({"margin", "confidence", "entropy", "kl", "patience", "distance"})
_OF_GATES = frozenset({"quantile", "correct", "budget"})
_HALTING = ("act", "ponder", "halting", "router")  # how ways begin that stop where they were trained to


def _is_learned(way: Way) -> bool:
    return way.read in _OF_GATES or (way.read == "run" and way.way.startswith(_HALTING))


def is_same_for_all(way: Way) -> bool:
    """Whether everybody gets the same depth: networks of one depth, or one network read at one."""
    return way.read == "fixed" or (way.read == "run" and way.way.startswith(("fixed", "layers")))


def _is_way(*names: str, reads: Iterable[str] = ()) -> Callable[[Way], bool]:
    wanted = frozenset(reads)
    return lambda way: way.way in names and (not wanted or way.read in wanted)


CONTESTS = (
    Contest(
        "Does depth that differs from unit to unit need less work than one depth for all?",
        "Yes, say most papers on early exits; controls of equal work are rarely shown.",
        "differing depth",
        lambda way: way.read in _OF_PREDICTIONS or _is_learned(way),
        "one depth",
        is_same_for_all,
    ),
    Contest(
        "Does a rule read off the prediction afterwards need less than what learned to stop?",
        "Yes, by far (arXiv 2607.20519); ACT (arXiv 1603.08983) and PonderNet (arXiv 2107.05407) learn to stop.",
        "rule afterwards",
        lambda way: way.read in _OF_PREDICTIONS,
        "learned halting",
        _is_learned,
    ),
    Contest(
        "Does a gate that was trained with the network need less than one that learned behind the frozen network?",
        "Ouro (arXiv 2510.25741) trains its gate twice, the second time alone.",
        "trained together",
        _is_way("gate", "ponder_uniform", reads=("quantile", "run")),
        "trained alone",
        _is_way("gate_alone", "halting_alone", reads=("quantile", "run")),
    ),
    Contest(
        "Does the margin of the two likeliest answers need less than another sign of a sure prediction?",
        "Entropy (arXiv 1709.01686), confidence and patience (arXiv 2006.04152) are more usual.",
        "margin",
        lambda way: way.read == "margin",
        "another sign",
        lambda way: way.read in _OF_PREDICTIONS - {"margin"},
        is_within=True,
    ),
    Contest(
        "Does one block, applied as often as it takes, need less than a network with more layers of its own?",
        "Looped models save parameters (arXiv 1909.11942) and keep quality at equal work (arXiv 2510.25741).",
        "one block",
        _is_way("fixed", reads=("run",)),
        "more layers",
        _is_way("layers"),
    ),
    Contest(
        "ACT: does the weighted sum of states need less than the interpolated state?",
        "Graves (arXiv 1603.08983) sums; ACT-ALBERT and the Universal Transformer (arXiv 1807.03819) interpolate. The "
        "interpolated state comes without recall and readouts, as in ACT-ALBERT; with the sum, pointers and mazes have "
        "both, additions recall, texts neither.",
        "weighted sum",
        _is_way("act"),
        "interpolated state",
        _is_way("act_single"),
    ),
)


def contests_table(needs: Mapping[str, Mapping[Way, Mapping[str, Any] | None]], full: Mapping[str, float]) -> Table:
    """A row a contest and task that has both groups.

    Args:
        needs: By task, see `adadepth.contrib.bench.measures.needed`.
        full: The work of full depth by task.
    """
    columns = [
        Column("contest", "between", text, "text"),
        Column("task", "task", text, "text"),
        Column("less", "needs less", text, "text"),
        Column("one", "cheapest of the first", text, "text"),
        Column("other", "cheapest of the second", text, "text"),
    ]
    rows = [
        {"contest": f"{contest.one} or {contest.other}", "task": task, **_row(contest, found, full[task])}
        for contest in CONTESTS
        for task, each in needs.items()
        if (found := outcome_of(contest, each)) is not None
    ]
    return Table("contests", columns, rows)


def _row(contest: Contest, found: Outcome, full: float) -> dict[str, str]:
    said = {"one": contest.one, "other": contest.other, None: "not told apart"}[found.less]
    return {"one": _told(found.one, full), "other": _told(found.other, full), "less": said}


def _told(found: tuple[Way, Told] | None, full: float) -> str:
    if found is None:
        return "none is good enough"
    way, work = found
    return f"{way.label}: {share_of(work, full)}"


def share_of(work: Told, full: float) -> str:
    """A share of the work of full depth with its standard error."""
    return percent(work.mean / full) + ("" if work.error is None else f" ± {100 * work.error / full:.1f}")
