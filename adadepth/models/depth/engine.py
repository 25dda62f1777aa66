"""Loop over the steps of models that predict after every step, in which finished rows leave the batch by an exit rule.

A forward pass calls three parts. `resolve_exit_rule` and `runs_all` decide the exit rule and whether exits save steps.
`run_steps` runs the steps of a `Stepper`, the interface to the model, and collects the predictions of all steps, or
those at the exits. The functions of `outputs.py` build the output. Rows are the units that exit: sequences, vectors, or
tokens. In a model that refills slots, rows may wait. `places` rows run at a time, and the next one enters when one
exits. The time is then proportional to the mean number of steps, not to the maximum.

Shape legend: B batch, A rows that still run, N steps, I iterations of the loop (at most N if no row waits), C classes,
D width of states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from adadepth.halting.exit_decisions import decide_exits, start_memory
from adadepth.halting.exit_rules import LOGITS, ExitRule, StepView, apply_rule, check_rule, parse_rule
from adadepth.halting.trace import ComputedSteps
from adadepth.models.contract import DepthKnob, DepthModel
from adadepth.models.depth.outputs import Steps
from adadepth.models.shared.losses import count_head_classes, takes_one_class


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


class Signals(NamedTuple):
    """Outputs of a step for the rows that still run, which exit rules read.

    Attributes:
        logits: Predictions, (A, C), or the states from which a `ReadingRule` predicts, (A, D). None: nothing reads
            them, unless a row exits; see `LazyStepper`.
        halting_logits: Halting logits, (A,), or None.
        moves: Movement of the states, (A, 2), or None; see `adadepth.halting.exit_rules.state_moves`.
    """

    logits: Tensor | None
    halting_logits: Tensor | None = None
    moves: Tensor | None = None


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

    def advance(self) -> tuple[Tensor | None, ...]:
        """Run one step, and return the logits, (A, C), the halting logits, (A,) or None, and more; see `Signals`."""
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


@runtime_checkable
class LazyStepper(Stepper, Protocol):
    """Stepper that may return no logits after a step, and makes them if rows exit there."""

    def read(self) -> Tensor:
        """Return the logits of the rows that ran the last step, (A, C)."""
        ...


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

    @torch.no_grad()
    def decide(self, rule: ExitRule, signals: Signals, max_updates: int) -> Tensor:
        """Apply an exit rule after a step: return which rows exit, boolean (A,), and update the rule's memory."""
        if self.step == max_updates:
            return torch.ones_like(self.rows, dtype=torch.bool)
        exits, self.memory = decide_exits(rule, StepView(self.step, max_updates, *signals), self.memory)
        return exits

    def keep(self, positions: Tensor) -> None:
        """Remove all rows except those at the given positions, int64 (A',)."""
        self.rows, self.memory = self.rows[positions], self.memory[positions]


