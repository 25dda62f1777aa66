"""ALBERT taken one step at a time, so that finished sequences can leave the batch.

Shape legend: B batch, A rows that still run, T tokens, H hidden width, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from transformers.masking_utils import create_bidirectional_mask

from adadepth.models.albert.configuration import AlbertShape
from adadepth.models.albert.encoder import AlbertEmbeddings, AlbertLayer

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


class Reading(NamedTuple):
    """What heads make of a step's states: logits (A, C), halting logits (A,), what they want back next time (A, H)."""

    logits: Tensor
    halting_logits: Tensor | None = None
    memory: Tensor | None = None


class Reader(Protocol):
    """The heads of a model."""

    def __call__(self, state: Tensor, memory: Tensor | None, step: int) -> Reading:
        """Read the states (A, T, H) after a step, counted from 1; the memory is the previous step's."""
        ...


class AlbertStepper:
    """A batch of sequences in the middle of their steps; see `adadepth.models.stepwise.Stepper`.

    Args:
        config: Of the model, for the attention implementation.
        albert: The parameters.
        read: The heads.
        embedded: (B, T, E).
        attention_mask: 1 at real tokens, (B, T); None when all are.
        attention_arguments: For the attention implementation.
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
        self._attention_mask = self._make_mask()

    @property
    def width(self) -> int:
        """Tokens of every row, padding included."""
        return self._state.shape[1]

    def advance(self) -> tuple[Tensor, Tensor | None]:
        """Apply the layer once and read."""
        self._step += 1
        self._state = self._layer(self._state, self._attention_mask, **self._arguments)
        logits, halting_logits, self._memory = self._read(self._state, self._memory, self._step)
        return logits, halting_logits

    def keep(self, rows: Tensor) -> None:
        """Drop all other rows, and the columns that hold nothing but padding then."""
        width = self.width
        if self._valid is not None:
            self._valid = self._valid[rows]
            width = min(width, _width_of(self._valid))
            self._valid = self._valid[:, :width]
        self._state = self._state[rows, :width]
        self._memory = None if self._memory is None else self._memory[rows]
        self._attention_mask = self._make_mask()

    def _make_mask(self) -> Any:
        """The mask in the form that the attention implementation wants."""
        return create_bidirectional_mask(config=self._config, inputs_embeds=self._state, attention_mask=self._valid)


def _width_of(valid: Tensor) -> int:
    """Columns up to the last real token, rounded up; waits for the device."""
    columns = torch.arange(1, valid.shape[1] + 1, device=valid.device)
    used = max(1, int((columns * valid.ne(0)).amax()))
    return -(-used // _WIDTH_MULTIPLE) * _WIDTH_MULTIPLE
