"""`mode=evaluate` on tasks of lm-evaluation-harness: scores, depth and compute of every task under every exit rule."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from transformers import GenerationMixin

from adadepth.config import ExperimentConfig
from adadepth.config.experiment import Precision
from adadepth.contrib.harness.compute import DepthMeter
from adadepth.contrib.harness.report import build_score_table, flatten_scores, format_scores, write_scores
from adadepth.data.registry import load_run_data
from adadepth.data.run_data import RunData
from adadepth.data.text.tokenizer import load_tokenizer
from adadepth.errors import CheckpointError, ConfigError, DataError, format_error, nearest
from adadepth.halting.exit_rules import ExitRule
from adadepth.metrics.expected_exits import EXPECTED
from adadepth.models.build import load_language_model
from adadepth.report.table import to_records
from adadepth.runs.directory import run_directory
from adadepth.runtime.console import RESULT, progress, say
from adadepth.runtime.distributed import decide, run_main_process_first
from adadepth.runtime.hub_access import log_remote_code, silence_transformers
from adadepth.tasks.checks import check_positions
from adadepth.tasks.exit_study import parse_exit_rules
from adadepth.tasks.identity import check_evaluated_data
from adadepth.tasks.session import Session
from adadepth.tasks.stored_models import (
    check_vocabulary,
    check_weights,
    choose_checkpoint_tokenizer,
    describe_evaluated_model,
    list_overridden_model_settings,
    resolve_model_path,
)
from adadepth.training.arguments import training_arguments

if TYPE_CHECKING:
    from adadepth.contrib.harness.settings import HarnessConfig

# Precisions of autocast. `auto` computes in the type of the weights, as the harness' own command does.
_MIXED = {Precision.bf16: "bfloat16", Precision.fp16: "float16"}
_STORED = {torch.float32: Precision.fp32, torch.bfloat16: Precision.bf16, torch.float16: Precision.fp16}


@dataclass(frozen=True, kw_only=True)
class HarnessData(RunData):
    """Data of an evaluation: tasks and groups by name, the harness' index of them, the tokenizer, and a summary."""

    manager: Any
    tasks: dict[str, Any]


def _refuse_batch(examples: Any) -> NoReturn:
    raise AssertionError("the harness builds its batches itself")


def load_harness_data(dataset: HarnessConfig, tokenizer: str) -> HarnessData:
    """Load the tasks and the tokenizer of an evaluation.

    Args:
        dataset: Settings.
        tokenizer: Folder or hub id of the model's tokenizer.

    Raises:
        ConfigError: If there is no task of a name.
        DataError: If a task cannot be loaded, if there is no tokenizer, or if it has no token for the end of a text.
    """
    manager, tasks = load_tasks(dataset)
    loaded = load_tokenizer(tokenizer, ("eos_token",))
    documents = sum(count_documents(task, dataset.limit) for task in tasks.values())
    summary = {
        "name": dataset.name,
        "tasks": list(tasks),
        "tokenizer": {"path": tokenizer, "vocab_size": len(loaded)},
        "evaluation": {"tasks": {"documents": documents}},
    }
    return HarnessData(
        train=(), evaluation={}, tokenizer=loaded, collate=_refuse_batch, summary=summary, manager=manager, tasks=tasks
    )


def evaluate(config: ExperimentConfig) -> dict[str, float]:
    """Score a causal language model on every task under every exit rule; write and print it, and return the metrics."""
    dataset: Any = config.dataset
    args = training_arguments(config)
    path = resolve_model_path(config)
    tokenizer = str(choose_checkpoint_tokenizer(config, path).path)
    data = run_main_process_first(args, lambda: load_run_data(dataset, tokenizer=tokenizer))
    model = _load_model(config, path)
    check_vocabulary(config, model, data.tokenizer)
    data = check_evaluated_data(config, data, model)
    check_positions(config, model)
    rules = choose_rules(config.exit_rules, model)
    directory = decide(args, lambda: run_directory(config))
    options = {
        "batch_size": args.per_device_eval_batch_size,
        "max_length": dataset.max_length,
        "mixed_precision_dtype": _MIXED.get(config.trainer.precision),
    }
    sets = dict.fromkeys(data.tasks, ())
    session = Session(_state_precision(config, model), args, data, model, sets, _refuse_evaluation)
    with session.open(directory):
        results = _score_tasks(session, rules, options)
        session.tracking.last_metrics |= flatten_scores(results)
        if session.trainer.is_world_process_zero():
            _publish_scores(results, session)
        description = describe_evaluated_model(model, path)
        session.run.update(final_metrics=session.tracking.last_metrics, evaluated=path, **description)
        return session.tracking.last_metrics


