"""The training loop: transformers' Trainer, with losses normalised over the whole update and streaming evaluation.

transformers owns the loop, precision, accumulation, distribution, checkpoints and resume. What is added here: loss
parts normalised by the counts of the whole optimiser step, over micro-batches and processes; their logging and the
check that they are finite; evaluation that keeps sums instead of predictions; the optimizer and the schedule.
"""

from __future__ import annotations

import inspect
import json
import math
import time
from collections.abc import Iterator, Mapping, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset
from transformers import PreTrainedModel, Trainer, TrainingArguments
from transformers.trainer_utils import EvalLoopOutput

from adadepth.analysis.sentences import SentenceSampler
from adadepth.analysis.statistics import HaltingStatistics
from adadepth.analysis.token_classes import TOKEN_CLASSES, token_classes
from adadepth.config import TrainerConfig
from adadepth.data import PretrainingData
from adadepth.data.sampler import EpochSampler
from adadepth.errors import UserError
from adadepth.training.metrics import PretrainingMetrics
from adadepth.training.optimization import build_optimizer, build_schedule

TRAINER_STATE = "trainer_state.json"


class NonFiniteLoss(UserError):
    """A part of the loss became infinite or NaN."""


@dataclass
class Progress:
    """Since the last log: when that was, the updates begun, the tokens they read."""

    clock: float = 0.0
    updates: int = 0
    tokens: Tensor | int = 0


@dataclass(frozen=True)
class EvaluationReport:
    """What an evaluation found besides its scalar metrics."""

    statistics: dict[str, Any]
    sentences: list[dict[str, Any]]


