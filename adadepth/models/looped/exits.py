"""Early exit of looped models: an exit rule decides after which loop each token or sequence is predicted.

A rule reads the predictions or halting logits of each unit. The states do not depend on its decisions, because other
tokens still attend to a token that has exited. Shape legend: B rows, T tokens, K units (tokens, or rows predicted from
their last token), A units that have not exited, D width, C classes or vocabulary size, N loops, n loops that ran.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from adadepth.halting.exit_rules import LOGITS, STATES, ExitRule, Fixed, state_moves
from adadepth.halting.units import run_unit, start_unit
from adadepth.models.depth.engine import ReadingRule, Signals, run_steps
from adadepth.models.looped.loop_state import Looping, remove_exited
from adadepth.models.looped.modeling import LoopedModel


class LoopResults(NamedTuple):
    """Results of running the loops of a model for K tokens or sequences.

    Attributes:
        at_exit: Head input r at the exit of each unit, (K, D).
        all_loops: Head input r_n of every loop, (K, D) each, or None unless it was computed for all loops.
        halting_logits: Halting logits z_n of the loops that ran, float32, (K, n), or None without a halting unit.
        exit_steps: Loop at which each unit exits, counted from 1, or 0 for padding, int64, (K,).
        moves: Movement of the states in every loop that ran (see `state_moves`), (K, n, 2), or None if not computed.
        states: State s_0 and the states after every loop, (B, T, D) each, or None if not requested.
    """

    at_exit: Tensor
    all_loops: list[Tensor] | None
    halting_logits: Tensor | None
    exit_steps: Tensor
    moves: Tensor | None
    states: tuple[Tensor, ...] | None


class LoopReading(NamedTuple):
    """Signals that a forward pass reads after every loop, and the units for which it reads them.

    Attributes:
        slots: Index b T + t of the token from which each unit is predicted, int64, (K,), or None for all B T tokens.
        head: Function that returns predictions, (k, C), for states, (k, D).
        rule: Exit rule that decides which units exit.
        real: Whether each unit is not padding, boolean, (K,).
        all_loops: Whether all loops run and the head input is computed after each of them.
        states: Whether to return the states after every loop.
        moves: Whether to return the movement of the states even if the rule does not read it.
        generator: Random generator for stochastic rules.
    """

    slots: Tensor | None
    head: Callable[[Tensor], Tensor]
    rule: ExitRule
    real: Tensor
    all_loops: bool = False
    states: bool = False
    moves: bool = False
    generator: torch.Generator | None = None


class LoopStepper:
    """Stepper of loops, in which units that have exited go on for the others; implements `LazyStepper`.

    If the cache policy stops exited tokens, they leave the batch (token compaction).

    Args:
        model: Model.
        run: State of the batch before its first loop.
        reading: Units, head and exit rule of the forward pass.

    Attributes:
        readings: Head inputs r_n of all units, (K, D) each: of every loop that was read, or of the last one.
        halting_logits: Halting logits of all units after every loop, (K,) each, if there is a halting unit.
        moves: Movement of the states of all units in every loop, (K, 2) each, if it is read.
        states: State s_0 and, if requested, the states after every loop, (B, T, D) each.
    """

    computed = None  # see `Looping.computed`

    def __init__(self, model: LoopedModel, run: Looping, reading: LoopReading) -> None:
        rule = reading.rule
        self._model, self._run, self._reading = model, run, reading
        self.width, self.device = run.embedded.shape[1], run.state.device
        self.readings: list[Tensor] = []
        self.halting_logits: list[Tensor] = []
        self.moves: list[Tensor] = []
        first = model.split_state(run.state)[0]
        self.states = [first]
        self.reads_all = reading.all_loops or rule.mixes
        # Later tokens attend to all loops of a cache without compaction, and a coda must fill any cache at every loop.
        self._runs_all = self.reads_all or (run.cache is not None and run.running is None)
        self._is_lazy = run.cache is None and not self._runs_all and LOGITS not in rule.reads
        self._memory = start_unit(model.gate, self._select(first)) if model.config.gate else ()
        self._recent = [self._select(first)] if reading.moves or STATES in rule.needs else []
        self._units = self._device_units = torch.empty(0, dtype=torch.int64)
        self.rows = 0

    def start(self) -> Tensor:
        """Start the units that are not padding, and return their indices, int64 (A,)."""
        run, real = self._run, self._reading.real
        self._set_units((real.cpu() if run.running is None else run.running.flatten()).nonzero().squeeze(1))
        self.rows = len(self._units)
        return self._device_units

    def loop(self) -> None:
        """Run one loop, and record what is read of the states."""
        model, run = self._model, self._run
        normed = model.loop(run)
        state = model.split_state(run.state)[0]
        if self._reading.states:
            self.states.append(state)
        if model.config.gate:
            logits, self._memory = run_unit(model.gate, self._select(normed), self._memory, run.done)
            self.halting_logits.append(logits)
        if self._recent:
            self._recent = [*self._recent[-2:], self._select(state.detach())]
            before = self._recent[-3] if len(self._recent) > 2 else None
            self.moves.append(state_moves(self._recent[-1], self._recent[-2], before))

    def read_units(self) -> Tensor:
        """Return the head inputs of all units after the last loop, (K, D), and record them."""
        read = self._select(self._model.read(self._run))
        self.readings = [*(self.readings if self.reads_all else []), read]
        return read

    def advance(self) -> Signals:
        """Run one loop, and return what the rule reads of the running units."""
        self.loop()
        halting, moves = (values[-1].detach() if values else None for values in (self.halting_logits, self.moves))
        read = None if self._is_lazy else self.read_units()
        return Signals(*(None if values is None else values[self._device_units] for values in (read, halting, moves)))

    def read(self) -> Tensor:
        """Return the head inputs of the running units, (A, D)."""
        return self.read_units()[self._device_units]

    def keep(self, rows: Tensor) -> None:
        """Keep only the running units at these positions, int64 (A',), on the CPU."""
        run, staying = self._run, self._units[rows]
        if run.running is not None and not self.reads_all:
            stays = torch.zeros(run.running.numel(), dtype=torch.bool).index_fill(0, staying, True)
            remove_exited(self._model, run, ~stays.view_as(run.running))
        self._set_units(staying)

    def run_rest(self) -> None:
        """Run the loops that the loss, the mixture of all loops or later tokens read, after all units have exited."""
        while self._runs_all and self._run.done < self._run.loops:
            self.loop()
            self.read_units()

    def _set_units(self, units: Tensor) -> None:
        """Set the running units, int64 (A,), on the CPU."""
        self._units, self._device_units = units, units.to(self.device, non_blocking=True)

    def _select(self, tokens: Tensor) -> Tensor:
        """Select the values of the units, (K, ...), from those of all tokens, (B, T, ...)."""
        flat = tokens.flatten(0, 1)
        return flat if self._reading.slots is None else flat[self._reading.slots]


def run_loops(model: LoopedModel, run: Looping, reading: LoopReading) -> LoopResults:
    """Run loops until all tokens or sequences have exited, or all loops if their results are needed.

    The states do not depend on the decisions of the rule. A unit that has exited continues to run for the others,
    unless the cache policy stops it (token compaction).
    """
    stepper, rule = LoopStepper(model, run, reading), reading.rule
    if isinstance(rule, Fixed):
        exit_steps, at_exit = _run_fixed(stepper, rule.k, run, reading)
    else:
        units = stepper.start()
        reader = ReadingRule(rule, lambda step, states: reading.head(states), (len(reading.real), units))
        steps = run_steps(
            stepper, reader, max_updates=run.loops, run_all=False, generator=reading.generator, exits_only=True
        )
        stepper.run_rest()
        exit_steps = torch.zeros_like(reading.real, dtype=torch.int64).index_copy(0, units, steps.exit_steps)
        at_exit = stepper.readings[-1].index_copy(0, units, steps.logits)
    model.finish(run)
    return LoopResults(
        at_exit,
        stepper.readings if stepper.reads_all else None,
        torch.stack(stepper.halting_logits, dim=1) if stepper.halting_logits else None,
        exit_steps,
        torch.stack(stepper.moves, dim=1) if stepper.moves else None,
        tuple(stepper.states) if reading.states else None,
    )


def _run_fixed(stepper: LoopStepper, exit: int, run: Looping, reading: LoopReading) -> tuple[Tensor, Tensor]:
    """Run loops with the same exit for all units; return the exits and the head inputs there. Nothing is decided."""
    exit = min(exit, run.loops)
    while run.done < (run.loops if reading.all_loops else exit):
        stepper.loop()
        if reading.all_loops or run.done == exit:
            stepper.read_units()
    if not reading.all_loops:
        return reading.real * exit, stepper.readings[-1]
    last = stepper.readings[-1]
    return reading.real * exit, torch.where(reading.real.unsqueeze(-1), stepper.readings[exit - 1], last)
