"""Evaluation of labelled sequences: the task's metrics, and the depth that every example, or token, was given."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from accelerate.utils import gather_object
from torch import Tensor
from transformers import PreTrainedModel

from adadepth.analysis.exits.records import StepRecorder, StepRecords, merge
from adadepth.analysis.exits.steps import step_summary
from adadepth.analysis.measure.grids import GridSampler
from adadepth.analysis.measure.scoring import example_losses, quality_of, rightness, token_losses
from adadepth.analysis.measure.sentences import SentenceSampler
from adadepth.analysis.measure.sequence_classes import SequenceClasses, classes_of, like_units
from adadepth.analysis.measure.statistics import HaltingStatistics
from adadepth.data import LabelledData
from adadepth.halting.distribution import HaltingDistribution
from adadepth.halting.trace import DepthTrace
from adadepth.training.evaluation import EvaluationReport, add_over_processes, special_token_classes

_TOKEN_CLASSES = ("plain", "cls", "sep")  # also told apart where tokens halt


class LabelledEvaluation:
    """Keeps a few numbers an example, which the metrics of whole sets need, and sums of everything else."""

    def __init__(
        self,
        model: PreTrainedModel,
        data: LabelledData,
        classes: SequenceClasses,
        device: torch.device,
        *,
        wants_statistics: bool,
    ) -> None:
        self.model: Any = model
        self.data = data
        self.classes = classes
        self.wants_statistics = wants_statistics
        self._options = seeded_exits(model)
        self._recorder = StepRecorder()
        self._records: StepRecords | None = None
        self._prior: HaltingDistribution | None = None
        self._losses: dict[str, Tensor] = {}
        self._halts_tokens = model.config.model_type == "albert_act"
        self._token_classes = _TOKEN_CLASSES if self._halts_tokens and data.has_special_tokens else ()
        names = (*classes.names, *self._token_classes)
        self._statistics = HaltingStatistics(max_updates(model), names, device, classes.difficulties)
        self._reads_cached_states = False
        decode_label = data.labels.__getitem__ if data.problem == "tagging" else None
        self._sentences = SentenceSampler(self._token, decode_label=decode_label)
        self._grids = GridSampler(self._token, data.labels, data.picture or "cells")

    def _token(self, number: int) -> str:
        assert self.data.tokenizer is not None, "there are tokens"
        return str(self.data.tokenizer.convert_ids_to_tokens(number))

    def options(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        """See `seeded_exits`."""
        return self._options

    def update(self, batch: Mapping[str, Tensor], outputs: Any) -> None:
        """Add a batch's predictions, losses and depths."""
        self.record(batch, outputs)
        self._prior = getattr(outputs, "prior", None)
        counts = self.model.count_targets(batch)
        for name, part in outputs.loss_parts.items():
            added = torch.stack([part.double() * counts[name], counts[name].double()])
            self._losses[name] = self._losses.get(name, torch.zeros_like(added)) + added
        if self.wants_statistics:
            self._update_statistics(batch, outputs)

    def record(self, batch: Mapping[str, Tensor], outputs: Any) -> None:
        """Keep what the metrics of the whole set need of a batch."""
        self._recorder.add(batch, outputs)

    def _update_statistics(self, batch: Mapping[str, Tensor], outputs: Any) -> None:
        trace = outputs.trace
        if trace.unit == "task":
            self._reads_cached_states |= "states" in batch
            everyone = {"all": torch.ones_like(trace.valid)}
            self._statistics.update(trace, everyone, work=self.model.price(trace))
            return
        mask = batch.get("attention_mask")
        lengths = mask.sum(dim=1) if mask is not None else torch.full_like(batch["index"], batch["inputs"].shape[1])
        labels, difficulty = batch.get("labels"), batch.get("difficulty")
        masks = self.classes.masks(outputs.logits, labels, lengths, difficulty, valid=trace.valid)
        if self._token_classes:
            tokens = special_token_classes(batch, self.data.tokenizer)
            masks |= {name: tokens[name] for name in self._token_classes}
        losses = self._unit_losses(trace, outputs.logits, labels)
        if difficulty is not None:
            difficulty = like_units(difficulty, trace.updates).expand(trace.updates.shape)
        right = self._rightness(trace, outputs.logits, labels)
        work = self.model.price(trace)
        self._statistics.update(trace, masks, losses, work=work, right=right, difficulty=difficulty)
        if "input_ids" in batch:
            self._sample(batch, outputs, losses)

    def _unit_losses(self, trace: DepthTrace, logits: Tensor, labels: Tensor | None) -> Tensor | None:
        """The loss of every unit of the trace, where it has one of its own."""
        if labels is None:
            return None
        if self.data.problem == "tagging":
            return token_losses(logits, labels)
        return None if self._halts_tokens else example_losses(logits, labels, self.data.problem)

    def _rightness(self, trace: DepthTrace, logits: Tensor, labels: Tensor | None) -> Tensor | None:
        """Which units are predicted rightly; of a sequence whose tokens halt, its first token is counted."""
        if labels is None or not self.data.labels:
            return None
        right = rightness(logits, labels)
        if right.shape == trace.updates.shape:
            return right
        first = torch.full_like(trace.updates, math.nan, dtype=torch.float32)
        first[:, 0] = right
        return first

    def _sample(self, batch: Mapping[str, Tensor], outputs: Any, losses: Tensor | None) -> None:
        """Offer a batch to the example sentences: with labels and predictions where tokens have them."""
        if self.data.picture is not None:
            self._grids.update(batch, outputs.trace, outputs.logits.argmax(dim=-1))
        if self.data.problem == "tagging" and losses is not None:
            self._sentences.update(batch, outputs.trace, losses, outputs.logits.argmax(dim=-1))
            return
        self.show(batch, outputs.trace)

    def show(self, batch: Mapping[str, Tensor], trace: DepthTrace) -> None:
        """Offer sequences to the example sentences: `input_ids` and `attention_mask` (B, T), `index` (B,)."""
        ids = batch["input_ids"]
        unknown = torch.full(ids.shape, math.nan, device=ids.device)
        self._sentences.update({**batch, "labels": ids}, trace, unknown, ids)

    def merge(self) -> None:
        """Bring the examples and the sums of all processes together."""
        self.merge_records()
        self._losses = _sum_losses(self._losses)
        add_over_processes(self._statistics.tensors())

    def merge_records(self) -> None:
        """Bring together what `record` kept in all processes."""
        self._records = merge_processes(self._recorder)

    def metrics(self) -> dict[str, float]:
        """The task's metrics, their mean `score`, and the parts of the loss."""
        parts = {f"{name}_loss": float(total / count) for name, (total, count) in self._losses.items()}
        return {"loss": sum(parts.values()), **parts, **self.quality()}

    def quality(self) -> dict[str, float]:
        """The task's metrics of the whole set, and their mean `score`."""
        records = self._records
        assert records is not None
        assert records.labels is not None, "evaluation sets are labelled"
        return quality_of(records.logits, records.labels, self.data.problem, self.data.metrics)

    def report(self) -> EvaluationReport | None:
        """Depth by class, example sentences, and where a model decides a step, what its decisions are worth.

        Where the task has one distribution over layers, that distribution.
        """
        if not self.wants_statistics:
            return None
        statistics = self._statistics.summary()
        if statistics["unit"] == "task":
            return EvaluationReport(_with_sizes(statistics, self.model, self._reads_cached_states))
        exits = None
        if self._records is not None and self._records.ran_every_step:  # of tags only the predicted ones are kept
            exits = step_summary(self._records, **self._summary_options())
        return EvaluationReport(statistics, self._sentences.sentences(), exits, self._grids.grids())

    def _summary_options(self) -> dict[str, Any]:
        """What `step_summary` must know about the task and the model's halting distribution."""
        options: dict[str, Any] = {
            "problem": self.data.problem,
            "labels": self.data.labels,
            "metrics": self.data.metrics,
        }
        if self._prior is not None:
            config = self.model.config
            options |= {
                "prior_pmf": self._prior.pmf.cpu(),
                "truncation": config.truncation,
                "kl_direction": config.kl_direction,
            }
        return options


