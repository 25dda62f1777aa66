"""Range and cross-field checks of a configuration: all mistakes are collected, each a line a person can act on."""

import copy
import dataclasses
import re
from collections.abc import Iterable, Iterator

from omegaconf import DictConfig, OmegaConf, open_dict

from adadepth.cli.checks.data import check_data
from adadepth.cli.checks.measures import check_optimised, check_prediction, check_probing
from adadepth.cli.checks.model import check_budget, check_halting_stage, check_largest_sizes, check_settings_of_family
from adadepth.cli.checks.modes import format_mode
from adadepth.cli.checks.training import check_trainer
from adadepth.cli.composition import to_config
from adadepth.cli.debugging import given_keys, shrunk
from adadepth.errors import ConfigError, missing_package, nearest
from adadepth.families.registry import families, family, one_of, with_head
from adadepth.measure.quality import metric_key
from adadepth.runs.inheritance import resumed, with_inherited
from adadepth.settings import ExperimentConfig, Mode, Task
from adadepth.settings.declaration import misfits, out_of_range, shown
from adadepth.settings.interpolations import note_environment
from adadepth.settings.kinds import REGIMES, kind_of, problem_of
from adadepth.settings.modes import misplaced_settings, modes
from adadepth.settings.plugins import load
from adadepth.training.trackers import trackers

METRIC_PREFIXES = ("train/", "eval/", "halting/", "cost/", "search/", "budget/")

_LONGEST_NAME = 200  # bytes; file systems have 255, of which temporary names need some


def checked(composed: DictConfig) -> ExperimentConfig:
    """Turn a composed configuration into typed objects and validate it; Hydra's own node is left out."""
    given, whole = given_keys(composed), composed
    if "hydra" in composed:
        composed = copy.deepcopy(composed)
        with open_dict(composed):
            del composed["hydra"]
    _refuse(f"{key}: unknown key; leave out the + that forces it in" for key in _unknown_keys(composed))
    composed = with_inherited(composed, given)
    note_environment(composed)
    config = to_config(composed)
    _refuse(misfits(config))  # before anything is read of a group: an interpolation may have put a number in its place
    if not isinstance(config.model, family(config.model.name).settings):
        chosen = "an option of the group model does, and --help model lists them"
        raise ConfigError(f"model.name={config.model.name}: names a family, and does not choose it; {chosen}")
    if config.small:
        config = shrunk(config, given)
    if config.resume is not None and config.mode is Mode.train and config.seeds == 1:  # else `_mode` refuses it
        config = resumed(config, whole, given)
        _refuse(misfits(config))
    validate(config)
    return config


def _refuse(problems: Iterable[str]) -> None:
    if lines := list(problems):
        raise ConfigError("\n".join(lines))


def validate(config: ExperimentConfig) -> None:
    """Raise one ``ConfigError`` with a line for every mistake."""
    checks = (
        out_of_range, check_largest_sizes, _task, check_prediction, check_halting_stage, check_settings_of_family,
        check_budget,
        *((check_data,) if config.mode in (Mode.train, Mode.evaluate, Mode.probe) else ()), check_probing,
        check_trainer, _mode, _names, _extras,
    )  # fmt: skip
    _refuse(problem for check in checks for problem in check(config))


def _unknown_keys(node: DictConfig, prefix: str = "") -> Iterator[str]:
    """Yield the keys that ``+key=value`` forced past the schema."""
    schema = OmegaConf.get_type(node)
    known = {field.name for field in dataclasses.fields(schema)} if dataclasses.is_dataclass(schema) else None
    for key in map(str, node):
        if known is not None and key not in known:
            yield f"{prefix}{key}"
        elif not OmegaConf.is_missing(node, key) and OmegaConf.is_dict(node[key]):
            yield from _unknown_keys(node[key], f"{prefix}{key}.")


_ROOTS = {Task.pretrain: "act_tiny", Task.language_model: "par_tiny"}  # that train on running text


