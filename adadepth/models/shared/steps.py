"""Loop over the steps of models that predict after every step, in which finished rows leave the batch by an exit rule.

A forward pass calls three parts. `resolve_exit_rule` and `runs_all` decide the exit rule and whether exits save steps.
`run_steps` runs the steps of a `Stepper`, the interface to the model. `stepwise_output` (sequences) or
`build_unit_fields` (tokens) builds the output. Rows are the units that exit: sequences, vectors, or tokens. In a model
that refills slots, rows may wait. `places` rows run at a time, and the next one enters when one exits. The time is then
proportional to the mean number of steps, not to the maximum.

Shape legend: B batch, A rows that still run, N steps, I iterations of the loop (at most N if no row waits), C classes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.utils import ModelOutput

from adadepth.halting.distribution import HaltingDistribution, halting_distribution
from adadepth.halting.exit_rules import ExitRule, StepView, apply_rule, check_rule, parse_rule, select_predictions
from adadepth.halting.trace import ComputedSteps, DepthTrace, Execution, Halting
from adadepth.models.contract import DepthKnob, DepthModel
from adadepth.models.shared.losses import count_head_classes, takes_one_class

logger = logging.getLogger(__name__)


def resolve_exit_rule(model: DepthModel, choice: str | ExitRule | None) -> ExitRule:
    """Parse the exit rule of a forward pass, by default the configured one, and check that the model supports it.

    Args:
        model: Model with its exit signals and maximum number of steps.
        choice: Rule or its name, or None for that of the configuration.

    Raises:
        ConfigError: If there is no such rule, or it needs signals that the model does not provide.
    """
    config = model.config
    choice = config.parsed_exit_rule if choice is None else choice
    rule = parse_rule(choice) if isinstance(choice, str) else choice
    check_rule(
        rule,
        model.exit_signals,
        count_head_classes(config),
        model.max_updates,
        config.model_type,
        one_class=takes_one_class(config),
    )
    return rule


class ExitRuleKnob(DepthKnob):
    """Mixin for models whose depth is adjusted by the threshold of their exit rule.

    The exit rule is that of the configuration if that rule has a threshold, else `level_rule`.
    """

    @property
    def level_rule(self) -> str:
        """Exit rule whose threshold is adjusted if the configured rule has none.

        Its own threshold does not matter.
        """
        raise NotImplementedError

    @property
    def depth_knob(self) -> str:
        """Name of the exit rule whose threshold is adjusted, for tables."""
        return f"exit_rule {self._set_rule_level(0.5).name}"

    def set_depth_level(self, level: float) -> None:
        """Set the threshold of the exit rule by a level in (0, 1); see `ExitRule.with_level`."""
        self.config.exit_rule = self._set_rule_level(level).label

    def _set_rule_level(self, level: float) -> ExitRule:
        configured = self.config.parsed_exit_rule
        rule = None if configured is None else configured.with_level(level)
        rule = parse_rule(self.level_rule).with_level(level) if rule is None else rule
        assert rule is not None, "level_rule has a threshold"
        return rule


def runs_all(run_all_steps: bool | None, labels: Tensor | None, *, training: bool, shows: bool = False) -> bool:
    """Return whether all rows run all steps, including those after their exit, as losses require.

    The loss needs every step, and so do states and attentions of the whole batch. By default, rows run all steps in
    training, if there are labels, if states or attentions are requested, and in an exported program, because its shapes
    are fixed.

    Raises:
        ValueError: If `run_all_steps` is False, but there are labels or states or attentions are requested.
    """
    if run_all_steps is False and (labels is not None or shows):
        reason = "labels: the loss needs" if labels is not None else "hidden states or attentions: they need"
        raise ValueError(f"run_all_steps=False with {reason} every step")
    if run_all_steps is not None:
        return run_all_steps
    return training or labels is not None or shows or torch.compiler.is_exporting()


class Stepper(Protocol):
    """Interface of models for the loop over steps: it holds the running rows of a batch and advances them by one step.

    Attributes:
        rows: Number B of rows at the start.
        device: Device of the rows.
    """

    rows: int
    device: torch.device

    @property
    def width(self) -> int:
        """Padded length of the rows, or 1 for inputs without tokens."""
        ...

    @property
    def computed(self) -> tuple[int, int, Tensor | int] | None:
        """Number of queries, keys and query-key pairs of the next step, or None for inputs without tokens."""
        ...

    def advance(self) -> tuple[Tensor, Tensor | None]:
        """Run one step, and return the logits, (A, C), and the halting logits, (A,) or None."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Remove all rows from the batch except those at the given positions, int64 (A',), on the CPU."""
        ...


