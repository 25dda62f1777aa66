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
from adadepth.halting.exit_rules import LOGITS, ExitRule, Fixed, StepView


class Loops(NamedTuple):
    """What the loops gave to K units.

    Attributes:
        chosen: r at each unit's exit, (K, D).
        every: r of every loop, (K, D) each, where all of them were wanted.
        halting_logits: z_n of the loops that ran, float32, (K, n); None without a halting unit.
        exit_steps: First is 1, 0 of units that are padding, int64, (K,).
        states: s_0 and those after every loop, (B, T, D) each, where they were wanted.
    """

    chosen: Tensor
    every: list[Tensor] | None
    halting_logits: Tensor | None
    exit_steps: Tensor
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
        generator: For rules that draw.
        frozen: Whether the halting unit alone has gradients.
    """

    slots: Tensor | None
    head: Callable[[Tensor], Tensor]
    rule: ExitRule
    real: Tensor
    every: bool = False
    states: bool = False
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
    def exits(self, step: int, steps: int, running: Tensor, read: Tensor | None, halting: Tensor | None) -> Tensor:
        """Ask the rule about the running units; boolean (K,). Predictions are made for a part of them at a time."""
        found = torch.zeros_like(running)
        if isinstance(self.rule, Fixed):
            return running & (step >= self.rule.k)
        for rows in running.nonzero().squeeze(1).split(ROWS):
            logits = self.head(read[rows]).float() if read is not None and LOGITS in self.rule.needs else None
            view = StepView(step, steps, logits, None if halting is None else halting[rows])
            found[rows], self._memory[rows] = self.rule.decide(view, self._memory[rows])
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
    reading.start(run.state.device)
    running, every, halting = reading.real.clone(), [], []
    exit_steps, chosen = torch.zeros_like(running, dtype=torch.int64), None
    states = [run.state]
    while run.done < last:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not reading.frozen):
            normed = model.loop(run)
        step = run.done
        states += [run.state] if reading.states else []
        if model.config.gate:
            halting.append(model.gate(reading.units(normed)))
        if isinstance(rule, Fixed) and not reading.every and step < last:
            continue
        with torch.set_grad_enabled(torch.is_grad_enabled() and not reading.frozen):
            read = reading.units(model.read(run))
        every += [read] if reading.every or rule.mixes else []
        asked = halting[-1].detach() if halting else None
        exits = running if step == last else reading.exits(step, steps, running, read, asked)
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
        tuple(states) if reading.states else None,
    )
