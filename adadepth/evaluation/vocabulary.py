"""Mean depth of each word of the vocabulary, accumulated over the batches of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from adadepth.data.pretraining.masking import find_word_starts
from adadepth.evaluation.scorer import Scorer
from adadepth.metrics.words import WordDepths, Words


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
