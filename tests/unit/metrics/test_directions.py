"""Which way a metric is better: of losses and errors less, of everything else that an evaluation measures more."""

from __future__ import annotations

import pytest

from adadepth.errors import ConfigError
from adadepth.metrics.directions import find_unknown_direction, is_contradicted, prefers_greater, resolve_direction
from adadepth.metrics.metric_names import is_loss
from adadepth.metrics.task_metrics import ANSWER_METRICS, QUALITY_METRICS, TAGGING_METRICS
from hydra_plugins.adadepth_sweepers import choose_direction
from tests.configs.support import configured

LOWER = ("loss", "eval_loss", "eval/task_loss", "lm_loss_step_2", "perplexity", "bits_per_character", "mse", "mae")
LOWER += ("bits_per_byte",)


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


OWN = ["evaluate:./error_rate"]


@pytest.mark.parametrize(("metric", "metrics", "is_known"), [
    ("score", ["accuracy", "f1"], True), ("loss", [], True), ("mlm_accuracy", [], True), ("score", OWN, False),
    ("accuracy", ["evaluate:accuracy"], True), ("wer", ["evaluate:wer"], True), ("f1", ["evaluate:glue:f1"], True),
    ("error_rate", OWN, False), ("accuracy", OWN, True), ("score", ["accuracy", *OWN], False),
    ("accuracy", ["evaluate:./mine/accuracy"], False), ("ter", ["evaluate:ter"], False),
    ("distance", [], False), ("loss", ["evaluate:somebody/loss"], False), ("kl_loss", OWN, True),
])  # fmt: skip
def test_a_direction_is_known_or_asked_for(metric: str, metrics: list[str], is_known: bool) -> None:
    assert (find_unknown_direction(metric, metrics) is None) is is_known


@pytest.mark.parametrize("metric", ["error_rate", "score"])
def test_a_sweep_asks_for_the_direction(metric: str) -> None:
    """Early stopping, plateau and checkpoints read `trainer.greater_is_better`, sweeps their own setting."""
    changes = (f"dataset.metrics={OWN}", "runtime.trust_remote_code=true", f"optimise=eval/{metric}")
    config = configured("ponder_tiny", *changes, "trainer.metric_for_best_model=eval_loss")
    with pytest.raises(ConfigError, match=r"^hydra.sweeper.direction: must be minimize or maximize for optimise=eval/"):
        choose_direction(config, None)
    assert choose_direction(config, "minimize") == "minimize"


def test_somebody_s_own_metric_may_go_either_way() -> None:
    assert is_contradicted("loss", greater=True, metrics=[])
    assert is_contradicted("accuracy", greater=False, metrics=["accuracy"])
    assert not is_contradicted("accuracy", greater=True, metrics=["accuracy"])
    assert not is_contradicted("distance", greater=False, metrics=["evaluate:./mine/distance"])
