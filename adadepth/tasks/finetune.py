"""The second stage of a model that ponders: a trained model stays as it is, its halting head alone goes on learning."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedModel, TrainingArguments, set_seed

from adadepth.data import LabelledData, load_labelled_data, write_submission
from adadepth.errors import CheckpointError, ConfigError
from adadepth.evaluation.bag_of_words import score_bag_of_words
from adadepth.evaluation.evaluation import Evaluation
from adadepth.evaluation.predictions import example_rows
from adadepth.evaluation.sequences import sequence_classes
from adadepth.families.build import build_classifier, classifier_class, load_model
from adadepth.families.folder import read_config
from adadepth.families.registry import met
from adadepth.measure.classes import SequenceClasses
from adadepth.measure.quality import SCORE, check_metrics, check_tags, load_metrics
from adadepth.measure.scoring import predictions
from adadepth.report.run_files import write_prediction_rows
from adadepth.settings import ExperimentConfig, Mode, Source, TokenizerConfig
from adadepth.settings.class_names import number_classes
from adadepth.settings.kinds import PREDICTED, called, kind_of, problem_of
from adadepth.system.console import say
from adadepth.system.processes import main_first
from adadepth.tasks import budgets, exit_study
from adadepth.tasks.checks import check_depth, check_positions
from adadepth.tasks.identity import (
    check_evaluated_data,
    class_names_of,
    reordered_classes,
    training_classes,
    training_tokenizer,
)
from adadepth.tasks.matched_baseline import compare_with_matched_baseline
from adadepth.tasks.model_fields import cls_options, head_fields
from adadepth.tasks.session import Session
from adadepth.tasks.stored import check_vocabulary, checked_model_path, checkpoint_tokenizer, overridden_model_settings
from adadepth.training.arguments import training_arguments


def train_halting_alone(config: ExperimentConfig, model: Any) -> None:
    """Freeze everything but the halting head of a model that was built from `model.pretrained`.

    Raises:
        CheckpointError: If the weights are another family's, whose steps have never predicted.
        ConfigError: If the model has one step only, after which there is nothing to decide.
    """
    path = str(config.model.pretrained)
    found = read_config("model.pretrained", path).model_type
    if found != config.model.name:
        raise CheckpointError(f"model.pretrained={path}: holds {found}; halting.alone=true needs {config.model.name}")
    if model.max_updates < 2:
        raise ConfigError(f"halting.alone=true: model.pretrained={path} has one step, so there is nothing to decide")
    model.train_halting_alone(config.halting.slope, config.halting.threshold)


def train(config: ExperimentConfig) -> tuple[dict[str, float], Path]:
    """Train, evaluate the best checkpoint, save the model, write submissions and report; see `Session.train`."""
    started, args = time.monotonic(), training_arguments(config)
    tokenizer, classes = training_tokenizer(config, args), training_classes(config, args)
    options = cls_options(config.model.name, config.model)
    data = main_first(args, lambda: _load_data(config, tokenizer, options | {"classes": classes}))
    if (reordered := reordered_classes(config, data.labels)) is not None:
        data = main_first(args, lambda: _load_data(config, tokenizer, options | {"classes": reordered}))
    model = _fresh_model(config, data)
    check_positions(config, model)
    check_depth(config, model)
    if config.halting.alone:
        train_halting_alone(config, model)
    session = replace(finetuning_session(config, args, data, model), baselines=_baselines(config, args, data))
    settle = budgets.settle if met(config) == "fitted" else budgets.correct_depth if met(config) == "held" else None
    last = None if settle is None else partial(settle, config.budget)

    def build_session(config: ExperimentConfig, args: TrainingArguments) -> Session:
        return finetuning_session(config, args, data, _fresh_model(config, data))

    def further(session: Session) -> None:
        _write_tests(config, data, session)
        compare_with_matched_baseline(session, build_session, started)
        _say_baselines(session)

    return session.train(further, last)


def _fresh_model(config: ExperimentConfig, data: LabelledData) -> Any:
    """A new classifier for the data, or one that starts from `model.pretrained`."""
    set_seed(config.seed)
    vocab_size = None if data.tokenizer is None else len(data.tokenizer)
    model: Any = build_classifier(config.model, vocab_size, head_fields(data), data.problem)
    if data.tokenizer is not None:
        model.take_padding(data.tokenizer.pad_token_id)
    _set_class_weights(config, data, model)
    return model


def _baselines(config: ExperimentConfig, args: TrainingArguments, data: LabelledData) -> dict[str, Any]:
    """Return what a bag of words achieves on the evaluation sets of a table of one's own."""
    if args.process_index != 0 or getattr(config.dataset, "source", None) is not Source.local:
        return {}
    if (scored := score_bag_of_words(data)) is None:
        return {}
    return {"bag_of_words": {"model": scored[0], "sets": scored[1]}}


def _say_baselines(session: Session) -> None:
    """Say what a bag of words achieves, and what the trained model does."""
    if (scored := session.baselines.get("bag_of_words")) is None:
        return
    metrics = session.tracking.last_metrics
    for name, scores in scored["sets"].items():
        prefix = "eval/" if name == next(iter(scored["sets"])) else f"eval/{name}/"
        both = {key: prefix + key for key in scores if key != SCORE and prefix + key in metrics}
        pairs = [f"{key} {scores[key]:.3f} to the model's {metrics[long]:.3f}" for key, long in both.items()]
        if pairs:
            say(f"baseline on {name}, {scored['model']}: {', '.join(pairs)}")


