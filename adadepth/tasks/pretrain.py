"""Pretraining: masked language model and sentence order, with the ponder cost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from transformers import (
    EarlyStoppingCallback,
    PreTrainedModel,
    PrinterCallback,
    ProgressCallback,
    TrainingArguments,
    set_seed,
)
from transformers.utils.logging import disable_progress_bar

from adadepth.analysis.plots import draw_figures
from adadepth.analysis.report import write_report
from adadepth.config import ExperimentConfig, TokenizerConfig
from adadepth.data import PretrainingData, load_pretraining_data
from adadepth.errors import CheckpointError
from adadepth.models.build import build_model, load_model
from adadepth.tasks.processes import decide, main_first
from adadepth.training.arguments import choose_precision, training_arguments
from adadepth.training.callbacks import (
    ConsoleCallback,
    EpochCallback,
    ProgressBarCallback,
    StopCallback,
    TrackingCallback,
)
from adadepth.training.run_directory import RECORD, Run, open_run, read_record, resolve_run, run_directory
from adadepth.training.tracking import Tracker, closing_tracker, open_tracker
from adadepth.training.trainer import DepthTrainer, checkpoint_step, complete_checkpoints


@dataclass(frozen=True)
class Session:
    """The parts of a run that is open: its folder and record, its trainer, and the callbacks that hold results."""

    run: Run
    trainer: DepthTrainer
    tracking: TrackingCallback
    stop: StopCallback


def train(config: ExperimentConfig) -> dict[str, float]:
    """Train, evaluate the best checkpoint, save the model, write the report; returns the final metrics."""
    args = training_arguments(config, "unused until the run's folder is known")
    data = main_first(args, lambda: load_pretraining_data(config.dataset, config.tokenizer, config.seed))
    set_seed(config.seed)
    model = build_model(config.model, len(data.tokenizer))
    directory = decide(args, lambda: run_directory(config))
    checkpoint = None if config.resume is None else _resumed_checkpoint(directory, args)
    with _session(config, args, directory, data, model, checkpoint) as session:
        return _train(config, session, checkpoint)


def _train(config: ExperimentConfig, session: Session, checkpoint: Path | None) -> dict[str, float]:
    trainer, run = session.trainer, session.run
    if checkpoint is not None:
        trainer.args.eval_on_start = False
    with session.stop.listening():
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    if session.stop.signal is not None:
        if trainer.is_world_process_zero():
            print(f"{session.stop.reason} at step {trainer.state.global_step}; continue with resume={run.directory}")
        raise SystemExit(128 + session.stop.signal)
    if session.tracking.needs_final_evaluation(trainer.state):
        with session.tracking.muted():
            trainer.evaluate()
    trainer.save_model(str(run.directory / "model"))
    metrics = session.tracking.last_metrics
    best = trainer.state.best_model_checkpoint
    run.update(
        final_metrics=metrics,
        best_checkpoint=None if best is None else Path(best).name,
        stopped_because=session.stop.reason,
    )
    return metrics


def evaluate(config: ExperimentConfig) -> dict[str, float]:
    """Evaluate a checkpoint on a run's data and write a report; returns the metrics."""
    assert config.checkpoint is not None, "validated"
    args = training_arguments(config, "unused until the run's folder is known")
    path = _model_path(config)
    model = load_model(path, config.model, _overridden_model_settings())
    tokenizer = config.tokenizer if config.tokenizer.path is not None else TokenizerConfig(path=path)
    data = main_first(args, lambda: load_pretraining_data(config.dataset, tokenizer, config.seed))
    if config.dataset.sequence_length > model.config.max_position_embeddings:
        raise CheckpointError(
            f"dataset.sequence_length={config.dataset.sequence_length}: the checkpoint has only "
            f"{model.config.max_position_embeddings} positions"
        )
    directory = decide(args, lambda: run_directory(config))
    with _session(config, args, directory, data, model) as session:
        session.trainer.evaluate()
        session.run.update(final_metrics=session.tracking.last_metrics, evaluated=path)
        return session.tracking.last_metrics


