"""Quality at given shares of saved compute, against numpy and against a mixture of two thresholds by plain loops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from adadepth.halting.exit_rules import parse_rule
from adadepth.metrics.exit_rule_selection import readings
from adadepth.metrics.halves import select_first_half
from adadepth.metrics.saved_compute import (
    SAVED_SHARES,
    compute_perplexity,
    interpolate_saved,
    interpolate_score,
    summarise_saved_compute,
)
from tests.unit.metrics.exits_support import EXAMPLES, N, count_macs, make_records


def test_scores_are_interpolated_as_numpy_does_and_not_beyond_the_points() -> None:
    draws = np.random.default_rng(0)
    compute, scores = draws.permutation(np.arange(1.0, 9.0)), draws.normal(size=8)
    points = list(zip(compute.tolist(), scores.tolist(), strict=True))
    order = compute.argsort()
    for at in (1.0, 1.25, 4.0, 6.9, 8.0):
        assert interpolate_score(points, at) == pytest.approx(np.interp(at, compute[order], scores[order]))
    assert interpolate_score(points, 0.99) is interpolate_score(points, 8.01) is interpolate_score([], 1.0) is None
    assert interpolate_score([(1.0, 0.2), (1.0, 0.4), (2.0, 0.8)], 1.5) == pytest.approx(0.6)
    assert interpolate_saved([(5.0, 0.0), (10.0, 1.0)], 10.0) == pytest.approx([0.9, 0.8, 0.6, 0.4])


def test_a_rule_has_the_score_of_a_mixture_of_two_thresholds() -> None:
    """Exit every example of the half that scores at its first prediction with a large enough margin."""
    records = make_records(sure_when_wrong=1.0)
    measured: dict[str, Any] = {"problem": "classification", "metrics": ["accuracy"]}
    rules = [parse_rule("margin:0.5")]
    points = readings(records, records.index, rules, macs=count_macs, **measured)
    saved = summarise_saved_compute(points, is_text=False)
    assert (saved["measure"], saved["full"], saved["shares"]) == ("score", 1.0, list(SAVED_SHARES))
    assert records.step_logits is not None
    assert records.labels is not None
    scored = ~select_first_half(records.index.numpy())
    probabilities = records.step_logits.softmax(dim=-1).sort(dim=-1).values
    margins = (probabilities[..., -1] - probabilities[..., -2])[scored].tolist()
    right = (records.step_logits.argmax(dim=-1) == records.labels.unsqueeze(1))[scored].tolist()

    def run(threshold: float) -> tuple[float, float]:
        steps = [next(n for n in range(N) if row[n] > threshold or n == N - 1) for row in margins]
        accuracy = sum(right[row][step] for row, step in enumerate(steps)) / len(steps)
        return sum(11.0 * 4 * (step + 1) for step in steps) / len(steps), accuracy

    curve = sorted({run(float(point["rule"].partition(":")[2])) for point in points["margin"]})
    full = 10.0 * N * 4
    (row,) = [row for row in saved["rows"] if row["rule"] == "margin"]
    assert saved["macs"] == full
    assert row["points"] == len(points["margin"]) > 2
    compute, scores = zip(*curve, strict=True)
    for share, value in zip(SAVED_SHARES, row["values"], strict=True):
        at = (1 - share) * full
        expected = np.interp(at, compute, scores) if compute[0] <= at <= compute[-1] else None
        assert value == (None if expected is None else pytest.approx(expected))
    assert any(value is not None for value in row["values"])
    assert int(scored.sum()) == EXAMPLES // 2


def test_texts_have_perplexities_of_interpolated_losses() -> None:
    fixed = [{"macs": 1.0, "score": -3.0}, {"macs": 2.0, "score": -2.0}]
    saved = summarise_saved_compute({"fixed": fixed, "kl": [{"macs": 1.7, "score": -2.1}]}, is_text=True)
    assert saved["full"] == pytest.approx(math.exp(2.0))
    assert saved["rows"][0]["values"] == pytest.approx([math.exp(2 + 2 * share) for share in SAVED_SHARES])
    assert saved["rows"][1]["values"] == [None] * 4
    assert compute_perplexity(-1e6) == math.exp(700.0), "a finite number for JSON"
    assert summarise_saved_compute({"fixed": [{"macs": 1.0, "score": None}]}, is_text=True) == {}
    assert summarise_saved_compute({}, is_text=True) == {}
