"""Outputs of models that run step by step: predictions of every step and at the exits, states, and the cost of a pass.

Multiply-accumulates follow from what ran: `price_steps` multiplies the counts in the depth trace of a pass by the costs
of its steps.

Shape legend: B batch, T tokens, N steps, C classes, D width, V pieces, K units.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.utils import ModelOutput

from adadepth.halting.distribution import HaltingDistribution, halting_distribution
from adadepth.halting.exit_rules import ExitRule, select_predictions
from adadepth.halting.trace import ComputedSteps, DepthTrace, Execution, Halting, Work

logger = logging.getLogger(__name__)


class StepLogits:
    """Predictions of every step, (B, T, N, V), computed when they are indexed, because all of them take much memory.

    `logits[rows, tokens, steps]` is indexed like a tensor and returns float32 (..., V). `logits[...]` returns all.

    Args:
        states: States of all tokens at all steps, (B, T, N, D).
        read: Function from states, (..., D), and the numbers of their steps from 1, (...), to logits, (..., V).
        pieces: Size of the vocabulary, V.
    """

    def __init__(self, states: Tensor, read: Callable[[Tensor, Tensor], Tensor], pieces: int) -> None:
        self._states, self._read = states, read
        self._steps = torch.arange(1, states.shape[2] + 1, device=states.device).expand(states.shape[:3])
        self.shape = torch.Size((*states.shape[:3], pieces))

    def __getitem__(self, index: Any) -> Tensor:
        return self._read(self._states[index], self._steps[index]).float()


class Steps(NamedTuple):
    """Predictions of a batch after every step, as returned by `run_steps`.

    The fields are logits, (B, N, C), halting logits, (B, N), exit steps, (B,), and the number and width of computed
    rows, (I,). With `exits_only`, logits are (B, C), and there are no halting logits.

    Logits are float32, and NaN where a row did not run. For answers of L cells they are (B, N, L, C). `exit_steps`,
    `rows` and `widths` are int64; `rows` and `widths` are on the CPU. `deepest` is the maximum number of steps of a
    row. `computed` counts the computed queries, keys and pairs of every iteration.
    """

    logits: Tensor
    halting_logits: Tensor | None
    exit_steps: Tensor
    rows: Tensor
    widths: Tensor
    deepest: int
    computed: ComputedSteps | None = None


@dataclass
class StepwiseOutput(ModelOutput):
    """Model output with predictions after every step, float32, with NaN at steps that an example did not run.

    Attributes:
        loss: Sum of `loss_parts`, or None without labels.
        loss_parts: Weighted and normalised parts by name.
        logits: Logits at the exit step of each example, (B, C). Under a rule that mixes the steps, these are the
            logarithm of the mixture, or the mixed value in regression.
        step_logits: Logits of every step, (B, N, C).
        halting_logits: Halting logits z_n, (B, N), or None if the model has no halting head.
        halting_probabilities: lambda_n = sigmoid(z_n), (B, N), the probability of halting at step n if it is reached.
        exit_steps: Exit step of each example, counted from 1, int64, (B,).
        posterior: Halting distribution p of every example, if all steps ran.
        prior: Distribution over all steps towards which the loss regularises p, if the model has one.
        trace: Depth of every sequence. `updates` equals `exit_steps`, and probabilities are 0 after the exit step.
        hidden_states: States before the first and after every step, N + 1 tensors (B, T, H), if requested. No example
            then leaves the batch, and its states after its exit continue the recurrence.
        attentions: Attention weights of every step, N tensors (B, heads, T, T), if requested. They need eager
            attention.
    """

    loss: Tensor | None = None
    loss_parts: dict[str, Tensor] | None = None
    logits: Tensor | None = None
    step_logits: Tensor | None = None
    halting_logits: Tensor | None = None
    halting_probabilities: Tensor | None = None
    exit_steps: Tensor | None = None
    posterior: HaltingDistribution | None = None
    prior: HaltingDistribution | None = None
    trace: DepthTrace | None = None
    hidden_states: tuple[Tensor | None, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None

    def __getitem__(self, key: Any) -> Any:
        """Return a field by its name, its index, or its name in the original PonderALBERT code."""
        return self._read_alias(key) if key in _ALIASES else super().__getitem__(key)

    def __getattr__(self, name: str) -> Any:
        """Return a field by its name in the original PonderALBERT code.

        Raises:
            AttributeError: If there is no such field, as `hasattr` and `getattr` with a default expect.
        """
        if name not in _ALIASES:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        try:
            return self._read_alias(name)
        except KeyError as error:
            raise AttributeError(*error.args) from error

    def _read_alias(self, name: str) -> Any:
        """Return a field by its name in the original PonderALBERT code.

        The halting distribution of an example that left early has the probabilities of the steps that it ran. Those of
        later steps are unknown and count as 0.

        Raises:
            KeyError: If the model has no halting head, and hence no such field.
        """
        field = _ALIASES[name]
        _log_new_name(name)
        if name == "passes":  # number of the last step of the batch, from 0
            assert self.exit_steps is not None
            return int(self.exit_steps.max()) - 1
        value = getattr(self, field)
        if value is None and field == "posterior" and self.halting_logits is not None:
            log_pmf = halting_distribution(self.halting_logits, "none").log_pmf
            return HaltingDistribution(log_pmf.masked_fill(log_pmf.isnan(), -torch.inf))
        if value is None:
            raise KeyError(f"{name}: the output has no {field}, because the model has no halting head")
        return value


# Names of the original PonderALBERT's outputs -> the fields here.
_ALIASES = {
    "halt_probabilities": "halting_probabilities",
    "model_halt_dist": "posterior",
    "target_halt_dist": "prior",
    "passes": "exit_steps",
}


@cache
def _log_new_name(name: str) -> None:
    """Log a warning with the new name of a renamed output field, once per process."""
    more = ", the exit step of every example, from 1" if name == "passes" else ""
    logger.warning("%s: use %s instead%s", name, _ALIASES[name], more)


def stepwise_output(steps: Steps, rule: ExitRule, tokens: Tensor | None) -> StepwiseOutput:
    """Build the model output from the predictions of all steps, without halting distribution and loss.

    Args:
        steps: Result of `run_steps`, one row per example.
        rule: Exit rule that was used in the steps.
        tokens: Number of real tokens of each example, (B,), or None for inputs without tokens.
    """
    probabilities, halting = None, None
    if steps.halting_logits is not None:
        probabilities = steps.halting_logits.sigmoid()
        ran = torch.arange(1, steps.deepest + 1, device=probabilities.device) <= steps.exit_steps.unsqueeze(1)
        halting = Halting(torch.where(ran, probabilities.detach()[:, : steps.deepest], 0.0))
    trace = DepthTrace(
        unit="sequence",
        updates=steps.exit_steps.float(),
        valid=torch.ones_like(steps.exit_steps, dtype=torch.bool),
        max_updates=steps.logits.shape[1],
        execution=Execution(
            len(steps.rows), tokens=tokens, width=steps.widths, rows=steps.rows, computed=steps.computed
        ),
        halting=halting,
    )
    return StepwiseOutput(
        logits=select_predictions(rule, steps.logits, steps.halting_logits, steps.exit_steps),
        step_logits=steps.logits,
        halting_logits=steps.halting_logits,
        halting_probabilities=probabilities,
        exit_steps=steps.exit_steps,
        trace=trace,
    )


def build_unit_fields(steps: Steps, rule: ExitRule, slots: Tensor, shape: tuple[int, int] | None) -> dict[str, Any]:
    """Build the output fields for K tokens or sequences from the predictions of all steps.

    Recorders of steps and early-exit evaluations need only these fields of a model.

    Args:
        steps: Result of `run_steps`, one row per unit.
        rule: Exit rule that was used in the steps.
        slots: Index b T + t of the token from which each unit is predicted, int64, (K,).
        shape: B and T if units are tokens, or None if they are whole sequences.

    Returns:
        `unit_slots`, `step_logits` (K, N, C), `halting_logits` (K, N), `exit_steps` (K,), and `logits` at the exit of
        each unit. These are (K, C), or (B, T, C) with NaN at tokens that are not units.
    """
    logits = select_predictions(rule, steps.logits, steps.halting_logits, steps.exit_steps)
    if shape is not None:
        table = logits.new_full((shape[0] * shape[1], logits.shape[1]), torch.nan)
        logits = table.index_copy_(0, slots, logits).view(*shape, -1)
    return {
        "logits": logits,
        "unit_slots": slots,
        "step_logits": steps.logits,
        "halting_logits": steps.halting_logits,
        "exit_steps": steps.exit_steps,
    }


# Every state, some of them by number (negative ones from the end), or none.
Choice = bool | int | Sequence[int]
_NAMES = ("hidden_states", "attentions")


def requested_states(config: PreTrainedConfig, options: Mapping[str, Any]) -> dict[str, Choice]:
    """Return which of `hidden_states` and `attentions` to output, by the call's options or the configuration."""
    requests = {name: options.get(f"output_{name}") for name in _NAMES}
    choices = {name: getattr(config, f"output_{name}") if value is None else value for name, value in requests.items()}
    return {name: value for name, value in choices.items() if value is not None and value is not False}


