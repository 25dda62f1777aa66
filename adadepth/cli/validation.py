"""Validation of a composed configuration: types, ranges and checks across settings, with one line per mistake.

It also replaces sizes by the small ones of `debug=default`.
"""

import copy
import dataclasses
import re
from collections.abc import Iterable, Iterator, Set
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from adadepth.cli.checks.data import check_data
from adadepth.cli.checks.measures import check_optimised, check_prediction
from adadepth.cli.checks.model import check_budget, check_halting_stage, check_largest_sizes, check_settings_of_family
from adadepth.cli.checks.modes import format_mode
from adadepth.cli.checks.training import check_trainer, selects_by_metric
from adadepth.cli.schemas import to_config
from adadepth.config import ExperimentConfig, Mode, Task
from adadepth.config.declaration import find_range_errors, find_type_errors, format_value, get_field_specs
from adadepth.config.env_redaction import record_env_references
from adadepth.config.kinds import TASKS, get_kind, get_problem
from adadepth.config.modes import find_misplaced_settings, modes
from adadepth.errors import ConfigError, missing_package, nearest
from adadepth.metrics.task_metrics import get_metric_key
from adadepth.models.registry import family, find_unfixable_depth, join_alternatives, list_families_with_head
from adadepth.runs.commands import list_overridden_keys
from adadepth.runs.inheritance import load_resumed_config, merge_run_settings
from adadepth.training.trackers import trackers

METRIC_PREFIXES = ("train/", "eval/", "halting/", "cost/", "search/", "budget/")

_MAX_NAME = 200  # bytes; file systems have 255, of which temporary names need some


def build_config(composed: DictConfig) -> ExperimentConfig:
    """Convert a configuration composed by Hydra to dataclasses, and validate it.

    Raises:
        ConfigError: If there are mistakes; the message has one line per mistake.
    """
    overridden, whole = frozenset(list_overridden_keys(composed)), composed
    if "hydra" in composed:
        composed = copy.deepcopy(composed)
        with open_dict(composed):
            del composed["hydra"]
    _refuse(f"{key}: unknown key; remove the +, which bypasses the check" for key in _find_unknown_keys(composed))
    composed = merge_run_settings(composed, overridden)
    record_env_references(composed)
    config = to_config(composed)
    _refuse(find_type_errors(config))  # before a group is read: an interpolation may have put a number in its place
    if not isinstance(config.model, family(config.model.name).settings):
        hint = "choose with an option of the group model; --help model lists them"
        raise ConfigError(f"model.name={config.model.name}: only names a family; {hint}")
    if config.small:
        config = apply_debug_sizes(config, overridden)
    if config.resume is not None and config.mode is Mode.train:
        config = load_resumed_config(config, whole, overridden)
        _refuse(find_type_errors(config))
    validate(config)
    if "optimise" in overridden and config.mode is Mode.train and config.optimise.startswith("eval/"):
        metric = config.optimise.removeprefix("eval/")
        _refuse(_check_movable(config, "optimise", config.optimise, metric, "eval/"))
    return config


def _refuse(problems: Iterable[str]) -> None:
    if lines := list(problems):
        raise ConfigError("\n".join(lines))


def validate(config: ExperimentConfig) -> None:
    """Raise one ``ConfigError`` with a line for every mistake in an experiment's configuration."""
    checks = (
        find_range_errors, check_largest_sizes, _check_task, check_prediction, check_halting_stage,
        check_settings_of_family, check_budget,
        *((check_data,) if config.mode in (Mode.train, Mode.evaluate) else ()), check_trainer, _check_mode,
        _check_reports, _check_exit_rules, _check_baseline, _check_seeds, _check_names, _check_trackers,
    )  # fmt: skip
    _refuse(problem for check in checks for problem in check(config))


def _find_unknown_keys(node: DictConfig, prefix: str = "") -> Iterator[str]:
    """Yield keys added with `+key=value` that the schema does not have."""
    schema = OmegaConf.get_type(node)
    fields = {field.name for field in dataclasses.fields(schema)} if dataclasses.is_dataclass(schema) else None
    for key in map(str, node):
        if fields is not None and key not in fields:
            yield f"{prefix}{key}"
        elif not OmegaConf.is_missing(node, key) and OmegaConf.is_dict(node[key]):
            yield from _find_unknown_keys(node[key], f"{prefix}{key}.")


