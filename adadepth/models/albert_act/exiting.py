"""Early exit of ACT-ALBERT: an exit rule stops tokens or sequences after any iteration.

A token that exits keeps its state, and running tokens still attend to it. The halting threshold of the model is one of
the exit rules. Shape legend: B batch, T tokens, A units that still run, K units, H width, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from adadepth.errors import ConfigError
from adadepth.halting.act import act_hazard, update_stream
from adadepth.halting.active_set import take
from adadepth.halting.distribution import halting_logits
from adadepth.halting.exit_rules import ExitRule, Fixed, Quantile
from adadepth.halting.rules import Act
from adadepth.halting.trace import DepthTrace, Execution
from adadepth.models.albert_act.configuration import FREEZING_RULES, AlbertActConfig
from adadepth.models.albert_act.ragged import build_positions
from adadepth.models.albert_act.readouts import Read
from adadepth.models.albert_act.recurrence import AlbertActTransformer, DensePositions
from adadepth.models.depth.engine import resolve_exit_rule, run_steps
from adadepth.models.depth.outputs import build_unit_fields

SIGNALS = frozenset({"logits", "halting"})


def predict_steps(
    model: Any,
    inputs: Sequence[Tensor | None],
    rule: str | ExitRule | None,
    run_all: bool,
    generator: torch.Generator | None,
    options: dict[str, Any],
    *,
    selected: Tensor | None = None,
    by_sequence: bool = False,
) -> dict[str, Any]:
    """Run ACT-ALBERT until an exit rule has stopped every token or sequence, and return their predictions.

    Args:
        model: Model with its base in the attribute `albert`, and a method `read` that maps states, (K, H), to logits,
            (K, C).
        inputs: First five arguments of the head's forward pass.
        rule: Exit rule, or None for the halting threshold or the fixed depth of the model.
        run_all: Whether all tokens run all steps, and the rule is applied to the recorded predictions afterwards.
        generator: Random generator for stochastic rules.
        options: Keyword arguments of the attention implementation.
        selected: Mask of the tokens that are units, boolean, (B, T), or None for all real tokens. It is not used with
            `by_sequence`.
        by_sequence: Whether units are whole sequences, which are predicted from their first token.

    Returns:
        Fields of the output: the fields of `build_unit_fields`, and the trace of all tokens.

    Raises:
        ConfigError: If the rule does not exist, or the model does not support it.
    """
    rule, albert = _resolve_rule(model, rule), model.albert
    start = albert.start(*inputs)
    rows, length = start.valid.shape
    if by_sequence:
        slots = torch.arange(rows, device=start.valid.device) * length
    else:
        slots = (start.valid if selected is None else selected).flatten().nonzero().squeeze(1)
    # The mean halting probability of a sequence needs all of its tokens.
    needs_all = albert.config.halting_scope == "sequence" and not by_sequence
    kernel = None if needs_all else albert.ragged_kernel(start.valid)
    positions = build_positions(albert.config, start.valid, start.mask, options, kernel)
    stepper = ActStepper(albert.encoder, positions, start.state, slots, model.read, by_sequence=by_sequence)
    steps = run_steps(stepper, rule, max_updates=model.max_updates, run_all=run_all, generator=generator)
    trace = DepthTrace(
        unit="token",
        updates=stepper.updates,
        valid=start.valid,
        max_updates=model.max_updates,
        execution=Execution(len(steps.rows), computed=steps.computed),
    )
    return {"trace": trace, **build_unit_fields(steps, rule, slots, None if by_sequence else (rows, length))}


def find_exit_problem(config: AlbertActConfig) -> str | None:
    """Return why a configuration supports no exit rules, or None if it supports them."""
    if config.state_rule not in FREEZING_RULES:
        return (
            f"state_rule={config.state_rule!r}: exit rules need {' or '.join(FREEZING_RULES)}, which freezes the "
            "state of a halted token"
        )
    if config.halting_rule != Act.name:
        return f"halting_rule={config.halting_rule!r}: exit rules support only {Act.name}"
    return None


def _resolve_rule(model: Any, rule: str | ExitRule | None) -> ExitRule:
    """Return the exit rule of a forward pass, by default the model's halting threshold or fixed depth."""
    config: AlbertActConfig = model.config
    if (problem := find_exit_problem(config)) is not None:
        raise ConfigError(problem)
    default = Quantile(1.0 - config.act_epsilon) if config.fixed_depth is None else Fixed(config.fixed_depth)
    return resolve_exit_rule(model, default if rule is None else rule)


