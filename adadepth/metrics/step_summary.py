"""Summary of an evaluation by step: quality after every step, and calibration of halting and confidence.

Shape legend: M examples, N steps, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor

from adadepth.config.kinds import Problem
from adadepth.halting.distribution import (
    HaltingDistribution,
    KLDirectionLike,
    TruncationLike,
    halting_distribution,
    halting_kl,
)
from adadepth.metrics.adaptation import spearman
from adadepth.metrics.exit_gains import estimate_fixed_gains
from adadepth.metrics.length_scores import summarise_lengths
from adadepth.metrics.scoring import compute_example_losses, compute_quality, is_right
from adadepth.metrics.step_records import StepRecords
from adadepth.metrics.step_scores import StepScores
from adadepth.metrics.task_metrics import UNDEFINED, get_metric_key
from adadepth.metrics.unit_classes import build_sequence_classes

CONFIDENCE_BINS = 15


def find_first_correct_steps(step_logits: Tensor, labels: Tensor) -> Tensor:
    """Return the first step with a right prediction, counted from 1, (M,) int64, or N + 1 if there is none.

    Args:
        step_logits: Logits of every step, (M, N, C), or of every step and cell, (M, N, L, C).
        labels: Classes, (M,) int64, or classes of cells, (M, L).
    """
    right = is_right(step_logits, labels)
    first = right.int().argmax(dim=1) + 1
    return torch.where(right.any(dim=1), first, step_logits.shape[1] + 1)


def halting_calibration(step_logits: Tensor, labels: Tensor, pmf: Tensor) -> dict[str, Any]:
    """Compare the distribution of the first right step with the mean halting distribution.

    Let f_n be the share of examples that are first right at step n, and f_0 the share that are never right. Let p_n be
    the mean halting probability of step n, and p_0 = 1 - sum_n p_n the missing mass (0 unless the distribution is
    truncated without a rule). The distance is the total variation 1/2 sum_n |f_n - p_n| over n = 0..N. It is 0 for
    equal and 1 for disjoint distributions. A model that is often wrong at every step cannot reach 0, because f_0 is a
    lower bound if p_0 = 0.

    Args:
        step_logits: Logits of every step, (M, N, C).
        labels: Classes, (M,) int64.
        pmf: Halting distribution of every example, (M, N).

    Returns:
        `first_correct` (N shares), `never_correct`, `total_variation`, `n`.
    """
    steps = step_logits.shape[1]
    counts = torch.bincount(find_first_correct_steps(step_logits, labels), minlength=steps + 2)[1:]
    shares = counts.double() / len(labels)
    mean = pmf.double().mean(dim=0)
    predicted = torch.cat([mean, (1 - mean.sum()).clamp(min=0).view(1)])
    return {
        "first_correct": shares[:-1].tolist(),
        "never_correct": float(shares[-1]),
        "total_variation": float((shares - predicted).abs().sum() / 2),
        "n": len(labels),
    }


def confidence_calibration(confidence: Tensor, right: Tensor, bins: int = CONFIDENCE_BINS) -> dict[str, Any]:
    """Return the expected calibration error of a probability of being right, with its bins (Guo et al. 2017, eq. 3).

    ECE = sum_b n_b / M |accuracy_b - confidence_b| over `bins` bins of equal width. Each bin excludes its lower border.

    Args:
        confidence: Probability of being right, (M,): the highest class probability, or a judgement of the model.
        right: Mask of the right predictions, boolean (M,).
        bins: Number of bins on [0, 1].

    Returns:
        `ece`, `n`, and `bins`, a list with `low`, `high`, `n`, `confidence` and `accuracy` of each bin that holds an
        example.
    """
    confidence, right = confidence.double(), right.double()
    number = (confidence * bins).ceil().long().clamp(1, bins) - 1
    rows, error = [], 0.0
    for position in number.unique().tolist():
        inside = number == position
        row = {
            "low": position / bins,
            "high": (position + 1) / bins,
            "n": int(inside.sum()),
            "confidence": float(confidence[inside].mean()),
            "accuracy": float(right[inside].mean()),
        }
        error += row["n"] / len(right) * abs(row["accuracy"] - row["confidence"])
        rows.append(row)
    return {"ece": error, "n": len(right), "bins": rows}


def summarise_steps(
    records: StepRecords,
    *,
    problem: Problem,
    labels: Sequence[str],
    metrics: Sequence[str],
    prior_pmf: Tensor | None = None,
    truncation: TruncationLike | None = None,
    kl_direction: KLDirectionLike = "posterior_prior",
) -> dict[str, Any]:
    """Summarise the quality and the exits of an evaluation after every step as JSON values.

    Args:
        records: Records of the whole evaluated set.
        problem: Kind of prediction: a class, or one value.
        labels: Class names in order. Empty for a regression.
        metrics: Names for `quality`.
        prior_pmf: Prior of the halting distribution, (N,).
        truncation: Truncation of the halting distribution. None if the model has no halting probabilities.
        kl_direction: Direction of the divergence from the prior.

    Returns:
        `n`, `unit`, `max_steps`, `problem`; `exit` (depth, quality and loss at the exits); `halting` (expected steps,
        entropy, divergence); `steps`, one row for every step; `classes`; `calibration`; `spearman`; `lengths`, if texts
        have a number of loops; `missing`.
    """
    missing: dict[str, str] = {}
    posterior = _build_posterior(records, truncation, missing)
    has_lengths = records.text_loops is not None and records.labels is not None and records.exit_steps is not None
    return {
        "n": len(records),
        "unit": records.unit,
        "max_steps": records.max_updates,
        "problem": problem,
        "exit": _describe_exits(records, problem, metrics, missing),
        "halting": _describe_halting(posterior, prior_pmf, truncation, kl_direction, missing),
        "steps": _describe_steps(records, problem, metrics, posterior, prior_pmf, missing),
        "classes": _describe_classes(records, labels, posterior),
        "calibration": _describe_calibration(records, problem, posterior, missing),
        "spearman": _correlate_depth(records, problem, posterior, missing),
        **({"lengths": summarise_lengths(records)} if has_lengths and records.ran_every_step else {}),
        "missing": missing,
    }


# ---- the parts of the summary


def _build_posterior(
    records: StepRecords, truncation: TruncationLike | None, missing: dict[str, str]
) -> HaltingDistribution | None:
    if records.halting_logits is None or truncation is None:
        missing["halting"] = "the model has no halting probabilities"
    elif records.halting_logits.isnan().any():
        missing["halting"] = f"not every {records.unit} ran every step"
    else:
        return halting_distribution(records.halting_logits, truncation)
    return None


def _describe_exits(
    records: StepRecords, problem: Problem, metrics: Sequence[str], missing: dict[str, str]
) -> dict[str, Any]:
    described: dict[str, Any] = {**_describe_spread(records.depth), "median": float(records.depth.quantile(0.5))}
    if records.exit_steps is None:
        missing["exit/histogram"] = "the model does not halt whole sequences"
    else:
        described["histogram"] = _count_exits(records.exit_steps, records.max_updates)
    if records.labels is None:
        missing["exit/quality"] = missing["exit/loss"] = "the evaluated set has no labels"
        return described
    described["quality"] = compute_quality(records.logits, records.labels, problem, metrics)
    missing |= {f"exit/{name}": UNDEFINED for name in map(get_metric_key, metrics) if name not in described["quality"]}
    if records.exit_steps is not None and records.ran is None and records.ran_every_step:
        most = float(records.exit_steps.double().mean())
        scores = StepScores(records, problem, metrics)
        gains = estimate_fixed_gains(scores, records.exit_steps, records.sequences, most)
        described["gain"] = gains.get("fixed")
        if "cheaper" in gains:
            described["cheaper_gain"] = gains["cheaper"]
    _put_finite(
        described, "loss", compute_example_losses(records.logits, records.labels, problem), "exit/loss", missing
    )
    return described


def _describe_halting(
    posterior: HaltingDistribution | None,
    prior_pmf: Tensor | None,
    truncation: TruncationLike | None,
    kl_direction: KLDirectionLike,
    missing: dict[str, str],
) -> dict[str, Any]:
    if posterior is None:
        return {}
    expected = posterior.expected_steps()
    described: dict[str, Any] = {
        "truncation": truncation,
        "expected_steps": _describe_spread(expected),
        "entropy": _describe_spread(posterior.entropy()),
    }
    if prior_pmf is None:
        missing["halting/kl"] = "the model has no prior"
        return described
    prior = HaltingDistribution(prior_pmf.float().log())
    described["kl_direction"] = kl_direction
    described["kl"] = _describe_spread(halting_kl(posterior, prior, kl_direction))
    described["prior_expected_steps"] = float(prior.expected_steps())
    return described


def _describe_steps(
    records: StepRecords,
    problem: Problem,
    metrics: Sequence[str],
    posterior: HaltingDistribution | None,
    prior_pmf: Tensor | None,
    missing: dict[str, str],
) -> list[dict[str, Any]]:
    """Return a row of statistics for every step: share of exits, halting distribution, and quality."""
    rows: list[dict[str, Any]] = [{"step": step} for step in range(1, records.max_updates + 1)]

    def put(name: str, values: Sequence[Any]) -> None:
        for row, value in zip(rows, values, strict=True):
            row[name] = value

    if records.exit_steps is not None:
        counts = _count_exits(records.exit_steps, records.max_updates)
        put("n", counts)
        put("share", [count / len(records) for count in counts])
        put("survival", [sum(counts[position:]) / len(records) for position in range(len(counts))])
    if posterior is not None:
        assert records.halting_logits is not None
        put("posterior", posterior.pmf.double().mean(dim=0).tolist())
        put("halting_probability", records.halting_logits.double().sigmoid().mean(dim=0).tolist())
    if prior_pmf is not None:
        put("prior", prior_pmf.tolist())
    if records.step_logits is None:
        missing["steps/quality"] = "the model predicts after its last step only"
    elif not records.ran_every_step:
        missing["steps/quality"] = f"not every {records.unit} ran every step"
    elif records.labels is None:
        missing["steps/quality"] = "the evaluated set has no labels"
    else:
        by_step = records.step_logits.unbind(dim=1)
        put("quality", [compute_quality(logits, records.labels, problem, metrics) for logits in by_step])
        for name in map(get_metric_key, metrics):
            if undefined := [str(row["step"]) for row in rows if name not in row["quality"]]:
                missing[f"steps/{name}"] = f"{UNDEFINED} at step {', '.join(undefined)}"
        for row, logits in zip(rows, by_step, strict=True):
            losses = compute_example_losses(logits, records.labels, problem)
            _put_finite(row, "loss", losses, f"steps/{row['step']}/loss", missing)
    return rows


def _describe_classes(
    records: StepRecords, labels: Sequence[str], posterior: HaltingDistribution | None
) -> dict[str, dict[str, Any]]:
    """Return the depth statistics of each class of sequences; an empty class has only the count 0."""
    difficulty = records.difficulty
    difficulties = None if difficulty is None else difficulty[difficulty >= 0]  # negative: the example has none
    has_cells = records.logits.dim() == 3
    classes = build_sequence_classes(() if has_cells else labels, records.lengths, difficulties, has_cells=has_cells)
    masks = classes.masks(records.logits, records.labels, records.lengths, difficulty)
    expected = None if posterior is None else posterior.expected_steps()
    described: dict[str, dict[str, Any]] = {}
    for name, mask in masks.items():
        described[name] = _describe_spread(records.depth[mask])
        if expected is not None and mask.any():
            described[name]["expected_steps"] = float(expected[mask].double().mean())
    return described


def _describe_calibration(
    records: StepRecords, problem: Problem, posterior: HaltingDistribution | None, missing: dict[str, str]
) -> dict[str, Any]:
    if problem == "regression" or records.labels is None:
        reason = "a regression has no correct step" if problem == "regression" else "the evaluated set has no labels"
        missing["calibration"] = reason
        return {}
    if not records.logits.isfinite().all():
        missing["calibration"] = "a prediction is not finite"
        return {}
    right, confidence = is_right(records.logits, records.labels), _read_confidence(records)
    described = {}
    if confidence is None:
        missing["calibration/confidence"] = "the model has no confidence for all cells together"
    else:
        described["confidence"] = confidence_calibration(confidence, right)
    if posterior is None:
        missing["calibration/halting"] = missing["halting"]
    elif not records.ran_every_step:
        missing["calibration/halting"] = missing["steps/quality"]
    else:
        assert records.step_logits is not None
        described["halting"] = halting_calibration(records.step_logits, records.labels, posterior.pmf)
    return described


def _read_confidence(records: StepRecords) -> Tensor | None:
    """Return the model's confidence in each answer, (M,), or None if it has no halting logits.

    It is the highest class probability, or the judgement of the halting head for a puzzle.
    """
    if records.logits.dim() == 2:
        return records.logits.double().softmax(dim=-1).amax(dim=-1)
    if records.halting_logits is None or records.exit_steps is None:
        return None
    return records.halting_logits.double().gather(1, records.exit_steps.unsqueeze(1) - 1).squeeze(1).sigmoid()


def _correlate_depth(
    records: StepRecords, problem: Problem, posterior: HaltingDistribution | None, missing: dict[str, str]
) -> dict[str, dict[str, Any]]:
    """Return the correlations of depth and expected exit step with loss, length and difficulty."""
    depths = {"updates": records.depth}
    if posterior is not None:
        depths["expected_steps"] = posterior.expected_steps()
    variables = {"length": records.lengths}
    if records.difficulty is not None:
        variables["difficulty"] = records.difficulty
    if records.labels is not None:
        variables["loss"] = compute_example_losses(records.logits, records.labels, problem)
    described = {}
    for (depth, steps), (variable, values) in product(depths.items(), variables.items()):
        is_defined = values >= 0 if variable == "difficulty" else torch.ones_like(values, dtype=torch.bool)
        if not values.isfinite().all():
            missing[f"spearman/{depth}_{variable}"] = f"{variable} is not finite"
        elif (
            correlation := spearman(*(column[is_defined].numpy() for column in (steps, values, records.sequences)))
        ) is not None:
            described[f"{depth}_{variable}"] = correlation._asdict()
        else:
            too_few = f"{len(records)} {records.unit}s, 3 are needed"
            reason = too_few if len(records) < 3 else f"{depth} or {variable} is constant"
            missing[f"spearman/{depth}_{variable}"] = reason
    return described


def _describe_spread(values: Tensor) -> dict[str, Any]:
    """Return count, mean and standard deviation of values over the examples.

    The sum of squares is divided by n, because it is a spread and not an uncertainty.
    """
    if not len(values):
        return {"n": 0}
    values = values.double()
    return {"n": len(values), "mean": float(values.mean()), "std": float(values.std(correction=0))}


def _put_finite(target: dict[str, Any], key: str, values: Tensor, name: str, missing: dict[str, str]) -> None:
    """Store the mean of values as `target[key]` or, if it is not finite, the reason as `missing[name]`."""
    mean = float(values.double().mean())
    if math.isfinite(mean):
        target[key] = mean
    else:
        missing[name] = "not finite"


def _count_exits(exit_steps: Tensor, max_updates: int) -> list[int]:
    """Return the number of examples that exit at each step 1..N."""
    return [int(count) for count in torch.bincount(exit_steps, minlength=max_updates + 1)[1:]]


# ---- flat names


def flatten_exits(summary: Mapping[str, Any]) -> dict[str, float]:
    """Flatten a step summary into named scalars that trackers plot as curves. Absent values are skipped.

    The names are `halting/exit_step/mean` and `std`; `halting/expected_steps`, `halting/posterior_entropy`,
    `halting/kl`; `halting/posterior/<k>`; `halting/calibration/tv` and `ece`; `halting/spearman_<updates or
    expected_steps>_<other>`; `eval/step_<k>/score` and `loss`.
    """
    flat: dict[str, float] = {}
    at_exit, halting, calibration = summary["exit"], summary["halting"], summary["calibration"]
    if "histogram" in at_exit:
        flat |= {f"halting/exit_step/{key}": at_exit[key] for key in ("mean", "std")}
    names = {"expected_steps": "expected_steps", "entropy": "posterior_entropy", "kl": "kl"}
    flat |= {f"halting/{names[key]}": halting[key]["mean"] for key in names if key in halting}
    if "halting" in calibration:
        flat["halting/calibration/tv"] = calibration["halting"]["total_variation"]
    if "confidence" in calibration:
        flat["halting/calibration/ece"] = calibration["confidence"]["ece"]
    flat |= {f"halting/spearman_{name}": correlation["value"] for name, correlation in summary["spearman"].items()}
    for row in summary["steps"]:
        if "posterior" in row:
            flat[f"halting/posterior/{row['step']}"] = row["posterior"]
        if "score" in row.get("quality", {}):
            flat[f"eval/step_{row['step']}/score"] = row["quality"]["score"]
        if "loss" in row:
            flat[f"eval/step_{row['step']}/loss"] = row["loss"]
    return flat
