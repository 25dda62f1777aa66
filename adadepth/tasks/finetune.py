"""Fine-tuning and evaluation of classifiers, taggers and question-answering models on labelled data."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedModel, TrainingArguments, set_seed

from adadepth.config import ExperimentConfig, Mode, Source, TokenizerConfig
from adadepth.config.class_names import number_classes
from adadepth.config.kinds import PREDICTED, get_problem
from adadepth.data import RunData, load_labelled_data, write_submission
from adadepth.errors import CheckpointError, ConfigError
from adadepth.evaluation.bag_of_words import score_bag_of_words
from adadepth.evaluation.evaluation import Evaluation
from adadepth.evaluation.predictions import build_example_rows
from adadepth.evaluation.scorer import Scorer
from adadepth.evaluation.scorers import build_scorer
from adadepth.evaluation.sequences import sequence_classes
from adadepth.metrics.scoring import predictions
from adadepth.metrics.task_metrics import SCORE, check_metrics, check_tags, load_metrics
from adadepth.metrics.unit_classes import SequenceClasses
from adadepth.models.build import build_classifier, classifier_class, load_model
from adadepth.models.folder import read_config
from adadepth.models.registry import budget_mode
from adadepth.report.run_files import write_prediction_rows
from adadepth.runtime.console import RESULT, say
from adadepth.runtime.distributed import run_main_process_first
from adadepth.tasks import budgets, exit_study
from adadepth.tasks.checks import check_depth, check_positions, check_step_loss
from adadepth.tasks.identity import (
    check_evaluated_data,
    choose_training_classes,
    choose_training_tokenizer,
    find_reordered_classes,
    get_class_names,
)
from adadepth.tasks.matched_baseline import compare_with_matched_baseline
from adadepth.tasks.model_fields import cls_options, head_fields
from adadepth.tasks.session import Session
from adadepth.tasks.stored_models import (
    check_vocabulary,
    choose_checkpoint_tokenizer,
    list_overridden_model_settings,
    resolve_model_path,
)
from adadepth.training.arguments import training_arguments


def train_halting_alone(config: ExperimentConfig, model: Any) -> None:
    """Freeze all weights of a pretrained model except the halting head.

    Raises:
        CheckpointError: If the weights are of another family, in which intermediate steps were not trained to predict.
        ConfigError: If the model has a single step, so that there is no halting decision.
    """
    path = str(config.model.pretrained)
    name = read_config("model.pretrained", path).model_type
    if name != config.model.name:
        raise CheckpointError(f"model.pretrained={path}: holds {name}; halting.alone=true needs {config.model.name}")
    if model.max_updates < 2:
        raise ConfigError(f"halting.alone=true: model.pretrained={path} has one step, so there is no exit to decide")
    model.train_halting_alone(config.halting.slope, config.halting.threshold)


def train(config: ExperimentConfig) -> tuple[dict[str, float], Path]:
    """Train a model on labelled data, evaluate the best checkpoint, and write model, submissions and report."""
    started, args = time.monotonic(), training_arguments(config)
    tokenizer, classes = choose_training_tokenizer(config, args), choose_training_classes(config, args)
    options = cls_options(config.model.name, config.model)
    data = run_main_process_first(args, lambda: _load_data(config, tokenizer, options | {"classes": classes}))
    if (reordered := find_reordered_classes(config, data.labels)) is not None:
        data = run_main_process_first(args, lambda: _load_data(config, tokenizer, options | {"classes": reordered}))
    model = _build_model(config, data)
    check_positions(config, model)
    check_depth(config, model)
    if config.halting.alone:
        train_halting_alone(config, model)
    session = replace(
        build_finetuning_session(config, args, data, model), baselines=_score_baselines(config, args, data)
    )
    adjust = {"fitted": budgets.fit_to_target, "held": budgets.correct_depth}.get(str(budget_mode(config)))

    def build_session(config: ExperimentConfig, args: TrainingArguments) -> Session:
        return build_finetuning_session(config, args, data, _build_model(config, data))

    def finish(session: Session) -> None:
        _write_tests(config, data, session)
        compare_with_matched_baseline(session, build_session, started)
        _log_baselines(session)

    return session.train(finish, None if adjust is None else partial(adjust, config.budget))


def _build_model(config: ExperimentConfig, data: RunData) -> Any:
    """Build a model with a head for the data, with the weights of `model.pretrained` if that is set."""
    set_seed(config.seed)
    vocab_size = None if data.tokenizer is None else len(data.tokenizer)
    model: Any = build_classifier(config.model, vocab_size, head_fields(data), data.problem)
    if data.tokenizer is not None:
        model.take_padding(data.tokenizer.pad_token_id)
    weights = data.class_weights or getattr(config.model, "classes_weights", None)
    if weights or getattr(model.config, "classes_weights", None):  # these are of an earlier run
        model.config.classes_weights = list(weights) if weights else None
    return model


def _score_baselines(config: ExperimentConfig, args: TrainingArguments, data: RunData) -> dict[str, Any]:
    """Return the scores of a bag-of-words baseline on the evaluation sets, if the data are a local table."""
    is_local = getattr(config.dataset, "source", None) is Source.local
    if args.process_index != 0 or not is_local or not config.bag_of_words:
        return {}
    if (scored := score_bag_of_words(data)) is None:
        return {}
    return {"bag_of_words": {"model": scored[0], "sets": scored[1]}}


def _log_baselines(session: Session) -> None:
    """Log the scores of the bag-of-words baseline next to those of the trained model."""
    if (scored := session.baselines.get("bag_of_words")) is None:
        return
    metrics = session.tracking.last_metrics
    for name, scores in scored["sets"].items():
        prefix = "eval/" if name == next(iter(scored["sets"])) else f"eval/{name}/"
        both = {key: prefix + key for key in scores if key != SCORE and prefix + key in metrics}
        pairs = [f"{key} {scores[key]:.3f} to the model's {metrics[long]:.3f}" for key, long in both.items()]
        if pairs:
            say(f"baseline on {name}, {scored['model']}: {', '.join(pairs)}", wraps=True)


def evaluate(config: ExperimentConfig) -> dict[str, float]:
    """Evaluate a checkpoint on labelled data, and then with every rule of `exit_rules` and depth of `budget.targets`.

    Return the metrics with its own exit rule.
    """
    args = training_arguments(config)
    path = resolve_model_path(config)
    problem = get_problem(config.dataset)
    assert problem is not None, "validated"
    model_class = classifier_class(config.model, problem)
    model: Any = load_model(path, model_class, config.model, list_overridden_model_settings())
    check_step_loss(path, model)
    tokenizer = choose_checkpoint_tokenizer(config, path)
    options = cls_options(config.model.name, model.config) | {"classes": get_class_names(model.config)}
    data = run_main_process_first(args, lambda: _load_data(config, tokenizer, options))
    if data.labels:
        model.take_classes(data.labels)
    if data.tokenizer is not None:
        model.take_padding(data.tokenizer.pad_token_id)
    _check_checkpoint(config, data, model)
    data = check_evaluated_data(config, data, model)
    check_depth(config, model)
    rules = exit_study.parse_exit_rules(config.exit_rules, model)

    def finish(session: Session) -> None:
        if rules:
            exit_study.compare_exit_rules(rules, data, session)
        budgets.compare_requested_budgets(session)
        _write_tests(config, data, session)

    return build_finetuning_session(config, args, data, model).evaluate(path, finish)


def build_finetuning_session(config: ExperimentConfig, args: TrainingArguments, data: RunData, model: Any) -> Session:
    """Build the session that evaluates labelled data with the metrics of the task and depth statistics."""
    problem = PREDICTED[data.problem]
    has_classes = model.depth_unit != "task"  # one depth for all is the same in every class
    classes = {
        name: sequence_classes(dataset, data) if has_classes else SequenceClasses(())
        for name, dataset in data.evaluation.items()
        if problem.has_classes
    }

    def scorer(name: str) -> Scorer:
        return build_scorer(
            config.dataset, data.problem, model=model, data=data, examples=data.evaluation[name],
            groups=classes.get(name), wants_rows=config.predictions,
        )  # fmt: skip

    def start(name: str) -> Evaluation:
        return Evaluation(
            model,
            scorer(name),
            args.device,
            wants_statistics=config.trainer.halting_statistics,
            wants_states=config.mode is Mode.evaluate,  # all states of a batch exceed the memory of training
            wants_rows=config.predictions,
        )

    return Session(config, args, data, model, data.evaluation, start)


def _load_data(config: ExperimentConfig, tokenizer: TokenizerConfig, options: dict[str, Any]) -> RunData:
    data = load_labelled_data(config.dataset, tokenizer, config.seed, **options)
    check_metrics(data.metrics, data.problem, len(data.labels) or None)
    if data.problem == "tagging":
        check_tags(data.metrics, data.labels)
    load_metrics(data.metrics)
    return data


def _check_checkpoint(config: ExperimentConfig, data: RunData, model: PreTrainedModel) -> None:
    """Raise an error if the vocabulary, positions or classes of a checkpoint do not fit the data.

    Raises:
        CheckpointError: If something does not fit; the message names it.
    """
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
                f"dataset={config.dataset.name} needs at least {least}"
            )
    if not PREDICTED[data.problem].has_classes:
        return  # choices and spans have no fixed number of classes
    classes = 1 if data.problem == "regression" else len(data.labels)
    if settings.num_labels != classes:
        raise CheckpointError(
            f"checkpoint={config.checkpoint}: it predicts {settings.num_labels} classes, "
            f"dataset={config.dataset.name} has {classes}"
        )


def _write_tests(config: ExperimentConfig, data: RunData, session: Session) -> None:
    """Predict every test set, and write the predictions.

    Write a submission for the GLUE server, or a file with one line per example.
    """
    dataset: Any = config.dataset
    names = dict(zip(dataset.test_splits, dataset.submission, strict=True)) if data.test and dataset.submission else {}
    for split, examples in data.test.items():
        if split not in names and split in data.evaluation:
            continue  # written with labels by `predictions=true`
        records = session.trainer.records(examples)
        if not session.trainer.is_world_process_zero():
            continue
        directory = Path(session.run.directory)
        if split in names:
            predicted = predictions(records.logits, data.problem).numpy()
            if data.labels and dataset.labels:  # the server numbers classes as the data set does
                predicted = np.array(number_classes(data.labels, dataset.labels, "dataset.labels"))[predicted]
            labels = dataset.labels or data.labels
            say(f"submission: {write_submission(directory / 'submission', names[split], predicted, labels)}", RESULT)
        else:
            rows = build_example_rows(records, data.labels, data.problem)
            say(f"predictions of {split}: {write_prediction_rows(directory, split, rows)}", RESULT)
