"""Cross-entropy over many words without the logits of all rows at once.

On a CPU it is memory, not arithmetic, that a tail of an adaptive softmax waits for: logits, log-probabilities and their
two gradients, each of some megabytes that no cache holds and that the system hands out anew in every update.
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
from adadepth.families.shared.layers import Product

_LOGITS = 2**17  # of one part: half a megabyte


def parted_cross_entropy(states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    """-log softmax(x W' + b)_w of every row, (n,); the backward pass computes the logits a second time.

    Args:
        states: x, (n, k).
        weight: W, (V, k).
        bias: b, (V,), or None.
        targets: w, (n,).
    """
    losses: Tensor = _PartedCrossEntropy.apply(states, weight, bias, targets)
    return losses


class _PartedCrossEntropy(Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
        # Of a table of words whose vectors are narrow, products are two to eight times faster with the words last.
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
    """Rows that together have `_LOGITS` logits, or single ones."""
    size = max(_LOGITS // words_last.shape[1], 1)
    return (slice(start, start + size) for start in range(0, len(states), size))


def check_cutoffs(cutoffs: Sequence[int], vocab_size: int) -> None:
    """Refuse cutoffs that do not cut the vocabulary into clusters that each hold a word.

    Raises:
        ConfigError: Naming the cutoffs and the vocabulary's size.
    """
    edges = [0, *cutoffs, vocab_size]
    if any(start >= stop for start, stop in pairwise(edges)):
        raise ConfigError(
            f"cutoffs={list(cutoffs)}: must increase and stay below vocab_size={vocab_size}, and the first be positive"
        )


def check_widths(widths: Sequence[int], tails: int) -> None:
    """Refuse widths that are not one for each tail.

    Raises:
        ConfigError: Naming the widths and the number of tails.
    """
    if len(widths) != tails or min(widths, default=1) < 1:
        raise ConfigError(
            f"proj_dims={list(widths)}: must be a positive width for each tail, of which there are {tails}"
        )


def cluster_widths(hidden_size: int, tails: int, factor: int, given: Sequence[int] | None = None) -> list[int]:
    """Width of the vectors of every cluster: d, then of every tail the given one, or d / f^k.

    Raises:
        ConfigError: If the given ones are not one for each tail.
    """
    if given is None:
        return [max(hidden_size // factor**cluster, 1) for cluster in range(tails + 1)]
    check_widths(given, tails)
    return [hidden_size, *given]


class AdaptiveEmbedding(nn.Module):
    """Word vectors, in a tail as wide as `cluster_widths` says and projected to d; without cutoffs, one table.

    Raises:
        ConfigError: If the cutoffs do not fit the vocabulary, or the tails' given widths the cutoffs.
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
        """The number of words of all clusters."""
        return self.clusters[-1][1]

    def set_last(self, table: nn.Module) -> None:
        """Replace the table of the last cluster, which may have another number of words."""
        start, words = self.clusters[-1][0], table.num_embeddings
        assert isinstance(words, int)
        self.tables[-1] = table
        self.clusters[-1] = (start, start + words)

    def forward(self, ids: Tensor) -> Tensor:
        """Word ids of any shape to vectors, (..., d), in the tables' precision."""
        if len(self.clusters) == 1:
            whole: Tensor = self.tables[0](ids)
            return whole
        flat, rows, vectors = ids.flatten(), [], []
        for (start, members), table, project in zip(
            _rows_of_clusters(flat, self.clusters), self.tables, self.projections, strict=True
        ):
            rows.append(members)
            vectors.append(project(table(flat[members] - start)))
        back_in_order = torch.cat(rows).argsort()
        return torch.cat(vectors).index_select(0, back_in_order).unflatten(0, ids.shape)


class AdaptiveSoftmax(nn.Module):
    """A softmax in two steps: the head tells a frequent word or a tail, and the tail tells the word.

        log p(w) = log head(w)                                          if w < c_1
                   log head(tail k) + log tail_k(w - c_k)               otherwise

    The words' matrices are `tables`, and `tables.k.weight` has the shape of the embedding's of the same cutoffs.
    Without cutoffs it is the plain softmax.

    Args:
        hidden_size: d.
        vocab_size: V.
        cutoffs: First word of every tail.
        factor: f; tail k reads a projection of width d / f^k.
        bias: Whether the tables, the tails' entries in the head and the projections have biases.
        tail_widths: The width that each tail reads, instead of the factor's.

    Raises:
        ConfigError: If the cutoffs do not fit the vocabulary, or the tails' widths the cutoffs.
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
            as_one(tables[0], self.tail_entries)

    def set_last(self, table: nn.Module) -> None:
        """Replace the matrix of the last cluster, which may have another number of words."""
        words = table.out_features
        assert isinstance(words, int)
        self.tables[-1] = table
        if self.tails:
            start = self.tails[-1][0]
            self.tails[-1] = (start, start + words)
        else:
            self.head_words = words

    def forward(self, states: Tensor, targets: Tensor) -> Tensor:
        """Negative log-likelihoods; a tail is computed for its own targets only.

        Args:
            states: (n, d).
            targets: Word ids, none negative, (n,).

        Returns:
            Float32, (n,).
        """
        head_targets, tail_losses = targets, []
        for tail, (start, rows) in enumerate(_rows_of_clusters(targets, self.tails)):
            head_targets = head_targets.index_fill(0, rows, self.head_words + tail)
            # A tail without targets is computed too, on no rows: its parameters then have a gradient of zero, which
            # is what distributed training waits for.
            tail_losses.append((rows, self._tail_losses(tail, states.index_select(0, rows), targets[rows] - start)))
        total = _cross_entropy(self._head_logits(states), head_targets)
        for rows, losses in tail_losses:
            total = total.index_add(0, rows, losses)
        return total

    def log_probs(self, states: Tensor) -> Tensor:
        """States (..., d) to the log-probabilities of all words, float32, (..., V)."""
        head = self._head_logits(states).log_softmax(-1, dtype=torch.float32)
        parts = [head[..., : self.head_words]]
        for tail in range(len(self.tails)):
            words = self._tail_logits(tail, states).log_softmax(-1, dtype=torch.float32)
            parts.append(words + head[..., self.head_words + tail, None])
        return torch.cat(parts, dim=-1)

    def _tail_losses(self, tail: int, states: Tensor, words: Tensor) -> Tensor:
        """Of words of a tail, (k,)."""
        table = self.tables[tail + 1]
        plain = states.device.type == "cpu" and states.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
        if plain and isinstance(table, Product):
            narrow = self.projections[tail + 1](states)
            return parted_cross_entropy(narrow, table.weight, table.bias, words)
        return _cross_entropy(self._tail_logits(tail, states), words)

    def _head_logits(self, states: Tensor) -> Tensor:
        logits: Tensor = self.tables[0](states)
        return logits if self.tail_entries is None else torch.cat([logits, self.tail_entries(states)], dim=-1)

    def _tail_logits(self, tail: int, states: Tensor) -> Tensor:
        logits: Tensor = self.tables[tail + 1](self.projections[tail + 1](states))
        return logits


def _rows_of_clusters(ids: Tensor, clusters: Iterable[tuple[int, int]]) -> Iterator[tuple[int, Tensor]]:
    """The first word of every cluster, and which of the ids (n,) lie in it."""
    for start, stop in clusters:
        yield start, ((ids >= start) & (ids < stop)).nonzero().squeeze(1)


def _cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.float(), targets, reduction="none")


# Initial weights are as Keras draws them, whose defaults the original has: a kernel is uniform within
# sqrt(6 / (inputs + outputs)) (Glorot & Bengio 2010), of the one matrix where here are several maps.
_EMBEDDING_BOUND = 0.05  # Keras' default, whatever the shape
_OUTPUTS = "outputs_as_one"


def as_one(*maps: nn.Linear) -> None:
    """Say that maps of the same inputs are parts of one matrix in the original.

    The maps remember it, because transformers initialises no module without parameters of its own.
    """
    outputs = sum(linear.out_features for linear in maps)
    for linear in maps:
        setattr(linear, _OUTPUTS, outputs)


def init_glorot(module: nn.Module) -> None:
    """Draw the weights of a map or of an embedding."""
    if isinstance(module, nn.Linear):
        bound = (6.0 / (module.in_features + getattr(module, _OUTPUTS, module.out_features))) ** 0.5
        init.uniform_(module.weight, -bound, bound)
    elif isinstance(module, nn.Embedding):
        init.uniform_(module.weight, -_EMBEDDING_BOUND, _EMBEDDING_BOUND)
