"""The training loop: transformers' Trainer, with losses normalised over the whole update and streaming evaluation.

transformers owns the loop, precision, accumulation, distribution, checkpoints and resume. What is added here: loss
parts normalised by the counts of the whole optimiser step, over micro-batches and processes; their logging and the
check that they are finite; evaluation of several sets that keeps what the task wants; the optimizer and the schedule.
What only some runs have is an `Extension`.
"""

from __future__ import annotations

import inspect
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.trainer_utils import EvalLoopOutput

from adadepth.analysis.exits.records import StepRecorder, StepRecords
from adadepth.atomic import write_atomic
from adadepth.config import TrainerConfig
from adadepth.console import say
from adadepth.data.sampler import EpochSampler, ProcessBatches, evaluation_order
from adadepth.data.streams.batches import StreamBatches
from adadepth.errors import CheckpointError
from adadepth.evaluation.evaluation import Evaluation
from adadepth.evaluation.records import merge_processes, seeded_exits
from adadepth.evaluation.scorer import EvaluationReport
from adadepth.training.checkpoints import TRAINER_STATE, last_good, rotate, whole_or_nothing
from adadepth.training.divergence import DivergedError, first_not_finite
from adadepth.training.extension import Extension
from adadepth.training.optimization import build_optimizer, build_schedule
from adadepth.training.progress import TrainingProgress
from adadepth.training.saving import tokenizer_of
from adadepth.training.speed import Stopwatch, count_tokens

