"""What all training tasks share: an open run with its tracker and trainer, training it, and finding its checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from hydra.core.hydra_config import HydraConfig
from transformers import PreTrainedModel, PrinterCallback, ProgressCallback, TrainingArguments

from adadepth.data.batches import known_lengths
from adadepth.data.streams.contiguous import StreamBatches
from adadepth.errors import CheckpointError, ConfigError
from adadepth.evaluation.evaluation import Evaluation
from adadepth.families.contract import HoldsBudget
from adadepth.families.registry import family, met
from adadepth.families.size import check_batch, least_bytes, total_memory
from adadepth.measure.pictures import PUZZLE, grid_picture, puzzle_picture
from adadepth.report.run_files import read_run
from adadepth.report.sentences import sentence_table
from adadepth.report.work import describe_speeds
from adadepth.report.worth import as_json
from adadepth.report.writing import REPORT
from adadepth.runs.checkpoints import checkpoint_step, remove_incomplete
from adadepth.runs.data_identity import DataIdentity
from adadepth.runs.directory import (
    CHECKPOINTS,
    MODEL,
    RECORD,
    Run,
    open_run,
    read_record,
    run_directory,
)
from adadepth.runs.model_card import CARD, write_card
from adadepth.runs.program import continuation_command
from adadepth.runs.upload import open_repository, push
from adadepth.settings import BudgetUnit, ExperimentConfig, Mode, Task, TokenizerConfig
from adadepth.settings.experiment import Kept
from adadepth.settings.kinds import called, kind_of, positions_read
from adadepth.settings.modes import modes
from adadepth.settings.plugins import load
from adadepth.system.console import say
from adadepth.system.files import describe_files, writing
from adadepth.system.hardware import describe_machine
from adadepth.system.processes import decide
from adadepth.system.signals import pass_on
from adadepth.tasks.identity import check_initial_tokenizer, check_resumed_data, check_rival_data
from adadepth.tasks.next_commands import commands_after
from adadepth.tasks.report import draw_run_figures, judge, show_last_screen, write_run_report
from adadepth.tasks.stored import (
    check_weights,
    checked_model_path,
    finished_before,
    other_depth,
    resumed_checkpoint,
    taken_up,
)
from adadepth.tasks.telling import beginning, best_of, limit_of, why_ended
from adadepth.training.arguments import choose_precision
from adadepth.training.averaging import WeightAverage
from adadepth.training.callbacks import (
    EarlyStoppingCallback,
    EpochCallback,
    StepCallback,
    StopCallback,
    TrackingCallback,
)
from adadepth.training.extension import Batch, Extension
from adadepth.training.held_depth import TrainingBudget, full_depth
from adadepth.training.remaining import ConsoleCallback, ProgressBarCallback
from adadepth.training.speed import compare_executions, profiled
from adadepth.training.trackers.base import Tracker
from adadepth.training.tracking import (
    LogPosition,
    closing_tracker,
    logged_before,
    open_tracker,
    scalars,
)
from adadepth.training.trainer import DepthTrainer

_KEPT = {Kept.report: REPORT, Kept.model: MODEL}
_SECONDS_OF_TIMING = 4.0  # for evaluation, and as many for training; a run of seconds times one batch


@dataclass(frozen=True)
class Parts:
    """What a task brings to a run: its data, its evaluation sets by name, how each is evaluated, and its model.

    `extensions` are what its training needs beside the loop, see `equipped`; `baselines` what is achieved on the sets
    without a model.
    """

    data: Any
    evaluation_sets: Mapping[str, Any]
    start_evaluation: Callable[[str], Evaluation]
    model: PreTrainedModel
    extensions: tuple[Extension, ...] = ()
    baselines: Mapping[str, Any] = field(default_factory=dict)


class Trained(NamedTuple):
    """What came of a training: its final metrics, and the folder of its run."""

    metrics: dict[str, float]
    directory: Path


@dataclass(frozen=True)
class Session:
    """An open run: its settings, folder and record, its trainer, and the callbacks that hold results."""

    config: ExperimentConfig
    run: Run
    trainer: DepthTrainer
    tracking: TrackingCallback
    stop: StopCallback


@contextmanager
def open_session(
    config: ExperimentConfig,
    args: TrainingArguments,
    directory: Path,
    parts: Parts,
    checkpoint: Path | None = None,
) -> Iterator[Session]:
    """Open run, tracker and trainer; when they close, however that comes, draw the report of what there is."""
    is_main = args.process_index == 0
    args.output_dir = str(directory / CHECKPOINTS)
    if config.mode is Mode.train:
        parts = with_training_data(config, parts, checkpoint)
    resume_step = None if checkpoint is None else checkpoint_step(checkpoint)
    logged = 0 if checkpoint is None else logged_before(checkpoint)
    with writing(directory), ExitStack() as last:  # trackers close when the report is written, which some of them keep
        with (
            _at_the_end(partial(_report, config, directory, parts.model), is_main),
            open_run(config, directory, is_main) as run,
        ):
            if is_main:
                remove_incomplete(directory / CHECKPOINTS)
            run.update(
                data=parts.data.summary,
                baselines=parts.baselines,
                precision=choose_precision(config.trainer),
                parameters=sum(parameter.numel() for parameter in parts.model.parameters()),
            )
            tracker = open_tracker(config, run, resume_step, logged)
            last.enter_context(closing_tracker(tracker))
            session = _assemble(config, args, run, tracker, parts)
            if is_main:
                say(_beginning(config, run, args, parts))
            with _at_the_end(partial(_show, session), is_main):
                yield session
        for kind in config.logger.artifacts if is_main else ():
            if (kept := directory / _KEPT[kind]).exists():  # an evaluation has no model of its own
                tracker.artifact(str(kind), kept)


def with_training_data(config: ExperimentConfig, parts: Parts, checkpoint: Path | None) -> Parts:
    """Let the model carry what it is trained on; refuse to go on with a checkpoint that was trained on something else.

    Raises:
        CheckpointError: See `check_resumed_data`.
    """
    data = parts.data
    if checkpoint is not None:
        data = check_resumed_data(config, data, parts.model, checkpoint)
    DataIdentity.from_data(config.dataset, data).write_to(parts.model.config)
    return replace(parts, data=data)


@contextmanager
def _at_the_end(do: Callable[[], None], is_main: bool) -> Iterator[None]:
    """Let the main process do something however the block ends; no full disk takes the place of the block's error."""
    try:
        yield
    except BaseException:
        with suppress(OSError):
            if is_main:
                do()
        raise
    if is_main:
        do()


