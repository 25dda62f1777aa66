"""Comparison of an adaptive run with its baselines, and the verdict's answer that follows from it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from statistics import fmean
from typing import Any, Literal, NamedTuple

from adadepth.metrics.architectures import OPERATION_NAMES, is_fixed
from adadepth.metrics.directions import is_less_better
from adadepth.metrics.metric_names import PREFERRED_QUALITIES
from adadepth.metrics.significance import GROUPS, LEVEL, SeedMean, average_over_seeds, compute_half_width
from adadepth.report.compute_cost import format_rule, normalise_rule
from adadepth.report.matched_networks import (
    Networks,
    average_compute,
    format_steps,
    get_depth,
    get_steps,
    group_networks,
)
from adadepth.report.quality_pairs import (
    QualityPair,
    build_gain_pair,
    build_seeds_pair,
    build_trained_pair,
    correct_pairs,
    find_error,
)
from adadepth.report.resources import EQUAL_COMPUTE, SIZE_FIELDS, TITLES, average_sizes, compute_ratio
from adadepth.report.run_files import (
    ARCHITECTURES,
    BUDGETS,
    EXIT_RULES,
    EXITS,
    MATCHED_BASELINE,
    RIVALS,
    RunFiles,
    get_exit_rule,
    get_run_unit,
    halts,
    is_interrupted,
)

Answer = Literal["yes", "no", "partly", "varies", "against", "unclear", "set", "unknown"]
# What the answers are called; `set` is the depth of a network that has nothing to decide, `against` one that varies and
# falls with difficulty, `unclear` a difference that is not significant.
ANSWERS: Mapping[Answer, str] = {
    "yes": "yes",
    "no": "no",
    "partly": "in part",
    "varies": "it varies, but not with need",
    "against": "yes, but against difficulty",
    "unclear": "not shown",
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
        comparisons: Comparisons with baselines on which the answer is based.
    """

    answer: Answer | None
    sentences: Sequence[str]
    figures: Mapping[str, float] = field(default_factory=dict)
    brief: str = ""
    comparisons: Sequence[QualityPair] = ()


Verdict = Mapping[str, Finding]  # by the names of QUESTIONS


def to_json(verdict: Verdict) -> dict[str, Any]:
    """Return the answer as it is stored under `verdict` in run.json."""
    return {
        name: {
            "answer": finding.answer,
            "sentences": list(finding.sentences),
            "figures": dict(finding.figures),
            **({"comparisons": [pair.to_json() for pair in finding.comparisons]} if finding.comparisons else {}),
        }
        for name, finding in verdict.items()
    }


def format_whole_percent(share: float) -> str:
    """Format a share as a whole percentage for a sentence."""
    value = 100 * share
    return f"{value:.0f} %" if 1 <= value <= 99 or share in (0, 1) else f"{value:.1f} %"


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
        f"mean state is {layers['expected_depth']:.1f}. All sequences share the weights."
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
_TOTAL = "eval/loss"  # it holds penalties too

_NOTHING = "No baseline with another allocation of depth was run on the same task"
_NO_COMPARISON = "no comparable baseline was run"
_NOT_RETRAINED = "not retrained"
_BAG_OF_WORDS = "bag_of_words"
_SAME_NETWORK = "the same network at "
_CHEAPER = "fixed_cheaper"
_KEYS = {"fixed": "fixed_step", "cheaper": _CHEAPER, "permuted": "random_depths"}  # of comparisons, by that of a gain
_AS_GOOD = "the cheapest that measured at least as good"
_PHRASES = {1: "better than", 0: "not clearly better than", -1: "worse than"}  # by result of a comparison


def compare_with_baselines(files: RunFiles) -> Finding:
    """Compare an adaptive run with every baseline that was evaluated with it, for the verdict of the report."""
    # Studies of exits cover all examples, so they replace the matched baseline. Recorded exits replace replayed ones.
    steps = list(_compare_steps(files))
    rules = _drop_replaced(_compare_rules(files, {pair.key for pair in steps}), steps)
    matched = _drop_replaced(_compare_matched(files), [*steps, *rules])
    readings = {pair.key: pair for pair in (*matched, *steps, *rules, *steps)}
    one_depth = _find_one_depth(files)
    pairs = [
        *_compare_without_depth(files),
        *_compare_rivals(files),
        *readings.values(),
        *_compare_networks(files),
        *(replace(pair, is_deciding=one_depth is not None) for pair in _compare_targets(files)),
    ]
    pairs = correct_pairs(pairs)
    if one_depth is not None:
        return _judge_one_depth(files, one_depth, pairs)
    sentences = [pair.sentence for pair in sorted(pairs, key=lambda pair: not pair.is_about_depth)]
    if remark := _compare_in_words(pairs):
        sentences.append(f"The model is {remark}; the answer does not depend on this.")
    if sufficient := _describe_sufficient_depth(pairs):
        sentences.insert(0, f"{sufficient[0].upper()}{sufficient[1:]}.")
    else:
        if unproven := _describe_unproven_depth(pairs):
            sentences.insert(0, f"{unproven[0].upper()}{unproven[1:]}.")
        if mixed := _list_mixed_results(pairs):
            sentences.insert(0, f"The run is {mixed}.")
    if not any(pair.is_about_depth for pair in pairs):
        sentences.append(_explain_no_comparison(files).sentence)
    answer = _decide_answer(pairs)
    return Finding(answer, sentences, _get_gains(pairs), _format_brief(files, pairs, answer), pairs)


