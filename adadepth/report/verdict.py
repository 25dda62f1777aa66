"""Verdict on a run: does depth reach its target, adapt to the input and improve quality, and what does it save?"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from adadepth.budget.target import CEILINGS, TOLERANCE, is_held
from adadepth.config.overrides import format_override
from adadepth.metrics.adaptation import DECIDED, FEWEST_DEPTHS, KIND, describe_adaptation, is_collapsed, is_measurable
from adadepth.metrics.metric_names import WORK, get_unit_wording
from adadepth.metrics.significance import LEVEL, SeedMean, compare_means, correct_p_values
from adadepth.metrics.unit_costs import (
    UNIT_COST_TITLES,
    UNIT_MACS,
    WITHOUT_PREDICTIONS,
    compute_share_with_predictions,
    format_compute_shares,
    format_count,
)
from adadepth.report.baseline_comparison import (
    ANSWERS,
    QUESTIONS,
    Answer,
    Finding,
    Verdict,
    assess_layer_choice,
    assess_operation_choice,
    compare_with_baselines,
    count_independent,
    find_commonest_label,
    find_fitted_rule,
    format_whole_percent,
)
from adadepth.report.compute_cost import (
    describe_wall_clock,
    format_rule_times,
    format_speed,
    get_speedup_range,
    get_speedups,
    measure_unit_costs,
)
from adadepth.report.depth_correction import describe_correction, describe_lost_depths
from adadepth.report.matched_networks import group_networks
from adadepth.report.quality_pairs import RELEVANT_SCORE, QualityPair
from adadepth.report.resources import SIZE_FIELDS, TITLES
from adadepth.report.run_files import (
    RIVALS,
    SEEDS,
    RunFiles,
    get_early_stop_reason,
    get_evaluation_step,
    get_exit_rule,
    get_run_unit,
    halts,
    is_interrupted,
    is_summary_of_seeds,
)
from adadepth.report.section import Section, fill
from adadepth.report.table import Column, Table, format_p_value, has_values, make_number_format, text

# Rank correlations from here on are called weak, moderate, strong (Cohen 1988).
WEAK, MODERATE, STRONG = 0.1, 0.3, 0.5
_CLASS_KINDS = {"kind": "kinds of token", "label": "labels", "correctness": "right and wrong predictions"}
_CLASS_KINDS |= {"length": "lengths", "difficulty": "difficulties"}


def assess_adaptation(halting: Mapping[str, Any]) -> Finding:
    """Decide whether the depths of tokens or sequences vary, and what explains the variation, for the verdict.

    Args:
        halting: Contents of halting.json.
    """
    everyone, unit = halting["classes"]["all"], halting["unit"]
    spread_words = f"{everyone['mean']:.2f} ± {everyone['std']:.2f} updates per {unit}, at most {halting['max_depth']}"
    depths = {"mean_updates": everyone["mean"], "std_updates": everyone["std"], "n": everyone["n"]}
    recorded = halting.get("adaptation", {})
    if recorded.get("is_set"):
        first = f"No {unit} could halt at this evaluation: {spread_words}, n {everyone['n']:,}."
        return Finding("set", [first], depths, _format_brief_depth(halting))
    # Older records lack the measure; it follows from the classes.
    adaptation = recorded if "commonest" in recorded else describe_adaptation(halting["classes"], unit)
    between = {way: variance["share"] for way, variance in adaptation["between"].items()}
    answer = _decide_adaptation(halting, adaptation)
    sentences = [
        _describe_spread(adaptation, everyone["n"], unit, spread_words),
        *_describe_variance(between, answer),
        *_describe_correlations(halting),
    ]
    if answer == "against":
        sentences.insert(
            1, f"Harder {unit}s get less depth than easier ones, so depth is not spent where it is needed."
        )
    if answer == "varies":
        # With a known difficulty, that alone decides; depth may still differ between classes.
        other = "difficulty" if halting.get("difficulty", {}).get("spearman") else "loss or known class"
        sentences.insert(1, f"Depth varies, but it is unrelated to the {other} of a {unit}.")
    figures = {key: adaptation[key] for key in ("effective_depths", "commonest", "commonest_share")}
    figures |= depths | {f"between_{way}": share for way, share in between.items()}
    figures |= {f"spearman_{other}": correlation["value"] for other, _, correlation in _get_correlations(halting)}
    brief = _format_brief_depth(halting)
    if answer == "yes" and not any(_get_direction(row) > 0 for _, _, row in _get_correlations(halting)):
        # Classes decided; the correlation would be no evidence.
        way, share = max(between.items(), key=lambda item: item[1])
        evidence = f"{format_whole_percent(share)} of its variance lies between {_CLASS_KINDS[way]}"
        brief = f"{brief.partition('; ')[0]}; {evidence}"
    if answer == "no" and everyone["std"] > 0:  # a correlation may be strong over few units of another depth
        share = format_whole_percent(adaptation["commonest_share"])
        brief = f"{share} of {unit}s stop at update {adaptation['commonest']}; {brief}"
    return Finding(answer, sentences, figures, brief)


def _decide_adaptation(halting: Mapping[str, Any], adaptation: Mapping[str, Any]) -> Answer:
    """Decide whether depth adapts: it must vary, and be related to difficulty, to the loss, or to a known class."""
    if is_collapsed(adaptation["effective_depths"]):
        return "no"
    if adaptation["between"].get(KIND, {}).get("share", 0.0) >= DECIDED:
        return "partly"
    if (difficulty := halting.get("difficulty", {}).get("spearman")) is not None:
        direction = _get_direction(difficulty)
        return "yes" if direction > 0 else "against" if direction < 0 else "varies"
    directions = [_get_direction(correlation) for _, _, correlation in _get_correlations(halting)]
    # A share of 1 % is the square of the smallest correlation that is called weak.
    differs_by_class = any(
        variance["share"] >= WEAK**2 and variance.get("low", 0.0) > 0.0 for variance in adaptation["between"].values()
    )
    return "yes" if max(directions, default=0) > 0 or differs_by_class else "varies"


def _format_brief_depth(halting: Mapping[str, Any]) -> str:
    """Format mean depth, standard deviation and the most important rank correlation in a few words."""
    everyone = halting["classes"]["all"]
    depth = f"{everyone['mean']:.2f} ± {everyone['std']:.2f} of {halting['max_depth']} updates"
    correlation = next(
        (
            f"; Spearman with {other}{units and f' of{units}'} "
            f"{format(row['value'], '+.2f') if is_measurable(row) else 'not measurable'}"
            for other, units, row in _get_correlations(halting)
        ),
        "",
    )
    return depth + correlation


def _describe_spread(adaptation: Mapping[str, Any], n: int, unit: str, spread: str) -> str:
    share, commonest = format_whole_percent(adaptation["commonest_share"]), adaptation["commonest"]
    varied = f"{adaptation['effective_depths']:.1f} effective depths"
    if is_collapsed(adaptation["effective_depths"]):
        return (
            f"Depth did not adapt: {share} of {n:,} {unit}s stop at update {commonest} ({spread}, {varied}; fewer "
            f"than {FEWEST_DEPTHS:g} effective depths count as one)."
        )
    return f"{spread}, {varied}; {share} of {n:,} {unit}s stop at the most frequent depth, {commonest}."


def _describe_variance(between: Mapping[str, float], answer: Answer) -> Iterator[str]:
    """Yield sentences on the share of depth variance that token or sequence classes explain."""
    if not between or answer == "no":
        return
    (way, share), *rest = between.items()
    parts = [f"{format_whole_percent(share)} of the variance of depth lies between {_CLASS_KINDS[way]}"]
    parts += [f"{format_whole_percent(share)} between {_CLASS_KINDS[way]}" for way, share in rest]
    yield f"{', '.join(parts)}; the rest lies within them."
    if answer == "partly":
        yield "The kind of a token decides its depth; tokens of one kind get similar depths."


def _describe_correlations(halting: Mapping[str, Any]) -> Iterator[str]:
    """Yield sentences on the rank correlations of depth with difficulty and with loss."""
    for other, units, correlation in _get_correlations(halting):
        interval = (
            f"95 % interval over sequences {correlation['low']:+.2f} to {correlation['high']:+.2f}, "
            f"n {correlation['n']:,}{units}"
        )
        relation = describe_strength(correlation, other)
        if not is_measurable(correlation):
            yield f"The correlation of depth with {other} is not measurable (Spearman, {interval})."
            continue
        yield f"Depth {relation}: Spearman {correlation['value']:+.2f} ({interval})."


def describe_strength(correlation: Mapping[str, float], other: str) -> str:
    """Describe the strength of a rank correlation in words; none if it is small or 0 lies in its interval."""
    if not (direction := _get_direction(correlation)):
        return f"does not follow {other}"
    size = abs(correlation["value"])
    how = "strongly" if size >= STRONG else "moderately" if size >= MODERATE else "weakly"
    return f"follows {other} {how}" if direction > 0 else f"runs {how} against {other}"


def _get_direction(correlation: Mapping[str, float] | None) -> int:
    """Return the sign of a rank correlation, or 0 if it is missing or small, or its interval contains 0."""
    if correlation is None or abs(correlation["value"]) < WEAK or correlation["low"] <= 0 <= correlation["high"]:
        return 0
    return 1 if correlation["value"] > 0 else -1


def _get_correlations(halting: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, float]]]:
    """Yield the rank correlations of depth, each with the other variable, the tokens or sequences, and its interval.

    The correlation with the loss is over masked tokens if there are any. Over all tokens, differences between classes
    alone would cause a correlation.
    """
    if correlation := halting.get("difficulty", {}).get("spearman"):
        yield "difficulty", "", correlation
    losses = halting.get("spearman", {})
    if "mask" in losses:
        yield "loss", " masked tokens", losses["mask"]
    elif "all" in losses:
        yield "loss", "", losses["all"]


NEEDED = WORK.removeprefix("cost/")


def cost(files: RunFiles) -> Finding:
    """Answer the verdict's question on cost: updates, compute as a share of full depth, and measured speed-up.

    The compute that the evaluation itself used is not a cost of the model. The section Compute reports it.
    """
    halting, unit = files.halting, get_run_unit(files)
    needed = halting.get("cost", {}).get(NEEDED)
    figures = {} if needed is None else {NEEDED: needed}
    macs = {name: value for name, value in measure_unit_costs(files).items() if name in UNIT_MACS}
    figures |= {name.removeprefix("cost/"): value for name, value in macs.items()}
    figures |= {f"speedup_in_{kind}": value for kind, value in get_speedups(files).items()}
    sentences = list(_describe_updates(halting, unit))
    if needed is not None:
        whole = f"the multiply-accumulates of {_name_full_depth(files)}"
        with_predictions = compute_share_with_predictions(halting)
        compute = format_compute_shares(needed, with_predictions, format_whole_percent, whole)
        sentences.append(f"{get_unit_wording(unit).needing} {compute}.")
        without = f", {WITHOUT_PREDICTIONS}" if halting.get("prediction_macs") else ""
        sentences += [
            f"This is {format_count(value)} {UNIT_COST_TITLES[name]}{without}." for name, value in macs.items()
        ]
    if (fitted := find_fitted_rule(files)) is not None:
        share = format_whole_percent(fitted.mean / fitted.max_depth)
        sentences.append(
            f"These are figures without an exit rule. With {fitted.label}, whose quality is compared above, it is "
            f"{fitted.mean:.2f} of {fitted.max_depth} updates ({share})."
        )
    sentences += describe_wall_clock(files)
    return Finding(None, sentences, figures, _format_brief_cost(files, needed))


def _format_brief_cost(files: RunFiles, needed: float | None) -> str:
    """Format the shares of updates and MACs relative to full depth, and the speed-up, in a few words."""
    halting, unit = files.halting, get_run_unit(files)
    parts = []
    if layers := halting.get("layers"):
        parts.append(f"{layers['deepest']} of {len(layers['weights']) - 1} blocks")
    elif get_unit_wording(unit).halts:
        parts.append(f"{format_whole_percent(halting['classes']['all']['mean'] / halting['max_depth'])} of updates")
    if needed is not None:
        whole = f"the compute of {_name_full_depth(files)}" if unit == "architecture" else "the compute"
        parts.append(
            format_compute_shares(needed, compute_share_with_predictions(halting), format_whole_percent, whole)
        )
    if (speedup := get_speedups(files).get("evaluation")) is not None:
        parts.append(f"evaluation {format_speed(speedup, get_speedup_range(files, 'evaluation'))}")
    brief = ", ".join(parts) or "not measured"
    if (fitted := find_fitted_rule(files)) is not None:
        with_rule = f"{format_whole_percent(fitted.mean / fitted.max_depth)} of updates with {fitted.label}"
        brief = f"{brief} without an exit rule; {with_rule}"
    return "; ".join(filter(None, [brief, format_rule_times(files)]))


def _name_full_depth(files: RunFiles) -> str:
    """Name the network whose compute is the reference, with its size if runs of one search may differ in it."""
    unit = get_run_unit(files)
    of_full = get_unit_wording(unit).of_full
    return of_full.replace("as many", str(files.halting["max_depth"])) if unit == "architecture" else of_full


def _describe_updates(halting: Mapping[str, Any], unit: str) -> Iterator[str]:
    if unit == "task":
        if layers := halting.get("layers"):
            yield f"{layers['deepest']} of {len(layers['weights']) - 1} blocks must run."
    elif get_unit_wording(unit).halts:
        mean, max_depth = halting["classes"]["all"]["mean"], halting["max_depth"]
        yield f"{mean:.2f} of {max_depth} updates per {unit} ({format_whole_percent(mean / max_depth)})."


class Depth(NamedTuple):
    """Measured depth of a run in the unit of its depth budget, with a format for its value."""

    written: str
    measured: float | None


def target(files: RunFiles) -> Finding | None:
    """Answer the verdict's question on the target depth, with advice if it was missed; return None without a target."""
    settings = files.config.get("budget") or {}
    target_value = settings.get("target")
    if not target_value or files.run.get("mode", "train") != "train":
        return None
    unit = str(settings.get("unit", "updates"))
    depth = _get_target_depth(files, unit)
    statement = f"target {depth.written.format(target_value)}"
    if depth.measured is None:
        first = f"The depth was not measured ({statement})."
        return Finding("unknown", [first], {"target": target_value}, f"{statement}, not measured")
    figures = {"target": target_value, "evaluated": depth.measured}
    brief = f"{depth.measured:.3g}, {statement}"
    if files.halting.get("adaptation", {}).get(
        "is_set"
    ):  # depth was still growing, or held fixed, so nothing could halt
        first = f"{_explain_one_depth(files)} depth {depth.measured:.3g} ({statement})."
        return Finding(
            "unknown", [first, f"Possible remedies: {'; '.join(_advise(files, unit, target_value))}."], figures, brief
        )
    limit = f"within {format_whole_percent(TOLERANCE)} {'or below ' if unit in CEILINGS else ''}counts as reached"
    statement += f", {depth.measured:.3g} in the evaluation ({limit})"
    correction = files.run.get("depth_correction") or {}
    corrected, lost = describe_correction(correction), describe_lost_depths(correction)
    brief = "; ".join(filter(None, [brief, lost]))
    if is_held(depth.measured, target_value, unit):
        return Finding("yes", [f"Reached: {statement}.", *corrected], figures, brief)
    missed = abs(depth.measured - target_value)
    side = "below" if depth.measured < target_value else "above"
    first = f"Missed by {missed:.3g}, {format_whole_percent(missed / target_value)} {side}: {statement}."
    remedies = f"Possible remedies: {'; '.join(_advise(files, unit, target_value))}."
    return Finding("no", [first, *corrected, remedies], figures, brief)


