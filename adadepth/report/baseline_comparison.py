"""Comparison of an adaptive run with its baselines, and the verdict's answer that follows from it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise, product
from typing import Any, Literal

from adadepth.metrics.architectures import OPERATION_NAMES, is_fixed
from adadepth.metrics.metric_names import is_loss
from adadepth.report.run_files import (
    ARCHITECTURES,
    EXIT_RULES,
    EXITS,
    MATCHED_BASELINE,
    RIVALS,
    RunFiles,
    get_run_unit,
    halts,
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
    "target": "Was the target depth reached?",
    "adapts": "Does depth adapt?",
    "worth": "Does adaptive depth improve quality?",
    "cost": "What does it cost?",
}


@dataclass(frozen=True)
class Finding:
    """Answer to one question of a run's verdict, with the sentences and numbers that support it.

    Attributes:
        answer: Answer in a word, or None for the cost.
        sentences: Sentences with their numbers, the most important sentence first.
        figures: Numbers of the sentences by name, for programs and comparisons.
        brief: Decisive numbers in a few words, for the console. They are not stored in run.json.
    """

    answer: Answer | None
    sentences: Sequence[str]
    figures: Mapping[str, float] = field(default_factory=dict)
    brief: str = ""


Verdict = Mapping[str, Finding]  # by the names of QUESTIONS


def to_json(verdict: Verdict) -> dict[str, Any]:
    """Return the answer as it is stored under `verdict` in run.json."""
    fields = {name: asdict(finding) for name, finding in verdict.items()}
    return {name: {key: value for key, value in values.items() if key != "brief"} for name, values in fields.items()}


def format_whole_percent(share: float) -> str:
    """Format a share as a whole percentage for a sentence."""
    value = 100 * share
    return f"{value:.0f} %" if 1 <= value <= 99 or share in (0, 1) else f"{value:.1f} %"


# Losses that differ by less than this share of them count as equal: their noise is not known from one run.
LOSS_TOLERANCE = 0.01
_NORMAL_QUANTILE = 1.96  # two-sided 95 %


@dataclass(frozen=True)
class QualityPair:
    """Quality of the adaptive model and of one baseline, in the same metric.

    Attributes:
        key: Name of the comparison in files.
        against: Description of the baseline.
        measure: Name of the metric.
        adaptive: Value of the adaptive model.
        baseline: Value of the baseline.
        noise: Largest difference that is not significant.
        remark: Sample size, and source of the noise estimate.
        is_about_depth: Whether the baseline is a model with a different choice of depth. Otherwise it ignores its
            input.
    """

    key: str
    against: str
    measure: str
    adaptive: float
    baseline: float
    noise: float
    remark: str
    is_about_depth: bool = True

    @property
    def gain(self) -> float:
        """Advantage of the adaptive model over the baseline, in the unit of the metric."""
        return self.baseline - self.adaptive if is_loss(self.measure) else self.adaptive - self.baseline

    @property
    def result(self) -> int:
        """1 if the adaptive model is better, -1 if it is worse, and 0 if the difference is not significant."""
        return 0 if abs(self.gain) <= self.noise else 1 if self.gain > 0 else -1

    @property
    def sentence(self) -> str:
        """Sentence that states the result of the comparison with its numbers."""
        outcomes = {1: f"better by {self.gain:.3f}", -1: f"worse by {-self.gain:.3f}", 0: "no clear difference"}
        return (
            f"Compared with {self.against}: {self.measure} {self.adaptive:.3f} against {self.baseline:.3f}, "
            f"{outcomes[self.result]} ({self.remark})."
        )


def estimate_score_noise(adaptive: float, baseline: float, n: int | None) -> tuple[float, str]:
    """Estimate how far two scores of n predictions can differ by chance, with a remark that names the method.

    The margin is the normal 95 % interval of a difference of two independent shares. It is too wide for models that
    answer the same questions, and too narrow if predictions depend on each other.
    """
    if not n or not 0 <= adaptive <= 1 or not 0 <= baseline <= 1:
        return 0.0, "the noise is unknown"
    noise = _NORMAL_QUANTILE * math.sqrt((adaptive * (1 - adaptive) + baseline * (1 - baseline)) / n)
    return noise, f"differences up to {noise:.3f} are not significant, n {n:,}"


def estimate_noise(measure: str, adaptive: float, baseline: float, n: int | None) -> tuple[float, str]:
    """Estimate how far two values of a metric can differ by chance; see `estimate_score_noise`."""
    if is_loss(measure):
        noise = LOSS_TOLERANCE * max(abs(adaptive), abs(baseline))
        return noise, f"differences up to {100 * LOSS_TOLERANCE:g} % count as equal"
    return estimate_score_noise(adaptive, baseline, n)


def interpolate_quality(points: Sequence[tuple[float, float]], depth: float) -> float | None:
    """Interpolate the quality of a fixed-depth model between two measured depths; return None outside their range."""
    ordered = sorted(points)
    for (low, below), (high, above) in pairwise(ordered):
        if low <= depth <= high:
            return below + (above - below) * (depth - low) / (high - low)
    return None


def select_compared_metric(
    metrics: Mapping[str, float], other_metrics: Mapping[str, float], endings: Sequence[str]
) -> str | None:
    """Return the most preferred quality metric that both the run and its baseline have.

    If it exists for several sets, the first set is used.
    """
    common = [name for name in metrics if name in other_metrics]
    return next((name for end in endings for name in common if name.endswith(end)), None)


# Share of the largest possible variety from which on a distribution counts as undecided.
UNDECIDED = 0.95
# Probability of its best operation from which on a block counts as decided.
SURE = 0.9


def assess_layer_choice(layers: Mapping[str, Any]) -> Finding:
    """Decide whether a task learned which hidden states of its base model to use, for the verdict.

    Args:
        layers: Result of `describe_layers`.
    """
    weights, effective = layers["weights"], layers["effective_layers"]
    largest = max(range(len(weights)), key=weights.__getitem__)
    answer: Answer = "no" if effective >= UNDECIDED * len(weights) else "yes"
    reading = f"{effective:.1f} effective states of {len(weights)}"
    first = f"The model chose layers: {reading}." if answer == "yes" else f"The model chose no layers: {reading}."
    if layers.get("is_set"):
        answer, first = "set", f"The layer weights were set beforehand: {reading}."
    sentences = [
        f"{first} The largest weight, {format_whole_percent(weights[largest])}, belongs to state {largest}; the "
        f"mean state is {layers['expected_depth']:.1f}. All examples share the weights."
    ]
    figures = {"effective_layers": effective, "expected_depth": layers["expected_depth"], "states": len(weights)}
    return Finding(answer, sentences, figures, f"{reading}, the mean state is {layers['expected_depth']:.1f}")


def assess_operation_choice(described: Mapping[str, Any]) -> Finding:
    """Decide whether the gates of an architecture search have settled on operations, for the verdict.

    Args:
        described: Result of `describe_architecture`.
    """
    blocks, expected = described["blocks"], described["expected_blocks"]
    thirds = "; ".join(
        _format_third(name, counts)
        for name, counts in zip(("first", "middle", "last"), described["thirds"], strict=True)
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
        f"{sure} of {blocks} blocks have decided on an operation (probability at least "
        f"{format_whole_percent(SURE)}); the entropy of the gates is {format_whole_percent(share)} of the maximum, "
        f"and {expected:.1f} blocks are expected to run."
    )
    brief = f"{sure} of {blocks} blocks have decided, {expected:.1f} are expected to run"
    return Finding(answer, [first, by_third], figures | {"sure_blocks": sure, "entropy_share": share}, brief)


def _format_third(name: str, counts: Mapping[str, int]) -> str:
    listed_counts = ", ".join(f"{counts[key]} {key.replace('_', '-')}" for key in OPERATION_NAMES if counts[key])
    return f"{name} {listed_counts}"


# By precedence, after the metrics that the run optimises and selects its model by.
_QUALITIES = ("score", "mlm_loss", "lm_loss", "task_loss")
_TOTAL = "eval/loss"  # it holds penalties too

_NOTHING = "No baseline with another allocation of depth was run on the same task"
_NO_COMPARISON = "no baseline with another allocation of depth was run"
# Baselines for units that halt one by one.
_TRIED = ": no matched baseline (baseline=none), no fixed depth (rival_of), no exit_rules"
_ONE_STEP = "All examples exit at the same step, so a comparison with a fixed step is impossible."
_NOT_RETRAINED = "not retrained"


def compare_with_baselines(files: RunFiles) -> Finding:
    """Compare an adaptive run with every baseline that was evaluated with it, for the verdict of the report."""
    # A reading of an exit study replaces that of the matched baseline: it covers all examples.
    readings = {pair.key: pair for pair in (*_compare_matched(files), *_compare_steps(files))}
    pairs = [
        *_compare_input_free(files),
        *_compare_rivals(files),
        *readings.values(),
        *_compare_rules(files),
        *_compare_networks(files),
    ]
    if has_one_depth(files):
        return _judge_one_depth(files, pairs)
    nothing = _explain_no_comparison(files)
    if not pairs:
        return Finding("unknown", [nothing], brief=_NO_COMPARISON)
    sentences = [pair.sentence for pair in sorted(pairs, key=lambda pair: not pair.is_about_depth)]
    if not any(pair.is_about_depth for pair in pairs):
        sentences.append(nothing)
    answer = _decide_answer(pairs)
    return Finding(answer, sentences, _get_gains(pairs), _format_brief(pairs, answer))


def _get_gains(pairs: Sequence[QualityPair]) -> dict[str, float]:
    return {f"gain_over_{pair.key}": pair.gain for pair in pairs}


def _format_brief(pairs: Sequence[QualityPair], answer: Answer) -> str:
    """Format the decisive comparison in a few words, with the number of comparisons that the adaptive run won."""
    about_depth = [pair for pair in pairs if pair.is_about_depth]
    lost = [pair for pair in pairs if pair.result <= 0]
    if answer == "no":
        deciding = min(lost, key=lambda pair: pair.is_about_depth)
    else:
        deciding = next((pair for pair in about_depth or pairs if pair.result > 0), pairs[0])
    figures = f"{deciding.measure} {deciding.adaptive:.3f} against {deciding.baseline:.3f} of {deciding.against}"
    if not about_depth:
        return figures if answer == "no" else f"{_NO_COMPARISON}; {figures}"
    if len(about_depth) == 1:
        return figures
    return f"{figures}; better than {sum(pair.result > 0 for pair in about_depth)} of {len(about_depth)} baselines"


def _explain_no_comparison(files: RunFiles) -> str:
    """Return the sentence that explains why adaptive depth was not compared with a baseline."""
    if (reason := files.of(MATCHED_BASELINE).get("left_out")) is not None:
        return f"{_NOTHING}: the matched baseline was skipped, {reason}."
    return _ONE_STEP if _exits_at_one_step(files) else f"{_NOTHING}{_TRIED if halts(files) else ''}."


def has_one_depth(files: RunFiles) -> bool:
    """Return whether an adaptive model gave all tokens or sequences of the evaluated set the same depth."""
    return any(entry["std"] == 0 for entry in files.of(MATCHED_BASELINE).get("sets", {}).values())


def _judge_one_depth(files: RunFiles, pairs: Sequence[QualityPair]) -> Finding:
    """Return the verdict's answer for a model whose tokens or sequences all get the same depth."""
    entry = next(entry for entry in files.of(MATCHED_BASELINE)["sets"].values() if entry["std"] == 0)
    rule = "" if entry.get("rule") is None else f" with exit rule {_format_rule(entry['rule'])}"
    stops = f"Every {get_run_unit(files)} stops{rule} at update {entry['mean']:g}"
    first = f"{stops}, so a fixed depth gives the same network."
    sentences = [pair.sentence for pair in pairs if not pair.is_about_depth]
    return Finding("no", [first, *sentences], _get_gains(pairs), f"one depth for all units, {entry['mean']:g}")


