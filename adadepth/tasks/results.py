"""Results at the end of a run: saved model, speed of ragged execution, verdict, figures, report and uploads."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from adadepth.config import ExperimentConfig, Mode, Task
from adadepth.config.experiment import Kept
from adadepth.evaluation import state_diagnostics
from adadepth.evaluation.model_size import count_other_parameters, measure_cached_bytes
from adadepth.metrics.grid_examples import draw_example_text
from adadepth.metrics.metric_names import SPEEDUPS
from adadepth.report.baseline_comparison import to_json
from adadepth.report.compute_cost import describe_speeds
from adadepth.report.depth_by_class import format_adaptation_warning
from adadepth.report.example_sentences import build_sentence_table
from adadepth.report.pages import RunReport, draw_figures, write_report
from adadepth.report.run_files import REPORT, STATE_DIAGNOSTICS, write_json
from adadepth.runs.directory import MODEL, Run, get_owner
from adadepth.runs.hub import push
from adadepth.runs.model_card import CARD, write_card
from adadepth.runtime.console import RESULT, say
from adadepth.runtime.files import convert_full_disk_errors, describe_files
from adadepth.runtime.hardware import describe_machine
from adadepth.tasks.log_messages import describe_selection
from adadepth.tasks.next_commands import list_next_commands
from adadepth.tasks.report import build_run_report, show_last_screen
from adadepth.training.callbacks import TrackingCallback
from adadepth.training.lora import ADAPTER, merge_adapters, save_adapter
from adadepth.training.profiling import compare_executions
from adadepth.training.trackers.base import Tracker
from adadepth.training.trainer import DepthTrainer

_ARTIFACTS = {Kept.report: REPORT, Kept.model: MODEL}
_TIMING_S, _ASKED_TIMING_S = 1.0, 4.0  # for evaluation, and again for training; a small run times one batch
_TIMING_SHARE = 0.05  # of the time of training, which each of the two may take


def show_grid(trainer: DepthTrainer) -> None:
    """Print an example grid with the depth of every cell, if the task has grids."""
    grids = [report.grids for report in trainer.last_reports.values() if report.grids]
    if grids and trainer.is_world_process_zero():
        say(f"\n{draw_example_text(grids[0][0])}\n")


def warn_of_depth(trainer: DepthTrainer) -> None:
    """Print a warning for every evaluation set on which the depth of the saved model does not adapt.

    It names its set if there are several.
    """
    if trainer.is_world_process_zero():
        reports = trainer.last_reports
        for name, report in reports.items():
            if (warning := format_adaptation_warning(report.statistics, name if len(reports) > 1 else "")) is not None:
                say(warning, wraps=True)


def time_executions(
    config: ExperimentConfig, run: Run, trainer: DepthTrainer, tracking: TrackingCallback, training_seconds: float
) -> None:
    """Measure and log the speed-up of ragged over dense execution, for evaluation and for training.

    By default, what would take more than a tenth of the time of training is not measured.
    """
    if config.trainer.time_executions is False:
        return
    is_asked = config.trainer.time_executions or config.optimise in SPEEDUPS.values() or config.small
    seconds = 0.0 if config.small else _ASKED_TIMING_S if is_asked else _TIMING_S
    most = math.inf if is_asked else _TIMING_SHARE * training_seconds
    speeds = {}
    for kind, metric in SPEEDUPS.items():
        speed = compare_executions(trainer, seconds=seconds, most_seconds=most, training=kind == "training")
        if speed is None or not trainer.is_world_process_zero():
            continue
        speeds[kind] = speed._asdict()
        tracking.last_metrics[metric] = speed.speedup
        tracking.tracker.log({metric: speed.speedup}, trainer.state.global_step)
    if config.trainer.time_executions and not speeds and trainer.is_world_process_zero():
        say("trainer.time_executions=true: nothing was timed, because the model or its setup has one execution")
    if speeds:
        width = getattr(trainer.unwrapped_model.config, "hidden_size", None)
        run.update(executions={"machine": describe_machine(trainer.args.device), "width": width, **speeds})
        say(describe_speeds(run.record["executions"]), wraps=True)


def finish_adapters(config: ExperimentConfig, run: Run, trainer: DepthTrainer) -> bool:
    """Save the low-rank adapters of the trained model, if it has any, and merge them; return whether it had."""
    settings, model = config.trainer.lora, trainer.unwrapped_model
    if settings.rank is None:
        return False
    if trainer.is_world_process_zero():
        save_adapter(model, settings, run.directory / ADAPTER)
    merge_adapters(model)
    return True


def count_parameters(model: PreTrainedModel) -> dict[str, int]:
    """Return the fields of a run's record with the numbers of all, non-embedding and trainable parameters."""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    return {
        "parameters": sum(size for size, _ in sizes),
        "parameters_without_embeddings": count_other_parameters(model),
        "trainable_parameters": sum(size for size, is_trained in sizes if is_trained),
    }


