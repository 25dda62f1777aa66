"""The answer to one question about a run, with the sentences and figures it rests on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise, product
from typing import Any, Literal

from adadepth.measure.architectures import OPERATION_NAMES, is_fixed
from adadepth.measure.names import is_loss
from adadepth.report.run_files import (
    ARCHITECTURES,
    EXIT_RULES,
    EXITS,
    MATCHED_BASELINE,
    RIVALS,
    RunFiles,
    halts,
    run_unit,
)

Answer = Literal["yes", "no", "partly", "against", "set", "unknown"]
# What the answers are called; `set` is the depth of a network that has nothing to decide, `against` one that varies and
# falls with difficulty.
ANSWERS: Mapping[Answer, str] = {
    "yes": "yes",
    "no": "no",
    "partly": "in part",
    "against": "yes, but against difficulty",
    "set": "set beforehand",
    "unknown": "not known",
}
QUESTIONS = {
    "target": "Was the depth that you set reached?",
    "adapts": "Does depth adapt?",
    "worth": "Is it worth it?",
    "cost": "What did it cost?",
}


@dataclass(frozen=True)
class Finding:
    """An answer.

    Attributes:
        answer: In a word; a cost is no answer, and has none.
        sentences: In plain words, each with its figures; the first says the most.
        figures: The numbers of the sentences by name, for programs and comparisons.
        brief: The decisive figures in a few words, for the console; no part of run.json.
    """

    answer: Answer | None
    sentences: Sequence[str]
    figures: Mapping[str, float] = field(default_factory=dict)
    brief: str = ""


Verdict = Mapping[str, Finding]  # by the names of QUESTIONS


def as_json(verdict: Verdict) -> dict[str, Any]:
    """What run.json holds under `verdict`."""
    fields = {name: asdict(finding) for name, finding in verdict.items()}
    return {name: {key: value for key, value in told.items() if key != "brief"} for name, told in fields.items()}


def whole_percent(share: float) -> str:
    """A share for a sentence."""
    shown = 100 * share
    return f"{shown:.0f} %" if 1 <= shown <= 99 or share in (0, 1) else f"{shown:.1f} %"


# Losses that differ by less than this share of them count as equal: their noise is not known from one run.
LOSS_TOLERANCE = 0.01
_NORMAL = 1.96  # two-sided 95 %


@dataclass(frozen=True)
class QualityPair:
    """Two figures of quality.

    Attributes:
        key: Name of the comparison in files.
        against: What the other is, in words.
        measure: What is compared.
        own: Of the adaptive model.
        other: Of the other.
        noise: Differences up to this say nothing.
        remark: Of what, and how the noise is known.
        is_about_depth: Whether the other one spends depth in another way; otherwise it knows nothing of its input.
    """

    key: str
    against: str
    measure: str
    own: float
    other: float
    noise: float
    remark: str
    is_about_depth: bool = True

    @property
    def gain(self) -> float:
        """By how much the adaptive model is better, in the unit of the measure."""
        return self.other - self.own if is_loss(self.measure) else self.own - self.other

    @property
    def result(self) -> int:
        """1: better; -1: worse; 0: not told apart."""
        return 0 if abs(self.gain) <= self.noise else 1 if self.gain > 0 else -1

    @property
    def sentence(self) -> str:
        """In words, with the figures."""
        told = {1: f"better by {self.gain:.3f}", -1: f"worse by {-self.gain:.3f}", 0: "no clear difference"}
        return (
            f"Against {self.against}: {self.measure} {self.own:.3f} to {self.other:.3f}, {told[self.result]} "
            f"({self.remark})."
        )


def score_noise(own: float, other: float, n: int | None) -> tuple[float, str]:
    """By how much two scores of n predictions may differ by chance, as if they were shares of right ones; and a remark.

    The normal 95 % interval of a difference of two independent shares: rather too wide for models that are asked the
    same, too narrow where predictions depend on each other.
    """
    if not n or not 0 <= own <= 1 or not 0 <= other <= 1:
        return 0.0, "how much of it is noise is not known"
    noise = _NORMAL * math.sqrt((own * (1 - own) + other * (1 - other)) / n)
    return noise, f"differences up to {noise:.3f} are noise, n {n:,}"


def noise_of(measure: str, own: float, other: float, n: int | None) -> tuple[float, str]:
    """`score_noise` of scores; of losses a fixed share of them."""
    if is_loss(measure):
        noise = LOSS_TOLERANCE * max(abs(own), abs(other))
        return noise, f"differences up to {100 * LOSS_TOLERANCE:g} % count as none"
    return score_noise(own, other, n)


def at_depth(points: Sequence[tuple[float, float]], depth: float) -> float | None:
    """The quality of a fixed depth, between two of the known ones on the line through them; None beyond them."""
    ordered = sorted(points)
    for (low, below), (high, above) in pairwise(ordered):
        if low <= depth <= high:
            return below + (above - below) * (depth - low) / (high - low)
    return None


def compared_metric(metrics: Mapping[str, float], others: Mapping[str, float], endings: Sequence[str]) -> str | None:
    """The metric that both have and that says most of quality; of several sets the first one's."""
    common = [name for name in metrics if name in others]
    return next((name for end in endings for name in common if name.endswith(end)), None)