def _format_rule(label: str) -> str:
    """Format the label of an exit rule with its parameters rounded to three digits, because they may be fitted."""
    name, *parameters = label.split(":")
    return ":".join([name, *(f"{float(parameter):.3g}" for parameter in parameters)])


def _compare_matched(files: RunFiles) -> Iterator[QualityPair]:
    """Yield comparisons with the run's matched baseline: one fixed depth and shuffled depths, or a trained network."""
    for name, entry in files.of(MATCHED_BASELINE).get("sets", {}).items():
        if (measure := _select_measure(files, entry["own"])) is not None and entry["std"] > 0:
            yield from _compare_readings(name, measure, entry)
    metrics = files.run.get("final_metrics") or {}
    for network in files.of(MATCHED_BASELINE).get("networks", []):
        name = select_compared_metric(metrics, network["metrics"], [f"/{quality}" for quality in qualities(files)])
        if name is not None:
            values = metrics[name], network["metrics"][name]
            noise, remark = estimate_noise(name, *values, network["predictions"])
            against = f"{network['about']}, trained the same way in this run"
            yield QualityPair(
                "matched_baseline", against, name.removeprefix("eval/"), *values, noise, f"one seed each; {remark}"
            )


def _select_measure(files: RunFiles, measured: Mapping[str, float]) -> str | None:
    """Return the most important quality metric among those measured for a matched baseline.

    The score of a language model is minus its loss. The loss is returned instead, because a loss has a tolerance.
    """
    if "loss" in measured and measured.get("score") == -measured["loss"]:
        return "loss"
    return next((name for name in [*qualities(files), "loss"] if name in measured), None)


