"""Does depth adapt at all? How many depths are really used, what of their variance classes explain, and a warning."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Classes = Mapping[str, Mapping[str, Any]]

# Depths that are used as much as so many equally frequent ones: 1 is one depth for everybody.
FEWEST = 1.5
# From this share of the variance on, what a token is decides its depth, and the token itself does not.
DECIDED = 0.9

_KINDS = ("plain", "mask/mask", "mask/random", "mask/original", "question", "context", "ending", "cls", "sep")
# Ways to part the units of a set, and the classes that are their parts: no unit is in two of one way.
KIND = "kind"
_WAYS: dict[str, Callable[[str], bool]] = {
    KIND: lambda name: name in _KINDS,
    "label": lambda name: name.startswith("label: ") or name == "unlabelled",
    "correctness": lambda name: name in ("correct", "wrong"),
    "length": lambda name: name.startswith("length "),
    "difficulty": lambda name: name.startswith("difficulty "),
}


def describe_adaptation(classes: Classes, unit: str) -> dict[str, Any]:
    """How many depths are really used, and by what they differ.

    The exponential of a distribution's entropy is the number of equally frequent values that are as varied.

    Args:
        classes: Described classes by name, `all` among them, with `n`, `mean`, `std`, `entropy` (nats), `histogram`.
        unit: What halts.

    Returns:
        `effective_depths` of all units; `effective_depths_within`: the mean over classes, weighted by their units,
        where there are any; `commonest`, the depth of most units, and `commonest_share`; `between`, see
        `shares_between`; and `warning`, one line, where depth does not adapt. Empty where nothing halts.
    """
    everyone = classes["all"]
    if "entropy" not in everyone or unit not in ("token", "sequence"):
        return {}
    histogram = everyone["histogram"]
    commonest = max(range(len(histogram)), key=histogram.__getitem__)
    found: dict[str, Any] = {
        "effective_depths": math.exp(everyone["entropy"]),
        "commonest": commonest,
        "commonest_share": histogram[commonest] / everyone["n"],
        "between": shares_between(classes),
    }
    others = [described for name, described in classes.items() if name != "all" and described["n"]]
    if others:
        units = sum(described["n"] for described in others)
        found["effective_depths_within"] = sum(d["n"] * math.exp(d["entropy"]) for d in others) / units
    if is_collapsed(found["effective_depths"]):
        shown = f"{100 * found['commonest_share']:.0f} % of {everyone['n']:,} {unit}s stop at update {commonest}"
        found["warning"] = f"depth does not adapt: {shown}; in effect it has {found['effective_depths']:.2f} depths"
    elif (share := found["between"].get(KIND, {}).get("share", 0.0)) >= DECIDED:
        found["warning"] = f"depth differs between kinds of {unit} only: {100 * share:.0f} % of its variance"
    return found


def is_collapsed(effective_depths: float) -> bool:
    """Whether so few depths are used that depth does not adapt."""
    return effective_depths < FEWEST


def effective_depths(shares: Sequence[float]) -> float:
    """The exponential of the entropy of a distribution."""
    return math.exp(-sum(share * math.log(share) for share in shares if share > 0))


def shares_between(classes: Classes) -> dict[str, dict[str, float]]:
    """What share of the variance of depth lies between the classes of each way to part the units.

    Epsilon squared (Kelley 1935): 1 - (SSW / (n - k)) / (SST / (n - 1)) of k classes and n units, which is 0 on average
    where classes mean nothing, as the plain ratio of sums of squares is not.

    Returns:
        By way (`kind` of token, `label`, `correctness`, `length`, `difficulty`): `share`, `classes` and `n`. A way with
        fewer than two classes that have units, or without any variance, is absent.
    """
    found = {}
    for way, belongs in _WAYS.items():
        parts = [described for name, described in classes.items() if belongs(name) and described["n"]]
        n = sum(part["n"] for part in parts)
        if 1 < len(parts) < n and (share := _share_between(parts, n)) is not None:
            found[way] = {"share": share, "classes": len(parts), "n": n}
    return found


def _share_between(parts: Sequence[Mapping[str, Any]], n: int) -> float | None:
    mean = sum(part["n"] * part["mean"] for part in parts) / n
    within: float = sum(part["n"] * part["std"] ** 2 for part in parts)
    total: float = within + sum(part["n"] * (part["mean"] - mean) ** 2 for part in parts)
    if total <= 1e-12 * n:
        return None
    return max(0.0, 1 - (within / (n - len(parts))) / (total / (n - 1)))
