"""Compute and time of a token or sequence, which compare different models: shares of full depth do not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

UNIT_MACS = ("cost/macs_per_token", "cost/macs_per_sequence")  # at the decided depths, without padding
TIME = "cost/ms_per_token"  # of the evaluation as it ran, loading included
UNIT_COST_TITLES = {
    "cost/macs_per_token": "MACs per token",
    "cost/macs_per_sequence": "MACs per sequence",
    TIME: "ms per token",
}
# The same with predictions at exits, by the name without them.
UNIT_MACS_WITH_PREDICTIONS = {name: f"{name}_with_predictions" for name in UNIT_MACS}
WITHOUT_PREDICTIONS = "without predictions"  # what `cost/adaptive_macs` and its ratios leave out
_SCALES = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0))


def compute_unit_macs(summary: Mapping[str, Any], tokens: float | None = None) -> dict[str, float]:
    """Return the multiply-accumulates of the decided depths for each unit of data, without padding.

    They compare different models, whose shares of full depth refer to different networks.

    Args:
        summary: Content of halting.json, which may lack anything.
        tokens: Number of real tokens of the evaluated set. If it is None, only units that are tokens are counted.

    Returns:
        `macs_per_token`, if the number of tokens is known, and `macs_per_sequence`, if sequences halt.
    """
    macs, unit, n = (summary.get("cost") or {}).get("adaptive_macs"), summary.get("unit"), summary.get("n")
    if unit == "architecture":
        tokens = 1  # its compute is that of a token
    elif unit == "token" and tokens is None:
        tokens = n
    counts = {"macs_per_token": tokens, "macs_per_sequence": n if unit == "sequence" else None}
    return {} if macs is None else {name: macs / count for name, count in counts.items() if count}


def compute_share_with_predictions(summary: Mapping[str, Any]) -> float | None:
    """Return the compute of the decided depths with predictions, as a share of full depth with its prediction.

    An exit rule that reads predictions needs one after every update, and full depth always needs one. The result is
    None if predictions are not counted apart.

    Args:
        summary: Content of halting.json, which may lack anything.
    """
    cost, n, often = summary.get("cost") or {}, summary.get("n"), summary.get("predictions_per_unit")
    macs, share, prediction = cost.get("adaptive_macs"), cost.get("adaptive_over_full"), summary.get("prediction_macs")
    if not macs or not share or not n or not often or not prediction:
        return None
    with_predictions: float = (macs / n + often * prediction) / (macs / share / n + prediction)
    return with_predictions


def compute_prediction_factor(summary: Mapping[str, Any]) -> float | None:
    """Return the compute of the decided depths with predictions over that without them, or None if it is unknown.

    An exit rule that reads predictions needs one after every update, and other models need one. The factor is 1 for
    models whose units are neither tokens nor sequences, because their compute includes predictions.

    Args:
        summary: Content of halting.json, which may lack anything.
    """
    if summary.get("unit") not in ("token", "sequence"):
        return 1.0
    macs = (summary.get("cost") or {}).get("adaptive_macs")
    if not macs or not {"n", "prediction_macs", "predictions_per_unit"} <= summary.keys():
        return None
    return 1.0 + float(summary["n"] * summary["predictions_per_unit"] * summary["prediction_macs"] / macs)


def has_separate_predictions(summaries: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether predictions are counted apart from the compute of any network, which leaves them out.

    Args:
        summaries: Contents of halting.json, or rows of budgets.json.
    """
    return any(summary.get("prediction_macs") for summary in summaries)


def name_compute(title: str, summaries: Iterable[Mapping[str, Any]]) -> str:
    """Return the title of compute, with `without predictions` before its first comma if it leaves these out.

    Args:
        title: Title, such as `compute, share of full depth`.
        summaries: Those of `has_separate_predictions`.
    """
    if not has_separate_predictions(summaries):
        return title
    name, comma, rest = title.partition(",")
    return f"{name} {WITHOUT_PREDICTIONS}{comma}{rest}"


def format_compute_shares(
    share: float, with_predictions: float | None, format_share: Callable[[float], str], whole: str
) -> str:
    """Format compute as a share of full depth, as tables of exits count it: with predictions.

    If the share without predictions differs, it follows in brackets.

    Args:
        share: Share without predictions.
        with_predictions: Share with predictions, or None if predictions are not counted apart.
        format_share: Format of a share.
        whole: Words for the compute of full depth.
    """
    without = format_share(share)
    if with_predictions is None or format_share(with_predictions) == without:
        return f"{without} of {whole}"
    return f"{format_share(with_predictions)} of {whole} ({without} {WITHOUT_PREDICTIONS})"


def choose_scale(count: float) -> tuple[str, float]:
    """Return letter and factor of the largest scale that a count reaches, such as `M` and 1e6."""
    return next(((letter, scale) for letter, scale in _SCALES if count >= scale), _SCALES[-1])


def format_count(count: float) -> str:
    """Format a large count, such as multiply-accumulates or parameters, with three digits, as `1.23M`."""
    letter, scale = choose_scale(count)
    return f"{count / scale:.3g}{letter}"