def write_state_diagnostics(config: ExperimentConfig, run: Run, trainer: DepthTrainer) -> None:
    """Write diagnostics of the states of every update to states.json, with `trainer.state_diagnostics`."""
    if config.trainer.state_diagnostics and trainer.is_world_process_zero():
        name, dataset = next(iter(trainer.evaluation_sets.items()))
        write_json(
            run.directory / STATE_DIAGNOSTICS, {"set": name, **state_diagnostics.diagnose_states(trainer, dataset)}
        )


def measure_cache(trainer: DepthTrainer) -> dict[str, float]:
    """Return the field of a run's record with the bytes that a token takes in the cache of a language model.

    It is measured on the first evaluated text. There is none for models without a cache, nor where parameters are
    sharded over processes.
    """
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled or not trainer.is_world_process_zero():
        return {}
    size = measure_cached_bytes(trainer.unwrapped_model, next(iter(trainer.evaluation_sets.values()))[0])
    return {} if size is None else {"cache_bytes_per_token": size}


def save_model(config: ExperimentConfig, run: Run, trainer: DepthTrainer, folder: str, **facts: Any) -> None:
    """Save the trained model in the run directory, and record it in the run's record.

    Args:
        config: Experiment.
        run: Open run.
        trainer: Trainer with the model.
        folder: Name of the model folder in the run directory.
        facts: Additional entries of the record.
    """
    path, is_main = run.directory / folder, trainer.is_world_process_zero()
    with convert_full_disk_errors(path):
        trainer.save_model(str(path))
    saved = describe_files(path, but=CARD) if is_main else {}
    best = trainer.state.best_model_checkpoint
    run.update(
        saved={**run.record.get("saved", {}), folder: saved},
        best_checkpoint=None if best is None else Path(best).name,
        selected=describe_selection(trainer.args, trainer.state),
        steps={"done": trainer.state.global_step, "planned": trainer.state.max_steps},
        **measure_cache(trainer),
        **facts,
    )
    if is_main:
        first_set = next(iter(trainer.evaluation_sets))
        write_card(path, config, run.record, trainer.unwrapped_model, first_set)


def push_model(config: ExperimentConfig, run: Run, repository: str) -> None:
    """Upload the run's model to the Hugging Face hub, and print its address."""
    if address := push(run.directory / MODEL, repository, f"{config.name}, run {run.directory.name}"):
        run.update(pushed_to=address)
        say(f"model: {address}", RESULT)


def track_figures(report: RunReport, tracker: Tracker, step: int) -> None:
    """Draw a run's figures, and send them and the example sentences to the trackers."""
    columns, rows = build_sentence_table(report.files.sentences)
    if rows:
        tracker.table("halting/sentences", columns, rows, step)
    for figure in (path for path in draw_figures(report) if path.suffix != ".pdf"):
        show = tracker.animation if figure.suffix == ".gif" else tracker.image
        show(f"figures/{figure.stem}", figure, step)


Track = Callable[[RunReport], None]


def report_run(config: ExperimentConfig, run: Run, model: PreTrainedModel, track: Track | None) -> None:
    """Write the report of a run, record its verdict on adaptive depth, track its figures, and print its summary.

    Args:
        config: Experiment.
        run: Open run, whose training or evaluation has ended.
        model: Model of the run.
        track: Function that draws the figures and sends them to the trackers, or None if the run has no trackers yet.
    """
    report = build_run_report(run.directory)
    if report.verdict:
        run.update(verdict=to_json(report.verdict))
    page = write_report(report)
    if track is not None:
        track(report)  # takes longest, so the page comes first
    is_training = config.mode is Mode.train
    if is_training and (config.rival_of is not None or config.task is Task.architecture_search):
        say(f"report: {page}")  # the enclosing run prints the last screen
        return
    has_next = is_training and get_owner() is None  # a summary of seeds has its own
    show_last_screen(report, page, list_next_commands(config, report.files, model) if has_next else [])


def track_artifacts(config: ExperimentConfig, directory: Path, tracker: Tracker) -> None:
    """Upload the report and the model to the tracker, as configured by `logger.artifacts`."""
    for kind in config.logger.artifacts:
        if (path := directory / _ARTIFACTS[kind]).exists():  # an evaluation saves no model
            tracker.artifact(str(kind), path)
