"""Inheritance of settings: a command that resumes or evaluates a run uses the run's settings."""

import copy
import dataclasses
import shlex
from collections.abc import Iterable, Iterator, Set
from pathlib import Path
from typing import Any, cast

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from adadepth.config import ContextConfig, ExperimentConfig, Source, TokenizerConfig
from adadepth.config.declaration import get_field_specs
from adadepth.config.env_redaction import record_env_references, restore_references
from adadepth.config.kinds import list_dataset_schemas
from adadepth.config.modes import experiment_schema, modes
from adadepth.config.overrides import format_override
from adadepth.errors import CheckpointError
from adadepth.models.registry import families
from adadepth.report.file_types import REPORTING
from adadepth.report.run_files import REPORT
from adadepth.runs.commands import format_report_command
from adadepth.runs.directory import (
    CHECKPOINTS,
    CONFIG_FILE,
    CONTINUE,
    FINISHED,
    MODEL,
    find_length_dependence,
    flat,
    has_parts,
    model_path,
    read_record,
    read_settings,
    resolve_run,
    run_of_checkpoint,
)
from adadepth.runtime.demos import format_run
from adadepth.runtime.plain_yaml import parse_yaml

_SCHEMAS = {"tokenizer": TokenizerConfig, "context": ContextConfig}
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def merge_run_settings(composed: DictConfig, overridden: Set[str]) -> DictConfig:
    """Return a configuration with the data, tokenizer, context and model settings of the run that wrote `checkpoint`.

    Groups and keys that the command line sets keep their values. The option of the group `model` is an exception: it
    names the family, and a checkpoint of the family keeps its settings.

    Args:
        composed: Composed configuration, which is returned unchanged if there is no run to inherit from.
        overridden: Groups and keys of the command line.
    """
    if (run := _find_run(composed)) is None:
        return composed
    stored = read_settings(run)
    inheriting = copy.deepcopy(composed)
    for group in _list_inherited_groups(composed, overridden, run):
        values = stored.get(group) or {}
        schema: type
        if group == "dataset":
            schema = find_data_schema(run, set(values))
        else:
            schema = families()[values["name"]].settings if group == "model" else _SCHEMAS[group]
        if group == "model":  # a run of another version may have settings that no longer exist
            values = {name: values[name] for name in get_field_specs(schema) if name in values}
        settings = OmegaConf.merge(OmegaConf.structured(schema), values)
        if group == "tokenizer":
            model = model_path(cast(ExperimentConfig, composed))
            if any(Path(model, name).is_file() for name in _TOKENIZER_FILES):
                settings.path = model
        if group == "dataset" and "dataset.path" in overridden and settings.source is Source.hub:
            settings.source = Source.auto
        inheriting[group] = settings
        for key in (f"{group}.{name}" for name in _select_keys(group, overridden)):
            value = OmegaConf.select(composed, key)
            if group != "model" or value is not None or key == "model.exit_rule":  # as `load_model` applies them
                OmegaConf.update(inheriting, key, value, merge=False)
    return inheriting


def describe_inheritance(composed: DictConfig, overridden: Set[str]) -> str | None:
    """Return a line on which groups of settings come from the checkpoint's run, or None if there are none."""
    if (run := _find_run(composed)) is None or not (groups := list(_list_inherited_groups(composed, overridden, run))):
        return None
    exceptions = [f"{group}.{key}" for group in groups for key in _select_keys(group, overridden)]
    return f"{', '.join(groups)} as in {format_run(run)}" + _format_exceptions(exceptions)


def _format_exceptions(keys: Iterable[str]) -> str:
    names = ", ".join(keys)
    return f", except {names}" if names else ""


def _find_run(composed: Any) -> Path | None:
    """Return the directory of the run that wrote the configured checkpoint.

    The result is None if no checkpoint is used, or if no run wrote it.

    Raises:
        CheckpointError: If there is no such run. It is raised before any error about the data that would be inherited.
    """
    if not modes()[composed.mode].inherits or not isinstance(composed.checkpoint, str | None):
        return None
    if composed.checkpoint not in (None, "latest"):
        model_path(composed)
    return run_of_checkpoint(composed)


