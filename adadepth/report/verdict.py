"""Whether the depth of units that halt one by one adapts: how spread it is, what explains it, what it follows."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from adadepth.budget.target import CEILINGS, TOLERANCE, is_held
from adadepth.measure.adaptation import DECIDED, FEWEST_DEPTHS, KIND, describe_adaptation, is_collapsed
from adadepth.measure.names import WORK, unit_words
from adadepth.report.run_files import RunFiles, cut_short, halts, run_unit
from adadepth.report.section import Placed, Section, fill
from adadepth.report.work import speedups, wall_clock
from adadepth.report.worth import (
    ANSWERS,
    QUESTIONS,
    Answer,
    Finding,
    Verdict,
    chooses_layers,
    chooses_operations,
    whole_percent,
    worth,
)
from adadepth.settings.overrides import format_override

# Rank correlations from here on are called weak, moderate, strong (Cohen 1988).
WEAK, MODERATE, STRONG = 0.1, 0.3, 0.5
_WAYS = {"kind": "kinds of token", "label": "labels", "correctness": "right and wrong predictions"}
_WAYS |= {"length": "lengths", "difficulty": "difficulties"}


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
        first = f"Nobody could halt by themselves: {spread}, n {everyone['n']:,}."
        return Finding("set", [first], depths, _brief_depth(halting))
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
    return Finding(answer, sentences, figures, _brief_depth(halting))


def _brief_depth(halting: Mapping[str, Any]) -> str:
    """Return the mean depth, its deviation, and the rank correlation that matters most, in a few words."""
    everyone = halting["classes"]["all"]
    depth = f"{everyone['mean']:.2f} ± {everyone['std']:.2f} of {halting['max_depth']} updates"
    correlation = next((f"; Spearman with {other} {row['value']:+.2f}" for other, _, row in _measured(halting)), "")
    return depth + correlation


def _spread(found: Mapping[str, Any], n: int, unit: str, spread: str) -> str:
    share, commonest = whole_percent(found["commonest_share"]), found["commonest"]
    varied = f"in effect {found['effective_depths']:.1f} different depths"
    if is_collapsed(found["effective_depths"]):
        return (
            f"Depth did not adapt: {share} of {n:,} {unit}s stop at update {commonest} ({spread}, {varied}; "
            f"fewer than {FEWEST_DEPTHS:g} count as one)."
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


NEEDED = WORK.removeprefix("cost/")


def cost(files: RunFiles) -> Finding:
    """Updates of the most possible, the work that they need as a share of full depth's, and measured speed-up.

    How the evaluation ran is no cost of the model: section Work tells it.
    """
    halting, unit = files.halting, run_unit(files)
    needed = halting.get("cost", {}).get(NEEDED)
    figures = {} if needed is None else {NEEDED: needed}
    figures |= {f"speedup_in_{kind}": value for kind, value in speedups(files).items()}
    sentences = [*_updates(halting, unit), *_work(needed, unit), *wall_clock(files)]
    return Finding(None, sentences, figures, _brief_cost(files, needed))


def _brief_cost(files: RunFiles, needed: float | None) -> str:
    """Return the shares of blocks or updates and of multiply-accumulates, and the measured speed-up, in a few words."""
    halting, unit = files.halting, run_unit(files)
    parts = []
    if layers := halting.get("layers"):
        parts.append(f"{layers['deepest']} of {len(layers['weights']) - 1} blocks")
    elif unit_words(unit).halts:
        parts.append(f"{whole_percent(halting['classes']['all']['mean'] / halting['max_depth'])} of updates")
    if needed is not None:
        parts.append(f"{whole_percent(needed)} of macs")
    if (speedup := speedups(files).get("evaluation")) is not None:
        parts.append(f"evaluation {speedup:.2f} times as fast")
    return ", ".join(parts) or "not measured"


def _updates(halting: Mapping[str, Any], unit: str) -> Iterator[str]:
    if unit == "task":
        if layers := halting.get("layers"):
            yield f"{layers['deepest']} of {len(layers['weights']) - 1} blocks have to run."
    elif unit_words(unit).halts:
        mean, most = halting["classes"]["all"]["mean"], halting["max_depth"]
        yield f"{mean:.2f} of {most} updates a {unit}, {whole_percent(mean / most)}."


def _work(needed: float | None, unit: str) -> Iterator[str]:
    if needed is not None:
        about = unit_words(unit)
        yield f"{about.needing} {whole_percent(needed)} of the multiply-accumulates of {about.of_full}."


class Depth(NamedTuple):
    """What a budget is counted in: how a figure is written, and where the files have it."""

    written: str
    measured: float | None


def target(files: RunFiles) -> Finding | None:
    """What was set, what the evaluation measured, by how much it is missed and what may help; None without a target."""
    settings = files.config.get("budget") or {}
    wanted = settings.get("target")
    if not wanted or files.run.get("mode", "train") != "train":
        return None
    unit = str(settings.get("unit", "updates"))
    depth = _target_depth(files, unit)
    told = f"set to {depth.written.format(wanted)}"
    if depth.measured is None:
        first = f"It was {told}; what came of it was not measured."
        return Finding("unknown", [first], {"target": wanted}, f"{told}, not measured")
    figures = {"target": wanted, "evaluated": depth.measured}
    brief = f"{depth.measured:.3g}, {told}"
    if files.halting.get("adaptation", {}).get("is_set"):  # it grew, or was held there before anybody could halt
        first = f"It was {told}; training ended while all had one depth, {depth.measured:.3g}, and none could halt."
        return Finding("unknown", [first, f"What may help: {'; '.join(_advice(files, unit, wanted))}."], figures, brief)
    limit = f"within {whole_percent(TOLERANCE)} {'or below ' if unit in CEILINGS else ''}counts as reached"
    told += f", {depth.measured:.3g} in the evaluation ({limit})"
    if is_held(depth.measured, wanted, unit):
        return Finding("yes", [f"Reached: {told}."], figures, brief)
    missed = abs(depth.measured - wanted)
    side = "below" if depth.measured < wanted else "above"
    first = f"Missed by {missed:.3g}, {whole_percent(missed / wanted)} {side}: {told}."
    return Finding("no", [first, f"What may help: {'; '.join(_advice(files, unit, wanted))}."], figures, brief)


def _target_depth(files: RunFiles, unit: str) -> Depth:
    halting: dict[str, Any] = files.halting
    layers = halting.get("layers", {})
    if unit == "updates":
        return Depth(f"{{:g}} updates a {run_unit(files)}", halting.get("classes", {}).get("all", {}).get("mean"))
    if unit == "macs":
        measured = halting.get("cost", {}).get(WORK.removeprefix("cost/"))
        return Depth("{:g} of the multiply-accumulates of full depth", measured)
    if unit == "milliseconds":
        return Depth("{:g} ms for all blocks", (files.run.get("latency") or {}).get("derived"))
    if unit == "deepest_layer":
        return Depth("{:g} blocks that have to run", layers.get("deepest"))
    return Depth("a mean state of {:g}", layers.get("expected_depth"))


def _advice(files: RunFiles, unit: str, wanted: float) -> Iterator[str]:
    """What to change where depth misses its target, the likeliest reason first."""
    asked = (files.run.get("final_metrics") or {}).get("budget/target", wanted)
    if reason := cut_short(files):
        yield f"the run was cut short ({reason}), let it end"
    elif asked != wanted:
        yield f"training ended while the budget still asked for {asked:.3g}, give it more updates"
    else:
        yield "train longer, or raise budget.gain"
    if halts(files) and unit in ("updates", "macs"):
        yield f"set the trained model to it, with {_fitting_command(files, unit, wanted)}"


# What a command that evaluates a run takes over from that which trained it; keys of `model`, too.
_OF_TRAINING = ("model", "task", "debug", "small", "output_dir", "trainer.use_cpu", "trainer.precision")


def _fitting_command(files: RunFiles, unit: str, wanted: float) -> str:
    """Write what fits the trained model to its target, from the working directory of its training."""
    words = shlex.split(str(files.run.get("command") or "")) or ["--config-name", str(files.run.get("config_name"))]
    started = [word for word in words if "=" not in word and word not in ("-m", "--multirun")]
    kept = [word for word in words if word.partition("=")[0] in _OF_TRAINING or word.startswith("model.")]
    # A target of the configuration itself would be in another unit.
    own = [
        format_override("checkpoint", files.directory),
        "budget=none",
        f"budget.targets=[{wanted:g}]",
        f"budget.unit={unit}",
    ]
    return shlex.join([*started, "mode=evaluate", *kept, *own])


def verdict(files: RunFiles) -> Verdict:
    """What the files of a run answer; empty where they do not say how deep anything went."""
    depth = _depth(files)
    if depth is None:
        return {}
    asked = {} if (found := target(files)) is None else {"target": found}
    return {**asked, "adapts": depth, "worth": worth(files), "cost": cost(files)}


def _depth(files: RunFiles) -> Finding | None:
    halting, unit = files.halting, run_unit(files)
    if "layers" in halting:
        return chooses_layers(halting["layers"])
    if "architecture" in halting:
        return chooses_operations(halting["architecture"])
    is_measured = halts(files) and "mean" in halting.get("classes", {}).get("all", {}) and unit == halting.get("unit")
    return adapts(halting) if is_measured else None


def verdict_section(files: RunFiles) -> Section | None:
    """The verdict's questions with their answers in words."""
    found = verdict(files)
    if not found:
        return None
    advice = files.halting.get("adaptation", {}).get("advice")
    return Section(
        "Verdict",
        "verdict",
        fill("verdict", verdict=found, questions=QUESTIONS, answers=ANSWERS, advice=advice, cut=cut_short(files)),
    )


SECTIONS = (Placed(10, verdict_section),)