class DepthTrainer(Trainer):
    """Trains any model whose forward returns `loss_parts` and `trace` and that counts its targets.

    Args:
        model: Has `count_targets(batch)` and takes `num_targets` in its forward.
        args: From `training_arguments`.
        data: Datasets, collator and tokenizer.
        settings: The trainer settings that transformers does not have.
    """

    # The loss of a micro-batch is its share of the whole update: nothing is left to divide by.
    loss_is_scaled_for_ga = True

    def __init__(
        self,
        model: PreTrainedModel,
        args: TrainingArguments,
        data: PretrainingData,
        settings: TrainerConfig,
        callbacks: list[Any] | None = None,
    ) -> None:
        self.data = data
        self.settings = settings
        self.last_report: EvaluationReport | None = None
        self.train_sampler: EpochSampler | None = None
        self._forward_names = set(inspect.signature(model.forward).parameters)
        self._parts: dict[str, Tensor] = {}
        self._first_bad_step: dict[str, Tensor] = {}
        self._progress = Progress()
        super().__init__(
            model=model,
            args=args,
            train_dataset=data.train,
            eval_dataset=data.evaluation,
            data_collator=data.collate,
            processing_class=data.tokenizer,
            callbacks=callbacks,
        )
        # Releases before `loss_is_scaled_for_ga` decide by this flag and by counts that are not None.
        self.model_accepts_loss_kwargs = True

    # ---- data

    def _get_train_sampler(self, train_dataset: Dataset | None = None) -> EpochSampler:
        assert isinstance(self.data.train, Sized), "a stream has no sampler"
        self.train_sampler = EpochSampler(len(self.data.train), self.args.seed)
        return self.train_sampler

    def get_train_dataloader(self) -> DataLoader:
        """Batches of one epoch; a stream shards itself over processes, so accelerate must not do it again."""
        if not isinstance(self.train_dataset, IterableDataset):
            return super().get_train_dataloader()
        return DataLoader(
            self.train_dataset,
            batch_size=self.args.train_batch_size,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
            drop_last=True,
        )

    def get_eval_dataloader(self, eval_dataset: Dataset | None = None) -> DataLoader:
        """This process's share of the evaluation set: every example exactly once over all processes."""
        indices = range(self.args.process_index, len(self.data.evaluation), self.args.world_size)
        return DataLoader(
            Subset(self.data.evaluation, indices),
            batch_size=self.args.eval_batch_size,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
        )

    def model_inputs(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The part of a batch that the model's forward names; the rest is for statistics."""
        return {name: value for name, value in batch.items() if name in self._forward_names}

    # ---- losses

    def get_batch_samples(
        self, epoch_iterator: Iterator, num_batches: int, device: torch.device
    ) -> tuple[list, dict[str, Tensor]]:
        """The micro-batches of one update, and the target counts that normalise each loss part over all of it.

        The counts are over all processes, divided by their number because gradients are averaged over them.
        """
        batches = []
        for _ in range(num_batches):
            if (batch := next(epoch_iterator, None)) is None:
                break
            batches.append(batch)
        if not batches:
            return batches, {}
        model = self.accelerator.unwrap_model(self.model)
        counts = [model.count_targets(batch) for batch in batches]
        tokens = sum(batch["attention_mask"].sum() for batch in batches)
        sums = [sum(count[name] for count in counts) for name in counts[0]]
        totals = torch.stack([*sums, tokens]).float().to(device)
        if self.args.world_size > 1:
            dist.all_reduce(totals)
        self._progress.updates += 1
        self._progress.tokens += totals[-1]
        return batches, dict(zip(counts[0], (totals[:-1] / self.args.world_size).unbind(), strict=True))

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Mapping[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: dict[str, Tensor] | None = None,
    ) -> Any:
        """The loss of a micro-batch as its share of the update's; its parts are kept for the log."""
        outputs = model(**self.model_inputs(inputs), num_targets=num_items_in_batch)
        for name, part in outputs.loss_parts.items():
            self._record_part(name, part.detach())
        return (outputs.loss, outputs) if return_outputs else outputs.loss

    def _record_part(self, name: str, part: Tensor) -> None:
        """Add to the running sum, and remember the first bad step: all on the device, without waiting for it."""
        zero, never = torch.zeros_like(part), torch.full_like(part, math.inf)
        self._parts[name] = self._parts.get(name, zero) + part
        bad_step = torch.where(part.isfinite(), never, float(self.state.global_step + 1))
        self._first_bad_step[name] = torch.minimum(self._first_bad_step.get(name, never), bad_step)

    def check_finite(self) -> None:
        """Raise if any loss part since the last check was not finite, on any process.

        Raises:
            NonFiniteLoss: Naming the part and the step.
        """
        if not self._first_bad_step:
            return
        steps = torch.stack(list(self._first_bad_step.values()))
        if self.args.world_size > 1:
            dist.all_reduce(steps, op=dist.ReduceOp.MIN)
        for name, step in zip(self._first_bad_step, steps.tolist(), strict=True):
            if math.isfinite(step):
                raise NonFiniteLoss(
                    f"the loss part {name!r} is not finite at step {int(step)}; the last good checkpoint is kept. "
                    "A lower trainer.learning_rate, a longer warm-up or trainer.precision=fp32 may help"
                )
        self._first_bad_step.clear()

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log, adding the mean of every loss part since the last training log."""
        if "loss" in logs:
            self.check_finite()
            logs |= self._drain_progress()
        logs.pop("total_flos", None)  # counts tied weights once; `cost/*` prices the work that was done
        super().log(logs, start_time)

    def _drain_progress(self) -> dict[str, float]:
        """Means of the loss parts, and the speed, since the last log."""
        now, progress = time.perf_counter(), self._progress
        names, totals = list(self._parts), torch.stack(list(self._parts.values()))
        if self.args.world_size > 1:
            dist.all_reduce(totals)
            totals /= self.args.world_size
        logs = {f"{name}_loss": total / progress.updates for name, total in zip(names, totals.tolist(), strict=True)}
        logs["tokens_per_second"] = float(progress.tokens) / (now - progress.clock)
        if self.args.device.type == "cuda":
            logs["peak_memory_gib"] = torch.cuda.max_memory_allocated() / 2**30
        self._parts = {}
        self._progress = Progress(now)
        return logs

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate; the time it takes does not count against the training speed."""
        begun = time.perf_counter()
        metrics = super().evaluate(*args, **kwargs)
        self._progress.clock += time.perf_counter() - begun
        return metrics

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train, with the clock of the speed set."""
        self._progress = Progress(time.perf_counter())
        return super().train(*args, **kwargs)

    # ---- optimization

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """See `build_optimizer`."""
        if self.optimizer is None:
            trained = self.model if model is None else model
            assert trained is not None
            self.optimizer = build_optimizer(trained, self.settings)
        return self.optimizer

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> torch.optim.lr_scheduler.LambdaLR:
        """See `build_schedule`."""
        if self.lr_scheduler is None:
            scheduled = optimizer or self.optimizer
            assert scheduled is not None
            self.lr_scheduler = build_schedule(scheduled, self.settings, num_training_steps)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    # ---- evaluation

    def evaluation_loop(
        self,
        dataloader: DataLoader,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Evaluate in one pass that keeps sums and histograms, so memory does not grow with the set."""
        unwrapped = self.accelerator.unwrap_model(self.model)
        model = self.model_wrapped if self.is_fsdp_enabled or self.is_deepspeed_enabled else unwrapped
        model.to(self.args.device)
        model.eval()
        metrics = PretrainingMetrics(unwrapped.config.act_penalty, self.args.device)
        statistics = HaltingStatistics(unwrapped.config.num_hidden_layers, TOKEN_CLASSES, self.args.device)
        sentences = SentenceSampler(decode=lambda number: str(self.data.tokenizer.convert_ids_to_tokens(number)))
        for batch, is_own in self._shared_batches(dataloader):
            batch = self._prepare_inputs(batch)
            with torch.no_grad(), self.autocast_smart_context_manager():
                outputs = model(**self.model_inputs(batch), output_hidden_states=self.settings.halting_statistics)
            if is_own:
                metrics.update(batch, outputs, unwrapped.count_targets(batch))
                if self.settings.halting_statistics:
                    self._update_statistics(statistics, sentences, batch, outputs, unwrapped)
            self.control = self.callback_handler.on_prediction_step(self.args, self.state, self.control)

        for tensor in (*metrics.tensors(), *statistics.tensors()):
            if self.args.world_size > 1:
                dist.all_reduce(tensor)
        if self.settings.halting_statistics:
            self.last_report = EvaluationReport(statistics.summary(), sentences.sentences())
        values = {f"{metric_key_prefix}_{name}": value for name, value in metrics.compute().items()}
        nothing: Any = None  # predictions are not kept
        return EvalLoopOutput(nothing, nothing, values, num_samples=len(self.data.evaluation))

    def _shared_batches(self, dataloader: DataLoader) -> Iterator[tuple[Any, bool]]:
        """This process's batches, and whether each is its own.

        Processes may have one batch more or less than others, yet sharded models need all of them in every forward
        pass: a process that has run out repeats its last batch, which nobody counts.
        """
        share = math.ceil(len(self.data.evaluation) / self.args.world_size)
        batch: Any = None
        batches = iter(dataloader)
        for _ in range(math.ceil(share / self.args.eval_batch_size)):
            following = next(batches, None)
            batch = batch if following is None else following
            if batch is None:
                batch = self.data_collator([self.data.evaluation[0]])
            yield batch, following is not None

    def _update_statistics(
        self,
        statistics: HaltingStatistics,
        sentences: SentenceSampler,
        batch: Mapping[str, Tensor],
        outputs: Any,
        model: Any,
    ) -> None:
        tokenizer = self.data.tokenizer
        classes = token_classes(
            batch, cls_id=tokenizer.cls_token_id, sep_id=tokenizer.sep_token_id, mask_id=tokenizer.mask_token_id
        )
        chosen = batch["labels"] >= 0
        losses = torch.full(chosen.shape, math.nan, device=chosen.device).masked_scatter(chosen, outputs.token_losses)
        statistics.update(outputs.trace, classes, losses, outputs.hidden_states, model.price(outputs.trace))
        if self.is_world_process_zero():
            predictions = batch["labels"].masked_scatter(chosen, outputs.prediction_logits.argmax(dim=-1))
            sentences.update(batch, outputs.trace, losses, predictions)

    # ---- checkpoints

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        self.check_finite()
        super()._save_checkpoint(model, trial)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Tied weights are saved once; that they are not saved twice is nothing to warn about."""
        tied = set(self.accelerator.unwrap_model(self.model).all_tied_weights_keys)
        load_result.missing_keys[:] = [name for name in load_result.missing_keys if name not in tied]
        super()._issue_warnings_after_load(load_result)


def complete_checkpoints(directory: Path) -> list[Path]:
    """The checkpoints in a folder that were written to their end, oldest first.

    The trainer's state is the last file of a checkpoint, so one that a kill interrupted has none that can be read.
    """
    found = sorted(directory.glob("checkpoint-*"), key=checkpoint_step)
    return [path for path in found if _is_readable(path / TRAINER_STATE)]


def checkpoint_step(checkpoint: Path) -> int:
    """The optimiser step after which a checkpoint was written, from its name `checkpoint-<step>`."""
    return int(checkpoint.name.rpartition("-")[2])


def _is_readable(path: Path) -> bool:
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return True
