"""Training and evaluation of language models: on contiguous streams with memory, or on packed blocks."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, TrainingArguments, set_seed

from adadepth.config import DatasetConfig, ExperimentConfig, Mode, SearchConfig, TokenizerConfig
from adadepth.config.declaration import select_notable_settings
from adadepth.config.experiment import GateConfig, SearchMethod
from adadepth.config.kinds import get_kind
from adadepth.data.held_out import HELD_OUT
from adadepth.data.registry import load_run_data
from adadepth.data.run_data import RunData
from adadepth.data.streams.contiguous import TwoPhase
from adadepth.data.streams.load import count_token_ids
from adadepth.evaluation.evaluation import Evaluation
from adadepth.evaluation.language_model import LanguageScorer, SampledPaths
from adadepth.evaluation.scorers import build_scorer
from adadepth.models.build import build_language_model, load_language_model
from adadepth.models.contract import LearnsGates
from adadepth.models.folder import read_config
from adadepth.models.registry import budget_mode, family
from adadepth.runs.data_identity import DataIdentity
from adadepth.runtime.console import say
from adadepth.runtime.devices import select_float64_device
from adadepth.runtime.distributed import run_main_process_first
from adadepth.runtime.hub_access import resolve_path
from adadepth.tasks import budgets, exit_study
from adadepth.tasks.checks import check_step_loss
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
    """Train a language model, evaluate the best checkpoint, and save model and report.

    Return the final metrics and the run directory.
    """
    args = training_arguments(config)
    data = load_data(config, args, choose_training_tokenizer(config, args), weights=config.model.pretrained)
    config = settle_model_config(config, args, data)
    model = build_configured_model(config, data)
    adjust = partial(budgets.fit_to_target, config.budget) if budget_mode(config) == "fitted" else None
    return build_language_session(config, args, data, model).train(compare_with_matched_baseline, adjust)


def evaluate(config: ExperimentConfig) -> dict[str, float]:
    """Evaluate a language model's checkpoint, write a report, and return the metrics."""
    args = training_arguments(config)
    path = resolve_model_path(config)
    model = load_language_model(path, config.model, list_overridden_model_settings())
    check_step_loss(path, model)
    data = load_data(config, args, choose_checkpoint_tokenizer(config, path), weights=path)
    check_vocabulary(config, model, data.tokenizer)
    data = check_evaluated_data(config, data, model)
    session = build_language_session(config, args, data, model)
    rules = exit_study.parse_exit_rules(config.exit_rules, model)

    def finish(session: Session) -> None:
        if rules:
            exit_study.compare_on_text(rules, session)
        budgets.compare_requested_budgets(session)

    return session.evaluate(path, finish)


def load_data(
    config: ExperimentConfig,
    args: TrainingArguments,
    tokenizer: TokenizerConfig,
    *,
    searches: bool | None = None,
    weights: str | None = None,
) -> RunData:
    """Load the text of a run as streams or packed blocks of tokens.

    A two-phase search reserves a part of the training text for the gates.

    Args:
        config: Experiment.
        args: Training arguments with batch sizes and world size.
        tokenizer: Settings of the tokenizer; see `load_language_data`.
        searches: Whether gates are trained, or None to follow the configuration of the model.
        weights: Folder or hub id of the initial or evaluated weights, or None for new weights.
    """
    model = config.model
    searches = family(model.name).searches(model) if searches is None else searches
    in_turns = searches and config.search.method is SearchMethod.two_phase
    load = partial(
        load_run_data,
        resolve_newlines(config.dataset, weights),
        tokenizer=tokenizer,
        train_rows=args.per_device_train_batch_size,
        slots=args.gradient_accumulation_steps,
        evaluation_rows=args.per_device_eval_batch_size,
        process=args.process_index,
        processes=args.world_size,
        two_phase=_plan_two_phases(config.search, config.trainer.max_steps) if in_turns else None,
    )
    data: RunData = run_main_process_first(args, load)
    return data


def resolve_newlines(dataset: DatasetConfig, weights: str | None) -> DatasetConfig:
    """Return settings of text in blocks that say whether newlines are kept, and other settings unchanged.

    By default, the text is what the weights were trained on: a pretrained decoder has read newlines, and a model of
    this package what its configuration records. New weights are trained on lines.

    Args:
        dataset: Settings of the data.
        weights: Folder or hub id of the weights, or None for new weights.
    """
    if getattr(dataset, "keep_newlines", False) is not None:
        return dataset
    keeps = False
    if weights is not None:
        path = resolve_path("model.pretrained", weights)
        trained = DataIdentity.from_config("model.pretrained", path, read_config("model.pretrained", path))
        keeps = True if trained is None else bool(trained.keep_newlines)
    return dataclasses.replace(dataset, keep_newlines=keeps)  # type: ignore[call-arg]


