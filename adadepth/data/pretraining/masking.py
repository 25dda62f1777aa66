"""Masked-language-model corruption: n-grams of whole words, as in ALBERT (Lan et al. 2020, section 3)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from transformers import PreTrainedTokenizerFast

from adadepth.data.batches import IGNORE

if TYPE_CHECKING:
    from adadepth.config.data import MaskingConfig

NOT_SELECTED, MASKED, RANDOM, ORIGINAL = 0, 1, 2, 3  # values of mask_kind


@dataclass(frozen=True)
class Vocabulary:
    """Vocabulary tables that masking needs, such as special tokens and word starts.

    Attributes:
        pad, cls, sep, mask: Ids of the special tokens.
        ordinary: Ids of all tokens that are not special, ascending.
        rank: Position of each id in ``ordinary``, or -1 for special tokens, (vocabulary,).
        starts_word: Mask of the tokens that begin a word, (vocabulary,) bool.
    """

    pad: int
    cls: int
    sep: int
    mask: int
    ordinary: np.ndarray
    rank: np.ndarray
    starts_word: np.ndarray

    @classmethod
    def from_tokenizer(cls, tokenizer: PreTrainedTokenizerFast) -> Vocabulary:
        """Build the tables for masking from a tokenizer."""
        size = len(tokenizer)
        ordinary = np.setdiff1d(np.arange(size), tokenizer.all_special_ids)
        rank = np.full(size, -1)
        rank[ordinary] = np.arange(len(ordinary))
        ids = (tokenizer.pad_token_id, tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.mask_token_id)
        pieces = [str(piece) for piece in tokenizer.convert_ids_to_tokens(list(range(size)))]
        return cls(*ids, ordinary, rank, find_word_starts(pieces))


def find_word_starts(pieces: list[str]) -> np.ndarray:
    """Return which vocabulary tokens begin a word, according to the word markers of the tokenizer.

    SentencePiece and byte-level BPE mark the tokens that begin a word, and WordPiece marks those that do not.
    Punctuation begins a separate word, as in ALBERT. If no token has a marker, every token is a word.
    """
    for marker in ("▁", "Ġ"):
        if any(piece.startswith(marker) for piece in pieces):
            return np.array([piece.startswith(marker) or not any(map(str.isalnum, piece)) for piece in pieces])
    return np.array([not piece.startswith("##") for piece in pieces])


@lru_cache
def ngram_distribution(longest: int) -> np.ndarray:
    """Return the cumulative distribution of the length of masked n-grams.

    The probability p(n) is proportional to 1/n for n = 1..longest.
    """
    weights = 1 / np.arange(1, longest + 1)
    return np.cumsum(weights / weights.sum())


def mask_tokens(
    ids: np.ndarray, vocabulary: Vocabulary, masking: MaskingConfig, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Select tokens for masked language modelling, and replace them as in ALBERT.

    The number of selected tokens is round(``probability`` · ordinary tokens), at least 1 and at most
    ``max_predictions``. It is lower only if no remaining word is short enough. Each selected token independently
    becomes [MASK] (``mask_share``), becomes another ordinary token drawn uniformly (``random_share``), or stays.
    Special tokens, including <unk>, are neither selected nor drawn.

    Args:
        ids: Token ids with special tokens in place, (S,) int64.
        vocabulary: Tables of the tokenizer.
        masking: Settings of the shares and limits.
        generator: Generator of the random numbers of the example.

    Returns:
        Corrupted ids, labels (-100 at tokens that are not selected), and mask kinds (uint8), each (S,).
    """
    selected = _select_positions(ids, vocabulary, masking, generator)
    corrupted, labels = ids.copy(), np.full_like(ids, IGNORE)
    kinds = np.zeros(len(ids), dtype=np.uint8)
    labels[selected] = ids[selected]
    draw = generator.random(len(selected))
    masked = draw < masking.mask_share
    replaced = ~masked & (draw < masking.mask_share + masking.random_share)
    kinds[selected] = np.where(masked, MASKED, np.where(replaced, RANDOM, ORIGINAL))
    corrupted[selected[masked]] = vocabulary.mask
    positions = selected[replaced]
    # One of the other ordinary tokens: those from the original's rank on move up by one.
    other = generator.integers(0, len(vocabulary.ordinary) - 1, len(positions))
    other += other >= vocabulary.rank[ids[positions]]
    corrupted[positions] = vocabulary.ordinary[other]
    return corrupted, labels, kinds


def _select_positions(
    ids: np.ndarray, vocabulary: Vocabulary, masking: MaskingConfig, generator: np.random.Generator
) -> np.ndarray:
    """Return the positions to mask: n-grams from random words on, until the masking budget is spent.

    An n-gram that does not fit is shortened.
    """
    allowed = vocabulary.rank[ids] >= 0
    budget = max(1, round(masking.probability * int(allowed.sum())))
    if masking.max_predictions is not None:
        budget = min(budget, masking.max_predictions)
    begins = ~allowed | (vocabulary.starts_word[ids] if masking.whole_word else True)
    begins[0] = True
    begins[1:] |= ~allowed[:-1]  # a segment's first token
    first = np.flatnonzero(begins)
    is_free = [*allowed[first].tolist(), False]
    candidates = generator.permutation(np.flatnonzero(allowed[first])).tolist()
    sizes = 1 + np.searchsorted(ngram_distribution(masking.max_ngram), generator.random(len(candidates)))
    bounds = [*first.tolist(), len(ids)]
    selected: list[int] = []
    for word, size in zip(candidates, sizes.tolist(), strict=True):
        for end in range(word, word + size):  # shorter when special, taken or beyond the budget
            if not is_free[end] or len(selected) + bounds[end + 1] - bounds[end] > budget:
                break
            selected.extend(range(bounds[end], bounds[end + 1]))
            is_free[end] = False
        if len(selected) == budget:
            break
    if not selected and candidates:  # every word is longer than the budget: a part of one
        selected = list(range(bounds[candidates[0]], bounds[candidates[0]] + budget))
    return np.array(sorted(selected), dtype=np.int64)
