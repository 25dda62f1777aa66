"""The training loop: transformers' Trainer, with losses normalised over the whole update and streaming evaluation.

transformers owns the loop, precision, accumulation, distribution, checkpoints and resume. What is added here: loss
parts normalised by the counts of the whole optimiser step, over micro-batches and processes; their logging and the
check that they are finite; evaluation of several sets that keeps what the task wants; the optimizer and the schedule.
What only some runs have is an `Extension`.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, Subset
from transformers import (
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer import SCALER_NAME, SCHEDULER_NAME, TRAINING_ARGS_NAME
from transformers.trainer_utils import EvalLoopOutput

from adadepth.data.batches import EpochSampler, evaluation_order
from adadepth.data.streams.contiguous import StreamBatches
from adadepth.evaluation.evaluation import Evaluation
from adadepth.evaluation.predictions import merge_processes, seeded_exits
from adadepth.evaluation.scorer import EvaluationReport
from adadepth.families.heads import check_output
from adadepth.measure.exit_records import StepRecorder, StepRecords
from adadepth.runs.checkpoints import begin_checkpoint, nothing_if_full, rotate, seal_checkpoint
from adadepth.settings import TrainerConfig
from adadepth.settings.interpolations import holds_environment
from adadepth.system.console import say
from adadepth.system.places import quiet
from adadepth.training.extension import Extension
from adadepth.training.joint_batches import in_step, is_read, shared_loader, sum_over_update
from adadepth.training.model_tokenizer import fit_tokenizer
from adadepth.training.optimization import build_optimizer, build_schedule
from adadepth.training.progress import DivergedError, TrainingProgress, first_not_finite, infinite_loss, refuse
from adadepth.training.resuming import (
    moved_best,
    read_progress,
    read_stateless,
    reading,
    refuse_missing_weights,
    reseed_for_world_size,
    save_progress,
    written_world_size,
)
from adadepth.training.selection import fill_undefined
from adadepth.training.sharding import let_go, share_out
from adadepth.training.shards import (
    begin_writing,
    gather_weights,
    is_sharded,
    load_optimizer,
    load_weights,
    save_settings,
)
from adadepth.training.speed import Stopwatch, count_tokens
from adadepth.training.stored_states import (
    check_like,
    check_random_file,
    check_schedule,
    parameter_names,
    stateless_parameters,
)


class Saving(NamedTuple):
    """A checkpoint that is being written; `written` is done when it is whole, None: it is."""

    checkpoint: Path
    written: Future[Any] | None


class TrainingData(Protocol):
    """What the trainer reads of a task's data."""

    train: Any
    tokenizer: Any
    collate: Callable[[list[dict[str, Any]]], dict[str, Tensor]]


