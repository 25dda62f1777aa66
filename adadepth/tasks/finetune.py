"""Fine-tuning: classes and values of sentences, pairs and vectors, tags of words, answers to questions, choices."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, TrainingArguments, set_seed

from adadepth.analysis.measure.quality import check_metrics, check_tags, load_metrics
from adadepth.analysis.measure.scoring import predictions
from adadepth.analysis.measure.sequence_classes import SequenceClasses
from adadepth.config import (
    ChoiceConfig,
    DatasetConfig,
    ExperimentConfig,
    LabelledConfig,
    Mode,
    QuestionConfig,
    TokenizerConfig,
)
from adadepth.config.generated import MazeConfig, ParityConfig
from adadepth.config.kinds import has_puzzles, labels_tokens
from adadepth.console import say
from adadepth.data import LabelledData, load_labelled_data, write_submission
from adadepth.errors import CheckpointError
from adadepth.evaluation.choices import ChoiceScorer
from adadepth.evaluation.evaluation import Evaluation
from adadepth.evaluation.puzzles import PuzzleScorer
from adadepth.evaluation.questions import QuestionScorer
from adadepth.evaluation.scorer import Scorer
from adadepth.evaluation.sequences import SequenceScorer, sequence_classes
from adadepth.evaluation.tagging import TaggingScorer
from adadepth.families.build import build_classifier, classifier_class, load_model
from adadepth.families.contract import HasOwnClasses, TrainsInSlots
from adadepth.families.registry import family, load
from adadepth.tasks import budgets, exit_rules
from adadepth.tasks.features import with_features
from adadepth.tasks.halting import train_halting_alone
from adadepth.tasks.processes import main_first
from adadepth.tasks.session import (
    Parts,
    Session,
    Trained,
    check_depth,
    check_positions,
    evaluate_parts,
    overridden_model_settings,
    train_parts,
)
from adadepth.tasks.stored import checked_model_path
from adadepth.tasks.vocabulary import check_vocabulary
from adadepth.training.arguments import training_arguments
from adadepth.training.slots import TrainingSlots

# Kinds of tasks whose evaluation sorts tokens into classes of its own, and whose head has no classes.
_OWN_CLASSES = ("question_answering", "multiple_choice")
_PROBLEMS: dict[type[DatasetConfig], str] = {QuestionConfig: "question_answering", ChoiceConfig: "multiple_choice"}


def problem_of(dataset: DatasetConfig) -> str:
    """Which head a data set asks for; that for whole sequences does classes and values."""
    if labels_tokens(dataset):
        return "tagging"
    if has_puzzles(dataset):
        return "puzzle"
    return next((name for kind, name in _PROBLEMS.items() if isinstance(dataset, kind)), "classification")


def train(config: ExperimentConfig) -> Trained:
    """Train, evaluate the best checkpoint, save the model, write submissions and report."""
    args = training_arguments(config)
    data = main_first(args, lambda: _load_data(config, config.tokenizer, cls_options(config.model.name, config.model)))
    set_seed(config.seed)
    vocab_size = None if data.tokenizer is None else len(data.tokenizer)
    model = build_classifier(config.model, vocab_size, _head_fields(config, data), data.problem)
    check_positions(config, model)
    check_depth(config, model)
    if config.halting.alone:
        train_halting_alone(config, model)
    parts = with_features(config, args, finetuning_parts(config, args, data, model))
    settle = partial(budgets.settle, config.budget) if _is_fitted_at_the_end(config) else None
    return train_parts(config, args, parts, lambda session: _write_submissions(config, data, session), settle)


def _is_fitted_at_the_end(config: ExperimentConfig) -> bool:
    """Whether there is a target that training itself does not hold."""
    return config.budget.target is not None and family(config.model.name).budget.fits_target


def evaluate(config: ExperimentConfig) -> dict[str, float]:
    """Evaluate a checkpoint, under several exit rules if wanted; returns the metrics of its own rule."""
    args = training_arguments(config)
    path = checked_model_path(config)
    model_class = classifier_class(config.model, problem_of(config.dataset))
    model = load_model(path, model_class, config.model, overridden_model_settings())
    tokenizer = checkpoint_tokenizer(config, path)
    data = main_first(args, lambda: _load_data(config, tokenizer, cls_options(config.model.name, model.config)))
    if data.labels and isinstance(model, HasOwnClasses):
        model.take_classes(data.labels)
    _check_fit(config, data, model)
    check_depth(config, model)
    rules = exit_rules.parse(config.exit_rules, model)

    def further(session: Session) -> None:
        if rules:
            exit_rules.compare(rules, data, session)
        if config.budget.targets:
            budgets.compare(config.budget, session)
        _write_submissions(config, data, session)

    return evaluate_parts(config, args, finetuning_parts(config, args, data, model), path, further)


def checkpoint_tokenizer(config: ExperimentConfig, path: str) -> TokenizerConfig:
    """That of the checkpoint, unless another one is asked for."""
    sources = (None, config.model.pretrained, getattr(config.model, "base_model", None))
    return TokenizerConfig(path=path) if config.tokenizer.path in sources else config.tokenizer


def finetuning_parts(config: ExperimentConfig, args: TrainingArguments, data: LabelledData, model: Any) -> Parts:
    """The evaluation sets of the data, each evaluated with the task's metrics and the depth of every example."""
    has_classes = model.depth_unit != "task"  # one depth for all is the same in every class
    classes = {
        name: sequence_classes(dataset, data) if has_classes else SequenceClasses(())
        for name, dataset in data.evaluation.items()
        if data.problem not in _OWN_CLASSES
    }

    def scorer(name: str) -> Scorer:
        examples: Any = data.evaluation[name]
        if isinstance(config.dataset, QuestionConfig):
            return QuestionScorer(data, examples, config.dataset)
        if data.problem == "multiple_choice":
            return ChoiceScorer(data)
        if data.problem == "puzzle":
            return PuzzleScorer(model, data, classes[name], examples.attributes)
        if data.problem == "tagging":
            return TaggingScorer(model, data, classes[name], examples, wants_rows=config.predictions)
        return SequenceScorer(model, data, classes[name])

    def start(name: str) -> Evaluation:
        return Evaluation(
            model,
            scorer(name),
            args.device,
            wants_statistics=config.trainer.halting_statistics,
            wants_states=config.mode is Mode.evaluate,  # all states of a batch at once are too much in training
            wants_rows=config.predictions,
        )

    slots = (TrainingSlots(config.seed),) if isinstance(model, TrainsInSlots) else ()
    return Parts(data, data.evaluation, start, model, slots)