@contextmanager
def _session(
    config: ExperimentConfig,
    args: TrainingArguments,
    directory: Path,
    data: PretrainingData,
    model: PreTrainedModel,
    checkpoint: Path | None = None,
) -> Iterator[Session]:
    """Open run, tracker and trainer; when they close, however that comes, draw the report of what there is."""
    is_main = args.process_index == 0
    args.output_dir = str(directory / "checkpoints")
    resume_step = None if checkpoint is None else checkpoint_step(checkpoint)
    try:
        with open_run(config, directory, is_main) as run:
            run.update(
                data=data.summary,
                precision=choose_precision(config.trainer),
                parameters=sum(parameter.numel() for parameter in model.parameters()),
            )
            tracker = open_tracker(config, directory, is_main=is_main, resume_step=resume_step)
            with closing_tracker(tracker):
                session = _assemble(config, args, run, tracker, data, model)
                if is_main:
                    print(_banner(run, args, data), flush=True)
                try:
                    yield session
                finally:
                    if is_main:
                        _draw_figures(directory, tracker, session.trainer.state.global_step)
    finally:
        if is_main:
            print(f"report: {write_report(directory)}", flush=True)


def _draw_figures(directory: Path, tracker: Tracker, step: int) -> None:
    for figure in draw_figures(directory):
        tracker.image(f"figures/{figure.stem}", figure, step)


def _assemble(
    config: ExperimentConfig,
    args: TrainingArguments,
    run: Run,
    tracker: Tracker,
    data: PretrainingData,
    model: PreTrainedModel,
) -> Session:
    stop = StopCallback(config.trainer.time_budget_minutes)
    tracking, epochs = TrackingCallback(tracker, run.directory), EpochCallback()
    callbacks = [epochs, stop, tracking, ConsoleCallback()]
    if config.trainer.early_stopping_patience is not None:
        callbacks.append(EarlyStoppingCallback(config.trainer.early_stopping_patience))
    disable_progress_bar()  # transformers' bars for reading and writing files; the training bar is another
    trainer = DepthTrainer(model, args, data, config.trainer, callbacks)
    trainer.remove_callback(PrinterCallback)
    if trainer.pop_callback(ProgressCallback) is not None:
        trainer.add_callback(ProgressBarCallback)
    tracking.trainer = epochs.trainer = trainer
    return Session(run, trainer, tracking, stop)


def _banner(run: Run, args: TrainingArguments, data: PretrainingData) -> str:
    record, documents = run.record, data.summary["train"].get("documents", "streamed")
    return (
        f"{record['config_name']}: {record['parameters']:,} parameters, {record['precision']} on {args.device}"
        f" x {args.world_size}, data {data.summary['name']} ({documents} documents), seed {record['seed']}\n"
        f"writing to {run.directory}"
    )


def _resumed_checkpoint(directory: Path, args: TrainingArguments) -> Path:
    """The newest whole checkpoint of a run, which must have been written by as many processes as there are now."""
    checkpoints = complete_checkpoints(directory / "checkpoints")
    if not checkpoints:
        raise CheckpointError(f"resume={directory}: it has no complete checkpoint yet")
    processes = read_record(directory).get("hardware", {}).get("processes", args.world_size)
    if processes != args.world_size:
        raise CheckpointError(
            f"resume={directory}: the run had {processes} processes, now there are {args.world_size}; "
            "the order of its data depends on that"
        )
    return checkpoints[-1]


def _model_path(config: ExperimentConfig) -> str:
    """What `checkpoint` names: a run (its best model), a checkpoint, any model folder, or a hub id."""
    value = str(config.checkpoint)
    is_run = value == "latest" or (Path(value) / RECORD).is_file()
    return str(resolve_run(value, config, needs="model") / "model") if is_run else value


def _overridden_model_settings() -> list[str]:
    """The `model.*` settings given on the command line, which are laid over a checkpoint's own."""
    if not HydraConfig.initialized():
        return []
    keys = [override.lstrip("+").partition("=")[0] for override in HydraConfig.get().overrides.task]
    return [key.removeprefix("model.") for key in keys if key.startswith("model.")]