def _compare_readings(name: str, measure: str, entry: Mapping[str, Any]) -> Iterator[QualityPair]:
    """Yield comparisons of the trained network with itself at one fixed depth and at shuffled depths."""
    adaptive, permuted = entry["own"][measure], entry["permuted"]
    rule = "" if entry.get("rule") is None else f" with exit rule {_format_rule(entry['rule'])}"
    sample = f"{entry['examples']:,} of {entry['of_examples']:,} examples"
    points = [(row["depth"], row["quality"][measure]) for row in entry["fixed"]]
    baseline = points[0][1] if len(points) == 1 else interpolate_quality(points, entry["mean"])
    if baseline is not None:
        noise, remark = estimate_noise(measure, adaptive, baseline, entry["predictions"])
        against = f"the same network at a fixed depth of {entry['mean']:.2f} updates, its mean{rule}"
        yield QualityPair(
            f"fixed_step/{name}", against, f"{name}/{measure}", adaptive, baseline, noise, f"{remark}; {sample}"
        )
    dealt, deviation = permuted["quality"][measure], 2 * permuted["quality_std"][measure]
    noise, remark = estimate_noise(measure, adaptive, dealt, entry["predictions"])
    if deviation > noise:
        noise, remark = (
            deviation,
            (
                f"differences up to {deviation:.3f} lie within two standard deviations of {permuted['draws']} random "
                "draws"
            ),
        )
    against = f"its own depths shuffled over the units{rule}"
    yield QualityPair(
        f"random_depths/{name}", against, f"{name}/{measure}", adaptive, dealt, noise, f"{remark}; {sample}"
    )