def _drop_replaced(pairs: Iterable[QualityPair], others: Sequence[QualityPair]) -> list[QualityPair]:
    """Remove the comparisons with a cheaper fixed step on sets whose fixed steps other comparisons replace."""
    replaced = {f"{_CHEAPER}/{pair.key.partition('/')[2]}" for pair in others if pair.key.startswith("fixed")}
    return [pair for pair in pairs if pair.key not in replaced]


def _get_gains(pairs: Sequence[QualityPair]) -> dict[str, float]:
    return {f"gain_over_{pair.key}": pair.gain for pair in pairs}


def _format_brief(files: RunFiles, pairs: Sequence[QualityPair], answer: Answer) -> str:
    """Format the decisive comparison in a few words, after a baseline without depth that is not beaten."""
    failed = next(filter(_is_veto, pairs), None)
    depth = _format_depth_brief(pairs, answer)
    if failed is None:
        return "; ".join(filter(None, [depth or _explain_no_comparison(files).brief, _compare_in_words(pairs)]))
    start = "not trained yet or at chance, the model does not beat one that ignores its input"
    return f"{start}: {failed.brief}; {depth or 'one seed'}"


def _is_veto(pair: QualityPair) -> bool:
    """Return whether the model does not beat one that ignores its input, so that the verdict's answer is no."""
    return not pair.is_about_depth and pair.key != _BAG_OF_WORDS and pair.result <= 0


def _compare_in_words(pairs: Sequence[QualityPair]) -> str:
    """Return the remark that a bag of words is not beaten, with the values; empty if it is, or if there is none."""
    pair = next((pair for pair in pairs if pair.key == _BAG_OF_WORDS and pair.result <= 0), None)
    if pair is None:
        return ""
    values = f"{pair.measure} {pair.adaptive:.3f} against {pair.baseline:.3f}"
    return f"{'worse' if pair.result < 0 else 'not clearly better'} than a bag of words ({values})"


def _format_depth_brief(pairs: Sequence[QualityPair], answer: Answer) -> str:
    """Format the decisive comparison about depth, and how many of these the run won; empty if there is none."""
    about_depth = _select_deciding(pairs)
    if not about_depth:
        return ""
    # A set on which a fixed depth is beaten earns an answer in part; any other answer is that of the worst comparison.
    wins = [pair for pair in about_depth if answer == "partly" and _is_affordable(pair) and pair.result > 0]
    headline = _find_sufficient_depth(pairs) or min(wins or about_depth, key=_rank)
    full = next(filter(None, (pair.describe_full_depth() for pair in (headline, *about_depth))), "")
    results = [pair.result for pair in about_depth if pair.error is not None]
    sufficient = _describe_sufficient_depth(pairs)
    mixed, unproven = ("", "") if sufficient else (_list_mixed_results(pairs), _describe_unproven_depth(pairs))
    won = f"better than {sum(result > 0 for result in results)} of {len(results)} baselines" if results[1:] else ""
    rule = "" if headline.rule is None else f"with exit rule {headline.rule}, "
    seeds = "one seed" if headline.seeds == 1 else f"{headline.seeds} seeds"
    return rule + "; ".join(
        filter(None, [sufficient, mixed, unproven, headline.brief, full, "" if mixed else won, seeds])
    )


def _rank(pair: QualityPair) -> tuple[int, bool, float]:
    """Return the order of comparisons about depth: the worst first, of equal results those with a fixed depth."""
    return pair.result, not _is_affordable(pair), pair.gain / pair.relevant_difference


def _select_deciding(pairs: Sequence[QualityPair]) -> list[QualityPair]:
    return [pair for pair in pairs if pair.is_about_depth and pair.is_deciding]


def _is_affordable(pair: QualityPair) -> bool:
    """Return whether the baseline is a fixed depth of at most the compute of the adaptive model."""
    ratio = pair.compute_ratio
    return pair.key.startswith("fixed") and (ratio is None or ratio >= 1 - EQUAL_COMPUTE)


def _needs_less_compute(pair: QualityPair) -> bool:
    """Return whether the baseline needs less compute than the adaptive model, or fewer updates if that is unknown."""
    if pair.compute_ratio is not None:
        return pair.compute_ratio > 1 + EQUAL_COMPUTE
    return pair.depth is not None and pair.baseline_depth is not None and pair.baseline_depth < pair.depth


