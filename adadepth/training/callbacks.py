"""Callbacks of the trainer, which set the sampler's epoch, stop a run cleanly or early, and write results."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, NoReturn, cast

import torch
import torch.distributed as dist
import transformers
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from adadepth.config import ExperimentConfig, Mode
from adadepth.config.experiment import TrainerConfig
from adadepth.errors import CheckpointError
from adadepth.evaluation.scorer import EvaluationReport
from adadepth.halting.exit_decisions import HALTING_SIGNAL
from adadepth.halting.exit_rules import Fixed
from adadepth.metrics.architectures import flatten_search
from adadepth.metrics.depth_statistics import flatten
from adadepth.metrics.metric_names import metric_name
from adadepth.metrics.step_summary import flatten_exits
from adadepth.metrics.unit_costs import TIME
from adadepth.report import export
from adadepth.report.architectures import build_frame_panel
from adadepth.report.depth_by_class import build_class_table, write_halting_files
from adadepth.report.run_files import write_exits, write_grids, write_prediction_rows, write_predictions
from adadepth.report.table import to_records
from adadepth.runtime.console import discard_terminal_output
from adadepth.runtime.distributed import is_main_process
from adadepth.runtime.signals import HANGUP, forward_signal, list_stop_signals, may_repeat
from adadepth.training.advice import drop_budgets, drop_current_settings, drop_deeper_starts
from adadepth.training.selection import fill_undefined_metric
from adadepth.training.stored_states import difference
from adadepth.training.trackers.base import Tracker
from adadepth.training.trainer import DepthTrainer

# Log entries of transformers that do not measure the progress of a run.
UNLOGGED = ("train_loss", "eval_samples_per_second", "eval_steps_per_second", "eval_model_preparation_time")
_LAST_STEP = "stopping after this optimiser step with a checkpoint; Ctrl-C again stops at once without one"
Logs = Mapping[str, float] | None  # what transformers tells a callback


class EpochCallback(TrainerCallback):
    """Callback that passes the number of the epoch to the sampler or to the streamed data set.

    transformers does not always do this: after a resume the wrappers of accelerate hide the sampler, and a streamed
    data set has a separate loader.
    """

    def __init__(self) -> None:
        self.trainer: DepthTrainer | None = None
        self.epoch = -1

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Set the epoch in which a resumed run continues."""
        self.epoch = int(state.epoch or 0) - 1

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Pass the number of the epoch to the sampler or to the streamed data set."""
        assert self.trainer is not None
        self.epoch += 1
        (self.trainer.train_sampler or self.trainer.train_dataset).set_epoch(self.epoch)


class StepCallback(TrainerCallback):
    """Callback that passes the optimiser step to the model, for schedules inside the model."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Pass the last optimiser step of a resumed run to the model, which may be evaluated before the next one."""
        if state.global_step > 0:
            kwargs["model"].set_step(state.global_step - 1, state.max_steps)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Pass the number of the step that begins to the model."""
        kwargs["model"].set_step(state.global_step, state.max_steps)


class StopCallback(TrainerCallback):
    """Callback that stops training with a checkpoint after Ctrl-C, SIGTERM, a closed terminal, or a spent time budget.

    Schedulers send SIGUSR1 or SIGUSR2 when the time of a job is nearly over; both also stop the run. All processes of a
    distributed run must stop at the same step. They agree on it at logging steps, at which they wait for each other
    anyway.

    Args:
        time_budget_minutes: Time budget of the training in minutes, or None for no limit.
    """

    def __init__(self, time_budget_minutes: float | None = None) -> None:
        self.time_budget = None if time_budget_minutes is None else 60.0 * time_budget_minutes
        self.started = time.monotonic()
        self.signal: int | None = None
        self.reason: str | None = None
        self.has_deferred_save = False  # whether the end of this epoch writes a checkpoint
        self.is_reported = False  # whether the user was told that training is interrupted
        self._has_own_signal = False  # another process may have reported its signal first

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Stop training on a signal within the `with` block; a second signal ends the program at once."""
        previous = {number: signal.signal(number, self._remember) for number in list_stop_signals()}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self._has_own_signal and not may_repeat(number):
            raise SystemExit(128 + number)
        if number == HANGUP:
            discard_terminal_output()
        if number == signal.SIGINT and is_main_process():
            # The interrupted code may hold the buffer of standard error.
            with suppress(OSError, ValueError, AttributeError):
                os.write(sys.__stderr__.fileno(), f"{_LAST_STEP}\n".encode())
        self.signal = number
        self._has_own_signal |= not may_repeat(number)

    def why(self) -> str | None:
        """Return the reason for which training stops early, or None. A signal during the last step counts, too."""
        return self.reason or (None if self.signal is None else describe_interruption(self.signal))

    def exit(self) -> NoReturn:
        """Exit the process with the status of the signal that stopped training; see `forward_signal`."""
        assert self.signal is not None
        forward_signal(self.signal)
        raise SystemExit(128 + self.signal)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start the clock of the run's time budget."""
        self.started = time.monotonic()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Stop the run with a checkpoint after a signal or when the time budget is spent.

        A save that is due at the end of an epoch, or when the run stops, is deferred to `on_epoch_end`.
        """
        self._check_stop(args, state, control)
        if control.should_save and (control.should_training_stop or _is_epoch_end(state)):
            control.should_save, self.has_deferred_save = False, True

    def _check_stop(self, args: TrainingArguments, state: TrainerState, control: TrainerControl) -> None:
        spent = self.time_budget is not None and time.monotonic() - self.started >= self.time_budget
        stop, interrupted = spent, self.signal or 0
        if args.world_size > 1:
            if state.global_step % args.logging_steps:
                return
            votes = torch.tensor([float(stop), float(interrupted)], device=args.device)
            dist.all_reduce(votes, op=dist.ReduceOp.MAX)
            stop, interrupted = bool(votes[0]), int(votes[1])
        if interrupted:
            self.signal, self.reason = interrupted, describe_interruption(interrupted)
        elif stop:
            self.reason = "time budget spent"
            control.should_evaluate = True
            control.should_log = True
        if self.reason:
            control.should_save = control.should_training_stop = True

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Save the final checkpoint after the end of the epoch, so that a resumed run does not repeat the epoch.

        If the run stops in the middle of an epoch, nothing is logged or evaluated.
        """
        if self.reason and state.global_step < state.max_steps and not _is_epoch_end(state):
            control.should_log = control.should_evaluate = False
        control.should_save, self.has_deferred_save = control.should_save or self.has_deferred_save, False


