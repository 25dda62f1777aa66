"""Settings that select the best model: the direction follows from the metric."""

from __future__ import annotations

import pytest
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from adadepth.cli.validation import validate
from adadepth.errors import ConfigError
from adadepth.training.arguments import training_arguments
from adadepth.training.optimization import build_schedule
from tests.configs.support import configured
from tests.marks_support import keep_one_quick

PLATEAU = ("trainer.schedule=plateau", "trainer.plateau_patience=1", "trainer.warmup_steps=0")


@pytest.mark.parametrize(("root", "metric", "greater"), keep_one_quick(2, [
    ("act_sst2", "eval_score", True), ("act_sst2", "eval_loss", False), ("act_hops", "token_accuracy", True),
    ("act_hops", "eval_loss", False), ("act_stsb", "eval_pearson", True), ("act_tiny", "eval_mlm_accuracy", True),
    ("loop_tiny", "eval_perplexity", False),
]))  # fmt: skip
def test_all_comparisons_use_one_direction(root: str, metric: str, greater: bool) -> None:
    """Check for huggingface/transformers#31142 and facebookresearch/fairseq#2205: all comparisons use one direction."""
    config = configured(root, f"trainer.metric_for_best_model={metric}", *PLATEAU)
    assert training_arguments(config).greater_is_better is greater
    schedule = build_schedule(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0), config.trainer, 10)
    assert isinstance(schedule, ReduceLROnPlateau)
    assert schedule.mode == ("max" if greater else "min")


@pytest.mark.parametrize(("metric", "greater", "better"), [
    ("eval_loss", "true", "lower"), ("eval_accuracy", "false", "higher"),
])  # fmt: skip
def test_the_worst_model_is_not_selected(metric: str, greater: str, better: str) -> None:
    overrides = (f"trainer.metric_for_best_model={metric}", f"trainer.greater_is_better={greater}")
    with pytest.raises(ConfigError, match=rf"^trainer\.greater_is_better={greater}: .*={metric} is better if {better}"):
        configured("act_sst2", *overrides)


def test_a_resumed_run_keeps_its_direction() -> None:
    config = configured("act_sst2")
    config.trainer.greater_is_better, config.resume = False, "outputs/x/y"
    validate(config)


EXITS = "model.trains=exits"
GATE = "model.objective=gate_alone model.gate=true model.exit_rule=null"


@pytest.mark.parametrize(("root", "overrides", "refused", "able"), keep_one_quick(3, [
    ("exit_retrofit", "trainer.metric_for_best_model=eval_perplexity", "trainer.metric_for_best_model", "eval_loss"),
    ("exit_retrofit", "trainer.metric_for_best_model=eval_lm_loss trainer.early_stopping_patience=2",
     "trainer.metric_for_best_model", "eval_loss"),
    ("exit_retrofit", "optimise=eval/perplexity", "optimise", "eval/loss"),
    ("exit_sst2", f"{EXITS} model.exit_rule=null", "trainer.metric_for_best_model", "eval_loss, eval_task_loss"),
    ("exit_sst2", f"{EXITS} model.exit_heads=shared model.exit_gate=true trainer.metric_for_best_model=eval_task_loss",
     "trainer.metric_for_best_model", "eval_loss, eval_gate_loss"),
    ("exit_mlm", f"{EXITS} model.exit_heads=own trainer.metric_for_best_model=eval_mlm_loss",
     "trainer.metric_for_best_model", "eval_loss"),
    ("loop_hops", f"{GATE} model.pretrained=x model.exit_rule=margin:0.9", "trainer.metric_for_best_model",
     "eval_loss"),
    ("loop_hops", f"{GATE} model.pretrained=x", "trainer.metric_for_best_model", "eval_loss"),
    ("loop_tiny", f"{GATE} trainer.metric_for_best_model=eval_perplexity", "trainer.metric_for_best_model",
     "eval_loss"),
]))  # fmt: skip
def test_a_metric_of_frozen_parts_selects_nothing(root: str, overrides: str, refused: str, able: str) -> None:
    """Check a frozen network, whose first evaluation would always be the best one."""
    with pytest.raises(ConfigError, match=rf"^{refused}=eval.*: never changes in this training.*; use one of {able}"):
        configured(root, *overrides.split())


@pytest.mark.parametrize(("root", "overrides"), keep_one_quick(3, [
    ("exit_retrofit", ""),
    ("exit_retrofit", "optimise=eval/loss"),
    ("exit_retrofit", "model.exit_rule=margin:0.5 trainer.metric_for_best_model=eval_perplexity"),
    ("exit_retrofit", "trainer.metric_for_best_model=eval_perplexity trainer.load_best_model_at_end=false"),
    ("exit_sst2", EXITS),
    ("exit_sst2", f"{EXITS} model.exit_rule=null trainer.metric_for_best_model=eval_loss"),
    ("exit_sst2", f"{EXITS} model.exit_heads=shared model.exit_gate=true model.exit_rule=correct:0.5"),
    ("loop_hops", "model.objective=gate_alone model.gate=true model.exit_rule=quantile:0.5 model.pretrained=x"),
    ("exit_sst2", f"{EXITS} model.exit_rule=null mode=evaluate checkpoint=x"),
]))  # fmt: skip
def test_a_metric_of_trained_parts_selects(root: str, overrides: str) -> None:
    configured(root, *overrides.split())