class ActStepper:
    """Runs ACT-ALBERT step by step on a batch whose tokens or sequences exit one by one; implements `Stepper`.

    A unit is a token or a whole sequence. A sequence is predicted from its first token, and its tokens exit together.

    Args:
        encoder: Encoder. One of its iterations is a step.
        positions: Positions of the batch's tokens, dense or packed. Packed tokens leave the batch when their unit
            exits.
        state: x_0, (B, T, H).
        slots: Index b T + t of the token from which each unit is predicted, ascending, int64, (A,).
        read: Function that returns logits, (A, C), for states, (A, H).
        by_sequence: Whether a unit is a whole sequence.

    Attributes:
        rows: Number of units at the start.
        device: Device of the batch.
        updates: Number of updates of every token so far, float32, (B, T).
        width: Sequence length T.
    """

    def __init__(
        self,
        encoder: AlbertActTransformer,
        positions: DensePositions,
        state: Tensor,
        slots: Tensor,
        read: Read,
        *,
        by_sequence: bool,
    ) -> None:
        self._encoder, self._positions = encoder, positions
        self._state = positions.enter(state)
        self._memory = encoder.albert_layer.act.start(self._state)
        self._step = 0
        self._running = self._valid = positions.valid
        self._slots, self._read, self._by_sequence = slots, read, by_sequence
        self._accumulated = torch.zeros(slots.shape, device=slots.device)
        self.rows, self.device = len(slots), slots.device
        self.updates = torch.zeros(self._valid.shape, device=slots.device)
        self.width = self._valid.shape[1]

    @property
    def computed(self) -> tuple[int, int, Tensor | int] | None:
        """Number of queries, keys and query-key pairs of the next step, or None if it computes all positions."""
        return self._positions.computed

    def advance(self) -> tuple[Tensor, Tensor]:
        """Apply the block once, and return the logits, (A, C), and the halting logits, (A,).

        The cumulative halting probability of these halting logits is the halting sum.
        """
        running, self._step = self._positions.gather(self._running), self._step + 1
        output, probability, self._memory = self._encoder.propose(
            self._state, self._memory, self._positions, self._step
        )
        rule, weight = self._encoder.state_rule, probability * running
        self._state = update_stream(rule, self._state, output, weight, running)
        self.updates += self._running
        units = self._positions.find(self._slots)
        logits = self._read(take(self._state.flatten(0, -2), units))
        hazard, self._accumulated = act_hazard(self._accumulated, probability.flatten()[units])
        return logits, halting_logits(hazard)

    def keep(self, rows: Tensor) -> None:
        """Keep the tokens or sequences at positions `rows`, int64 (A',), on the CPU, and stop all others."""
        rows = rows.to(self.device, non_blocking=True)
        self._slots, self._accumulated = self._slots[rows], self._accumulated[rows]
        if self._by_sequence:
            stays = torch.zeros(len(self._valid), dtype=torch.bool, device=rows.device)
            self._running = self._valid & stays.index_fill(0, self._slots // self.width, True).unsqueeze(1)
        else:
            stays = torch.zeros(self._valid.numel(), dtype=torch.bool, device=rows.device)
            self._running = stays.index_fill(0, self._slots, True).view(self._valid.shape)
        self._state, self._memory = self._positions.keep(self._running, self._state, self._memory)