def _explain_one_depth(files: RunFiles) -> str:
    """Return the beginning of the sentence on units that could not halt yet, up to their depth."""
    unit, step = get_run_unit(files), get_evaluation_step(files)
    if is_interrupted(files) and step is not None:
        return f"Training was interrupted; at the last evaluation, step {step:,}, all {unit}s still had"
    return f"Training ended before halting began: all {unit}s had"


def _get_target_depth(files: RunFiles, unit: str) -> Depth:
    halting: dict[str, Any] = files.halting
    layers = halting.get("layers", {})
    if unit == "updates":
        return Depth(f"{{:g}} updates per {get_run_unit(files)}", halting.get("classes", {}).get("all", {}).get("mean"))
    if unit == "macs":
        measured = halting.get("cost", {}).get(NEEDED)
        return Depth("{:g} of the multiply-accumulates of full depth", measured)
    if unit == "milliseconds":
        return Depth("{:g} ms for all blocks", (files.run.get("latency") or {}).get("derived"))
    if unit == "deepest_layer":
        return Depth("{:g} blocks that must run", layers.get("deepest"))
    return Depth("mean state {:g}", layers.get("expected_depth"))


def _advise(files: RunFiles, unit: str, target_value: float) -> Iterator[str]:
    """Yield advice on how to reach a missed target depth, the most likely reason first."""
    last_target = (files.run.get("final_metrics") or {}).get("budget/target", target_value)
    if is_interrupted(files):
        yield f"let the run finish, with {format_override('resume', files.directory)}"
        return  # it has no model yet
    if reason := get_early_stop_reason(files):
        yield f"let the run finish, because it ended early ({reason})"
    elif last_target != target_value:
        yield f"train for more steps, because training ended while the target was still {last_target:.3g}"
    else:
        yield "train longer, or raise budget.gain"
    if halts(files) and unit in ("updates", "macs"):
        yield f"set the trained model to the target, with {_format_fitting_command(files, unit, target_value)}"


