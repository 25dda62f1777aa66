"""ACT-ALBERT taken one step at a time: units exit when a rule says so, and the halting unit no longer halts anybody.

Until it exits a token is updated as it is while it runs: x_n = y_n under `graves`, x_n = p_n y_n + (1 - p_n) x_{n-1}
under `single`, also where its halting sum has passed one. Then its state is frozen, and the others go on attending to
it. So where nobody exits before step k, the states after step k are those of a model that has k iterations. Shape
legend: B batch, T tokens, A units that still run, P packed tokens, H width, C classes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from adadepth.families.albert_act.encoder import AlbertActTransformer
from adadepth.families.albert_act.readouts import Read
from adadepth.families.shared.albert.ragged import Kernel, Memory, Refresh, count_pairs
from adadepth.halting.act import act_hazard, recalled, update_stream
from adadepth.halting.active_set import ActiveSet, pack, take
from adadepth.halting.distribution import halting_logits


class ActStepper:
    """A batch in the middle of its steps, every position computed; see `adadepth.families.shared.stepwise.Stepper`.

    A unit is a token, or a whole sequence, which is read at its first token and whose tokens exit together.

    Args:
        encoder: The parameters.
        state: x_0, (B, T, H).
        attention_mask: In the form the attention implementation wants.
        valid: True at real tokens, (B, T).
        slots: b T + t of the token at which each unit is read, ascending, (A,).
        read: The task's head, (A, H) to (A, C).
        by_sequence: Whether a unit is a whole sequence.
        options: For the attention implementation.

    Attributes:
        updates: Of every token so far, float32, (B, T).
        width: T.
    """

    def __init__(
        self,
        encoder: AlbertActTransformer,
        state: Tensor,
        attention_mask: Tensor | None,
        valid: Tensor,
        slots: Tensor,
        read: Read,
        *,
        by_sequence: bool,
        options: dict[str, Any],
    ) -> None:
        self._encoder = encoder
        self._first = state if encoder.config.recall else None
        self._state, self._mask, self._valid = state, attention_mask, valid
        self._running = valid
        self._slots, self._read, self._by_sequence, self._options = slots, read, by_sequence, options
        self._accumulated = torch.zeros(slots.shape, device=slots.device)
        self.updates = torch.zeros(valid.shape, device=valid.device)
        self.width = valid.shape[1]

    @property
    def computed(self) -> tuple[int, int, Tensor | int] | None:
        """What the next step computes, where that is not everything."""
        return None

    def advance(self) -> tuple[Tensor, Tensor]:
        """Apply the block once and read: logits (A, C), and halting logits (A,) of which the halting sum is the cdf."""
        probability = self._update()
        positions = self._positions(self._slots)
        logits = self._read(take(self._state.flatten(0, -2), positions))
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

    def _update(self) -> Tensor:
        """One iteration; the halting probabilities, of everything that `_state` holds."""
        read = recalled(self._state, self._first)
        output = self._encoder.albert_layer(read, self._mask, **self._options)
        probability = self._encoder.halting_probability(read, output, self._valid)
        weight = probability * self._running
        self._state = update_stream(self._encoder.rule, self._state, output, weight, self._running)
        self.updates += self._running
        return probability

    def _positions(self, slots: Tensor) -> Tensor:
        """Where slots stand among the positions of `_state`."""
        return slots


class PackedActStepper(ActStepper):
    """The same on the tokens that still run, with the keys and values of the others kept as they are.

    docs/ragged_execution.md has the argument: an exited token's state, hence its keys and values, stay what they are.
    """

    def __init__(
        self,
        encoder: AlbertActTransformer,
        state: Tensor,
        attention_mask: Tensor | None,
        valid: Tensor,
        slots: Tensor,
        read: Read,
        *,
        by_sequence: bool,
        options: dict[str, Any],
        kernel: Kernel,
    ) -> None:
        super().__init__(encoder, state, attention_mask, valid, slots, read, by_sequence=by_sequence, options=options)
        self._kernel = kernel
        self._visible = self._active = self._refreshed = pack(valid)
        self._state = take(state.flatten(0, 1), self._active.slots)
        self._first = None if self._first is None else self._state
        self._changed = recalled(self._state, self._first)
        self._memory: Memory | None = None

    @property
    def computed(self) -> tuple[int, int, Tensor | int] | None:
        """Queries, keys and pairs of them that the next step computes."""
        pairs = count_pairs(self._kernel, self._active, self._visible)
        return len(self._active.slots), len(self._refreshed.slots), pairs

    def keep(self, rows: Tensor) -> None:
        """Let all other units exit, and leave their tokens behind."""
        super().keep(rows)
        staying = self._running.flatten()[self._active.slots].nonzero().squeeze(1)
        self._state = take(self._state, staying)
        self._first = None if self._first is None else take(self._first, staying)
        self._active = ActiveSet(self._active.slots[staying], self._active.shape)

    def _update(self) -> Tensor:
        refresh = Refresh(self._kernel, self._active, self._visible, self._changed, self._refreshed, self._memory)
        read, slots = recalled(self._state, self._first), self._active.slots
        output, self._memory = self._encoder.albert_layer(read, self._mask, refresh, **self._options)
        probability = self._encoder.halting_probability(read, output, self._valid, slots)
        everyone = torch.ones_like(slots, dtype=torch.bool)
        self._state = update_stream(self._encoder.rule, self._state, output, probability, everyone)
        self._changed = recalled(self._state, self._first)
        self._refreshed = self._active
        self.updates.view(-1)[slots] += 1
        return probability

    def _positions(self, slots: Tensor) -> Tensor:
        return torch.searchsorted(self._active.slots, slots)
