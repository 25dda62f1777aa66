"""Running the layers from exit to exit, and reading predictions for an exit rule.

Shape legend: B texts, A texts that still run, T tokens, D width, L layers, N exits, K units that are read, k of them, C
classes or pieces, M targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from adadepth.halting.exit_rules import LOGITS, ExitRule, StepView
from adadepth.models.early_exit.modeling import EarlyExitModel
from adadepth.models.shared.layered_network import (
    RunningTexts,
)

_ROWS = 1024  # predictions over a vocabulary that are made at once for a rule


class ExitStepper:
    """Stepper of units that are read after every exit; see `adadepth.models.shared.steps.Stepper`.

    Args:
        model: Model.
        running: Texts before the first layer.
        slots: b T + t of the token at which each unit is read, int64, (K,); None: units are whole texts.
        read: Function from the number of an exit and states, (k, D) or (A, T, D), and for texts their positions in the
            batch, to what is recorded of them, (k, C).
        states: Whether to store the states after every exit.
        estimate: Function from the same states, and positions of texts, to the logits of a gate, (k,); None: no gate.
    """

    def __init__(
        self,
        model: EarlyExitModel,
        running: RunningTexts,
        slots: Tensor | None,
        read: Any,
        states: bool = False,
        estimate: Any = None,
    ) -> None:
        self._model, self._running, self._slots, self._read = model, running, slots, read
        self._estimate = estimate
        self.rows = (running.states if slots is None else slots).shape[0]  # no `len`, which a program cannot have
        self.device = running.states.device
        self.states = [running.states] if states else None
        self._step = 0
        self._host_slots: Tensor | None = None  # `slots` on the CPU, once a unit has exited
        self._texts = torch.arange(running.states.shape[0], device=self.device)

    @property
    def width(self) -> int:
        """Padded length T of the texts."""
        return self._running.states.shape[1]

    @property
    def computed(self) -> tuple[int, int, Tensor | int]:
        """Number of queries, keys and pairs of them in a layer of the next step."""
        tokens = self._running.states.shape[0] * self.width
        return tokens, tokens, self._model.compute_pairs(self._running)

    def advance(self) -> tuple[Tensor, Tensor | None]:
        """Run the layers until the next exit, and read all units there, and their gate if there is one."""
        self._step += 1
        states = self._model.run_to_exit(self._running, self._step)
        if self.states is not None:
            self.states.append(states)
        units = (states, self._texts) if self._slots is None else (states.flatten(0, 1)[self._slots],)
        return self._read(self._step, *units), None if self._estimate is None else self._estimate(*units)

    def keep(self, rows: Tensor) -> None:
        """Drop all units but these positions, int64 (A',), on the CPU, and the texts without any."""
        if self._running.cache is not None:  # later tokens read all layers
            positions = rows.to(self.device, non_blocking=True)
            self._slots = positions if self._slots is None else self._slots[positions]
            return
        texts = rows
        if self._slots is not None:
            before = self._slots.cpu() if self._host_slots is None else self._host_slots
            slots = before[rows]
            texts, numbers = torch.unique(slots // self.width, return_inverse=True)
            self._host_slots = numbers * self.width + slots % self.width
            self._slots = self._host_slots.to(self.device, non_blocking=True)
        if len(texts) < len(self._running.states):
            texts = texts.to(self.device, non_blocking=True)
            self._running.keep(texts)
            self._texts = self._texts[texts]


@dataclass(frozen=True)
class ReadingRule(ExitRule):
    """An exit rule that reads states of tokens, (A, D), and makes predictions of a part of them at a time."""

    name = "reading"
    needs = frozenset({LOGITS})
    rule: ExitRule
    model: EarlyExitModel

    def start(self, rows: int, device: torch.device | str, generator: torch.Generator | None = None) -> Tensor:
        """Return the memory of the rule."""
        return self.rule.start(rows, device, generator)

    def decide(self, view: StepView, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return the decisions of the rule."""
        if LOGITS not in self.rule.reads:
            return self.rule.decide(view, memory)
        assert view.logits is not None
        decisions = [
            self.rule.decide(view._replace(logits=self.model.read(view.step, states).float()), part)
            for states, part in zip(view.logits.split(_ROWS), memory.split(_ROWS), strict=True)
        ]
        exits, memories = zip(*decisions, strict=True)
        return torch.cat(exits), torch.cat(memories)


def fill_table(values: Tensor, slots: Tensor, shape: Sequence[int]) -> Tensor:
    """Return a table (B, T, ...) of the values (K, ...) of some tokens, and 0 elsewhere."""
    table = values.new_zeros(shape[0] * shape[1], *values.shape[1:])
    return table.index_copy(0, slots, values).unflatten(0, tuple(shape))
