"""Models that predict after every step: the loop in which finished rows leave the batch, and what comes back.

A forward pass asks three things here: `rule_of` and `runs_all` say who exits when and whether that saves steps,
`run_steps` takes the steps, and `stepwise_output` (sequences) or `unit_fields` (tokens) lays out what they gave. The
model's side is a `Stepper`. Rows are whatever exits: sequences, vectors, or tokens. Of a model that refills, rows may
wait: as many as there are `places` run, and who exits makes room for the next one, so that time follows the mean number
of steps and not the deepest rows. Shape legend: B batch, A rows that still run, N steps, I iterations of the loop, of
which there are at most N where no row waits, C classes.
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

from adadepth.families.contract import DepthKnob, DepthModel
from adadepth.families.shared.losses import label_count, takes_one_class
from adadepth.halting.distribution import HaltingDistribution
from adadepth.halting.exit_rules import ExitRule, StepView, apply_rule, check_rule, parse_rule, predictions_at
from adadepth.halting.trace import ComputedSteps, DepthTrace, Execution, Halting

logger = logging.getLogger(__name__)


def rule_of(model: DepthModel, given: str | ExitRule | None) -> ExitRule:
    """The exit rule of a call, or where it names none the configuration's `exit_rule`.

    Args:
        model: Says which rules it knows, and the most steps.
        given: A rule or its name.

    Raises:
        ConfigError: If there is no such rule, or it needs more than the signals of the model.
    """
    config = model.config
    given = config.exit_rule if given is None else given
    rule = parse_rule(given) if isinstance(given, str) else given
    check_rule(
        rule,
        model.exit_signals,
        label_count(config),
        model.max_updates,
        config.model_type,
        one_class=takes_one_class(config),
    )
    return rule


class ExitRuleKnob(DepthKnob):
    """A model whose depth is set by the threshold of its exit rule, whatever rule that is.

    It is the rule of the configuration where that has a threshold, else the one that `level_rule` names.
    """

    @property
    def level_rule(self) -> str:
        """The rule that is fitted where the configuration's has no threshold, with any threshold."""
        raise NotImplementedError

    @property
    def depth_knob(self) -> str:
        """The rule's name."""
        return f"exit_rule {self._at_level(0.5).name}"

    def set_depth_level(self, level: float) -> None:
        """Exit under the threshold of a level in (0, 1); see `ExitRule.at_level`."""
        self.config.exit_rule = self._at_level(level).label

    def _at_level(self, level: float) -> ExitRule:
        given = self.config.exit_rule
        found = None if given is None else parse_rule(given).at_level(level)
        found = parse_rule(self.level_rule).at_level(level) if found is None else found
        assert found is not None, "it has a threshold"
        return found


def runs_all(run_all_steps: bool | None, labels: Tensor | None, *, training: bool, shows: bool = False) -> bool:
    """Whether rows go on after their exit, which changes neither exit steps nor predictions.

    The loss needs every step, and so do states and attentions of the whole batch after every step; so where a call does
    not say: in training, with labels, where states or attentions are asked for, and in an exported program, whose
    shapes are fixed before anybody exits.

    Raises:
        ValueError: If a call gives labels, or asks for states or attentions, and forbids it.
    """
    if run_all_steps is False and (labels is not None or shows):
        reason = "labels: the loss needs" if labels is not None else "hidden states or attentions: they need"
        raise ValueError(f"run_all_steps=False with {reason} every step")
    if run_all_steps is not None:
        return run_all_steps
    return training or labels is not None or shows or torch.compiler.is_exporting()


class Stepper(Protocol):
    """The running rows of a batch in the middle of their steps.

    Attributes:
        rows: B, how many there are at the start.
        device: Where they are.
    """

    rows: int
    device: torch.device

    @property
    def width(self) -> int:
        """Padded length of the rows; 1 for inputs without tokens."""
        ...

    @property
    def computed(self) -> tuple[int, int, Tensor | int] | None:
        """Queries, keys and pairs of them that the next step computes, for inputs with tokens."""
        ...

    def advance(self) -> tuple[Tensor, Tensor | None]:
        """Take one step: its logits (A, C), and its halting logits (A,) or None."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Go on with these of the running rows only: int64 positions (A',)."""
        ...


@runtime_checkable
class RefillingStepper(Stepper, Protocol):
    """One that can begin with the first rows of a call only, and take in others later; `keep` may leave it none."""

    def admit(self, rows: Tensor) -> None:
        """Begin these rows of the call, behind those that run: int64 (A',)."""
        ...