@runtime_checkable
class RefillingStepper(Stepper, Protocol):
    """Stepper that starts with a part of a batch, and adds waiting rows when others exit.

    `keep` may drop all of its rows.
    """

    def admit(self, rows: Tensor) -> None:
        """Add the rows of the batch with the given indices, int64 (A',), to the running rows."""
        ...


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
class Cohort:
    """Rows of a batch that started together and are therefore at the same step.

    Attributes:
        rows: Indices of the rows, int64, (A,).
        memory: State of the exit rule for each row, (A, k).
        step: Number of completed steps.
    """

    rows: Tensor
    memory: Tensor
    step: int = 0

    def __len__(self) -> int:
        return len(self.rows)

    def split(self, rows: int) -> tuple[Cohort, Cohort]:
        """Split the rows into the first `rows` and the rest."""
        head = Cohort(self.rows[:rows], self.memory[:rows], self.step)
        return head, Cohort(self.rows[rows:], self.memory[rows:], self.step)

    def decide(self, rule: ExitRule, logits: Tensor, halting_logits: Tensor | None, max_updates: int) -> Tensor:
        """Apply an exit rule after a step: return which rows exit, boolean (A,), and update the rule's memory."""
        if self.step == max_updates:
            return torch.ones_like(self.rows, dtype=torch.bool)
        exits, self.memory = rule.decide(StepView(self.step, max_updates, logits, halting_logits), self.memory)
        return exits

    def keep(self, positions: Tensor) -> None:
        """Remove all rows except those at the given positions, int64 (A',)."""
        self.rows, self.memory = self.rows[positions], self.memory[positions]


def drop_exited_rows(
    rule: ExitRule, running: Sequence[Cohort], logits: Tensor, halting_logits: Tensor | None, max_updates: int
) -> Tensor:
    """Remove the rows that exit after this step, and return the positions of the remaining rows, int64 (A',).

    The positions are on the CPU, so that steppers need not read them from the device.

    Args:
        rule: Exit rule.
        running: Cohorts that have just run a step.
        logits: Logits of the rows, in the order of the cohorts, (A, C).
        halting_logits: Halting logits of the rows, (A,), or None.
        max_updates: Number N of steps.
    """
    sizes = [len(cohort) for cohort in running]
    halting = [None] * len(sizes) if halting_logits is None else _split_by_cohort(halting_logits, sizes)
    exits = [
        cohort.decide(rule, own_logits, own_halting, max_updates)
        for cohort, own_logits, own_halting in zip(running, _split_by_cohort(logits, sizes), halting, strict=True)
    ]
    if all(cohort.step == max_updates for cohort in running):
        stays = torch.zeros(sum(sizes), dtype=torch.bool)
    else:  # one synchronisation for all cohorts: the shape of the next step depends on it
        stays = torch.cat(exits).logical_not().cpu()
    staying = stays.nonzero().squeeze(1)
    if len(staying) < len(stays):
        for cohort, part in zip(running, _split_by_cohort(stays, sizes), strict=True):
            cohort.keep(part.nonzero().squeeze(1).to(logits.device, non_blocking=True))
    return staying


def _split_by_cohort(values: Tensor, sizes: list[int]) -> Sequence[Tensor]:
    """Split the values of all running rows by cohort."""
    return values.split(sizes) if len(sizes) > 1 else [values]


def run_steps(
    stepper: Stepper,
    rule: ExitRule,
    *,
    max_updates: int,
    run_all: bool,
    generator: torch.Generator | None = None,
    places: int | None = None,
    exits_only: bool = False,
) -> Steps:
    """Run a model step by step until an exit rule has stopped every row, at most `max_updates` steps.

    Args:
        stepper: Stepper of the model with the rows of the batch.
        rule: Exit rule. It is applied to every row after each step of that row. Remaining rows exit at the last step.
        max_updates: Number N of steps.
        run_all: Whether all rows run all steps, as the loss requires. The rule is then applied afterwards, with the
            same exits.
        generator: Random generator for stochastic rules.
        places: Number of rows that run at a time, or None for all rows. If it is a number, `stepper` must be a
            `RefillingStepper` that has started this number of rows.
        exits_only: Whether only the logits at the exit of each row are stored and returned, (B, C), because those of
            all steps would take too much memory. There are then no halting logits.

    Raises:
        ValueError: If `places` is less than 1, or if both `places` and `run_all` are set.
    """
    if places is not None and (run_all or places < 1):
        reason = "needs early exits, but the loss runs every step of all rows" if run_all else "must be at least 1"
        raise ValueError(f"places={places}: {reason}")
    if run_all:
        return _run_all(stepper, rule, max_updates, generator)
    rows = torch.arange(stepper.rows, device=stepper.device)
    waiting = Cohort(rows, rule.start(stepper.rows, stepper.device, generator))
    begun, waiting = waiting.split(stepper.rows if places is None else places)
    running, results, at_exit = [begun], [], None
    while running:
        width, computed, size = stepper.width, stepper.computed, sum(map(len, running))
        logits, halting_logits = _convert_to_float32(stepper.advance())
        for cohort in running:
            cohort.step += 1
        taken = [(cohort.rows, cohort.step) for cohort in running]
        if exits_only:
            table = logits.new_zeros(stepper.rows, *logits.shape[1:]) if at_exit is None else at_exit
            at_exit = table.index_copy(0, torch.cat([numbers for numbers, _ in taken]), logits)
            results.append(_Result(taken, size, width, computed))
        else:
            results.append(_Result(taken, size, width, computed, logits, halting_logits))
        staying = drop_exited_rows(rule, running, logits, halting_logits, max_updates)
        running = [cohort for cohort in running if len(cohort)]
        exited = size - len(staying)
        if exited and (running or len(waiting)):
            stepper.keep(staying)
        if exited and len(waiting):
            assert isinstance(stepper, RefillingStepper), "it started with some of the rows only"
            admitted, waiting = waiting.split(exited)
            stepper.admit(admitted.rows)
            running.append(admitted)
    return _write_back(results, at_exit, stepper.rows, max_updates)