def _task(config: ExperimentConfig) -> Iterator[str]:
    """Which models and data a task takes, and what only some tasks and modes read."""
    dataset, about, regime = config.dataset, family(config.model.name), REGIMES[config.task]
    kind = kind_of(dataset)
    if config.task not in kind.tasks:
        roots = [_ROOTS[task] for task in kind.tasks if task in _ROOTS]
        instead = (
            f"; train on running text with --config-name {roots[0]}" if roots and config.task is Task.finetune else ""
        )
        yield f"dataset={dataset.name}: task={config.task} reads {regime.describe_data(about.text)}{instead}"
    if regime.head is not None:
        if regime.head not in about.heads:
            yield f"model={about.name}: task={config.task} trains {one_of(with_head(regime.head))}"
        elif kind.reading is not None and config.task in kind.tasks and kind.reading != about.text:
            readers = [name for name in with_head(regime.head) if family(name).text == kind.reading]
            how = f"is read as {kind.reading}, by {one_of(readers)}"
            yield f"dataset={dataset.name}: {how}; {about.name} reads {about.text}"
        return
    vectors = kind.vectors(dataset)
    if about.reads_vectors != vectors and config.task in kind.tasks:
        needed = "a recurrent cell, model=parity_rnn" if vectors else "a model of tokens"
        yield f"model={about.name}: dataset={dataset.name} needs {needed}"


def _mode(config: ExperimentConfig) -> Iterator[str]:
    needs = {
        "resume": (Mode.train,),
        "rival_of": (Mode.train,),
        "checkpoint": [name for name, mode in modes().items() if mode.checkpoints != "none"],
        "text": (Mode.predict,),
        "new_tokens": (Mode.predict,),
        "input": (Mode.predict,),
        "output": (Mode.predict,),
        "run": (Mode.report,),
    }
    for key, able in needs.items():
        value = getattr(config, key)
        if value is not None and config.mode not in able:
            hint = "; to start from its weights set model.pretrained" if key == "checkpoint" else ""
            yield f"{key}={shown(value)}: read only with mode={one_of(able)}, but mode={config.mode}{hint}"
    if config.mode in needs["checkpoint"] and config.checkpoint is None:
        what = "a run directory, one of its checkpoints, `latest`, a hub id, or demo:hops, a model of the package"
        yield f"checkpoint: mode={config.mode} needs it ({what})"
    yield from _several_checkpoints(config)
    if config.mode is Mode.predict:
        yield from _asked(config)
    for group in misplaced_settings(config):
        yield f"{group}: read only with {format_mode(group, config)}, but mode={config.mode}"
    for place in modes()[config.mode].checks:
        yield from load(place)(config)
    if config.mode is Mode.report and config.run is None and not config.runs:
        yield "run: mode=report needs it (a run directory, or `latest`), or runs, several to compare"
    if config.run is not None and config.runs:
        yield f"runs={config.runs}: read only without run={config.run}"
    if config.runs and config.mode is not Mode.report:
        yield f"runs={config.runs}: read only with mode=report, but mode={config.mode}"
    studies = config.task is Task.finetune or kind_of(config.dataset).reading == "blocks"
    if config.exit_rules and not studies:
        data = "labelled data or blocks of text"
        yield f"exit_rules={config.exit_rules}: read only of {data}, not with task={config.task}"
    elif config.exit_rules and config.mode is not Mode.evaluate:
        how = f"read only with {format_mode(Mode.evaluate, config)}"
        yield f"exit_rules={config.exit_rules}: {how}, but mode={config.mode}"
    if config.adopt_rule and not config.exit_rules:
        yield "adopt_rule=true: read only with exit_rules, of which one is adopted"
    if config.adopt_rule and not hasattr(config.model, "exit_rule"):
        yield f"adopt_rule=true: model={config.model.name} keeps no exit rule in its configuration"
    if config.predictions and config.task is not Task.finetune:
        yield f"predictions=true: read only of labelled data, e.g. --config-name act_cola, not with task={config.task}"
    elif config.predictions and not config.trainer.halting_statistics:
        yield "predictions=true: needs trainer.halting_statistics=true"
    if config.rival_of is not None and family(config.model.name).fixed_depth is None:
        able = one_of(name for name, each in families().items() if each.fixed_depth is not None)
        yield f"rival_of={config.rival_of}: model={config.model.name} has no fixed depth; read only with {able}"
    if config.rival_of is not None and config.seeds > 1:
        yield f"rival_of={config.rival_of}: not with seeds={config.seeds}; give it the seed of that run"
    if config.seed + config.seeds > 2**32:
        yield f"seeds={config.seeds}: from seed={config.seed} on there are not as many"
    if config.seeds > 1 and (config.mode is not Mode.train or config.resume is not None):
        yield f"seeds={config.seeds}: read only with mode=train, and not with resume"


def _several_checkpoints(config: ExperimentConfig) -> Iterator[str]:
    """Which modes take a list of checkpoints."""
    able = [name for name, mode in modes().items() if mode.checkpoints == "several"]
    if isinstance(config.checkpoint, list) and (config.mode not in able or not config.checkpoint):
        hint = f"; a list is read only with mode={one_of(able)}" if able else ""
        yield f"checkpoint={shown(config.checkpoint)}: must be one{hint}"