_TEXT_CONFIGS = {Task.pretrain: "act_tiny", Task.language_model: "par_tiny"}  # for running text


def _check_task(config: ExperimentConfig) -> Iterator[str]:
    """Check that the training task supports the model family and the data set."""
    dataset, model, regime = config.dataset, family(config.model.name), TASKS[config.task]
    kind = get_kind(dataset)
    if config.task not in kind.tasks:
        configs = [_TEXT_CONFIGS[task] for task in kind.tasks if task in _TEXT_CONFIGS]
        is_text = configs and config.task is Task.finetune
        hint = f"; train on running text with --config-name {configs[0]}" if is_text else ""
        yield f"dataset={dataset.name}: task={config.task} reads {regime.describe_data(model.text)}{hint}"
    if regime.head is not None:
        if regime.head not in model.heads:
            able = join_alternatives(list_families_with_head(regime.head))
            yield f"model={model.name}: task={config.task} supports {able}"
        elif kind.reading is not None and config.task in kind.tasks and kind.reading != model.text:
            readers = [name for name in list_families_with_head(regime.head) if family(name).text == kind.reading]
            how = f"is read as {kind.reading}, by {join_alternatives(readers)}"
            yield f"dataset={dataset.name}: {how}; {model.name} reads {model.text}"
        return
    vectors = kind.vectors(dataset)
    if model.reads_vectors != vectors and config.task in kind.tasks:
        needed = "a recurrent cell, model=parity_rnn" if vectors else "a model of tokens"
        yield f"model={model.name}: dataset={dataset.name} needs {needed}"


def _check_mode(config: ExperimentConfig) -> Iterator[str]:
    """Check that the settings of the selected mode are set, and those of other modes are not."""
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
            allowed = f"only used with mode={join_alternatives(able)}"
            yield f"{key}={format_value(value)}: {allowed}, but mode={config.mode}{hint}"
    if config.mode in needs["checkpoint"] and config.checkpoint is None:
        choices = "a run directory, one of its checkpoints, `latest`, a hub id, or demo:hops, a bundled model"
        yield f"checkpoint: required by mode={config.mode} ({choices})"
    yield from _check_several_checkpoints(config)
    if config.mode is Mode.predict:
        yield from _check_predict_inputs(config)
    for group in find_misplaced_settings(config):
        yield f"{group}: only used with {format_mode(group, config)}, but mode={config.mode}"
    for check in modes()[config.mode].checks:
        yield from check(config)


def _check_reports(config: ExperimentConfig) -> Iterator[str]:
    if config.mode is Mode.report and config.run is None and not config.runs:
        yield "run: required by mode=report (a run directory, or `latest`), unless runs names runs to compare"
    if config.run is not None and config.runs:
        yield f"runs={config.runs}: only used without run={config.run}"
    if config.runs and config.mode is not Mode.report:
        yield f"runs={config.runs}: only used with mode=report, but mode={config.mode}"


def _check_exit_rules(config: ExperimentConfig) -> Iterator[str]:
    """Check `exit_rules`, `adopt_rule`, `score_halves` and `predictions`, which need an evaluation of examples."""
    kind = get_kind(config.dataset)
    # Data with an evaluation of their own check the setting themselves.
    has_examples = (
        config.task in (Task.finetune, Task.pretrain) or kind.reading == "blocks" or kind.evaluate is not None
    )
    if config.exit_rules and not has_examples:
        data = "labelled data, masked words or blocks of text"
        yield f"exit_rules={config.exit_rules}: only used with {data}, not with task={config.task}"
    elif config.exit_rules and config.mode is not Mode.evaluate:
        how = f"only used with {format_mode(Mode.evaluate, config)}"
        yield f"exit_rules={config.exit_rules}: {how}, but mode={config.mode}"
    if config.adopt_rule and not config.exit_rules:
        yield "adopt_rule=true: only used with exit_rules, which compares the rules to adopt"
    if config.adopt_rule and not hasattr(config.model, "exit_rule"):
        yield f"adopt_rule=true: model={config.model.name} has no exit rule in its configuration"
    if config.score_halves and config.mode is not Mode.evaluate:
        yield f"score_halves=true: only used with {format_mode(Mode.evaluate, config)}, but mode={config.mode}"
    elif config.score_halves and (not has_examples or kind.evaluate is not None):
        yield f"score_halves=true: not used with task={config.task} dataset={config.dataset.name}"
    elif config.score_halves and not config.trainer.halting_statistics:
        yield "score_halves=true: needs trainer.halting_statistics=true"
    if config.predictions and config.task is not Task.finetune:
        yield (
            f"predictions=true: only used with labelled data, e.g. --config-name act_cola, not with task={config.task}"
        )
    elif config.predictions and not config.trainer.halting_statistics:
        yield "predictions=true: needs trainer.halting_statistics=true"