# A distribution as varied as this share of all that it could choose from has chosen nothing.
UNDECIDED = 0.95
# Blocks whose most probable operation has this probability have decided.
SURE = 0.9


def chooses_layers(layers: Mapping[str, Any]) -> Finding:
    """Whether a task learned which states of its base to read.

    Args:
        layers: From `describe_layers`.
    """
    weights, effective = layers["weights"], layers["effective_layers"]
    largest = max(range(len(weights)), key=weights.__getitem__)
    answer: Answer = "no" if effective >= UNDECIDED * len(weights) else "yes"
    chosen = f"in effect {effective:.1f} of {len(weights)} states are read"
    first = f"The weights of layers chose: {chosen}." if answer == "yes" else f"No layer was chosen: {chosen}."
    if layers.get("is_set"):
        answer, first = "set", f"The weights of layers were set beforehand: {chosen}."
    sentences = [
        f"{first} The largest, {whole_percent(weights[largest])}, is that of state {largest}; the mean state is "
        f"{layers['expected_depth']:.1f}. All examples share them."
    ]
    figures = {"effective_layers": effective, "expected_depth": layers["expected_depth"], "states": len(weights)}
    return Finding(answer, sentences, figures, f"{chosen}, the mean state is {layers['expected_depth']:.1f}")


def chooses_operations(described: Mapping[str, Any]) -> Finding:
    """Whether the gates of an architecture decided.

    Args:
        described: From `describe_architecture`.
    """
    blocks, expected = described["blocks"], described["expected_blocks"]
    thirds = "; ".join(
        _third(name, counts) for name, counts in zip(("first", "middle", "last"), described["thirds"], strict=True)
    )
    by_third = f"Operations by third of the depth: {thirds}."
    figures = {"blocks": blocks, "expected_blocks": expected, "mean_entropy": described["mean_entropy"]}
    if is_fixed(described):
        brief = f"{expected:.0f} of {blocks} blocks run"
        return Finding("set", [f"The architecture is fixed: {brief}.", by_third], figures, brief)
    sure = sum(max(row) >= SURE for row in described["probabilities"])
    share = described["mean_entropy"] / math.log(len(OPERATION_NAMES))
    answer: Answer = "no" if share >= UNDECIDED else "yes" if sure == blocks else "partly"
    first = (
        f"{sure} of {blocks} blocks are sure of their operation (at least {whole_percent(SURE)}); the entropy of the "
        f"gates is {whole_percent(share)} of the largest, and {expected:.1f} blocks are expected to run."
    )
    brief = f"{sure} of {blocks} blocks are sure, {expected:.1f} are expected to run"
    return Finding(answer, [first, by_third], figures | {"sure_blocks": sure, "entropy_share": share}, brief)


def _third(name: str, counts: Mapping[str, int]) -> str:
    told = ", ".join(f"{counts[key]} {key.replace('_', '-')}" for key in OPERATION_NAMES if counts[key])
    return f"{name} {told}"


# The first that two runs have is compared, after what the run was told to optimise and to choose its model by.
_QUALITIES = ("score", "mlm_loss", "lm_loss", "task_loss")
_TOTAL = "eval/loss"  # it holds penalties too

_NOTHING = "No other way to spend the depth was tried on the same task"
_NO_COMPARISON = "no other way to spend the depth was tried"
# What units that halt one by one can be compared with.
_TRIED = ": no matched baseline (baseline=none), no fixed depth (rival_of), no exit_rules"
_ONE_STEP = "All examples exit at one step, so there is no depth to compare with one step for all."
_NOT_RETRAINED = "not retrained"


