"""A study of exit rules: every rule on the same recorded steps, beside its controls and what could be had at best.

A rule is worth what it adds to exits that know nothing of the examples: the same exit steps dealt at random (permuted),
and two fixed depths mixed at random to the same work. The oracles read the labels and say what is left to gain.

Shape legend: M examples, N steps, C classes, L cells.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adadepth.halting.exit_rules import (
    Acceleration,
    Confidence,
    Correct,
    Distance,
    Divergence,
    Entropy,
    ExitRule,
    Expectation,
    Fixed,
    Margin,
    NormalisedEntropy,
    Patience,
    Quantile,
    Sample,
    apply_rule,
    parse_rule,
    predictions_at,
    supported_rules,
)
from adadepth.measure.adaptation import spearman
from adadepth.measure.classes import classes_of
from adadepth.measure.exit_costs import ORACLE, SETTLED, mark_pareto
from adadepth.measure.exit_records import StepRecords
from adadepth.measure.exit_scores import StepScores, least_loss_exits, near_last_exits
from adadepth.measure.exit_steps import confidence_calibration
from adadepth.measure.scoring import is_right, quality_of
from adadepth.settings.kinds import Problem


def standard_rules(signals: frozenset[str], num_classes: int, max_updates: int) -> list[str]:
    """Labels of every supported rule on a small grid, of an installed package's at its defaults: a study of all."""
    fixed = torch.linspace(1, max_updates, min(max_updates, 12)).round().long().unique().tolist()
    uncertainty = (0.05, 0.1, 0.2, 0.3, 0.5)
    grids: dict[str, list[ExitRule]] = {
        "quantile": [Quantile(q) for q in (0.1, 0.25, 0.5, 0.75, 0.9)],
        "sample": [Sample()],
        "expectation": [Expectation()],
        "fixed": [Fixed(k) for k in fixed],
        "entropy": [Entropy(share) for share in uncertainty],
        "normalised_entropy": [NormalisedEntropy(share) for share in uncertainty],
        "confidence": [Confidence(threshold) for threshold in (0.6, 0.75, 0.9, 0.95, 0.99)],
        "margin": [Margin(threshold) for threshold in (0.2, 0.5, 0.8, 0.9, 0.98)],
        "kl": [Divergence(threshold) for threshold in (0.3, 0.1, 0.01, 0.001)],
        "distance": [Distance(threshold) for threshold in (0.5, 0.3, 0.1, 0.03)],
        "acceleration": [Acceleration(threshold, 1) for threshold in (0.5, 0.3, 0.1, 0.03)],
        "correct": [Correct(threshold) for threshold in (0.5, 0.8, 0.9, 0.95, 0.99)],
        "patience": [Patience(count) for count in (1, 2, 3, 4, 6) if count < max_updates],
    }
    supported = supported_rules(signals, num_classes)
    return [rule.label for name in supported for rule in (grids[name] if name in grids else [parse_rule(name)])]


def random_exits(exit_steps: Tensor, generator: torch.Generator) -> Tensor:
    """Control: the same exit steps, dealt out to the examples at random; int64 (M,). The generator is on the CPU."""
    order = torch.randperm(len(exit_steps), generator=generator)
    return exit_steps[order.to(exit_steps.device)]


def oracle_exits(step_logits: Tensor, labels: Tensor) -> Tensor:
    """Upper bound, not a system: the first step whose prediction is right, else N; int64 (M,).

    In regression the first step with the smallest absolute error.

    Args:
        step_logits: (M, N, C), or (M, N, L, C).
        labels: Classes or values, (M,), or classes of cells, (M, L).
    """
    if step_logits.shape[-1] == 1:
        errors = (step_logits.squeeze(-1).float() - labels.float().unsqueeze(1)).abs()
        return errors.argmin(dim=1) + 1
    return _first(is_right(step_logits, labels))


def settled_exits(step_logits: Tensor, labels: Tensor) -> Tensor:
    """The first step from which on every prediction is right, else N; int64 (M,).

    It is as right as the last step, at the fewest updates: what a rule needs that stops when the answer is there to
    stay. Arguments as in `oracle_exits`, of classes only.
    """
    stays = is_right(step_logits, labels).flip(1).int().cumprod(dim=1).flip(1).bool()
    return _first(stays)