def _state_precision(config: ExperimentConfig, model: Any) -> ExperimentConfig:
    """Return the configuration with the type of the weights in place of `trainer.precision=auto`, for the record."""
    if config.trainer.precision is not Precision.auto:
        return config
    precision = _STORED.get(model.dtype, Precision.fp32)
    return replace(config, trainer=replace(config.trainer, precision=precision))


def _refuse_evaluation(name: str) -> NoReturn:
    raise AssertionError("the harness has its own evaluation")


def load_tasks(dataset: HarnessConfig) -> tuple[Any, dict[str, Any]]:
    """Load tasks and groups of the harness; a tag stands for its tasks.

    Returns:
        The harness' `TaskManager`, and the tasks and groups by name.

    Raises:
        ConfigError: If neither the harness nor the folder has a task of a name; the message has the most similar name.
        DataError: If the files of a task are wrong, or its documents cannot be read.
    """
    manager = _open_task_manager(dataset)
    tasks: dict[str, Any] = {}
    for name in dataset.tasks:
        if name not in manager.all_tasks:
            where = "" if dataset.include_path is None else f" or of dataset.include_path={dataset.include_path}"
            raise ConfigError(
                f"dataset.tasks={name}: not a task of the harness{where}{nearest(name, manager.all_tasks)}"
            )
        try:
            with silence_harness():
                loaded = manager.load([name])
        except Exception as error:  # a task may run code of its own
            raise DataError(f"dataset.tasks={name}: cannot be loaded ({format_error(error)})") from error
        tasks |= {name: loaded["groups"][name]} if name in loaded["groups"] else loaded["tasks"]
    return manager, tasks


def _open_task_manager(dataset: HarnessConfig) -> Any:
    """Return the harness' index of tasks.

    Reading the index of all its own tasks takes several seconds, so it is read only if the folder lacks one.
    """
    from lm_eval.tasks import TaskManager

    if dataset.include_path is None:
        return TaskManager()
    folder = str(Path(dataset.include_path).expanduser())
    log_remote_code(folder)
    alone = TaskManager(include_path=folder, include_defaults=False)
    return alone if {*dataset.tasks} <= {*alone.all_subtasks} else TaskManager(include_path=folder)


def count_documents(task: Any, limit: int | None) -> int:
    """Return the number of documents of a task or group of the harness that an evaluation reads."""
    tasks = task.get_all_tasks() if hasattr(task, "get_all_tasks") else [task]
    counts = [len(task.eval_docs) for task in tasks]
    return sum(counts if limit is None else (min(count, limit) for count in counts))


def choose_rules(texts: Sequence[str], model: Any) -> list[ExitRule | None]:
    """Return the exit rules to evaluate: full depth, that of the model's configuration, and the requested ones.

    The result is [None] for a model without exit rules.

    Args:
        texts: Setting `exit_rules`.
        model: Causal language model.

    Raises:
        ConfigError: If a rule does not exist or is not supported by the model.
    """
    full = f"fixed:{model.max_updates}"
    if EXPECTED in texts:
        raise ConfigError(f"exit_rules={list(texts)}: {EXPECTED} is no rule that a model can run")
    if not model.exit_signals:
        parse_exit_rules(texts, model)  # refuses any
        return [None]
    rules = parse_exit_rules([full, *filter(None, [model.config.exit_rule]), *texts], model, may_fit=False)
    return list({rule.label: rule for rule in rules}.values())


def _load_model(config: ExperimentConfig, path: str) -> Any:
    """Load a causal language model.

    Raises:
        CheckpointError: If the checkpoint is a supernet, or has weights that are not finite.
    """
    model: Any = load_language_model(path, config.model, list_overridden_model_settings())
    if not isinstance(model, GenerationMixin):
        raise CheckpointError(
            f"checkpoint={path}: holds {type(model).__name__}; dataset={config.dataset.name} needs a causal language "
            "model"
        )
    check_weights(model, path)
    return model