class DepthTrainer(Trainer):
    """Trains any `DepthModel`; see `adadepth.families.contract`.

    Args:
        model: What is trained.
        args: From `training_arguments`.
        data: Training examples, collator and tokenizer. Items of `StreamBatches` are whole batches, in order.
        evaluation_sets: What is evaluated, by name; the first set selects the best model, and the metrics of the others
            carry their names.
        start_evaluation: Begins the evaluation of the set of that name.
        settings: The trainer settings that transformers does not have.
        callbacks: Beside those of the extensions.
        extensions: What this run adds to training.
    """

    # The loss of a micro-batch is its share of the whole update: nothing is left to divide by.
    loss_is_scaled_for_ga = True

    def __init__(
        self,
        model: PreTrainedModel,
        args: TrainingArguments,
        data: TrainingData,
        evaluation_sets: Mapping[str, Any],
        start_evaluation: Callable[[str], Evaluation],
        settings: TrainerConfig,
        callbacks: list[Any] | None = None,
        extensions: Sequence[Extension] = (),
    ) -> None:
        self.data = data
        self.evaluation_sets = evaluation_sets
        self.start_evaluation = start_evaluation
        self.settings = settings
        self.extensions = extensions
        self.progress = TrainingProgress(args)
        self.last_reports: dict[str, EvaluationReport] = {}
        self.resumed_from: Path | None = None
        self._saving: Saving | None = None
        self.train_sampler: EpochSampler | None = None
        self._checked: set[str] = set()
        self._has_whole_batches = isinstance(data.train, StreamBatches)
        self._forward_names = set(inspect.signature(model.forward).parameters)
        super().__init__(
            model=model,
            args=args,
            train_dataset=data.train,
            eval_dataset=next(iter(evaluation_sets.values())),
            data_collator=itemgetter(0) if self._has_whole_batches else data.collate,
            processing_class=fit_tokenizer(model, data.tokenizer),
            callbacks=[ResumeCallback(self), *(callbacks or [])],
        )
        for extension in extensions:
            if isinstance(extension, TrainerCallback):
                self.add_callback(extension)
        # Releases before `loss_is_scaled_for_ga` decide by this flag and by counts that are not None.
        self.model_accepts_loss_kwargs = True

    def create_accelerator_and_postprocess(self) -> None:
        """Make what distributes the model; with `trainer.fsdp` it shards, see `share_out`."""
        super().create_accelerator_and_postprocess()
        if self.args.fsdp:
            share_out(self.accelerator, self.model, self.args.fsdp_plugin_args)
            self.is_fsdp_enabled = True

    @property
    def unwrapped_model(self) -> Any:
        """The model without what precision and distribution put around it."""
        return self.accelerator.unwrap_model(self.model)

    @property
    def _checkpoints(self) -> Path:
        """The folder of this run's checkpoints."""
        return Path(str(self.args.output_dir))

    # ---- data

    def get_train_dataloader(self) -> DataLoader:
        """Return the batches of one epoch.

        accelerate would fill up the last batches of several processes with examples that were already read, and share
        out a stream that has done so itself.
        """
        if isinstance(self.train_dataset, IterableDataset):
            return self._loader(self.train_dataset, self.args.train_batch_size, drop_last=True)
        assert isinstance(self.data.train, Sized), "has no epochs otherwise"
        self.train_sampler = EpochSampler(len(self.data.train), None if self._has_whole_batches else self.args.seed)
        if self._has_whole_batches:
            return self._loader(self.train_dataset, 1, sampler=self.train_sampler)
        return shared_loader(self.data.train, self.data.collate, self.train_sampler, self.args)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        """This process's share of an evaluation set, by length: every example exactly once over all processes."""
        dataset: Any = self.eval_dataset if eval_dataset is None else eval_dataset
        if self._has_whole_batches:
            return self._loader(dataset, 1)
        share = evaluation_order(dataset)[self.args.process_index :: self.args.world_size]
        return self._loader(Subset(dataset, share.tolist()), self.args.eval_batch_size)

    def _loader(self, dataset: Any, batch_size: int, **options: Any) -> DataLoader:
        return DataLoader(
            dataset,
            batch_size=batch_size,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
            **options,
        )

    def prepare_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Let the extensions complete a batch, and move it to the device."""
        for extension in self.extensions:
            batch = extension.prepare(batch, self.unwrapped_model)
        return self._prepare_inputs(batch)

    def model_inputs(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The part of a batch that the model's forward names; the rest is for statistics."""
        return {name: value for name, value in batch.items() if name in self._forward_names}

    # ---- an update

    def get_batch_samples(
        self, epoch_iterator: Iterator, num_batches: int, device: torch.device
    ) -> tuple[list, dict[str, Tensor]]:
        """Return the micro-batches of one update, and the target counts that normalise each loss part over all of it.

        Nothing is read where a resumed run was at its end: transformers makes an update before it looks.
        """
        batches = [] if self.control.should_training_stop else list(islice(epoch_iterator, num_batches))
        if not batches:
            return batches, {}
        counts = [self._count_targets(batch) for batch in batches]
        own_tokens = torch.stack([count_tokens(batch) * is_read(batch) for batch in batches]).sum()
        totals, tokens = sum_over_update(counts, own_tokens, device, self.args.world_size)
        self.progress.begin_step(tokens)
        return batches, totals

    def _count_targets(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What each loss part of a micro-batch is divided by."""
        own = {name: count for one in self.extensions for name, count in one.counts(batch).items()}
        counts = {**self.unwrapped_model.count_targets(batch), **own}
        return {name: count * is_read(batch) for name, count in counts.items()}

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Mapping[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: dict[str, Tensor] | None = None,
    ) -> Any:
        """The loss of a micro-batch as its share of the update's, 0 of a stand-in; its parts are kept for the log."""
        counts = {name: count * is_read(inputs) for name, count in (num_items_in_batch or {}).items()}
        options = {name: value for one in self.extensions for name, value in one.forward_options(inputs).items()}
        outputs = model(**self.model_inputs(inputs), **options, num_targets=counts)
        self._check("", outputs)
        self.progress.record_loss(outputs.loss * is_read(inputs))
        for extension in self.extensions:
            extension.after_forward(inputs, outputs)
            for name, part in extension.loss_parts(outputs, counts).items():
                outputs.loss_parts[name] = part
                outputs.loss = outputs.loss + part
        outputs.loss = outputs.loss * is_read(inputs)
        for name, part in outputs.loss_parts.items():
            self.progress.record(name, part.detach() * is_read(inputs), self.state.global_step + 1)
        return (outputs.loss, outputs) if return_outputs else outputs.loss

    def _check(self, name: str, outputs: Any) -> None:
        """Whether the output of a first batch, of an evaluation set or of training, is what its kind of head has."""
        if name not in self._checked:
            check_output(self.unwrapped_model, outputs)
            self._checked.add(name)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Run the forward and backward passes of a micro-batch."""
        model.train()  # an extension completes the batch for a pass of training
        batch = self.prepare_batch(inputs)
        loss = super().training_step(model, batch, num_items_in_batch)
        for extension in self.extensions:
            extension.after_backward(batch, model)
        return loss

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """See `build_optimizer`; extensions may take care of some parameters themselves."""
        if self.optimizer is None:
            trained: Any = self.model if model is None else model
            own = [group for one in self.extensions for group in one.parameter_groups(trained, self.settings)]
            self.optimizer = build_optimizer(trained, self.settings, own)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> Any:
        """Make the schedule of `build_schedule` where there is none."""
        if self.lr_scheduler is None:
            scheduled: Any = optimizer or self.optimizer
            scheduler: Any = build_schedule(scheduled, self.settings, num_training_steps)
            self.lr_scheduler = scheduler
            self._created_lr_scheduler = True
        return self.lr_scheduler

    # ---- the log

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Train, with the clock of the speed set.

        transformers warns of a resumed run that its settings are not the checkpoint's, and that one at its end reads no
        batch; both are meant.
        """
        self.resumed_from = Path(resume_from_checkpoint) if resume_from_checkpoint else None
        self.progress.begin()
        if self.resumed_from is None:
            return super().train(None, *args, **kwargs)
        with quiet():
            return super().train(resume_from_checkpoint, *args, **kwargs)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log, adding the mean of every loss part since the last training log."""
        if "loss" in logs:
            refuse(self.progress.problem(), self._checkpoints)
            logs |= self.progress.drain()
            for extension in self.extensions:
                logs |= extension.logs()
        logs.pop("total_flos", None)  # counts tied weights once; `cost/*` prices the work that was done
        super().log(logs, start_time)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate, unless training has diverged; the time it takes does not count against the training speed."""
        begun = time.perf_counter()
        if self.is_in_train:
            refuse(self.progress.problem(), self._checkpoints)
            self.refuse_weights()
        metrics = super().evaluate(*args, **kwargs)
        self.progress.pause(time.perf_counter() - begun)
        return fill_undefined(metrics, self.args.metric_for_best_model)

    # ---- evaluation

    def evaluation_loop(
        self,
        dataloader: DataLoader,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Evaluate every set in one pass; what is kept of a batch is the task's to decide."""
        self.last_reports = {}
        values: dict[str, float] = {}
        evaluations: dict[str, Evaluation] = {}
        for number, (name, dataset) in enumerate(self.evaluation_sets.items()):
            with self._showing():
                evaluations[name], speed = self.evaluate_set(name, dataset)
            self._refuse_evaluation(evaluations[name])
            prefix = f"{metric_key_prefix}_{name}/" if number else f"{metric_key_prefix}_"
            metrics = evaluations[name].metrics() | {"tokens_per_second": speed}
            values |= {prefix + metric: value for metric, value in metrics.items()}
        for name, evaluation in evaluations.items():  # a report may tell the metrics of other sets
            if (report := evaluation.report()) is not None:
                self.last_reports[name] = report
        nothing: Any = None  # predictions are not kept
        examples = sum(len(dataset) for dataset in self.evaluation_sets.values())
        return EvalLoopOutput(nothing, nothing, values, num_samples=examples)

    def _refuse_evaluation(self, evaluation: Evaluation) -> None:
        """Stop where a loss of a whole set is no number, before anything is made of it."""
        problem = infinite_loss(evaluation.losses())
        if problem is None:
            return
        if self.is_in_train:
            refuse(f"the evaluation at step {self.state.global_step} is not finite: {problem}", self._checkpoints)
        raise DivergedError(f"the final evaluation is not finite: {problem}")

    @contextmanager
    def _showing(self) -> Iterator[None]:
        """While it lasts the model has the weights that are evaluated and saved."""
        with ExitStack() as stack:
            for extension in self.extensions:
                stack.enter_context(extension.showing())
            yield

    def evaluate_set(self, name: str, dataset: Any) -> tuple[Evaluation, float]:
        """The evaluation of a set, merged over processes, and its tokens per second."""
        evaluation, watch = self.start_evaluation(name), Stopwatch(self.args.device)
        for batch, outputs in watch.time(self.forward_passes(dataset, evaluation.options)):
            if outputs.loss is not None:  # sentences without targets have none
                self._check(name, outputs)
            evaluation.update(batch, outputs)
        evaluation.merge()
        return evaluation, watch.tokens_per_second()

    def records(self, dataset: Any, **options: Any) -> StepRecords:
        """What every example of a set gets from the model; `options` go to its forward pass."""
        recorder, options = StepRecorder(), seeded_exits(self.unwrapped_model) | options
        for batch, outputs in self.forward_passes(dataset, lambda _: options):
            recorder.add(batch, outputs)
        return merge_processes(recorder)

    def forward_passes(
        self, dataset: Any, options: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    ) -> Iterator[tuple[dict[str, Tensor], Any]]:
        """This process's batches of a set with the model's outputs, without gradients.

        `options` tells the further arguments of the forward pass of each batch.
        """
        is_sharded = self.is_fsdp_enabled or self.is_deepspeed_enabled
        model = self.model_wrapped if is_sharded else self.unwrapped_model
        model.to(self.args.device)
        model.eval()
        try:
            for shared, is_own in self._shared_batches(dataset):
                batch = self.prepare_batch(shared)
                with torch.no_grad(), self.autocast_smart_context_manager():
                    outputs = model(**self.model_inputs(batch), **options(batch))
                if is_own:
                    yield batch, outputs
                self.control = self.callback_handler.on_prediction_step(self.args, self.state, self.control)
        finally:
            let_go(model)

    def _shared_batches(self, dataset: Any) -> Iterator[tuple[Any, bool]]:
        """This process's batches, and whether each is its own; see `in_step`."""
        batches = self.get_eval_dataloader(dataset)
        if self._has_whole_batches:  # every process has rows of its own in every batch
            return ((batch, True) for batch in batches)
        share = math.ceil(len(dataset) / self.args.world_size)
        return in_step(batches, math.ceil(share / self.args.eval_batch_size), lambda: self.data_collator([dataset[0]]))

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        return all(one.allows_best() for one in self.extensions) and super()._determine_best_metric(metrics, trial)

    # ---- checkpoints

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Write a checkpoint that is whole once its manifest is; then the oldest ones beyond the limit go.

        transformers is told of no limit: it would delete the newest where only the best may stay.
        """
        refuse(self.progress.problem(), self._checkpoints)
        self.refuse_weights()
        if self.progress.is_exploding():
            if self.is_world_process_zero():
                say(f"no checkpoint at step {self.state.global_step}: the loss is more than ten times the first one")
            return
        self.finish_saving()
        checkpoint = self._checkpoints / f"checkpoint-{self.state.global_step}"
        with nothing_if_full(checkpoint, self.args.should_save):
            if self.args.should_save:
                begin_checkpoint(checkpoint)
            self.accelerator.wait_for_everyone()
            super()._save_checkpoint(model, trial)
            self._save_process_state(checkpoint)
            if self.args.should_save and holds_environment():
                (checkpoint / TRAINING_ARGS_NAME).unlink()  # a pickle of settings as they are, and nobody reads it
            self.accelerator.wait_for_everyone()
            self._begin_sealing(checkpoint)
        if not self.is_fsdp_enabled:
            self.finish_saving()

    def _save_process_state(self, checkpoint: Path) -> None:
        """Save what each process has of its own: sums for the log, and the state of the extensions."""
        progress = {**self.progress.state(), "loss": float(self._tr_loss), "logged": self._globalstep_last_logged}
        if not self.is_deepspeed_enabled:
            progress["stateless"] = stateless_parameters(self._own_optimizer)
        save_progress(checkpoint, self.args.process_index, progress)
        for extension in self.extensions:
            extension.save(checkpoint, self.args.process_index)

    def _begin_sealing(self, checkpoint: Path) -> None:
        """Seal a checkpoint; one in shards is sealed when all are written, while training goes on."""
        written = None
        if self.is_fsdp_enabled:
            with self._showing():
                written = begin_writing(self.unwrapped_model, self._own_optimizer, checkpoint, seal_checkpoint)
        elif self.args.should_save:
            seal_checkpoint(checkpoint)
        self._saving = Saving(checkpoint, written)

    def finish_saving(self) -> None:
        """Wait until the last checkpoint is whole, and delete the oldest ones beyond the limit.

        Raises:
            DiskFullError: If there was no room for its shards; nothing of it stays.
        """
        if self._saving is None:
            return
        saving, self._saving = self._saving, None
        with nothing_if_full(saving.checkpoint, self.args.should_save):
            if saving.written is not None:
                saving.written.result()
        if self.args.should_save:
            best = self.state.best_model_checkpoint
            keep = {saving.checkpoint, Path(best or saving.checkpoint)}
            rotate(self._checkpoints, self.settings.save_total_limit, keep)

    def refuse_weights(self) -> None:
        """Stop where a weight is no number.

        Raises:
            DivergedError: Naming the parameter and the last good checkpoint.
        """
        name = first_not_finite(self.unwrapped_model, self.args.world_size)
        problem = None if name is None else f"the weights {name!r} are not finite at step {self.state.global_step}"
        refuse(problem, self._checkpoints)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save weights, configuration and tokenizer; the arguments of the training, a pickle, in checkpoints only."""
        with self._showing():
            if not self.is_fsdp_enabled:
                super().save_model(output_dir, _internal_call)
            elif not _internal_call:
                self._save(output_dir, gather_weights(self.unwrapped_model))
            elif self.args.should_save and output_dir is not None:  # weights are in shards beside these
                self.unwrapped_model.config.save_pretrained(output_dir)
                if self.processing_class is not None:
                    self.processing_class.save_pretrained(output_dir)
        if not _internal_call and output_dir is not None and self.args.should_save:
            Path(output_dir, TRAINING_ARGS_NAME).unlink(missing_ok=True)

    @property
    def _own_optimizer(self) -> torch.optim.Optimizer:
        """The optimizer without what accelerate puts around it."""
        optimizer: Any = self.optimizer
        return getattr(optimizer, "optimizer", optimizer)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Save both; of a sharded optimizer what all processes share, the rest is written by `_begin_sealing`."""
        if not self.is_fsdp_enabled:
            super()._save_optimizer_and_scheduler(output_dir)
        elif self.args.should_save:
            save_settings(self._own_optimizer, Path(output_dir))
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir, SCHEDULER_NAME))

    # ---- resuming

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """Load the weights of the checkpoint to resume."""
        load = partial(super()._load_from_checkpoint, resume_from_checkpoint, model)
        self._load_weights(Path(resume_from_checkpoint), load)

    def _load_best_model(self) -> None:
        """Load the weights of the best checkpoint when it is whole."""
        self.finish_saving()
        self._load_weights(Path(str(self.state.best_model_checkpoint)), super()._load_best_model)

    def _load_weights(self, checkpoint: Path, load: Callable[[], None]) -> None:
        """Load weights, all of which must be there; `load` is how transformers loads whole ones into a whole model."""
        with reading(checkpoint, "the weights"):
            refuse_missing_weights(self.unwrapped_model, checkpoint)
            if self.is_fsdp_enabled or is_sharded(checkpoint):
                load_weights(self.unwrapped_model, checkpoint)
                return
            with quiet():  # it warns of tied weights, which are stored once
                load()

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load both, and check the scale of the loss, which transformers loads next."""
        if checkpoint is None:
            return
        folder = Path(checkpoint)
        if self.is_deepspeed_enabled:
            with reading(folder, "the optimizer or the schedule"):
                super()._load_optimizer_and_scheduler(checkpoint)
            return
        with reading(folder, "the optimizer"):
            names = parameter_names(self.unwrapped_model, self._own_optimizer)
            load_optimizer(self._own_optimizer, folder, names, read_stateless(folder))
        with reading(folder, "the schedule"):
            stored = torch.load(folder / SCHEDULER_NAME, weights_only=True)
            check_schedule(self.lr_scheduler, stored, self.state.global_step, may_skip=self.args.fp16)
            self.lr_scheduler.load_state_dict(stored)
        with reading(folder, "the scale of the loss"):
            if (path := folder / SCALER_NAME).is_file():
                check_like(torch.load(path, weights_only=True), self.accelerator.scaler.state_dict())

    def restore_progress(self, checkpoint: Path) -> None:
        """Restore what transformers does not, when all else is loaded; the settings are those of now.

        Raises:
            CheckpointError: Naming what cannot be read.
        """
        self.state.compute_steps(self.args, self.state.max_steps)
        with reading(checkpoint, "the state of the run"):
            if (best := moved_best(checkpoint, self._checkpoints)) is not None:
                self.state.best_model_checkpoint = str(best)
            if (state := read_progress(checkpoint, self.args.process_index, self.args.world_size)) is not None:
                self.progress.load(state)
                self._tr_loss = torch.tensor(state["loss"], device=self.args.device)
                self._globalstep_last_logged = state["logged"]
            for extension in self.extensions:
                extension.load(checkpoint, self.args.process_index, self.args.device)

    def restore_random_numbers(self, checkpoint: Path) -> None:
        """Set the random numbers that a checkpoint has of this process, or new ones of another world size.

        Raises:
            CheckpointError: If they cannot be read.
        """
        with reading(checkpoint, "the random numbers"):
            if written_world_size(checkpoint) != self.args.world_size:
                reseed_for_world_size(self.args.seed, self.state.global_step, self.args.process_index)
            else:
                check_random_file(checkpoint, self.args)
                self._load_rng_state(str(checkpoint))


class ResumeCallback(TrainerCallback):
    """Goes on where a checkpoint was, in what transformers does not restore; nothing in a run that begins.

    Args:
        trainer: Of the run.
    """

    def __init__(self, trainer: DepthTrainer) -> None:
        self._trainer = trainer
        self._first_step = -1

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Restore all that is left; a run that was at its end trains no further."""
        trainer = self._trainer
        if trainer.resumed_from is None:
            return
        self._first_step = state.global_step
        trainer.restore_progress(trainer.resumed_from)
        trainer.restore_random_numbers(trainer.resumed_from)
        # A model that follows a schedule is evaluated from where the last update was.
        state.global_step -= 1
        trainer.callback_handler.on_step_begin(args, state, control)
        state.global_step += 1
        if state.global_step >= state.max_steps:
            control.should_training_stop = True

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Set the random numbers once more, where transformers has set those of another world size."""
        checkpoint = self._trainer.resumed_from
        if checkpoint is None or state.global_step != self._first_step:
            return
        if written_world_size(checkpoint) != args.world_size:
            self._trainer.restore_random_numbers(checkpoint)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Log, evaluate and save nothing again in an epoch without an update."""
        if state.global_step == self._first_step:
            control.should_log = control.should_evaluate = control.should_save = False

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Wait for the last checkpoint."""
        self._trainer.finish_saving()