def _first(found: Tensor) -> Tensor:
    """The first step that holds, else N: boolean (M, N) to int64 (M,)."""
    missed = (~found).int().cumprod(dim=1).sum(dim=1)
    return (missed + 1).clamp(max=found.shape[1])


DRAWS = 5

# Multiply-accumulates of all examples, from records, exit steps (M,), and what is read after every update.
Macs = Callable[[StepRecords, Tensor, Collection[str]], float]


def study(
    records: StepRecords,
    rules: Sequence[ExitRule],
    *,
    problem: Problem,
    metrics: Sequence[str],
    macs: Macs,
    seed: int = 0,
) -> dict[str, Any]:
    """Evaluate every rule, its controls and the oracles on recorded steps.

    Args:
        records: Of a labelled set, with the logits of every step.
        rules: Checked for this model.
        problem: What is predicted.
        metrics: Names for `quality`; `score`, their mean, is what the Pareto set compares.
        macs: Multiply-accumulates that the recorded examples need at exit steps (M,), without padding, where so much is
            read after every update.
        seed: Of what is drawn: sampled exits, permutations and mixtures, `DRAWS` of each, as mean and sample standard
            deviation.

    Returns:
        `n`, `max_steps`, `problem`, `metrics`, `draws`, `seed`, `overthinking`, `groups` of difficulty, and `rows`; see
        docs/statistics.md for their fields.
    """
    assert records.ran_every_step, "a study needs the logits of every step"
    bench = _Bench(records, problem, metrics, macs, seed)
    rows = [bench.row(rule) for rule in rules] + bench.oracles()
    about = {"n": len(records), "max_steps": records.max_updates, "problem": problem, "metrics": list(metrics)}
    told = {
        "overthinking": bench.overthinking(),
        "groups": {name: int(mask.sum()) for name, mask in bench.groups.items()},
    }
    return mark_pareto({**about, "draws": DRAWS, "seed": seed, **told, "rows": rows})


