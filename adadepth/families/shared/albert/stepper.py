"""ALBERT taken one step at a time, so that finished sequences can leave the batch.

Shape legend: B batch, A rows that still run, T tokens, H hidden width, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from transformers.masking_utils import create_bidirectional_mask

from adadepth.families.shared.albert.block import AlbertEmbeddings, AlbertLayer, words_of
from adadepth.families.shared.albert.configuration import AlbertShape
from adadepth.families.shared.albert.packed_attention import Refresh, count_pairs
from adadepth.halting.active_set import ActiveSet, pack, take

# Collators pad to this multiple, which accelerators compute fastest with; narrowing a batch keeps it.
_WIDTH_MULTIPLE = 8


class SharedLayer(nn.Module):
    """The map from embeddings to states, and the layer that every step applies."""

    def __init__(self, config: AlbertShape) -> None:
        super().__init__()
        self.embedding_hidden_mapping_in = nn.Linear(config.embedding_size, config.hidden_size)
        self.albert_layer = AlbertLayer(config)


class SteppedAlbert(nn.Module):
    """Parameters of an ALBERT encoder, under the names of ACT-ALBERT's without its halting unit."""

    def __init__(self, config: AlbertShape, add_pooling_layer: bool) -> None:
        super().__init__()
        self.embeddings = AlbertEmbeddings(config)
        self.encoder = SharedLayer(config)
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size) if add_pooling_layer else None

    def pooled(self, state: Tensor) -> Tensor:
        """tanh(W h_0) of the first token: (A, T, H) to (A, H)."""
        assert self.pooler is not None
        return torch.tanh(self.pooler(state[:, 0]))

    def begin(
        self,
        config: AlbertShape,
        read: Reader,
        input_ids: Tensor | None,
        attention_mask: Tensor | None,
        token_type_ids: Tensor | None,
        position_ids: Tensor | None,
        inputs_embeds: Tensor | None,
        options: Mapping[str, Any],
    ) -> AlbertStepper:
        """A batch before its first step.

        Args:
            config: Of the model, for the attention implementation.
            read: The heads.
            input_ids: Token ids (B, T); or give `inputs_embeds` (B, T, E).
            attention_mask: 1 at real tokens, 0 at padding, (B, T).
            token_type_ids: Segment of each token, (B, T).
            position_ids: (B, T) or (1, T).
            inputs_embeds: Word embeddings instead of ids.
            options: For the attention implementation.
        """
        words = words_of(input_ids, inputs_embeds, attention_mask)
        embedded = self.embeddings(words, token_type_ids, position_ids)
        return AlbertStepper(config, self, read, embedded, attention_mask, options)


class Reading(NamedTuple):
    """What heads make of a step's states: logits (A, C), halting logits (A,), what they want back next time (A, H)."""

    logits: Tensor
    halting_logits: Tensor | None = None
    memory: Tensor | None = None


class Reader(Protocol):
    """The heads of a model."""

    def __call__(self, state: Tensor, memory: Tensor | None, step: int) -> Reading:
        """Read the states of each row's first two tokens or more, (A, 2..T, H), after a step, counted from 1.

        The memory is the previous step's.
        """
        ...


