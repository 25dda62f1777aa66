"""Scorers for treebanks, which record the depth of every token together with its word."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from adadepth.contrib.treebank.data import NO_WORD, TreebankExamples
from adadepth.contrib.treebank.measures import WordPieces, concatenate_pieces
from adadepth.data.pretraining.masking import MASKED
from adadepth.evaluation.pretraining import PretrainingScorer, classify_tokens
from adadepth.evaluation.scorer import EvaluationReport, Scorer, Units
from adadepth.halting.trace import DepthTrace
from adadepth.metrics.example_sentences import SentenceSampler
from adadepth.runtime.distributed import gather_from_processes


class WordRecorder:
    """Recorder of the depths of the subword tokens of words.

    If tokens are masked, only the pieces that were replaced by [MASK] are recorded.

    Args:
        examples: Evaluated sentences.
    """

    def __init__(self, examples: TreebankExamples) -> None:
        self.examples = examples
        self._parts: list[WordPieces] = []

    def add(self, batch: Mapping[str, Tensor], trace: DepthTrace, states: Sequence[Tensor] | None) -> None:
        """Record the depths of a batch and, if hidden states are given, their similarity between iterations."""
        owners = torch.full(batch["input_ids"].shape, NO_WORD)
        for row, index in zip(owners, batch["index"].tolist(), strict=True):
            row_owners = torch.from_numpy(self.examples.owners(index))
            row[: len(row_owners)] = row_owners
        counted = owners != NO_WORD
        first = counted & (owners != owners.roll(1, dims=1))  # [CLS] is before the first word
        if "mask_kind" in batch:
            counted &= batch["mask_kind"].cpu() == MASKED
        cosines = None
        if states is not None:
            cosines = _compute_cosines(trace, states).cpu()[counted & first].numpy()
        updates = trace.updates.cpu()[counted].double().numpy()
        self._parts.append(WordPieces(owners[counted].numpy(), first[counted].numpy(), updates, cosines))

    def merge(self) -> None:
        """Gather the recorded depths of all processes."""
        self._parts = [part for parts in gather_from_processes(self._parts) for part in parts]

    def pieces(self) -> WordPieces:
        """Return the depths of subword tokens from all batches."""
        return concatenate_pieces(self._parts)


def _compute_cosines(trace: DepthTrace, states: Sequence[Tensor]) -> Tensor:
    """Return the cosine similarity of hidden states before and after each iteration, (B, T, L) float32.

    It is NaN for iterations that were not run.
    """
    ran = trace.iterations_run
    cosines = torch.full((*trace.updates.shape, trace.max_updates), math.nan, device=trace.updates.device)
    for step in range(len(states) - 1):
        cosine = nn.functional.cosine_similarity(states[step].float(), states[step + 1].float(), dim=-1)
        cosines[..., step] = torch.where(ran[..., step], cosine, math.nan)
    return cosines


class TreebankScorer(Scorer):
    """Scorer of unmasked treebank sentences, which records depths and scores no predictions.

    Args:
        tokenizer: Tokenizer of the sentences.
        examples: Evaluated sentences.
    """

    classes = ("all", "plain", "cls", "sep")

    def __init__(self, tokenizer: PreTrainedTokenizerBase, examples: TreebankExamples) -> None:
        self.words = WordRecorder(examples)
        self._tokenizer = tokenizer
        self._sentences = SentenceSampler(decode=lambda number: str(tokenizer.convert_ids_to_tokens(number)))

    def merge(self) -> None:
        """Gather the recorded words of all processes."""
        self.words.merge()

    def metrics(self, losses: Mapping[str, float]) -> dict[str, float]:
        """Return an empty mapping, because there are no predictions to score."""
        return {}

    def units(self, batch: Mapping[str, Tensor], outputs: Any) -> Units:
        """Return the tokens of a batch with their token classes, for depth statistics."""
        return Units(classify_tokens(batch, self._tokenizer))

    def add_examples(self, batch: Mapping[str, Tensor], outputs: Any, units: Units) -> None:
        """Record the depths of words, and example sentences with the depth of every token."""
        self.words.add(batch, outputs.trace, units.states)
        ids = batch["input_ids"]
        unknown = torch.full(ids.shape, math.nan, device=ids.device)
        self._sentences.update({**batch, "labels": ids}, outputs.trace, unknown, ids)

    def report(self, statistics: dict[str, Any]) -> EvaluationReport:
        """Return depth statistics by token class, and example sentences."""
        return EvaluationReport(statistics, self._sentences.sentences())


class MaskedTreebankScorer(PretrainingScorer):
    """Scorer of masked treebank sentences, with predictions evaluated as in pretraining."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, examples: TreebankExamples, device: torch.device) -> None:
        super().__init__(tokenizer, device)
        self.word_tokenizer = None  # words.json replaces these statistics
        self.words = WordRecorder(examples)

    def merge(self) -> None:
        """Gather the recorded depths and predictions of all processes."""
        super().merge()
        self.words.merge()

    def add_examples(self, batch: Mapping[str, Tensor], outputs: Any, units: Units) -> None:
        """Record the depths of masked words, and example sentences with predictions."""
        self.words.add(batch, outputs.trace, units.states)
        super().add_examples(batch, outputs, units)