def _show(session: Session) -> None:
    """Keep the verdict, and draw the figures, of what there is."""
    _judge(session.run)
    track_figures(session.run.directory, session.tracking.tracker, session.trainer.state.global_step)


def _beginning(config: ExperimentConfig, run: Run, args: TrainingArguments, parts: Parts) -> str:
    is_training = config.mode is Mode.train
    needed = _needed_memory(parts, args) if is_training else None
    limit = limit_of(config, args) if is_training else None
    return beginning(run.record, run.directory, args, parts.data.summary, needed=needed, limit=limit)


def _report(config: ExperimentConfig, directory: Path, model: PreTrainedModel) -> None:
    """Write the report, and show the last screen; of a folder that is no run nothing."""
    if not (directory / RECORD).is_file():
        return
    report = write_run_report(directory)
    is_training = config.mode is Mode.train
    if is_training and (config.rival_of is not None or config.task is Task.architecture_search):
        say(f"report: {report}")  # the last screen is that of what it is a part of
        return
    show_last_screen(directory, report, commands_after(config, directory, model) if is_training else [])


def train_parts(
    config: ExperimentConfig,
    args: TrainingArguments,
    parts: Parts,
    further: Callable[[Session], Any] | None = None,
    settle: Callable[[Session], Any] | None = None,
) -> Trained:
    """Train in a new folder, or go on in the one to resume; `further` is done with the trained model at the end.

    `settle` changes the trained model before it is evaluated and saved; False: it has not.
    """
    parts = equipped(config, args, parts)
    parts = replace(parts, data=check_initial_tokenizer(config, parts.data))
    check_rival_data(config, parts.data, parts.model)
    check_batches(parts, args)
    check_memory(config, parts, args)
    if (finished := finished_before(config, args)) is not None:
        if args.process_index == 0:
            say(f"started again; {finished} is finished")
        return Trained(read_record(finished)["final_metrics"], finished)
    config = taken_up(config, args)
    repository = decide(args, lambda: open_repository(config))
    directory = decide(args, lambda: run_directory(config))
    checkpoint = None if config.resume is None else resumed_checkpoint(directory, args)
    with open_session(config, args, directory, parts, checkpoint) as session:
        metrics = fit(session, checkpoint, settle=settle)
        if further is not None:
            further(session)
        if repository is not None and session.trainer.is_world_process_zero():
            _push(session, repository)
        return Trained(metrics, directory)