def _asked(config: ExperimentConfig) -> Iterator[str]:
    """What mode=predict is to predict."""
    given = config.text
    texts = given if isinstance(given, list) else [given]
    if config.new_tokens is not None and config.text is None:
        yield f"new_tokens={config.new_tokens}: read only with text, which they continue"
    if config.output is not None and config.input is None:
        yield f"output={config.output}: read only with input, a table to predict"
    if given is not None and config.input is not None:
        yield f"input={config.input}: not with text={given!r:.60}; give one of them"
    elif config.input is not None:
        return
    elif given is None:
        texts_of = "a text, a list of texts or of pairs of them, or @FILE with one a line"
        yield f"text: mode=predict needs it ({texts_of}), or input, a table"
    elif not texts or not all(isinstance(text, str) or _is_pair(text) for text in texts):
        yield f"text={shown(given)}: must be a text, a list of texts or of pairs of them, or @FILE"


def _is_pair(text: object) -> bool:
    return isinstance(text, list) and len(text) == 2 and all(isinstance(part, str) for part in text)


def _names(config: ExperimentConfig) -> Iterator[str]:
    if config.name in ("", ".", "..") or re.search(r"[/\\]", config.name) or len(config.name.encode()) > _LONGEST_NAME:
        yield f"name={shown(config.name)}: must be a plain folder name"
    for key in ("checkpoint", "run", "resume", "rival_of", "output_dir"):
        given = getattr(config, key)
        for place in given if isinstance(given, list) else [given]:
            if place == "":
                yield f"{key}: is empty; it names a folder"
            elif str(place).startswith("~"):
                yield f"{key}={place}: ~ is the home of nobody here; write it out, as $HOME"
    if "" in config.runs:
        yield f"runs={config.runs}: each names a folder"
    if not config.optimise.startswith(METRIC_PREFIXES):
        yield f"optimise={config.optimise}: must start with one of {', '.join(METRIC_PREFIXES)}"
    kind_of_data = kind_of(config.dataset)
    if kind_of_data.evaluate is not None or config.task not in kind_of_data.tasks:
        return  # only measured: the metric of training has no part in it; or of another task, which is refused
    kind, _, metric = config.optimise.partition("/")
    known = evaluation_metrics(config)
    yield from check_optimised(config)
    if kind == "eval":
        yield from _evaluation_metric("optimise", config.optimise, metric, known)
    if best := config.trainer.metric_for_best_model:
        yield from _evaluation_metric("trainer.metric_for_best_model", best, best.removeprefix("eval_"), known)


def _extras(config: ExperimentConfig) -> Iterator[str]:
    logger, known = config.logger, trackers()
    for name in logger.report_to:
        if name not in known:
            yield f"logger.report_to={name}: must be one of {', '.join(known)}, none{nearest(name, known)}"
        elif not known[name].is_installed:
            yield f"logger={name}: {missing_package(known[name].library, known[name].needs)}"
    if logger.artifacts and not any(known[name].keeps_files for name in logger.report_to if name in known):
        able = one_of(name for name, kind in known.items() if kind.keeps_files)
        yield f"logger.artifacts={list(map(str, logger.artifacts))}: read only with logger={able}"


def evaluation_metrics(config: ExperimentConfig) -> tuple[str, ...]:
    """Names of what an evaluation measures on its first set, the one that selects."""
    names = _metrics_of_joint_training(config)
    if not config.halting.alone:
        return names
    others = {"task_loss", *family(config.model.name).reported_losses(config.model)}
    return ("halting_loss", *(name for name in names if name not in others))


def _metrics_of_joint_training(config: ExperimentConfig) -> tuple[str, ...]:
    dataset, own = config.dataset, kind_of(config.dataset).metrics
    losses = family(config.model.name).reported_losses(config.model)
    if own is not None:
        return (*own, *losses)
    drawn = ["token_accuracy" if problem_of(dataset) == "tagging" else "accuracy"]
    metrics = getattr(dataset, "metrics", drawn)
    return ("loss", "task_loss", *losses, "score", *map(metric_key, metrics))


def _evaluation_metric(key: str, value: str, metric: str, known: tuple[str, ...]) -> Iterator[str]:
    if metric not in known:
        yield f"{key}={value}: an evaluation has no such metric{nearest(metric, known)}; known: {', '.join(known)}"
