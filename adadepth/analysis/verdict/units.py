"""Whether the depth of units that halt one by one adapts: how spread it is, what explains it, what it follows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from adadepth.analysis.measure.adaptation import DECIDED, FEWEST, KIND, describe_adaptation, is_collapsed
from adadepth.analysis.verdict.finding import Answer, Finding, whole_percent

# Rank correlations from here on are called weak, moderate, strong (Cohen 1988).
WEAK, MODERATE, STRONG = 0.1, 0.3, 0.5
_WAYS = {"kind": "kinds of token", "label": "labels", "correctness": "right and wrong predictions",
         "length": "lengths", "difficulty": "difficulties"}  # fmt: skip


def adapts(halting: Mapping[str, Any]) -> Finding:
    """Whether the depths of tokens or sequences differ, and by what.

    Args:
        halting: What halting.json holds.
    """
    everyone, unit = halting["classes"]["all"], halting["unit"]
    spread = f"{everyone['mean']:.2f} ± {everyone['std']:.2f} updates a {unit}, of at most {halting['max_depth']}"
    depths = {"mean_updates": everyone["mean"], "std_updates": everyone["std"], "n": everyone["n"]}
    told = halting.get("adaptation", {})
    if told.get("is_set"):
        return Finding("set", [f"Nobody could halt by themselves: {spread}, n {everyone['n']:,}."], depths)
    # Of an older run what its classes say.
    found = told if "commonest" in told else describe_adaptation(halting["classes"], unit)
    between = {way: told["share"] for way, told in found["between"].items()}
    answer: Answer = "yes"
    if is_collapsed(found["effective_depths"]):
        answer = "no"
    elif between.get(KIND, 0.0) >= DECIDED:
        answer = "partly"
    elif _direction(halting.get("difficulty", {}).get("spearman")) < 0:
        answer = "against"
    sentences = [_spread(found, everyone["n"], unit, spread), *_between(between, answer), *_follows(halting)]
    if answer == "against":
        sentences.insert(1, f"The harder a {unit} is, the less depth it gets: depth is not spent where it is needed.")
    figures = {key: found[key] for key in ("effective_depths", "commonest", "commonest_share")}
    figures |= depths | {f"between_{way}": share for way, share in between.items()} | _correlations(halting)
    return Finding(answer, sentences, figures)


def _spread(found: Mapping[str, Any], n: int, unit: str, spread: str) -> str:
    share, commonest = whole_percent(found["commonest_share"]), found["commonest"]
    varied = f"in effect {found['effective_depths']:.1f} different depths"
    if is_collapsed(found["effective_depths"]):
        return (
            f"Depth did not adapt: {share} of {n:,} {unit}s stop at update {commonest} ({spread}, {varied}; "
            f"fewer than {FEWEST:g} count as one)."
        )
    return f"{spread}, {varied}; {share} of {n:,} {unit}s stop at the commonest, {commonest}."


def _between(between: Mapping[str, float], answer: Answer) -> Iterator[str]:
    """What of the variance the classes explain; of a depth that does not vary there is nothing to say."""
    if not between or answer == "no":
        return
    (way, share), *others = between.items()
    parts = [f"{whole_percent(share)} of the variance of depth lies between {_WAYS[way]}"]
    parts += [f"{whole_percent(share)} between {_WAYS[way]}" for way, share in others]
    yield f"{', '.join(parts)}; the rest is within them."
    if answer == "partly":
        yield "What a token is decides its depth; tokens of one kind are treated alike."


def _follows(halting: Mapping[str, Any]) -> Iterator[str]:
    """Whether depth grows with a known difficulty, and with the loss."""
    for other, of, found in _measured(halting):
        interval = f"95 % interval {found['low']:+.2f} to {found['high']:+.2f}, n {found['n']:,}{of}"
        yield f"Depth {strength(found, other)}: Spearman {found['value']:+.2f} ({interval})."


def strength(found: Mapping[str, float], other: str) -> str:
    """A rank correlation in words: none where it is small or its interval holds 0."""
    if not (direction := _direction(found)):
        return f"does not follow {other}"
    size = abs(found["value"])
    how = "strongly" if size >= STRONG else "moderately" if size >= MODERATE else "weakly"
    return f"follows {other} {how}" if direction > 0 else f"runs {how} against {other}"


def _direction(found: Mapping[str, float] | None) -> int:
    """The sign of a rank correlation; 0 where there is none, it is small, or its interval holds 0."""
    if found is None or abs(found["value"]) < WEAK or found["low"] <= 0 <= found["high"]:
        return 0
    return 1 if found["value"] > 0 else -1


def _measured(halting: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, float]]]:
    """Correlations of depth: with what, of which units, and the figures.

    That with the loss is of masked tokens where there are some: over all tokens the classes alone make one.
    """
    if found := halting.get("difficulty", {}).get("spearman"):
        yield "difficulty", "", found
    losses = halting.get("spearman", {})
    if "mask" in losses:
        yield "loss", " masked tokens", losses["mask"]
    elif "all" in losses:
        yield "loss", "", losses["all"]


def _correlations(halting: Mapping[str, Any]) -> dict[str, float]:
    return {f"spearman_{other}": found["value"] for other, _, found in _measured(halting)}
