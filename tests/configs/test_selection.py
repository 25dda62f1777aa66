"""What selects the best model: the direction follows from the metric, and nobody selects the worst by mistake."""

from __future__ import annotations

import pytest
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from adadepth.cli.validation import validate
from adadepth.errors import ConfigError
from adadepth.training.arguments import training_arguments
from adadepth.training.optimization import build_schedule
from adadepth.training.trackers.wandb import choose_summary
from tests.configs.support import configured
from tests.marks_support import quick_one_in

PLATEAU = ("trainer.schedule=plateau", "trainer.plateau_patience=1", "trainer.warmup_steps=0")


@pytest.mark.parametrize(("root", "metric", "greater"), quick_one_in(2, [
    ("act_sst2", "eval_score", True), ("act_sst2", "eval_loss", False), ("act_hops", "token_accuracy", True),
    ("act_hops", "eval_loss", False), ("act_stsb", "eval_pearson", True), ("act_tiny", "eval_mlm_accuracy", True),
    ("loop_tiny", "eval_perplexity", False),
]))  # fmt: skip
def test_everybody_takes_the_same_direction(root: str, metric: str, greater: bool) -> None:
    """huggingface/transformers#31142 and facebookresearch/fairseq#2205: of whoever compares, all compare alike."""
    config = configured(root, f"trainer.metric_for_best_model={metric}", *PLATEAU)
    assert training_arguments(config).greater_is_better is greater
    schedule = build_schedule(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0), config.trainer, 10)
    assert isinstance(schedule, ReduceLROnPlateau)
    assert schedule.mode == ("max" if greater else "min")
    assert choose_summary("eval/" + metric.removeprefix("eval_"), config) == schedule.mode


@pytest.mark.parametrize(("metric", "greater", "better"), [
    ("eval_loss", "true", "lower"), ("eval_accuracy", "false", "higher"),
])  # fmt: skip
def test_the_worst_model_is_not_selected(metric: str, greater: str, better: str) -> None:
    given = (f"trainer.metric_for_best_model={metric}", f"trainer.greater_is_better={greater}")
    with pytest.raises(ConfigError, match=rf"^trainer\.greater_is_better={greater}: .*={metric} is better if {better}"):
        configured("act_sst2", *given)


def test_a_run_goes_on_as_it_began() -> None:
    config = configured("act_sst2")
    config.trainer.greater_is_better, config.resume = False, "outputs/x/y"
    validate(config)