def worth(files: RunFiles) -> Finding:
    """Every comparison that the files of a run allow."""
    readings = {one.key: one for one in (*_matched(files), *_steps(files))}  # of a study: all examples
    found = [*_baselines(files), *_rivals(files), *readings.values(), *_rules(files), *_networks(files)]
    if has_one_depth(files):
        return _of_one_depth(files, found)
    nothing = _nothing(files)
    if not found:
        return Finding("unknown", [nothing], brief=_NO_COMPARISON)
    sentences = [comparison.sentence for comparison in sorted(found, key=lambda one: not one.is_about_depth)]
    if not any(one.is_about_depth for one in found):
        sentences.append(nothing)
    answer = _answer(found)
    return Finding(answer, sentences, {f"gain_over_{one.key}": one.gain for one in found}, _brief(found, answer))


def _brief(pairs: Sequence[QualityPair], answer: Answer) -> str:
    """Return the figures of the comparison that decides the answer, and how many of those of depth were won."""
    about_depth = [pair for pair in pairs if pair.is_about_depth]
    lost = [pair for pair in pairs if pair.result <= 0]
    if answer == "no":
        deciding = min(lost, key=lambda pair: pair.is_about_depth)
    else:
        deciding = next((pair for pair in about_depth or pairs if pair.result > 0), pairs[0])
    figures = f"{deciding.measure} {deciding.own:.3f} against {deciding.other:.3f} of {deciding.against}"
    if not about_depth:
        return figures if answer == "no" else f"{_NO_COMPARISON}; {figures}"
    if len(about_depth) == 1:
        return figures
    return f"{figures}; better than {sum(pair.result > 0 for pair in about_depth)} of {len(about_depth)}"


def _nothing(files: RunFiles) -> str:
    """Why depth was compared with nothing."""
    if (reason := files.of(MATCHED_BASELINE).get("left_out")) is not None:
        return f"{_NOTHING}: the matched baseline was left out, {reason}."
    return _ONE_STEP if _exits_at_one_step(files) else f"{_NOTHING}{_TRIED if halts(files) else ''}."


def has_one_depth(files: RunFiles) -> bool:
    """Whether the units of a model that learned where to halt all got the same depth on the set that was compared."""
    return any(one["std"] == 0 for one in files.of(MATCHED_BASELINE).get("sets", {}).values())


def _of_one_depth(files: RunFiles, found: Sequence[QualityPair]) -> Finding:
    """No: where all units have the same depth, a fixed depth is the same network."""
    one = next(one for one in files.of(MATCHED_BASELINE)["sets"].values() if one["std"] == 0)
    rule = "" if one.get("rule") is None else f" by {one['rule']}"
    first = (
        f"Every {run_unit(files)} stops{rule} at update {one['mean']:g}: the same network at one depth does the same."
    )
    others = [one.sentence for one in found if not one.is_about_depth]
    figures = {f"gain_over_{one.key}": one.gain for one in found}
    return Finding("no", [first, *others], figures, f"one depth for all, {one['mean']:g}")


def _matched(files: RunFiles) -> Iterator[QualityPair]:
    """The trained network read at one depth and with its depths dealt at random; or one layer, trained as it was."""
    for name, one in files.of(MATCHED_BASELINE).get("sets", {}).items():
        if (measure := _measure(files, one["own"])) is not None and one["std"] > 0:
            yield from _readings(name, measure, one)
    own = files.run.get("final_metrics") or {}
    for network in files.of(MATCHED_BASELINE).get("networks", []):
        known = compared_metric(own, network["metrics"], [f"/{quality}" for quality in qualities(files)])
        if known is not None:
            values = own[known], network["metrics"][known]
            noise, remark = noise_of(known, *values, network["predictions"])
            against = f"{network['about']}, trained the same way in this run"
            yield QualityPair("matched_baseline", against, _short(known), *values, noise, f"one seed each; {remark}")


def _measure(files: RunFiles, measured: Mapping[str, float]) -> str | None:
    """Which metric of a comparison says most of quality."""
    return next((name for name in [*qualities(files), "loss"] if name in measured), None)


