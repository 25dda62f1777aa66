"""`mode=evaluate` on a treebank: mean depth of a trained model's tokens by the linguistic class of their words."""

from __future__ import annotations

from typing import Any

import numpy as np

from adadepth.config import ExperimentConfig, Task
from adadepth.contrib.treebank.data import TreebankData
from adadepth.contrib.treebank.measures import classify_words, describe_words
from adadepth.contrib.treebank.report import build_full_table, flatten_words, format_words, write_words
from adadepth.contrib.treebank.scorers import MaskedTreebankScorer, TreebankScorer
from adadepth.data.registry import load_run_data
from adadepth.errors import CheckpointError
from adadepth.evaluation.evaluation import Evaluation
from adadepth.models.build import load_model, pretraining_class
from adadepth.models.folder import read_config
from adadepth.models.registry import family
from adadepth.report.table import to_records
from adadepth.runs.directory import run_directory
from adadepth.runtime.console import RESULT, say
from adadepth.runtime.devices import select_float64_device
from adadepth.runtime.distributed import decide, run_main_process_first
from adadepth.tasks.checks import check_positions
from adadepth.tasks.identity import check_evaluated_data
from adadepth.tasks.session import Session
from adadepth.tasks.stored_models import (
    check_vocabulary,
    check_weights,
    choose_checkpoint_tokenizer,
    list_overridden_model_settings,
    record_loaded_settings,
    resolve_model_path,
)
from adadepth.training.arguments import training_arguments

_MASKED = "masked"  # key of masked sentences, and suffix of the names of masked sets
_HEAD_KINDS = ("classification", "tagging", "question_answering")  # heads that read one sentence at a time


def evaluate(config: ExperimentConfig) -> dict[str, float]:
    """Measure the depth of words on every treebank split; write and print it, and return the metrics."""
    args = training_arguments(config)
    path = resolve_model_path(config)
    model = _load_model(config, path)
    check_weights(model, path)
    tokenizer, masks = str(choose_checkpoint_tokenizer(config, path).path), config.task is Task.pretrain
    data: TreebankData = run_main_process_first(
        args, lambda: load_run_data(config.dataset, tokenizer=tokenizer, masks=masks)
    )
    check_vocabulary(config, model, data.tokenizer)
    data = check_evaluated_data(config, data, model)
    check_positions(config, model)
    scorers = _build_scorers(data, select_float64_device(args.device))
    examples = {name: scorer.words.examples for name, scorer in scorers.items()}

    def start(name: str) -> Evaluation:
        return Evaluation(model, scorers[name], args.device, wants_statistics=True, wants_states=True)

    config = record_loaded_settings(config, model)
    directory = decide(args, lambda: run_directory(config))
    session = Session(config, args, data, model, examples, start)
    with session.open(directory):
        session.trainer.evaluate()
        summary = _summarise_words(data, scorers, session)
        session.tracking.last_metrics |= flatten_words(summary)
        if session.trainer.is_world_process_zero():
            _publish_summary(summary, session)
        session.run.update(final_metrics=session.tracking.last_metrics, evaluated=path)
        return session.tracking.last_metrics


def _load_model(config: ExperimentConfig, path: str) -> Any:
    """Load a checkpoint with the prediction head with which it was trained.

    Raises:
        CheckpointError: If its tokens do not halt one by one, or it does not accept single sentences.
    """
    model: Any = load_model(path, _resolve_head_class(config, path), config.model, list_overridden_model_settings())
    if model.depth_unit != "token":
        raise CheckpointError(
            f"checkpoint={path}: {config.model.name} has one depth per {model.depth_unit}; "
            f"dataset={config.dataset.name} needs a model with one depth per token"
        )
    return model


def _resolve_head_class(config: ExperimentConfig, path: str) -> Any:
    """Return the model class of the prediction head in a checkpoint."""
    if config.task is Task.pretrain:
        return pretraining_class(config.model)
    spec = family(config.model.name)
    heads = {head.__name__: head for kind in _HEAD_KINDS if kind in spec.heads for head in [spec.head(kind)]}
    stored = (read_config("checkpoint", path).architectures or ["no architecture"])[0]
    if stored not in heads:
        raise CheckpointError(
            f"checkpoint={path}: holds {stored}; dataset={config.dataset.name} with task=finetune needs "
            f"{', '.join(heads) or f'no head of {spec.name}'}"
        )
    return heads[stored]


def _build_scorers(data: TreebankData, device: Any) -> dict[str, TreebankScorer | MaskedTreebankScorer]:
    """Build a scorer for every treebank split.

    Scorers with masks come first, because they have the published classes of tokens.
    """
    assert data.tokenizer is not None, "there are tokens"
    scorers: dict[str, TreebankScorer | MaskedTreebankScorer] = {
        f"{name}_{_MASKED}": MaskedTreebankScorer(data.tokenizer, split.masked, device)
        for name, split in data.sets.items()
        if split.masked is not None
    }
    return scorers | {name: TreebankScorer(data.tokenizer, split.plain) for name, split in data.sets.items()}


def _summarise_words(
    data: TreebankData, scorers: dict[str, TreebankScorer | MaskedTreebankScorer], session: Session
) -> dict[str, Any]:
    """Return depth statistics by linguistic class for every split, the content of words.json."""
    max_updates = session.trainer.unwrapped_model.max_updates
    sets: dict[str, Any] = {}
    for name, split in data.sets.items():
        set_scorers = {"plain": scorers[name]}
        if split.masked is not None:
            set_scorers[_MASKED] = scorers[f"{name}_{_MASKED}"]
        trees = split.trees
        classes = classify_words(trees.upos, trees.deprel, trees.depth.tolist(), split.per_million.tolist())
        sentences = np.repeat(np.arange(len(trees)), np.diff(trees.sentences))  # of each word, (words,) int64
        sets[name] = {
            reading: describe_words(scorer.words.pieces(), classes, sentences, max_updates)
            for reading, scorer in set_scorers.items()
        }
    return {
        "max_depth": max_updates,
        "masks": any(split.masked is not None for split in data.sets.values()),
        "counted_words": data.summary["counted_words"],
        "counted_in": data.summary["counted_in"],
        "sentences": {name: len(split.plain) for name, split in data.sets.items()},
        "words": {name: sum(map(len, split.plain.pieces)) for name, split in data.sets.items()},
        "sets": sets,
    }


def _publish_summary(summary: dict[str, Any], session: Session) -> None:
    """Write depth statistics and probes to words.json, print them, and send them to the trackers."""
    write_words(session.run.directory, summary)
    say(format_words(summary), RESULT)
    tracker, step = session.tracking.tracker, session.trainer.state.global_step
    tracker.log(flatten_words(summary), step)
    tracker.table("halting/words", *to_records(build_full_table(summary)), step)