class Steps(NamedTuple):
    """What the loop leaves: logits (B, N, C) and halting logits (B, N), exit steps (B,), rows and widths computed (I,).

    Logits are float32 and NaN where a row did not run; where an answer has L cells they are (B, N, L, C). The next
    three are int64, and the last two of them live on the CPU. `deepest` is the most steps that a row took. `computed`
    counts the tokens of every iteration.
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
    """Rows at the same step: those that began together stay together until they exit, and are asked for by themselves.

    Attributes:
        rows: Their numbers, int64, (A,).
        memory: What the exit rule remembers of each, (A, k).
        step: The last one that they took; 0 before the first.
    """

    rows: Tensor
    memory: Tensor
    step: int = 0

    def __len__(self) -> int:
        return len(self.rows)

    def split(self, rows: int) -> tuple[Cohort, Cohort]:
        """The first so many rows, and the others."""
        first, others = slice(rows), slice(rows, None)
        return (
            Cohort(self.rows[first], self.memory[first], self.step),
            Cohort(self.rows[others], self.memory[others], self.step),
        )

    def decide(self, rule: ExitRule, logits: Tensor, halting_logits: Tensor | None, max_updates: int) -> Tensor:
        """Ask the rule who exits after the last step, boolean (A,), and remember what it says; in the end everybody."""
        if self.step == max_updates:
            return torch.ones_like(self.rows, dtype=torch.bool)
        exits, self.memory = rule.decide(StepView(self.step, max_updates, logits, halting_logits), self.memory)
        return exits

    def keep(self, positions: Tensor) -> None:
        """Go on with these of the rows only, int64 (A',)."""
        self.rows, self.memory = self.rows[positions], self.memory[positions]


def let_exit(
    rule: ExitRule, running: Sequence[Cohort], logits: Tensor, halting_logits: Tensor | None, max_updates: int
) -> Tensor:
    """Take out of the cohorts who exits; returns the positions of the others among the rows that ran, int64 (A',).

    Args:
        rule: Decides.
        running: Those that took the step.
        logits: Of the first cohort's rows, then of the next one's, (A, C).
        halting_logits: Likewise, (A,).
        max_updates: N.
    """
    sizes = [len(cohort) for cohort in running]
    halting = [None] * len(sizes) if halting_logits is None else _apart(halting_logits, sizes)
    exits = [
        cohort.decide(rule, own_logits, own_halting, max_updates)
        for cohort, own_logits, own_halting in zip(running, _apart(logits, sizes), halting, strict=True)
    ]
    # Waits for the device, once for all cohorts: the next step's shape depends on it.
    stays = torch.cat(exits).logical_not().cpu()
    staying = stays.nonzero().squeeze(1)
    if len(staying) < len(stays):
        for cohort, part in zip(running, _apart(stays, sizes), strict=True):
            cohort.keep(part.nonzero().squeeze(1).to(logits.device))
    return staying.to(logits.device)


def _apart(values: Tensor, sizes: list[int]) -> Sequence[Tensor]:
    """What belongs to each cohort; mostly there is one."""
    return values.split(sizes) if len(sizes) > 1 else [values]


def run_steps(
    stepper: Stepper,
    rule: ExitRule,
    *,
    max_updates: int,
    run_all: bool,
    generator: torch.Generator | None = None,
    places: int | None = None,
) -> Steps:
    """Step until the rule has let every row out, at most `max_updates` times each.

    Args:
        stepper: The model's side.
        rule: Decides who exits; whoever is left exits at the last step. It sees every row at the row's own step.
        max_updates: N.
        run_all: Run all rows through all steps, and let the rule decide afterwards on what they gave: the loss needs
            every step. The decisions are those of the other way.
        generator: For rules that draw.
        places: How many rows run at a time, of a `RefillingStepper` that has begun the first so many; None: all.

    Raises:
        ValueError: If `places` are less than 1, or given with `run_all`.
    """
    if places is not None and (run_all or places < 1):
        reason = "no row waits where all run every step, as losses need" if run_all else "must be at least 1"
        raise ValueError(f"places={places}: {reason}")
    if run_all:
        return _run_all(stepper, rule, max_updates, generator)
    everybody = torch.arange(stepper.rows, device=stepper.device)
    waiting = Cohort(everybody, rule.start(stepper.rows, stepper.device, generator))
    begun, waiting = waiting.split(stepper.rows if places is None else places)
    running, results = [begun], []
    while running:
        width, computed, size = stepper.width, stepper.computed, sum(map(len, running))
        logits, halting_logits = _float32(stepper.advance())
        for cohort in running:
            cohort.step += 1
        taken = [(cohort.rows, cohort.step) for cohort in running]
        results.append(_Result(taken, width, computed, logits, halting_logits))
        staying = let_exit(rule, running, logits, halting_logits, max_updates)
        running = [cohort for cohort in running if len(cohort)]
        exited = size - len(staying)
        if exited and (running or len(waiting)):
            stepper.keep(staying)
        if exited and len(waiting):
            assert isinstance(stepper, RefillingStepper), "it began with a part of the rows"
            admitted, waiting = waiting.split(exited)
            stepper.admit(admitted.rows)
            running.append(admitted)
    return _write_back(results, stepper.rows, max_updates)


class _Result(NamedTuple):
    """What one iteration gave: of each cohort the rows and the step they took, and of all of them the logits."""

    taken: list[tuple[Tensor, int]]
    width: int
    computed: tuple[int, int, Tensor | int] | None
    logits: Tensor
    halting_logits: Tensor | None


def _run_all(stepper: Stepper, rule: ExitRule, max_updates: int, generator: torch.Generator | None) -> Steps:
    pairs = [_float32(stepper.advance()) for _ in range(max_updates)]
    logits = torch.stack([pair[0] for pair in pairs], dim=1)
    halting = [pair[1] for pair in pairs if pair[1] is not None]
    halting_logits = torch.stack(halting, dim=1) if halting else None
    with torch.no_grad():
        exit_steps = apply_rule(rule, logits, halting_logits, generator)
    constant = torch.ones(max_updates, dtype=torch.int64)
    computed = None if stepper.computed is None else _every_step(*stepper.computed, constant)
    sizes = stepper.rows * constant, stepper.width * constant
    return Steps(logits, halting_logits, exit_steps, *sizes, max_updates, computed)


def _every_step(queries: int, keys: int, pairs: Tensor | int, constant: Tensor) -> ComputedSteps:
    """The same counts for each of N steps; no number is read, which would fix it in an exported program."""
    every = pairs.expand(len(constant)) if isinstance(pairs, Tensor) else pairs * constant
    return ComputedSteps(queries * constant, keys * constant, every)


def _write_back(results: list[_Result], batch: int, max_updates: int) -> Steps:
    """Put every result where its row came from, at the row's own step."""
    taken = [cohort for result in results for cohort in result.taken]
    rows = torch.cat([numbers for numbers, _ in taken])
    steps = torch.cat([torch.full_like(numbers, step) for numbers, step in taken])
    logits = _table([result.logits for result in results], rows, steps, (batch, max_updates))
    halting = [result.halting_logits for result in results if result.halting_logits is not None]
    halting_logits = _table(halting, rows, steps, (batch, max_updates)) if halting else None
    exit_steps = torch.bincount(rows, minlength=batch)  # a row exits at the last step that it took
    counts = torch.tensor([[len(result.logits), result.width] for result in results])
    computed = [result.computed for result in results if result.computed is not None]
    of_tokens = ComputedSteps.of(computed) if computed else None
    deepest = max(step for _, step in taken)
    return Steps(logits, halting_logits, exit_steps, counts[:, 0], counts[:, 1], deepest, of_tokens)


def _table(values: list[Tensor], rows: Tensor, steps: Tensor, shape: tuple[int, int]) -> Tensor:
    """(B, N, ...) from what the iterations gave; NaN where a row did not run."""
    table = values[0].new_full((*shape, *values[0].shape[1:]), torch.nan)
    return table.index_put_((rows, steps - 1), torch.cat(values))


def _float32(pair: tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor | None]:
    logits, halting_logits = pair
    return logits.float(), None if halting_logits is None else halting_logits.float()


@dataclass
class StepwiseOutput(ModelOutput):
    """Predictions after every step. Everything is float32; NaN stands at steps that an example did not run.

    Attributes:
        loss: Sum of `loss_parts`, when labels are given.
        loss_parts: Weighted and normalised parts by name.
        logits: (B, C), at each example's own exit step; the logarithm of the mixture (the mixed value in regression)
            under a rule that mixes the steps.
        step_logits: (B, N, C).
        halting_logits: z_n, (B, N); None where the model has no halting head.
        halting_probabilities: lambda_n = sigmoid(z_n), (B, N): the probability of halting at step n, given that it was
            reached.
        exit_steps: First step is 1, int64, (B,).
        posterior: The halting distribution p of every example; only when all steps ran.
        prior: The distribution that the loss draws p towards; with `posterior`.
        trace: The depth of every sequence: `updates` is `exit_steps`, and probabilities are 0 after it.
        hidden_states: The states before the first and after every step, N + 1 tensors (B, T, H), on request, for which
            no example leaves the batch: those beyond an example's own exit are what it would have become.
        attentions: Attention weights of every step, N tensors (B, heads, T, T), likewise (eager attention).
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
        """Return a field by its name, or by that of the original PonderALBERT, or by its number."""
        return self._read_alias(key) if key in _ALIASES else super().__getitem__(key)

    def __getattr__(self, name: str) -> Any:
        """Return a field by its name in the original PonderALBERT."""
        if name in _ALIASES:
            return self._read_alias(name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _read_alias(self, name: str) -> Any:
        """Return what the original called so.

        Raises:
            KeyError: If there is no such field because not all steps ran.
        """
        field = _ALIASES[name]
        _tell_new_name(name)
        if name == "passes":  # the number of the last step that the batch took, from 0
            assert self.exit_steps is not None
            return int(self.exit_steps.max()) - 1
        value = getattr(self, field)
        if value is None:
            raise KeyError(f"{name}: {field} is there when all steps ran, as with run_all_steps=True")
        return value


# Names of the original PonderALBERT's outputs -> the fields here.
_ALIASES = {
    "halt_probabilities": "halting_probabilities",
    "model_halt_dist": "posterior",
    "target_halt_dist": "prior",
    "passes": "exit_steps",
}


@cache
def _tell_new_name(name: str) -> None:
    """Tell the new name, once a process."""
    more = ", the exit step of every example, from 1" if name == "passes" else ""
    logger.warning("%s: is called %s here%s", name, _ALIASES[name], more)


def stepwise_output(steps: Steps, rule: ExitRule, tokens: Tensor | None) -> StepwiseOutput:
    """What a batch of whole sequences or vectors gave, without distribution and loss.

    Args:
        steps: From `run_steps`, a row an example.
        rule: The rule that let them out.
        tokens: Real tokens of each, (B,); None for inputs without tokens.
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
        logits=predictions_at(rule, steps.logits, steps.halting_logits, steps.exit_steps),
        step_logits=steps.logits,
        halting_logits=steps.halting_logits,
        halting_probabilities=probabilities,
        exit_steps=steps.exit_steps,
        trace=trace,
    )