def _readings(name: str, measure: str, one: Mapping[str, Any]) -> Iterator[QualityPair]:
    """Both readings of the trained network on a set."""
    own, permuted = one["own"][measure], one["permuted"]
    rule = "" if one.get("rule") is None else f", by {one['rule']}"
    of = f"{one['examples']:,} of {one['of_examples']:,} examples"
    points = [(row["depth"], row["quality"][measure]) for row in one["fixed"]]
    other = points[0][1] if len(points) == 1 else at_depth(points, one["mean"])
    if other is not None:
        noise, remark = noise_of(measure, own, other, one["predictions"])
        against = f"itself read at one depth for all, {one['mean']:.2f} updates as in the mean{rule}"
        yield QualityPair(f"fixed_step/{name}", against, f"{name}/{measure}", own, other, noise, f"{remark}; {of}")
    dealt, deviation = permuted["quality"][measure], 2 * permuted["quality_std"][measure]
    noise, remark = noise_of(measure, own, dealt, one["predictions"])
    if deviation > noise:
        noise, remark = deviation, f"differences up to {deviation:.3f} are two deviations of {permuted['draws']} draws"
    against = f"its own depths dealt to the units at random{rule}"
    yield QualityPair(f"random_depths/{name}", against, f"{name}/{measure}", own, dealt, noise, f"{remark}; {of}")


def _answer(found: Sequence[QualityPair]) -> Answer:
    """No, if the model knows no more than a baseline that reads nothing; else what the comparisons of depth say."""
    if any(one.result <= 0 for one in found if not one.is_about_depth):
        return "no"
    results = [one.result for one in found if one.is_about_depth]
    if not results:
        return "unknown"
    return "yes" if min(results) > 0 else "no" if max(results) <= 0 else "partly"


def _baselines(files: RunFiles) -> Iterator[QualityPair]:
    """What is achieved without reading the input or its order: the frequencies of words, the commonest label."""
    metrics, baselines = files.run.get("final_metrics") or {}, files.run.get("baselines") or {}
    yield from _bag_of_words(files, metrics, baselines.get("bag_of_words"))
    unigram = baselines.get("unigram")
    if unigram and isinstance(own := metrics.get("eval/mlm_loss"), int | float):
        other = unigram["cross_entropy"]
        noise, remark = noise_of("mlm_loss", own, other, None)
        remark = f"nats a masked token, n {unigram['positions']:,}; {remark}"
        yield QualityPair("unigram", "word frequencies alone", "mlm_loss", own, other, noise, remark, False)
    classes = files.halting.get("classes", {})
    everyone, labelled = classes.get("all", {}), [found for name, found in classes.items() if name[:7] == "label: "]
    # Where a label is a whole sequence's, a class has many tokens and few predictions.
    labels = [found.get("accuracy_n", found["n"]) for found in labelled]
    if "accuracy" in everyone and labels and sum(labels) == everyone["accuracy_n"]:
        own, other = everyone["accuracy"], max(labels) / sum(labels)
        noise, remark = score_noise(own, other, everyone["accuracy_n"])
        yield QualityPair("commonest_label", "always the commonest label", "accuracy", own, other, noise, remark, False)


def _bag_of_words(
    files: RunFiles, metrics: Mapping[str, Any], scored: Mapping[str, Any] | None
) -> Iterator[QualityPair]:
    """What a model without word order achieves on the first evaluation set of a table."""
    others: Mapping[str, float] = {} if scored is None else next(iter(scored["sets"].values()), {})
    measure = next((name for name in qualities(files) if name in others and f"eval/{name}" in metrics), None)
    if scored is not None and measure is not None:
        own, other = metrics[f"eval/{measure}"], others[measure]
        noise, remark = noise_of(measure, own, other, _predictions(files))
        yield QualityPair("bag_of_words", scored["model"], measure, own, other, noise, remark, False)


def _rivals(files: RunFiles) -> Iterator[QualityPair]:
    """Networks of one depth and as much work, trained the same way."""
    adaptive, *others = files.of(RIVALS).get("rows") or [{}]
    for row in others:
        name = compared_metric(adaptive["metrics"], row["metrics"], [f"/{name}" for name in qualities(files)])
        if name is None:
            continue
        own, other = adaptive["metrics"][name], row["metrics"][name]
        noise, remark = noise_of(name, own, other, _predictions(files))
        against = f"a network of the fixed depth {row['max_depth']}, trained with as much work"
        yield QualityPair("fixed_depth", against, _short(name), own, other, noise, f"one seed each; {remark}")


def qualities(files: RunFiles) -> list[str]:
    """Metrics that say how good a model is, without the name of a set: first what the run was meant to be good at."""
    selecting = (files.config.get("trainer") or {}).get("metric_for_best_model")
    meant = [files.config.get("optimise"), selecting and "eval/" + selecting.removeprefix("eval_")]
    named = [name.rpartition("/")[2] for name in meant if name and name.startswith("eval/") and name != _TOTAL]
    return list(dict.fromkeys([*named, *_QUALITIES]))


