"""Adaptive embedding and adaptive softmax (Grave et al. 2017, arXiv 1609.04309), with a chunked cross-entropy.

On a CPU, memory limits the speed of a tail, not arithmetic. Logits, log-probabilities and their two gradients take some
megabytes each. They exceed the caches and are allocated anew in every step. The cross-entropy therefore processes rows
in chunks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from transformers import initialization as init

from adadepth.errors import ConfigError
from adadepth.models.shared.layers import Product

_LOGITS = 2**17  # per chunk: half a megabyte


def chunked_cross_entropy(states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    """Compute the cross-entropy -log softmax(x W' + b)_w of every row, (n,), in chunks to save memory.

    Args:
        states: States x, (n, k).
        weight: Weight W, (V, k).
        bias: Bias b, (V,), or None.
        targets: Word ids w, (n,).
    """
    losses: Tensor = _PartedCrossEntropy.apply(states, weight, bias, targets)
    return losses


class _PartedCrossEntropy(Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
        # For narrow vectors of words, products are two to eight times faster with the words last.
        words_last = weight.t().contiguous()
        ctx.save_for_backward(states, words_last, bias, targets)
        losses = states.new_empty(len(states))
        for rows in _parts(states, words_last):
            logits = _logits(states[rows], words_last, bias)
            losses[rows] = nn.functional.cross_entropy(logits, targets[rows], reduction="none")
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        states, words_last, bias, targets = ctx.saved_tensors
        of_states, of_words = torch.empty_like(states), torch.zeros_like(words_last)
        of_bias = None if bias is None else torch.zeros_like(bias)
        for rows in _parts(states, words_last):
            above = gradient[rows].unsqueeze(1)
            of_logits = _logits(states[rows], words_last, bias).softmax(dim=1).mul_(above)
            of_logits.scatter_add_(1, targets[rows].unsqueeze(1), -above)
            torch.mm(of_logits, words_last.t(), out=of_states[rows])
            of_words.addmm_(states[rows].t(), of_logits)
            if of_bias is not None:
                of_bias += of_logits.sum(dim=0)
        return of_states, of_words.t(), of_bias, None


def _logits(states: Tensor, words_last: Tensor, bias: Tensor | None) -> Tensor:
    return states @ words_last if bias is None else torch.addmm(bias, states, words_last)


def _parts(states: Tensor, words_last: Tensor) -> Iterator[slice]:
    """Return slices of rows such that each chunk has at most `_LOGITS` logits."""
    size = max(_LOGITS // words_last.shape[1], 1)
    return (slice(start, start + size) for start in range(0, len(states), size))


def check_cutoffs(cutoffs: Sequence[int], vocab_size: int) -> None:
    """Raise an error if cutoffs do not split the vocabulary into nonempty clusters.

    Raises:
        ConfigError: Names the cutoffs and the size of the vocabulary.
    """
    edges = [0, *cutoffs, vocab_size]
    if any(start >= stop for start, stop in pairwise(edges)):
        raise ConfigError(
            f"cutoffs={list(cutoffs)}: must increase and stay below vocab_size={vocab_size}, "
            "and the first one must be positive"
        )


def check_widths(widths: Sequence[int], tails: int) -> None:
    """Raise an error unless there is one positive embedding width per tail cluster.

    Raises:
        ConfigError: Names the widths and the number of tails.
    """
    if len(widths) != tails or min(widths, default=1) < 1:
        raise ConfigError(f"proj_dims={list(widths)}: must be {tails} positive widths, one per tail")


def cluster_widths(hidden_size: int, tails: int, factor: int, widths: Sequence[int] | None = None) -> list[int]:
    """Return the embedding width of every cluster: d for the head, and the given width or d / f^k for tail k.

    Raises:
        ConfigError: If the number of widths is not the number of tails.
    """
    if widths is None:
        return [max(hidden_size // factor**cluster, 1) for cluster in range(tails + 1)]
    check_widths(widths, tails)
    return [hidden_size, *widths]


class AdaptiveEmbedding(nn.Module):
    """Word embedding that uses narrower vectors for clusters of rare words, projected to width d.

    Without cutoffs it is a single table.

    Raises:
        ConfigError: If the cutoffs do not fit the vocabulary, or the widths of tails do not fit the cutoffs.
    """

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        cutoffs: Sequence[int] = (),
        factor: int = 4,
        tail_widths: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        check_cutoffs(cutoffs, vocab_size)
        self.clusters = list(pairwise([0, *cutoffs, vocab_size]))
        widths = cluster_widths(hidden_size, len(cutoffs), factor, tail_widths)
        self.tables = nn.ModuleList(
            nn.Embedding(stop - start, width) for (start, stop), width in zip(self.clusters, widths, strict=True)
        )
        self.projections = nn.ModuleList(
            nn.Identity() if width == hidden_size else Product(width, hidden_size, bias=False) for width in widths
        )

    @property
    def num_embeddings(self) -> int:
        """Number of words in all clusters."""
        return self.clusters[-1][1]

    def set_last(self, table: nn.Module) -> None:
        """Replace the embedding table of the last cluster, possibly with another number of words."""
        start, words = self.clusters[-1][0], table.num_embeddings
        assert isinstance(words, int)
        self.tables[-1] = table
        self.clusters[-1] = (start, start + words)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the embeddings, (..., d), of word ids of any shape, (...), in the precision of the tables."""
        if len(self.clusters) == 1:
            embedded: Tensor = self.tables[0](ids)
            return embedded
        flat, rows, vectors = ids.flatten(), [], []
        for (start, members), table, project in zip(
            _rows_of_clusters(flat, self.clusters), self.tables, self.projections, strict=True
        ):
            rows.append(members)
            vectors.append(project(table(flat[members] - start)))
        order = torch.cat(rows).argsort()
        return torch.cat(vectors).index_select(0, order).unflatten(0, ids.shape)


class AdaptiveSoftmax(nn.Module):
    """Two-step softmax for large vocabularies: first a frequent word or a cluster of rare words, then the rare word.

        log p(w) = log head(w)                                          if w < c_1
                   log head(tail k) + log tail_k(w - c_k)               otherwise

    The word matrices are `tables`. `tables.k.weight` has the same shape as in an `AdaptiveEmbedding` with the same
    cutoffs. Without cutoffs this is the plain softmax.

    Args:
        hidden_size: Width d of states.
        vocab_size: Number V of words.
        cutoffs: First word of every tail.
        factor: Factor f. Tail k reads a projection of width d / f^k.
        bias: Whether tables, entries of tails in the head, and projections have biases.
        tail_widths: Width of each tail, in place of d / f^k.

    Raises:
        ConfigError: If the cutoffs do not fit the vocabulary, or the widths of tails do not fit the cutoffs.
    """

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        cutoffs: Sequence[int] = (),
        factor: int = 4,
        bias: bool = False,
        tail_widths: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        check_cutoffs(cutoffs, vocab_size)
        first, *self.tails = pairwise([0, *cutoffs, vocab_size])
        self.head_words = first[1]
        clusters = [first, *self.tails]
        widths = cluster_widths(hidden_size, len(cutoffs), factor, tail_widths)
        tables = [Product(width, stop - start, bias) for (start, stop), width in zip(clusters, widths, strict=True)]
        self.tables = nn.ModuleList(tables)
        self.projections = nn.ModuleList(
            nn.Identity() if width == hidden_size else Product(hidden_size, width, bias) for width in widths
        )
        self.tail_entries = nn.Linear(hidden_size, len(self.tails), bias) if self.tails else None
        if self.tail_entries is not None:
            mark_as_one_matrix(tables[0], self.tail_entries)

    def set_last(self, table: nn.Module) -> None:
        """Replace the output matrix of the last cluster, possibly with another number of words."""
        words = table.out_features
        assert isinstance(words, int)
        self.tables[-1] = table
        if self.tails:
            start = self.tails[-1][0]
            self.tails[-1] = (start, start + words)
        else:
            self.head_words = words

    def forward(self, states: Tensor, targets: Tensor) -> Tensor:
        """Compute the negative log-likelihood of every target; a cluster is computed only for the targets in it.

        Args:
            states: States, (n, d).
            targets: Word ids, which must not be negative, (n,).

        Returns:
            Losses, float32, (n,).
        """
        head_targets, tail_losses = targets, []
        for tail, (start, rows) in enumerate(_rows_of_clusters(targets, self.tails)):
            head_targets = head_targets.index_fill(0, rows, self.head_words + tail)
            # A tail without targets is computed on no rows, so that its parameters have a gradient of zero, as
            # distributed training needs.
            tail_losses.append(
                (rows, self._compute_tail_losses(tail, states.index_select(0, rows), targets[rows] - start))
            )
        total = _cross_entropy(self._head_logits(states), head_targets)
        for rows, losses in tail_losses:
            total = total.index_add(0, rows, losses)
        return total

    def log_probs(self, states: Tensor) -> Tensor:
        """Compute the log-probabilities of all words, float32 (..., V), from states, (..., d)."""
        head = self._head_logits(states).log_softmax(-1, dtype=torch.float32)
        parts = [head[..., : self.head_words]]
        for tail in range(len(self.tails)):
            words = self._tail_logits(tail, states).log_softmax(-1, dtype=torch.float32)
            parts.append(words + head[..., self.head_words + tail, None])
        return torch.cat(parts, dim=-1)

    def _compute_tail_losses(self, tail: int, states: Tensor, words: Tensor) -> Tensor:
        """Compute the losses of the targets that belong to one cluster of rare words, (k,)."""
        table = self.tables[tail + 1]
        plain = states.device.type == "cpu" and states.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
        if plain and isinstance(table, Product):
            narrow = self.projections[tail + 1](states)
            return chunked_cross_entropy(narrow, table.weight, table.bias, words)
        return _cross_entropy(self._tail_logits(tail, states), words)

    def _head_logits(self, states: Tensor) -> Tensor:
        logits: Tensor = self.tables[0](states)
        return logits if self.tail_entries is None else torch.cat([logits, self.tail_entries(states)], dim=-1)

    def _tail_logits(self, tail: int, states: Tensor) -> Tensor:
        logits: Tensor = self.tables[tail + 1](self.projections[tail + 1](states))
        return logits


def _rows_of_clusters(ids: Tensor, clusters: Iterable[tuple[int, int]]) -> Iterator[tuple[int, Tensor]]:
    """Yield for every cluster its first word, and the positions of the ids, (n,), that belong to it."""
    for start, stop in clusters:
        yield start, ((ids >= start) & (ids < stop)).nonzero().squeeze(1)


def _cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.float(), targets, reduction="none")


# Initial weights are the defaults of Keras, as in the original: a kernel is uniform within
# sqrt(6 / (inputs + outputs)) (Glorot & Bengio 2010), where several maps here are one matrix there.
_EMBEDDING_BOUND = 0.05  # Keras' default, whatever the shape
_OUTPUTS = "outputs_as_one"


def mark_as_one_matrix(*maps: nn.Linear) -> None:
    """Mark linear layers as parts of one matrix in the original code, which determines their initial scale.

    The layers store the mark, because transformers does not initialise modules without direct parameters.
    """
    outputs = sum(linear.out_features for linear in maps)
    for linear in maps:
        setattr(linear, _OUTPUTS, outputs)


def init_glorot(module: nn.Module) -> None:
    """Initialise the weights of a linear layer or embedding with Glorot's method, as Keras does."""
    if isinstance(module, nn.Linear):
        bound = (6.0 / (module.in_features + getattr(module, _OUTPUTS, module.out_features))) ** 0.5
        init.uniform_(module.weight, -bound, bound)
    elif isinstance(module, nn.Embedding):
        init.uniform_(module.weight, -_EMBEDDING_BOUND, _EMBEDDING_BOUND)