def _decide_answer(pairs: Sequence[QualityPair]) -> Answer:
    """Decide the verdict's answer from all comparisons of the run with baselines.

    The answer is no if the model does not beat every baseline that ignores its input. Otherwise the comparisons about
    depth decide.
    """
    if any(pair.result <= 0 for pair in pairs if not pair.is_about_depth):
        return "no"
    results = [pair.result for pair in pairs if pair.is_about_depth]
    if not results:
        return "unknown"
    return "yes" if min(results) > 0 else "no" if max(results) <= 0 else "partly"


def _compare_input_free(files: RunFiles) -> Iterator[QualityPair]:
    """Yield comparisons with baselines that ignore the input: token frequencies and the most frequent label."""
    metrics, baselines = files.run.get("final_metrics") or {}, files.run.get("baselines") or {}
    yield from _compare_bag_of_words(files, metrics, baselines.get("bag_of_words"))
    unigram = baselines.get("unigram")
    if unigram and isinstance(adaptive := metrics.get("eval/mlm_loss"), int | float):
        baseline = unigram["cross_entropy"]
        noise, remark = estimate_noise("mlm_loss", adaptive, baseline, None)
        remark = f"nats per masked token, n {unigram['positions']:,}; {remark}"
        yield QualityPair("unigram", "word frequencies only", "mlm_loss", adaptive, baseline, noise, remark, False)
    classes = files.halting.get("classes", {})
    everyone = classes.get("all", {})
    labelled = [described for name, described in classes.items() if name.startswith("label: ")]
    # Where a label is a whole sequence's, a class has many tokens and few predictions.
    labels = [described.get("accuracy_n", described["n"]) for described in labelled]
    if "accuracy" in everyone and labels and sum(labels) == everyone["accuracy_n"]:
        adaptive, baseline = everyone["accuracy"], max(labels) / sum(labels)
        noise, remark = estimate_score_noise(adaptive, baseline, everyone["accuracy_n"])
        yield QualityPair(
            "commonest_label",
            "always predicting the most frequent label",
            "accuracy",
            adaptive,
            baseline,
            noise,
            remark,
            False,
        )


