"""What a run takes over from another: its settings when it is resumed, evaluated, or has a rival."""

import copy
import dataclasses
import shlex
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from adadepth.errors import CheckpointError
from adadepth.families.registry import families
from adadepth.runs.directory import (
    CHECKPOINTS,
    CONFIG_FILE,
    CONTINUE,
    MODEL,
    model_path,
    read_record,
    read_settings,
    resolve_run,
    run_of_checkpoint,
)
from adadepth.settings import ContextConfig, ExperimentConfig, Source, TokenizerConfig
from adadepth.settings.interpolations import note_environment, restore_references
from adadepth.settings.kinds import dataset_schemas
from adadepth.settings.modes import experiment_schema, modes
from adadepth.settings.overrides import format_override
from adadepth.system.demos import format_run
from adadepth.system.plain_yaml import from_yaml

_SCHEMAS = {"tokenizer": TokenizerConfig, "context": ContextConfig}
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def with_inherited(composed: DictConfig, given: Set[str]) -> DictConfig:
    """Return a composed configuration with what it inherits from the run that its `checkpoint` is from.

    A group that the command line chose stays as it is composed; of the other groups, each key that it gave does.

    Args:
        composed: Any; where no run's checkpoint is evaluated or predicts it is returned as it is.
        given: Groups and keys of the command line.
    """
    if (run := _run_of(composed)) is None:
        return composed
    stored = read_settings(run)
    inheriting = copy.deepcopy(composed)
    for group in _inherited_groups(given, run):
        values = stored.get(group) or {}
        schema = _schema_of_group(group, run, values)
        settings = OmegaConf.merge(OmegaConf.structured(schema), values)
        if group == "tokenizer" and (own := _own_tokenizer(composed)) is not None:
            settings.path = own
        if group == "dataset" and "dataset.path" in given and settings.source is Source.hub:
            settings.source = Source.auto
        for key in _given_keys(group, given):
            OmegaConf.update(settings, key, OmegaConf.select(composed, f"{group}.{key}"), merge=False)
        inheriting[group] = settings
    return inheriting


def inheritance(composed: DictConfig, given: Set[str]) -> str | None:
    """Say in a line what `with_inherited` takes from a run; None: nothing."""
    if (run := _run_of(composed)) is None or not (groups := list(_inherited_groups(given, run))):
        return None
    but = [f"{group}.{key}" for group in groups for key in _given_keys(group, given)]
    return f"{', '.join(groups)} as in {format_run(run)}" + (f", but for {', '.join(but)}" if but else "")


def _run_of(composed: Any) -> Path | None:
    """Return the folder of the run whose checkpoint is used; None: nobody asks for one, or it is from no run.

    Raises:
        CheckpointError: There is no such run; said before what else would be missing without its data.
    """
    if not modes()[composed.mode].inherits or not isinstance(composed.checkpoint, str | None):
        return None
    if composed.checkpoint not in (None, "latest"):
        model_path(composed)
    return run_of_checkpoint(composed)


def _inherited_groups(given: Set[str], run: Path) -> Iterator[str]:
    """Yield the groups that a run says; the model where the run's data chose it, and no command line."""
    groups = ("dataset", "tokenizer", "context", *(("model",) if read_record(run).get("chosen") else ()))
    return (group for group in groups if group not in given)


def _schema_of_group(group: str, run: Path, values: Any) -> type:
    if group == "dataset":
        return data_schema(run, set(values))
    return families()[values["name"]].settings if group == "model" else _SCHEMAS[group]


def _given_keys(group: str, given: Set[str]) -> list[str]:
    return sorted(key.removeprefix(f"{group}.") for key in given if key.startswith(f"{group}."))


def data_schema(run: Path, keys: Set[str]) -> type:
    """Return the dataclass of a run's data: its record names it, that of an older run follows from the keys."""
    schemas = dataset_schemas()
    if (name := read_record(run).get("dataset_schema")) in schemas:
        return schemas[name]
    fields = {schema: {field.name for field in dataclasses.fields(schema)} for schema in schemas.values()}
    return min(fields, key=lambda schema: (len(fields[schema] ^ keys), len(schema.__mro__)))


def _own_tokenizer(composed: Any) -> str | None:
    """Return the folder of the checkpoint if a tokenizer was saved with it: the run's, wherever that came from."""
    model = model_path(composed)
    return model if any(Path(model, name).is_file() for name in _TOKENIZER_FILES) else None


_NOT_LAID_OVER = ("hydra", "resume", "output_dir")  # they say where the run is, or how Hydra behaves


