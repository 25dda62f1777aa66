"""What a command does, `mode=NAME`: the modes of the core, those of installed packages, and their settings.

Imports neither torch nor transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, is_dataclass, make_dataclass
from functools import cache
from typing import Any, Literal

from adadepth.settings.declaration import setting
from adadepth.settings.experiment import MODES_GROUP, ExperimentConfig
from adadepth.settings.plugins import installed


@dataclass(frozen=True)
class ModeSpec:
    """What is known of a mode. Code is named as `"module:function"` and imported when it is needed.

    Attributes:
        run: From the configuration to the metric that `optimise` names, or to None.
        help: One line of what it does, for `--help`.
        activity: The same before the name of an experiment, for messages: "evaluating".
        settings: Its own settings, a dataclass: the group of the configuration that is called like the mode.
        always: Settings of that group that may be set with another mode: facts, which it alone reads.
        checks: From the configuration to a line for every mistake, before anything is read.
        checkpoints: How many checkpoints it reads.
        inherits: Whether data, tokenizer and context are those of the checkpoint's run, where the command names none.
        needs_model: Whether libraries, trackers and the family's members are checked first.
        describes_training: Whether it reads the settings that only a training reads.
        batch_advice: From the configuration, bytes of memory and a precision to which batch fits, in words, for the
            error of a batch that does not.
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
        "adadepth.tasks.probe:probe", "train classifiers on the states of every depth", "probing", checkpoints="one"
    ),
    "report": ModeSpec(
        "adadepth.tasks.report:rewrite",
        "write a run's report again, or compare runs",
        "writing the report of",
        needs_model=False,
    ),
}


@cache
def modes() -> Mapping[str, ModeSpec]:
    """Every mode by name, those of installed packages last.

    Raises:
        ConfigError: If a package's is broken, or has a name that is taken.
    """
    return MODES | installed(MODES_GROUP, "mode", (*MODES, *ExperimentConfig.__dataclass_fields__), _find_problem)


def experiment_schema() -> type[ExperimentConfig]:
    """Return the root of every configuration, with a group for every mode that has settings of its own."""
    return _extended(tuple((name, mode.settings) for name, mode in modes().items() if mode.settings is not None))


@cache
def _extended(groups: tuple[tuple[str, type], ...]) -> type[ExperimentConfig]:
    fields = [(name, group, setting(group, f"of mode={name}")) for name, group in groups]
    schema = make_dataclass("Experiment", fields, bases=(ExperimentConfig,))
    schema.__doc__, schema.__module__ = ExperimentConfig.__doc__, __name__
    return schema


def __getattr__(name: str) -> Any:
    """Let pickles of configurations find the class of the root, which is made when it is first needed."""
    if name == "Experiment":
        return experiment_schema()
    raise AttributeError(name)


def mode_settings(config: ExperimentConfig, name: str) -> Any:
    """Return the settings of a mode that has some."""
    return getattr(config, name)


def misplaced_settings(config: ExperimentConfig) -> Iterator[str]:
    """Yield the groups of other modes than that of the configuration that are set, but for what may always be set."""
    for name, mode in modes().items():
        if mode.settings is None or name == config.mode:
            continue
        given = mode_settings(config, name)
        if given != mode.settings(**{key: getattr(given, key) for key in mode.always}):
            yield name


def _find_problem(descriptor: object, name: str) -> str | None:
    """Say what keeps an object from being the descriptor of the mode of that name."""
    if not isinstance(descriptor, ModeSpec):
        return f"must be an adadepth.settings.modes.ModeSpec, not {type(descriptor).__name__}"
    if not name.isidentifier() or name.startswith("_"):
        return "its name must be one of Python"
    if descriptor.settings is not None and not is_dataclass(descriptor.settings):
        return f"its settings must be a dataclass, not {descriptor.settings!r}"
    advice = descriptor.batch_advice
    places = (descriptor.run, *descriptor.checks, *([] if advice is None else [advice]))
    if wrong := [place for place in places if place.count(":") != 1]:
        return f"{wrong[0]!r} must be 'module:function'"
    return None
