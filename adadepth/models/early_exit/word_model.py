"""Base class of the early-exit models of words: runs of all tokens, losses of all exits, and predictions of words.

Shape legend: B texts, T tokens, D width, N exits, V pieces, P tokens with a target.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from adadepth.errors import ConfigError
from adadepth.halting.exit_rules import ExitRule, Fixed, apply_rule
from adadepth.halting.trace import DepthTrace, Execution
from adadepth.models.depth.engine import ReadingRule, fill_table, run_steps, runs_all
from adadepth.models.depth.outputs import Choice, StepLogits, choose_states, requested_states
from adadepth.models.depth.runner import RunningTexts
from adadepth.models.early_exit.losses import (
    combine_exits,
    exit_gate_losses,
    find_right,
    token_divergences,
    weigh_exits,
)
from adadepth.models.early_exit.modeling import EarlyExitModel, EarlyExitOutput, ExitStepper
from adadepth.models.shared.causal import cross_entropies
from adadepth.models.shared.losses import LossTerm


@dataclass
class TokenRun:
    """States and exits of the tokens of a batch.

    Attributes:
        states: States at every exit, (B, T, D) each; or one tensor, at the exit of each token.
        exit_steps: Exit of each token, from 1, int64, (B, T); 0 at padding.
        execution: Computation of the batch.
        has_all_exits: Whether the states are those of all exits.
        fixed_exit: Exit of all tokens, from 1; None: they may differ.
        gates: Logits of the gate at all exits, (B, T, N), if there is a gate and all layers ran.
    """

    states: list[Tensor]
    exit_steps: Tensor
    execution: Execution
    has_all_exits: bool = False
    fixed_exit: int | None = None
    gates: Tensor | None = None

    @cached_property
    def table(self) -> Tensor:
        """States of all tokens at all exits, (B, T, N, D)."""
        return torch.stack(self.states, dim=2)

    def select_states(self) -> Tensor:
        """Return the states at the exit of each token, (B, T, D); those at padding have no meaning."""
        if not self.has_all_exits:
            return self.states[0]
        if self.fixed_exit is not None:
            return self.states[self.fixed_exit - 1]
        numbers = (self.exit_steps.clamp(min=1) - 1)[..., None, None].expand(-1, -1, 1, self.table.shape[-1])
        return self.table.gather(2, numbers).squeeze(2)


class WordModel(EarlyExitModel):
    """The base class of models that predict words: the next one, or those that are masked.

    All tokens exit, and the logits of an exit exist only for a part of the tokens at a time.
    """

    def get_output_embeddings(self) -> Any:
        """Return the matrix of the last exit's predictions."""
        return self.head.get_output_embeddings()

    def set_output_embeddings(self, value: nn.Module) -> None:
        """Replace the matrix of the last exit's predictions."""
        self.head.set_output_embeddings(value)

    def run_words(
        self,
        running: RunningTexts,
        rule: ExitRule,
        real: Tensor,
        *,
        targets: Tensor | None,
        run_all_steps: bool | None,
        output_hidden_states: Choice | None,
        generator: torch.Generator | None,
    ) -> tuple[TokenRun, EarlyExitOutput]:
        """Run texts until their tokens have exited, and return the run with an output without predictions.

        Args:
            running: Texts before the first layer.
            rule: Rule that says which exit's prediction a token gets.
            real: Mask of the tokens that are no padding, boolean (B, T).
            targets: Targets of the tokens, (B, T), for which all layers run, or None.
            run_all_steps: Whether all layers run; None: if a loss or states need them.
            output_hidden_states: States to return; None: those of the configuration.
            generator: Random generator for rules that draw.
        """
        requested = requested_states(self.config, {"output_hidden_states": output_hidden_states}).get("hidden_states")
        embedded = running.states
        run_all = runs_all(run_all_steps, targets, training=self.training, shows=requested is not None)
        self.draw_skipped_layers(running)
        run = (self._run_all if run_all else self._run_online)(running, rule, real, generator)
        output = EarlyExitOutput(
            cache=running.cache,
            hidden_states=None if requested is None else choose_states((embedded, *run.states), requested),
            exit_steps=run.exit_steps,
            halting_logits=None if run.gates is None else run.gates.detach(),
            trace=DepthTrace("token", run.exit_steps.float(), real, self.max_updates, execution=run.execution),
        )
        is_shown = run.has_all_exits and not (self.training and targets is not None)
        if is_shown and not torch.compiler.is_exporting():  # a program returns tensors alone
            output.step_logits = StepLogits(run.table, self.read_exits, self.config.vocab_size)
        return run, output

    def _run_all(self, running: RunningTexts, rule: ExitRule, real: Tensor, generator: Any) -> TokenRun:
        """Run all layers; the rule decides afterwards.

        Raises:
            ConfigError: If a program of `torch.export` has a rule whose predictions exist for a part of the tokens.
        """
        if torch.compiler.is_exporting() and not isinstance(rule, Fixed):
            allowed = f"a fixed exit in torch.export, such as fixed:{self.max_updates}"
            raise ConfigError(f"exit_rule={rule.label}: must be {allowed}")
        memory, states, logits = self.start_gate(running.states), [], []
        for step in range(1, self.max_updates + 1):
            states.append(self.run_to_exit(running, step))
            gate, memory = self.estimate(states[-1], memory, step)
            logits += [] if gate is None else [gate]
        gates = torch.stack(logits, dim=2) if logits else None
        if isinstance(rule, Fixed):
            exits = real * rule.k
        else:
            slots = real.flatten().nonzero().squeeze(1)
            with torch.no_grad():
                read = torch.stack([read.flatten(0, 1)[slots] for read in states], dim=1)
                halting = None if gates is None else gates.flatten(0, 1)[slots]
                exits = fill_table(
                    apply_rule(ReadingRule(rule, self.read), read, halting, generator), slots, real.shape
                )
        execution = Execution(self.max_updates, width=real.shape[1], memory_length=running.memory_length)
        fixed = rule.k if isinstance(rule, Fixed) else None
        return TokenRun(states, exits, execution, has_all_exits=True, fixed_exit=fixed, gates=gates)

    def _run_online(self, running: RunningTexts, rule: ExitRule, real: Tensor, generator: Any) -> TokenRun:
        """Run the layers that the exits of tokens need."""
        steps, shape = self.max_updates, real.shape
        if isinstance(rule, Fixed):
            states, exits = self.run_to_exit(running, rule.k), real * rule.k
            return TokenRun([states], exits, Execution(rule.k, width=shape[1]), fixed_exit=rule.k)
        slots = real.flatten().nonzero().squeeze(1)
        stepper = ExitStepper(self, running, slots, lambda step, states: states)
        result = run_steps(
            stepper,
            ReadingRule(rule, self.read),
            max_updates=steps,
            run_all=False,
            generator=generator,
            exits_only=True,
        )
        states = fill_table(result.logits.to(running.states), slots, shape)
        exits = fill_table(result.exit_steps, slots, shape)
        return TokenRun([states], exits, Execution(len(result.rows), width=shape[1], computed=result.computed))

    def compute_losses(self, run: TokenRun, targets: Tensor, output: EarlyExitOutput) -> dict[str, LossTerm]:
        """Return the parts of the loss, and set the losses of single tokens in the output."""
        counted = (targets >= 0).flatten().nonzero().squeeze(1)
        targets, states = targets.flatten()[counted], [read.flatten(0, 1)[counted] for read in run.states]
        pieces, factors = self.config.vocab_size, self.exit_weights()
        heads = [partial(self.read, step) for step in range(1, len(states) + 1)]
        losses, divergences = {}, {}
        for step, (factor, read, head) in enumerate(zip(factors, states, heads, strict=True), start=1):
            if self.training and not factor:
                continue
            losses[step] = cross_entropies(read, targets, head, pieces)
            if self.config.distillation and step < len(states):
                both, temperature = (head, heads[-1]), self.config.distillation_temperature
                divergences[step] = token_divergences(read, states[-1], both, pieces, temperature)
        weights = weigh_exits(self.config, factors, losses)
        total, apart = _sum_exits(losses, weights), None
        if self.config.distillation:
            apart = _sum_exits(divergences, weights) if divergences else torch.zeros_like(total)
        gate = None
        if run.gates is not None:
            readings = zip(states[:-1], heads[:-1], strict=True)
            is_right = torch.stack([find_right(read, targets, head, pieces) for read, head in readings], dim=1)
            gate = exit_gate_losses(run.gates.flatten(0, 1)[counted, :-1], is_right).sum()
        count = torch.full((), len(targets), device=targets.device)
        output.token_losses = losses[max(losses)].detach()
        if not self.training:
            output.step_losses = torch.stack(list(losses.values()), dim=1).detach()
            exits = run.exit_steps.flatten()[counted].clamp(min=1).unsqueeze(1)
            output.token_losses = output.step_losses.gather(1, exits - 1).squeeze(1)
        return self.build_terms(total, apart, count, gate)

    def read_exits(self, states: Tensor, steps: Tensor, fixed_exit: int | None = None) -> Tensor:
        """Return the predictions (..., V) for states (..., D) at exits by their numbers, (...).

        With a `fixed_exit`, all numbers are this one, and are not read.
        """
        flat, numbers = states.flatten(0, -2), steps.flatten()
        if fixed_exit is None and not len(self.exits):
            fixed_exit = self.max_updates  # all exits have the same head
        if fixed_exit is not None:
            return self.read(fixed_exit, flat).unflatten(0, states.shape[:-1])
        on_host = numbers.cpu()
        present = on_host.unique().tolist()
        if len(present) == 1:
            return self.read(present[0], flat).unflatten(0, states.shape[:-1])
        logits = None
        for step in present:
            rows = (on_host == step).nonzero().squeeze(1).to(flat.device, non_blocking=True)
            part = self.read(step, flat[rows])
            logits = part.new_zeros(len(flat), part.shape[-1]) if logits is None else logits
            logits = logits.index_copy(0, rows, part)
        assert logits is not None
        return logits.unflatten(0, states.shape[:-1])


def _sum_exits(losses: Mapping[int, Tensor], weights: Mapping[int, float | Tensor]) -> Tensor:
    """Return the weighted sum over exits and tokens of losses, (P,) by the number of the exit."""
    by_exit = {step: loss if isinstance(weights[step], Tensor) else loss.sum() for step, loss in losses.items()}
    return combine_exits(by_exit, weights).sum()
