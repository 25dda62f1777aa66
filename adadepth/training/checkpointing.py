"""Checkpoints and resume: a Trainer with complete, verified checkpoints, from which training resumes bit-exactly.

transformers writes weights, optimizer and schedule. This class adds the progress of every process, a manifest that
marks a complete checkpoint, shards of `trainer.fsdp`, and checks of every stored state before it is loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import SCALER_NAME, SCHEDULER_NAME, TRAINING_ARGS_NAME
from transformers.trainer_utils import SaveStrategy

from adadepth.config import TrainerConfig
from adadepth.config.env_redaction import has_env_values
from adadepth.runs.checkpoints import begin_checkpoint, remove_if_disk_full, remove_incomplete, rotate, seal_checkpoint
from adadepth.runtime.console import say
from adadepth.runtime.hub_access import silence_transformers
from adadepth.training.extension import Extension
from adadepth.training.loss_tracking import TrainingProgress, find_nonfinite_parameter, raise_if_diverged
from adadepth.training.resume_state import (
    convert_read_errors,
    read_progress,
    read_stateless,
    read_world_size,
    refuse_missing_weights,
    relocate_best_checkpoint,
    reseed_for_world_size,
    save_progress,
)
from adadepth.training.sharded_checkpoints import (
    begin_writing,
    gather_weights,
    is_sharded,
    load_optimizer,
    load_weights,
    save_settings,
)
from adadepth.training.stored_states import (
    check_like,
    check_random_file,
    check_schedule,
    parameter_names,
    stateless_parameters,
)


class PendingCheckpoint(NamedTuple):
    """Checkpoint that a background thread may still be writing.

    `written` completes when the checkpoint is complete. It is None if the checkpoint is complete already.
    """

    checkpoint: Path
    written: Future[Any] | None


class CheckpointingTrainer(Trainer):
    """Trainer that marks checkpoints as complete, deletes old ones, and resumes with all states of a run.

    Args:
        settings: Settings of the trainer that transformers does not have.
        extensions: Extensions of the run, whose states are part of a checkpoint.
        callbacks: Callbacks after `ResumeCallback`.
        options: Further arguments of transformers' Trainer.
    """

    def __init__(
        self,
        args: TrainingArguments,
        settings: TrainerConfig,
        extensions: Sequence[Extension] = (),
        callbacks: Sequence[Any] = (),
        **options: Any,
    ) -> None:
        self.settings = settings
        self.extensions = extensions
        self.progress = TrainingProgress(args)
        self.resumed_from: Path | None = None
        self._saving: PendingCheckpoint | None = None
        super().__init__(args=args, callbacks=[ResumeCallback(self), *callbacks], **options)
        for extension in extensions:
            if isinstance(extension, TrainerCallback):
                self.add_callback(extension)

    @property
    def unwrapped_model(self) -> Any:
        """Model without the wrappers for mixed precision and distributed training."""
        return self.accelerator.unwrap_model(self.model)

    @property
    def _checkpoints(self) -> Path:
        """Folder of the checkpoints of this run."""
        return Path(str(self.args.output_dir))

    @contextmanager
    def _use_evaluated_weights(self) -> Iterator[None]:
        """Load the weights to evaluate and save, such as an EMA, within the `with` block."""
        with ExitStack() as stack:
            for extension in self.extensions:
                stack.enter_context(extension.use_evaluated_weights())
            yield

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Train the model, after deleting incomplete checkpoints of a killed process.

        transformers warns if the settings of a resumed run differ from its checkpoint, or if it reads no batch because
        it had ended. Both are intended, so the warnings are suppressed.
        """
        self.resumed_from = Path(resume_from_checkpoint) if resume_from_checkpoint else None
        if self.is_world_process_zero():
            remove_incomplete(self._checkpoints)
        self.progress.begin()
        if self.resumed_from is None:
            return super().train(None, *args, **kwargs)
        with silence_transformers():
            return super().train(resume_from_checkpoint, *args, **kwargs)

    # ---- saving

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Return whether an evaluation is the best one so far.

        If the best model is loaded at the end, only evaluations at the step of a checkpoint count. transformers would
        also count those between two checkpoints, and then load other weights than those that it reports as best.
        """
        saves = self.control.should_save or any(
            getattr(callback, "has_deferred_save", False) for callback in self.callback_handler.callbacks
        )
        needs_save = self.args.load_best_model_at_end and self.args.save_strategy != SaveStrategy.BEST
        if (needs_save and not saves) or not all(one.allows_best() for one in self.extensions):
            return False
        return super()._determine_best_metric(metrics, trial)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Write a checkpoint and its manifest, and delete the oldest checkpoints beyond the limit.

        The limit is not passed to transformers, because it would delete the newest checkpoint if only the best one may
        stay.
        """
        raise_if_diverged(self.progress.problem(), self._checkpoints)
        self.refuse_weights()
        if self.progress.is_exploding():
            if self.is_world_process_zero():
                reason = "the loss is more than ten times the first loss"
                say(f"no checkpoint at step {self.state.global_step}: {reason}", logging.WARNING)
            return
        self.finish_saving()
        checkpoint = self._checkpoints / f"checkpoint-{self.state.global_step}"
        with remove_if_disk_full(checkpoint, self.args.should_save):
            if self.args.should_save:
                begin_checkpoint(checkpoint)
            self.accelerator.wait_for_everyone()
            super()._save_checkpoint(model, trial)
            self._save_process_state(checkpoint)
            if self.args.should_save and has_env_values():
                (checkpoint / TRAINING_ARGS_NAME).unlink()  # a pickle with values of the environment
            self.accelerator.wait_for_everyone()
            self._begin_sealing(checkpoint)
        if not self.is_fsdp_enabled:
            self.finish_saving()

    def _save_process_state(self, checkpoint: Path) -> None:
        """Write what differs by process to a checkpoint: sums for the log, and states of extensions."""
        progress = {**self.progress.state(), "loss": float(self._tr_loss), "logged": self._globalstep_last_logged}
        if not self.is_deepspeed_enabled:
            progress["stateless"] = stateless_parameters(self._own_optimizer)
        save_progress(checkpoint, self.args.process_index, progress)
        for extension in self.extensions:
            extension.save(checkpoint, self.args.process_index)

    def _begin_sealing(self, checkpoint: Path) -> None:
        """Write the checkpoint's manifest, which marks it as complete, once its files are on disk.

        A sharded checkpoint is sealed in the background when all shards are written, while training continues.
        """
        written = None
        if self.is_fsdp_enabled:
            with self._use_evaluated_weights():
                written = begin_writing(self.unwrapped_model, self._own_optimizer, checkpoint, seal_checkpoint)
        elif self.args.should_save:
            seal_checkpoint(checkpoint)
        self._saving = PendingCheckpoint(checkpoint, written)

    def finish_saving(self) -> None:
        """Wait until the last checkpoint is complete, and delete the oldest checkpoints beyond the limit.

        Raises:
            DiskFullError: If the disk was full while shards were written; the partial checkpoint is deleted.
        """
        if self._saving is None:
            return
        saving, self._saving = self._saving, None
        with remove_if_disk_full(saving.checkpoint, self.args.should_save):
            if saving.written is not None:
                saving.written.result()
        if self.args.should_save:
            best = self.state.best_model_checkpoint
            keep = {saving.checkpoint, Path(best or saving.checkpoint)}
            rotate(self._checkpoints, self.settings.save_total_limit, keep)

    def refuse_weights(self) -> None:
        """Raise an error if a weight of the model is infinite or NaN.

        Raises:
            DivergedError: If a weight is not finite; the message names the parameter and the last good checkpoint.
        """
        name = find_nonfinite_parameter(self.unwrapped_model, self.args.world_size)
        problem = None if name is None else f"the weights {name!r} are not finite at step {self.state.global_step}"
        raise_if_diverged(problem, self._checkpoints)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model with its configuration and tokenizer.

        The pickled training arguments are saved in checkpoints only.
        """
        with self._use_evaluated_weights():
            if not self.is_fsdp_enabled:
                super().save_model(output_dir, _internal_call)
            elif not _internal_call:
                self._save(output_dir, gather_weights(self.unwrapped_model))
            elif self.args.should_save and output_dir is not None:  # the weights are in shards
                self.unwrapped_model.config.save_pretrained(output_dir)
                if self.processing_class is not None:
                    self.processing_class.save_pretrained(output_dir)
        if not _internal_call and output_dir is not None and self.args.should_save:
            Path(output_dir, TRAINING_ARGS_NAME).unlink(missing_ok=True)

    @property
    def _own_optimizer(self) -> torch.optim.Optimizer:
        """Optimizer without the wrapper that accelerate adds."""
        optimizer: Any = self.optimizer
        return getattr(optimizer, "optimizer", optimizer)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Write optimizer and learning-rate schedule to the checkpoint.

        For a sharded optimizer, save only the part that all processes share; `_begin_sealing` writes the shards.
        """
        if not self.is_fsdp_enabled:
            super()._save_optimizer_and_scheduler(output_dir)
        elif self.args.should_save:
            save_settings(self._own_optimizer, Path(output_dir))
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir, SCHEDULER_NAME))

    # ---- resuming

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """Load the weights of the checkpoint from which the run resumes."""
        load = partial(super()._load_from_checkpoint, resume_from_checkpoint, model)
        self._load_weights(Path(resume_from_checkpoint), load)

    def _load_best_model(self) -> None:
        """Wait until the best checkpoint is complete, and load its weights."""
        self.finish_saving()
        self._load_weights(Path(str(self.state.best_model_checkpoint)), super()._load_best_model)

    def _load_weights(self, checkpoint: Path, load: Callable[[], None]) -> None:
        """Load the weights of a complete checkpoint.

        `load` is the method of transformers, which is used if neither weights nor model are sharded.
        """
        with convert_read_errors(checkpoint, "the weights"):
            refuse_missing_weights(self.unwrapped_model, checkpoint)
            if self.is_fsdp_enabled or is_sharded(checkpoint):
                load_weights(self.unwrapped_model, checkpoint)
                return
            with silence_transformers():  # transformers warns of tied weights, which are stored once
                load()

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Check and load the optimizer and the learning-rate schedule of a checkpoint."""
        if checkpoint is None:
            return
        folder = Path(checkpoint)
        if self.is_deepspeed_enabled:
            with convert_read_errors(folder, "the optimizer or the schedule"):
                super()._load_optimizer_and_scheduler(checkpoint)
            return
        with convert_read_errors(folder, "the optimizer"):
            names = parameter_names(self.unwrapped_model, self._own_optimizer)
            load_optimizer(self._own_optimizer, folder, names, read_stateless(folder))
        with convert_read_errors(folder, "the schedule"):
            stored = torch.load(folder / SCHEDULER_NAME, weights_only=True)
            check_schedule(self.lr_scheduler, stored, self.state.global_step, may_skip=self.args.fp16)
            self.lr_scheduler.load_state_dict(stored)
        with convert_read_errors(folder, "the scale of the loss"):
            if (path := folder / SCALER_NAME).is_file():
                check_like(torch.load(path, weights_only=True), self.accelerator.scaler.state_dict())

    def restore_progress(self, checkpoint: Path) -> None:
        """Restore the logged sums and other state of a checkpoint that transformers does not restore.

        Settings keep their current values.

        Raises:
            CheckpointError: If a part cannot be read; the message names it.
        """
        self.state.compute_steps(self.args, self.state.max_steps)
        with convert_read_errors(checkpoint, "the state of the run"):
            if (best := relocate_best_checkpoint(checkpoint, self._checkpoints)) is not None:
                self.state.best_model_checkpoint = str(best)
            if (state := read_progress(checkpoint, self.args.process_index, self.args.world_size)) is not None:
                self.progress.load(state)
                self._tr_loss = torch.tensor(state["loss"], device=self.args.device)
                self._globalstep_last_logged = state["logged"]
            for extension in self.extensions:
                extension.load(checkpoint, self.args.process_index, self.args.device)

    def restore_random_numbers(self, checkpoint: Path) -> None:
        """Restore the random states of this process; reseed if the world size has changed.

        Raises:
            CheckpointError: If the random states cannot be read.
        """
        with convert_read_errors(checkpoint, "the random-generator states"):
            if read_world_size(checkpoint) != self.args.world_size:
                reseed_for_world_size(self.args.seed, self.state.global_step, self.args.process_index)
            else:
                check_random_file(checkpoint, self.args)
                self._load_rng_state(str(checkpoint))


class ResumeCallback(TrainerCallback):
    """Callback that restores, in a resumed run, the parts of the state that transformers does not restore.

    Args:
        trainer: Trainer of the run.
    """

    def __init__(self, trainer: CheckpointingTrainer) -> None:
        self._trainer = trainer
        self._first_step = -1

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Restore progress and random states, and stop at once if the run had already reached its end."""
        trainer = self._trainer
        if trainer.resumed_from is None:
            return
        self._first_step = state.global_step
        trainer.restore_progress(trainer.resumed_from)
        trainer.restore_random_numbers(trainer.resumed_from)
        if state.global_step >= state.max_steps:
            control.should_training_stop = True

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Restore the random states again if transformers has loaded those of another world size."""
        checkpoint = self._trainer.resumed_from
        if checkpoint is None or state.global_step != self._first_step:
            return
        if read_world_size(checkpoint) != args.world_size:
            self._trainer.restore_random_numbers(checkpoint)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Suppress logging, evaluation and saving after an epoch without any optimiser step."""
        if state.global_step == self._first_step:
            control.should_log = control.should_evaluate = control.should_save = False

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Wait until the last checkpoint has been written."""
        self._trainer.finish_saving()
