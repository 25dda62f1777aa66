"""Predictions of ACT-ALBERT after every iteration, and exits by a rule that reads them.

The halting unit decides with a threshold while the model trains. Once trained, any rule of
`adadepth.halting.exit_rules` may decide instead: `quantile:q` halts at the first step whose halting sum exceeds q, so
q = 1 - act_epsilon is the model's own threshold. A prediction is the head's readout of a unit's state at its exit, so
of a model trained without `readout_weight` under `graves`, whose head has read weighted sums only, nothing good is to
be expected.
Shape legend: B batch, T tokens, K units, N steps, C classes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from adadepth.errors import ConfigError
from adadepth.families.albert_act.configuration import FREEZING_RULES, AlbertActConfig
from adadepth.families.albert_act.modeling import AlbertActModel, Start
from adadepth.families.albert_act.outputs import TaskOutput
from adadepth.families.albert_act.readouts import Read
from adadepth.families.albert_act.recurrence import Dense, Packed, Places
from adadepth.families.albert_act.stepper import ActStepper
from adadepth.families.shared.losses import label_count
from adadepth.families.shared.steps import run_steps, unit_fields
from adadepth.halting.exit_rules import ExitRule, Fixed, Quantile, check_rule, parse_rule
from adadepth.halting.trace import DepthTrace, Execution

SIGNALS = frozenset({"logits", "halting"})


def exit_rule_of(config: AlbertActConfig, rule: str | ExitRule | None) -> ExitRule:
    """The exit rule of a call; None is the model's own threshold, or its fixed depth.

    Raises:
        ConfigError: If there is no such rule, or the model cannot follow it.
    """
    if config.state_rule not in FREEZING_RULES:
        raise ConfigError(
            f"state_rule={config.state_rule!r}: exit rules need {' or '.join(FREEZING_RULES)}, under which the state "
            "of a halted token stays as it is"
        )
    if rule is None:
        return Quantile(1.0 - config.act_epsilon) if config.fixed_depth is None else Fixed(config.fixed_depth)
    parsed = parse_rule(rule) if isinstance(rule, str) else rule
    check_rule(parsed, SIGNALS, label_count(config), config.max_steps, config.model_type)
    return parsed


def predict_steps(
    model: AlbertActModel,
    inputs: tuple[Tensor | None, ...],
    chosen: Tensor | None,
    read: Read,
    *,
    rule: ExitRule,
    run_all: bool,
    by_sequence: bool = False,
    generator: torch.Generator | None = None,
    options: dict[str, Any],
) -> TaskOutput:
    """Step until every unit has exited; predictions of the units, without a loss.

    Args:
        model: The encoder.
        inputs: The first five arguments of its forward pass.
        chosen: Which tokens are units, boolean, (B, T); None for all real ones, and for whole sequences.
        read: The task's head, (K, H) to (K, C).
        rule: Lets units exit.
        run_all: Whether all tokens run all steps, and the rule decides afterwards on what was read.
        by_sequence: Whether units are whole sequences, read at their first token.
        generator: For rules that draw.
        options: For the attention implementation.

    Returns:
        What `unit_fields` says, and the trace of all tokens.
    """
    start = model.start(*inputs)
    rows, length = start.valid.shape
    if by_sequence:
        slots = torch.arange(rows, device=start.valid.device) * length
    else:
        slots = (start.valid if chosen is None else chosen).flatten().nonzero().squeeze(1)
    stepper = _stepper(model, start, slots, read, by_sequence, options)
    steps = run_steps(stepper, rule, max_steps=model.config.max_steps, run_all=run_all, generator=generator)
    trace = DepthTrace(
        unit="token",
        updates=stepper.updates,
        valid=start.valid,
        max_depth=model.config.max_steps,
        execution=Execution(len(steps.rows), computed=steps.computed),
    )
    return TaskOutput(trace=trace, **unit_fields(steps, rule, slots, None if by_sequence else (rows, length)))


def _stepper(
    model: AlbertActModel, start: Start, slots: Tensor, read: Read, by_sequence: bool, options: dict[str, Any]
) -> ActStepper:
    """Packed where the model would run ragged."""
    # A mean over a sequence's tokens needs all of them.
    needs_all = model.config.halting_scope == "sequence" and not by_sequence
    kernel = None if needs_all else model.ragged_kernel(start.valid)
    places: Places
    if kernel is None:
        places = Dense(start.valid, start.mask, options)
    else:
        places = Packed(start.valid, start.mask, options, kernel)
    state = model.encoder.embedding_hidden_mapping_in(start.embedded)
    return ActStepper(model.encoder.recurrence, places, state, slots, read, by_sequence=by_sequence)
