"""Compute of predictions for texts, with and without the predictions at exits."""

from __future__ import annotations

import pytest

from adadepth import Pipeline
from adadepth.prediction.outputs import PredictionCompute
from adadepth.report.predictions import format_compute_share
from tests.unit.data.tokenizers_support import build_streaming_tokenizer
from tests.unit.models.early_exit.early_exit_support import build_early_exit

WORDS = build_streaming_tokenizer()


@pytest.mark.parametrize("rule", ["margin:0.05", "fixed:2", None])
def test_predictions_at_exits_are_counted_once_an_update_if_the_rule_reads_them(rule: str | None) -> None:
    """Count the head of a language model as width times vocabulary multiply-accumulates."""
    model = build_early_exit(vocab_size=len(WORDS), exit_rule=rule)
    (prediction,), compute = Pipeline(model, WORDS).priced(["a cat stop the lot of"])
    depths, head = prediction.depths(), model.config.hidden_size * len(WORDS)
    assert compute.full_readings == head * (len(depths) + 1)  # the start token has a prediction, too
    if rule == "margin:0.05":
        assert len(set(depths)) > 1
        start = compute.readings / head - sum(depths)
        assert start in range(1, model.max_updates + 1)
    else:
        assert compute.readings == compute.full_readings


def test_shares_are_quotients_of_sums() -> None:
    total = PredictionCompute(10.0, 50.0, 30.0, 15.0).plus(PredictionCompute(20.0, 50.0, 30.0, 35.0))
    assert (total.share, total.share_with_predictions) == (0.3, 0.6)
    text = format_compute_share(total.share, total.share_with_predictions)
    assert text == "60% of the compute of full depth (30% without predictions)"
    assert format_compute_share(0.3, 0.3) == format_compute_share(0.3, None) == "30% of the compute of full depth"