# Keys that a command that evaluates a run inherits from its training, besides all of `model`.
_INHERITED_KEYS = ("model", "task", "debug", "small", "output_dir", "trainer.use_cpu", "trainer.precision")


def _format_fitting_command(files: RunFiles, unit: str, target_value: float) -> str:
    """Return the command that fits a trained model to its target depth.

    The command must run in the working directory of the training run.
    """
    words = shlex.split(str(files.run.get("command") or "")) or ["--config-name", str(files.run.get("config_name"))]
    launch_words = [word for word in words if "=" not in word and word not in ("-m", "--multirun")]
    inherited = [word for word in words if word.partition("=")[0] in _INHERITED_KEYS or word.startswith("model.")]
    # `budget=none` drops a target of the configuration, which would be in another unit.
    overrides = [
        format_override("checkpoint", files.directory),
        "budget=none",
        f"budget.targets=[{target_value:g}]",
        f"budget.unit={unit}",
    ]
    return shlex.join([*launch_words, "mode=evaluate", *inherited, *overrides])


_NO_RIVALS_BRIEF = "no baseline was trained for these seeds; rival_of with the folder of this summary trains them"
_NO_RIVALS = (
    "No baseline was trained for these seeds, and the verdict of each seed is that of one network. The setting "
    "rival_of with the folder of this summary trains matched baselines of fixed depth for every seed."
)


