"""Which loop's state every unit is read at: rules of exit decide while the loops run.

A rule sees each unit's own predictions or halting logits and decides on states that do not depend on it: a token that
has exited goes on in the others' keys and values. Shape legend: B rows, T tokens, K units that are read (tokens, or
rows at their last token), D width, C classes or pieces, N loops, n of them that ran.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from adadepth.families.looped.compaction import leave
from adadepth.families.looped.modeling import LoopedModel, Looping
from adadepth.halting.exit_rules import LOGITS, STATES, ExitRule, Fixed, StepView, state_moves, widened


class Loops(NamedTuple):
    """What the loops gave to K units.

    Attributes:
        chosen: r at each unit's exit, (K, D).
        every: r of every loop, (K, D) each, where all of them were wanted.
        halting_logits: z_n of the loops that ran, float32, (K, n); None without a halting unit.
        exit_steps: First is 1, 0 of units that are padding, int64, (K,).
        moves: How every loop that ran moved the states, see `state_moves`, (K, n, 2), where they were read.
        states: s_0 and those after every loop, (B, T, D) each, where they were wanted.
    """

    chosen: Tensor
    every: list[Tensor] | None
    halting_logits: Tensor | None
    exit_steps: Tensor
    moves: Tensor | None
    states: tuple[Tensor, ...] | None


ROWS = 1024  # predictions that are made at once for a rule


@dataclass
class LoopReading:
    """How units are read and let out.

    Attributes:
        slots: b T + t of the token at which each unit is read, int64, (K,); None: all B T.
        head: From (k, D) to predictions (k, C).
        rule: Decides who exits.
        real: Which units are no padding, boolean, (K,).
        every: Whether all loops run and are read.
        states: Whether the states after every loop are wanted.
        moves: Whether it is wanted how every loop moved the states, whatever the rule reads.
        generator: For rules that draw.
        frozen: Whether the halting unit alone has gradients.
    """

    slots: Tensor | None
    head: Callable[[Tensor], Tensor]
    rule: ExitRule
    real: Tensor
    every: bool = False
    states: bool = False
    moves: bool = False
    generator: torch.Generator | None = None
    frozen: bool = False
    _memory: Tensor = field(init=False)

    def units(self, tokens: Tensor) -> Tensor:
        """(B, T, ...) to (K, ...)."""
        flat = tokens.flatten(0, 1)
        return flat if self.slots is None else flat[self.slots]

    def start(self, device: torch.device) -> None:
        """Nobody has exited. A fixed loop remembers nothing, and leaves an exported program free to have any rows."""
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
        """Ask the rule about the running units; boolean (K,). Predictions are made for a part of them at a time."""
        found = torch.zeros_like(running)
        if isinstance(self.rule, Fixed):
            return running & (step >= self.rule.k)
        still = running.nonzero().squeeze(1)
        for rows in still.split(ROWS) if len(still) else ():
            logits = self.head(read[rows]).float() if read is not None and LOGITS in self.rule.needs else None
            said = (None if values is None else values[rows] for values in (halting, moves))
            found[rows], memory = self.rule.decide(StepView(step, steps, logits, *said), self._memory[rows])
            self._memory = widened(self._memory, memory.shape[1])
            self._memory[rows] = memory
        return found


def run_loops(model: LoopedModel, run: Looping, reading: LoopReading) -> Loops:
    """Loop until all units have exited, or through all loops where that is wanted or later tokens will attend to them.

    A rule decides on states that do not depend on it: a unit that has exited goes on for the others, unless the policy
    of the cache stops it (`compaction`).
    """
    rule, steps = reading.rule, run.loops
    last = min(rule.k, steps) if isinstance(rule, Fixed) and not reading.every else steps
    everybody = reading.every or rule.mixes
    waits = run.cache is not None and run.running is None  # later tokens attend to all loops
    to_the_end = everybody or waits or isinstance(rule, Fixed)
    # A coda has its keys and values in a cache; without one, who needs no predictions is read where somebody exits.
    reads_exits_only = run.cache is None and not to_the_end and LOGITS not in rule.reads
    reads_moves = reading.moves or STATES in rule.needs
    reading.start(run.state.device)
    running, every, halting, moves = reading.real.clone(), [], [], []
    exit_steps, chosen = torch.zeros_like(running, dtype=torch.int64), None
    states, passed = [run.state], [reading.units(run.state)] if reads_moves else []
    while run.done < last:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not reading.frozen):
            normed = model.loop(run)
        step = run.done
        states += [run.state] if reading.states else []
        if model.config.gate:
            halting.append(model.gate(reading.units(normed)))
        if reads_moves:
            passed = [*passed[-2:], reading.units(run.state.detach())]
            moves.append(state_moves(passed[-1], passed[-2], passed[-3] if len(passed) > 2 else None))
        if isinstance(rule, Fixed) and not reading.every and step < last:
            continue
        asked, moved = (values[-1].detach() if values else None for values in (halting, moves))
        read = None if reads_exits_only else _read(model, run, reading)
        exits = running if step == last else reading.exits(step, steps, running, read, asked, moved)
        if read is None:
            if step < last and not exits.any():
                continue
            read = _read(model, run, reading)
        every += [read] if reading.every or rule.mixes else []
        exit_steps = torch.where(exits, step, exit_steps)
        chosen = read if chosen is None else torch.where((running | ~reading.real).unsqueeze(-1), read, chosen)
        running = running & ~exits
        if run.running is not None and not everybody:
            leave(model, run, exits.view_as(run.running))
        if not to_the_end and not running.any():
            break
    assert chosen is not None
    model.finish(run)
    return Loops(
        chosen,
        every if reading.every or rule.mixes else None,
        torch.stack(halting, dim=1) if halting else None,
        exit_steps,
        torch.stack(moves, dim=1) if moves else None,
        tuple(states) if reading.states else None,
    )


def _read(model: LoopedModel, run: Looping, reading: LoopReading) -> Tensor:
    """r_n of the units, (K, D)."""
    with torch.set_grad_enabled(torch.is_grad_enabled() and not reading.frozen):
        return reading.units(model.read(run))