def _check_baseline(config: ExperimentConfig) -> Iterator[str]:
    """Check that a matched baseline of fixed depth can be trained; one that is resumed has its settings already."""
    if config.rival_of is None or config.resume is not None:
        return
    if (reason := find_unfixable_depth(config)) is not None:
        yield f"rival_of={config.rival_of}: {reason}"


def _check_seeds(config: ExperimentConfig) -> Iterator[str]:
    if config.seed + config.seeds > 2**32:
        yield f"seeds={config.seeds}: there are fewer seeds from seed={config.seed} on"
    if config.seeds > 1 and config.mode is not Mode.train:
        yield f"seeds={config.seeds}: only used with mode=train"


def _check_several_checkpoints(config: ExperimentConfig) -> Iterator[str]:
    able = [name for name, mode in modes().items() if mode.checkpoints == "several"]
    if isinstance(config.checkpoint, list) and (config.mode not in able or not config.checkpoint):
        hint = f"; a list is only used with mode={join_alternatives(able)}" if able else ""
        yield f"checkpoint={format_value(config.checkpoint)}: must be one{hint}"


def _check_predict_inputs(config: ExperimentConfig) -> Iterator[str]:
    text = config.text
    texts = text if isinstance(text, list) else [text]
    if config.new_tokens is not None and config.text is None:
        yield f"new_tokens={config.new_tokens}: only used with text, which is continued"
    if config.output is not None and config.input is None:
        yield f"output={config.output}: only used with input, a table to predict"
    if text is not None and config.input is not None:
        yield f"input={config.input}: cannot be combined with text={text!r:.60}; give one of them"
    elif config.input is not None:
        return
    elif text is None:
        choices = "a text, a list of texts or of pairs, or @FILE with one per line"
        yield f"text: required by mode=predict ({choices}), unless input names a table"
    elif not texts or not all(isinstance(item, str) or _is_pair(item) for item in texts):
        yield f"text={format_value(text)}: must be a text, a list of texts or of pairs, or @FILE"


def _is_pair(item: object) -> bool:
    return isinstance(item, list) and len(item) == 2 and all(isinstance(part, str) for part in item)


def _check_names(config: ExperimentConfig) -> Iterator[str]:
    """Check that the names of run, folders and metrics have valid characters."""
    if config.name in ("", ".", "..") or re.search(r"[/\\]", config.name) or len(config.name.encode()) > _MAX_NAME:
        yield f"name={format_value(config.name)}: must be a plain folder name"
    for key in ("checkpoint", "run", "resume", "rival_of", "output_dir"):
        value = getattr(config, key)
        for path in value if isinstance(value, list) else [value]:
            if path == "":
                yield f"{key}: is empty; it must name a folder"
            elif str(path).startswith("~"):
                yield f"{key}={path}: ~ is not expanded here; write $HOME"
    if "" in config.runs:
        yield f"runs={config.runs}: every entry must name a folder"
    if not config.optimise.startswith(METRIC_PREFIXES):
        yield f"optimise={config.optimise}: must start with one of {', '.join(METRIC_PREFIXES)}"
    data_kind = get_kind(config.dataset)
    if data_kind.evaluate is not None or config.task not in data_kind.tasks:
        return  # the data are only measured, without a metric of training, or are refused for this task
    prefix, _, metric = config.optimise.partition("/")
    metrics = list_evaluation_metrics(config)
    yield from check_optimised(config)
    if prefix == "eval":
        yield from _check_metric("optimise", config.optimise, metric, metrics)
    if best := config.trainer.metric_for_best_model:
        yield from _check_metric("trainer.metric_for_best_model", best, best.removeprefix("eval_"), metrics)
        if selects_by_metric(config):
            yield from _check_movable(
                config, "trainer.metric_for_best_model", best, best.removeprefix("eval_"), "eval_"
            )


