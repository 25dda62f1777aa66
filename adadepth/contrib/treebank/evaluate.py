"""`mode=evaluate` on a treebank: the depth of a trained model's tokens by what the words are."""

from __future__ import annotations

from typing import Any

import numpy as np

from adadepth.contrib.treebank.data import TreebankData, TreebankSet
from adadepth.contrib.treebank.measures import describe_words, word_classes
from adadepth.contrib.treebank.report import every_row, flatten_words, words_text, write_words
from adadepth.contrib.treebank.scorers import MaskedTreebankScorer, TreebankScorer
from adadepth.errors import CheckpointError
from adadepth.evaluation.evaluation import Evaluation
from adadepth.families.build import load_model, pretraining_class
from adadepth.families.folder import read_config
from adadepth.families.registry import family
from adadepth.report.table import to_records
from adadepth.runs.directory import run_directory
from adadepth.settings import ExperimentConfig, Task
from adadepth.settings.kinds import load_run_data
from adadepth.system.console import say
from adadepth.system.distributed import decide, run_main_process_first
from adadepth.tasks.checks import check_positions
from adadepth.tasks.identity import check_evaluated_data
from adadepth.tasks.session import Session
from adadepth.tasks.stored_models import (
    check_vocabulary,
    check_weights,
    choose_checkpoint_tokenizer,
    list_overridden_model_settings,
    resolve_model_path,
)
from adadepth.training.arguments import training_arguments

_MASKED = "masked"  # beside `plain`; also the end of the names of masked sets
_HEADS = ("classification", "tagging", "question_answering")  # that read one sentence at a time


def evaluate(config: ExperimentConfig) -> dict[str, float]:
    """Measure depths by word on every set of a treebank, write and show them; returns the metrics."""
    args = training_arguments(config)
    path = resolve_model_path(config)
    model = _load(config, path)
    check_weights(model, path)
    tokenizer, masks = str(choose_checkpoint_tokenizer(config, path).path), config.task is Task.pretrain
    data: TreebankData = run_main_process_first(
        args, lambda: load_run_data(config.dataset, tokenizer=tokenizer, masks=masks)
    )
    check_vocabulary(config, model, data.tokenizer)
    data = check_evaluated_data(config, data, model)
    check_positions(config, model)
    scorers = _scorers(data, args.device)
    examples = {name: scorer.words.examples for name, scorer in scorers.items()}

    def start(name: str) -> Evaluation:
        return Evaluation(model, scorers[name], args.device, wants_statistics=True, wants_states=True)

    directory = decide(args, lambda: run_directory(config))
    session = Session(config, args, data, model, examples, start)
    with session.open(directory):
        session.trainer.evaluate()
        found = _describe(data, scorers, session)
        session.tracking.last_metrics |= flatten_words(found)
        if session.trainer.is_world_process_zero():
            _tell(found, session)
        session.run.update(final_metrics=session.tracking.last_metrics, evaluated=path)
        return session.tracking.last_metrics


def _load(config: ExperimentConfig, path: str) -> Any:
    """The checkpoint's model with the head it was trained with.

    Raises:
        CheckpointError: If its tokens have no depth of their own, or it does not read single sentences.
    """
    model: Any = load_model(path, _head(config, path), config.model, list_overridden_model_settings())
    if model.depth_unit != "token":
        raise CheckpointError(
            f"checkpoint={path}: {config.model.name} gives a whole {model.depth_unit} one depth; "
            f"dataset={config.dataset.name} needs a model whose tokens halt one by one"
        )
    return model


def _head(config: ExperimentConfig, path: str) -> Any:
    if config.task is Task.pretrain:
        return pretraining_class(config.model)
    about = family(config.model.name)
    heads = {head.__name__: head for kind in _HEADS if kind in about.heads for head in [about.head(kind)]}
    held = (read_config("checkpoint", path).architectures or ["no architecture"])[0]
    if held not in heads:
        raise CheckpointError(
            f"checkpoint={path}: holds {held}; dataset={config.dataset.name} with task=finetune reads "
            f"{', '.join(heads) or f'no head of {about.name}'}"
        )
    return heads[held]


def _scorers(data: TreebankData, device: Any) -> dict[str, TreebankScorer | MaskedTreebankScorer]:
    """A scorer for every set; masked ones come first, because they have the published classes of tokens."""
    scorers: dict[str, TreebankScorer | MaskedTreebankScorer] = {
        f"{name}_{_MASKED}": MaskedTreebankScorer(data.tokenizer, found.masked, device)
        for name, found in data.sets.items()
        if found.masked is not None
    }
    return scorers | {name: TreebankScorer(data.tokenizer, found.plain) for name, found in data.sets.items()}


def _describe(
    data: TreebankData, scorers: dict[str, TreebankScorer | MaskedTreebankScorer], session: Session
) -> dict[str, Any]:
    """What words.json holds of all sets."""
    max_updates = session.trainer.unwrapped_model.max_updates
    sets: dict[str, Any] = {}
    for name, found in data.sets.items():
        readings = {"plain": scorers[name]}
        if found.masked is not None:
            readings[_MASKED] = scorers[f"{name}_{_MASKED}"]
        sets[name] = {
            reading: describe_words(scorer.words.pieces(), _classes(found), _sentences(found), max_updates)
            for reading, scorer in readings.items()
        }
    return {
        "max_depth": max_updates,
        "masks": any(found.masked is not None for found in data.sets.values()),
        "counted_words": data.summary["counted_words"],
        "counted_in": data.summary["counted_in"],
        "sentences": {name: len(found.plain) for name, found in data.sets.items()},
        "words": {name: sum(map(len, found.plain.pieces)) for name, found in data.sets.items()},
        "sets": sets,
    }


def _classes(found: TreebankSet) -> dict[str, list[str]]:
    trees = found.trees
    return word_classes(trees.upos, trees.deprel, trees.depth.tolist(), found.per_million.tolist())


def _sentences(found: TreebankSet) -> np.ndarray:
    """Number of the sentence that each word belongs to, (words,) int64."""
    return np.repeat(np.arange(len(found.trees)), np.diff(found.trees.sentences))


def _tell(found: dict[str, Any], session: Session) -> None:
    """Write, print and track what was found of words."""
    write_words(session.run.directory, found)
    say(words_text(found))
    tracker, step = session.tracking.tracker, session.trainer.state.global_step
    tracker.log(flatten_words(found), step)
    tracker.table("halting/words", *to_records(every_row(found)), step)
