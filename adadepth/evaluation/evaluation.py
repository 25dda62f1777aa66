"""Evaluation of a model on one data set: losses, depth statistics and task metrics, accumulated over batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from adadepth.data.batches import count_tokens
from adadepth.data.pretraining.masking import find_word_starts
from adadepth.evaluation.exit_cost import reads_predictions, sum_prediction_macs
from adadepth.evaluation.predictions import make_exit_kwargs
from adadepth.evaluation.scorer import EvaluationReport, Scorer, Units
from adadepth.halting.trace import DepthTrace, Work
from adadepth.metrics.architectures import describe_architecture
from adadepth.metrics.depth_statistics import HaltingStatistics, describe_work
from adadepth.metrics.unit_costs import compute_unit_macs
from adadepth.metrics.words import WordDepths, Words
from adadepth.models.contract import DepthModel, LearnsGates, MixesLayers
from adadepth.models.registry import families
from adadepth.runtime.devices import move_to_float64_device, select_float64_device
from adadepth.runtime.distributed import all_reduce_sum, gather_from_processes


class TaskDepthReporter(Scorer):
    """Reporter for models with one depth per task: layer weights instead of depths of tokens or sequences."""

    def __init__(self, model: DepthModel, scorer: Scorer) -> None:
        self._model, self._scorer = model, scorer
        self._reads_cached_states = False

    def units(self, batch: Mapping[str, Tensor], outputs: Any) -> Units:
        """Return which texts are classified correctly, if whole texts are classified."""
        units = super().units(batch, outputs)
        logits = getattr(outputs, "logits", None)
        if logits is None or logits.shape[:-1] != outputs.trace.updates.shape:
            return units
        return replace(units, right=self._scorer.units(batch, outputs).right)

    def add_examples(self, batch: Mapping[str, Tensor], outputs: Any, units: Units) -> None:
        """Record whether the base model's hidden states come from the cache on disk."""
        self._reads_cached_states |= "states" in batch

    def report(self, statistics: dict[str, Any]) -> EvaluationReport:
        """Return the learned layer weights, the parameter counts of head and base, and the source of the states."""
        if "layers" in statistics and isinstance(self._model, MixesLayers):
            statistics["layers"] |= {
                "added_parameters": self._model.added_parameters(),
                "base_parameters": self._model.base_parameters(),
                "from_cache": self._reads_cached_states,
                "is_set": not self._model.learns_distribution,
            }
        return EvaluationReport(statistics)


