"""Early exit of looped models: an exit rule decides after which loop each token or sequence is predicted.

A rule reads the predictions or halting logits of each unit. The states do not depend on its decisions, because other
tokens still attend to a token that has exited. Shape legend: B rows, T tokens, K units (tokens, or rows predicted from
their last token), D width, C classes or vocabulary size, N loops, n loops that ran.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from adadepth.halting.exit_rules import LOGITS, STATES, ExitRule, Fixed, StepView, pad_memory, state_moves
from adadepth.models.looped.loop_state import Looping
from adadepth.models.looped.modeling import LoopedModel
from adadepth.models.looped.token_compaction import remove_exited


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


ROWS = 1024  # predictions made at once for a rule


@dataclass
class LoopReading:
    """Early-exit settings of a forward pass (exit rule, prediction head, predicted tokens), and the exit rule's memory.

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
    _memory: Tensor = field(init=False)

    def units(self, tokens: Tensor) -> Tensor:
        """Select the values of the predicted tokens or sequences, (K, ...), from those of all tokens, (B, T, ...)."""
        flat = tokens.flatten(0, 1)
        return flat if self.slots is None else flat[self.slots]

    def start(self, device: torch.device) -> None:
        """Create the exit rule's memory before the first loop.

        A fixed rule has no state, so that an exported program can have any number of rows.
        """
        if not isinstance(self.rule, Fixed):
            self._memory = self.rule.start(len(self.real), device, self.generator)

    @torch.no_grad()
    def exits(
        self,
        step: int,
        steps: int,
        running: Tensor,
        read: Tensor | None,
        halting: Tensor | None,
        moves: Tensor | None = None,
    ) -> Tensor:
        """Return which tokens or sequences exit after this loop, boolean (K,).

        The rule decides for the running ones. If their mask is on the CPU, the host does not wait for the device.
        Predictions are computed for a part of the units at a time.
        """
        if isinstance(self.rule, Fixed):
            return (running & (step >= self.rule.k)).to(self.real.device)
        exits = torch.zeros_like(self.real)
        numbers = running.nonzero().squeeze(1).to(exits.device, non_blocking=True)
        for rows in numbers.split(ROWS) if len(numbers) else ():
            logits = self.head(read[rows]).float() if read is not None and LOGITS in self.rule.needs else None
            signals = (None if values is None else values[rows] for values in (halting, moves))
            exits[rows], memory = self.rule.decide(StepView(step, steps, logits, *signals), self._memory[rows])
            self._memory = pad_memory(self._memory, memory.shape[1])
            self._memory[rows] = memory
        return exits


def run_loops(model: LoopedModel, run: Looping, reading: LoopReading) -> LoopResults:
    """Run loops until all tokens or sequences have exited, or all loops if their results are needed.

    The states do not depend on the decisions of the rule. A unit that has exited continues to run for the others,
    unless the cache policy stops it (token compaction).
    """
    rule, steps = reading.rule, run.loops
    last = min(rule.k, steps) if isinstance(rule, Fixed) and not reading.all_loops else steps
    reads_all = reading.all_loops or rule.mixes
    attended = run.cache is not None and run.running is None  # later tokens attend to all loops
    runs_all = reads_all or attended or isinstance(rule, Fixed)
    # A coda must fill a cache at every loop. Without one, exits alone are read, if the rule needs no predictions.
    reads_exits_only = run.cache is None and not runs_all and LOGITS not in rule.reads
    reads_moves = reading.moves or STATES in rule.needs
    reading.start(run.state.device)
    running, readings, halting, moves = reading.real.clone(), [], [], []
    on_host = None if run.running is None else run.running.flatten()  # `running` on the CPU, if shapes depend on it
    if on_host is None and not isinstance(rule, Fixed):
        on_host = running.cpu()
    exit_steps, at_exit = torch.zeros_like(running, dtype=torch.int64), None
    first = model.split_state(run.state)[0]
    states, recent = [first], [reading.units(first)] if reads_moves else []
    while run.done < last:
        normed = model.loop(run)
        step, state = run.done, model.split_state(run.state)[0]
        states += [state] if reading.states else []
        if model.config.gate:
            halting.append(model.compute_halting_logits(reading.units(normed)))
        if reads_moves:
            recent = [*recent[-2:], reading.units(state.detach())]
            moves.append(state_moves(recent[-1], recent[-2], recent[-3] if len(recent) > 2 else None))
        if isinstance(rule, Fixed) and not reading.all_loops and step < last:
            continue
        signals = (values[-1].detach() if values else None for values in (halting, moves))
        read = None if reads_exits_only else _read_units(model, run, reading)
        mask = running if on_host is None else on_host
        exits = running if step == last else reading.exits(step, steps, mask, read, *signals)
        exits_on_host = on_host if on_host is None or step == last else exits.cpu()  # the host waits here alone
        if read is None:
            if step < last and exits_on_host is not None and not exits_on_host.any():
                continue
            read = _read_units(model, run, reading)
        readings += [read] if reads_all else []
        exit_steps = torch.where(exits, step, exit_steps)
        at_exit = read if at_exit is None else torch.where((running | ~reading.real).unsqueeze(-1), read, at_exit)
        running = running & ~exits
        if on_host is not None and exits_on_host is not None:
            if run.running is not None and not reads_all:
                remove_exited(model, run, exits_on_host.view_as(run.running))
            on_host = on_host & ~exits_on_host
            if not runs_all and not on_host.any():
                break
    assert at_exit is not None
    model.finish(run)
    return LoopResults(
        at_exit,
        readings if reads_all else None,
        torch.stack(halting, dim=1) if halting else None,
        exit_steps,
        torch.stack(moves, dim=1) if moves else None,
        tuple(states) if reading.states else None,
    )


def _read_units(model: LoopedModel, run: Looping, reading: LoopReading) -> Tensor:
    """Return the hidden states from which the head predicts the tokens or sequences, r_n, (K, D)."""
    return reading.units(model.read(run))