def describe_interruption(number: int) -> str:
    """Name the signal that interrupted a run."""
    return f"interrupted by {signal.Signals(number).name}"


def _is_epoch_end(state: TrainerState) -> bool:
    """Return whether an epoch has just ended."""
    return float(state.epoch or 0).is_integer()


def build_early_stopping(settings: TrainerConfig) -> list[TrainerCallback]:
    """Build the early-stopping callback if one is configured; otherwise return an empty list."""
    if settings.early_stopping_patience is None:
        return []
    return [EarlyStoppingCallback(settings.early_stopping_patience, settings.early_stopping_threshold)]


class EarlyStoppingCallback(transformers.EarlyStoppingCallback):
    """Early stopping with a patience counter that is stored in checkpoints, so that it survives a resume.

    Checkpoints store the count under the name of this class.
    """

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Restore the patience counter from the checkpoint, and stop if it has reached the limit.

        Raises:
            CheckpointError: If the stored state has another structure than the live one.
        """
        super().on_train_begin(args, state, control, **kwargs)
        states: dict[str, Any] = cast(dict[str, Any], state.stateful_callbacks)
        stored = states.setdefault(type(self).__name__, self.state())
        if problem := difference(stored, self.state(), type(self).__name__):
            raise CheckpointError(f"the trainer's state of the checkpoint: {problem}")
        self.early_stopping_patience_counter = stored["attributes"]["early_stopping_patience_counter"]
        if self.early_stopping_patience_counter >= self.early_stopping_patience:
            control.should_training_stop = True

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Count an evaluation whose metric is undefined as one without improvement."""
        filled = fill_undefined_metric(metrics or {}, args.metric_for_best_model)
        super().on_evaluate(args, state, control, metrics=filled, **kwargs)


