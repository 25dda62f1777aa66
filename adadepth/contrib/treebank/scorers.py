"""The scorers of a treebank: the depth of every token beside that of the word it is a piece of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from adadepth.contrib.treebank.data import NO_WORD, TreebankExamples
from adadepth.contrib.treebank.measures import Pieces, joined_pieces
from adadepth.data.pretraining.masking import MASKED
from adadepth.evaluation.pretraining import PretrainingScorer, classify_tokens
from adadepth.evaluation.scorer import EvaluationReport, Scorer, Units
from adadepth.halting.trace import DepthTrace
from adadepth.measure.example_sentences import SentenceSampler
from adadepth.system.distributed import gather_from_processes


class WordRecorder:
    """Keeps a few numbers for every piece of a word; where tokens are masked, for those fed as [MASK] only.

    Args:
        examples: The evaluated sentences.
    """

    def __init__(self, examples: TreebankExamples) -> None:
        self.examples = examples
        self._parts: list[Pieces] = []

    def add(self, batch: Mapping[str, Tensor], trace: DepthTrace, states: Sequence[Tensor] | None) -> None:
        """Add a batch, and what its iterations did to its states where these are known."""
        owners = torch.full(batch["input_ids"].shape, NO_WORD)
        for row, index in zip(owners, batch["index"].tolist(), strict=True):
            found = torch.from_numpy(self.examples.owners(index))
            row[: len(found)] = found
        counted = owners != NO_WORD
        first = counted & (owners != owners.roll(1, dims=1))  # [CLS] is before the first word
        if "mask_kind" in batch:
            counted &= batch["mask_kind"].cpu() == MASKED
        cosines = None
        if states is not None:
            cosines = _cosines(trace, states).cpu()[counted & first].numpy()
        updates = trace.updates.cpu()[counted].double().numpy()
        self._parts.append(Pieces(owners[counted].numpy(), first[counted].numpy(), updates, cosines))

    def merge(self) -> None:
        """Bring together the pieces of all processes."""
        self._parts = [part for parts in gather_from_processes(self._parts) for part in parts]

    def pieces(self) -> Pieces:
        """All pieces of the batches that were added."""
        return joined_pieces(self._parts)


def _cosines(trace: DepthTrace, states: Sequence[Tensor]) -> Tensor:
    """Similarity of the states before and after each iteration, NaN where a token did not run it, (B, T, L) float32."""
    ran = trace.iterations_run
    found = torch.full((*trace.updates.shape, trace.max_updates), math.nan, device=trace.updates.device)
    for step in range(len(states) - 1):
        cosine = nn.functional.cosine_similarity(states[step].float(), states[step + 1].float(), dim=-1)
        found[..., step] = torch.where(ran[..., step], cosine, math.nan)
    return found


class TreebankScorer(Scorer):
    """Sentences as they are: every token's depth, and no prediction.

    Args:
        tokenizer: Of the text.
        examples: The evaluated sentences.
    """

    classes = ("all", "plain", "cls", "sep")

    def __init__(self, tokenizer: PreTrainedTokenizerBase, examples: TreebankExamples) -> None:
        self.words = WordRecorder(examples)
        self._tokenizer = tokenizer
        self._sentences = SentenceSampler(decode=lambda number: str(tokenizer.convert_ids_to_tokens(number)))

    def merge(self) -> None:
        """Bring together the words of all processes."""
        self.words.merge()

    def metrics(self, losses: Mapping[str, float]) -> dict[str, float]:
        """No metrics, since nothing is predicted here."""
        return {}

    def units(self, batch: Mapping[str, Tensor], outputs: Any) -> Units:
        """Tokens by what they are."""
        return Units(classify_tokens(batch, self._tokenizer))

    def show(self, batch: Mapping[str, Tensor], outputs: Any, units: Units) -> None:
        """Keep the depths of words, and sentences with the depth of every token."""
        self.words.add(batch, outputs.trace, units.states)
        ids = batch["input_ids"]
        unknown = torch.full(ids.shape, math.nan, device=ids.device)
        self._sentences.update({**batch, "labels": ids}, outputs.trace, unknown, ids)

    def report(self, statistics: dict[str, Any]) -> EvaluationReport:
        """Depth by token class, and example sentences."""
        return EvaluationReport(statistics, self._sentences.sentences())


class MaskedTreebankScorer(PretrainingScorer):
    """Masked sentences, evaluated like those of pretraining."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, examples: TreebankExamples, device: torch.device) -> None:
        super().__init__(tokenizer, device)
        self.words_of = None  # words.json has more to say of them
        self.words = WordRecorder(examples)

    def merge(self) -> None:
        """Bring together what all processes have."""
        super().merge()
        self.words.merge()

    def show(self, batch: Mapping[str, Tensor], outputs: Any, units: Units) -> None:
        """Keep the depths of masked words, and sentences with the words that were predicted."""
        self.words.add(batch, outputs.trace, units.states)
        super().show(batch, outputs, units)