def unit_fields(steps: Steps, rule: ExitRule, slots: Tensor, shape: tuple[int, int] | None) -> dict[str, Any]:
    """What the output of a model whose tokens are read after every step says of its K units, tokens or sequences.

    These fields are all that recorders and studies of exits ask for, whatever model they come from.

    Args:
        steps: From `run_steps`, a row a unit.
        rule: The rule that let the units out.
        slots: b T + t of the token at which each unit is read, int64, (K,).
        shape: B and T, where units are tokens; None where they are whole sequences.

    Returns:
        `unit_slots`, `step_logits` (K, N, C), `halting_logits` (K, N), `exit_steps` (K,), and `logits` at each unit's
        exit: (K, C), or (B, T, C) with NaN where no unit is.
    """
    logits = predictions_at(rule, steps.logits, steps.halting_logits, steps.exit_steps)
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


def asked_to_show(config: PreTrainedConfig, options: Mapping[str, Any]) -> dict[str, Choice]:
    """What a call, or else the configuration, asks to see: `hidden_states`, `attentions`; empty where it is nothing."""
    asked = {name: options.get(f"output_{name}") for name in _NAMES}
    found = {name: getattr(config, f"output_{name}") if value is None else value for name, value in asked.items()}
    return {name: value for name, value in found.items() if value is not None and value is not False}


def choose_states(states: Sequence[Tensor], choice: Choice) -> tuple[Tensor | None, ...]:
    """All states, or None in place of those that were not chosen."""
    if choice is True:
        return tuple(states)
    chosen = (choice,) if isinstance(choice, int) else choice
    numbers = {number % len(states) for number in chosen if -len(states) <= number < len(states)}
    return tuple(state if number in numbers else None for number, state in enumerate(states))