def evaluate_parts(
    config: ExperimentConfig,
    args: TrainingArguments,
    parts: Parts,
    path: str,
    further: Callable[[Session], Any] | None = None,
) -> dict[str, float]:
    """Evaluate the model that came from `path` in a new folder, and write a report; returns the metrics.

    `further` is done with the evaluated model before that.
    """
    check_weights(parts.model, path)
    parts = equipped(config, args, parts)
    directory = decide(args, lambda: run_directory(config))
    with open_session(config, args, directory, parts) as session:
        session.trainer.evaluate()
        if further is not None:
            further(session)
        session.run.update(
            final_metrics=session.tracking.last_metrics, evaluated=path, **other_depth(parts.model, path)
        )
        return session.tracking.last_metrics


def fit(
    session: Session,
    checkpoint: Path | None,
    *,
    folder: str = MODEL,
    owner: Path | None = None,
    settle: Callable[[Session], Any] | None = None,
) -> dict[str, float]:
    """Train, evaluate the best checkpoint, save the model into a folder of the run; returns the final metrics.

    `owner` is the run that this one is a part of, which is what goes on after an interruption; for `settle` see
    `train_parts`.

    Raises:
        SystemExit: After Ctrl-C or SIGTERM, once a checkpoint is written.
        DivergedError: If the weights or losses are not finite.
    """
    trainer, run = session.trainer, session.run
    if checkpoint is not None:
        trainer.args.eval_on_start = False
    profiles = session.config.trainer.profiler and trainer.is_world_process_zero()
    with session.stop.listening(), profiled(trainer, run.directory) if profiles else nullcontext():
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    if session.stop.signal is not None:
        if trainer.is_world_process_zero():
            whole = owner or run.directory
            say(f"{session.stop.why()} at step {trainer.state.global_step}")
            say(f"continue: {continuation_command(whole)}")
        pass_on(session.stop.signal)
        raise SystemExit(128 + session.stop.signal)
    trainer.refuse_weights()
    if trainer.is_world_process_zero():
        told = (why_ended(session.config, session.stop, trainer.state), best_of(trainer.args, trainer.state))
        say(f"training ended: {'; '.join(filter(None, told))}")
    is_changed = settle is not None and settle(session) is not False
    if is_changed or session.tracking.needs_final_evaluation(trainer.state):
        with session.tracking.muted():
            trainer.evaluate()
    _show_grid(session)
    _time_executions(session)
    with writing(run.directory / folder):
        trainer.save_model(str(run.directory / folder))
    best = trainer.state.best_model_checkpoint
    saved = describe_files(run.directory / folder, but=CARD) if trainer.is_world_process_zero() else {}
    run.update(
        saved={**run.record.get("saved", {}), folder: saved},
        final_metrics=session.tracking.last_metrics,
        best_checkpoint=None if best is None else Path(best).name,
        stopped_because=session.stop.reason,
        steps={"done": trainer.state.global_step, "planned": trainer.state.max_steps},
    )
    if (objective := session.tracking.last_metrics.get(session.config.optimise)) is not None:
        session.tracking.tracker.objective(objective)
    if trainer.is_world_process_zero():
        first_set = next(iter(trainer.evaluation_sets))
        write_card(run.directory / folder, session.config, run.record, trainer.unwrapped_model, first_set)
    return session.tracking.last_metrics


def _push(session: Session, repository: str) -> None:
    """Upload the model of a run, and say where it is."""
    message = f"{session.config.name}, run {session.run.directory.name}"
    if address := push(session.run.directory / MODEL, repository, message):
        session.run.update(pushed_to=address)
        say(f"model: {address}")


def _show_grid(session: Session) -> None:
    """An example of what was allocated where, for tasks that have a picture."""
    grids = [report.grids for report in session.trainer.last_reports.values() if report.grids]
    if grids and session.trainer.is_world_process_zero():
        draw = puzzle_picture if grids[0][0]["kind"] == PUZZLE else grid_picture
        say(f"\n{draw(grids[0][0])}\n")


def _time_executions(session: Session) -> None:
    """How much faster evaluation and training of the trained model are for leaving out halted tokens."""
    trainer, tracking = session.trainer, session.tracking
    seconds = 0.0 if session.config.small else _SECONDS_OF_TIMING
    speeds = {}
    for kind, metric in (("evaluation", "cost/speedup_over_dense"), ("training", "cost/training_speedup_over_dense")):
        found = compare_executions(trainer, seconds=seconds, training=kind == "training")
        if found is None or not trainer.is_world_process_zero():
            continue
        speeds[kind] = found._asdict()
        tracking.last_metrics[metric] = found.speedup
        tracking.tracker.log({metric: found.speedup}, trainer.state.global_step)
    if speeds:
        width = getattr(trainer.unwrapped_model.config, "hidden_size", None)
        session.run.update(executions={"machine": describe_machine(trainer.args.device), "width": width, **speeds})
        say(describe_speeds(session.run.record["executions"]))


