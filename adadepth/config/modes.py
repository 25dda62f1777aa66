"""Registry of the command's modes, `mode=NAME`, built-in or from plug-ins, with their settings.

This module does not import torch or transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass, make_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from adadepth.config.declaration import setting
from adadepth.config.experiment import MODES_GROUP, ExperimentConfig
from adadepth.config.export import ExportConfig, check_export
from adadepth.config.plugins import Importer, find_wrong_path, load_plugins, replace_paths

if TYPE_CHECKING:  # what descriptors import later
    from adadepth.report.section import SectionEntry, SectionOf


@dataclass(frozen=True)
class ModeSpec:
    """Registry entry of a mode. Code is referred to by importers; see `adadepth.config.plugins`.

    Attributes:
        run: Importer of a function of the configuration that runs the mode and returns the metric that `optimise`
            names, or None. It is None for the built-in modes, which `adadepth.tasks.run` knows.
        help: Description in one line, for `--help`.
        activity: Participle that precedes the name of an experiment in messages, such as "evaluating".
        settings: Dataclass of the mode's settings, which form the configuration group with the name of the mode.
        always: Settings of this group that may also be set with other modes.
        checks: Functions of the configuration that yield one line per mistake, before any file is read.
        checkpoints: Number of checkpoints that the mode reads.
        inherits: Whether data, tokenizer, context and model settings are inherited from the checkpoint's run unless the
            command sets them.
        needs_model: Whether libraries, trackers and the members of the model family are checked first.
        describes_training: Whether the mode reads the settings that otherwise only training reads.
        batch_advice: Importer of a function of the configuration, the bytes of memory and the precision that describes
            a batch that fits. It is used in the error about a batch that does not fit.
        sections: Importers of report sections of the mode's runs; see `Family.sections`.
    """

    run: Importer[Callable[[ExperimentConfig], float | None]] | None
    help: str
    activity: str
    settings: type | None = None
    always: tuple[str, ...] = ()
    checks: tuple[Callable[[ExperimentConfig], Iterator[str]], ...] = ()
    checkpoints: Literal["none", "one", "several"] = "none"
    inherits: bool = False
    needs_model: bool = True
    describes_training: bool = False
    batch_advice: Importer[Callable[[ExperimentConfig, int, str], str]] | None = None
    sections: tuple[Importer[SectionOf | SectionEntry], ...] = ()


_IMPORTED = ("run", "batch_advice", "sections")  # see `replace_paths`

MODES: dict[str, ModeSpec] = {
    "train": ModeSpec(None, "train, evaluate, write a report", "training", describes_training=True),
    "evaluate": ModeSpec(None, "evaluate a checkpoint", "evaluating", checkpoints="one", inherits=True),
    "predict": ModeSpec(None, "predict texts or a table", "predicting with", checkpoints="one", inherits=True),
    "export": ModeSpec(
        None,
        "write a checkpoint for other programs, with a check of the engine that runs it",
        "exporting",
        settings=ExportConfig,
        checks=(check_export,),
        checkpoints="one",
        inherits=True,
    ),
    "report": ModeSpec(
        None, "rewrite the report of a run, or compare runs", "writing the report of", needs_model=False
    ),
}


@cache
def modes() -> Mapping[str, ModeSpec]:
    """Return the registry entry of every mode by name, built-in modes first, then those of plug-ins.

    Raises:
        ConfigError: If a mode of an installed package is broken, or its name is taken.
    """
    plugins = load_plugins(MODES_GROUP, "mode", (*MODES, *ExperimentConfig.__dataclass_fields__), _find_problem)
    return MODES | {name: replace_paths(mode, _IMPORTED, ["checks"]) for name, mode in plugins.items()}


def experiment_schema() -> type[ExperimentConfig]:
    """Return the dataclass of a complete configuration, including the settings of all modes."""
    return _make_schema(tuple((name, mode.settings) for name, mode in modes().items() if mode.settings is not None))


@cache
def _make_schema(groups: tuple[tuple[str, type], ...]) -> type[ExperimentConfig]:
    fields = [(name, group, setting(group, f"of mode={name}")) for name, group in groups]
    schema = make_dataclass("Experiment", fields, bases=(ExperimentConfig,))
    schema.__doc__, schema.__module__ = ExperimentConfig.__doc__, __name__
    return schema


def __getattr__(name: str) -> Any:
    """Return the dataclass of a complete configuration for the name `Experiment`, which pickle looks up."""
    if name == "Experiment":
        return experiment_schema()
    raise AttributeError(name)


def get_mode_settings(config: ExperimentConfig, name: str) -> Any:
    """Return the group of settings in a configuration that belongs to a mode."""
    return getattr(config, name)


def find_misplaced_settings(config: ExperimentConfig) -> Iterator[str]:
    """Yield the modes whose settings are given although another mode is selected."""
    for name, mode in modes().items():
        if mode.settings is None or name == config.mode:
            continue
        settings = get_mode_settings(config, name)
        if settings != mode.settings(**{key: getattr(settings, key) for key in mode.always}):
            yield name


def _find_problem(descriptor: object, name: str) -> str | None:
    """Return what is wrong with a plug-in's mode, or None if it is valid."""
    if not isinstance(descriptor, ModeSpec):
        return f"must be an adadepth.config.modes.ModeSpec, not {type(descriptor).__name__}"
    if not name.isidentifier() or name.startswith("_"):
        return "its name must be a Python identifier"
    if descriptor.settings is not None and not is_dataclass(descriptor.settings):
        return f"its settings must be a dataclass, not {descriptor.settings!r}"
    if descriptor.run is None:
        return "its run must be a function that imports the function of the mode"
    wrong = find_wrong_path(tuple(getattr(descriptor, name) for name in (*_IMPORTED, "checks")))
    return None if wrong is None else f"{wrong!r} must be 'module:function'"
