"""An adaptive model beside something simpler: which of the two is better, and whether that is more than noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

# Losses that differ by less than this share of them count as equal: their noise is not known from one run.
LOSS_TOLERANCE = 0.01
_NORMAL = 1.96  # two-sided 95 %


@dataclass(frozen=True)
class Comparison:
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


def is_loss(measure: str) -> bool:
    """Whether less is better."""
    return measure.rpartition("/")[2].endswith(("loss", "perplexity", "bits_per_character", "mse"))


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


def best_of(metrics: Mapping[str, float], others: Mapping[str, float], endings: Sequence[str]) -> str | None:
    """The metric that both have and that says most of quality; of several sets the first one's."""
    common = [name for name in metrics if name in others]
    return next((name for end in endings for name in common if name.endswith(end)), None)