def _compare_bag_of_words(
    files: RunFiles, metrics: Mapping[str, Any], scored: Mapping[str, Any] | None
) -> Iterator[QualityPair]:
    """Yield the comparison with a model that ignores word order, on the first evaluation set of a table."""
    baseline_metrics: Mapping[str, float] = {} if scored is None else next(iter(scored["sets"].values()), {})
    measure = next((name for name in qualities(files) if name in baseline_metrics and f"eval/{name}" in metrics), None)
    if scored is not None and measure is not None:
        adaptive, baseline = metrics[f"eval/{measure}"], baseline_metrics[measure]
        noise, remark = estimate_noise(measure, adaptive, baseline, _count_predictions(files))
        yield QualityPair("bag_of_words", scored["model"], measure, adaptive, baseline, noise, remark, False)


def _compare_rivals(files: RunFiles) -> Iterator[QualityPair]:
    """Yield comparisons with fixed-depth networks of equal compute that were trained like the run."""
    reference, *rival_rows = files.of(RIVALS).get("rows") or [{}]
    for row in rival_rows:
        name = select_compared_metric(reference["metrics"], row["metrics"], [f"/{name}" for name in qualities(files)])
        if name is None:
            continue
        adaptive, baseline = reference["metrics"][name], row["metrics"][name]
        noise, remark = estimate_noise(name, adaptive, baseline, _count_predictions(files))
        against = f"a compute-matched network of fixed depth {row['max_depth']}"
        yield QualityPair(
            "fixed_depth", against, name.removeprefix("eval/"), adaptive, baseline, noise, f"one seed each; {remark}"
        )


def qualities(files: RunFiles) -> list[str]:
    """Return the final quality metrics of a run, under names without the evaluation set.

    The metrics that the run optimises or uses for model selection come first.
    """
    selecting = (files.config.get("trainer") or {}).get("metric_for_best_model")
    meant = [files.config.get("optimise"), selecting and "eval/" + selecting.removeprefix("eval_")]
    preferred = [name.rpartition("/")[2] for name in meant if name and name.startswith("eval/") and name != _TOTAL]
    return list(dict.fromkeys([*preferred, *_QUALITIES]))


def _select_score(files: RunFiles, measured: Mapping[str, float]) -> str:
    """Return the name of the metric that is used to compare exit steps or exit rules."""
    return next((name for name in qualities(files) if name in measured and not is_loss(name)), "score")


def _count_predictions(files: RunFiles) -> int | None:
    """Return the number of predictions behind the score of the first set, or None if it is unknown."""
    n: int | None = files.halting.get("classes", {}).get("all", {}).get("accuracy_n")
    return n