class _Bench:
    """The recorded model: turns exit steps into the figures of a row.

    Attributes:
        groups: Which examples are of each range of difficulty, boolean (M,); empty where the data know none.
    """

    def __init__(self, records: StepRecords, problem: Problem, metrics: Sequence[str], macs: Macs, seed: int) -> None:
        assert records.step_logits is not None
        self.records, self.step_logits = records, records.step_logits
        self.scores, self._problem = StepScores(records, problem, metrics), problem
        self._total_macs, self.generator = macs, torch.Generator().manual_seed(seed)
        self.groups = _groups(records)
        steps = range(1, records.max_updates + 1)
        self.fixed_macs = [self._macs(torch.full_like(records.lengths, step), ()) for step in steps]
        self.fixed_quality = [self.scores.at(torch.full_like(records.lengths, step)) for step in steps]
        self.right = self.scores.right
        self.first, self.settled = self._oracle_exits()

    def _oracle_exits(self) -> tuple[Tensor, Tensor]:
        """Right for the first time, and for good; of a text of least loss, and as good as the last from there on."""
        if self.scores.losses is not None:
            return least_loss_exits(self.scores.losses), near_last_exits(self.scores.losses)
        assert self.records.labels is not None
        first = oracle_exits(self.step_logits, self.records.labels)
        return first, first if self.right is None else settled_exits(self.step_logits, self.records.labels)

    def row(self, rule: ExitRule) -> dict[str, Any]:
        """The figures of a rule, and of its controls where it is adaptive."""
        draws = DRAWS if rule.name == "sample" else 1
        said = (self.step_logits, self.records.halting_logits, self.generator, self.records.state_moves)
        exits = [apply_rule(rule, *said) for _ in range(draws)]
        if rule.mixes:
            logits = [predictions_at(rule, self.step_logits, self.records.halting_logits, steps) for steps in exits]
            return self._figures(rule.label, "rule", exits, [self.scores.of(each) for each in logits], rule.reads)
        row = self._figures(rule.label, "rule", exits, self._at(exits), rule.reads)
        row |= self._stops(exits[0]) | self._calibration(exits[0])
        if rule.name == "fixed":
            return row
        steps = exits[0].unique()
        if len(steps) == 1:
            row["warning"] = _constant(int(steps), self.records.max_updates)
            return row
        permuted = [random_exits(exits[draw % draws], self.generator) for draw in range(DRAWS)]
        row["permuted"] = self._control(permuted, rule.reads)
        mixed, depths = self._mixtures(row["macs"])
        row["mixture"] = {**self._control(mixed, ()), **depths}
        return row

    def oracles(self) -> list[dict[str, Any]]:
        """The figures of the oracles, `_oracle_exits`; of values there is the first one only."""
        found = {ORACLE: self.first} | ({} if self.right is None else {SETTLED: self.settled})
        return [
            self._figures(name, "ceiling", [steps], self._at([steps]), ()) | self._stops(steps)
            for name, steps in found.items()
        ]

    def overthinking(self) -> dict[str, Any]:
        """What the updates after the best one cost: the best step of all and its score, and the last one's.

        `gap` is the best score less the last, `lost` the share of examples that were right at some step and are wrong
        at the last.
        """
        scores = [quality.get("score") for quality in self.fixed_quality]
        known = [(score, -step) for step, score in enumerate(scores, start=1) if score is not None]
        if not known or scores[-1] is None:
            return {}
        best, step = max(known)
        found = {"step": -step, "best": best, "last": scores[-1], "gap": best - scores[-1]}
        if self.right is not None:
            found["lost"] = float((self.right.any(dim=1) & ~self.right[:, -1]).double().mean())
        return found

    def _stops(self, exits: Tensor) -> dict[str, Any]:
        """How far exits are from the oracle's, and where examples of each difficulty exit.

        `from_oracle`: the mean distance in updates to the step from which on the prediction is right (of a text, as
        good as the last one), and the shares of examples that exit before it and after it.
        """
        late = (exits - self.settled).double()
        shares = {"early": float((late < 0).double().mean()), "late": float((late > 0).double().mean())}
        found: dict[str, Any] = {"from_oracle": {"updates": float(late.abs().mean()), **shares}}
        if self.groups:
            assert self.records.difficulty is not None
            found["by_difficulty"] = {name: float(exits[mask].double().mean()) for name, mask in self.groups.items()}
            known = self.records.difficulty >= 0
            correlation = spearman(exits[known].numpy(), self.records.difficulty[known].numpy())
            if correlation is not None:
                found["spearman"] = correlation._asdict()
        return found

    def _calibration(self, exits: Tensor) -> dict[str, float]:
        """How far probabilities at exits are from how often predictions are right, where an example has one class."""
        labels = self.records.labels
        assert labels is not None
        if self._problem not in ("classification", "language_model") or labels.dim() > 1:
            return {}
        logits = self.step_logits[torch.arange(len(exits)), exits - 1].float()
        confidence, predicted = logits.softmax(dim=-1).max(dim=-1)
        return {"calibration": confidence_calibration(confidence, predicted == labels)["ece"]}

    def _mixtures(self, macs: float) -> tuple[list[Tensor], dict[str, Any]]:
        """Exits at two neighbouring fixed depths, dealt at random such that the work is the same.

        Work beyond full depth, which a rule that reads much may take, buys full depth.
        """
        last = len(self.fixed_macs) - 1
        low = max([step for step, cost in enumerate(self.fixed_macs[:last]) if cost <= macs], default=0)
        high = min(low + 1, last)
        between = self.fixed_macs[high] - self.fixed_macs[low]
        share = min(max((macs - self.fixed_macs[low]) / between, 0.0), 1.0) if between > 0 else 0.0
        count = round(share * len(self.records))
        drawn = [torch.randperm(len(self.records), generator=self.generator) < count for _ in range(DRAWS)]
        return [torch.where(deeper, high, low) + 1 for deeper in drawn], {"depths": [low + 1, high + 1], "share": share}

    def _control(self, exits: Sequence[Tensor], reads: Collection[str]) -> dict[str, Any]:
        figures = self._figures("", "", exits, self._at(exits), reads)
        return {key: figures[key] for key in ("quality", "quality_std", "macs")}

    def _at(self, exits: Sequence[Tensor]) -> list[dict[str, float]]:
        return [self.scores.at(steps) for steps in exits]

    def _macs(self, steps: Tensor, reads: Collection[str]) -> float:
        return self._total_macs(self.records, steps, reads) / len(steps)

    def _figures(
        self,
        name: str,
        kind: str,
        exits: Sequence[Tensor],
        drawn: Sequence[Mapping[str, float]],
        reads: Collection[str],
    ) -> dict[str, Any]:
        """A row from the exit steps (M,) and the quality of every draw."""
        max_updates = self.records.max_updates
        counts = torch.stack([torch.bincount(steps, minlength=max_updates + 1)[1:] for steps in exits])
        updates = torch.stack([self.records.updates(steps).mean() for steps in exits])
        macs = float(np.mean([self._macs(steps, reads) for steps in exits]))
        # A figure that one draw lacks has no mean.
        common = [key for key in drawn[0] if all(key in values for values in drawn)]
        row: dict[str, Any] = {
            "rule": name,
            "kind": kind,
            "draws": len(exits),
            "quality": {key: float(np.mean([values[key] for values in drawn])) for key in common},
            "mean_updates": float(updates.mean()),
            "macs": macs,
            "macs_ratio": self.fixed_macs[-1] / macs,
            "shares": (counts.double().mean(dim=0) / len(self.records)).tolist(),
        }
        if row["mean_updates"] > 0:
            row["layer_ratio"] = max_updates / row["mean_updates"]
        if len(exits) > 1:
            row["quality_std"] = {key: float(np.std([values[key] for values in drawn], ddof=1)) for key in common}
            row["mean_updates_std"] = float(updates.std())
        return row


