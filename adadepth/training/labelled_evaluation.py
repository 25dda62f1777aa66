"""Evaluation of classification and regression: the task's metrics, and the depth that every example was given."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from accelerate.utils import gather_object
from torch import Tensor
from transformers import PreTrainedModel

from adadepth.analysis.exits import step_summary
from adadepth.analysis.records import StepRecorder, StepRecords, merge
from adadepth.analysis.scoring import example_losses, quality_of
from adadepth.analysis.sentences import SentenceSampler
from adadepth.analysis.sequence_classes import SequenceClasses, classes_of
from adadepth.analysis.statistics import HaltingStatistics
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
        names = (*classes.names, *_TOKEN_CLASSES) if self._halts_tokens else classes.names
        self._statistics = HaltingStatistics(max_updates(model), names, device)
        self._reads_cached_states = False
        self._sentences = SentenceSampler(lambda number: str(data.tokenizer.convert_ids_to_tokens(number)))

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
        masks = self.classes.masks(
            outputs.logits, batch.get("labels"), lengths, batch.get("difficulty"), valid=trace.valid
        )
        losses = None
        if self._halts_tokens:
            tokens = special_token_classes(batch, self.data.tokenizer)
            masks |= {name: tokens[name] for name in _TOKEN_CLASSES}
        elif "labels" in batch:
            losses = example_losses(outputs.logits, batch["labels"], self.data.problem)
        self._statistics.update(trace, masks, losses, work=self.model.price(trace))
        if "input_ids" in batch:
            self.show(batch, trace)

    def show(self, batch: Mapping[str, Tensor], trace: DepthTrace) -> None:
        """Offer sequences to the example sentences: `input_ids` and `attention_mask` (B, T), `index` (B,)."""
        shown = {**batch, "labels": batch["input_ids"]}
        unknown = torch.full(batch["input_ids"].shape, math.nan, device=trace.updates.device)
        self._sentences.update(shown, trace, unknown, batch["input_ids"])

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
        if self._records is not None and self._records.ran_every_step:
            exits = step_summary(self._records, **self._summary_options())
        return EvaluationReport(statistics, self._sentences.sentences(), exits)

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
    difficulty = torch.tensor([example["difficulty"] for example in examples]) if data.has_difficulty else None
    return classes_of(data.labels, lengths, difficulty)


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
