"""Pretraining: masked language modelling and sentence-order prediction, with the ponder cost."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from transformers import TrainingArguments, set_seed

from adadepth.config import ExperimentConfig, TokenizerConfig
from adadepth.data import RunData, unigram_baseline
from adadepth.data.registry import load_run_data
from adadepth.evaluation.evaluation import Evaluation
from adadepth.evaluation.pretraining import PretrainingScorer
from adadepth.models.build import build_pretraining_model, load_model, pretraining_class
from adadepth.models.registry import budget_mode
from adadepth.runtime.devices import select_float64_device
from adadepth.runtime.distributed import run_main_process_first
from adadepth.tasks import budgets, exit_study
from adadepth.tasks.checks import check_depth, check_positions, check_step_loss
from adadepth.tasks.identity import check_evaluated_data, choose_training_tokenizer
from adadepth.tasks.matched_baseline import compare_with_matched_baseline
from adadepth.tasks.session import Session
from adadepth.tasks.stored_models import (
    check_vocabulary,
    choose_checkpoint_tokenizer,
    list_overridden_model_settings,
    resolve_model_path,
)
from adadepth.training.arguments import training_arguments


def train(config: ExperimentConfig) -> tuple[dict[str, float], Path]:
    """Train a model on masked text, evaluate the best checkpoint, and save model and report.

    Return the final metrics and the run directory.
    """
    args = training_arguments(config)
    data = _load_data(config, args, choose_training_tokenizer(config, args))
    set_seed(config.seed)
    assert data.tokenizer is not None, "there are tokens"
    model = build_pretraining_model(config.model, len(data.tokenizer))
    check_positions(config, model)
    check_depth(config, model)
    adjustments = {"held": budgets.correct_depth, "fitted": budgets.fit_to_target}
    mode = budget_mode(config)
    adjust = None if mode is None else partial(adjustments[mode], config.budget)
    return build_pretraining_session(config, args, data, model).train(compare_with_matched_baseline, adjust)


def evaluate(config: ExperimentConfig) -> dict[str, float]:
    """Evaluate a pretrained checkpoint, write a report, and return the metrics."""
    args = training_arguments(config)
    path = resolve_model_path(config)
    model = load_model(path, pretraining_class(config.model), config.model, list_overridden_model_settings())
    check_step_loss(path, model)
    data = _load_data(config, args, choose_checkpoint_tokenizer(config, path))
    check_vocabulary(config, model, data.tokenizer)
    data = check_evaluated_data(config, data, model)
    check_positions(config, model)
    check_depth(config, model)
    rules = exit_study.parse_exit_rules(config.exit_rules, model)

    def finish(session: Session) -> None:
        if rules:
            exit_study.compare_on_text(rules, session, predicts_next=False)
        budgets.compare_requested_budgets(session)

    return build_pretraining_session(config, args, data, model).evaluate(path, finish)


def build_pretraining_session(config: ExperimentConfig, args: TrainingArguments, data: RunData, model: Any) -> Session:
    """Build the session that evaluates a pretraining model on held-out text, with depth statistics."""

    def start(name: str) -> Evaluation:
        assert data.tokenizer is not None, "there are tokens"
        scorer = PretrainingScorer(
            data.tokenizer, select_float64_device(args.device), model.max_updates if model.exit_signals else 0
        )
        wants_statistics = config.trainer.halting_statistics
        return Evaluation(model, scorer, args.device, wants_statistics=wants_statistics, wants_states=True)

    baselines: dict[str, Any] = {}
    if args.process_index == 0 and "streamed" not in data.summary["train"]:  # word frequencies are known
        baselines["unigram"] = unigram_baseline(data)
    return Session(config, args, data, model, data.evaluation, start, baselines=baselines)


def _load_data(config: ExperimentConfig, args: TrainingArguments, tokenizer: TokenizerConfig) -> RunData:
    data: RunData = run_main_process_first(
        args, lambda: load_run_data(config.dataset, tokenizer=tokenizer, seed=config.seed)
    )
    return data