def _is_sufficient(pair: QualityPair, cheaper: int) -> bool:
    """Return whether a fixed depth of at most the compute of the adaptive model is shown to be as good.

    It is if it is significantly better, by however little. It also is if it needs less compute, and the gain over it is
    not significant and its interval lies below the least relevant difference. The interval has 95 % for one fixed depth
    of less compute, and 1 - .05 / `cheaper` for several (Bonferroni).
    """
    if not _is_affordable(pair) or pair.error is None:
        return False
    if pair.is_significant:
        return pair.gain < 0
    if not _needs_less_compute(pair):
        return False
    return pair.gain + compute_half_width(pair.error, pair.freedom, LEVEL / cheaper) < pair.relevant_difference


def _find_sufficient_depth(pairs: Sequence[QualityPair]) -> QualityPair | None:
    """Return the comparison with a fixed depth that is shown to be as good, unless some fixed depth decides by itself.

    A fixed depth that is relevantly better decides the answer without it. If the model is relevantly better than a
    fixed depth on another set, an equal one does not refute this.
    """
    fixed = [pair for pair in _select_deciding(pairs) if _is_affordable(pair)]
    if any(pair.result for pair in fixed):
        return None
    cheaper = sum(_needs_less_compute(pair) and pair.error is not None for pair in fixed)
    return min((pair for pair in fixed if _is_sufficient(pair, cheaper)), key=_rank, default=None)


def _describe_sufficient_depth(pairs: Sequence[QualityPair]) -> str:
    """Describe the fixed depth that is shown to be as good as the adaptive model; empty if there is none."""
    if (pair := _find_sufficient_depth(pairs)) is None:
        return ""
    quality = "at least as good" if pair.gain <= 0 else f"as good to within {pair.relevant_difference:g}"
    compute = "less compute" if _needs_less_compute(pair) else "the same compute"
    return f"{_name_baseline(pair, _has_several_sets(pairs))} is {quality} with {compute}"


def _describe_unproven_depth(pairs: Sequence[QualityPair]) -> str:
    """Name the cheapest fixed depth of less compute that measured at least as good; empty if a fixed depth decides."""
    fixed = [pair for pair in _select_deciding(pairs) if _is_affordable(pair)]
    as_good = [pair for pair in fixed if pair.error is not None and pair.gain <= 0 and _needs_less_compute(pair)]
    if not as_good or any(pair.result for pair in fixed):
        return ""
    cheapest = min(as_good, key=lambda pair: pair.baseline_depth or 0.0)
    name = _name_baseline(cheapest, _has_several_sets(pairs))
    return f"{name} measured at least as good with less compute, which this evaluation is too small to show"


def _has_several_sets(pairs: Sequence[QualityPair]) -> bool:
    return len({pair.measure.rpartition("/")[0] for pair in _select_deciding(pairs)} - {""}) > 1


def _list_mixed_results(pairs: Sequence[QualityPair]) -> str:
    """Name the baselines that the run is better than and those that it is not; empty if one of both is missing."""
    about_depth = sorted(_select_deciding(pairs), key=_rank)
    baselines = {
        phrase: [_name_baseline(pair, _has_several_sets(pairs)) for pair in about_depth if pair.result == result]
        for result, phrase in _PHRASES.items()
    }
    parts = [f"{phrase} {' and '.join(names)}" for phrase, names in baselines.items() if names]
    return ", ".join(parts) if baselines["better than"] and parts[1:] else ""


def _name_baseline(pair: QualityPair, is_set_named: bool) -> str:
    """Name a baseline in a few words, with its evaluated set if there are several."""
    name = (pair.brief_against or pair.against).removeprefix(_SAME_NETWORK).partition(", the best")[0]
    set_name = pair.measure.rpartition("/")[0]
    return f"{name} ({set_name})" if is_set_named and set_name else name


class _Reason(NamedTuple):
    """Reason why adaptive depth was not compared with a baseline, as a sentence and in a few words."""

    sentence: str
    brief: str


def _explain_no_comparison(files: RunFiles) -> _Reason:
    """Return why adaptive depth was not compared with a baseline."""
    if (reason := files.of(MATCHED_BASELINE).get("left_out")) is not None:
        return _Reason(f"{_NOTHING}: the matched baseline was skipped, {reason}.", "the matched baseline was skipped")
    if is_interrupted(files):
        return _Reason(f"{_NOTHING}, because the run was interrupted.", "the run was interrupted")
    described = files.halting.get("architecture")
    if described is not None and is_fixed(described):
        return _Reason(
            "The network has one fixed architecture; the report of its search compares it with other networks.",
            "a fixed network, which the report of its search compares with others",
        )
    if not halts(files):
        return _Reason(f"{_NOTHING}.", _NO_COMPARISON)
    if files.of(EXIT_RULES):
        return _Reason(
            f"{_NOTHING}: no evaluated exit rule could be compared, or none is the model's own rule.",
            "no evaluated exit rule could be compared",
        )
    # Of some families, no run has a matched baseline. Older versions have no setting of a bag of words.
    switched_off = "matched_baseline=false" if files.config.get("bag_of_words") else "baseline=none"
    setting = " for this model" if files.config.get("matched_baseline") else f" ({switched_off})"
    return _Reason(
        f"{_NOTHING}: no matched baseline{setting}, no fixed depth (rival_of), no exit_rules.", _NO_COMPARISON
    )