def _list_inherited_groups(composed: Any, overridden: Set[str], run: Path) -> Iterator[str]:
    """Yield the groups of settings that a command takes from an earlier run.

    The model is inherited if it is of the command's family, or if it was chosen automatically from the run's data.
    """
    yield from (group for group in ("dataset", "tokenizer", "context") if group not in overridden)
    is_chosen = read_record(run).get("chosen") and "model" not in overridden
    if is_chosen or read_settings(run).model.name == composed.model.name:
        yield "model"


def _select_keys(group: str, overridden: Set[str]) -> list[str]:
    """Return the keys of a configuration group that the command line sets."""
    return sorted(key.removeprefix(f"{group}.") for key in overridden if key.startswith(f"{group}."))


def find_data_schema(run: Path, keys: Set[str]) -> type:
    """Return the settings dataclass of the data on which a run was trained.

    The record of the run names it; for older runs it is found by its keys.
    """
    schemas = list_dataset_schemas()
    if (name := read_record(run).get("dataset_schema")) in schemas:
        return schemas[name]
    fields = {schema: {field.name for field in dataclasses.fields(schema)} for schema in schemas.values()}
    return min(fields, key=lambda schema: (len(fields[schema] ^ keys), len(schema.__mro__)))


_NOT_MERGED = ("hydra", "resume", "output_dir")  # keys that locate the run, or configure Hydra


def load_resumed_config(config: ExperimentConfig, composed: DictConfig, overridden: Set[str]) -> ExperimentConfig:
    """Load the settings of the run that `config.resume` names, and apply the command line's overrides to them.

    `run_directory` later refuses changes that are not allowed for a resumed run, once the data have completed the
    settings.

    Args:
        config: Composed configuration.
        composed: Composed settings, including Hydra's own node.
        overridden: Groups and keys of the command line.

    Raises:
        CheckpointError: If there is no such run, it is finished, or its settings cannot be read.
    """
    assert config.resume is not None
    run = resolve_run(config.resume, config, needs=CHECKPOINTS)
    if (mode := read_record(run).get("mode", "train")) != "train":
        raise CheckpointError(f"resume={run}: the run has mode={mode}; only a training run can be resumed")
    settings, composed_settings = _load_settings(run, "resume"), OmegaConf.structured(config)
    earlier = _to_experiment(settings)
    for key in _list_overrides(composed, overridden):
        OmegaConf.update(settings, key, OmegaConf.select(composed_settings, key), merge=False)
        restore_references(settings, key)
    settings.resume, settings.output_dir = str(run), str(run.absolute().parents[1])
    record_env_references(settings)
    merged = _to_experiment(settings)
    if merged.small != earlier.small:
        raise CheckpointError(
            f"resume={run}: small was {earlier.small} and now is {merged.small}; a resumed run cannot change it"
        )
    _refuse_finished(run, OmegaConf.structured(earlier), settings)
    return merged


def describe_resumption(config: ExperimentConfig, composed: DictConfig, overridden: Set[str]) -> str | None:
    """Return a line on where the settings of a resumed run come from, or None if no run is resumed."""
    if config.resume is None:
        return None
    return f"settings as in {config.resume}" + _format_exceptions(_list_overrides(composed, overridden))


def load_run_settings(run: Path, key: str) -> ExperimentConfig:
    """Load the settings of a run from its ``config.yaml`` as a configuration.

    Args:
        run: Run directory.
        key: Setting that names the run, for messages.

    Raises:
        CheckpointError: If the settings cannot be read.
    """
    return _to_experiment(_load_settings(run, key))


def _to_experiment(settings: Any) -> ExperimentConfig:
    config = OmegaConf.to_object(settings)
    assert isinstance(config, ExperimentConfig)
    return config


