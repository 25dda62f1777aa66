"""Contiguous streams: text as parallel rows that a model with memory reads from beginning to end.

A stream of n tokens is cut into R rows. Row r predicts the tokens [r n // R, (r + 1) n // R), each
exactly once. Step t has the columns [t T, (t + 1) T) of every row, so that row r of step t continues row r of step
t - 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from adadepth.data.batches import IGNORE
from adadepth.data.stores.documents import LineStore


class TwoPhase(NamedTuple):
    """Settings of an architecture search that trains weights and architecture in alternating steps on different tokens.

    Attributes:
        first: Number of the first update that may train the architecture.
        period: Number of updates in a cycle. The last update of a cycle trains the architecture.
        share: Share of the training tokens that only architecture updates read. These are the last tokens.
    """

    first: int
    period: int
    share: float


def is_architecture_step(update: int, first: int, period: int) -> bool:
    """Return whether an optimiser step of a search trains the architecture instead of the weights.

    From update ``first`` on, this is the last one of every ``period`` updates.
    """
    return update >= first and (update - first) % period == period - 1


class RowShare(NamedTuple):
    """Assignment of parallel text rows to one distributed process and its micro-batches.

    Micro-batch ``slot`` of process ``process`` holds ``batch`` rows from row (slot * processes + process) * batch on.
    The rows of an update are therefore the same for every world size.
    """

    batch: int
    slots: int = 1
    process: int = 0
    processes: int = 1

    @property
    def rows(self) -> int:
        """Return the number of rows of the stream, R."""
        return self.batch * self.slots * self.processes

    def of(self, slot: int) -> range:
        """Return the numbers of the text rows that this process reads in a micro-batch, the ``slot``-th of its step."""
        first = (slot * self.processes + self.process) * self.batch
        return range(first, first + self.batch)


@dataclass(frozen=True)
class TokenStream:
    """Contiguous section of a tokenised text, which is read as parallel rows.

    Attributes:
        store: Tokens of the text.
        begin, end: First token of the section, and the index after its last token.
        rows: Number of rows, R.
        length: Number of tokens of a row in a step, T.
        start: Id of the input token before the first token.
        pad: Id of input tokens without a target.
    """

    store: LineStore
    begin: int
    end: int
    rows: int
    length: int
    start: int
    pad: int

    @property
    def tokens(self) -> int:
        """Number of tokens in the section, n."""
        return self.end - self.begin

    @property
    def steps(self) -> int:
        """Number of segments needed to read all tokens of the section."""
        return -(-self._longest // self.length)

    @property
    def _longest(self) -> int:
        return -(-self.tokens // self.rows)

    def segment(self, step: int, rows: range) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of some rows at one step, (rows, T) int64. The last step may have fewer columns.

        An input is the token before its target. After the end of a row, targets are -100.
        """
        first = step * self.length
        columns = np.arange(first, min(first + self.length, self._longest))
        bounds = np.arange(rows.start, rows.stop + 1) * self.tokens // self.rows
        positions = bounds[:-1, None] + columns
        ended = positions >= bounds[1:, None]
        targets = np.where(ended, IGNORE, self._read_tokens(np.minimum(positions, self.tokens - 1)))
        inputs = np.where(positions == 0, self.start, self._read_tokens(np.maximum(positions, 1) - 1))
        return torch.from_numpy(np.where(ended, self.pad, inputs)), torch.from_numpy(targets)

    def _read_tokens(self, positions: np.ndarray) -> np.ndarray:
        return np.asarray(self.store.tokens[self.begin + positions], dtype=np.int64)


class StreamBatches(Dataset[dict[str, Any]]):
    """Sampler of the micro-batches of one process, in the order that a model with memory needs.

    ``batches[(epoch, index)]`` is a pure function of its arguments. It is micro-batch ``index % slots`` of update
    ``epoch * steps_per_epoch + index // slots``, at the position of that update in its stream. An index without an
    epoch belongs to the first epoch. An item has ``input_ids`` and ``targets`` (b, T) int64, with the target -100 where
    nothing is predicted. It also has the name of the ``stream``, the ``slot``, and ``is_start``, which is true if the
    rows begin here and have no memory.

    Attributes:
        tokens, words, characters, bytes: Counts for the part of the text that is read.
        steps_per_epoch: Number of updates that read the first stream once.
    """

    def __init__(
        self,
        streams: Mapping[str, TokenStream],
        share: RowShare,
        counts: Mapping[str, int],
        two_phase: TwoPhase | None = None,
    ) -> None:
        self.streams = dict(streams)
        self.share = share
        self.two_phase = two_phase
        self.tokens, self.words, self.characters = (counts[name] for name in ("tokens", "words", "characters"))
        self.bytes = counts["bytes"]
        self.steps_per_epoch = next(iter(self.streams.values())).steps

    def __len__(self) -> int:
        return self.steps_per_epoch * self.share.slots

    def __getitem__(self, item: int | tuple[int, int]) -> dict[str, Any]:
        epoch, index = item if isinstance(item, tuple) else (0, item)
        if not 0 <= index < len(self):
            raise IndexError(index)
        update, slot = divmod(index, self.share.slots)
        name, position = self.position(epoch * self.steps_per_epoch + update)
        inputs, targets = self.streams[name].segment(position, self.share.of(slot))
        return {"input_ids": inputs, "targets": targets, "stream": name, "slot": slot, "is_start": position == 0}

    def position(self, update: int) -> tuple[str, int]:
        """Return which stream an optimiser step reads, and the position of the step in that stream."""
        name, read = next(iter(self.streams)), update
        if self.two_phase is not None:
            first, period, _ = self.two_phase
            searched = max(update - first, 0) // period  # updates of the architecture before this one
            name, read = ("weights", update - searched)
            if is_architecture_step(update, first, period):
                name, read = ("architecture", searched)
        return name, read % self.streams[name].steps