def _plan_two_phases(search: SearchConfig, steps: int) -> TwoPhase:
    """Return when a two-phase search trains the gates instead of the weights: first step, interval and text share.

    Source: FBNet (Wu et al. 2019, section 3.3), as used by PAR.
    """
    first = search.weights_only if search.weights_only >= 1 else search.weights_only * steps
    return TwoPhase(math.ceil(first), round(1 / search.architecture_share), search.architecture_share)


def settle_model_config(config: ExperimentConfig, args: TrainingArguments, data: RunData) -> ExperimentConfig:
    """Fill in model settings that depend on the training text, print them, and return the configuration."""
    settle = family(config.model.name).settle
    if settle is None:
        return config
    model = settle()(config.model, partial(count_token_ids, data))
    changes = [
        f"model.{name}={value}"
        for name, value in select_notable_settings(model).items()
        if getattr(config.model, name) != value
    ]
    if changes and args.process_index == 0:
        say(f"derived from the training text: {', '.join(changes)}")
    return dataclasses.replace(config, model=model)


def build_configured_model(config: ExperimentConfig, data: RunData) -> PreTrainedModel:
    """Build the language model that the settings describe, with the tokenizer's vocabulary."""
    search = config.search
    set_seed(config.seed)
    gates: dict[str, Any] = {field.name: getattr(search, field.name) for field in dataclasses.fields(GateConfig)}
    gates |= {"gate_path": search.path, "gate_seed": config.seed}
    searches = family(config.model.name).searches(config.model)
    assert data.tokenizer is not None, "there are tokens"
    model = build_language_model(config.model, len(data.tokenizer), gates if searches else None)
    set_text_ends(model, data.tokenizer.eos_token_id)
    return model


def set_text_ends(model: PreTrainedModel, end: int) -> None:
    """Set the tokenizer's end-of-text token as the only start and end token of a new model.

    Otherwise the trainer would keep the default id of the family, which stands for another token here.
    """
    for config in filter(None, (model.config, getattr(model, "generation_config", None))):
        config.eos_token_id = config.bos_token_id = end


def build_language_session(config: ExperimentConfig, args: TrainingArguments, data: RunData, model: Any) -> Session:
    """Build the session that evaluates a language model on the held-out text and the test text.

    For a supernet, the held-out text is evaluated once with each type of gates.

    The evaluation with the soft mean of all operations comes first, and selects checkpoints.
    """
    kind = get_kind(config.dataset)
    if kind.reading == "blocks" or kind.scorer is not None:
        return _build_block_session(config, args, data, model)
    search, has_gates = config.search, isinstance(model, LearnsGates)
    held_out = data.evaluation[HELD_OUT]
    sets: dict[str, Any] = {"soft" if has_gates else "network": held_out}
    if has_gates:
        sets |= {"argmax": held_out, "sampled": SampledPaths(held_out, search.sampled_paths)}
    if has_gates and search.seed_evaluation:
        sets["noisy"] = held_out
    sets |= data.test
    quality: dict[str, dict[str, float]] = {}
    first, context = next(iter(sets)), config.context

    def start(name: str) -> Evaluation:
        gates = "soft" if name == "test" else name
        scorer = LanguageScorer(
            model,
            data.test.get(name, held_out),
            model.context(context.memory_length, context.clamp_length, context.same_length),
            select_float64_device(args.device),
            name=name,
            qualities=quality,
            gates=gates if has_gates else None,
        )
        wants_statistics = name == first and config.trainer.halting_statistics
        return Evaluation(model, scorer, args.device, wants_statistics=wants_statistics)

    return Session(config, args, data, model, sets, start)


def _build_block_session(config: ExperimentConfig, args: TrainingArguments, data: RunData, model: Any) -> Session:
    """Build the session that evaluates text in packed blocks; the held-out text selects the best checkpoint."""
    sets = {**data.evaluation, **data.test}

    def start(name: str) -> Evaluation:
        device = select_float64_device(args.device)
        scorer = build_scorer(config.dataset, None, model=model, examples=sets[name], data=data, device=device)
        return Evaluation(
            model,
            scorer,
            args.device,
            wants_statistics=config.trainer.halting_statistics,
            wants_states=config.mode is Mode.evaluate,  # all states of a batch exceed the memory of training
        )

    return Session(config, args, data, model, sets, start)
