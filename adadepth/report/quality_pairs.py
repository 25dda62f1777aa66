"""Quality of an adaptive model and of one baseline, with the test of their difference.

A difference counts if it is significant (see `adadepth.metrics.significance`), after the correction for all comparisons
of a verdict, and if it is at least as large as the least relevant difference.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from adadepth.metrics.directions import is_less_better
from adadepth.metrics.metric_names import is_loss
from adadepth.metrics.significance import (
    GROUPS,
    LEVEL,
    SeedMean,
    compare_means,
    compute_half_width,
    correct_p_values,
    subtract_means,
)
from adadepth.report.run_files import RunFiles

# Least relevant differences: a larger one counts only if it is significant, a smaller one never counts.
RELEVANT_SCORE, RELEVANT_LOSS = 0.005, 0.01


def get_relevant_difference(measure: str) -> float:
    """Return the least relevant difference of a metric, in its unit."""
    return RELEVANT_LOSS if is_loss(measure) else RELEVANT_SCORE


@dataclass(frozen=True)
class QualityPair:
    """Quality of the adaptive model and of one baseline, in the same metric.

    Attributes:
        key: Name of the comparison in files.
        against: Description of the baseline.
        measure: Name of the metric.
        adaptive: Value of the adaptive model.
        baseline: Value of the baseline.
        error: Standard error of their difference, or None if it was not measured.
        freedom: Degrees of freedom of the error.
        remark: Sample, and what else a reader must know.
        less_is_better: Whether a smaller value of the metric is better.
        depth: Mean depth of the adaptive model, or None if it was not measured.
        baseline_depth: Mean depth of the baseline, or None if it has none.
        compute_ratio: Compute of the adaptive model over that of the baseline, or None if it was not measured.
        is_about_depth: Whether the baseline is a model with a different choice of depth. Otherwise it has no depth:
            it ignores the input, or reads a bag of words.
        brief_against: Description of the baseline in a few words, for the console, or empty if `against` is short.
        full_depth: Updates of full depth, for a comparison of one network with itself, or None if it was not measured.
        full_depth_value: Value at full depth, likewise.
        seeds: Number of seeds of each of the two.
        is_deciding: Whether a baseline with another choice of depth counts in the answer. One with more compute than
            the adaptive model is only named.
        half_of: Number of sequences, if both values are those of one half of them, or None.
        corrected: p-value that is corrected for all comparisons of the verdict, or None before the correction.
        size_ratios: Parameters and cache bytes per token of the adaptive model over those of a trained baseline, as
            far as they were recorded.
        rule: Exit rule with which the adaptive model was compared, if the model has none of its own.
    """

    key: str
    against: str
    measure: str
    adaptive: float
    baseline: float
    error: float | None
    freedom: float
    remark: str
    less_is_better: bool
    depth: float | None = None
    baseline_depth: float | None = None
    compute_ratio: float | None = None
    is_about_depth: bool = True
    brief_against: str = ""
    full_depth: int | None = None
    full_depth_value: float | None = None
    seeds: int = 1
    is_deciding: bool = True
    half_of: int | None = None
    corrected: float | None = None
    size_ratios: Mapping[str, float] = field(default_factory=dict)
    rule: str | None = None

    @property
    def gain(self) -> float:
        """Advantage of the adaptive model over the baseline, in the unit of the metric."""
        return self.baseline - self.adaptive if self.less_is_better else self.adaptive - self.baseline

    @property
    def half_width(self) -> float | None:
        """Half the width of the 95 % interval of the gain, or None if its error was not measured."""
        return None if self.error is None else compute_half_width(self.error, self.freedom)

    @property
    def relevant_difference(self) -> float:
        """Least relevant difference, in the unit of the metric."""
        return get_relevant_difference(self.measure)

    @property
    def p(self) -> float:
        """p-value of the difference, which is 1 if its error was not measured."""
        return compare_means(SeedMean(self.gain, self.error, self.freedom), SeedMean(0.0, 0.0))

    @property
    def is_significant(self) -> bool:
        """Whether the difference is significant, after the correction if there was one.

        Without an error, a difference from a baseline with depth is not. One without depth leads to no claim, but can
        veto one; without an error, only the least relevant difference counts.
        """
        if self.error is None:
            return not self.is_about_depth
        return (self.p if self.corrected is None else self.corrected) < LEVEL

    @property
    def result(self) -> int:
        """1 if the adaptive model is better, -1 if worse, and 0 if the difference is not significant or irrelevant."""
        if not self.is_significant or abs(self.gain) < self.relevant_difference:
            return 0
        return 1 if self.gain > 0 else -1

    @property
    def difference(self) -> str:
        """Result of the comparison in words, with the difference and its interval in the same direction.

        A difference that is not significant is called too small to be relevant only if its whole interval is.
        """
        if self.error is None:
            return f"{self._format_gain()}, not tested"
        interval, half_width, least = "", self.half_width or 0.0, self.relevant_difference
        if half_width:
            interval = f" (95 % interval of the gain {self.gain - half_width:+.3f} to {self.gain + half_width:+.3f})"
        if self.result:
            return f"{self._format_gain()}{interval}"
        if self.is_significant or abs(self.gain) + half_width < least:
            return f"{self._format_gain()}{interval}, below the least relevant difference of {least:g}"
        is_lost = self.corrected is not None and self.p < LEVEL <= self.corrected
        after = " after the correction for all comparisons" if is_lost else ""
        return f"{self._format_gain()}{interval}, not significant{after}"

    def _format_gain(self) -> str:
        size = _round(self.gain)
        return f"{'better' if self.gain > 0 else 'worse'} by {size:.3f}" if size else "equal"

    def to_json(self) -> dict[str, Any]:
        """Return the record of the comparison for a file: baseline, depths, compute, values, gain, interval and p."""
        half_width = self.half_width
        low, high = (None, None) if half_width is None else (self.gain - half_width, self.gain + half_width)
        return {
            "baseline": self.against,
            "metric": self.measure,
            "depth": self.depth,
            "baseline_depth": self.baseline_depth,
            "compute_ratio": self.compute_ratio,
            **{f"{name}_ratio": ratio for name, ratio in self.size_ratios.items()},
            "value": self.adaptive,
            "baseline_value": self.baseline,
            "full_depth": self.full_depth,
            "full_depth_value": self.full_depth_value,
            "gain": self.gain,
            "low": low,
            "high": high,
            "p": None if self.error is None else self.p,
            "corrected_p": self.corrected,
            "remark": self.remark,
        }

    @property
    def brief(self) -> str:
        """Result of the comparison without its remark, for the console."""
        values = _format_values(self.adaptive, self.baseline)
        half = f",{words}" if (words := self._describe_half()) else ""
        return f"{self.measure} {values} of {self.brief_against or self.against}, {self.difference}{half}"

    @property
    def sentence(self) -> str:
        """Sentence that states the result of the comparison with its numbers."""
        full = f"; {words}" if (words := self.describe_full_depth()) else ""
        values = f"{self.measure} {_format_values(self.adaptive, self.baseline)}{self._describe_half()}"
        return f"Compared with {self.against}: {values}, {self.difference}{full} ({self.remark})."

    def _describe_half(self) -> str:
        """Say that the values are those of one half of the examples, which tables of all examples do not have."""
        return "" if self.half_of is None else f" on half of the {self.half_of:,} sequences"

    def describe_full_depth(self) -> str:
        """Compare the value with that of the same network at full depth; the text is empty if it was not measured."""
        if self.full_depth_value is None:
            return ""
        values = _format_values(self.adaptive, self.full_depth_value)
        return f"{values} at full depth ({self.full_depth} updates, 100 % of the compute)"


def _format_values(first: float, second: float) -> str:
    """Format two values with decimals in which they differ, if their difference rounds to at least 0.001."""
    digits = 4 if f"{first:.3f}" == f"{second:.3f}" and _round(first - second) else 3
    return f"{first:.{digits}f} against {second:.{digits}f}"


def _round(difference: float) -> float:
    """Return the size of a difference as it is printed."""
    return float(f"{abs(difference):.3f}")


def correct_pairs(pairs: Sequence[QualityPair]) -> list[QualityPair]:
    """Return the comparisons with p-values that are corrected for their number (Holm)."""
    tested = [pair for pair in pairs if pair.error is not None]
    corrected = dict(zip(map(id, tested), correct_p_values([pair.p for pair in tested]), strict=True))
    return [replace(pair, corrected=corrected.get(id(pair))) for pair in pairs]


def build_gain_pair(
    files: RunFiles,
    key: str,
    against: str,
    owner: str,
    gain: Mapping[str, Any],
    depth: float | None,
    sample: str = "",
    brief_against: str = "",
    compute_ratio: float | None = None,
) -> QualityPair:
    """Build the comparison of a gain that `adadepth.metrics.exit_gains` estimated.

    Args:
        files: Files of the run.
        key: Name of the comparison in files.
        against: Description of the baseline.
        owner: Name of the evaluated set.
        gain: Fields of a gain. A baseline without a depth of its own has that of the model.
        depth: Mean depth of the model, if it is known.
        sample: Description of the sample for the remark.
        brief_against: Description of the baseline in a few words.
        compute_ratio: Compute of the model over that of the baseline, if it was measured.
    """
    selected_on = gain.get("selected_on") or 0
    selected = f"the fixed step was selected on {selected_on:,} others" if selected_on else ""
    sequences = f"n {gain['sequences']:,} sequences or groups of them"
    remark = "; ".join(filter(None, ["one seed", sequences, selected, sample]))
    freedom = math.inf if gain["freedom"] is None else gain["freedom"]
    measure, values = f"{owner}/{gain['measure']}", (gain["adaptive"], gain["baseline"])
    baseline_depth = depth if gain["baseline_depth"] is None else gain["baseline_depth"]
    return QualityPair(
        key, against, measure, *values, gain["error"], freedom, remark, is_less_better(measure, files.config), depth,
        baseline_depth, compute_ratio, brief_against=brief_against, full_depth=gain.get("full_depth"),
        full_depth_value=gain.get("full_depth_value"),
        half_of=gain["sequences"] + selected_on if selected_on else None,
    )  # fmt: skip


def build_trained_pair(
    files: RunFiles,
    key: str,
    against: str,
    measure: str,
    adaptive: float,
    baseline: float,
    baseline_error: float | None = None,
    remark: str = "",
    depths: tuple[float | None, float | None] = (None, None),
    compute_ratio: float | None = None,
) -> QualityPair:
    """Build the comparison with another trained network.

    The error of each value is that over the sequences of its evaluation. A baseline without a recorded error gets the
    error of the run, unless it is 0: a run without a mistake says nothing about the error of a baseline that makes
    some. Other seeds of training vary more.

    Args:
        files: Files of the run.
        key: Name of the comparison in files.
        against: Description of the baseline.
        measure: Name of the metric.
        adaptive: Value of the run.
        baseline: Value of the baseline.
        baseline_error: Standard error of the baseline, if it was recorded.
        remark: Further information for readers.
        depths: Mean depth of the run and of the baseline, if they are known.
        compute_ratio: Compute of the run over that of the baseline, if it is known.
    """
    error = find_error(files.halting, adaptive)
    other = error or None if baseline_error is None else baseline_error
    difference_error = None if error is None or other is None else math.hypot(error, other)
    unknown = ", error unknown" if difference_error is None else ""
    full_remark = "; ".join(filter(None, [remark, f"one seed each{unknown}"]))
    return QualityPair(
        key, against, measure, adaptive, baseline, difference_error, GROUPS - 1, full_remark,
        is_less_better(measure, files.config), *depths, compute_ratio,
    )  # fmt: skip


def build_seeds_pair(
    files: RunFiles,
    key: str,
    against: str,
    measure: str,
    adaptive: SeedMean,
    baseline: SeedMean,
    depths: tuple[float | None, float | None],
    compute_ratio: float | None,
) -> QualityPair:
    """Build the comparison of means over seeds with another network that was trained with the same seeds.

    Args:
        files: Files of the summary over seeds.
        key: Name of the comparison in files.
        against: Description of the baseline.
        measure: Name of the metric.
        adaptive: Mean of the adaptive network.
        baseline: Mean of the baseline.
        depths: Mean depth of the two.
        compute_ratio: Compute of the adaptive network over that of the baseline, if it is known.
    """
    difference = subtract_means(adaptive, baseline)
    return QualityPair(
        key, against, measure, adaptive.mean, baseline.mean, difference.error, difference.freedom,
        f"n {difference.seeds} seeds each", is_less_better(measure, files.config), *depths, compute_ratio,
        seeds=difference.seeds,
    )  # fmt: skip


def find_error(halting: Mapping[str, Any], value: float) -> float | None:
    """Return the standard error over sequences of the figure of the first set that has this value, or None.

    Args:
        halting: Depth statistics of the first set.
        value: Value of a metric.
    """
    everyone = halting.get("classes", {}).get("all", {})
    for name in ("accuracy", "loss"):
        error = everyone.get(f"{name}_error")
        if error is not None and math.isclose(everyone[name], value, rel_tol=1e-3):
            return float(error)
    return None


def find_errors(halting: Mapping[str, Any], metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the standard error over sequences of each metric that has one, by name; see `find_error`."""
    errors = {name: find_error(halting, value) for name, value in metrics.items() if isinstance(value, int | float)}
    return {name: error for name, error in errors.items() if error is not None}
