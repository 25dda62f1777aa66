"""Sentences of a treebank as sequences, as they are or with masked tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import Dataset

from adadepth.data.pretraining.masking import Vocabulary, mask_tokens
from adadepth.data.pretraining.segments import NO_PAIR
from adadepth.data.randomness import EVALUATION_SEED, FIXED_EPOCH, Purpose, epoch_and_index, random_generator
from adadepth.data.text.layout import Layout

if TYPE_CHECKING:
    from adadepth.config.text import MaskingConfig

NO_WORD = -1  # the owner of special tokens


@dataclass(frozen=True)
class Masks:
    """How tokens are masked: the model's vocabulary, and shares and limits."""

    vocabulary: Vocabulary
    settings: MaskingConfig


class TreebankExamples(Dataset[dict[str, Any]]):
    """Some sentences as sequences; the same in every epoch and for every seed.

    Args:
        pieces: Token ids of each word of each sentence.
        first_words: Number of each sentence's first word in the treebank.
        layout: Special tokens and length of a sequence; longer sentences are cut.
        masks: With them an example also has what `adadepth.data.pretraining.examples.make_example` returns, masked
            like the examples of an evaluation in pretraining.
    """

    def __init__(
        self, pieces: list[list[list[int]]], first_words: np.ndarray, layout: Layout, masks: Masks | None = None
    ) -> None:
        self.pieces = pieces
        self.first_words = first_words
        self.layout = layout
        self.masks = masks

    def __len__(self) -> int:
        return len(self.pieces)

    def lengths(self) -> np.ndarray:
        """Return the number of tokens of each sequence, (examples,) int64."""
        return self.layout.lengths(np.array([sum(map(len, words)) for words in self.pieces]), 1)

    def __getitem__(self, item: int | tuple[int, int]) -> dict[str, Any]:
        index = epoch_and_index(item)[1]
        example = {**self._sequence(index), "index": index}
        return example if self.masks is None else {**example, **self._masked(example["input_ids"], index)}

    def _sequence(self, index: int) -> dict[str, Any]:
        return self.layout.build([np.array([token for word in self.pieces[index] for token in word])])

    def _masked(self, ids: np.ndarray, index: int) -> dict[str, Any]:
        assert self.masks is not None
        generator = random_generator(EVALUATION_SEED, Purpose.EXAMPLE, FIXED_EPOCH, index)
        corrupted, labels, kinds = mask_tokens(ids, self.masks.vocabulary, self.masks.settings, generator)
        return {"input_ids": corrupted, "labels": labels, "mask_kind": kinds, "sentence_order_label": NO_PAIR}

    def owners(self, index: int) -> np.ndarray:
        """Return the number in the treebank of the word that each token is a piece of, (S,) int64, or `NO_WORD`."""
        special = self._sequence(index)["special_tokens_mask"] == 1
        words = np.repeat(np.arange(len(self.pieces[index])), [len(word) for word in self.pieces[index]])
        owners = np.full(len(special), NO_WORD, dtype=np.int64)
        owners[~special] = self.first_words[index] + words[: (~special).sum()]
        return owners
