"""Which exit rule to take: chosen on one half of the examples, told on the other.

A study of many rules shows the best of many by luck, too. Here the cheapest rule that keeps enough of full depth's
score is found on a first half of the examples, of every rule that has a threshold at a fine grid of thresholds, and
its figures are of the second half. Halves are of whole sequences.

Shape legend: M examples, N steps, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adadepth.halting.exit_rules import ExitRule, Fixed, apply_rule
from adadepth.measure.adaptation import rank_correlation
from adadepth.measure.exit_records import StepRecords
from adadepth.measure.exit_scores import NEAR, StepScores
from adadepth.measure.exit_study import Macs
from adadepth.settings.kinds import Problem

KEEP = 0.99  # of full depth's score; of a text, of the likelihood of a token
_LEVELS = torch.linspace(-7.0, 7.0, 43).sigmoid().tolist()
_NORMAL = 1.96  # standard errors around a mean that hold 95 % of a normal distribution


def advise(
    records: StepRecords,
    sequences: Tensor,
    rules: Sequence[ExitRule],
    *,
    problem: Problem,
    metrics: Sequence[str],
    macs: Macs,
    seed: int = 0,
) -> dict[str, Any]:
    """The cheapest rule that keeps `KEEP` of full depth's score, and the cheapest fixed depth that does.

    Args:
        records: Of a labelled set, with the logits of every step.
        sequences: The number of each example's sequence, (M,): examples of one stay in one half.
        rules: That were studied. Those with a threshold are tried at many; drawn and mixing ones are left out.
        problem: What is predicted.
        metrics: Whose mean is the score.
        macs: Multiply-accumulates of recorded examples, see `study`.
        seed: Of the halves.

    Returns:
        `rule` and `fixed`, each with `rule`, `score`, `mean_updates` and `work`, a share of full depth's; `full`, the
        score there; `keep`; `chosen_on` and `told_on`, numbers of examples; and where classes are predicted
        `difference`, of the share that is right from full depth's, with `interval`, half of that of 95 %; of a text the
        difference of the score, minus the loss. Empty where there is no score, or no second sequence.
    """
    halves = _halves(sequences, seed)
    if halves is None:
        return {}
    choosing, telling = (_Half(_part(records, half), problem, metrics, macs) for half in halves)
    full = choosing.score(Fixed(records.max_updates))
    if math.isnan(full) or math.isnan(telling.score(Fixed(records.max_updates))):
        return {}
    least = full - NEAR if problem == "language_model" else full - (1.0 - KEEP) * abs(full)
    candidates = list(_candidates(rules, records.max_updates))
    fixed = [rule for rule in candidates if isinstance(rule, Fixed)]
    chosen, steady = choosing.cheapest(candidates, least), choosing.cheapest(fixed, least)
    return {
        "keep": KEEP,
        "chosen_on": len(choosing.records),
        "told_on": len(telling.records),
        "full": telling.score(Fixed(records.max_updates)),
        "rule": telling.figures(chosen),
        "fixed": telling.figures(steady),
        **telling.difference(chosen, sequences[halves[1]]),
    }


def readings(
    records: StepRecords,
    sequences: Tensor,
    rules: Sequence[ExitRule],
    *,
    problem: Problem,
    metrics: Sequence[str],
    macs: Macs,
    seed: int = 0,
) -> dict[str, list[dict[str, Any]]]:
    """What every reading of one model can be set to: points from little work to much, by the name of the rule.

    Arguments are those of `advise`. Of settings that let all examples out at the same steps the first is kept. With
    them stand the fixed depths, as `fixed`.

    Returns:
        Of each point `rule`; `chosen_score`, on the half that a threshold is chosen on; and of the other half `score`,
        `updates`, `macs` of a unit, `spearman` of exits and difficulty where the data know one, and `score_error`, the
        standard error of the share that is right or of the loss, and `updates_error`, both from sums over sequences.
        Empty without a second sequence.
    """
    halves = _halves(sequences, seed)
    if halves is None:
        return {}
    choosing, telling = (_Half(_part(records, half), problem, metrics, macs) for half in halves)
    found: dict[str, dict[bytes, dict[str, Any]]] = {}
    for rule in _candidates(rules, records.max_updates):
        points, exits = found.setdefault(rule.name, {}), telling.exits(rule)
        key = exits.numpy().tobytes()
        if key not in points:
            told = {
                "rule": rule.label,
                "chosen_score": choosing.score(rule),
                **telling.point(rule, sequences[halves[1]]),
            }
            points[key] = {name: None if value != value else value for name, value in told.items()}
    return {name: sorted(points.values(), key=lambda point: point["macs"]) for name, points in found.items()}


class _Half:
    """Some of the recorded examples: turns a rule into score and work."""

    def __init__(self, records: StepRecords, problem: Problem, metrics: Sequence[str], macs: Macs) -> None:
        self.records, self._worth = records, StepScores(records, problem, metrics)
        self._macs = macs
        self._full = macs(records, torch.full_like(records.lengths, records.max_updates), ())
        self._scores: dict[bytes, float] = {}  # by exits: many thresholds let everybody out where others do

    def exits(self, rule: ExitRule) -> Tensor:
        """Steps, int64 (M,)."""
        records = self.records
        return apply_rule(rule, records.step_logits, records.halting_logits, None, records.state_moves)

    def score(self, rule: ExitRule) -> float:
        """Of the predictions at its exits; NaN where a metric has no value."""
        return self._score(self.exits(rule))

    def _score(self, exits: Tensor) -> float:
        key = exits.numpy().tobytes()
        if key not in self._scores:
            self._scores[key] = self._worth.at(exits).get("score", math.nan)
        return self._scores[key]

    def _work(self, rule: ExitRule, exits: Tensor) -> float:
        """Multiply-accumulates, as a share of full depth's, with what the rule reads."""
        reads = () if isinstance(rule, Fixed) else rule.reads
        return self._macs(self.records, exits, reads) / self._full

    def cheapest(self, rules: Sequence[ExitRule], least: float) -> ExitRule:
        """The one of least work among those with a score of at least so much; of equals the first."""
        exits = ((rule, self.exits(rule)) for rule in rules)
        able = [(self._work(rule, steps), rule) for rule, steps in exits if self._score(steps) >= least]
        return min(able, key=lambda pair: pair[0])[1]

    def figures(self, rule: ExitRule) -> dict[str, Any]:
        """What is told of a rule."""
        exits = self.exits(rule)
        updates = float(self.records.updates(exits).mean())
        work = self._work(rule, exits)
        return {"rule": rule.label, "score": self._score(exits), "mean_updates": updates, "work": work}

    def point(self, rule: ExitRule, sequences: Tensor) -> dict[str, Any]:
        """What is told of a setting of a reading, see `readings`."""
        records, exits = self.records, self.exits(rule)
        updates = records.updates(exits).double()
        told: dict[str, Any] = {"score": self._score(exits), "updates": float(updates.mean())}
        told["macs"] = self._work(rule, exits) * self._full / len(records)
        if records.difficulty is not None:
            found = rank_correlation(exits.numpy(), records.difficulty.numpy())
            told |= {} if found is None else {"spearman": found}
        if (values := self._worth.values(exits)) is not None:
            told["score_error"] = _error(values, sequences)
        return told | {"updates_error": _error(updates, sequences)}

    def difference(self, rule: ExitRule, sequences: Tensor) -> dict[str, float]:
        """What an example gains at its exit over full depth, and half of its interval, from sums over sequences."""
        last = torch.full_like(self.records.lengths, self.records.max_updates)
        at_exit, at_end = (self._worth.values(exits) for exits in (self.exits(rule), last))
        if at_exit is None or at_end is None:
            return {}
        gains = at_exit - at_end
        return {"difference": float(gains.mean()), "interval": _NORMAL * _error(gains, sequences)}


