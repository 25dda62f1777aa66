"""Training loop: transformers' Trainer with losses normalised over the optimiser step and streaming evaluation.

transformers owns the loop, precision, accumulation and distribution; `checkpointing` completes its checkpoints. This
class adds loss parts that are normalised by the counts of the whole optimiser step, over micro-batches and processes.
It logs them and checks that they are finite. It also adds evaluation of several sets, the optimizer and the schedule.
Features that only some runs use are implemented as an `Extension`.

`fit_tokenizer` prepares the tokenizer that is saved with a model, so that it produces the inputs of the model.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from itertools import islice
from typing import Any

import torch
from accelerate.utils import send_to_device
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, Subset
from transformers import PreTrainedModel, PreTrainedTokenizerFast, TrainingArguments
from transformers.trainer_utils import EvalLoopOutput

from adadepth.config import TrainerConfig
from adadepth.data.batches import EpochSampler, count_tokens, order_for_evaluation
from adadepth.data.run_data import RunData
from adadepth.data.streams.contiguous import StreamBatches
from adadepth.data.text.tokenizer import for_model
from adadepth.evaluation.evaluation import Evaluation
from adadepth.evaluation.predictions import make_exit_kwargs, merge_processes
from adadepth.evaluation.scorer import EvaluationReport
from adadepth.metrics.step_records import StepRecorder, StepRecords
from adadepth.models.head_outputs import check_output
from adadepth.runs.data_identity import DataIdentity
from adadepth.runtime.threads import fit_threads
from adadepth.training.checkpointing import CheckpointingTrainer
from adadepth.training.distributed_batches import (
    is_counted_batch,
    pad_batches_across_processes,
    shared_loader,
    sum_over_update,
)
from adadepth.training.extension import Extension
from adadepth.training.loss_tracking import DivergedError, describe_nonfinite_loss, raise_if_diverged
from adadepth.training.optimization import build_optimizer, build_schedule
from adadepth.training.profiling import Stopwatch
from adadepth.training.selection import fill_undefined_metric
from adadepth.training.sharding import enable_sharding, reshard_model

NO_PADDING = "no_padding"  # key of a batch whose attention mask hides nothing


class DepthTrainer(CheckpointingTrainer):
    """Trainer of any adaptive-depth model; see `adadepth.models.contract`.

    Args:
        model: Model to train.
        args: Arguments from `training_arguments`.
        data: Training examples, collator and tokenizer. Items of `StreamBatches` are whole batches, which are read in
            order.
        evaluation_sets: Evaluation sets by name. The first one selects the best model; the metrics of the others are
            prefixed by their names.
        start_evaluation: Function that takes the name of a set and starts its evaluation.
        settings: Settings of the trainer that transformers does not have.
        callbacks: Callbacks in addition to those of the extensions.
        extensions: Extensions of the run.
    """

    # The loss of a micro-batch is its share of the optimiser step, and is not divided again.
    loss_is_scaled_for_ga = True

    def __init__(
        self,
        model: PreTrainedModel,
        args: TrainingArguments,
        data: RunData,
        evaluation_sets: Mapping[str, Any],
        start_evaluation: Callable[[str], Evaluation],
        settings: TrainerConfig,
        callbacks: list[Any] | None = None,
        extensions: Sequence[Extension] = (),
    ) -> None:
        self.data = data
        self.evaluation_sets = evaluation_sets
        self.start_evaluation = start_evaluation
        self.last_reports: dict[str, EvaluationReport] = {}
        self.train_sampler: EpochSampler | None = None
        self._checked: set[str] = set()
        self._has_whole_batches = isinstance(data.train, StreamBatches)
        self._forward_names = set(inspect.signature(model.forward).parameters)
        super().__init__(
            model=model,
            args=args,
            settings=settings,
            extensions=extensions,
            callbacks=callbacks or [],
            train_dataset=data.train,
            eval_dataset=next(iter(evaluation_sets.values())),
            data_collator=data.collate,
            processing_class=fit_tokenizer(model, data.tokenizer),
        )
        # Releases without `loss_is_scaled_for_ga` read this flag, and counts that are not None.
        self.model_accepts_loss_kwargs = True

    def create_accelerator_and_postprocess(self) -> None:
        """Create accelerate's `Accelerator`, which shards the model if `trainer.fsdp` is set."""
        super().create_accelerator_and_postprocess()
        if self.args.fsdp:
            enable_sharding(self.accelerator, self.model, self.args.fsdp_plugin_args)
            self.is_fsdp_enabled = True

    # ---- data

    def get_train_dataloader(self) -> DataLoader:
        """Return the loader of the training batches of one epoch.

        The loader is not prepared by accelerate. With several processes accelerate would fill up the last batches with
        repeated examples, and would distribute a stream that is distributed already.
        """
        if isinstance(self.train_dataset, IterableDataset):
            return self._loader(self.train_dataset, self.args.train_batch_size, drop_last=True)
        assert isinstance(self.data.train, Sized), "epochs need a length"
        self.train_sampler = EpochSampler(len(self.data.train), None if self._has_whole_batches else self.args.seed)
        if self._has_whole_batches:
            return self._loader(self.train_dataset, 1, sampler=self.train_sampler)
        return shared_loader(self.data.train, self.data.collate, self.train_sampler, self.args)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        """Return the loader of this process's share of an evaluation set, sorted by length."""
        dataset: Any = self.eval_dataset if eval_dataset is None else eval_dataset
        if self._has_whole_batches:
            return self._loader(dataset, 1)
        share = order_for_evaluation(dataset)[self.args.process_index :: self.args.world_size]
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
        """Add the inputs of extensions to a batch, note whether it has no padding, and move it to the device.

        The host does not wait for these copies, as it would for every one of `_prepare_inputs`. The number of CPU
        threads follows the size of the batch.
        """
        fit_threads(self.unwrapped_model, batch)
        for extension in self.extensions:
            batch = extension.prepare(batch, self.unwrapped_model)
        mask = batch.get("attention_mask")
        if isinstance(mask, Tensor) and mask.device.type == "cpu" and not self.args.torch_compile and bool(mask.all()):
            batch = {**batch, NO_PADDING: True}  # two graphs would be compiled, with a mask and without
        return self._prepare_inputs(send_to_device(batch, self.args.device, non_blocking=True))

    def model_inputs(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Select the arguments of the model's forward pass from a batch; other columns serve statistics only.

        A mask that hides nothing is left out: attention with a mask needs other kernels, and a network of transformers
        waits for the device to see whether the mask hides something.
        """
        names = self._forward_names - {"attention_mask"} if NO_PADDING in batch else self._forward_names
        return {name: value for name, value in batch.items() if name in names}

    # ---- an optimiser step

    def get_batch_samples(
        self, epoch_iterator: Iterator, num_batches: int, device: torch.device
    ) -> tuple[list, dict[str, Tensor]]:
        """Return the micro-batches of an optimiser step, and the target counts that normalise its losses.

        A resumed run that had reached its end reads no batch. transformers would otherwise make a step before it checks
        this.
        """
        batches = [] if self.control.should_training_stop else list(islice(epoch_iterator, num_batches))
        if not batches:
            return batches, {}
        counts = [self._count_targets(batch) for batch in batches]
        own_tokens = torch.stack([count_tokens(batch) * is_counted_batch(batch) for batch in batches]).sum()
        totals, tokens = sum_over_update(counts, own_tokens, device, self.args.world_size)
        self.progress.begin_step(tokens)
        return batches, totals

    def _count_targets(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Count the targets of each loss term in a micro-batch, which are the divisors of its sums."""
        counts = dict(self.unwrapped_model.count_targets(batch))
        for extension in self.extensions:
            counts |= extension.counts(batch)
        return {name: count * is_counted_batch(batch) for name, count in counts.items()}

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Mapping[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: dict[str, Tensor] | None = None,
    ) -> Any:
        """Compute a micro-batch's share of the optimiser step's loss, and record its terms for the log.

        The loss of a batch that is marked as `STAND_IN` is 0.
        """
        counts = {name: count * is_counted_batch(inputs) for name, count in (num_items_in_batch or {}).items()}
        options: dict[str, Any] = {}
        for extension in self.extensions:
            options |= extension.forward_options(inputs)
        outputs = model(**self.model_inputs(inputs), **options, num_targets=counts)
        self._check_first_output("", outputs)
        self.progress.record_loss(outputs.loss * is_counted_batch(inputs))
        for extension in self.extensions:
            extension.after_forward(inputs, outputs)
            for name, part in extension.loss_parts(outputs, counts).items():
                outputs.loss_parts[name] = part
                outputs.loss = outputs.loss + part
        outputs.loss = outputs.loss * is_counted_batch(inputs)
        for name, part in outputs.loss_parts.items():
            self.progress.record(name, part.detach() * is_counted_batch(inputs), self.state.global_step + 1)
        return (outputs.loss, outputs) if return_outputs else outputs.loss

    def _check_first_output(self, name: str, outputs: Any) -> None:
        """Raise an error if the model's first output on a set lacks fields that its type of head requires."""
        if name not in self._checked:
            check_output(self.unwrapped_model, outputs)
            self._checked.add(name)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Run the forward and backward pass of a micro-batch."""
        model.train()  # extensions that complete the batch read the mode of the model
        batch = self.prepare_batch(inputs)
        loss = super().training_step(model, batch, num_items_in_batch)
        for extension in self.extensions:
            extension.after_backward(batch, model)
        return loss

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Create the optimizer with `build_optimizer`, including the parameter groups of extensions."""
        if self.optimizer is None:
            trained: Any = self.model if model is None else model
            groups = [group for one in self.extensions for group in one.parameter_groups(trained, self.settings)]
            self.optimizer = build_optimizer(trained, self.settings, groups)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> Any:
        """Create the learning-rate schedule with `build_schedule` if there is none yet."""
        if self.lr_scheduler is None:
            scheduled: Any = optimizer or self.optimizer
            scheduler: Any = build_schedule(scheduled, self.settings, num_training_steps)
            self.lr_scheduler = scheduler
            self._created_lr_scheduler = True
        return self.lr_scheduler

    # ---- the log

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log values together with the mean of every loss term since the last training log."""
        if "loss" in logs:
            raise_if_diverged(self.progress.problem(), self._checkpoints)
            logs |= self.progress.drain()
            for extension in self.extensions:
                logs |= extension.logs()
        logs.pop("total_flos", None)  # counts tied weights once; `cost/*` counts the executed compute
        super().log(logs, start_time)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate the model on all evaluation sets, unless training has diverged.

        The throughput of training excludes the time of the evaluation.
        """
        begun = time.perf_counter()
        if self.is_in_train:
            raise_if_diverged(self.progress.problem(), self._checkpoints)
            self.refuse_weights()
        metrics = super().evaluate(*args, **kwargs)
        self.progress.pause(time.perf_counter() - begun)
        return fill_undefined_metric(metrics, self.args.metric_for_best_model)

    # ---- evaluation

    def evaluation_loop(
        self,
        dataloader: DataLoader,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Evaluate the model on every evaluation set, in one pass over each."""
        self.last_reports = {}
        values: dict[str, float] = {}
        evaluations: dict[str, Evaluation] = {}
        for number, (name, dataset) in enumerate(self.evaluation_sets.items()):
            with self._use_evaluated_weights():
                evaluations[name], speed = self.evaluate_set(name, dataset)
            self._refuse_evaluation(evaluations[name])
            prefix = f"{metric_key_prefix}_{name}/" if number else f"{metric_key_prefix}_"
            metrics = evaluations[name].metrics() | {"tokens_per_second": speed}
            values |= {prefix + metric: value for metric, value in metrics.items()}
        for name, evaluation in evaluations.items():  # a report may contain metrics of other sets
            if (report := evaluation.report()) is not None:
                self.last_reports[name] = report
        nothing: Any = None  # predictions are not returned
        examples = sum(len(dataset) for dataset in self.evaluation_sets.values())
        return EvalLoopOutput(nothing, nothing, values, num_samples=examples)

    def _refuse_evaluation(self, evaluation: Evaluation) -> None:
        """Raise an error if the mean loss over an evaluation set is not finite."""
        if (problem := describe_nonfinite_loss(evaluation.losses())) is None:
            return
        if self.is_in_train:
            raise_if_diverged(
                f"the evaluation at step {self.state.global_step} is not finite: {problem}", self._checkpoints
            )
        raise DivergedError(f"the final evaluation is not finite: {problem}")

    def evaluate_set(self, name: str, dataset: Any) -> tuple[Evaluation, float]:
        """Evaluate the model on one data set, and return the results and the tokens per second."""
        evaluation, watch = self.start_evaluation(name), Stopwatch(self.args.device)
        for batch, outputs in watch.time(self.forward_passes(dataset, evaluation.options)):
            if outputs.loss is not None:  # sentences without targets have none
                self._check_first_output(name, outputs)
            evaluation.update(batch, outputs)
        evaluation.merge()
        return evaluation, watch.tokens_per_second()

    def records(self, dataset: Any, **options: Any) -> StepRecords:
        """Record the model's predictions after every step for the examples of a data set."""
        recorder, options = StepRecorder(), make_exit_kwargs(self.unwrapped_model) | options
        for batch, outputs in self.forward_passes(dataset, lambda _: options):
            recorder.add(batch, outputs)
        return merge_processes(recorder)

    def forward_passes(
        self, dataset: Any, options: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    ) -> Iterator[tuple[dict[str, Tensor], Any]]:
        """Yield the batches of a data set with the model's outputs, computed without gradients.

        Args:
            dataset: Set of examples.
            options: Function that takes a batch and returns additional arguments of its forward pass.
        """
        is_sharded = self.is_fsdp_enabled or self.is_deepspeed_enabled
        model = self.model_wrapped if is_sharded else self.unwrapped_model
        model.to(self.args.device)
        model.eval()
        try:
            for raw_batch, is_counted in self._iterate_batches(dataset):
                batch = self.prepare_batch(raw_batch)
                with torch.no_grad(), self.autocast_smart_context_manager():
                    outputs = model(**self.model_inputs(batch), **options(batch))
                if is_counted:
                    yield batch, outputs
                self.control = self.callback_handler.on_prediction_step(self.args, self.state, self.control)
        finally:
            reshard_model(model)

    def _iterate_batches(self, dataset: Any) -> Iterator[tuple[Any, bool]]:
        """Yield this process's batches of a data set, with a flag that is False for padding batches.

        See `pad_batches_across_processes`.
        """
        batches = self.get_eval_dataloader(dataset)
        if self._has_whole_batches:  # every process has rows in every batch
            return ((batch, True) for batch in batches)
        share = math.ceil(len(dataset) / self.args.world_size)
        return pad_batches_across_processes(
            batches, math.ceil(share / self.args.eval_batch_size), lambda: self.data_collator([dataset[0]])
        )


# ---- the saved tokenizer


def fit_tokenizer(model: Any, tokenizer: PreTrainedTokenizerFast | None) -> PreTrainedTokenizerFast | None:
    """Return a copy of a tokenizer with the segment ids and the length limit of the model.

    Args:
        model: A `DepthModel`.
        tokenizer: The tokenizer of the data, or None if the data have no text.
    """
    return None if tokenizer is None else for_model(tokenizer, _limit_length(model), reads_types=_reads_types(model))


def _limit_length(model: Any) -> int | None:
    """Return the training sequence length, capped at the model's number of positions.

    Prompts of a generating language model are not cut to the length of its training sequences.
    """
    identity = DataIdentity.from_config("model", str(model.name_or_path), model.config)
    trained = None if identity is None or model.can_generate() else identity.sequence_length
    return min((length for length in (trained, model.longest_sequence) if length is not None), default=None)


def _reads_types(model: Any) -> bool:
    """Return whether the model takes segment ids.

    A model of transformers is saved without the additions of this package, so the signature of its own `forward`
    decides.
    """
    base = model.base_model
    is_foreign = type(base).__module__.partition(".")[0] == "transformers"
    names = inspect.signature(base.forward if is_foreign else model.forward).parameters
    return "token_type_ids" in names and getattr(base.config, "type_vocab_size", 2) > 1