class _OneDepth(NamedTuple):
    """Depth of a model whose tokens or sequences all get the same one, and its exit rule or None."""

    depth: float
    rule: str | None


def _find_one_depth(files: RunFiles) -> _OneDepth | None:
    """Return the depth of a model that gave all tokens or sequences of an evaluated set the same, or None."""
    for entry in files.of(MATCHED_BASELINE).get("sets", {}).values():
        if entry["std"] == 0:
            return _OneDepth(entry["mean"], entry.get("rule"))
    rule, exits = get_exit_rule(files), [entry["exit"] for entry in files.of(EXITS).get("sets", {}).values()]
    if files.of(EXIT_RULES) and rule is not None and not exits:
        rows = [row for study in files.of(EXIT_RULES)["sets"].values() for row in study["rows"]]
        varies = any("permuted" in row for row in rows if normalise_rule(row["rule"]) == normalise_rule(rule))
        exits = [] if varies else [files.halting.get("classes", {}).get("all", {})]  # of the first set
    is_constant = bool(exits) and all(statistics.get("std") == 0 for statistics in exits)
    return _OneDepth(exits[0]["mean"], rule) if is_constant else None


def _judge_one_depth(files: RunFiles, one_depth: _OneDepth, pairs: Sequence[QualityPair]) -> Finding:
    """Return the verdict's answer for a model whose tokens or sequences all get the same depth.

    Without a comparison, it is not known. Exits at target depths decide as those of an adaptive model do.
    """
    model_rule = "" if one_depth.rule is None else f" with exit rule {format_rule(one_depth.rule, 3)}"
    stops = f"every {get_run_unit(files)} stops{model_rule} at update {one_depth.depth:g}"
    first = f"Nothing was compared: {stops}, so a fixed depth gives the same network."
    brief = f"nothing was compared, because {stops}"
    answer: Answer = "unknown"
    if deciding := sorted(_select_deciding(pairs), key=_rank):
        first, brief = f"Depth does not vary: {stops}, as in a network of fixed depth.", stops
        for rule in dict.fromkeys(pair.rule for pair in deciding):
            of_rule = [pair for pair in deciding if pair.rule == rule]
            phrases = [f"{_PHRASES[pair.result]} {_name_baseline(pair, False)}" for pair in of_rule]
            results = " and ".join(dict.fromkeys(phrases))  # of several sets
            first += f" The model is {results}." if rule is None else f" With exit rule {rule}, it is {results}."
            brief += f"; {results}" if rule is None else f"; with exit rule {rule}, {results}"
        brief += f"; {deciding[0].brief}"
        answer = _decide_answer(pairs) if files.of(BUDGETS).get("exits") else "no"
    sentences = [pair.sentence for pair in sorted(pairs, key=lambda pair: not pair.is_about_depth)]
    return Finding(answer, [first, *sentences], _get_gains(pairs), brief, pairs)


class FittedRule(NamedTuple):
    """Exit rule that the matched baseline fitted for a model without one.

    Attributes:
        label: Name and parameters.
        mean: Mean number of updates with the rule.
        max_depth: Largest number of updates.
    """

    label: str
    mean: float
    max_depth: int


def find_fitted_rule(files: RunFiles) -> FittedRule | None:
    """Return the exit rule whose quality the matched baseline measured, or None if it is that of the model."""
    entry: Mapping[str, Any] = next(iter(files.of(MATCHED_BASELINE).get("sets", {}).values()), {})
    if entry.get("rule") is None:
        return None
    return FittedRule(format_rule(entry["rule"], 3), entry["mean"], entry["max_depth"])


def _compare_matched(files: RunFiles) -> Iterator[QualityPair]:
    """Yield comparisons with the run's matched baseline: one fixed depth and shuffled depths, or a trained network."""
    for name, entry in files.of(MATCHED_BASELINE).get("sets", {}).items():
        yield from _compare_readings(files, name, entry)
    metrics = files.run.get("final_metrics") or {}
    for network in files.of(MATCHED_BASELINE).get("networks", []):
        name = select_compared_metric(metrics, network["metrics"], [f"/{quality}" for quality in qualities(files)])
        if name is not None:
            against = f"{network['about']}, trained the same way in this run"
            values = metrics[name], network["metrics"][name], network.get("errors", {}).get(name)
            yield build_trained_pair(files, "matched_baseline", against, name.removeprefix("eval/"), *values)


