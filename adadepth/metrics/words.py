"""Depth statistics of every word of a vocabulary, and of every class of word tags.

Sums are stored by the id of the first piece of a word. Memory therefore grows with the vocabulary, not with the text.

Shape legend: B batch, T tokens, V vocabulary, K keys, W words of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adadepth.metrics.significance import FEWEST_CLUSTERS, Sums

FEWEST_OCCURRENCES = 20  # occurrences of a word that is ranked
RANKED_WORDS = 15  # words at either end
GOES_ON = "…"  # after the first piece of words that have more


@dataclass(frozen=True)
class Words:
    """Words of a batch. Every attribute is a tensor (B, T).

    Attributes:
        pieces: Token ids as they were before masking, int64.
        starts: Whether a word, or a token outside all words, begins at the position. The first token of a row always
            does.
        counted: Whether a token is part of a word, and neither a special token nor padding.
        selected: Whether a token is to be predicted, so that the model may not see the original. None if no token is.
        tags: Class of the word that begins at the position, int64, negative without one. None if words are not tagged.
    """

    pieces: Tensor
    starts: Tensor
    counted: Tensor
    selected: Tensor | None = None
    tags: Tensor | None = None


class SumsByKey:
    """Running sums from which means are computed for many keys, such as vocabulary entries.

    Their size depends only on the number of keys, not on the size of the data set.

    Args:
        keys: Number K of keys. Values have keys 0 to K - 1.
        device: Device of the sums, which supports float64.
    """

    def __init__(self, keys: int, device: torch.device | str) -> None:
        self.table = torch.zeros(len(Sums._fields), keys, dtype=torch.float64, device=device)

    def add(self, keys: Tensor, values: Tensor, clusters: Tensor) -> None:
        """Add a batch of values with their keys and clusters, each (W,), keys and clusters int64.

        All values of a cluster must be in the same batch.
        """
        count = self.table.shape[1]
        pairs, groups = (clusters * count + keys).unique(return_inverse=True)
        values = values.double()
        n = torch.bincount(groups, minlength=len(pairs)).double()
        total = torch.zeros_like(n).index_add_(0, groups, values)
        moments = torch.stack([n, total, torch.ones_like(n), total**2, total * n, n**2])
        self.table.index_add_(1, pairs % count, moments)

    def columns(self) -> NDArray[np.float64]:
        """Return the `Sums` of every key as a tensor (6, K)."""
        return self.table.cpu().numpy()


class WordDepths:
    """Accumulator of the mean depth of each word and each word tag.

    A word of one piece is identified by that piece. All words of several pieces with the same first piece are combined.
    Words with a piece that is to be predicted are counted, but their depth is not measured.

    Args:
        vocabulary: Number of token ids, V.
        device: Device of the batches.
        tags: Number of classes that words are tagged with.
    """

    def __init__(self, vocabulary: int, device: torch.device | str, tags: int = 0) -> None:
        self._vocabulary = vocabulary
        self._words = SumsByKey(2 * vocabulary, device)
        self._tags = SumsByKey(tags, device)
        self._selected = torch.zeros(2 * vocabulary, dtype=torch.int64, device=device)

    def add(self, words: Words, updates: Tensor) -> None:
        """Add the depths of all tokens in a batch of whole sequences, (B, T)."""
        starts = words.starts.flatten()
        first, owner = starts.nonzero().squeeze(1), starts.cumsum(0) - 1
        sizes = torch.bincount(owner, minlength=len(first))
        depths = _sums(updates.flatten().double(), owner, len(first)) / sizes
        keys = words.pieces.flatten()[first] + self._vocabulary * (sizes > 1)
        measured = words.counted.flatten()[first]
        if words.selected is not None:
            hidden = measured & (_sums(words.selected.flatten().double(), owner, len(first)) > 0)
            self._selected += torch.bincount(keys[hidden], minlength=len(self._selected))
            measured = measured & ~hidden
        rows = first // words.starts.shape[1]
        self._words.add(keys[measured], depths[measured], rows[measured])
        if words.tags is not None:
            tags = words.tags.flatten()[first]
            tagged = tags >= 0
            self._tags.add(tags[tagged], depths[tagged], rows[tagged])

    def tensors(self) -> list[Tensor]:
        """Return the accumulated sums as tensors, which the caller all-reduces over processes.

        Before `summary`, sum each over processes, in place and in this order.
        """
        return [self._words.table, self._tags.table, self._selected]

    def summary(self, decode: Callable[[int], str], tags: Sequence[str] = ()) -> dict[str, Any]:
        """Return the deepest and the shallowest words, and the mean depth of every tag, as JSON values.

        Args:
            decode: Function from a token id to its text.
            tags: Names of the classes that words are tagged with.

        Returns:
            `n`, the number of measured words; `selected`, the number of words that were not measured; `ranked`, the
            number of words of the vocabulary that occur at least `fewest` times, in at least `fewest_sequences`
            sequences; `deepest` and `shallowest` of these words; and `tags`, the deepest first. Rows have `word` or
            `tag`, `n`, `sequences`, `mean`, `low` and `high` (95 % interval of the mean with sequences as clusters,
            None if there are too few). Rows of words also have `selected`.
        """
        columns, selected = self._words.columns(), self._selected.cpu().numpy()
        n, totals, sequences = columns[:3]
        often = np.flatnonzero((n >= FEWEST_OCCURRENCES) & (sequences >= FEWEST_CLUSTERS))
        order = often[np.argsort(totals[often] / n[often], kind="stable")].tolist()
        count = min(RANKED_WORDS, len(order) // 2)

        def row(key: int) -> dict[str, Any]:
            word = decode(key % self._vocabulary) + GOES_ON * (key >= self._vocabulary)
            return {"word": word, **_described(columns, key), "selected": int(selected[key])}

        of_tags = self._tags.columns()
        return {
            "fewest": FEWEST_OCCURRENCES,
            "fewest_sequences": FEWEST_CLUSTERS,
            "n": int(n.sum()),
            "selected": int(selected.sum()),
            "ranked": len(order),
            "deepest": [row(key) for key in reversed(order[len(order) - count :])],
            "shallowest": [row(key) for key in order[:count]],
            "tags": sorted(
                ({"tag": name, **_described(of_tags, key)} for key, name in enumerate(tags) if of_tags[0, key]),
                key=lambda estimated: -estimated["mean"],
            ),
        }


def _sums(values: Tensor, owner: Tensor, count: int) -> Tensor:
    return values.new_zeros(count).index_add_(0, owner, values)


def _described(columns: NDArray[np.float64], key: int) -> dict[str, Any]:
    mean = (sums := Sums(*columns[:, key].tolist())).estimate_mean()
    low, high = mean.interval
    return {"n": int(sums.n), "sequences": int(sums.clusters), "mean": mean.mean, "low": low, "high": high}