class TrackingCallback(TrainerCallback):
    """Callback that sends scalars to the experiment tracker, and halting statistics to files and the tracker.

    Args:
        tracker: Tracker of the run.
        directory: Folder of the run.
        config: Experiment, or None if the callback only logs. Advice leaves out the settings that the run has already.
    """

    def __init__(self, tracker: Tracker, directory: Path, config: ExperimentConfig | None = None) -> None:
        self.tracker = tracker
        self.directory = directory
        self._config = config
        self.trainer: DepthTrainer | None = None
        self.last_metrics: dict[str, float] = {}
        self.evaluated_step = -1
        self._saved_step: int | None = None

    @contextmanager
    def logging_saved_model(self, step: int) -> Iterator[None]:
        """Log the evaluation of the model to save under its own step within the `with` block.

        Trackers show the values that are logged last, which are then those of the saved model. Metrics of training,
        which belong to the last step, are left out.

        Args:
            step: Optimiser step of the weights to save, or the last step if they were changed after training.
        """
        self._saved_step = step
        try:
            yield
        finally:
            self._saved_step = None

    def needs_final_evaluation(self, args: TrainingArguments, state: TrainerState) -> bool:
        """Return whether the model to save (the best or the last one) differs from the last one evaluated."""
        return self.evaluated_step != find_saved_step(args, state)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Logs = None, **kwargs: Any
    ) -> None:
        """Send logged scalars to the experiment tracker, under `train/` and `eval/`."""
        metrics = rename_metrics(logs or {})
        if speed := metrics.get("eval/tokens_per_second"):
            metrics[TIME] = 1000 / speed
        self.last_metrics |= metrics
        if self._saved_step is not None:
            metrics = {name: value for name, value in metrics.items() if not name.startswith("train/")}
        if metrics:
            self.tracker.log(metrics, self._get_step(state))

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Write and track the depth statistics of an evaluation.

        Depth by class is written only for the set that selects the model. Exit statistics are written for every set.
        """
        self.evaluated_step = state.global_step
        reports = {} if self.trainer is None else self.trainer.last_reports
        for number, (name, report) in enumerate(reports.items()):
            if number and report.statistics["unit"] == "task":
                continue  # one distribution for all sets
            self._track_report(report, f"{name}/" if number else "", state)
        if not reports or not state.is_world_process_zero:
            return
        step = self._get_step(state)  # of the evaluated weights, which may be those of an earlier step
        (name, first), *rest = reports.items()
        statistics = {other: report.statistics for other, report in rest}
        write_halting_files(self.directory, first.statistics, first.sentences, step, name, statistics)
        if grids := {name: report.grids for name, report in reports.items() if report.grids}:
            write_grids(self.directory, grids, first.statistics["max_depth"], step)
        if first.statistics.get("architecture", {}).get("temperature") is not None:
            self._draw_gates(first.statistics["architecture"], state.global_step)
        for name, report in reports.items():
            if report.predictions:
                write_predictions(self.directory, name, report.predictions)
            if report.rows:
                write_prediction_rows(self.directory, name, report.rows)
        if exits := {name: report.exits for name, report in reports.items() if report.exits is not None}:
            write_exits(self.directory, exits, step)

    def _get_step(self, state: TrainerState) -> int:
        """Return the step under which metrics are logged."""
        return state.global_step if self._saved_step is None else self._saved_step

    def _has_one_depth(self) -> bool:
        """Return whether all tokens or sequences have the same depth now, because it is fixed or still grows."""
        model = None if self.trainer is None else self.trainer.model
        return model is not None and model.one_depth is not None

    def _has_fixed_depth(self) -> bool:
        """Return whether depth is fixed by design: in a matched baseline, without an exit rule, or by `fixed:k`."""
        rule = "" if self.trainer is None else getattr(self.trainer.model.config, "exit_rule", "")
        is_baseline = self._config is not None and self._config.rival_of is not None
        return is_baseline or rule is None or rule.startswith(f"{Fixed.name}:")

    def _select_advice(self, advice: str) -> str:
        """Return the advice that a run does not follow already; an evaluation knows the settings of its model only."""
        if self._config is None or not advice:
            return advice
        if self._config.budget.target is not None:
            advice = drop_budgets(advice)
        if self._config.mode is Mode.train or self.trainer is None:
            return drop_current_settings(advice, self._config)
        return drop_current_settings(advice, SimpleNamespace(model=self.trainer.model.config))

    def _drop_impossible_values(self, missing: dict[str, str]) -> None:
        """Remove missing values that no evaluation of the model has, or that its table of exits has.

        Args:
            missing: Reasons of missing values by name, as in halting.json.
        """
        model = None if self.trainer is None else self.trainer.model
        if not getattr(model, "shows_states", True):
            missing.pop("halting/cosine", None)
        if HALTING_SIGNAL in getattr(model, "exit_signals", ()):
            missing.pop("halting/probability", None)

    def _keeps_full_depth(self) -> bool:
        """Return whether an extension, such as a depth budget, still holds full depth."""
        return self.trainer is not None and any(one.keeps_full_depth() for one in self.trainer.extensions)

    def _draw_gates(self, described: Mapping[str, Any], step: int) -> None:
        """Log an image of the supernet's gate probabilities; dashboards play the images as an animation."""
        path = self.directory / "figures" / "gates" / f"step_{step:06d}.png"
        export.save_panel(build_frame_panel(step, described), path)
        if self._saved_step is None:
            self.tracker.image("search/gates", path, step)

    def _track_report(self, report: EvaluationReport, owner: str, state: TrainerState) -> None:
        """Send the figures of an evaluated data set to the experiment tracker.

        `owner` is the prefix of their names: the name of the set and a slash, or an empty string for the first set.
        """
        is_architecture = report.statistics["unit"] == "architecture"
        self._drop_impossible_values(report.statistics.get("missing", {}))
        adaptation = report.statistics.get("adaptation", {})
        if adaptation and self._has_one_depth():
            adaptation["is_set"] = True
        if self._has_one_depth() or self._keeps_full_depth() or self._has_fixed_depth():
            adaptation.pop("warning", None)
            adaptation.pop("advice", None)
        advice = adaptation.pop("advice", "")
        if adaptation.get("commonest") == report.statistics["max_depth"]:
            advice = drop_deeper_starts(advice)
        if advice := self._select_advice(advice):
            adaptation["advice"] = advice
        figures: dict[str, Any] = flatten_search(report.statistics) if is_architecture else flatten(report.statistics)
        if report.exits is not None:
            figures |= flatten_exits(report.exits)
        figures = {metric_name(name.replace("/", f"/{owner}", 1)): value for name, value in figures.items()}
        scalars = {name: value for name, value in figures.items() if isinstance(value, int | float)}
        self.last_metrics |= scalars
        if not state.is_world_process_zero:
            return
        step = self._get_step(state)
        texts = {name: value for name, value in figures.items() if isinstance(value, str)}
        self.tracker.log({**scalars, **texts}, step)
        for name, value in figures.items():
            if isinstance(value, list):
                self.tracker.histogram(name, value, int(is_architecture), step)  # blocks count from 1
        if not is_architecture:
            table = build_class_table(report.statistics)
            self.tracker.table(metric_name(f"halting/{owner}classes"), *to_records(table), step)


def find_saved_step(args: TrainingArguments, state: TrainerState) -> int:
    """Return the optimiser step whose weights are saved: the best one if its checkpoint is loaded, else the last."""
    return (state.best_global_step if args.load_best_model_at_end else None) or state.global_step


def rename_metrics(logs: Mapping[str, float]) -> dict[str, float]:
    """Rename transformers' metrics for trackers: `eval_x` becomes `eval/x`, any other `x` becomes `train/x`.

    Names from extensions that contain a slash are not changed.
    """
    renamed = {}
    for name, value in logs.items():
        if name in UNLOGGED:
            continue
        prefix, _, rest = name.partition("_")
        if prefix in ("eval", "train") and rest:
            renamed[metric_name(f"{prefix}/{rest}")] = value
        else:
            renamed[metric_name(name if "/" in name else f"train/{name}")] = value
    return renamed