def _compare_readings(files: RunFiles, name: str, entry: Mapping[str, Any]) -> Iterator[QualityPair]:
    """Yield comparisons of the trained network with itself at one fixed depth and at shuffled depths."""
    rule = None if entry.get("rule") is None else format_rule(entry["rule"], 3)
    fit = "" if rule is None else f" with {rule}, fitted to half of all updates"
    sample = f"{entry['examples']:,} of {entry['of_examples']:,} sequences"
    for key, gains in _get_gains_of_baselines(files, entry).items():
        measure = next((name for name in [*qualities(files), "loss", "accuracy"] if name in gains), None)
        if measure is None or (entry["std"] == 0 and gains[measure]["baseline_depth"] in (None, entry["mean"])):
            continue  # the second is the model itself
        depth = gains[measure]["baseline_depth"]
        if key == "permuted":
            against, brief = f"its own depths shuffled over the units{fit}", "its own depths shuffled"
        else:
            brief = _format_brief_depth(depth)
            against = f"{brief}, {_AS_GOOD}" if key == "cheaper" else _format_fixed_depth(depth, entry["mean"], fit)
        pair = f"{_KEYS[key]}/{name}"
        compared = build_gain_pair(files, pair, against, name, gains[measure], entry["mean"], sample, brief)
        yield replace(compared, rule=rule)


def _format_fixed_depth(depth: float, mean: float, rule: str = "") -> str:
    """Describe the fixed depth of a baseline beside the mean depth of the model."""
    mean_words = f"its mean of {mean:.2f} updates{rule}"
    if depth == mean and not float(depth).is_integer():
        return f"{_format_brief_depth(depth)} to {mean_words}"
    return f"{_format_brief_depth(depth)}, {'' if depth == mean else 'the best up to '}{mean_words}"


def _format_brief_depth(depth: float) -> str:
    """Describe a fixed depth, which is a mixture if it lies between two whole numbers of updates."""
    if float(depth).is_integer():
        return f"{_SAME_NETWORK}fixed depth {depth:g}"
    return f"{_SAME_NETWORK}fixed depths {math.floor(depth)} and {math.ceil(depth)}, mixed"