def verdict(files: RunFiles) -> Verdict:
    """Return all answers of a run's verdict, or an empty mapping if the run's files contain no depths.

    A summary over seeds only has the comparison with its matched baselines, or the setting that trains them.
    """
    if is_summary_of_seeds(files):
        if group_networks(files.of(RIVALS)):
            return {"worth": compare_with_baselines(files)}
        spread = files.of(SEEDS).get("metrics", {}).get("halting/all/std", {}).get("mean", 0.0)
        return {"worth": Finding("unknown", [_NO_RIVALS], brief=_NO_RIVALS_BRIEF)} if spread > 0 else {}
    depth = _assess_depth(files)
    if depth is None:
        return {}
    target_finding = {} if (finding := target(files)) is None else {"target": finding}
    worth = compare_with_baselines(files)
    return {**target_finding, "adapts": _name_set(files, depth), "worth": worth, "cost": _name_set(files, cost(files))}


def _name_set(files: RunFiles, finding: Finding) -> Finding:
    """Add to an answer from the first evaluated set its name, if there are other sets."""
    name, metrics = files.halting.get("set"), files.run.get("final_metrics") or {}
    further_metrics = [metric for metric in metrics if re.fullmatch("eval/[^/]+/tokens_per_second", metric)]
    if name is None or not further_metrics or not halts(files):
        return finding
    sentence = f"These are figures of {name}, the first of {len(further_metrics) + 1} evaluated sets."
    return replace(finding, sentences=[*finding.sentences, sentence], brief=f"on {name}, {finding.brief}")