def _score(files: RunFiles, measured: Mapping[str, float]) -> str:
    """Which of the scores of a step or a rule is compared."""
    return next((name for name in qualities(files) if name in measured and not is_loss(name)), "score")


def _predictions(files: RunFiles) -> int | None:
    """How many predictions the first set's score is of, where that is known."""
    n: int | None = files.halting.get("classes", {}).get("all", {}).get("accuracy_n")
    return n


def _short(name: str) -> str:
    return name.removeprefix("eval/")


def _steps(files: RunFiles) -> Iterator[QualityPair]:
    """The same network read at one step for all examples; where all exit at one step, that is the network itself."""
    for name, found in files.of(EXITS).get("sets", {}).items():
        if _is_constant(found):
            continue
        measure = _score(files, found["exit"].get("quality", {}))
        points = [(row["step"], row["quality"][measure]) for row in found["steps"] if measure in row.get("quality", {})]
        other, own = at_depth(points, found["exit"]["mean"]), found["exit"].get("quality", {}).get(measure)
        if own is not None and other is not None:
            noise, remark = score_noise(own, other, found["n"])
            against = f"itself read at one step for all, {found['exit']['mean']:.2f} as in the mean"
            yield QualityPair(f"fixed_step/{name}", against, f"{name}/{measure}", own, other, noise, remark)


def _exits_at_one_step(files: RunFiles) -> bool:
    sets = files.of(EXITS).get("sets", {}).values()
    return bool(sets) and all(map(_is_constant, sets))


def _is_constant(found: Mapping[str, Any]) -> bool:
    """Whether all examples of a set exit at one step."""
    return bool(found["exit"].get("std") == 0)


def _rules(files: RunFiles) -> Iterator[QualityPair]:
    """Of the exit rules the one in the middle by its gain over the same exits dealt to the examples at random."""
    for name, study in files.of(EXIT_RULES).get("sets", {}).items():
        rows = [row for row in study["rows"] if "score" in row.get("permuted", {}).get("quality", {})]
        if not rows:
            continue
        measure = _score(files, rows[0]["permuted"]["quality"])
        row = sorted(rows, key=lambda one: _gain(one, measure))[len(rows) // 2]
        own, other = row["quality"][measure], row["permuted"]["quality"][measure]
        better = sum(_gain(one, measure) > _deviation(one, measure) for one in rows)
        remark = f"{better} of {len(rows)} rules gain more than 2 deviations over {study['draws']} permutations"
        against = f"the exits of {row['rule']} dealt at random, the median rule by gain"
        noise = _deviation(row, measure)
        yield QualityPair(f"random_exits/{name}", against, f"{name}/{measure}", own, other, noise, remark)


def _networks(files: RunFiles) -> Iterator[QualityPair]:
    """Other architectures, trained as the one that a search found was trained."""
    rows = [row for row in files.of(ARCHITECTURES).get("rows", []) if "loss" in (row.get("quality") or {})]
    found = [row for row in rows if row["kind"] == "searched" and row["trained"] != _NOT_RETRAINED]
    for own, other in product(found, rows):
        if other["kind"] == "searched" or other["trained"] != own["trained"]:
            continue
        losses = own["quality"]["loss"], other["quality"]["loss"]
        noise, tolerance = noise_of("loss", *losses, None)
        remark = "; ".join([*_work(own.get("macs") or {}, other.get("macs") or {}), "one seed each", tolerance])
        against = f"the architecture {other['name']}, trained the same way ({own['trained']})"
        yield QualityPair(
            f"architecture/{other['name']}", against, f"{own['quality_set']}/loss", *losses, noise, remark
        )


def _work(own: Mapping[str, float], other: Mapping[str, float]) -> Iterator[str]:
    """A network's multiply-accumulates as a share of another's, by the shape of their input."""
    for shape in own:
        if other.get(shape):
            yield f"{whole_percent(own[shape] / other[shape])} of its multiply-accumulates at {shape}"


def _gain(row: Mapping[str, Any], measure: str) -> float:
    return float(row["quality"][measure] - row["permuted"]["quality"][measure])


def _deviation(row: Mapping[str, Any], measure: str) -> float:
    return 2 * float(row["permuted"].get("quality_std", {}).get(measure, 0.0))