def _groups(records: StepRecords) -> dict[str, Tensor]:
    """Examples by ranges of difficulty, as in the step summary; those without any are in none."""
    difficulty = records.difficulty
    if difficulty is None:
        return {}
    classes = classes_of((), records.lengths, difficulty[difficulty >= 0])
    masks = classes.masks(records.logits, None, records.lengths, difficulty)
    return {name: mask for name, mask in masks.items() if name.startswith("difficulty") and mask.any()}


def _constant(step: int, max_updates: int) -> str:
    if step == max_updates:
        return "never fires: every example runs all steps"
    return f"always fires at step {step}: every example exits there"


# ---- wall clock


def add_timings(
    found: Mapping[str, Any], timings: Mapping[str, Mapping[int, float]], conditions: Mapping[str, Any]
) -> dict[str, Any]:
    """Lay measured times over a study: seconds an example, and how many times faster than full depth.

    Args:
        found: From `study`.
        timings: By rule and batch size, seconds per example. The ratio needs the rule `fixed:<max_steps>` timed too.
        conditions: Under which they were measured: device, precision, length, warm-up, repetitions.

    Returns:
        The study with `timing`, and in each timed row `seconds` and `time_ratio` by batch size.
    """
    full = timings.get(f"fixed:{found['max_steps']}", {})
    rows = []
    for row in found["rows"]:
        seconds = timings.get(row["rule"], {})
        ratios = {str(batch): full[batch] / value for batch, value in seconds.items() if batch in full}
        measured = {"seconds": {str(batch): value for batch, value in seconds.items()}, "time_ratio": ratios}
        rows.append({**row, **measured} if seconds else dict(row))
    return mark_pareto({**found, "timing": dict(conditions), "rows": rows})


def add_online(found: Mapping[str, Any], figures: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Lay what happened when rules really ran over a study, as `online` of each row.

    Replayed, a unit reads the states of units that never stop; where a unit's exit changes what others see, as a
    token's does, running the rule gives another figure.

    Args:
        found: From `study`.
        figures: By rule, from `online_figures`.
    """
    rows = [row | ({"online": dict(figures[row["rule"]])} if row["rule"] in figures else {}) for row in found["rows"]]
    return {**found, "rows": rows}


def online_figures(records: StepRecords, problem: Problem, metrics: Sequence[str]) -> dict[str, Any]:
    """Quality and mean updates of units that exited while the model ran."""
    assert records.labels is not None
    return {
        "quality": quality_of(records.logits, records.labels, problem, metrics),
        "mean_updates": float(records.depth.double().mean()),
    }