def evaluate(config: ExperimentConfig) -> dict[str, float]:
    """Evaluate a checkpoint, under several exit rules if wanted; returns the metrics of its own rule."""
    args = training_arguments(config)
    path = checked_model_path(config)
    problem = problem_of(config.dataset)
    assert problem is not None, "validated"
    model_class = classifier_class(config.model, problem)
    model: Any = load_model(path, model_class, config.model, overridden_model_settings())
    tokenizer = checkpoint_tokenizer(config, path)
    options = cls_options(config.model.name, model.config) | {"classes": class_names_of(model.config)}
    data = main_first(args, lambda: _load_data(config, tokenizer, options))
    if data.labels:
        model.take_classes(data.labels)
    if data.tokenizer is not None:
        model.take_padding(data.tokenizer.pad_token_id)
    _check_fit(config, data, model)
    data = check_evaluated_data(config, data, model)
    check_depth(config, model)
    rules = exit_study.parse(config.exit_rules, model)

    def further(session: Session) -> None:
        if rules:
            exit_study.compare_exit_rules(rules, data, session)
        if config.budget.targets:
            budgets.compare_budgets(config.budget, session)
        _write_tests(config, data, session)

    return finetuning_session(config, args, data, model).evaluate(path, further)


def finetuning_session(config: ExperimentConfig, args: TrainingArguments, data: LabelledData, model: Any) -> Session:
    """The evaluation sets of the data, each evaluated with the task's metrics and the depth of every example."""
    predicted, own = PREDICTED[data.problem], kind_of(config.dataset).scorer
    has_classes = model.depth_unit != "task"  # one depth for all is the same in every class
    classes = {
        name: sequence_classes(dataset, data) if has_classes else SequenceClasses(())
        for name, dataset in data.evaluation.items()
        if predicted.has_classes
    }

    def scorer(name: str) -> Any:
        return called(
            own or predicted.scorer, model=model, data=data, examples=data.evaluation[name], groups=classes.get(name),
            dataset=config.dataset, wants_rows=config.predictions,
        )  # fmt: skip

    def start(name: str) -> Evaluation:
        return Evaluation(
            model,
            scorer(name),
            args.device,
            wants_statistics=config.trainer.halting_statistics,
            wants_states=config.mode is Mode.evaluate,  # all states of a batch at once are too much in training
            wants_rows=config.predictions,
        )

    return Session(config, args, data, model, data.evaluation, start)


def _load_data(config: ExperimentConfig, tokenizer: TokenizerConfig, options: dict[str, Any]) -> LabelledData:
    data = load_labelled_data(config.dataset, tokenizer, config.seed, **options)
    check_metrics(data.metrics, data.problem, len(data.labels) or None)
    if data.problem == "tagging":
        check_tags(data.metrics, data.labels)
    load_metrics(data.metrics)
    return data


def _set_class_weights(config: ExperimentConfig, data: LabelledData, model: Any) -> None:
    """Let the model's loss weigh classes as the data set says, and not as the run did that it was trained in before."""
    weights = data.class_weights or getattr(config.model, "classes_weights", None)
    if weights or getattr(model.config, "classes_weights", None):
        model.config.classes_weights = list(weights) if weights else None


def _check_fit(config: ExperimentConfig, data: LabelledData, model: PreTrainedModel) -> None:
    """Whether a checkpoint can read and answer what the data ask."""
    check_vocabulary(config, model, data.tokenizer)
    check_positions(config, model)
    settings: Any = model.config
    for name, value in data.model_fields.items():
        if getattr(settings, name) != value:
            raise CheckpointError(
                f"checkpoint={config.checkpoint}: its {name} is {getattr(settings, name)}, "
                f"dataset={config.dataset.name} needs {value}"
            )
    for name, least in data.least_fields.items():
        if getattr(settings, name) < least:
            raise CheckpointError(
                f"checkpoint={config.checkpoint}: its {name} is {getattr(settings, name)}, "
                f"dataset={config.dataset.name} needs {least} at least"
            )
    if not PREDICTED[data.problem].has_classes:
        return  # any number of choices, any length of an answer
    wanted = 1 if data.problem == "regression" else len(data.labels)
    if settings.num_labels != wanted:
        raise CheckpointError(
            f"checkpoint={config.checkpoint}: it predicts {settings.num_labels} classes, "
            f"dataset={config.dataset.name} has {wanted}"
        )


def _write_tests(config: ExperimentConfig, data: LabelledData, session: Session) -> None:
    """Predict the test sets and write one file each: for GLUE's server as it wants them, else a line an example."""
    dataset: Any = config.dataset
    names = dict(zip(dataset.test_splits, dataset.submission, strict=True)) if data.test and dataset.submission else {}
    for split, examples in data.test.items():
        if split not in names and split in data.evaluation:
            continue  # `predictions=true` writes these, with their labels
        records = session.trainer.records(examples)
        if not session.trainer.is_world_process_zero():
            continue
        directory = Path(session.run.directory)
        if split in names:
            predicted = predictions(records.logits, data.problem).numpy()
            if data.labels and dataset.labels:  # the server numbers classes as the data do, whatever the model's order
                predicted = np.array(number_classes(data.labels, dataset.labels, "dataset.labels"))[predicted]
            labels = dataset.labels or data.labels
            say(f"submission: {write_submission(directory / 'submission', names[split], predicted, labels)}")
        else:
            rows = example_rows(records, data.labels, data.problem)
            say(f"predictions of {split}: {write_prediction_rows(directory, split, rows)}")