def _load_settings(run: Path, key: str) -> Any:
    """Load the settings file of a run, and fill in keys that are newer than the file with defaults."""
    stored = read_settings(run)
    if (name := stored.model.name) not in families():
        raise CheckpointError(f"{key}={run}: model.name={name}: this model family is not installed")
    settings = OmegaConf.structured(experiment_schema())
    settings.model = families()[name].settings
    settings.dataset = find_data_schema(run, set(stored.dataset))
    for group in {*map(str, stored)} - {*map(str, settings)}:
        if OmegaConf.is_dict(stored[group]):  # the settings of a mode that is not installed here
            del stored[group]
    if "name" in stored.logger:  # before several could be named at once
        tracker = stored.logger.pop("name")
        stored.logger.report_to = [] if tracker == "none" else [tracker]
    try:
        return OmegaConf.merge(settings, stored)
    except OmegaConfBaseException as error:
        problem = str(error).splitlines()[0]
        raise CheckpointError(f"{key}={run}: its {CONFIG_FILE} was written by another version: {problem}") from error


def _list_overrides(composed: DictConfig, overridden: Set[str]) -> Iterator[str]:
    """Yield the keys and groups that the command line sets, including those set by options such as `debug=default`."""
    fields = {field.name for field in dataclasses.fields(experiment_schema())}
    for key in sorted(overridden, key=lambda key: (key.count("."), key)):  # a group first, then single values of it
        root = key.partition(".")[0].partition("/")[0]
        if root in _NOT_MERGED:
            continue
        if root in fields:
            yield key
        else:
            yield from _list_keys_of_option(composed, key)


def _list_keys_of_option(composed: DictConfig, group: str) -> Iterator[str]:
    """Yield the keys that a whole-run option, such as `debug=default`, sets."""
    hydra = composed.hydra if "hydra" in composed else HydraConfig.get()
    for source in hydra.runtime.config_sources:
        file = Path(source.path, group, f"{hydra.runtime.choices.get(group)}.yaml")
        if source.schema == "file" and file.is_file():
            option = parse_yaml(file.read_text(encoding="utf-8")) or {}
            groups = (name for entry in option.pop("defaults", []) if isinstance(entry, dict) for name in entry)
            yield from (name.removeprefix("override /") for name in groups if not name.startswith("override /hydra"))
            option.pop("hydra", None)
            yield from flat(option) if option else ()


def _refuse_finished(run: Path, earlier: Any, merged: Any) -> None:
    """Raise an error on resuming a finished run, unless the command line extends its training.

    Args:
        run: Run directory.
        earlier: Settings from the file of the run.
        merged: The same settings with the overrides of the command line.
    """
    record = read_record(run)
    if record.get("status") not in (FINISHED, REPORTING) or record.get("stopped_because") is not None:
        return
    has_report = record["status"] == FINISHED and (run / REPORT).is_file()
    missing = "" if has_report else f"; its report is missing, and {format_report_command(run)} writes it"
    if earlier.rival_of is not None and has_parts(run):
        raise CheckpointError(f"resume={run}: its matched baselines are finished{missing}")
    if has_parts(run):
        if earlier.seeds == merged.seeds and record["status"] == FINISHED:
            more = f"to train one more: resume={run} seeds={earlier.seeds + 1}{missing}"
            raise CheckpointError(f"resume={run}: its {earlier.seeds} seeds are finished; {more}")
        return
    if all(OmegaConf.select(earlier, key) == OmegaConf.select(merged, key) for key in CONTINUE):
        pretrained = shlex.quote(format_override("model.pretrained", run / MODEL))
        command = str(record.get("command") or "")
        prefix = "" if "resume=" in command else f"{command} "
        raise CheckpointError(
            f"resume={run}: this run is finished and cannot be resumed{_describe_longer_training(run, merged)}; "
            f"to train another run from its weights: {prefix}{pretrained}{missing}"
        )


def _describe_longer_training(run: Path, settings: Any) -> str:
    """Describe how to train a finished run for more optimiser steps, or why that is impossible."""
    if (reason := find_length_dependence(_to_experiment(settings))) is not None:
        return f", because {reason} depends on the number of optimiser steps"
    trainer = settings.trainer
    has_steps = trainer.max_steps > 0
    longer = ("max_steps", 2 * trainer.max_steps) if has_steps else ("num_train_epochs", 2 * trainer.num_train_epochs)
    return f" as it is; to train it further: resume={run} trainer.{longer[0]}={longer[1]:g}"
