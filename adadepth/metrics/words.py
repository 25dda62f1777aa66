"""Depth statistics of every word of a vocabulary, and of every class that words are tagged with.

Sums are stored by the id of a word's first piece. Memory therefore grows with the vocabulary, not with the text.

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

from adadepth.metrics.adaptation import FEWEST_CLUSTERS, Sums, estimate

FEWEST_OCCURRENCES = 20  # occurrences of a word that is ranked
RANKED_WORDS = 15  # words at either end
GOES_ON = "…"  # after the first piece of words that have more


@dataclass(frozen=True)
class Words:
    """The words of a batch, each (B, T).

    Attributes:
        pieces: Token ids as they were before masking, int64.
        starts: Whether a word, or something that is none, begins there; the first token of a row does.
        counted: Whether a token is part of a word: no special token and no padding.
        selected: Whether it is to be predicted, so that the model does not see it as it is; None: no token is.
        tags: Class of the word that begins there, int64, negative where it has none; None: words are not tagged.
    """

    pieces: Tensor
    starts: Tensor
    counted: Tensor
    selected: Tensor | None = None
    tags: Tensor | None = None


class SumsByKey:
    """The sums of many means at once, added up batch by batch; their size is that of the keys, whatever the set.

    Args:
        keys: K; values have keys 0 to K - 1.
        device: Device of the sums, which supports float64.
    """

    def __init__(self, keys: int, device: torch.device | str) -> None:
        self.table = torch.zeros(len(Sums._fields), keys, dtype=torch.float64, device=device)

    def add(self, keys: Tensor, values: Tensor, clusters: Tensor) -> None:
        """Add a batch; no cluster may come in two of them. All (W,), keys and clusters int64."""
        count = self.table.shape[1]
        pairs, groups = (clusters * count + keys).unique(return_inverse=True)
        values = values.double()
        n = torch.bincount(groups, minlength=len(pairs)).double()
        total = torch.zeros_like(n).index_add_(0, groups, values)
        moments = torch.stack([n, total, torch.ones_like(n), total**2, total * n, n**2])
        self.table.index_add_(1, pairs % count, moments)

    def columns(self) -> NDArray[np.float64]:
        """Return the `Sums` of every key, (6, K)."""
        return self.table.cpu().numpy()


class WordDepths:
    """Adds up the mean depth over the pieces of words, by word and by tag.

    A word of one piece is known by it. Of those of several pieces the ones with the same first piece are taken
    together. Words with a piece that is to be predicted are counted, and not measured.

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
        """Add a batch of whole sequences with the depth of every token, (B, T)."""
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
        """Return the accumulators; before `summary`, sum each over processes, in place and in this order."""
        return [self._words.table, self._tags.table, self._selected]

    def summary(self, decode: Callable[[int], str], tags: Sequence[str] = ()) -> dict[str, Any]:
        """Return the deepest and the shallowest words, and every tag, as JSON values.

        Args:
            decode: From a token id to its text.
            tags: Names of the classes that words are tagged with.

        Returns:
            `n` measured words, `selected` ones that were not, `ranked`: words of the vocabulary that occur `fewest`
            times or more, in `fewest_sequences` sequences or more; `deepest` and `shallowest` of these, and `tags`,
            deepest first: rows of `word` or `tag`, `n`, `sequences`, `mean`, `low` and `high` (95 % interval of the
            mean, sequences as clusters, None where they are too few), words also with `selected`.
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
    estimated = estimate(Sums(*columns[:, key].tolist()))
    return {
        "n": int(columns[0, key]),
        "sequences": estimated.clusters,
        "mean": estimated.mean,
        "low": estimated.low,
        "high": estimated.high,
    }
