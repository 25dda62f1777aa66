"""Which way a metric is better: of losses and errors less, of everything else that an evaluation measures more."""

from __future__ import annotations

import pytest

from adadepth.metrics.directions import is_contradicted, prefers_greater, resolve_direction
from adadepth.metrics.metric_names import is_loss
from adadepth.metrics.task_metrics import ANSWER_METRICS, QUALITY_METRICS, TAGGING_METRICS

LOWER = ("loss", "eval_loss", "eval/task_loss", "lm_loss_step_2", "perplexity", "bits_per_character", "mse", "mae")


def test_errors_are_told_from_what_is_better_the_higher() -> None:
    assert {name for name in (*QUALITY_METRICS, *TAGGING_METRICS, *ANSWER_METRICS, "score") if is_loss(name)} == {"mse"}
    assert all(is_loss(name) for name in LOWER)


@pytest.mark.parametrize(("metric", "greater"), [
    ("eval_loss", False), ("loss", False), (None, False), ("eval_score", True), ("accuracy", True), ("eval_mse", False),
])  # fmt: skip
def test_what_selects_a_model_needs_no_direction(metric: str | None, greater: bool) -> None:
    """huggingface/transformers#31142: of a loss under another name than the default the worst model was kept."""
    assert prefers_greater(metric, None) is greater
    assert prefers_greater(metric, not greater) is not greater, "a choice is kept"


@pytest.mark.parametrize(("metric", "direction"), [
    ("eval/loss", "minimize"), ("eval/score", "maximize"), ("eval/mse", "minimize"), ("eval/set/accuracy", "maximize"),
    ("cost/adaptive_over_full", "minimize"), ("halting/all/mean", "minimize"), ("eval/tokens_per_second", "maximize"),
    ("train/tokens_per_second", "maximize"), ("cost/speedup_over_dense", "maximize"), ("eval/runtime", "minimize"),
])  # fmt: skip
def test_the_direction_of_a_sweep(metric: str, direction: str) -> None:
    """hydra-ecosystem/hydra#2047: a search minimised whatever it was given."""
    assert resolve_direction(metric, None) == direction
    assert resolve_direction(metric, "maximize") == "maximize"


def test_somebody_s_own_metric_may_go_either_way() -> None:
    assert is_contradicted("loss", greater=True, metrics=[])
    assert is_contradicted("accuracy", greater=False, metrics=["accuracy"])
    assert not is_contradicted("accuracy", greater=True, metrics=["accuracy"])
    assert not is_contradicted("distance", greater=False, metrics=["evaluate:./mine/distance"])