def _judge(run: Run) -> None:
    """Keep in the record whether depth adapts, whether that is worth it and what it cost."""
    if verdict := judge(run.directory):
        run.update(verdict=as_json(verdict))


def track_figures(directory: Path, tracker: Tracker, step: int) -> None:
    """Draw a run's figures, and show them and the example sentences in the dashboards."""
    columns, rows = sentence_table(read_run(directory).sentences)
    if rows:
        tracker.table("halting/sentences", columns, rows, step)
    for figure in (path for path in draw_run_figures(directory) if path.suffix != ".pdf"):
        show = tracker.animation if figure.suffix == ".gif" else tracker.image
        show(f"figures/{figure.stem}", figure, step)


def _assemble(config: ExperimentConfig, args: TrainingArguments, run: Run, tracker: Tracker, parts: Parts) -> Session:
    stop, epochs = StopCallback(config.trainer.time_budget_minutes), EpochCallback()
    tracking = TrackingCallback(tracker, run.directory, has_target=config.budget.target is not None)
    tracking.last_metrics = scalars(run.directory)
    budget, is_averaged = config.trainer.time_budget_minutes, config.trainer.ema_decay is not None
    console = ConsoleCallback(budget, is_averaged=is_averaged)
    callbacks = [epochs, stop, tracking, console, StepCallback()]
    if config.trainer.early_stopping_patience is not None:
        threshold = config.trainer.early_stopping_threshold
        callbacks.append(EarlyStoppingCallback(config.trainer.early_stopping_patience, threshold))
    trainer = DepthTrainer(
        parts.model,
        args,
        parts.data,
        parts.evaluation_sets,
        parts.start_evaluation,
        config.trainer,
        callbacks,
        (
            *parts.extensions,
            LogPosition(run.directory),
        ),
    )
    trainer.remove_callback(PrinterCallback)
    if trainer.pop_callback(ProgressCallback) is not None:
        trainer.add_callback(ProgressBarCallback)
    tracking.trainer = epochs.trainer = console.trainer = trainer
    return Session(config, run, trainer, tracking, stop)


def equipped(config: ExperimentConfig, args: TrainingArguments, parts: Parts) -> Parts:
    """Parts with the extensions that the kind of data, the family and the settings ask for, and examples that fit."""
    places = (*kind_of(config.dataset).extensions, *family(config.model.name).extensions)
    known = {"config": config, "args": args, "model": parts.model, "data": parts.data, "seed": config.seed}
    named: list[Extension] = [each for place in places if (each := called(place, **known)) is not None]
    extensions = (*parts.extensions, *named, *_of_settings(config, parts.model, args.device, named))

    def completed(examples: Any) -> Any:
        return reduce(lambda found, extension: extension.examples(found), extensions, examples)

    train = completed(parts.data.train)
    sets = {name: completed(examples) for name, examples in parts.evaluation_sets.items()}
    data = parts.data if train is parts.data.train else replace(parts.data, train=train)
    return replace(parts, data=data, evaluation_sets=sets, extensions=extensions)


def _of_settings(
    config: ExperimentConfig, model: PreTrainedModel, device: torch.device, others: Sequence[Extension]
) -> Iterator[Extension]:
    """What holds the depth of training, and what averages its weights, where the user set that."""
    if config.mode is Mode.train and met(config) == "held":
        learned = partial(_teaches_depth, others)
        yield TrainingBudget(config.budget, cast(HoldsBudget, model), device, learned)
    if config.trainer.ema_decay is not None:
        yield WeightAverage(model, config.trainer.ema_decay)


def _teaches_depth(extensions: Sequence[Extension], batch: Batch) -> bool:
    return all(each.teaches_depth(batch) for each in extensions)


def evaluated_checkpoint(config: ExperimentConfig) -> tuple[str, list[str], TokenizerConfig]:
    """What an evaluation reads: a folder or hub id, the settings laid over the model's own, and the tokenizer.

    That is the model's own, unless the configuration names another.
    """
    path = checked_model_path(config)
    tokenizer = config.tokenizer if config.tokenizer.path is not None else TokenizerConfig(path=path)
    return path, overridden_model_settings(), tokenizer