def resumed(config: ExperimentConfig, composed: DictConfig, given: Set[str]) -> ExperimentConfig:
    """The settings of the run that `config.resume` names, with what the command line gave laid over them.

    Which of these may not change, `run_directory` says, when the data have decided what they decide.

    Args:
        config: As it was composed.
        composed: The composed settings with Hydra's own node.
        given: Groups and keys of the command line.

    Raises:
        CheckpointError: If there is no such run, it is finished, or its settings cannot be read.
    """
    assert config.resume is not None
    run = resolve_run(config.resume, config, needs=CHECKPOINTS)
    if (mode := read_record(run).get("mode", "train")) != "train":
        raise CheckpointError(f"resume={run}: it ran with mode={mode}; only a training can be continued")
    settings, now = _settings_of(run, "resume"), OmegaConf.structured(config)
    own = OmegaConf.to_object(settings)
    assert isinstance(own, ExperimentConfig)
    for key in _settings(composed, given):
        OmegaConf.update(settings, key, OmegaConf.select(now, key), merge=False)
        restore_references(settings, key)
    settings.resume, settings.output_dir = str(run), str(run.absolute().parents[1])
    note_environment(settings)
    found = OmegaConf.to_object(settings)
    assert isinstance(found, ExperimentConfig)
    if found.small != own.small:
        raise CheckpointError(f"resume={run}: it cannot change its size: small was {own.small}, is {found.small}")
    _refuse_finished(run, OmegaConf.structured(own), settings)
    return found


def resumption(config: ExperimentConfig, composed: DictConfig, given: Set[str]) -> str | None:
    """Say in a line where the settings of a continued run are from; None: no run is continued."""
    if config.resume is None:
        return None
    but = ", ".join(_settings(composed, given))
    return f"settings as in {config.resume}" + (f", but for {but}" if but else "")


def settings_of_run(run: Path, key: str) -> ExperimentConfig:
    """The settings that a run was made with, as they stand in its folder.

    Args:
        run: Its folder.
        key: The setting that names it, for messages.

    Raises:
        CheckpointError: They cannot be read.
    """
    found = OmegaConf.to_object(_settings_of(run, key))
    assert isinstance(found, ExperimentConfig)
    return found


def _settings_of(run: Path, key: str) -> Any:
    """A run's file over the schema, so that it may lack what is newer."""
    stored = read_settings(run)
    if (name := stored.model.name) not in families():
        raise CheckpointError(f"{key}={run}: model.name={name}: this family is not installed")
    settings = OmegaConf.structured(experiment_schema())
    settings.model = families()[name].settings
    settings.dataset = data_schema(run, set(stored.dataset))
    for group in {*map(str, stored)} - {*map(str, settings)}:
        if OmegaConf.is_dict(stored[group]):  # the settings of a mode that is not installed here
            del stored[group]
    if "name" in stored.logger:  # before several could be named at once
        sink = stored.logger.pop("name")
        stored.logger.report_to = [] if sink == "none" else [sink]
    try:
        return OmegaConf.merge(settings, stored)
    except OmegaConfBaseException as error:
        problem = str(error).splitlines()[0]
        raise CheckpointError(f"{key}={run}: its {CONFIG_FILE} is of another version: {problem}") from error


def _settings(composed: DictConfig, given: Set[str]) -> Iterator[str]:
    """Keys and groups of the configuration that the command line set, those of options for the whole run among them."""
    known = {field.name for field in dataclasses.fields(experiment_schema())}
    for key in sorted(given, key=lambda key: (key.count("."), key)):  # a group first, then single values of it
        root = key.partition(".")[0].partition("/")[0]
        if root in _NOT_LAID_OVER:
            continue
        if root in known:
            yield key
        else:
            yield from _set_by_option(composed, key)


def _set_by_option(composed: DictConfig, group: str) -> Iterator[str]:
    """What an option sets that belongs to no group of the configuration, such as `debug=default`."""
    hydra = composed.hydra if "hydra" in composed else HydraConfig.get()
    for source in hydra.runtime.config_sources:
        file = Path(source.path, group, f"{hydra.runtime.choices.get(group)}.yaml")
        if source.schema == "file" and file.is_file():
            option = from_yaml(file.read_text(encoding="utf-8")) or {}
            chosen = (name for entry in option.pop("defaults", []) if isinstance(entry, dict) for name in entry)
            yield from (name.removeprefix("override /") for name in chosen if not name.startswith("override /hydra"))
            option.pop("hydra", None)
            yield from _leaves(option)


def _leaves(node: Any, prefix: str = "") -> Iterator[str]:
    if not isinstance(node, dict):
        yield prefix[:-1]
        return
    for name, child in node.items():
        yield from _leaves(child, f"{prefix}{name}.")


def _refuse_finished(run: Path, own: Any, now: Any) -> None:
    """A run that is at its end has nothing to continue, unless the command line says how it goes on."""
    record = read_record(run)
    if record.get("status") != "finished" or record.get("stopped_because") is not None:
        return
    if all(OmegaConf.select(own, key) == OmegaConf.select(now, key) for key in CONTINUE):
        pretrained = shlex.quote(format_override("model.pretrained", run / MODEL))
        command = str(record.get("command") or "")
        started = "" if "resume=" in command else f"{command} "
        raise CheckpointError(
            f"resume={run}: this run is finished, there is nothing to continue; to train another from its weights: "
            f"{started}{pretrained}"
        )
