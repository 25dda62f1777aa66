"""Check that a run's data and tokenizer are those on which its model was trained; see `runs.data_identity`.

A difference that invalidates the predictions of a model is an error unless `allow_changed_data` is set. Other
differences are logged. The record of the run lists both under `data.changed`.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from transformers import TrainingArguments
from transformers.utils import CONFIG_NAME

from adadepth.config import ExperimentConfig, Mode, TokenizerConfig
from adadepth.config.class_names import are_numbered, shorten
from adadepth.data.run_data import RunData
from adadepth.errors import CheckpointError
from adadepth.models.folder import read_config
from adadepth.models.registry import family
from adadepth.runs.data_identity import OVERRIDE, DataIdentity, digest_tokenizer, expected_tokenizer
from adadepth.runs.directory import CHECKPOINTS, MODEL, model_path, resolve_run
from adadepth.runtime.console import say
from adadepth.runtime.distributed import is_main_process
from adadepth.runtime.hub_access import resolve_path
from adadepth.tasks.stored_models import find_resumable_checkpoint

_Data = TypeVar("_Data", bound=RunData)


def get_class_names(config: Any) -> list[str] | None:
    """Return the class names of a model in order, or None if its classes have no names."""
    names = getattr(config, "id2label", None) or {}
    ordered = [str(names[number]) for number in range(len(names))] if set(names) == set(range(len(names))) else []
    return None if not ordered or are_numbered(ordered) else ordered


def check_evaluated_data(config: ExperimentConfig, data: _Data, model: Any) -> _Data:
    """Compare the data of an evaluation with the data on which the model was trained.

    Args:
        config: Experiment, which names the checkpoint.
        data: Loaded data.
        model: Loaded model.

    Returns:
        The data, with a summary that lists the differences.

    Raises:
        CheckpointError: If the tokenizer or the problem type differs from that of training.
    """
    path = model_path(config)
    now = DataIdentity.from_data(config.dataset, data)
    refused = _compare_tokenizer("checkpoint", path, model.config, now)
    before = DataIdentity.from_config("checkpoint", path, model.config)
    problems = None if before is None else before.problem, now.problem
    if config.mode is Mode.evaluate and None not in problems and problems[0] != problems[1]:
        refused.append(f"the model was trained for {problems[0]}, but the data are for {problems[1]}")
    differing = [] if before is None else _list_differences(before, now)
    return _apply_differences(config, data, f"checkpoint={path}", refused, differing)


def check_resumed_data(config: ExperimentConfig, data: _Data, model: Any, checkpoint: Path) -> _Data:
    """Compare the data of a resumed run with the data that its checkpoint was trained on.

    Raises:
        CheckpointError: If sources, tokenizer or classes differ.
    """
    if not (checkpoint / CONFIG_NAME).is_file():  # shards of an older version
        _log_unknown_data(config)
        return data
    stored = read_config("resume", str(checkpoint))
    before = DataIdentity.from_config("resume", str(checkpoint), stored)
    now = DataIdentity.from_data(config.dataset, data)
    refused = _compare_tokenizer("resume", str(checkpoint), stored, now)
    if before is None:
        _log_unknown_data(config)
    else:
        refused += _compare_sources(before, now)
    refused += _compare_classes(get_class_names(stored), get_class_names(model.config))
    return _apply_differences(config, data, f"resume={config.resume or checkpoint}", refused, [])


def store_identity(config: ExperimentConfig, data: _Data, model: Any, checkpoint: Path | None) -> _Data:
    """Store a description of the training data in the model, after comparing it with a resumed checkpoint's.

    Returns:
        The data, with a summary that lists the differences.

    Raises:
        CheckpointError: If the data differ; see `check_resumed_data`.
    """
    if checkpoint is not None:
        data = check_resumed_data(config, data, model, checkpoint)
    DataIdentity.from_data(config.dataset, data).write_to(model.config)
    return data


def store_special_tokens(model: Any, tokenizer: Any) -> None:
    """Store the tokenizer's ids of padding, start and end in a model whose configurations have none.

    The trainer of transformers would do so, with a warning. It still warns of ids that differ.
    """
    for config in filter(None, (model.config.get_text_config(), getattr(model, "generation_config", None))):
        for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
            if getattr(config, name, None) is None and getattr(tokenizer, name) is not None:
                setattr(config, name, getattr(tokenizer, name))


def describe_data(data: RunData) -> dict[str, Any]:
    """Return the summary of the data for the record of a run, with the digest of the tokenizer if they have one."""
    described = data.summary.get("tokenizer")
    if described is None or data.tokenizer is None:
        return data.summary
    return {**data.summary, "tokenizer": {**described, "digest": digest_tokenizer(data.tokenizer)}}


def _log_unknown_data(config: ExperimentConfig) -> None:
    _log_on_main(
        f"resume={config.resume}: its checkpoints do not record their training data, so the data are not compared"
    )


def check_rival_data(config: ExperimentConfig, data: RunData, model: Any) -> None:
    """Raise an error if an equal-compute baseline would train on other data than the run in `rival_of`.

    Raises:
        CheckpointError: If sources, tokenizer or classes differ.
    """
    if config.rival_of is None:
        return
    path = str(Path(config.rival_of, MODEL))
    stored = read_config("rival_of", path)
    before, now = DataIdentity.from_config("rival_of", path, stored), DataIdentity.from_data(config.dataset, data)
    refused = _compare_tokenizer("rival_of", path, stored, now)
    refused += [] if before is None else _compare_sources(before, now)
    refused += _compare_classes(get_class_names(stored), get_class_names(model.config))
    _apply_differences(config, data, f"rival_of={config.rival_of}", refused, [])


def check_initial_tokenizer(config: ExperimentConfig, data: _Data) -> _Data:
    """Compare the tokenizer of the data with that of the pretrained weights or the base model.

    Raises:
        CheckpointError: If they differ.
    """
    refused: list[str] = []
    source = "model.pretrained"
    for name in ("pretrained", "base_model"):
        path = getattr(config.model, name, None)
        if path is not None and data.tokenizer is not None and config.tokenizer.path != path:
            source = f"model.{name}={path}"
            now, folder = DataIdentity.from_data(config.dataset, data), resolve_path(f"model.{name}", path)
            refused += _compare_tokenizer(f"model.{name}", folder, read_config(f"model.{name}", folder), now)
    return _apply_differences(config, data, source, refused, [])


def choose_training_tokenizer(config: ExperimentConfig, args: TrainingArguments) -> TokenizerConfig:
    """Return the tokenizer settings for training: the configured ones, or those of the checkpoint.

    If a run resumes with changed data, the tokenizer of its checkpoint is used.
    """
    checkpoint = _find_changed_checkpoint(config, args)
    return config.tokenizer if checkpoint is None else TokenizerConfig(path=str(checkpoint))


def choose_training_classes(config: ExperimentConfig, args: TrainingArguments) -> list[str] | None:
    """Return the class order for training, or None to use the order of the data.

    The order of the checkpoint is used if a run resumes with changed data, or if only the halting head is trained.
    """
    checkpoint = _find_changed_checkpoint(config, args)
    if checkpoint is not None:
        return get_class_names(read_config("resume", str(checkpoint)))
    return _read_pretrained_classes(config) if config.halting.alone else None


def find_reordered_classes(config: ExperimentConfig, labels: Sequence[str]) -> list[str] | None:
    """Return the class order of a pretrained head if the data have the same classes in another order, else None.

    If the head has the same number of classes but other names, this is logged. The head is then trained further under
    the names of the data.
    """
    classes = _read_pretrained_classes(config)
    if classes is None or not labels or family(config.model.name).build is not None or classes == list(labels):
        return None
    if sorted(classes) == sorted(labels):
        return classes
    if len(classes) == len(labels):
        _log_on_main(f"model.pretrained={config.model.pretrained}: its head was trained to predict {shorten(classes)}")
    return None


def _read_pretrained_classes(config: ExperimentConfig) -> list[str] | None:
    """Return the names of the classes of `model.pretrained`, or None if it has none."""
    path = config.model.pretrained
    if path is None:
        return None
    return get_class_names(read_config("model.pretrained", resolve_path("model.pretrained", path)))


def _find_changed_checkpoint(config: ExperimentConfig, args: TrainingArguments) -> Path | None:
    """Return the checkpoint to resume with changed data, if `allow_changed_data` is set; otherwise None."""
    if config.resume is None or not config.allow_changed_data:
        return None
    return find_resumable_checkpoint(resolve_run(config.resume, config, needs=CHECKPOINTS), args)


def _compare_tokenizer(key: str, path: str, config: Any, now: DataIdentity) -> list[str]:
    expected = expected_tokenizer(key, path, config) if now.tokenizer is not None else None
    if expected is None or expected == now.tokenizer:
        return []
    return ["the tokenizer differs from the one used in training"]


def _compare_sources(before: DataIdentity, now: DataIdentity) -> list[str]:
    changed = [
        split for split in (*before.sources, *now.sources) if before.sources.get(split) != now.sources.get(split)
    ]
    listed = ", ".join(dict.fromkeys(changed))
    return [f"the data have changed ({listed})"] if changed else []


def _compare_classes(before: Sequence[str] | None, now: Sequence[str] | None) -> list[str]:
    if before is None or now is None or list(before) == list(now):
        return []
    return [f"the classes were {shorten(before)} and now are {shorten(now)}"]


def _list_differences(before: DataIdentity, now: DataIdentity) -> list[str]:
    """Return the tolerated differences between evaluation and training data, one line each."""
    lines = []
    if before.dataset != now.dataset:
        lines.append(f"trained on {before.dataset}, evaluated on {now.dataset}")
    else:
        lines += _compare_sources(before, now)
    if list(before.columns) != list(now.columns):
        lines.append(
            f"the model was trained on the columns {', '.join(before.columns)}, and now reads {', '.join(now.columns)}"
        )
    lengths = before.sequence_length, now.sequence_length
    if None not in lengths and lengths[0] != lengths[1]:
        lines.append(f"trained with dataset.sequence_length={lengths[0]}, evaluated with {lengths[1]}")
    newlines = before.keep_newlines, now.keep_newlines
    if None not in newlines and newlines[0] != newlines[1]:
        texts = [f"text {'with' if keeps else 'without'} newlines" for keeps in newlines]
        lines.append(f"trained on {texts[0]}, evaluated on {texts[1]}")
    return lines


def _apply_differences(
    config: ExperimentConfig, data: _Data, source: str, refused: list[str], differing: list[str]
) -> _Data:
    """Raise an error for differences that are not allowed, log the others, and add them to the data summary."""
    if refused and not config.allow_changed_data:
        raise CheckpointError(f"{source}: {'; '.join(refused)}; to allow this, add {OVERRIDE}")
    changed = [*refused, *differing]
    if not changed:
        return data
    _log_on_main(f"{source}: {'; '.join(changed)}")
    return dataclasses.replace(data, summary={**data.summary, "changed": changed})


def _log_on_main(line: str) -> None:
    if is_main_process():
        say(line, logging.WARNING)
