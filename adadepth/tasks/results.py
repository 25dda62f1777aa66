"""What a run leaves beside its log: the model, pictures and times on the console, verdict, figures and report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from adadepth.measure.pictures import PUZZLE, grid_picture, puzzle_picture
from adadepth.report.run_files import read_run
from adadepth.report.sentences import sentence_table
from adadepth.report.work import describe_speeds
from adadepth.report.worth import as_json
from adadepth.report.writing import REPORT
from adadepth.runs.directory import MODEL, RECORD, Run
from adadepth.runs.model_card import CARD, write_card
from adadepth.runs.upload import push
from adadepth.settings import ExperimentConfig, Mode, Task
from adadepth.settings.experiment import Kept
from adadepth.system.console import say
from adadepth.system.files import describe_files, writing
from adadepth.system.hardware import describe_machine
from adadepth.tasks.next_commands import commands_after
from adadepth.tasks.report import draw_run_figures, judge, show_last_screen, write_run_report
from adadepth.training.callbacks import TrackingCallback
from adadepth.training.speed import compare_executions
from adadepth.training.trackers.base import Tracker
from adadepth.training.trainer import DepthTrainer

_KEPT = {Kept.report: REPORT, Kept.model: MODEL}
_SECONDS_OF_TIMING = 4.0  # for evaluation, and as many for training; a run of seconds times one batch


def show_grid(trainer: DepthTrainer) -> None:
    """Print an example of what was allocated where, for tasks that have a picture."""
    grids = [report.grids for report in trainer.last_reports.values() if report.grids]
    if grids and trainer.is_world_process_zero():
        draw = puzzle_picture if grids[0][0]["kind"] == PUZZLE else grid_picture
        say(f"\n{draw(grids[0][0])}\n")


def time_executions(config: ExperimentConfig, run: Run, trainer: DepthTrainer, tracking: TrackingCallback) -> None:
    """Measure how much faster evaluation and training of the trained model are for leaving out halted tokens."""
    seconds = 0.0 if config.small else _SECONDS_OF_TIMING
    speeds = {}
    for kind, metric in (("evaluation", "cost/speedup_over_dense"), ("training", "cost/training_speedup_over_dense")):
        speed = compare_executions(trainer, seconds=seconds, training=kind == "training")
        if speed is None or not trainer.is_world_process_zero():
            continue
        speeds[kind] = speed._asdict()
        tracking.last_metrics[metric] = speed.speedup
        tracking.tracker.log({metric: speed.speedup}, trainer.state.global_step)
    if speeds:
        width = getattr(trainer.unwrapped_model.config, "hidden_size", None)
        run.update(executions={"machine": describe_machine(trainer.args.device), "width": width, **speeds})
        say(describe_speeds(run.record["executions"]))


def save_model(config: ExperimentConfig, run: Run, trainer: DepthTrainer, folder: str, **facts: Any) -> None:
    """Save the trained model into a folder of the run, and record it and how the training ended.

    Args:
        config: The experiment.
        run: Its open run.
        trainer: With the model.
        folder: Name within the run.
        facts: Further entries of the record.
    """
    path, is_main = run.directory / folder, trainer.is_world_process_zero()
    with writing(path):
        trainer.save_model(str(path))
    saved = describe_files(path, but=CARD) if is_main else {}
    best = trainer.state.best_model_checkpoint
    run.update(
        saved={**run.record.get("saved", {}), folder: saved},
        best_checkpoint=None if best is None else Path(best).name,
        steps={"done": trainer.state.global_step, "planned": trainer.state.max_steps},
        **facts,
    )
    if is_main:
        first_set = next(iter(trainer.evaluation_sets))
        write_card(path, config, run.record, trainer.unwrapped_model, first_set)


def push_model(config: ExperimentConfig, run: Run, repository: str) -> None:
    """Upload the model of a run, and say where it is."""
    if address := push(run.directory / MODEL, repository, f"{config.name}, run {run.directory.name}"):
        run.update(pushed_to=address)
        say(f"model: {address}")


def draw_results(run: Run, tracker: Tracker, step: int) -> None:
    """Record whether depth adapts, whether that is worth it and what it cost; draw the figures of what there is."""
    if verdict := judge(run.directory):
        run.update(verdict=as_json(verdict))
    track_figures(run.directory, tracker, step)


def track_figures(directory: Path, tracker: Tracker, step: int) -> None:
    """Draw a run's figures, and show them and the example sentences in the dashboards."""
    columns, rows = sentence_table(read_run(directory).sentences)
    if rows:
        tracker.table("halting/sentences", columns, rows, step)
    for figure in (path for path in draw_run_figures(directory) if path.suffix != ".pdf"):
        show = tracker.animation if figure.suffix == ".gif" else tracker.image
        show(f"figures/{figure.stem}", figure, step)


def report_run(config: ExperimentConfig, directory: Path, model: PreTrainedModel) -> None:
    """Write the report, and show the last screen; of a folder that is no run nothing."""
    if not (directory / RECORD).is_file():
        return
    report = write_run_report(directory)
    is_training = config.mode is Mode.train
    if is_training and (config.rival_of is not None or config.task is Task.architecture_search):
        say(f"report: {report}")  # the last screen is that of what it is a part of
        return
    show_last_screen(directory, report, commands_after(config, directory, model) if is_training else [])


def track_artifacts(config: ExperimentConfig, directory: Path, tracker: Tracker) -> None:
    """Let the tracker keep the report and the model, as far as the settings ask for them."""
    for kind in config.logger.artifacts:
        if (path := directory / _KEPT[kind]).exists():  # an evaluation has no model of its own
            tracker.artifact(str(kind), path)