def _get_gains_of_baselines(files: RunFiles, entry: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Return the gains of a set over its baselines, by baseline and metric.

    Records of earlier versions have the quality of the baselines without an error.
    """
    if "gains" in entry:
        gains: Mapping[str, Mapping[str, Any]] = entry["gains"]
        return gains
    nearest = min(entry["fixed"], key=lambda row: abs(row["depth"] - entry["mean"]))
    baselines = {"fixed": nearest["quality"], "permuted": entry["permuted"]["quality"]}
    untested = {"error": None, "freedom": None, "sequences": entry["n"], "baseline_depth": nearest["depth"]}
    return {
        key: {
            name: {"measure": name, "adaptive": entry["own"][name], "baseline": value, **untested}
            for name, value in quality.items()
        }
        for key, quality in baselines.items()
    }


def _decide_answer(pairs: Sequence[QualityPair]) -> Answer:
    """Decide the verdict's answer from all comparisons of the run with baselines.

    The answer is no if the model does not beat every baseline that ignores the input, or is worse than a fixed depth of
    at most its compute, or if such a depth is shown to be as good (see `_is_sufficient`). Otherwise the comparisons
    about depth decide; without a significant difference, nothing is shown. A bag of words does not count.
    """
    about_depth = _select_deciding(pairs)
    if any(map(_is_veto, pairs)) or any(pair.result < 0 for pair in about_depth if _is_affordable(pair)):
        return "no"
    if all(pair.error is None for pair in about_depth):
        return "unknown"
    if _find_sufficient_depth(pairs) is not None:
        return "no"
    results = [pair.result for pair in about_depth]
    if max(results) <= 0:
        return "no" if min(results) < 0 else "unclear"
    return "yes" if min(results) > 0 else "partly"


class CommonestLabel(NamedTuple):
    """Most frequent label of the labelled units of a set.

    Attributes:
        share: Accuracy of always predicting it.
        described: Statistics of the units with this label.
        n: Number of predictions.
    """

    share: float
    described: Mapping[str, Any]
    n: int


def find_commonest_label(classes: Mapping[str, Mapping[str, Any]]) -> CommonestLabel | None:
    """Return the most frequent label, or None if some predictions have no class for their label."""
    labelled = [described for name, described in classes.items() if name.startswith("label: ")]
    # Where a label is a whole sequence's, a class has many tokens and few predictions.
    counts = [described.get("accuracy_n", described["n"]) for described in labelled]
    everyone = classes.get("all", {})
    if "accuracy" not in everyone or not counts or sum(counts) != everyone["accuracy_n"]:
        return None
    return CommonestLabel(max(counts) / sum(counts), labelled[counts.index(max(counts))], sum(counts))


def _compare_without_depth(files: RunFiles) -> Iterator[QualityPair]:
    """Yield comparisons with baselines without depth: a bag of words, token frequencies, the most frequent label."""
    metrics, baselines = files.run.get("final_metrics") or {}, files.run.get("baselines") or {}
    yield from _compare_bag_of_words(files, metrics, baselines.get("bag_of_words"))
    unigram = baselines.get("unigram")
    if unigram and isinstance(adaptive := metrics.get("eval/mlm_loss"), int | float):
        remark = f"nats per masked token, n {unigram['positions']:,}"
        yield _build_pair_without_depth(
            files, "unigram", "word frequencies only", "mlm_loss", adaptive, unigram["cross_entropy"], remark
        )
    classes = files.halting.get("classes", {})
    if (commonest := find_commonest_label(classes)) is not None:
        everyone, against = classes["all"], "always predicting the most frequent label"
        error, remark = (
            _estimate_label_error(everyone, commonest.described, commonest.n),
            f"n {commonest.n:,}, one seed",
        )
        values = everyone["accuracy"], commonest.share
        yield QualityPair(
            "commonest_label", against, "accuracy", *values, error, GROUPS - 1, remark, False, is_about_depth=False
        )


def _estimate_label_error(everyone: Mapping[str, Any], commonest: Mapping[str, Any], n: int) -> float:
    """Return the standard error of the gain in accuracy over always predicting the most frequent label.

    The gain of a prediction is -1 if it is wrong and the label is the most frequent one, 1 if it is right and the label
    is another one, and 0 otherwise. n predictions count as many as would give the accuracy the error that it has.

    Args:
        everyone: Statistics of all units.
        commonest: Statistics of the units with the most frequent label.
        n: Number of predictions.
    """
    accuracy = everyone["accuracy"]
    share = commonest.get("accuracy_n", commonest["n"]) / n
    lost = share * (1 - commonest["accuracy"])
    won = accuracy - share * commonest["accuracy"]
    return math.sqrt(max(lost + won - (won - lost) ** 2, 0.0) / count_independent(everyone, n))


def count_independent(everyone: Mapping[str, Any], n: int) -> float:
    """Return as how many independent predictions n predictions count, by the error of their accuracy."""
    accuracy, error = everyone["accuracy"], everyone.get("accuracy_error", 0.0)
    return max(min(n, accuracy * (1 - accuracy) / error**2) if error else n, 1.0)


def _build_pair_without_depth(
    files: RunFiles, key: str, against: str, measure: str, adaptive: float, baseline: float, remark: str
) -> QualityPair:
    """Build the comparison with a baseline without depth. The error is that of the run, or unknown."""
    error = find_error(files.halting, adaptive)
    full_remark = remark if error is not None else f"{remark}; error unknown"
    return QualityPair(
        key, against, measure, adaptive, baseline, error, GROUPS - 1, full_remark,
        is_less_better(measure, files.config), is_about_depth=False,
    )  # fmt: skip


def _compare_bag_of_words(
    files: RunFiles, metrics: Mapping[str, Any], scored: Mapping[str, Any] | None
) -> Iterator[QualityPair]:
    """Yield the comparison with a model that ignores word order, on the first evaluation set of a table."""
    baseline_metrics: Mapping[str, float] = {} if scored is None else next(iter(scored["sets"].values()), {})
    measure = next((name for name in qualities(files) if name in baseline_metrics and f"eval/{name}" in metrics), None)
    if scored is not None and measure is not None:
        adaptive, baseline = metrics[f"eval/{measure}"], baseline_metrics[measure]
        yield _build_pair_without_depth(
            files, _BAG_OF_WORDS, scored["model"], measure, adaptive, baseline, "the first set"
        )


def _compare_rivals(files: RunFiles) -> Iterator[QualityPair]:
    """Yield comparisons with trained matched baselines of fixed depth.

    The best one of at most the compute of the adaptive network decides. Those of more compute are named, too.
    """
    groups = group_networks(files.of(RIVALS))
    endings = [f"/{name}" for name in qualities(files)]
    measured = [
        (baseline, name)
        for baseline in groups[1:]
        if (name := select_compared_metric(groups[0][0]["metrics"], baseline[0]["metrics"], endings)) is not None
    ]
    pairs = [_build_rival_pair(files, groups[0], baseline, name) for baseline, name in measured]
    unknown = [pair for pair in pairs if pair.compute_ratio is None]
    cheaper = [pair for pair in pairs if pair.compute_ratio is not None and pair.compute_ratio >= 1 - EQUAL_COMPUTE]
    best = [min(cheaper, key=lambda pair: pair.gain)] if cheaper else []
    deciding = [*unknown, *best] or pairs
    for pair, (baseline, _) in zip(pairs, measured, strict=True):
        is_deciding = pair in deciding
        if is_deciding:
            yield pair
        else:
            key, remark = f"{pair.key}/{get_depth(baseline[0])}", f"{pair.remark}; not counted in the answer"
            yield replace(pair, key=key, remark=remark, is_deciding=False)


def _build_rival_pair(files: RunFiles, adaptive: Networks, baseline: Networks, name: str) -> QualityPair:
    """Build the comparison with one trained matched baseline, by a metric that both have."""
    compute, own_compute = average_compute(baseline), average_compute(adaptive)
    ratio = own_compute / compute if own_compute and compute else None
    own_sizes, sizes = average_sizes(adaptive), average_sizes(baseline)
    size_ratios = {name: value for name in SIZE_FIELDS if (value := compute_ratio(own_sizes, sizes, name)) is not None}
    shares = {**({} if ratio is None else {"compute": ratio}), **size_ratios}
    parts = [f"{100 / value:.0f} % of its {TITLES[name]}" for name, value in shares.items()]
    share = f" ({', '.join(parts)})" if parts else ""
    steps, own_steps = format_steps(get_steps(baseline)), format_steps(get_steps(adaptive))
    length = "" if None in (steps, own_steps) or steps == own_steps else f", trained for {steps} steps, not {own_steps}"
    against = f"the matched baseline trained at fixed depth {get_depth(baseline[0])}{share}{length}"
    means = [row["mean"] for row in adaptive if "mean" in row]
    depths = fmean(means) if means else None, float(get_depth(baseline[0]))
    key, measure = "fixed_depth", name.removeprefix("eval/")
    if len(adaptive) == 1:
        values = adaptive[0]["metrics"][name], baseline[0]["metrics"][name], baseline[0].get("errors", {}).get(name)
        pair = build_trained_pair(files, key, against, measure, *values, depths=depths, compute_ratio=ratio)
        return replace(pair, size_ratios=size_ratios)
    adaptive_mean, baseline_mean = _average_metric(adaptive, name), _average_metric(baseline, name)
    pair = build_seeds_pair(files, key, against, measure, adaptive_mean, baseline_mean, depths, ratio)
    return replace(pair, size_ratios=size_ratios)


def _average_metric(networks: Networks, name: str) -> SeedMean:
    """Return the mean over seeds of a metric, with the error over seeds and sequences."""
    errors = [row.get("errors", {}).get(name) for row in networks]
    return average_over_seeds([row["metrics"][name] for row in networks], errors)


def qualities(files: RunFiles) -> list[str]:
    """Return the final quality metrics of a run, under names without the evaluation set.

    The metrics that the run optimises or uses for model selection come first.
    """
    selecting = (files.config.get("trainer") or {}).get("metric_for_best_model")
    meant = [files.config.get("optimise"), selecting and "eval/" + selecting.removeprefix("eval_")]
    preferred = [name.rpartition("/")[2] for name in meant if name and name.startswith("eval/") and name != _TOTAL]
    return list(dict.fromkeys([*preferred, *PREFERRED_QUALITIES]))


def _compare_steps(files: RunFiles) -> Iterator[QualityPair]:
    """Yield comparisons with the same network when all its units exit at one step, if that is not the model itself."""
    for name, set_exits in files.of(EXITS).get("sets", {}).items():
        at_exit = set_exits["exit"]
        gain, mean = at_exit.get("gain"), at_exit.get("mean")
        if gain is not None and (at_exit.get("std") != 0 or gain["baseline_depth"] != mean):
            depth = gain["baseline_depth"]
            against, brief = _format_fixed_depth(depth, mean), _format_brief_depth(depth)
            sequences = gain["sequences"] + gain.get("selected_on", 0)
            sample = "" if sequences == set_exits["n"] else f"n {set_exits['n']:,}"
            yield build_gain_pair(files, f"{_KEYS['fixed']}/{name}", against, name, gain, mean, sample, brief)
            if (cheaper := at_exit.get("cheaper_gain")) is not None:
                brief = _format_brief_depth(cheaper["baseline_depth"])
                key, against = f"{_CHEAPER}/{name}", f"{brief}, {_AS_GOOD}"
                yield build_gain_pair(files, key, against, name, cheaper, mean, sample, brief)


def _compare_rules(files: RunFiles, compared: Collection[str]) -> Iterator[QualityPair]:
    """Yield comparisons of an exit rule with the best fixed step of at most its compute, and with shuffled exits.

    The rule is the model's own exit rule. Without one, it is the rule with the median gain over fixed steps; of an even
    number, the worse of the middle two. If the model halts by itself, no rule stands for it.

    Args:
        files: Files of the run.
        compared: Keys of the comparisons of the model's own exits.
    """
    model_rule = get_exit_rule(files)
    own_rule = None if model_rule is None else normalise_rule(model_rule)
    for name, study in files.of(EXIT_RULES).get("sets", {}).items():
        rows = [row for row in study["rows"] if {"fixed", "permuted"} <= row.get("gains", {}).keys()]
        if model_rows := [row for row in study["rows"] if row.get("gains") and normalise_rule(row["rule"]) == own_rule]:
            yield from _compare_own_rule(files, name, model_rows[0], study["rows"])
            continue
        if not rows or model_rule is not None or f"fixed_step/{name}" in compared:
            continue
        pairs = {
            row["rule"]: build_gain_pair(
                files,
                f"fixed_exits/{name}",
                f"{_format_brief_depth(row['gains']['fixed']['baseline_depth'])}, the best with at most the compute of "
                f"{row['rule']}",
                name,
                row["gains"]["fixed"],
                row.get("mean_updates"),
                compute_ratio=_compare_with_fixed_macs(study["rows"], row, row["gains"]["fixed"]["baseline_depth"]),
            )
            for row in rows
        }
        corrected = correct_pairs(list(pairs.values()))
        ordered = sorted(rows, key=lambda row: pairs[row["rule"]].gain)
        median = ordered[(len(ordered) - 1) // 2]
        better, worse = (sum(pair.result == result for pair in corrected) for result in (1, -1))
        chosen = "the only exit rule" if len(rows) == 1 else f"the median of {len(rows)} exit rules by gain"
        remark = f"{chosen}; significantly better: {better}, significantly worse: {worse}"
        pair = pairs[median["rule"]]
        yield replace(pair, remark=f"{remark}; {pair.remark}")
        against = f"randomly shuffled exits of {median['rule']}"
        yield build_gain_pair(
            files, f"random_exits/{name}", against, name, median["gains"]["permuted"], median.get("mean_updates")
        )


def _compare_own_rule(
    files: RunFiles, name: str, row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> Iterator[QualityPair]:
    """Yield comparisons of the model's own exit rule, under the keys of a matched baseline, which they replace."""
    gains, depth = row["gains"], row.get("mean_updates")
    for key, what in (("fixed", "the best with at most its compute"), ("cheaper", _AS_GOOD)):
        baseline_depth = gains.get(key, {}).get("baseline_depth", depth)
        if key in gains and ("permuted" in gains or baseline_depth != depth):  # or all exits are at this depth
            brief, ratio = _format_brief_depth(baseline_depth), _compare_with_fixed_macs(rows, row, baseline_depth)
            yield build_gain_pair(
                files, f"{_KEYS[key]}/{name}", f"{brief}, {what}", name, gains[key], depth, brief_against=brief,
                compute_ratio=ratio,
            )  # fmt: skip
    if "permuted" in gains:
        against = "its own exits shuffled"
        yield build_gain_pair(files, f"{_KEYS['permuted']}/{name}", against, name, gains["permuted"], depth)


def _compare_targets(files: RunFiles) -> Iterator[QualityPair]:
    """Yield comparisons of exits at target depths with the best fixed step of at most their compute, and shuffled."""
    budgets = files.of(BUDGETS)
    rows = budgets.get("exits", {}).get("rows", [])
    studied = {tuple(normalise_rule(row["rule"])): row for row in rows if row.get("gains")}
    targets = [row for row in budgets.get("rows", []) if row["target"] is not None] if studied else []
    for target in targets:
        if (row := studied.get(tuple(normalise_rule(target["rule"])))) is None:
            continue
        at_target, rule = f"at target {target['target']:g}", format_rule(target["rule"], 3)
        for pair in _compare_own_rule(files, budgets["set"], row, rows):
            yield replace(
                pair,
                key=f"{pair.key}/target_{target['target']:g}",
                against=f"{pair.against}, {at_target}",
                brief_against=f"{pair.brief_against or pair.against} {at_target}",
                remark=f"exit rule {rule}, {row['mean_updates']:.2f} updates; {pair.remark}",
                rule=rule,
            )


def _compare_with_fixed_macs(rows: Sequence[Mapping[str, Any]], row: Mapping[str, Any], depth: float) -> float | None:
    """Return the compute of an exit rule over that of a fixed step, or None if that step is not in the table."""
    if not float(depth).is_integer():
        return 1.0  # a mixture of two steps with the compute of the rule
    label = f"fixed:{depth:g}"
    fixed = next((other.get("macs") for other in rows if other["rule"] == label), None)
    return row["macs"] / fixed if fixed and "macs" in row else None


def _compare_networks(files: RunFiles) -> Iterator[QualityPair]:
    """Yield comparisons of a searched architecture with other architectures that were trained in the same way."""
    rows = [row for row in files.of(ARCHITECTURES).get("rows", []) if "loss" in (row.get("quality") or {})]
    searched = [row for row in rows if row["kind"] == "searched" and row["trained"] != _NOT_RETRAINED]
    for adaptive, baseline in product(searched, rows):
        if baseline["kind"] == "searched" or baseline["trained"] != adaptive["trained"]:
            continue
        losses = adaptive["quality"]["loss"], baseline["quality"]["loss"]
        macs, other_macs = adaptive.get("macs") or {}, baseline.get("macs") or {}
        ratios = {shape: macs[shape] / other_macs[shape] for shape in macs if other_macs.get(shape)}
        remark = "; ".join(
            f"{format_whole_percent(ratio)} of its multiply-accumulates at {shape}" for shape, ratio in ratios.items()
        )
        against = f"the architecture {baseline['name']}, trained the same way ({adaptive['trained']})"
        measure = f"{adaptive['quality_set']}/loss"
        key, ratio = f"architecture/{baseline['name']}", next(iter(ratios.values()), None)
        yield build_trained_pair(files, key, against, measure, *losses, remark=remark, compute_ratio=ratio)