def _compare_steps(files: RunFiles) -> Iterator[QualityPair]:
    """Yield comparisons with the same network when all examples exit at one step.

    A set is skipped if all its examples exit at one step already.
    """
    for name, set_exits in files.of(EXITS).get("sets", {}).items():
        if _is_constant(set_exits):
            continue
        measure = _select_score(files, set_exits["exit"].get("quality", {}))
        points = [
            (row["step"], row["quality"][measure]) for row in set_exits["steps"] if measure in row.get("quality", {})
        ]
        baseline, adaptive = (
            interpolate_quality(points, set_exits["exit"]["mean"]),
            set_exits["exit"].get("quality", {}).get(measure),
        )
        if adaptive is not None and baseline is not None:
            noise, remark = estimate_score_noise(adaptive, baseline, set_exits["n"])
            against = f"the same network at a fixed step of {set_exits['exit']['mean']:.2f}, its mean"
            yield QualityPair(f"fixed_step/{name}", against, f"{name}/{measure}", adaptive, baseline, noise, remark)


def _exits_at_one_step(files: RunFiles) -> bool:
    sets = files.of(EXITS).get("sets", {}).values()
    return bool(sets) and all(map(_is_constant, sets))


def _is_constant(set_exits: Mapping[str, Any]) -> bool:
    """Return whether all examples of a set exit at the same step."""
    return bool(set_exits["exit"].get("std") == 0)


def _compare_rules(files: RunFiles) -> Iterator[QualityPair]:
    """Yield the comparison of an exit rule with the same exit steps shuffled over the examples.

    The rule is the one with the median gain.
    """
    for name, study in files.of(EXIT_RULES).get("sets", {}).items():
        rows = [row for row in study["rows"] if "score" in row.get("permuted", {}).get("quality", {})]
        if not rows:
            continue
        measure = _select_score(files, rows[0]["permuted"]["quality"])
        row = sorted(rows, key=lambda candidate: _compute_gain(candidate, measure))[len(rows) // 2]
        adaptive, baseline = row["quality"][measure], row["permuted"]["quality"][measure]
        better = sum(_compute_gain(candidate, measure) > _compute_deviation(candidate, measure) for candidate in rows)
        remark = (
            f"{better} of {len(rows)} rules gain more than 2 standard deviations over {study['draws']} permutations"
        )
        against = f"randomly shuffled exits of {row['rule']}, the median rule by gain"
        noise = _compute_deviation(row, measure)
        yield QualityPair(f"random_exits/{name}", against, f"{name}/{measure}", adaptive, baseline, noise, remark)


def _compare_networks(files: RunFiles) -> Iterator[QualityPair]:
    """Yield comparisons of a searched architecture with other architectures that were trained in the same way."""
    rows = [row for row in files.of(ARCHITECTURES).get("rows", []) if "loss" in (row.get("quality") or {})]
    searched = [row for row in rows if row["kind"] == "searched" and row["trained"] != _NOT_RETRAINED]
    for adaptive, baseline in product(searched, rows):
        if baseline["kind"] == "searched" or baseline["trained"] != adaptive["trained"]:
            continue
        losses = adaptive["quality"]["loss"], baseline["quality"]["loss"]
        noise, tolerance = estimate_noise("loss", *losses, None)
        remark = "; ".join(
            [*_compare_macs(adaptive.get("macs") or {}, baseline.get("macs") or {}), "one seed each", tolerance]
        )
        against = f"the architecture {baseline['name']}, trained the same way ({adaptive['trained']})"
        yield QualityPair(
            f"architecture/{baseline['name']}", against, f"{adaptive['quality_set']}/loss", *losses, noise, remark
        )


def _compare_macs(adaptive: Mapping[str, float], baseline: Mapping[str, float]) -> Iterator[str]:
    """Yield the ratio of two networks' multiply-accumulates for every input shape, as text."""
    for shape in adaptive:
        if baseline.get(shape):
            yield f"{format_whole_percent(adaptive[shape] / baseline[shape])} of its multiply-accumulates at {shape}"


def _compute_gain(row: Mapping[str, Any], measure: str) -> float:
    return float(row["quality"][measure] - row["permuted"]["quality"][measure])


def _compute_deviation(row: Mapping[str, Any], measure: str) -> float:
    return 2 * float(row["permuted"].get("quality_std", {}).get(measure, 0.0))
