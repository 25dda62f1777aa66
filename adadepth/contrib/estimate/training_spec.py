"""Description of a training run for an estimate: its model and micro-batches, without its data.

`mode=estimate` builds the model and micro-batches of the longest examples without preparing data. For synthetic data it
generates a few examples. For all other data, lengths and labels follow from the settings.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from adadepth.config import ExperimentConfig, Task
from adadepth.config.experiment import GateConfig, TokenizerKind
from adadepth.config.kinds import get_kind, get_problem
from adadepth.contrib.estimate.settings import get_estimate_settings
from adadepth.data.batches import IGNORE
from adadepth.data.registry import load_run_data
from adadepth.errors import ConfigError
from adadepth.models.build import build_classifier, build_language_model, build_pretraining_model
from adadepth.models.registry import family
from adadepth.tasks.model_fields import class_fields, cls_options, head_fields

_WORD = 5  # a token that every vocabulary has
_SYNTHETIC_EXAMPLES = 64  # generated training examples


class TrainingSpec(NamedTuple):
    """Model and micro-batches of a training run, without its data, for an estimate.

    Attributes:
        build: Function that builds the model.
        batch: Function from a number of rows to a micro-batch of the longest examples, with inputs for any model.
        examples: Number of examples in an epoch, or None if it depends on the data.
    """

    build: Callable[[], Any]
    batch: Callable[[int], dict[str, Tensor]]
    examples: int | None


def build_training_spec(config: ExperimentConfig) -> TrainingSpec:
    """Build the model and micro-batches of the configured training run without loading its data.

    Raises:
        ConfigError: If the vocabulary size is unknown.
    """
    if hasattr(config.dataset, "train_examples"):
        return _build_synthetic_spec(config)
    if config.task is Task.pretrain:
        size = resolve_vocabulary_size(config) or 0  # unused where a pretrained model states it
        return TrainingSpec(
            partial(build_pretraining_model, config.model, size), partial(_build_masked_batch, config), None
        )
    if config.task is Task.finetune:
        fields = _get_head_fields(config)
        problem = get_problem(config.dataset)
        assert problem is not None, "validated"
        build = partial(build_classifier, config.model, resolve_vocabulary_size(config), fields, problem)
        return TrainingSpec(build, partial(_build_labelled_batch, config, fields), None)
    gates: dict[str, Any] = {field.name: getattr(config.search, field.name) for field in dataclasses.fields(GateConfig)}
    gates |= {"gate_path": config.search.path, "gate_seed": config.seed}
    searches = family(config.model.name).searches(config.model)
    model, size = _resolve_model_settings(config), resolve_vocabulary_size(config) or 0
    return TrainingSpec(
        partial(build_language_model, model, size, gates if searches else None),
        partial(_build_language_batch, config),
        None,
    )


def resolve_vocabulary_size(config: ExperimentConfig) -> int | None:
    """Return the size of the vocabulary, or None if the pretrained model defines it.

    For a trained tokenizer it is the maximum size.

    Raises:
        ConfigError: If the size depends on the text and the configuration does not state it.
    """
    tokenizer, model = config.tokenizer, config.model
    if get_problem(config.dataset) == "puzzle":
        return len(config.dataset.symbols) + 1  # type: ignore[attr-defined]
    if tokenizer.path is not None:
        if model.pretrained or getattr(model, "base_model", None) or getattr(model, "vocab_size", None):
            return None
        from adadepth.data.text.tokenizer import load_tokenizer

        return len(load_tokenizer(tokenizer.path))
    if tokenizer.kind is TokenizerKind.byte:
        return 256 + 3
    size = tokenizer.vocab_size or get_estimate_settings(config).words or getattr(model, "vocab_size", None)
    if size is None:
        raise ConfigError(
            "estimate.words: set the vocabulary size, because the tokenizer takes all words of a text "
            "(tokenizer.vocab_size=null), which mode=estimate does not read; WikiText-103 has 267735"
        )
    return int(size)


def _resolve_model_settings(config: ExperimentConfig) -> Any:
    """Return model settings in which word clusters that depend on the text are replaced by equal ones."""
    clusters = getattr(config.model, "cutoff_clusters", None)
    if clusters is None:
        return config.model
    size = resolve_vocabulary_size(config) or 0
    cutoffs = [size * part // clusters for part in range(1, clusters)]
    return dataclasses.replace(config.model, cutoffs=cutoffs, cutoff_clusters=None)  # type: ignore[call-arg]


def _build_synthetic_spec(config: ExperimentConfig) -> TrainingSpec:
    """Build the model and micro-batches of a run on generated tasks, from a few generated examples."""
    full: Any = config.dataset
    dataset = dataclasses.replace(
        full, train_examples=min(full.train_examples, _SYNTHETIC_EXAMPLES), max_evaluation_examples=8
    )
    options = cls_options(config.model.name, config.model)
    data = load_run_data(dataset, tokenizer=config.tokenizer, seed=config.seed, **options)
    size = None if data.tokenizer is None else len(data.tokenizer)
    build = partial(build_classifier, config.model, size, head_fields(data), data.problem)

    def batch(rows: int) -> dict[str, Tensor]:
        return dict(data.collate([data.train[row % len(data.train)] for row in range(rows)]))

    return TrainingSpec(build, batch, full.train_examples)


def _get_head_fields(config: ExperimentConfig) -> dict[str, Any]:
    """Return the head's settings that depend on the data, assuming two classes if none are configured."""
    dataset: Any = config.dataset
    problem = str(get_problem(dataset))
    if problem == "puzzle":
        return {"cells": dataset.sequence_length}
    return class_fields(problem, dataset.labels or ("0", "1"))