def _score_tasks(session: Session, rules: Sequence[ExitRule | None], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of harness.json: the rows of all tasks, each under all rules, and how they were read.

    Args:
        session: Open session.
        rules: Exit rules, or [None] for a model without them.
        options: Arguments of the harness' wrapper of models.
    """
    dataset: Any = session.config.dataset
    assert isinstance(session.data, HarnessData)
    tasks, model = session.data.tasks, session.trainer.unwrapped_model.to(session.args.device)
    rows: list[dict[str, Any]] = []
    cut: dict[str, Any] = {}
    with progress("scoring tasks", len(tasks) * len(rules), shown=session.trainer.is_world_process_zero()) as advance:
        for name, task in tasks.items():
            for rule in rules:
                results, lm = _score_task(session, task, DepthMeter(model, rule), options)
                figures = {
                    "rule": "as trained" if rule is None else rule.label,
                    "mean_updates": lm.meter.mean_updates,
                    "compute": lm.meter.compute,
                    "seconds": lm.seconds,
                    "tokens": lm.meter.tokens,
                }
                rows += [{**row, **figures} for row in read_scores(results, name)]
                if lm.cut:
                    cut[name] = {"requests": lm.requests, "cut": lm.cut}
                advance(1)
    return {
        "max_updates": model.max_updates,
        "max_length": lm.max_length,
        "batch_size": lm.batch_size,
        "limit": dataset.limit,
        "num_fewshot": dataset.num_fewshot,
        "lm_eval": version("lm_eval"),
        "rows": rows,
        "cut": cut,
    }


def _score_task(session: Session, task: Any, meter: DepthMeter, options: Mapping[str, Any]) -> tuple[Any, Any]:
    """Evaluate a task as the harness' own command does; return its results and the wrapper of the model."""
    from lm_eval import simple_evaluate

    from adadepth.contrib.harness.measured_lm import MeasuredLM

    assert isinstance(session.data, HarnessData)
    dataset: Any = session.config.dataset
    with silence_harness():
        lm = MeasuredLM(meter, session.data.tokenizer, **options)
        results = simple_evaluate(
            lm,
            tasks=[task],
            num_fewshot=dataset.num_fewshot,
            limit=dataset.limit,
            log_samples=False,
            task_manager=session.data.manager,
        )
    return results, lm


@contextmanager
def silence_harness() -> Iterator[None]:
    """Suppress what the harness does besides scores.

    These are its progress bars, its messages below errors and those of transformers, and its descriptions of the
    machine and of the repository, for which every evaluation would start pip and git.
    """
    import lm_eval.api.task as module
    from lm_eval import evaluator

    logger, bar = logging.getLogger("lm_eval"), module.tqdm
    describe_machine, describe_commit = evaluator.add_env_info, evaluator.get_git_commit_hash
    level = logger.level
    logger.setLevel(logging.ERROR)
    module.tqdm = partial(bar, disable=True)
    evaluator.add_env_info, evaluator.get_git_commit_hash = lambda results: None, lambda: None
    try:
        with silence_transformers():
            yield
    finally:
        module.tqdm = bar
        evaluator.add_env_info, evaluator.get_git_commit_hash = describe_machine, describe_commit
        logger.setLevel(level)


def _publish_scores(results: dict[str, Any], session: Session) -> None:
    """Write the scores to harness.json and harness.csv, print them, and send them to the trackers."""
    write_scores(session.run.directory, results)
    say(format_scores(results), RESULT)
    tracker, step = session.tracking.tracker, session.trainer.state.global_step
    tracker.log(flatten_scores(results), step)
    tracker.table("harness", *to_records(build_score_table(results)), step)


# ---- scores


def read_scores(results: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Return a row with the scores of a task or group, or of its tasks if a group has no score of its own.

    Args:
        results: Return value of `lm_eval.simple_evaluate`.
        name: Name of the task or group.

    Returns:
        Rows with `task`, the number `n` of its documents, its `version`, and `scores`: for each metric its `value`, its
        standard error `stderr` or None, and `greater`, whether a greater value is better, or None if unknown.
    """
    scores = {task: dict(_list_scores(results, task)) for task in results["results"]}
    tasks = [name] if scores.get(name) else [task for task, values in scores.items() if values]
    return [
        {
            "task": task,
            "n": _count_documents(results, task),
            "version": results["versions"].get(task),
            "scores": scores[task],
        }
        for task in tasks
    ]


def _list_scores(results: Mapping[str, Any], task: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the metrics of a task, whose keys are `metric,filter`, with the name of the filter unless it is `none`."""
    entry = results["results"][task]
    greater = results["higher_is_better"].get(task) or {}
    for key, value in entry.items():
        metric, _, chosen = key.partition(",")
        if not chosen or metric.endswith("_stderr"):
            continue
        stderr = entry.get(f"{metric}_stderr,{chosen}")
        name = metric if chosen == "none" else f"{metric} ({chosen})"
        yield name, {"value": _to_float(value), "stderr": _to_float(stderr), "greater": greater.get(metric)}


def _to_float(value: Any) -> float | None:
    """Return a finite number as a float, and None for any other value, such as `N/A`."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


def _count_documents(results: Mapping[str, Any], task: str) -> int | None:
    """Return the number of documents of a task, or of all tasks of a group."""
    counts = results["n-samples"]
    if task in counts:
        return int(counts[task]["effective"])
    members = results.get("group_subtasks", {}).get(task, [])
    documents = [count for member in members if (count := _count_documents(results, member)) is not None]
    return sum(documents) if documents else None