def _with_sizes(statistics: dict[str, Any], model: Any, reads_cached_states: bool) -> dict[str, Any]:
    """Statistics of a distribution over layers, with what the head adds to the base, and where the states came from."""
    if "layers" in statistics:
        statistics["layers"] |= {
            "added_parameters": model.added_parameters(),
            "base_parameters": sum(parameter.numel() for parameter in model.model.parameters()),
            "from_cache": reads_cached_states,
        }
    return statistics


def max_updates(model: Any) -> int:
    """The most updates a unit of this model can receive."""
    names = ("max_steps", "depth", "num_hidden_layers")
    return int(next(getattr(model.config, name) for name in names if hasattr(model.config, name)))


def sequence_classes(dataset: Any, data: LabelledData) -> SequenceClasses:
    """The classes of a set: the labels, quartiles of length, and buckets of difficulty where the data know it."""
    examples = [dataset[index] for index in range(len(dataset))]
    lengths = torch.tensor([len(example.get("input_ids", ())) for example in examples])
    has_unlabelled = data.problem == "tagging" and any((example["labels"] < 0).any() for example in examples)
    difficulty = _difficulties(examples) if data.has_difficulty else None
    return classes_of(data.labels, lengths, difficulty, has_unlabelled)


def _difficulties(examples: Sequence[Mapping[str, Any]]) -> Tensor:
    """The difficulty of every unit that has one, (U,) int64."""
    if "difficulty" in examples[0]:
        return torch.tensor([example["difficulty"] for example in examples])
    found = np.concatenate([example["difficulties"] for example in examples])
    return torch.from_numpy(found[found >= 0])


def seeded_exits(model: Any) -> dict[str, Any]:
    """Arguments of the forward pass with which rules that draw do so alike in every evaluation."""
    return {"generator": torch.Generator().manual_seed(0)} if hasattr(model, "exit_signals") else {}


def _sum_losses(losses: dict[str, Tensor]) -> dict[str, Tensor]:
    """Sums over processes, of which some may have had no example."""
    if not (dist.is_available() and dist.is_initialized()):
        return losses
    total: dict[str, Tensor] = {}
    for found in gather_object([{name: sums.cpu() for name, sums in losses.items()}]):
        for name, sums in found.items():
            total[name] = total.get(name, torch.zeros_like(sums)) + sums
    return total


def collect_records(trainer: Any, dataset: Any, **options: Any) -> StepRecords:
    """Run a set through the trainer's model and keep what every example got; `options` go to its forward."""
    recorder = StepRecorder()
    options = seeded_exits(trainer.accelerator.unwrap_model(trainer.model)) | options
    for batch, outputs in trainer.forward_passes(dataset, lambda _: options):
        recorder.add(batch, outputs)
    return merge_processes(recorder)


def merge_processes(recorder: StepRecorder) -> StepRecords:
    """The records of all processes, on each of them."""
    parts = recorder.parts()
    return merge(gather_object([parts]) if dist.is_available() and dist.is_initialized() else [parts])