def _check_trackers(config: ExperimentConfig) -> Iterator[str]:
    logger, specs = config.logger, trackers()
    for name in logger.report_to:
        if name not in specs:
            yield f"logger.report_to={name}: must be one of {', '.join(specs)}, none{nearest(name, specs)}"
        elif not specs[name].is_installed:
            yield f"logger={name}: {missing_package(specs[name].library, specs[name].needs)}"
    if logger.artifacts and not any(specs[name].keeps_files for name in logger.report_to if name in specs):
        able = join_alternatives(name for name, spec in specs.items() if spec.keeps_files)
        yield f"logger.artifacts={list(map(str, logger.artifacts))}: only used with logger={able}"


def list_evaluation_metrics(config: ExperimentConfig) -> tuple[str, ...]:
    """Return the metrics on the first evaluation set, among them those that can select the best model."""
    names = _list_joint_metrics(config)
    if not config.halting.alone:
        return names
    losses = {"task_loss", *family(config.model.name).reported_losses(config.model)}
    return ("halting_loss", *(name for name in names if name not in losses))


def _list_joint_metrics(config: ExperimentConfig) -> tuple[str, ...]:
    """Return the names of the metrics of a model that is trained together with its halting head."""
    dataset, metrics = config.dataset, get_kind(config.dataset).metrics
    losses = family(config.model.name).reported_losses(config.model)
    if metrics is not None:
        return (*metrics, *losses)
    default = ["token_accuracy" if get_problem(dataset) == "tagging" else "accuracy"]
    return ("loss", "task_loss", *losses, "score", *map(get_metric_key, getattr(dataset, "metrics", default)))


def _check_movable(config: ExperimentConfig, key: str, value: str, metric: str, prefix: str) -> Iterator[str]:
    """Check that training can change a metric that selects, because otherwise the first evaluation would win."""
    movable = family(config.model.name).list_movable_metrics(config.model)
    metrics = list_evaluation_metrics(config)
    if movable is None or metric in movable or metric not in metrics:
        return
    able = ", ".join(f"{prefix}{name}" for name in movable if name in metrics)
    yield f"{key}={value}: never changes in this training, which freezes all that it depends on; use one of {able}"


def _check_metric(key: str, value: str, metric: str, metrics: tuple[str, ...]) -> Iterator[str]:
    if metric not in metrics:
        yield f"{key}={value}: unknown evaluation metric{nearest(metric, metrics)}; known: {', '.join(metrics)}"


# ---- sizes of debug=default


def apply_debug_sizes(config: ExperimentConfig, overridden: Set[str]) -> ExperimentConfig:
    """Return a copy of the experiment with sizes so small that it runs in seconds, to test the code.

    A pretrained model keeps its sizes. The settings of a search are kept if there is no search.

    Args:
        config: Experiment to shrink.
        overridden: Keys that keep their values.
    """
    groups = ["dataset", "trainer"]
    if config.model.pretrained is None and config.mode is Mode.train:
        groups.append("model")
    if config.tokenizer.path is None:
        groups.append("tokenizer")
    if config.task is Task.architecture_search:
        groups.append("search")
    root = {
        name: spec.debug
        for name, spec in get_field_specs(ExperimentConfig).items()
        if spec.shrinks and name not in overridden
    }
    shrunk_groups = {name: _shrink_group(name, getattr(config, name), overridden) for name in groups}
    return dataclasses.replace(config, **root, **shrunk_groups)


def _shrink_group(group: str, settings: Any, overridden: Set[str]) -> Any:
    values = {}
    for name, spec in get_field_specs(type(settings)).items():
        value = getattr(settings, name)
        is_open = spec.shape and not value  # a shape that something else decides, or that is absent
        if spec.shrinks and f"{group}.{name}" not in overridden and not is_open:
            values[name] = min(value, spec.debug) if spec.shape and isinstance(value, int) else spec.debug
    return dataclasses.replace(settings, **values)