def _error(values: Tensor, sequences: Tensor) -> float:
    """The standard error of a mean over units (M,), whose sequences alone are independent draws."""
    _, owners = sequences.unique(return_inverse=True)
    count = int(owners.max()) + 1
    excess = torch.zeros(count, dtype=torch.float64).index_add(0, owners, values - values.mean())
    return math.sqrt(float(excess.square().sum()) * count / max(1, count - 1)) / len(values)


def _candidates(rules: Sequence[ExitRule], max_updates: int) -> Iterator[ExitRule]:
    """Fixed depths first, so that of equal work the simpler one is taken; then rules as given, then their levels."""
    yield from (Fixed(step) for step in range(1, max_updates + 1))
    usable = [rule for rule in rules if not (rule.mixes or rule.name in ("sample", "fixed"))]
    yield from usable
    for rule in {rule.name: rule for rule in usable}.values():
        yield from (each for level in _LEVELS if (each := _readable(rule.at_level(level))) is not None)


def _readable(rule: ExitRule | None) -> ExitRule | None:
    """With thresholds of three digits, which a person types and a file keeps."""
    if rule is None:
        return None
    numbers = {each.name: getattr(rule, each.name) for each in fields(rule)}
    return replace(rule, **{name: float(f"{value:.3g}") for name, value in numbers.items() if isinstance(value, float)})


def _halves(sequences: Tensor, seed: int) -> tuple[Tensor, Tensor] | None:
    """Which examples are in which half, (M,) each; None of a single sequence."""
    each = sequences.unique()
    if len(each) < 2:
        return None
    drawn = np.random.default_rng(seed).permutation(len(each))[: len(each) // 2]
    first = torch.isin(sequences, each[torch.from_numpy(drawn)])
    return first, ~first


def _part(records: StepRecords, chosen: Tensor) -> StepRecords:
    values = {each.name: getattr(records, each.name) for each in fields(records)}
    part: dict[str, Any] = {name: value[chosen] for name, value in values.items() if isinstance(value, Tensor)}
    return replace(records, **part)
