"""ACT-ALBERT taken one step at a time: units exit when a rule says so, and the halting unit no longer halts anybody.

Until it exits a token is updated as it is while it runs: x_n = y_n under `graves`, x_n = p_n y_n + (1 - p_n) x_{n-1}
under `single`, also where its halting sum has passed one. Then its state is frozen, and the others go on attending to
it. So where nobody exits before step k, the states after step k are those of a model that has k iterations. Shape
legend: B batch, T tokens, A units that still run, H width, C classes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from adadepth.families.albert_act.readouts import Read
from adadepth.families.albert_act.recurrence import Places, Recurrence
from adadepth.halting.act import act_hazard
from adadepth.halting.active_set import take
from adadepth.halting.distribution import halting_logits


class ActStepper:
    """A batch in the middle of its steps; see `adadepth.families.shared.steps.Stepper`.

    A unit is a token, or a whole sequence, which is read at its first token and whose tokens exit together.

    Args:
        recurrence: What a step does.
        places: Of the batch's tokens: all positions, or packed ones, which leave as their units exit.
        state: x_0, (B, T, H).
        slots: b T + t of the token at which each unit is read, ascending, (A,).
        read: The task's head, (A, H) to (A, C).
        by_sequence: Whether a unit is a whole sequence.

    Attributes:
        rows: Units at the start.
        device: Where they are.
        updates: Of every token so far, float32, (B, T).
        width: T.
    """

    def __init__(
        self, recurrence: Recurrence, places: Places, state: Tensor, slots: Tensor, read: Read, *, by_sequence: bool
    ) -> None:
        self._recurrence, self._places = recurrence, places
        self._stream = recurrence.stream(places.pick(state))
        self._running = self._valid = places.valid
        self._slots, self._read, self._by_sequence = slots, read, by_sequence
        self._accumulated = torch.zeros(slots.shape, device=slots.device)
        self.rows, self.device = len(slots), slots.device
        self.updates = torch.zeros(self._valid.shape, device=slots.device)
        self.width = self._valid.shape[1]

    @property
    def computed(self) -> tuple[int, int, Tensor | int] | None:
        """What the next step computes, where that is not everything."""
        return self._places.computed

    def advance(self) -> tuple[Tensor, Tensor]:
        """Apply the block once and read: logits (A, C), and halting logits (A,) of which the halting sum is the cdf."""
        running = self._places.pick(self._running)
        output, probability = self._recurrence.propose(self._stream, self._places)
        self._stream = self._recurrence.advance(self._stream, output, probability * running, running)
        self.updates += self._running
        positions = self._places.find(self._slots)
        logits = self._read(take(self._stream.state.flatten(0, -2), positions))
        hazard, self._accumulated = act_hazard(self._accumulated, probability.flatten()[positions])
        return logits, halting_logits(hazard)

    def keep(self, rows: Tensor) -> None:
        """Let all other units exit: int64 positions (A',)."""
        self._slots, self._accumulated = self._slots[rows], self._accumulated[rows]
        if self._by_sequence:
            stays = torch.zeros(len(self._valid), dtype=torch.bool, device=rows.device)
            self._running = self._valid & stays.index_fill(0, self._slots // self.width, True).unsqueeze(1)
        else:
            nobody = torch.zeros(self._valid.numel(), dtype=torch.bool, device=rows.device)
            self._running = nobody.index_fill(0, self._slots, True).view(self._valid.shape)
        self._stream = self._places.keep(self._running, self._stream)
