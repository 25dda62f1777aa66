"""A run from its data and model to its report: what all tasks that train or evaluate share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from pathlib import Path
from typing import Any, Self

from transformers import PreTrainedModel, TrainingArguments

from adadepth.evaluation.evaluation import Evaluation
from adadepth.runs.checkpoints import checkpoint_step, remove_incomplete
from adadepth.runs.directory import CHECKPOINTS, MODEL, Run, open_run, read_record, run_directory
from adadepth.runs.upload import open_repository
from adadepth.settings import ExperimentConfig, Mode
from adadepth.system.console import say
from adadepth.system.files import writing
from adadepth.system.processes import decide
from adadepth.tasks import results
from adadepth.tasks.checks import check_batches, check_memory
from adadepth.tasks.extensions import build_extensions
from adadepth.tasks.identity import check_initial_tokenizer, check_rival_data, store_identity
from adadepth.tasks.log_messages import describe_end, describe_start
from adadepth.tasks.stored import check_weights, finished_before, other_depth, resumed_checkpoint, taken_up
from adadepth.tasks.training_loop import build_trainer, run_training
from adadepth.training.arguments import choose_precision
from adadepth.training.callbacks import StopCallback, TrackingCallback
from adadepth.training.extension import Extension
from adadepth.training.tracking import closing_tracker, logged_before, open_tracker
from adadepth.training.trainer import DepthTrainer


@dataclass
class Session:
    """A training or an evaluation: what a task brings to it and, once it is open, its run and trainer.

    Attributes:
        config: The experiment.
        args: For the trainer.
        data: With `train`, `collate`, `tokenizer` and a `summary`.
        model: What is trained or evaluated.
        evaluation_sets: Examples by the name of their set; the first selects.
        start_evaluation: Begins the evaluation of a set.
        extensions: What its training needs beside the loop.
        baselines: What is achieved on the sets without a model.
        run: Open run: its folder and record.
        trainer: Of the run.
        tracking: Holds the metrics.
        stop: Holds why a training stopped.
    """

    config: ExperimentConfig
    args: TrainingArguments
    data: Any
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
        self, further: Callable[[Self], Any] | None = None, settle: Callable[[Self], Any] | None = None
    ) -> tuple[dict[str, float], Path]:
        """Train in a new folder, or go on in the one to resume.

        Args:
            further: Done with the trained model at the end.
            settle: Changes the trained model before it is evaluated and saved; False: it has not.

        Returns:
            The final metrics, and the folder of the run.
        """
        session, args = self.with_extensions(), self.args
        session.data = check_initial_tokenizer(self.config, session.data)
        check_rival_data(self.config, session.data, self.model)
        check_batches(session.data.train, args)
        check_memory(self.config, args, self.model, session.data.train)
        if (finished := finished_before(self.config, args)) is not None:
            if args.process_index == 0:
                say(f"started again; {finished} is finished")
            return read_record(finished)["final_metrics"], finished
        config = session.config = taken_up(self.config, args)
        repository = decide(args, lambda: open_repository(config))
        directory = decide(args, lambda: run_directory(config))
        checkpoint = None if config.resume is None else resumed_checkpoint(directory, args)
        with session.open(directory, checkpoint):
            metrics = session.fit(checkpoint, settle=settle)
            if further is not None:
                further(session)
            if repository is not None and session.is_main:
                results.push_model(config, session.run, repository)
            return metrics, directory

    def evaluate(self, path: str, further: Callable[[Self], Any] | None = None) -> dict[str, float]:
        """Evaluate the model in a new folder, and write a report.

        Args:
            path: Of the checkpoint that the model came from.
            further: Done with the evaluated model before its metrics are stored.

        Returns:
            The metrics.
        """
        check_weights(self.model, path)
        session = self.with_extensions()
        directory = decide(self.args, lambda: run_directory(self.config))
        with session.open(directory):
            session.trainer.evaluate()
            if further is not None:
                further(session)
            metrics = session.tracking.last_metrics
            session.run.update(final_metrics=metrics, evaluated=path, **other_depth(self.model, path))
            return metrics

    def with_extensions(self) -> Self:
        """Return a session with the extensions that data, family and settings ask for, and examples that fit them."""
        extensions = (*self.extensions, *build_extensions(self.config, self.args, self.model, self.data))

        def complete(examples: Any) -> Any:
            return reduce(lambda completed, extension: extension.examples(completed), extensions, examples)

        train = complete(self.data.train)
        sets = {name: complete(examples) for name, examples in self.evaluation_sets.items()}
        data = self.data if train is self.data.train else replace(self.data, train=train)
        return replace(self, data=data, evaluation_sets=sets, extensions=extensions)

    @contextmanager
    def open(self, directory: Path, checkpoint: Path | None = None) -> Iterator[None]:
        """Open run, tracker and trainer; when they close, however that comes, draw the report of what there is.

        Args:
            directory: Folder of the run.
            checkpoint: What a training goes on with.

        Raises:
            CheckpointError: The checkpoint was trained on something else.
        """
        config, args = self.config, self.args
        args.output_dir = str(directory / CHECKPOINTS)
        if config.mode is Mode.train:
            self.data = store_identity(config, self.data, self.model, checkpoint)
        resume_step = None if checkpoint is None else checkpoint_step(checkpoint)
        logged = 0 if checkpoint is None else logged_before(checkpoint)
        with writing(directory), ExitStack() as last:  # trackers close when the report is written, which some keep
            with (
                self._at_the_end(partial(results.report_run, config, directory, self.model)),
                open_run(config, directory, self.is_main) as self.run,
            ):
                if self.is_main:
                    remove_incomplete(directory / CHECKPOINTS)
                self.run.update(
                    data=self.data.summary,
                    baselines=self.baselines,
                    precision=choose_precision(config.trainer),
                    parameters=sum(parameter.numel() for parameter in self.model.parameters()),
                )
                tracker = open_tracker(config, self.run, resume_step, logged)
                last.enter_context(closing_tracker(tracker))
                self.trainer, self.tracking, self.stop = build_trainer(
                    config,
                    args,
                    self.run,
                    tracker,
                    self.model,
                    self.data,
                    self.evaluation_sets,
                    self.start_evaluation,
                    self.extensions,
                )
                if self.is_main:
                    say(describe_start(config, args, self.run, self.model, self.data))
                with self._at_the_end(lambda: results.draw_results(self.run, tracker, self.trainer.state.global_step)):
                    yield
            if self.is_main:
                results.track_artifacts(config, directory, tracker)

    def fit(
        self,
        checkpoint: Path | None,
        *,
        folder: str = MODEL,
        owner: Path | None = None,
        settle: Callable[[Self], Any] | None = None,
    ) -> dict[str, float]:
        """Train, evaluate the best checkpoint, and save the model.

        Args:
            checkpoint: What the training goes on with.
            folder: Where in the run the model is saved.
            owner: Folder of the run that this one is a part of, which is what goes on after an interruption.
            settle: See `train`.

        Returns:
            The final metrics.

        Raises:
            SystemExit: After Ctrl-C or SIGTERM, once a checkpoint is written.
            DivergedError: If the weights or losses are not finite.
        """
        trainer, tracking, stop, directory = self.trainer, self.tracking, self.stop, self.run.directory
        run_training(self.config, trainer, stop, directory, checkpoint, owner or directory)
        if self.is_main:
            say(f"training ended: {describe_end(self.config, trainer.args, stop, trainer.state)}")
        is_changed = settle is not None and settle(self) is not False
        if is_changed or tracking.needs_final_evaluation(trainer.state):
            with tracking.muted():
                trainer.evaluate()
        results.show_grid(trainer)
        results.time_executions(self.config, self.run, trainer, tracking)
        metrics = tracking.last_metrics
        results.save_model(self.config, self.run, trainer, folder, final_metrics=metrics, stopped_because=stop.reason)
        if (objective := metrics.get(self.config.optimise)) is not None:
            tracking.tracker.objective(objective)
        return metrics

    @property
    def is_main(self) -> bool:
        """Whether this process is the one that writes."""
        return self.args.process_index == 0

    @contextmanager
    def _at_the_end(self, do: Callable[[], None]) -> Iterator[None]:
        """Let the main process do something however the block ends; no full disk takes the place of its error."""
        try:
            yield
        except BaseException:
            with suppress(OSError):
                if self.is_main:
                    do()
            raise
        if self.is_main:
            do()
