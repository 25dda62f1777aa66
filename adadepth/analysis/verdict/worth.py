"""Whether adaptive depth is worth it: quality beside that of a fixed depth, of depths dealt at random, of no model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from adadepth.analysis.files import RunFiles, halts
from adadepth.analysis.verdict.comparison import Comparison, at_depth, best_of, is_loss, noise_of, score_noise
from adadepth.analysis.verdict.finding import Answer, Finding, whole_percent

# The first that two runs have is compared, after what the run was told to optimise and to choose its model by.
_QUALITIES = ("score", "mlm_loss", "task_loss")
_TOTAL = "eval/loss"  # it holds penalties too

_NOTHING = "No other way to spend the depth was tried on the same task"
_TRIED = ": no fixed depth (rival_of), no exit_rules"  # what units that halt one by one can be compared with
_ONE_STEP = "All examples exit at one step, so there is no depth to compare with one step for all."
_NOT_RETRAINED = "not retrained"


def worth(files: RunFiles) -> Finding:
    """Every comparison that the files of a run allow."""
    found = [*_baselines(files), *_rivals(files), *_steps(files), *_rules(files), *_networks(files)]
    nothing = _ONE_STEP if _exits_at_one_step(files) else f"{_NOTHING}{_TRIED if halts(files) else ''}."
    if not found:
        return Finding("unknown", [nothing])
    sentences = [comparison.sentence for comparison in sorted(found, key=lambda one: not one.is_about_depth)]
    if not any(one.is_about_depth for one in found):
        sentences.append(nothing)
    return Finding(_answer(found), sentences, {f"gain_over_{one.key}": one.gain for one in found})


def _answer(found: Sequence[Comparison]) -> Answer:
    """No, if the model knows no more than a baseline that reads nothing; else what the comparisons of depth say."""
    if any(one.result <= 0 for one in found if not one.is_about_depth):
        return "no"
    results = [one.result for one in found if one.is_about_depth]
    if not results:
        return "unknown"
    return "yes" if min(results) > 0 else "no" if max(results) <= 0 else "partly"


def _baselines(files: RunFiles) -> Iterator[Comparison]:
    """What is achieved without reading the input: the frequencies of words, the commonest label."""
    metrics = files.run.get("final_metrics") or {}
    unigram = (files.run.get("baselines") or {}).get("unigram")
    if unigram and isinstance(own := metrics.get("eval/mlm_loss"), int | float):
        other = unigram["cross_entropy"]
        noise, remark = noise_of("mlm_loss", own, other, None)
        remark = f"nats a masked token, n {unigram['positions']:,}; {remark}"
        yield Comparison("unigram", "word frequencies alone", "mlm_loss", own, other, noise, remark, False)
    classes = files.halting.get("classes", {})
    everyone, labelled = classes.get("all", {}), [found for name, found in classes.items() if name[:7] == "label: "]
    # Where a label is a whole sequence's, a class has many tokens and few predictions.
    labels = [found.get("accuracy_n", found["n"]) for found in labelled]
    if "accuracy" in everyone and labels and sum(labels) == everyone["accuracy_n"]:
        own, other = everyone["accuracy"], max(labels) / sum(labels)
        noise, remark = score_noise(own, other, everyone["accuracy_n"])
        yield Comparison("commonest_label", "always the commonest label", "accuracy", own, other, noise, remark, False)


def _rivals(files: RunFiles) -> Iterator[Comparison]:
    """Networks of one depth and as much work, trained the same way."""
    adaptive, *others = files.rivals.get("rows") or [{}]
    for row in others:
        name = best_of(adaptive["metrics"], row["metrics"], [f"/{name}" for name in qualities(files)])
        if name is None:
            continue
        own, other = adaptive["metrics"][name], row["metrics"][name]
        noise, remark = noise_of(name, own, other, _predictions(files))
        against = f"a network of the fixed depth {row['max_depth']}, trained with as much work"
        yield Comparison("fixed_depth", against, _short(name), own, other, noise, f"one seed each; {remark}")


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


def _steps(files: RunFiles) -> Iterator[Comparison]:
    """The same network read at one step for all examples; where all exit at one step, that is the network itself."""
    for name, found in files.exits.get("sets", {}).items():
        if _is_constant(found):
            continue
        measure = _score(files, found["exit"].get("quality", {}))
        points = [(row["step"], row["quality"][measure]) for row in found["steps"] if measure in row.get("quality", {})]
        other, own = at_depth(points, found["exit"]["mean"]), found["exit"].get("quality", {}).get(measure)
        if own is not None and other is not None:
            noise, remark = score_noise(own, other, found["n"])
            against = f"itself read at one step for all, {found['exit']['mean']:.2f} as in the mean"
            yield Comparison(f"fixed_step/{name}", against, f"{name}/{measure}", own, other, noise, remark)


def _exits_at_one_step(files: RunFiles) -> bool:
    sets = files.exits.get("sets", {}).values()
    return bool(sets) and all(map(_is_constant, sets))


def _is_constant(found: Mapping[str, Any]) -> bool:
    """Whether all examples of a set exit at one step."""
    return bool(found["exit"].get("std") == 0)


def _rules(files: RunFiles) -> Iterator[Comparison]:
    """Of the exit rules the one in the middle by its gain over the same exits dealt to the examples at random."""
    for name, study in files.exit_rules.get("sets", {}).items():
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
        yield Comparison(f"random_exits/{name}", against, f"{name}/{measure}", own, other, noise, remark)


def _networks(files: RunFiles) -> Iterator[Comparison]:
    """Other architectures, trained as the one that a search found was trained."""
    rows = [row for row in files.architectures.get("rows", []) if "loss" in (row.get("quality") or {})]
    found = [row for row in rows if row["kind"] == "searched" and row["trained"] != _NOT_RETRAINED]
    for own, other in product(found, rows):
        if other["kind"] == "searched" or other["trained"] != own["trained"]:
            continue
        losses = own["quality"]["loss"], other["quality"]["loss"]
        noise, tolerance = noise_of("loss", *losses, None)
        remark = "; ".join([*_work(own.get("macs") or {}, other.get("macs") or {}), "one seed each", tolerance])
        against = f"the architecture {other['name']}, trained the same way ({own['trained']})"
        yield Comparison(f"architecture/{other['name']}", against, f"{own['quality_set']}/loss", *losses, noise, remark)


def _work(own: Mapping[str, float], other: Mapping[str, float]) -> Iterator[str]:
    """A network's multiply-accumulates as a share of another's, by the shape of their input."""
    for shape in own:
        if other.get(shape):
            yield f"{whole_percent(own[shape] / other[shape])} of its multiply-accumulates at {shape}"


def _gain(row: Mapping[str, Any], measure: str) -> float:
    return float(row["quality"][measure] - row["permuted"]["quality"][measure])


def _deviation(row: Mapping[str, Any], measure: str) -> float:
    return 2 * float(row["permuted"].get("quality_std", {}).get(measure, 0.0))