PROGRESS = "progress_{}.json"  # of a checkpoint, by process
STAND_IN = "stand_in"  # in a batch: its examples do not count


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
        self.train_sampler: EpochSampler | None = None
        self._has_whole_batches = isinstance(data.train, StreamBatches)
        self._forward_names = set(inspect.signature(model.forward).parameters)
        super().__init__(
            model=model,
            args=args,
            train_dataset=data.train,
            eval_dataset=next(iter(evaluation_sets.values())),
            data_collator=first_item if self._has_whole_batches else data.collate,
            processing_class=tokenizer_of(model, data.tokenizer),
            callbacks=[_Beginning(self._go_on), *(callbacks or [])],
        )
        for extension in extensions:
            if isinstance(extension, TrainerCallback):
                self.add_callback(extension)
        # Releases before `loss_is_scaled_for_ga` decide by this flag and by counts that are not None.
        self.model_accepts_loss_kwargs = True

    @property
    def unwrapped_model(self) -> Any:
        """The model without what precision and distribution put around it."""
        return self.accelerator.unwrap_model(self.model)

    @property
    def _checkpoints(self) -> Path:
        """The folder of this run's checkpoints."""
        return Path(str(self.args.output_dir))

    # ---- data

    def _get_train_sampler(self, train_dataset: Dataset | None = None) -> EpochSampler:
        assert isinstance(self.data.train, Sized), "a stream has no sampler"
        self.train_sampler = EpochSampler(len(self.data.train), None if self._has_whole_batches else self.args.seed)
        return self.train_sampler

    def get_train_dataloader(self) -> DataLoader:
        """Batches of one epoch.

        accelerate would fill up the last batches of several processes with examples that were already read, and share
        out a stream that has done so itself.
        """
        if self._has_whole_batches:
            return self._loader(self.train_dataset, 1, sampler=self._get_train_sampler())
        if not isinstance(self.train_dataset, IterableDataset):
            return super().get_train_dataloader() if self.args.world_size == 1 else self._shared_loader()
        return self._loader(self.train_dataset, self.args.train_batch_size, drop_last=True)

    def _shared_loader(self) -> DataLoader:
        """This process's micro-batches; one without examples is a `stand_in`."""
        shares = ProcessBatches(
            self._get_train_sampler(),
            self.args.train_batch_size,
            self.args.process_index,
            self.args.world_size,
            drop_last=self.args.dataloader_drop_last,
        )
        return DataLoader(
            self.data.train,
            batch_sampler=shares,
            collate_fn=partial(stand_in, self.data.collate, self.data.train[0]),
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
            persistent_workers=self.args.dataloader_persistent_workers,
            prefetch_factor=self.args.dataloader_prefetch_factor,
        )

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

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Let the extensions complete a batch, and move it to the device."""
        for extension in self.extensions:
            inputs = extension.prepare(inputs, self.unwrapped_model)
        return super()._prepare_inputs(inputs)

    def model_inputs(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The part of a batch that the model's forward names; the rest is for statistics."""
        return {name: value for name, value in batch.items() if name in self._forward_names}

    # ---- an update

    def get_batch_samples(
        self, epoch_iterator: Iterator, num_batches: int, device: torch.device
    ) -> tuple[list, dict[str, Tensor]]:
        """The micro-batches of one update, and the target counts that normalise each loss part over all of it.

        The counts are over all processes, divided by their number because gradients are averaged over them.
        """
        batches = list(islice(epoch_iterator, num_batches))
        if not batches:
            return batches, {}
        counts = [self._count_targets(batch) for batch in batches]
        tokens = torch.stack([count_tokens(batch) * is_read(batch) for batch in batches]).sum()
        sums = [torch.stack([count[name] for count in counts]).sum() for name in counts[0]]
        totals = torch.stack([*sums, tokens]).float().to(device)
        if self.args.world_size > 1:
            dist.all_reduce(totals)
        self.progress.begin_update(totals[-1])
        return batches, dict(zip(counts[0], (totals[:-1] / self.args.world_size).unbind(), strict=True))

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

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Forward and backward of a micro-batch."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        for extension in self.extensions:
            extension.after_backward(inputs, model)
        return loss

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """See `build_optimizer`; extensions may take care of some parameters themselves."""
        if self.optimizer is None:
            trained: Any = self.model if model is None else model
            own = [group for one in self.extensions for group in one.parameter_groups(trained, self.settings)]
            self.optimizer = build_optimizer(trained, self.settings, own)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> Any:
        """See `build_schedule`."""
        if self.lr_scheduler is None:
            scheduled: Any = optimizer or self.optimizer
            scheduler: Any = build_schedule(scheduled, self.settings, num_training_steps)
            self.lr_scheduler = scheduler
            self._created_lr_scheduler = True
        return self.lr_scheduler

    # ---- the log

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Train, with the clock of the speed set."""
        self.resumed_from = Path(resume_from_checkpoint) if resume_from_checkpoint else None
        self.progress.begin()
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log, adding the mean of every loss part since the last training log."""
        if "loss" in logs:
            self._refuse_divergence()
            logs |= self.progress.drain()
            for extension in self.extensions:
                logs |= extension.logs()
        logs.pop("total_flos", None)  # counts tied weights once; `cost/*` prices the work that was done
        super().log(logs, start_time)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate; the time it takes does not count against the training speed."""
        begun = time.perf_counter()
        metrics = super().evaluate(*args, **kwargs)
        self.progress.pause(time.perf_counter() - begun)
        return metrics

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
            prefix = f"{metric_key_prefix}_{name}/" if number else f"{metric_key_prefix}_"
            metrics = evaluations[name].metrics() | {"tokens_per_second": speed}
            values |= {prefix + metric: value for metric, value in metrics.items()}
        for name, evaluation in evaluations.items():  # a report may tell the metrics of other sets
            if (report := evaluation.report()) is not None:
                self.last_reports[name] = report
        nothing: Any = None  # predictions are not kept
        examples = sum(len(dataset) for dataset in self.evaluation_sets.values())
        return EvalLoopOutput(nothing, nothing, values, num_samples=examples)

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
        for shared, is_own in self._shared_batches(dataset):
            batch = self._prepare_inputs(shared)
            with torch.no_grad(), self.autocast_smart_context_manager():
                outputs = model(**self.model_inputs(batch), **options(batch))
            if is_own:
                yield batch, outputs
            self.control = self.callback_handler.on_prediction_step(self.args, self.state, self.control)

    def _shared_batches(self, dataset: Any) -> Iterator[tuple[Any, bool]]:
        """This process's batches, and whether each is its own.

        Processes may have one batch more or less than others, yet sharded models need all of them in every forward
        pass: a process that has run out repeats its last batch, which nobody counts.
        """
        if self._has_whole_batches:  # every process has rows of its own in every batch
            yield from ((batch, True) for batch in self.get_eval_dataloader(dataset))
            return
        share = math.ceil(len(dataset) / self.args.world_size)
        batch: Any = None
        batches = iter(self.get_eval_dataloader(dataset))
        for _ in range(math.ceil(share / self.args.eval_batch_size)):
            following = next(batches, None)
            batch = batch if following is None else following
            if batch is None:
                batch = self.data_collator([dataset[0]])
            yield batch, following is not None

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        return all(one.allows_best() for one in self.extensions) and super()._determine_best_metric(metrics, trial)

    # ---- checkpoints

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Write a checkpoint that is whole once its manifest is; then the oldest ones beyond the limit go.

        transformers is told of no limit: it would delete the newest where only the best may stay.
        """
        self._refuse_divergence()
        self.refuse_weights()
        if self.progress.is_exploding():
            if self.is_world_process_zero():
                say(f"no checkpoint at step {self.state.global_step}: the loss is more than ten times the first one")
            return
        checkpoint = self._checkpoints / f"checkpoint-{self.state.global_step}"
        with whole_or_nothing(checkpoint, self.args.should_save):
            self.accelerator.wait_for_everyone()
            super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()
        if self.args.should_save:
            best = self.state.best_model_checkpoint
            rotate(self._checkpoints, self.settings.save_total_limit, {checkpoint, Path(best or checkpoint)})

    def _refuse_divergence(self) -> None:
        """Stop where the losses are no numbers, or have exploded.

        Raises:
            DivergedError: Naming the last good checkpoint.
        """
        self._refuse(self.progress.problem())

    def refuse_weights(self) -> None:
        """Stop where a weight is no number.

        Raises:
            DivergedError: Naming the parameter and the last good checkpoint.
        """
        name = first_not_finite(self.unwrapped_model, self.args.world_size)
        self._refuse(None if name is None else f"the weights {name!r} are not finite at step {self.state.global_step}")

    def _refuse(self, problem: str | None) -> None:
        if problem is not None:
            raise DivergedError(
                f"{problem}; {last_good(self._checkpoints)}. A lower trainer.learning_rate, a longer warm-up or "
                "trainer.precision=fp32 may help, in a new run: resumed, this one would diverge again"
            )

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save weights, configuration and tokenizer; the arguments of the training, a pickle, in checkpoints only."""
        with self._showing():
            super().save_model(output_dir, _internal_call)
        if not _internal_call and output_dir is not None and self.args.should_save:
            Path(output_dir, TRAINING_ARGS_NAME).unlink(missing_ok=True)

    def _save_rng_state(self, output_dir: str) -> None:
        """Save what each process has of its own: random numbers, sums for the log, and the state of the extensions."""
        super()._save_rng_state(output_dir)
        progress = {**self.progress.state(), "loss": float(self._tr_loss), "logged": self._globalstep_last_logged}
        write_atomic(Path(output_dir, PROGRESS.format(self.args.process_index)), json.dumps(progress))
        for extension in self.extensions:
            extension.save(Path(output_dir), self.args.process_index)

    def _go_on(self) -> None:
        """Restore what transformers does not, when all else is loaded; a run that was at its end trains no further."""
        if self.resumed_from is None:
            return
        with _reading(self.resumed_from, "the state of the run"):
            self._load_progress(self.resumed_from)
            for extension in self.extensions:
                extension.load(self.resumed_from, self.args.process_index, self.args.device)
        self._load_rng_state(str(self.resumed_from))
        self._begin_last_update_again()
        is_last = self.state.global_step >= self.state.max_steps
        if is_last or any(extension.has_ended() for extension in self.extensions):
            self.control.should_training_stop = True

    def _begin_last_update_again(self) -> None:
        """Tell the callbacks where the last update was: from there a model that follows a schedule is evaluated."""
        self.state.global_step -= 1
        self.control = self.callback_handler.on_step_begin(self.args, self.state, self.control)
        self.state.global_step += 1

    def _load_progress(self, checkpoint: Path) -> None:
        best = json.loads((checkpoint / TRAINER_STATE).read_text(encoding="utf-8"))["best_model_checkpoint"]
        if best is not None and (moved := self._checkpoints / Path(best).name).is_dir():
            self.state.best_model_checkpoint = str(moved)  # the run may lie elsewhere now
        path = checkpoint / PROGRESS.format(self.args.process_index)
        if path.is_file():  # else an older version wrote it
            state = json.loads(path.read_text(encoding="utf-8"))
            self.progress.load(state)
            self._tr_loss = torch.tensor(state["loss"], device=self.args.device)
            self._globalstep_last_logged = state["logged"]

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        """Nothing, where a resumed run was at its end: transformers would make an update before it looks."""
        if not self.control.should_training_stop:
            super()._run_epoch(*args, **kwargs)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        with _reading(resume_from_checkpoint, "the weights"):
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with _reading(checkpoint, "the optimizer or the schedule"):
            super()._load_optimizer_and_scheduler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with _reading(checkpoint, "the random numbers"):
            super()._load_rng_state(checkpoint)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Refuse weights that are not all there; tied ones are saved once, and a frozen base may lie elsewhere."""
        model = self.unwrapped_model
        elsewhere = set(model.all_tied_weights_keys) | set(model._keys_to_ignore_on_save or ())
        load_result.missing_keys[:] = [name for name in load_result.missing_keys if name not in elsewhere]
        if missing := load_result.missing_keys:
            raise KeyError(f"{missing[0]} is missing")
        super()._issue_warnings_after_load(load_result)


class _Beginning(TrainerCallback):
    """Calls a function when training begins: all is loaded, and no update is made yet."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        """Call it."""
        self._function()


@contextmanager
def _reading(checkpoint: Path | str | None, part: str) -> Iterator[None]:
    """Say in one line that a part of a checkpoint does not fit, in the first words of whoever noticed it.

    Libraries raise errors of many kinds over files that are not what they should be.
    """
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CheckpointError(f"{checkpoint}: {part} cannot be read: {reason}") from error


def stand_in(collate: Callable[[list[Any]], dict[str, Any]], example: Any, examples: list[Any]) -> dict[str, Any]:
    """The batch of some examples; of none, the one of an example that is not read.

    At the end of an epoch a process may have no examples left, but has to take part in the update of the others.
    """
    return collate(examples) if examples else {**collate([example]), STAND_IN: True}


def is_read(batch: Mapping[str, Any]) -> bool:
    """Whether a batch's examples count."""
    return STAND_IN not in batch


def first_item(items: list[Any]) -> Any:
    """The batch of a data set whose items are whole batches."""
    return items[0]
