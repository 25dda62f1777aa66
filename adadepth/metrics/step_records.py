"""Recording of an evaluation's examples, with the model's prediction after every step.

Shape legend: B batch, T tokens, K units in the input of the model, U units that have a label, N steps, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adadepth.halting.trace import DepthTrace

# Where tokens are the examples, an index is that of the sequence times this plus the position; no sequence is longer.
POSITIONS = 2**20


def build_token_columns(batch: Mapping[str, Tensor], outputs: Any) -> dict[str, Tensor]:
    """Return what is recorded for every labelled token of a batch, by column name.

    Args:
        batch: `index` (B,), `attention_mask` and `labels` (B, T), and optionally `difficulty`, (B,) or (B, T).
        outputs: `unit_slots` (K,), `step_logits` (K, N, C), `halting_logits` (K, N) or None, `exit_steps` (K,);
            `logits` (B, T, C); and `state_moves` (K, N, 2) if the model returns them.

    Returns:
        The columns of `StepRecords`, each (U, ...). The length of a unit is that of its sequence. Its depth is the
        number of updates until its exit.
    """
    width = batch["labels"].shape[1]
    labelled = (batch["labels"].flatten()[outputs.unit_slots] >= 0).nonzero().squeeze(1)
    slots = outputs.unit_slots[labelled]
    rows, positions = slots // width, slots % width
    exits = outputs.exit_steps[labelled]
    columns = {
        "index": batch["index"][rows] * POSITIONS + positions,
        "lengths": batch["attention_mask"].sum(dim=1).long()[rows],
        "logits": outputs.logits[rows, positions].float(),
        "depth": exits.float(),
        "labels": batch["labels"][rows, positions],
        "step_logits": outputs.step_logits[labelled].float(),
        "exit_steps": exits,
    }
    if (ran := outputs.trace.ran) is not None:
        columns["ran"] = nn.functional.pad(ran.flatten(0, 1)[slots], (0, outputs.trace.max_updates - ran.shape[-1]))
        is_before = torch.arange(outputs.trace.max_updates, device=exits.device) < exits.unsqueeze(1)
        columns["depth"] = (columns["ran"] & is_before).sum(dim=1).float()
    for name in ("halting_logits", "state_moves"):
        if (values := getattr(outputs, name, None)) is not None:
            columns[name] = values[labelled].float()
    if (text_loops := batch.get("text_loops")) is not None:
        columns["text_loops"] = text_loops[rows]
    if (difficulty := batch.get("difficulty")) is not None:
        columns["difficulty"] = difficulty[rows] if difficulty.dim() == 1 else difficulty[rows, positions]
    return columns


def get_sequence_numbers(index: Tensor) -> Tensor:
    """Return the number of the sequence of each token, (M,), from its index."""
    return index // POSITIONS


@dataclass(frozen=True)
class StepRecords:
    """Recorded predictions of an evaluation after every step, a row per example in order of its number, on the CPU.

    Attributes:
        index: Position in the evaluated set, (M,) int64.
        lengths: Number of real positions of the input, (M,) int64.
        logits: Logits at the exit of each example, (M, C) float32.
        depth: Updates of each example, (M,) float32: its exit step, or the mean over its tokens if tokens halt.
        max_updates: N, the largest number of updates.
        labels: Labels, (M,), int64 for classes, float32 for a regression. None for an unlabelled set.
        difficulty: Difficulty, (M,) int64. None if the data set has none.
        step_logits: Logits of every step, (M, N, C) float32, NaN after an example stopped. None if the model returns
            none.
        halting_logits: Halting logits of every step, (M, N) float32, NaN after an example stopped. None if the model
            returns none.
        state_moves: Movements of the state in every step, (M, N, 2) float32, or None; see
            `adadepth.halting.exit_rules.state_moves`.
        exit_steps: Exit step, counted from 1, (M,) int64. None if whole examples do not halt.
        ran: Mask of the steps that updated each example, (M, N) boolean. None if every step until its exit did.
        text_loops: Number of loops T(n) that the length of each example's text needs, (M,) int64. None if the data set
            has none.
    """

    index: Tensor
    lengths: Tensor
    logits: Tensor
    depth: Tensor
    max_updates: int
    labels: Tensor | None = None
    difficulty: Tensor | None = None
    step_logits: Tensor | None = None
    halting_logits: Tensor | None = None
    state_moves: Tensor | None = None
    exit_steps: Tensor | None = None
    ran: Tensor | None = None
    text_loops: Tensor | None = None

    def updates(self, exit_steps: Tensor) -> Tensor:
        """Return the number of updates of each example until the given exit steps, (M,) float64."""
        if self.ran is None:
            return exit_steps.double()
        return self.ran.cumsum(dim=1)[torch.arange(len(self)), exit_steps - 1].double()

    @property
    def sequences(self) -> Tensor:
        """Number of the sequence of each example, (M,) int64, which is its own number if sequences are the examples."""
        return get_sequence_numbers(self.index) if self.unit == "token" else self.index

    @property
    def unit(self) -> str:
        """Unit of the examples: `token` or `sequence`."""
        return "token" if len(self) > 0 and int(self.index.max()) >= POSITIONS else "sequence"

    def select(self, rows: Tensor) -> StepRecords:
        """Return the records of the examples that a mask, (M,) boolean, selects."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        selected: dict[str, Any] = {name: value[rows] for name, value in columns.items() if isinstance(value, Tensor)}
        return replace(self, **selected)

    def __len__(self) -> int:
        return len(self.index)

    @property
    def ran_every_step(self) -> bool:
        """Whether every example has logits after every step, as a comparison of exit rules requires."""
        return self.step_logits is not None and not bool(self.step_logits.isnan().any())