class AlbertStepper:
    """A batch of sequences in the middle of their steps; see `adadepth.families.shared.steps.Stepper`.

    Only real tokens are computed, packed one after the other; not with attention that has a mask of its own kind, and
    not where to count them would hold up an accelerator's training (decision 0003).

    Args:
        config: Of the model, for the attention implementation.
        albert: The parameters.
        read: The heads.
        embedded: (B, T, E).
        attention_mask: 1 at real tokens, (B, T); None when all are.
        attention_arguments: For the attention implementation.

    Attributes:
        rows: B.
        device: Where they are.
        width: Tokens of every row, padding included.
        tokens: Real tokens of every row at the start, int64, (B,).
    """

    def __init__(
        self,
        config: AlbertShape,
        albert: SteppedAlbert,
        read: Reader,
        embedded: Tensor,
        attention_mask: Tensor | None,
        attention_arguments: Mapping[str, Any],
    ) -> None:
        self._config = config
        self._layer = albert.encoder.albert_layer
        self._read = read
        self._arguments = attention_arguments
        self._step = 0
        self._memory: Tensor | None = None
        self._state = albert.encoder.embedding_hidden_mapping_in(embedded)
        self._valid = attention_mask
        self._active: ActiveSet | None = None
        (self.rows, self.width), self.device = embedded.shape[:2], embedded.device
        if attention_mask is None:
            self.tokens = torch.full((self.rows,), self.width, device=self.device)
        else:
            self.tokens = attention_mask.ne(0).sum(dim=1)
        if _packs(config, embedded.device, training=albert.training):
            valid = embedded.new_ones(embedded.shape[:2]) if attention_mask is None else attention_mask
            found = pack(valid.bool())
            self._state = take(self._state.flatten(0, 1), found.slots)
            self._align(found.counts, found.widest)
        self._attention_mask = self._make_mask()

    @property
    def computed(self) -> tuple[int, int, Tensor | int]:
        """Queries, keys and pairs of them that the next step computes."""
        if self._active is None:
            rows, width = self._state.shape[:2]
            return rows * width, rows * width, rows * width**2
        return len(self._state), len(self._state), count_pairs("padded", self._active, self._active)

    def advance(self) -> tuple[Tensor, Tensor | None]:
        """Apply the layer once and read."""
        self._step += 1
        if self._active is None:
            leading = self._state = self._layer(self._state, self._attention_mask, **self._arguments).state
        else:
            refresh = Refresh("padded", self._active, self._active, self._state, self._active)
            self._state, _ = self._layer(self._state, self._attention_mask, refresh, **self._arguments)
            leading = self._leading(self._active)
        logits, halting_logits, self._memory = self._read(leading, self._memory, self._step)
        return logits, halting_logits

    def keep(self, rows: Tensor) -> None:
        """Drop all other rows, and the columns that hold nothing but padding then."""
        self._memory = None if self._memory is None else self._memory[rows]
        if self._active is None:
            self._keep_padded(rows)
        else:
            stays = torch.zeros_like(self._active.counts, dtype=torch.bool).index_fill(0, rows, True)
            self._state = take(self._state, stays[self._active.rows].nonzero().squeeze(1))
            counts = self._active.counts[rows]
            self.width = int(counts.max())
            self._align(counts, self.width)
        self._attention_mask = self._make_mask()

    def _align(self, counts: Tensor, widest: int) -> None:
        """Take the packed tokens for those of rows that begin at the left."""
        self._valid = torch.arange(widest, device=counts.device) < counts.unsqueeze(1)
        self._active = pack(self._valid)

    def _keep_padded(self, rows: Tensor) -> None:
        if self._valid is not None:
            self._valid = self._valid[rows]
            self.width = min(self.width, _width_of(self._valid))
            self._valid = self._valid[:, : self.width]
        self._state = self._state[rows, : self.width]

    def _leading(self, active: ActiveSet) -> Tensor:
        """The first two tokens of every row, (A, 2, H); the first twice where there is no second."""
        first = active.starts[:-1].clamp(max=len(self._state) - 1)  # a last row without tokens reads another's
        second = first + (active.counts > 1).to(first.dtype)
        return self._state[torch.stack([first, second], dim=1)]

    def _make_mask(self) -> Any:
        """The mask in the form that the attention implementation wants."""
        shaped = self._state if self._active is None else self._state.new_empty(*self._valid.shape, 1)
        return create_bidirectional_mask(config=self._config, inputs_embeds=shaped, attention_mask=self._valid)


def _packs(config: AlbertShape, device: torch.device, *, training: bool) -> bool:
    waits = torch.compiler.is_compiling() or (training and device.type != "cpu")
    return not waits and config._attn_implementation in ("eager", "sdpa")


def _width_of(valid: Tensor) -> int:
    """Columns up to the last real token, rounded up; waits for the device."""
    columns = torch.arange(1, valid.shape[1] + 1, device=valid.device)
    used = max(1, int((columns * valid.ne(0)).amax()))
    return -(-used // _WIDTH_MULTIPLE) * _WIDTH_MULTIPLE