def _assess_depth(files: RunFiles) -> Finding | None:
    halting, unit = files.halting, get_run_unit(files)
    if "layers" in halting:
        return assess_layer_choice(halting["layers"])
    if "architecture" in halting:
        return assess_operation_choice(halting["architecture"])
    is_measured = halts(files) and "mean" in halting.get("classes", {}).get("all", {}) and unit == halting.get("unit")
    return _explain_missing_rule(files, _warn_of_chance(halting, assess_adaptation(halting))) if is_measured else None


def _warn_of_chance(halting: Mapping[str, Any], finding: Finding) -> Finding:
    """Add to an answer at which difficulties the accuracy is above that of always predicting the most frequent label.

    The test is that of proportions, with the errors over sequences; p is corrected for the number of difficulties.
    """
    classes, prefix = halting["classes"], "difficulty "
    groups = {name.removeprefix(prefix): row for name, row in classes.items() if name.startswith(prefix)}
    groups = {name: row for name, row in groups.items() if row.get("accuracy_n")}
    if not groups or (commonest := find_commonest_label(classes)) is None:
        return finding
    independent = count_independent(classes["all"], commonest.n) / commonest.n
    deviation = math.sqrt(commonest.share * (1 - commonest.share))
    gains = [row["accuracy"] - commonest.share for row in groups.values()]
    counts = [row["accuracy_n"] * independent for row in groups.values()]
    p_values = [
        compare_means(SeedMean(gain, deviation / math.sqrt(count)), SeedMean(0.0, 0.0))
        for gain, count in zip(gains, counts, strict=True)
    ]
    tested = zip(groups, gains, correct_p_values(p_values), strict=True)
    above = [name for name, gain, p in tested if p < LEVEL and gain >= RELEVANT_SCORE]
    if len(above) == len(groups):
        return finding
    chance = format_whole_percent(commonest.share)
    where = f"only at difficulty {', '.join(above)}" if above else "at no difficulty"
    ranges = f"{len(above)} of {len(groups)} ranges of difficulty" + (f" ({', '.join(above)})" if above else "")
    sentence = (
        f"At {ranges}, accuracy is significantly above that of always predicting the most frequent label ({chance}); "
        "elsewhere, depth is that of a model at chance."
    )
    brief = f"; above chance ({chance}) {where}" if 2 * len(above) <= len(groups) else ""
    return replace(finding, sentences=[*finding.sentences, sentence], brief=f"{finding.brief}{brief}")