class LossAccumulator:
    """Accumulator of mean losses per prediction target, independent of batch size and world size."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}  # (2,) float64 by part: sum of losses, number of targets

    def add(self, parts: Mapping[str, Tensor], counts: Mapping[str, Tensor]) -> None:
        """Add the loss terms of a batch, each weighted by its number of targets."""
        for name, part in parts.items():
            added = torch.stack([part.double() * counts[name], counts[name].double()])
            self._sums[name] = self._sums.get(name, torch.zeros_like(added)) + added

    def merge(self) -> None:
        """Sum the losses over all processes. Every process must call it, even without examples."""
        total: dict[str, Tensor] = {}
        for parts in gather_from_processes({name: sums.cpu() for name, sums in self._sums.items()}):
            for name, sums in parts.items():
                total[name] = total.get(name, torch.zeros_like(sums)) + sums
        self._sums = total

    def means(self, suffix: str = "_loss") -> dict[str, float]:
        """Return the mean `<part>_loss` of every loss term that has targets, or with another suffix of the names."""
        totals = {name: sums.tolist() for name, sums in self._sums.items()}
        return {f"{name}{suffix}": total / count for name, (total, count) in totals.items() if count}


class UnitStatistics(HaltingStatistics):
    """Accumulator of depth statistics over the tokens, sequences or tasks of an evaluation, by class.

    Args:
        model: Evaluated model.
        classes: Names of the classes; see `HaltingStatistics`.
        device: Device of the sums.
        difficulties: Number of difficulties.
    """

    advice: str | None = None

    def __init__(self, model: DepthModel, classes: Sequence[str], device: torch.device, difficulties: int) -> None:
        super().__init__(model.max_updates, classes, device, difficulties)
        self._model = model
        self._predictions = torch.zeros(2, dtype=torch.float64, device=device)  # multiply-accumulates, units

    def add(self, trace: DepthTrace, units: Units, work: Work) -> None:
        """Add the tokens, sequences or tasks of a batch to the depth statistics."""
        if trace.unit != "task":
            self._predictions += sum_prediction_macs(self._model, trace)
        self.update(
            trace, units.classes, units.losses, units.states, work, right=units.right, difficulty=units.difficulty
        )

    def tensors(self) -> list[Tensor]:
        """Return the accumulated sums as tensors, which the caller all-reduces over processes."""
        return [*super().tensors(), self._predictions]

    def summary(self) -> dict[str, Any]:
        """Return the content of `halting.json`, including advice if depth does not adapt.

        `prediction_macs` are the multiply-accumulates of one prediction, as a mean over units. `cost` leaves them out.
        `predictions_per_unit` is the number of predictions that the model's exit rule needs until its exit.
        """
        summary = super().summary()
        macs, units = self._predictions.tolist()
        if units:
            is_read = reads_predictions(getattr(self._model.config, "exit_rule", None))
            summary["prediction_macs"] = macs / units
            summary["predictions_per_unit"] = summary["classes"]["all"]["mean"] if is_read else 1.0
        if self.advice and "warning" in summary["adaptation"]:
            half = max(1, round(summary["max_depth"] / 2))
            summary["adaptation"]["advice"] = self.advice.replace("DEPTH", str(half))
        return summary


class ArchitectureStatistics:
    """Accumulator of the searched operation of each block, and of the compute per token."""

    def __init__(self, model: DepthModel, device: torch.device) -> None:
        self._model = model
        self._operations: list[list[float]] = []
        self._sums = torch.zeros(len(Work._fields) + 1, dtype=torch.float64, device=device)  # work, tokens

    def add(self, trace: DepthTrace, units: Units, work: Work) -> None:
        """Add the compute and the token count of a batch, and record the operations of the blocks."""
        tokens = trace.executed.tokens
        assert trace.operations is not None
        assert tokens is not None
        if not self._operations:
            self._operations = trace.operations.weights.tolist()
        self._sums += torch.stack([*work, tokens.sum()]).double()

    def tensors(self) -> Sequence[Tensor]:
        """Return the accumulated sums as tensors, which the caller all-reduces over processes."""
        return [self._sums]

    def summary(self) -> dict[str, Any]:
        """Return statistics of the architecture (see `describe_architecture`), and the compute per token."""
        temperature = self._model.temperature if isinstance(self._model, LearnsGates) else None
        described = describe_architecture(self._operations, temperature)
        *work, tokens = self._sums.tolist()
        return {
            "unit": "architecture",
            "max_depth": described["blocks"],
            "architecture": described,
            "cost": describe_work([total / tokens for total in work]),
        }


Statistics = UnitStatistics | ArchitectureStatistics


def build_statistics(model: DepthModel, classes: Sequence[str], difficulties: int, device: torch.device) -> Statistics:
    """Build the accumulator of depth statistics for what has a depth in a model, e.g. tokens or an architecture."""
    if model.depth_unit == "architecture":
        return ArchitectureStatistics(model, device)
    statistics = UnitStatistics(model, classes, device, difficulties)
    if (family := families().get(model.config.model_type)) is not None:
        statistics.advice = family.advice
    return statistics


class Evaluation:
    """Evaluation of a model on one data set: accumulates batches, and returns metrics and a report.

    Args:
        model: Evaluated model.
        scorer: Scorer of the task.
        device: Device of the batches. Where it has no float64, batches and outputs are moved to the CPU first.
        wants_statistics: Whether to build a report.
        wants_states: Whether the report compares the states of consecutive iterations, if the model returns them.
        wants_rows: Whether the report holds the predictions of all examples.
    """

    def __init__(
        self,
        model: DepthModel,
        scorer: Scorer,
        device: torch.device,
        *,
        wants_statistics: bool,
        wants_states: bool = False,
        wants_rows: bool = False,
    ) -> None:
        self.model = model
        self.scorer = scorer
        self._reporter = TaskDepthReporter(model, scorer) if model.depth_unit == "task" else scorer
        self.wants_statistics = wants_statistics
        self.wants_rows = wants_rows
        self._device = device
        device = select_float64_device(device)
        self._losses, self._measures = LossAccumulator(), LossAccumulator()
        self._statistics = build_statistics(model, self._reporter.classes, self._reporter.difficulties, device)
        self._tokens = torch.zeros((), dtype=torch.int64, device=device)
        self._options = make_exit_kwargs(model)
        self._reads_states = wants_statistics and wants_states and model.shows_states
        if self._reads_states:
            self._options["output_hidden_states"] = True

    @cached_property
    def _words(self) -> VocabularyDepths | None:
        """Depth of words, if a report is wanted. It is built at first use, because it reads the whole vocabulary."""
        if not self.wants_statistics:
            return None
        return vocabulary_depths(self.scorer, self.model.depth_unit, select_float64_device(self._device))

    def options(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments that the model's forward pass needs besides the tensors of a batch."""
        return {**self._options, **self.scorer.options(batch)}

    def update(self, batch: Mapping[str, Tensor], outputs: Any) -> None:
        """Add a batch with the model's outputs to losses, task metrics and depth statistics."""
        batch, outputs = move_to_float64_device((batch, outputs), self._device)
        self.scorer.record(batch, outputs)
        if outputs.loss_parts is not None:  # sentences without targets have no loss
            self._losses.add(outputs.loss_parts, self.model.count_targets(batch))
        if (measures := getattr(outputs, "measures", None)) is not None:
            counts = {name: measure.count for name, measure in measures.items()}
            means = {name: measure.total / measure.count.clamp(min=1) for name, measure in measures.items()}
            self._measures.add(means, counts)
        if self.wants_statistics:
            units = self._reporter.units(batch, outputs)
            if self._reads_states:
                units = replace(units, states=outputs.hidden_states)
            self._statistics.add(outputs.trace, units, self.model.price(outputs.trace))
            self._tokens += count_tokens(batch).to(self._tokens.device)
            self._reporter.add_examples(batch, outputs, units)
            if self._words is not None:
                self._words.add(batch, outputs.trace.updates)

    def merge(self) -> None:
        """Merge the sums and records of all processes. Every process must call it."""
        self.scorer.merge()
        self._losses.merge()
        self._measures.merge()
        all_reduce_sum([*self._statistics.tensors(), self._tokens])
        all_reduce_sum([] if self._words is None else self._words.tensors())

    def losses(self) -> dict[str, float]:
        """Return the mean of every loss term over the data set, by name."""
        return self._losses.means()

    def metrics(self) -> dict[str, float]:
        """Return the scalar metrics by name, among them `loss` and the model's own measures."""
        return self.scorer.metrics(self.losses()) | self._measures.means(suffix="")

    def report(self) -> EvaluationReport | None:
        """Return depth statistics and task results for the report, or None if none is wanted."""
        if not self.wants_statistics:
            return None
        summary = self._statistics.summary()
        summary["cost"] |= compute_unit_macs(summary, int(self._tokens))
        words = {} if self._words is None else {"words": self._words.summary()}
        report = self._reporter.report(summary | words)
        return replace(report, rows=self.scorer.rows()) if self.wants_rows else report