def choose_states(states: Sequence[Tensor], choice: Choice) -> tuple[Tensor | None, ...]:
    """Return the hidden states with the requested indices, and None in place of the others."""
    if choice is True:
        return tuple(states)
    indices = (choice,) if isinstance(choice, int) else choice
    numbers = {number % len(states) for number in indices if -len(states) <= number < len(states)}
    return tuple(state if number in numbers else None for number, state in enumerate(states))


# ---- Multiply-accumulates


class StepMacs(NamedTuple):
    """Multiply-accumulates of the steps of a stack of layers, float64.

    Attributes:
        token: Those of a token until every step, from 0 steps on, pairs of attention excepted, (N + 1,).
        pair: Those of a pair of query and key until every step, from 0 steps on, (N + 1,).
        stored: Those of a token that gets only keys and values in a step, (N,).
    """

    token: Tensor
    pair: Tensor
    stored: Tensor


def price_steps(trace: DepthTrace, macs: StepMacs, *, is_causal: bool = True) -> Work:
    """Return the multiply-accumulates of a traced batch, without predictions.

    If the trace counts the queries, keys and pairs of every step, these are executed, else all tokens in all steps that
    ran. A token sees half of the new tokens if attention is causal, else all, and all tokens in the cache.

    Args:
        trace: Depth trace of tokens or sequences with its execution.
        macs: Costs of the steps, at least as many as a unit may run.
        is_causal: Whether tokens see only those before them.
    """
    ran, updates = trace.executed, trace.updates
    device, by_token = updates.device, updates.dim() == 2
    lengths = (trace.valid.sum(dim=1) if ran.tokens is None else ran.tokens).double()
    width = ran.width if ran.width is not None else updates.shape[1] if by_token else lengths.max()
    width = torch.as_tensor(width, dtype=torch.float64, device=device).max()
    token, pair, stored = (values.to(device) for values in macs)

    def compute_macs(steps: Tensor, length: Tensor) -> Tensor:  # of a token of a text of this length
        seen = ran.memory_length + ((length + 1) / 2 if is_causal else length)
        index = steps.long()  # `take` does not read it, as an index of no dimension would be
        return token.take(index) + pair.take(index) * seen

    everything = len(updates) * width
    if ran.computed is None:
        executed = everything * compute_macs(torch.as_tensor(ran.steps, device=device), width)
    else:
        queries, keys, pairs = (counts.to(token) for counts in ran.computed)
        count = len(queries)
        steps = queries * token.diff()[:count] + pairs * pair.diff()[:count] + (keys - queries) * stored[:count]
        executed = everything * compute_macs(torch.zeros((), device=device), width) + steps.sum()
    units, length = trace.valid.double(), lengths
    if by_token:
        length = length.unsqueeze(1)
    else:
        units = units * lengths
    most = torch.full_like(updates, trace.max_updates)
    return Work(
        executed=executed,
        dense=everything * compute_macs(updates.max(), width),
        adaptive=(units * compute_macs(updates, length)).sum(),
        full=(units * compute_macs(most, length)).sum(),
    )