def check_batches(parts: Parts, args: TrainingArguments) -> None:
    """Whether there is a full batch, where only full ones are read: nothing would be learned otherwise.

    Raises:
        ConfigError: If there is none.
    """
    train, rows = parts.data.train, args.train_batch_size * args.world_size
    counts_examples = isinstance(train, Sized) and not isinstance(train, StreamBatches)
    if args.dataloader_drop_last and counts_examples and len(train) < rows:
        of_all = f" in each of {args.world_size} processes" if args.world_size > 1 else ""
        raise ConfigError(
            f"trainer.per_device_train_batch_size={args.train_batch_size}: there are {len(train):,} training examples, "
            f"and trainer.dataloader_drop_last=true leaves out a batch that they do not fill{of_all}"
        )


def check_memory(config: ExperimentConfig, parts: Parts, args: TrainingArguments) -> None:
    """Whether a micro-batch of the shortest examples can be trained, where their lengths are known.

    Raises:
        ConfigError: With what it needs, by parts, and a batch that fits where an installed mode names one; or the model
            has nothing that it could compute again to need less.
    """
    if args.gradient_checkpointing and not parts.model.supports_gradient_checkpointing:
        name = parts.model.config.model_type
        raise ConfigError(f"trainer.gradient_checkpointing=true: model={name} computes nothing again; leave it false")
    if (batch := _shortest_batch(parts, args)) is not None:
        lengths, options = batch
        try:
            check_batch(parts.model, lengths, **options)
        except ConfigError as error:
            raise ConfigError(f"{error}{_smaller(config)}") from error


def _smaller(config: ExperimentConfig) -> str:
    """Say which batch of the longest examples fits into all memory there is, where an installed mode estimates it."""
    places = [mode.batch_advice for mode in modes().values() if mode.batch_advice is not None]
    try:
        known = (config, total_memory(), choose_precision(config.trainer))
        return "".join(f"; {load(place)(*known)}" for place in places)
    except Exception:  # the refusal stands without it, also of a model whose step cannot be rehearsed
        return ""


def _needed_memory(parts: Parts, args: TrainingArguments) -> int | None:
    """Bytes that an update takes at the least; None where the lengths of the examples are not known."""
    if (batch := _shortest_batch(parts, args)) is None:
        return None
    lengths, options = batch
    return least_bytes(parts.model, lengths, **options)[0]


def _shortest_batch(parts: Parts, args: TrainingArguments) -> tuple[Sequence[int], dict[str, Any]] | None:
    """The lengths of a micro-batch of the shortest examples, and what else `least_bytes` asks for."""
    train = parts.data.train
    if isinstance(train, StreamBatches):
        shape = train[0]["input_ids"].shape
        lengths = [shape[1]] * shape[0]
    elif (found := known_lengths(train)) is not None:
        lengths = np.sort(found)[: args.train_batch_size].tolist()
    else:
        return None
    width = 2 if args.bf16 or args.fp16 else 4
    return lengths, {"width": width, "processes": args.world_size, "recomputed": bool(args.gradient_checkpointing)}


def check_positions(config: ExperimentConfig, model: Any) -> None:
    """Whether a model can read sequences as long as the settings ask for; vectors have no positions."""
    positions = model.longest_sequence
    key, needed = positions_read(config.dataset)
    if positions is not None and needed > positions:
        raise CheckpointError(f"{key}={needed}: the model has only {positions} positions")


def check_depth(config: ExperimentConfig, model: Any) -> None:
    """Whether a model whose size the settings do not tell has as much depth as its budget asks for.

    Raises:
        ConfigError: If it has less.
    """
    budget = config.budget
    if budget.unit is BudgetUnit.milliseconds:
        return
    full = full_depth(budget.unit, model)
    held = [] if config.mode is Mode.evaluate else [("budget.target", budget.target)]  # what only training reads
    targets = [*held, *(("budget.targets", target) for target in budget.targets)]
    for key, target in targets:
        if target is not None and target > full:
            raise ConfigError(f"{key}={target:g}: must be at most {full:g}, in {budget.unit}")


def overridden_model_settings() -> list[str]:
    """The `model.*` settings given on the command line, which are laid over a checkpoint's own."""
    return [key.removeprefix("model.") for key in given_overrides() if key.startswith("model.")]


def given_overrides() -> list[str]:
    """Return the groups and keys that the command line sets, as they were given."""
    overrides = HydraConfig.get().overrides.task if HydraConfig.initialized() else []
    return [override.lstrip("+~").partition("=")[0] for override in overrides]