def _explain_missing_rule(files: RunFiles, finding: Finding) -> Finding:
    """Add to the verdict that depth did not adapt because the model has no exit rule, or one that never exits early."""
    rule = get_exit_rule(files)
    if finding.answer != "no" or "exit_rule" not in (files.config.get("model") or {}):
        return finding
    unit, everyone, most = get_run_unit(files), files.halting["classes"]["all"], files.halting["max_depth"]
    advice = "mode=evaluate with exit_rules=[all] evaluates exit rules on the trained model."
    if rule is None:
        reason = f"The model has no exit rule (model.exit_rule=null), so every {unit} uses the last exit. {advice}"
        brief = "model.exit_rule is null"
    elif everyone["std"] == 0 and everyone["mean"] == most:
        reason = f"The exit rule {rule} never exits before the last update. {advice}"
        brief = f"the exit rule {rule} never exits early"
    else:
        return finding
    return replace(finding, sentences=[*finding.sentences, reason], brief=f"{finding.brief}; {brief}")


def build_verdict_section(files: RunFiles, findings: Verdict) -> Section | None:
    """Build the report section with the questions and answers of the verdict."""
    if not findings:
        return None
    advice = files.halting.get("adaptation", {}).get("advice")
    tables = [build_baseline_table(findings["worth"].comparisons)] if findings["worth"].comparisons else []
    html = fill(
        "verdict", verdict=findings, questions=QUESTIONS, answers=ANSWERS, advice=advice,
        cut=get_early_stop_reason(files), tables=tables,
    )  # fmt: skip
    return Section("Verdict", "verdict", html, tables=tables)


def build_baseline_table(comparisons: Sequence[QualityPair]) -> Table:
    """Build the table of all comparisons with baselines: depths, relative compute, quality and difference."""
    columns = [
        Column("baseline", "baseline", text, "text"),
        Column("metric", "metric", text, "text"),
        Column("depth", "depth", make_number_format(2)),
        Column("baseline_depth", "depth of the baseline", make_number_format(2)),
        Column("compute_ratio", "compute, relative to the baseline", make_number_format(3)),
        *(Column(f"{name}_ratio", f"{TITLES[name]}, likewise", make_number_format(3)) for name in SIZE_FIELDS),
        Column("value", "value", make_number_format(4)),
        Column("baseline_value", "value of the baseline", make_number_format(4)),
        Column("full_depth", where="file"),
        Column("full_depth_value", "value at full depth", make_number_format(4)),
        Column("gain", "gain", "{:+.4f}".format),
        Column("interval", "95 % interval of the gain", text, "text", where="view"),
        *(Column(key, where="file") for key in ("low", "high", "p")),
        Column("corrected_p", "p (Holm)", format_p_value),
        Column("remark", where="file"),
    ]
    rows = [pair.to_json() for pair in comparisons]
    for row in rows:
        row["interval"] = None if row["low"] is None else f"{row['low']:+.4f} to {row['high']:+.4f}"
    # Readers see no empty columns; the file has all of them.
    columns = [column if has_values(column, rows) else replace(column, where="file") for column in columns]
    return Table("baselines", columns, rows)