# ---- depth of words


class VocabularyDepths:
    """Accumulator of the depth of each vocabulary entry over a data set.

    Args:
        scorer: Scorer of the task.
        tokenizer: Tokenizer of the text.
        device: Device of the batches.
    """

    def __init__(self, scorer: Scorer, tokenizer: PreTrainedTokenizerBase, device: torch.device) -> None:
        self._scorer = scorer
        self._tokenizer = tokenizer
        pieces = [str(piece) for piece in tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))]
        self._starts = torch.from_numpy(find_word_starts(pieces)).to(device)
        self._special = torch.zeros(len(pieces), dtype=torch.bool, device=device)
        self._special[tokenizer.all_special_ids] = True
        self._depths = WordDepths(len(pieces), device, len(scorer.tags))

    def add(self, batch: Mapping[str, Tensor], updates: Tensor) -> None:
        """Add the depths of the tokens in a batch, (B, T), to the sums of their vocabulary entries."""
        self._depths.add(self._words(batch, updates), updates)

    def _words(self, batch: Mapping[str, Tensor], updates: Tensor) -> Words:
        pieces, real = (batch[name].view(updates.shape) for name in ("input_ids", "attention_mask"))
        selected = None
        if "mask_kind" in batch:
            selected = batch["mask_kind"] > 0
            pieces = torch.where(selected, batch["labels"], pieces)
        counted = real.bool() & ~self._special[pieces]
        starts = self._scorer.find_word_starts(batch)
        starts = ~counted | (self._starts[pieces] if starts is None else starts)
        starts[:, 1:] |= ~counted[:, :-1]  # a segment's first token
        starts[:, 0] = True
        return Words(pieces, starts, counted, selected, batch["labels"] if self._scorer.tags else None)

    def tensors(self) -> list[Tensor]:
        """Return the accumulated sums as tensors, which the caller all-reduces over processes."""
        return self._depths.tensors()

    def summary(self) -> dict[str, Any]:
        """Return mean depths of words and tags as in `WordDepths`, with token ids decoded to text."""
        return self._depths.summary(self._text, self._scorer.tags)

    def _text(self, piece: int) -> str:
        """Decode a token id to text, or return its vocabulary entry if it is no text by itself."""
        text = str(self._tokenizer.decode([piece])).strip()
        return text if text and "\ufffd" not in text else str(self._tokenizer.convert_ids_to_tokens(piece))


def vocabulary_depths(scorer: Scorer, unit: str, device: torch.device) -> VocabularyDepths | None:
    """Build the accumulator of depth per word, or return None if tokens are not text or have no depth."""
    tokenizer = scorer.word_tokenizer
    return VocabularyDepths(scorer, tokenizer, device) if tokenizer is not None and unit == "token" else None
