"""Selection of an exit rule on one half of the examples, with its evaluation on the other half.

The best of many rules on one set is partly luck. Therefore the first half of the examples selects the cheapest rule
that keeps enough of the score of full depth. The candidates are all rules on a fine grid of thresholds. The second half
then evaluates the selected rule. Halves consist of whole sequences.

Shape legend: M examples, N steps, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from adadepth.config.kinds import Problem
from adadepth.halting.exit_rules import ExitRule, Fixed, apply_rule
from adadepth.metrics.adaptation import rank_correlation
from adadepth.metrics.exit_study import Macs
from adadepth.metrics.halves import select_first_half
from adadepth.metrics.significance import sum_clusters
from adadepth.metrics.step_records import StepRecords
from adadepth.metrics.step_scores import NEAR, StepScores

KEEP = 0.99  # share of full depth's score that a rule must keep; for a text, of the likelihood of a token
_LEVELS = torch.linspace(-7.0, 7.0, 43).sigmoid().tolist()


def advise(
    records: StepRecords,
    sequences: Tensor,
    rules: Sequence[ExitRule],
    *,
    problem: Problem,
    metrics: Sequence[str],
    macs: Macs,
) -> dict[str, Any]:
    """Recommend the cheapest exit rule and the cheapest fixed depth that retain the share `KEEP` of full depth's score.

    Args:
        records: Records of a labelled set with the logits of every step.
        sequences: Number of the sequence of each example, (M,). Examples of one sequence stay in one half.
        rules: Studied rules. Rules with a threshold are tried at many thresholds. Sampling and mixing rules are
            skipped.
        problem: Kind of prediction.
        metrics: Metrics that are averaged into the score.
        macs: Function that returns the multiply-accumulates of recorded examples; see `study`.

    Returns:
        `rule` and `fixed`, each with `rule`, `score`, `mean_updates` and `work`, its compute as a share of full
        depth's; `full`, the score of full depth; `keep`; `chosen_on` and `told_on`, the numbers of examples for
        selection and for evaluation. For classes there is also `difference`, the share of right predictions minus that
        of full depth, with `interval`, half of its 95 % interval, unless there are too few sequences. For a text,
        `difference` is that of the score, which is minus the loss. The dictionary is empty if there is no score or only
        one sequence.
    """
    halves = _split_records(records, sequences, problem, metrics, macs)
    if halves is None:
        return {}
    first, second = halves
    full = first.score(Fixed(records.max_updates))
    if math.isnan(full) or math.isnan(second.score(Fixed(records.max_updates))):
        return {}
    least = full - NEAR if problem == "language_model" else full - (1.0 - KEEP) * abs(full)
    candidates = list(_iterate_candidates(rules, records.max_updates))
    rule = first.find_cheapest(candidates, least)
    fixed = first.find_cheapest([candidate for candidate in candidates if isinstance(candidate, Fixed)], least)
    return {
        "keep": KEEP,
        "chosen_on": len(first.records),
        "told_on": len(second.records),
        "full": second.score(Fixed(records.max_updates)),
        "rule": second.describe_rule(rule),
        "fixed": second.describe_rule(fixed),
        **second.compare_to_full_depth(rule),
    }


def readings(
    records: StepRecords,
    sequences: Tensor,
    rules: Sequence[ExitRule],
    *,
    problem: Problem,
    metrics: Sequence[str],
    macs: Macs,
) -> dict[str, list[dict[str, Any]]]:
    """Return the operating points (score, compute) of every exit rule on one model, by rule, sorted by compute.

    The arguments are those of `advise`. Only the first of several settings with the same exit steps is listed. The
    fixed depths are listed as `fixed`.

    Returns:
        Each point has `rule` and `chosen_score`, the score on the half that selects thresholds. From the other half
        come `score`, `updates`, `macs` per unit, and `spearman`, the correlation of exits and difficulty if the data
        have one. Two standard errors come from sums over sequences: `score_error`, of the share of right predictions or
        of the loss, and `updates_error`. The dictionary is empty if there is only one sequence.
    """
    halves = _split_records(records, sequences, problem, metrics, macs)
    if halves is None:
        return {}
    first, second = halves
    points: dict[str, dict[bytes, dict[str, Any]]] = {}
    for rule in _iterate_candidates(rules, records.max_updates):
        of_rule, exits = points.setdefault(rule.name, {}), second.exits(rule)
        key = exits.numpy().tobytes()
        if key not in of_rule:
            point = {"rule": rule.label, "chosen_score": first.score(rule), **second.describe_point(rule)}
            of_rule[key] = {name: None if value != value else value for name, value in point.items()}
    return {name: sorted(of_rule.values(), key=lambda point: point["macs"]) for name, of_rule in points.items()}


class _Split:
    """One half of the recorded examples, on which exit rules are scored and their compute is measured.

    Args:
        records: Records of the half.
        sequences: Number of the sequence of each example, (M,).
        problem: Kind of prediction.
        metrics: Metrics that are averaged into the score.
        macs: Function that returns the multiply-accumulates of recorded examples.
    """

    def __init__(
        self, records: StepRecords, sequences: Tensor, problem: Problem, metrics: Sequence[str], macs: Macs
    ) -> None:
        self.records, self._sequences = records, sequences
        self._step_scores, self._macs = StepScores(records, problem, metrics), macs
        self._last = torch.full_like(records.lengths, records.max_updates)
        self._full = macs(records, self._last, ())
        self._scores: dict[bytes, float] = {}  # by exits, which many thresholds share

    def exits(self, rule: ExitRule) -> Tensor:
        """Return the step at which each example exits under a rule, int64 (M,)."""
        records = self.records
        return apply_rule(rule, records.step_logits, records.halting_logits, None, records.state_moves)

    def score(self, rule: ExitRule) -> float:
        """Return the score of the predictions under an exit rule, or NaN if a metric is undefined."""
        return self._score_exits(self.exits(rule))

    def _score_exits(self, exits: Tensor) -> float:
        key = exits.numpy().tobytes()
        if key not in self._scores:
            self._scores[key] = self._step_scores.score_exits(exits).get("score", math.nan)
        return self._scores[key]

    def _compute_work_share(self, rule: ExitRule, exits: Tensor) -> float:
        """Return the compute under an exit rule, including its confidence signals, as a share of full depth's."""
        reads = () if isinstance(rule, Fixed) else rule.reads
        return self._macs(self.records, exits, reads) / self._full

    def find_cheapest(self, rules: Sequence[ExitRule], least: float) -> ExitRule:
        """Return the exit rule with the least compute among those that score at least `least`.

        The first one is returned if several have equal compute.
        """
        exits = ((rule, self.exits(rule)) for rule in rules)
        shares = [
            (self._compute_work_share(rule, steps), rule) for rule, steps in exits if self._score_exits(steps) >= least
        ]
        return min(shares, key=lambda pair: pair[0])[1]

    def describe_rule(self, rule: ExitRule) -> dict[str, Any]:
        """Return score and compute of an exit rule on this half of the examples; see `advise`."""
        exits = self.exits(rule)
        updates = float(self.records.updates(exits).mean())
        work = self._compute_work_share(rule, exits)
        return {"rule": rule.label, "score": self._score_exits(exits), "mean_updates": updates, "work": work}

    def describe_point(self, rule: ExitRule) -> dict[str, Any]:
        """Return score and compute of one operating point of an exit rule; see `readings`."""
        records, exits = self.records, self.exits(rule)
        updates = records.updates(exits).double()
        point: dict[str, Any] = {"score": self._score_exits(exits), "updates": float(updates.mean())}
        point["macs"] = self._compute_work_share(rule, exits) * self._full / len(records)
        if records.difficulty is not None:
            correlation = rank_correlation(exits.numpy(), records.difficulty.numpy())
            point |= {} if correlation is None else {"spearman": correlation}
        if (values := self._step_scores.score_examples(exits)) is not None:
            point["score_error"] = self._estimate_error(values)
        return point | {"updates_error": self._estimate_error(updates)}

    def compare_to_full_depth(self, rule: ExitRule) -> dict[str, float]:
        """Return the mean gain of an exit rule over full depth per example, and the half-width of its 95 % interval."""
        at_exit, at_end = (self._step_scores.score_examples(exits) for exits in (self.exits(rule), self._last))
        if at_exit is None or at_end is None:
            return {}
        gain = sum_clusters((at_exit - at_end).numpy(), self._sequences.numpy()).estimate_mean()
        interval = {} if gain.half_width is None else {"interval": gain.half_width}
        return {"difference": gain.mean, **interval}

    def _estimate_error(self, values: Tensor) -> float:
        """Return the standard error of the mean of values, (M,), with sequences as independent draws."""
        return sum_clusters((values - values.mean()).numpy(), self._sequences.numpy()).error