class StepRecorder:
    """Recorder of the predictions for all batches of this process; `merge` joins those of all processes."""

    def __init__(self) -> None:
        self._batches: list[dict[str, Tensor]] = []

    @torch.no_grad()
    def add(self, batch: Mapping[str, Tensor], outputs: Any) -> None:
        """Record the predictions for the examples of a batch.

        Args:
            batch: `index` (B,), `attention_mask` or `inputs` (B, T), and optionally `labels` and `difficulty` (B,).
            outputs: `logits` (B, C) and `trace`, and optionally `step_logits`, `halting_logits`, `exit_steps` and
                `state_moves`. With `logits` (B, T, C) and tokens that halt, every labelled token is an example.
        """
        by_token = outputs.logits.dim() == 3 and outputs.trace.unit == "token"
        columns = build_token_columns(batch, outputs) if by_token else _sequence_columns(batch, outputs)
        self.keep(columns, outputs.trace.max_updates)

    def keep(self, columns: Mapping[str, Tensor], max_updates: int) -> None:
        """Store the recorded values of a batch by column, for a model with at most `max_updates` updates of a token."""
        columns = {**columns, "max_updates": torch.tensor([max_updates])}
        self._batches.append({name: values.detach().cpu() for name, values in columns.items()})

    def parts(self) -> dict[str, Tensor]:
        """Return all recorded columns by name, for `merge`; empty if this process had no batch."""
        names = self._batches[0] if self._batches else ()
        return {name: torch.cat([batch[name] for batch in self._batches]) for name in names}


def _sequence_columns(batch: Mapping[str, Tensor], outputs: Any) -> dict[str, Tensor]:
    """Return what is recorded for every sequence of a batch, by column name."""
    real = batch["attention_mask"] if "attention_mask" in batch else torch.ones_like(batch["inputs"])
    steps = getattr(outputs, "exit_steps", None)
    columns = {
        "index": batch["index"],
        "lengths": real.sum(dim=-1).long(),
        "logits": outputs.logits.float(),
        "depth": _mean_updates(outputs.trace) if steps is None else steps.float(),
    }
    columns |= {name: batch[name] for name in ("labels", "difficulty", "text_loops") if batch.get(name) is not None}
    for name in ("step_logits", "halting_logits", "state_moves"):
        if (values := getattr(outputs, name, None)) is not None:
            columns[name] = values.float()
    return columns if steps is None else columns | {"exit_steps": steps}


def merge(parts: Sequence[Mapping[str, Tensor]]) -> StepRecords:
    """Join the records of all processes. An example that a sampler repeated as padding counts once."""
    filled = [part for part in parts if part]
    assert filled, "no process evaluated anything"
    joined = {name: torch.cat([part[name] for part in filled]) for name in filled[0]}
    max_updates = int(joined.pop("max_updates")[0])
    _, first = np.unique(joined["index"].numpy(), return_index=True)
    return StepRecords(max_updates=max_updates, **{name: values[first] for name, values in joined.items()})


def _mean_updates(trace: DepthTrace) -> Tensor:
    """Return the number of updates of each example, (B,) float32, averaged over its tokens if these halt separately."""
    updates = trace.updates.float()
    if updates.dim() == 1:
        return updates
    valid = trace.valid.float()
    return (updates * valid).sum(dim=-1) / valid.sum(dim=-1).clamp(min=1)
