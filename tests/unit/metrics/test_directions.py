"""Directions of metrics: lower is better for losses and errors, higher for everything else that is measured."""

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


def test_errors_are_better_when_lower_and_scores_when_higher() -> None:
    assert {name for name in (*QUALITY_METRICS, *TAGGING_METRICS, *ANSWER_METRICS, "score") if is_loss(name)} == {"mse"}
    assert all(is_loss(name) for name in LOWER)


@pytest.mark.parametrize(("metric", "greater"), [
    ("eval_loss", False), ("loss", False), (None, False), ("eval_score", True), ("accuracy", True), ("eval_mse", False),
])  # fmt: skip
def test_a_direction_follows_from_the_metric_unless_it_is_set(metric: str | None, greater: bool) -> None:
    """Check a loss of another name, whose worst model was kept in huggingface/transformers#31142."""
    assert prefers_greater(metric, None) is greater
    assert prefers_greater(metric, not greater) is not greater, "a choice is kept"


@pytest.mark.parametrize(("metric", "direction"), [
    ("eval/loss", "minimize"), ("eval/score", "maximize"), ("eval/mse", "minimize"), ("eval/set/accuracy", "maximize"),
    ("cost/adaptive_over_full", "minimize"), ("halting/all/mean", "minimize"), ("eval/tokens_per_second", "maximize"),
    ("train/tokens_per_second", "maximize"), ("cost/speedup_over_dense", "maximize"), ("eval/runtime", "minimize"),
])  # fmt: skip
def test_a_sweep_has_the_direction_of_its_metric(metric: str, direction: str) -> None:
    """Check searches to be maximised, which were always minimised in hydra-ecosystem/hydra#2047."""
    assert resolve_direction(metric, None) == direction
    assert resolve_direction(metric, "maximize") == "maximize"


LOCAL = ["evaluate:./error_rate"]


@pytest.mark.parametrize(("metric", "metrics", "is_known"), [
    ("score", ["accuracy", "f1"], True), ("loss", [], True), ("mlm_accuracy", [], True), ("score", LOCAL, False),
    ("accuracy", ["evaluate:accuracy"], True), ("wer", ["evaluate:wer"], True), ("f1", ["evaluate:glue:f1"], True),
    ("error_rate", LOCAL, False), ("accuracy", LOCAL, True), ("score", ["accuracy", *LOCAL], False),
    ("accuracy", ["evaluate:./mine/accuracy"], False), ("ter", ["evaluate:ter"], False),
    ("distance", [], False), ("loss", ["evaluate:somebody/loss"], False), ("kl_loss", LOCAL, True),
])  # fmt: skip
def test_unknown_directions_are_found(metric: str, metrics: list[str], is_known: bool) -> None:
    assert (find_unknown_direction(metric, metrics) is None) is is_known


@pytest.mark.parametrize("metric", ["error_rate", "score"])
def test_a_sweep_requires_an_unknown_direction(metric: str) -> None:
    """Check that selection in training reads `trainer.greater_is_better`, and a sweep its own setting."""
    changes = (f"dataset.metrics={LOCAL}", "runtime.trust_remote_code=true", f"optimise=eval/{metric}")
    config = configured("ponder_tiny", *changes, "trainer.metric_for_best_model=eval_loss")
    with pytest.raises(ConfigError, match=r"^hydra.sweeper.direction: must be minimize or maximize for optimise=eval/"):
        choose_direction(config, None)
    assert choose_direction(config, "minimize") == "minimize"


def test_a_custom_metric_may_have_either_direction() -> None:
    assert is_contradicted("loss", greater=True, metrics=[])
    assert is_contradicted("accuracy", greater=False, metrics=["accuracy"])
    assert not is_contradicted("accuracy", greater=True, metrics=["accuracy"])
    assert not is_contradicted("distance", greater=False, metrics=["evaluate:./mine/distance"])