def _build_ids(config: ExperimentConfig, *shape: int) -> Tensor:
    return torch.full((*shape, config.dataset.sequence_length), _WORD)


def _build_masked_batch(config: ExperimentConfig, rows: int) -> dict[str, Tensor]:
    """Return a micro-batch for pretraining: full sequences with the maximum number of masked positions."""
    dataset: Any = config.dataset
    ids = _build_ids(config, rows)
    masking, length = dataset.masking, dataset.sequence_length
    predicted = min(masking.max_predictions or length, max(1, round(masking.probability * length)))
    labels = ids.where(torch.arange(length) < predicted, torch.tensor(IGNORE))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": ids * 0, "labels": labels}
    return batch | ({"sentence_order_label": ids[:, 0] * 0} if dataset.sentence_order else {})


def _build_labelled_batch(config: ExperimentConfig, fields: Mapping[str, Any], rows: int) -> dict[str, Tensor]:
    """Return a micro-batch for fine-tuning: full sequences with the first class as every label."""
    dataset: Any = config.dataset
    problem = get_problem(dataset)
    choices = [len(dataset.ending_columns)] if problem == "multiple_choice" else []
    ids = _build_ids(config, rows, *choices)
    row_labels = torch.zeros(rows, dtype=torch.long)
    if problem == "puzzle":
        return {"input_ids": ids.clamp(max=1), "labels": ids.clamp(max=1)}
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": ids * 0}
    if problem == "question_answering":
        return batch | {"start_positions": row_labels, "end_positions": row_labels}
    labels = {
        "tagging": ids * 0,
        "regression": row_labels.float(),
        "multi_label": torch.zeros(rows, len(fields.get("id2label", ()))),
    }
    return batch | {"labels": labels.get(str(problem), row_labels)}


def _build_language_batch(config: ExperimentConfig, rows: int) -> dict[str, Tensor]:
    """Return a micro-batch of running text, as segments of streams or as packed blocks."""
    ids = _build_ids(config, rows)
    if get_kind(config.dataset).reading == "blocks":
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids, "documents": ids * 0}
    return {"input_ids": ids, "targets": ids}