class _Result(NamedTuple):
    """Rows that ran in one iteration of the loop over steps, and their predictions if those of all steps are stored."""

    taken: list[tuple[Tensor, int]]
    rows: int
    width: int
    computed: tuple[int, int, Tensor | int] | None
    logits: Tensor | None = None
    halting_logits: Tensor | None = None


def _run_all(stepper: Stepper, rule: ExitRule, max_updates: int, generator: torch.Generator | None) -> Steps:
    pairs = [_convert_to_float32(stepper.advance()) for _ in range(max_updates)]
    logits = torch.stack([pair[0] for pair in pairs], dim=1)
    halting = [pair[1] for pair in pairs if pair[1] is not None]
    halting_logits = torch.stack(halting, dim=1) if halting else None
    with torch.no_grad():
        exit_steps = apply_rule(rule, logits, halting_logits, generator)
    constant = torch.ones(max_updates, dtype=torch.int64)
    computed = None if stepper.computed is None else _repeat_counts(*stepper.computed, constant)
    sizes = stepper.rows * constant, stepper.width * constant
    return Steps(logits, halting_logits, exit_steps, *sizes, max_updates, computed)


def _repeat_counts(queries: int, keys: int, pairs: Tensor | int, constant: Tensor) -> ComputedSteps:
    """Repeat the computation counts of one step for N steps, without reading the value of a tensor.

    An exported program would contain such a value as a constant.
    """
    every = pairs.expand(len(constant)) if isinstance(pairs, Tensor) else pairs * constant
    return ComputedSteps(queries * constant, keys * constant, every)


def _write_back(results: list[_Result], at_exit: Tensor | None, batch: int, max_updates: int) -> Steps:
    """Collect the predictions of all iterations into tables with one row per example and one column per step.

    If only the predictions at the exits are stored, they are the result.
    """
    taken = [cohort for result in results for cohort in result.taken]
    rows = torch.cat([numbers for numbers, _ in taken])
    exit_steps = torch.zeros(batch, dtype=torch.int64, device=rows.device)
    exit_steps.index_add_(0, rows, torch.ones_like(rows))  # a row exits at its last step
    logits, halting_logits = at_exit, None
    if logits is None:
        steps = torch.cat([torch.full_like(numbers, step) for numbers, step in taken])
        halting = [result.halting_logits for result in results if result.halting_logits is not None]
        shape = (batch, max_updates)
        logits = _fill_table([result.logits for result in results if result.logits is not None], rows, steps, shape)
        halting_logits = _fill_table(halting, rows, steps, shape) if halting else None
    counts = torch.tensor([[result.rows, result.width] for result in results])
    computed = [result.computed for result in results if result.computed is not None]
    of_tokens = ComputedSteps.from_counts(computed) if computed else None
    deepest = max(step for _, step in taken)
    return Steps(logits, halting_logits, exit_steps, counts[:, 0], counts[:, 1], deepest, of_tokens)


def _fill_table(values: list[Tensor], rows: Tensor, steps: Tensor, shape: tuple[int, int]) -> Tensor:
    """Build a table, (B, N, ...), from the values of all iterations, with NaN where a row did not run."""
    table = values[0].new_full((*shape, *values[0].shape[1:]), torch.nan)
    return table.index_put_((rows, steps - 1), torch.cat(values))


def _convert_to_float32(pair: tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor | None]:
    logits, halting_logits = pair
    return logits.float(), None if halting_logits is None else halting_logits.float()


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
