"""Modes of a command, `mode=NAME`: those of the core and of installed packages, with their settings.

Imports neither torch nor transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, is_dataclass, make_dataclass
from functools import cache
from typing import Any, Literal

from adadepth.config.declaration import setting
from adadepth.config.experiment import MODES_GROUP, ExperimentConfig
from adadepth.config.plugins import load_plugins


@dataclass(frozen=True)
class ModeSpec:
    """Descriptor of a mode. Code is named as `"module:function"` and imported when it is needed.

    Attributes:
        run: Function of the configuration that returns the metric that `optimise` names, or None.
        help: One line for `--help`.
        activity: Participle for messages, before the name of an experiment: "evaluating".
        settings: Dataclass of its settings, the group of the configuration with the name of the mode.
        always: Settings of that group that may be set with other modes, too.
        checks: Functions of the configuration that yield a line for every mistake, before anything is read.
        checkpoints: Number of checkpoints that it reads.
        inherits: Whether data, tokenizer and context are those of the checkpoint's run unless the command names them.
        needs_model: Whether libraries, trackers and the family's members are checked first.
        describes_training: Whether it reads the settings that only a training reads.
        batch_advice: Function of the configuration, bytes of memory and a precision that describes the batch that
            fits, for the error of a batch that does not.
    """

    run: str
    help: str
    activity: str
    settings: type | None = None
    always: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    checkpoints: Literal["none", "one", "several"] = "none"
    inherits: bool = False
    needs_model: bool = True
    describes_training: bool = False
    batch_advice: str | None = None


_TASK = "adadepth.tasks:train_or_evaluate"
MODES: dict[str, ModeSpec] = {
    "train": ModeSpec(_TASK, "train, evaluate, write a report", "training", describes_training=True),
    "evaluate": ModeSpec(_TASK, "evaluate a checkpoint", "evaluating", checkpoints="one", inherits=True),
    "predict": ModeSpec(
        "adadepth.tasks.predict:predict",
        "predict texts or a table",
        "predicting with",
        checkpoints="one",
        inherits=True,
    ),
    "probe": ModeSpec(
        "adadepth.tasks.probe:probe", "train linear probes on the states of every depth", "probing", checkpoints="one"
    ),
    "report": ModeSpec(
        "adadepth.tasks.report:rewrite",
        "rewrite the report of a run, or compare runs",
        "writing the report of",
        needs_model=False,
    ),
}


@cache
def modes() -> Mapping[str, ModeSpec]:
    """Return every mode by name, those of installed packages last.

    Raises:
        ConfigError: A mode of a package is broken, or its name is taken.
    """
    return MODES | load_plugins(MODES_GROUP, "mode", (*MODES, *ExperimentConfig.__dataclass_fields__), _find_problem)


def experiment_schema() -> type[ExperimentConfig]:
    """Return the root of every configuration, with a group for every mode that has settings."""
    return _make_schema(tuple((name, mode.settings) for name, mode in modes().items() if mode.settings is not None))


@cache
def _make_schema(groups: tuple[tuple[str, type], ...]) -> type[ExperimentConfig]:
    fields = [(name, group, setting(group, f"of mode={name}")) for name, group in groups]
    schema = make_dataclass("Experiment", fields, bases=(ExperimentConfig,))
    schema.__doc__, schema.__module__ = ExperimentConfig.__doc__, __name__
    return schema


def __getattr__(name: str) -> Any:
    """Return the root class for pickles of configurations; it is built when it is first needed."""
    if name == "Experiment":
        return experiment_schema()
    raise AttributeError(name)


def get_mode_settings(config: ExperimentConfig, name: str) -> Any:
    """Return the settings of a mode."""
    return getattr(config, name)


def find_misplaced_settings(config: ExperimentConfig) -> Iterator[str]:
    """Yield the names of other modes whose settings differ from their defaults, except for those in `always`."""
    for name, mode in modes().items():
        if mode.settings is None or name == config.mode:
            continue
        settings = get_mode_settings(config, name)
        if settings != mode.settings(**{key: getattr(settings, key) for key in mode.always}):
            yield name


def _find_problem(descriptor: object, name: str) -> str | None:
    """Return why an object cannot be the descriptor of the mode of that name; None: it can."""
    if not isinstance(descriptor, ModeSpec):
        return f"must be an adadepth.config.modes.ModeSpec, not {type(descriptor).__name__}"
    if not name.isidentifier() or name.startswith("_"):
        return "its name must be a Python identifier"
    if descriptor.settings is not None and not is_dataclass(descriptor.settings):
        return f"its settings must be a dataclass, not {descriptor.settings!r}"
    paths = (descriptor.run, *descriptor.checks, *filter(None, [descriptor.batch_advice]))
    if wrong := [path for path in paths if path.count(":") != 1]:
        return f"{wrong[0]!r} must be 'module:function'"
    return None