def _iterate_candidates(rules: Sequence[ExitRule], max_updates: int) -> Iterator[ExitRule]:
    """Yield the exit rules to select from: fixed depths, the given rules, and these with other thresholds.

    The fixed depths come first because the first of several candidates with equal compute is selected.
    """
    yield from (Fixed(step) for step in range(1, max_updates + 1))
    usable = [rule for rule in rules if not (rule.mixes or rule.name in ("sample", "fixed"))]
    yield from usable
    for rule in {rule.name: rule for rule in usable}.values():
        candidates = (rule.with_level(level) for level in _LEVELS)
        yield from (_round_parameters(candidate) for candidate in candidates if candidate is not None)


def _round_parameters(rule: ExitRule) -> ExitRule:
    """Return an exit rule with its thresholds rounded to three significant digits, which are easy to type.

    Fitted parameters stay as they are.
    """
    numbers = {field.name: getattr(rule, field.name) for field in fields(rule) if field.name not in rule.fitted}
    return replace(rule, **{name: float(f"{value:.3g}") for name, value in numbers.items() if isinstance(value, float)})


def _split_records(
    records: StepRecords, sequences: Tensor, problem: Problem, metrics: Sequence[str], macs: Macs
) -> tuple[_Split, _Split] | None:
    """Split the examples at random into two halves of whole sequences, or return None if there is only one sequence."""
    mask = torch.from_numpy(select_first_half(sequences.numpy()))
    if not mask.any():
        return None
    first, second = (_Split(records.select(rows), sequences[rows], problem, metrics, macs) for rows in (mask, ~mask))
    return first, second