def _load_data(config: ExperimentConfig, tokenizer: TokenizerConfig, options: dict[str, Any]) -> LabelledData:
    data = load_labelled_data(config.dataset, tokenizer, config.seed, **options)
    check_metrics(data.metrics, data.problem, len(data.labels) or None)
    if data.problem == "tagging":
        check_tags(data.metrics, data.labels)
    load_metrics(data.metrics)
    return data


def cls_options(name: str, model: Any) -> dict[str, Any]:
    """How many [CLS] a family's texts begin with, from settings or configuration; 0 leaves them to the tokenizer."""
    place = family(name).first_tokens
    return {} if place is None else load(place)(model)


def _head_fields(config: ExperimentConfig, data: LabelledData) -> dict[str, Any]:
    """What the data decide about the model: its classes, the size of its input vectors, the columns of a grid."""
    fields: dict[str, Any] = dict(data.model_fields)
    if isinstance(config.dataset, MazeConfig):
        fields["type_vocab_size"] = config.dataset.field
    if isinstance(config.dataset, ParityConfig) and data.tokenizer is None:
        fields["input_size"] = config.dataset.size
    if data.problem in _OWN_CLASSES:
        return fields
    if data.problem == "regression":
        return fields | {"num_labels": 1, "problem_type": "regression"}
    return fields | {
        "id2label": dict(enumerate(data.labels)),
        "label2id": {name: number for number, name in enumerate(data.labels)},
        "problem_type": None if data.problem in ("tagging", "puzzle") else "single_label_classification",
    }


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
    if data.problem in _OWN_CLASSES:
        return  # any number of choices, any length of an answer
    wanted = 1 if data.problem == "regression" else len(data.labels)
    if settings.num_labels != wanted:
        raise CheckpointError(
            f"checkpoint={config.checkpoint}: it predicts {settings.num_labels} classes, "
            f"dataset={config.dataset.name} has {wanted}"
        )
    if isinstance(config.dataset, MazeConfig) and settings.type_vocab_size < config.dataset.field:
        raise CheckpointError(
            f"dataset.field={config.dataset.field}: checkpoint={config.checkpoint} knows {settings.type_vocab_size} "
            "columns"
        )


def _write_submissions(config: ExperimentConfig, data: LabelledData, session: Session) -> None:
    """Predict the test sets and write one file each, as GLUE's server wants them."""
    dataset = config.dataset
    if not isinstance(dataset, LabelledConfig) or not dataset.submission:
        return
    names = dict(zip(dataset.test_splits, dataset.submission, strict=True))
    for split, examples in data.test.items():
        records = session.trainer.records(examples)
        if session.trainer.is_world_process_zero():
            predicted = predictions(records.logits, data.problem).numpy()
            path = Path(session.run.directory) / "submission"
            written = write_submission(path, names[split], predicted, data.labels)
            say(f"submission: {written}")