def drop_exited_rows(rule: ExitRule, running: Sequence[Cohort], signals: Signals, max_updates: int) -> Tensor:
    """Remove the rows that exit after this step, and return the positions of the remaining rows, int64 (A',).

    The positions are on the CPU, so that steppers need not read them from the device.

    Args:
        rule: Exit rule.
        running: Cohorts that have just run a step.
        signals: Signals of the rows, in the order of the cohorts.
        max_updates: Number N of steps.
    """
    sizes = [len(cohort) for cohort in running]
    parts = [[None] * len(sizes) if values is None else _split_by_cohort(values, sizes) for values in signals]
    exits = [
        cohort.decide(rule, Signals(*part), max_updates)
        for cohort, part in zip(running, zip(*parts, strict=True), strict=True)
    ]
    if all(cohort.step == max_updates for cohort in running):
        stays = torch.zeros(sum(sizes), dtype=torch.bool)
    else:  # one synchronisation for all cohorts: the shape of the next step depends on it
        stays = torch.cat(exits).logical_not().cpu()
    staying = stays.nonzero().squeeze(1)
    if len(staying) < len(stays):
        for cohort, part in zip(running, _split_by_cohort(stays, sizes), strict=True):
            cohort.keep(part.nonzero().squeeze(1).to(cohort.rows.device, non_blocking=True))
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
        exits_only: Whether only the logits at the exit of each row are stored and returned, (B, C), in their own dtype,
            because those of all steps would take too much memory. There are then no halting logits.

    Raises:
        ValueError: If `places` is less than 1, or if both `places` and `run_all` are set.
    """
    if places is not None and (run_all or places < 1):
        reason = "needs early exits, but the loss runs every step of all rows" if run_all else "must be at least 1"
        raise ValueError(f"places={places}: {reason}")
    if run_all:
        return _run_all(stepper, rule, max_updates, generator)
    rows = torch.arange(stepper.rows, device=stepper.device)
    waiting = Cohort(rows, start_memory(rule, stepper.rows, stepper.device, generator))
    begun, waiting = waiting.split(stepper.rows if places is None else places)
    running, results, at_exit = [begun], [], None
    while running:
        width, computed, size = stepper.width, stepper.computed, sum(map(len, running))
        signals = Signals(*stepper.advance())
        signals = signals if exits_only else _convert_to_float32(signals)
        for cohort in running:
            cohort.step += 1
        taken = [(cohort.rows, cohort.step) for cohort in running]
        staying = drop_exited_rows(rule, running, signals, max_updates)
        exited = size - len(staying)
        if exits_only:
            results.append(_Result(taken, size, width, computed))
            logits = signals.logits
            if logits is None and (exited or not size):
                assert isinstance(stepper, LazyStepper), "it returned no logits"
                logits = stepper.read()
            if logits is not None:
                table = logits.new_zeros(stepper.rows, *logits.shape[1:]) if at_exit is None else at_exit
                at_exit = table.index_copy(0, torch.cat([numbers for numbers, _ in taken]), logits)
        else:
            results.append(_Result(taken, size, width, computed, signals.logits, signals.halting_logits))
        running = [cohort for cohort in running if len(cohort)]
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
    every = [_convert_to_float32(stepper.advance()) for _ in range(max_updates)]
    logits = torch.stack([_unwrap(signals.logits) for signals in every], dim=1)
    halting = [signals.halting_logits for signals in every if signals.halting_logits is not None]
    halting_logits = torch.stack(halting, dim=1) if halting else None
    with torch.no_grad():
        exit_steps = apply_rule(rule, logits, halting_logits, generator)
    constant = torch.ones(max_updates, dtype=torch.int64)
    computed = None if stepper.computed is None else _repeat_counts(*stepper.computed, constant)
    sizes = stepper.rows * constant, stepper.width * constant
    return Steps(logits, halting_logits, exit_steps, *sizes, max_updates, computed)


def _unwrap(logits: Tensor | None) -> Tensor:
    assert logits is not None, "a stepper without logits cannot run all steps for a loss"
    return logits


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


def _convert_to_float32(signals: Iterable[Tensor | None]) -> Signals:
    return Signals(*(None if values is None else values.float() for values in signals))


# ---- Predictions over a vocabulary

ROWS = 1024  # predictions that are made at once for a rule


@dataclass(frozen=True)
class ReadingRule(ExitRule):
    """Exit rule that gets states, (A, D), instead of predictions, and predicts for a part of the rows at a time.

    Attributes:
        rule: Rule that decides.
        read: Function from the number of a step, counted from 1, and states, (k, D), to predictions, (k, C).
        started: Number of units for which the rule draws its memory, those included that do not run, such as padding,
            and the indices of the rows among them. None: it draws for the rows.
    """

    name = "reading"
    needs = frozenset({LOGITS})
    rule: ExitRule
    read: Callable[[int, Tensor], Tensor]
    started: tuple[int, Tensor] | None = None

    def start(self, rows: int, device: torch.device | str, generator: torch.Generator | None = None) -> Tensor:
        """Return the memory of the rule."""
        if self.started is None:
            return start_memory(self.rule, rows, device, generator)
        units, indices = self.started
        return start_memory(self.rule, units, device, generator)[indices]

    @torch.no_grad()
    def decide(self, view: StepView, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return the decisions of the rule."""
        if LOGITS not in self.rule.reads:
            return decide_exits(self.rule, view, memory)
        assert view.logits is not None
        parts = [None if values is None else values.split(ROWS) for values in (view.halting_logits, view.moves)]
        decisions = []
        for number, (states, part) in enumerate(zip(view.logits.split(ROWS), memory.split(ROWS), strict=True)):
            halting, moves = (None if values is None else values[number] for values in parts)
            logits = self.read(view.step, states).float()
            part_view = StepView(view.step, view.max_updates, logits, halting, moves)
            decisions.append(decide_exits(self.rule, part_view, part))
        exits, memories = zip(*decisions, strict=True)
        return torch.cat(exits), torch.cat(memories)


def fill_table(values: Tensor, slots: Tensor, shape: Sequence[int]) -> Tensor:
    """Return a table (B, T, ...) of the values (K, ...) of tokens at the indices b T + t, (K,), and 0 elsewhere."""
    table = values.new_zeros(shape[0] * shape[1], *values.shape[1:])
    return table.index_copy(0, slots, values).unflatten(0, tuple(shape))
