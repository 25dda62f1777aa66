"""Session of a run, shared by all tasks: creates the run directory, trains or evaluates, and writes the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any, Self

from transformers import PreTrainedModel, PrinterCallback, ProgressCallback, TrainingArguments

from adadepth.config import ExperimentConfig, Mode
from adadepth.data.run_data import RunData
from adadepth.evaluation.evaluation import Evaluation
from adadepth.runs.directory import CHECKPOINTS, MODEL, Run, get_owner, open_run, read_record, run_directory
from adadepth.runs.hub import open_repository
from adadepth.runtime.console import RESULT, say
from adadepth.runtime.distributed import decide, is_main_process
from adadepth.runtime.files import convert_full_disk_errors
from adadepth.tasks import results
from adadepth.tasks.checks import check_batches, check_memory, check_state_maps
from adadepth.tasks.extensions import build_extensions, prepare_model
from adadepth.tasks.identity import (
    check_initial_tokenizer,
    check_rival_data,
    describe_data,
    store_identity,
    store_special_tokens,
)
from adadepth.tasks.log_messages import describe_end, describe_start, format_interruption, report_interruption
from adadepth.tasks.stored_models import (
    check_weights,
    describe_evaluated_model,
    find_earlier_run,
    find_trained_step,
    record_loaded_settings,
    require_checkpoint,
    restore_threads,
    resume_after_restart,
)
from adadepth.training.arguments import choose_precision
from adadepth.training.callbacks import (
    EpochCallback,
    StepCallback,
    StopCallback,
    TrackingCallback,
    build_early_stopping,
    find_saved_step,
)
from adadepth.training.console_output import ConsoleCallback, ProgressBarCallback
from adadepth.training.extension import Extension
from adadepth.training.profiling import profile_training
from adadepth.training.tracking import (
    LogPosition,
    finish_tracker_afterwards,
    open_tracker,
    read_last_scalars,
    read_log_position,
)
from adadepth.training.trainer import DepthTrainer


@dataclass
class Session:
    """Session of one run, which trains or evaluates a model in a run directory.

    `run` and the fields after it are set when the session is open.

    Attributes:
        config: Experiment.
        args: Training arguments.
        data: Data set of the run.
        model: Model to train or evaluate.
        evaluation_sets: Evaluation examples by the name of their set; the first set selects checkpoints.
        start_evaluation: Function that takes the name of a set and starts its evaluation.
        extensions: Extensions of the training loop.
        baselines: Scores of simple baselines on the evaluation sets.
        run: Open run with its directory and record.
        trainer: Trainer of the run.
        tracking: Callback that collects the metrics.
        stop: Callback that holds the reason why training stopped.
    """

    config: ExperimentConfig
    args: TrainingArguments
    data: RunData
    model: PreTrainedModel
    evaluation_sets: Mapping[str, Any]
    start_evaluation: Callable[[str], Evaluation]
    extensions: tuple[Extension, ...] = ()
    baselines: Mapping[str, Any] = field(default_factory=dict)
    run: Run = field(init=False)
    trainer: DepthTrainer = field(init=False)
    tracking: TrackingCallback = field(init=False)
    stop: StopCallback = field(init=False)

    def train(
        self, finish: Callable[[Self], Any] | None = None, adjust: Callable[[Self], Any] | None = None
    ) -> tuple[dict[str, float], Path]:
        """Train the model in a new run directory, or resume an earlier run.

        Args:
            finish: Function called with the session after the model is saved.
            adjust: Function that may change the trained model before it is evaluated and saved; it returns False if it
                changed nothing.

        Returns:
            The final metrics, and the run directory.
        """
        check_state_maps(self.config, self.model)
        prepare_model(self.config, self.model)
        session, args = self.with_extensions(), self.args
        session.data = check_initial_tokenizer(self.config, session.data)
        check_rival_data(self.config, session.data, self.model)
        check_batches(session.data.train, args)
        check_memory(self.config, args, self.model, session.data.train)
        if (finished := find_earlier_run(self.config, args)) is not None:
            if is_main_process():
                say(f"restarted by the launcher; {finished} is already finished", RESULT)
            return read_record(finished)["final_metrics"], finished
        config = session.config = resume_after_restart(self.config, args)
        repository = decide(args, lambda: open_repository(config))
        directory = decide(args, lambda: run_directory(config))
        checkpoint = None if config.resume is None else require_checkpoint(directory, args)
        with session.open(directory, checkpoint):
            metrics = session.fit(checkpoint, adjust=adjust)
            if finish is not None:
                finish(session)
            if repository is not None and is_main_process():
                results.push_model(config, session.run, repository)
            return metrics, directory

    def evaluate(self, path: str, finish: Callable[[Self], Any] | None = None) -> dict[str, float]:
        """Evaluate the model in a new run directory, write a report, and return the metrics.

        Args:
            path: Checkpoint of the model.
            finish: Function called with the session before the metrics are stored.
        """
        check_weights(self.model, path)
        check_state_maps(self.config, self.model)
        description = describe_evaluated_model(self.model, path)  # `finish` may set other depths
        session = self.with_extensions()
        session.config = config = record_loaded_settings(self.config, self.model)
        directory = decide(self.args, lambda: run_directory(config))
        with session.open(directory):
            session.trainer.state.global_step = find_trained_step(path) or 0
            session.trainer.evaluate()
            results.write_state_diagnostics(config, session.run, session.trainer)
            if finish is not None:
                finish(session)
            metrics = session.tracking.last_metrics
            size = results.measure_cache(session.trainer)
            session.run.update(final_metrics=metrics, evaluated=path, **description, **size)
            return metrics

    def with_extensions(self) -> Self:
        """Return a copy of the session with the training extensions of data, family and settings."""
        extensions = (*self.extensions, *build_extensions(self.config, self.args, self.model, self.data))

        def complete(examples: Any) -> Any:
            return reduce(lambda completed, extension: extension.examples(completed), extensions, examples)

        train = complete(self.data.train)
        sets = {name: complete(examples) for name, examples in self.evaluation_sets.items()}
        data = self.data if train is self.data.train else replace(self.data, train=train)
        return replace(self, data=data, evaluation_sets=sets, extensions=extensions)

    @contextmanager
    def open(self, directory: Path, checkpoint: Path | None = None) -> Iterator[None]:
        """Open run, trackers and trainer for the `with` block, and write the report at its end, even after an error.

        Args:
            directory: Run directory.
            checkpoint: Checkpoint to resume from.

        Raises:
            CheckpointError: If the checkpoint was trained on other data.
        """
        config, args = self.config, self.args
        args.output_dir = str(directory / CHECKPOINTS)
        if config.mode is Mode.train:
            self.data = store_identity(config, self.data, self.model, checkpoint)
            if self.data.tokenizer is not None:
                store_special_tokens(self.model, self.data.tokenizer)
        position = read_log_position(checkpoint)
        if checkpoint is not None:
            restore_threads(config, directory)
        with (
            convert_full_disk_errors(directory),
            ExitStack() as last,
        ):  # trackers close last, since some store the report
            track: results.Track | None = None

            def report() -> None:
                results.report_run(config, self.run, self.model, track)

            with open_run(config, directory, is_main_process(), report, reports_errors=True) as self.run:
                self.run.update(
                    data=describe_data(self.data),
                    baselines=self.baselines,
                    precision=choose_precision(config.trainer),
                    **results.count_parameters(self.model),
                )
                tracker = open_tracker(config, self.run, *position)
                last.enter_context(finish_tracker_afterwards(tracker))
                self.tracking = TrackingCallback(tracker, directory, config)
                self.tracking.last_metrics = read_last_scalars(directory)
                self._build_trainer()
                if is_main_process():
                    say(describe_start(config, args, self.run, self.model, self.data), wraps=True)

                def track(report: results.RunReport) -> None:
                    results.track_figures(report, tracker, self.trainer.state.global_step)

                with report_interruption(config, self.trainer, self.stop, directory):
                    yield
            if is_main_process():
                results.track_artifacts(config, directory, tracker)

    def fit(
        self,
        checkpoint: Path | None,
        *,
        folder: str = MODEL,
        adjust: Callable[[Self], Any] | None = None,
    ) -> dict[str, float]:
        """Train the model, evaluate the best checkpoint, and save the model.

        Args:
            checkpoint: Checkpoint to resume from.
            folder: Folder of the saved model in the run directory.
            adjust: See `train`.

        Returns:
            The final metrics.

        Raises:
            SystemExit: After Ctrl-C or SIGTERM, once a checkpoint is written.
            DivergedError: If the weights or losses are not finite.
        """
        trainer, tracking, stop = self.trainer, self.tracking, self.stop
        begun = time.monotonic()
        _run_training(self, checkpoint)
        training_seconds = time.monotonic() - begun
        if is_main_process():
            say(f"training ended: {describe_end(self.config, trainer.args, stop, trainer.state)}", wraps=True)
        is_merged = results.finish_adapters(self.config, self.run, trainer)
        is_changed = adjust is not None and adjust(self) is not False
        is_adjusted = is_merged or is_changed
        if is_adjusted or tracking.needs_final_evaluation(trainer.args, trainer.state):
            step = trainer.state.global_step
            if not is_adjusted:
                step = find_saved_step(trainer.args, trainer.state)
            with tracking.logging_saved_model(step):
                trainer.evaluate()
        results.show_grid(trainer)
        results.warn_of_depth(trainer)
        results.time_executions(self.config, self.run, trainer, tracking, training_seconds)
        results.write_state_diagnostics(self.config, self.run, trainer)
        metrics = tracking.last_metrics
        results.save_model(self.config, self.run, trainer, folder, final_metrics=metrics, stopped_because=stop.reason)
        if (objective := metrics.get(self.config.optimise)) is not None:
            tracking.tracker.objective(objective)
        return metrics

    def _build_trainer(self) -> None:
        """Build the trainer of the session, with its callbacks."""
        config = self.config
        time_budget = config.trainer.time_budget_minutes
        self.stop, epochs = StopCallback(time_budget), EpochCallback()
        console = ConsoleCallback(time_budget, is_averaged=config.trainer.ema_decay is not None)
        callbacks = [epochs, self.stop, self.tracking, console, StepCallback(), *build_early_stopping(config.trainer)]
        self.trainer = DepthTrainer(
            self.model,
            self.args,
            self.data,
            self.evaluation_sets,
            self.start_evaluation,
            config.trainer,
            callbacks,
            (*self.extensions, LogPosition(self.run.directory)),
        )
        self.trainer.remove_callback(PrinterCallback)
        if self.trainer.pop_callback(ProgressCallback) is not None:
            self.trainer.add_callback(ProgressBarCallback)
        self.tracking.trainer = epochs.trainer = console.trainer = self.trainer


def _run_training(session: Session, checkpoint: Path | None) -> None:
    """Run the training loop of the session.

    Args:
        session: Open session.
        checkpoint: Checkpoint to resume from.

    Raises:
        SystemExit: After Ctrl-C or SIGTERM, once a checkpoint is written.
        DivergedError: If the weights or losses are not finite.
    """
    trainer, stop, is_main = session.trainer, session.stop, is_main_process()
    if checkpoint is not None:
        trainer.args.eval_on_start = False
    has_profiler = session.config.trainer.profiler and is_main
    with stop.listening(), profile_training(trainer, session.run.directory) if has_profiler else nullcontext():
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    if stop.signal is not None:
        if is_main:
            say(format_interruption(stop.signal, trainer.state, get_owner() or session.run.directory), RESULT)
            stop.is_reported = True
        stop.exit()
    trainer.refuse_weights()
