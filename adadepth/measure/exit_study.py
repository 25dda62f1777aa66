"""Reading a study of exit rules: costs, Pareto sets, and what is odd. It needs no torch, so that reports are quick."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adadepth.halting.exit_rules import (
    Confidence,
    Correct,
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
from adadepth.measure.exit_costs import ORACLE, mark_pareto
from adadepth.measure.exit_records import StepRecords
from adadepth.measure.scoring import is_right, quality_of
from adadepth.settings.kinds import Problem

# ---- Pareto sets


# ---- words


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
    right = is_right(step_logits, labels)
    wrong_so_far = (~right).int().cumprod(dim=1).sum(dim=1)
    return (wrong_so_far + 1).clamp(max=step_logits.shape[1])


DRAWS = 5

Price = Callable[[Tensor, Tensor], float]


def study(
    records: StepRecords,
    rules: Sequence[ExitRule],
    *,
    problem: Problem,
    metrics: Sequence[str],
    price: Price,
    seed: int = 0,
) -> dict[str, Any]:
    """Evaluate every rule, its control and the oracle on recorded steps.

    Args:
        records: Of a labelled set, with the logits of every step.
        rules: Checked for this model.
        problem: What is predicted.
        metrics: Names for `quality`; `score`, their mean, is what the Pareto set compares.
        price: Multiply-accumulates that examples of these exit steps (M,) and lengths (M,) need, without padding.
        seed: Of what is drawn: sampled exits and permutations, `DRAWS` of each, as mean and sample standard deviation.

    Returns:
        `n`, `max_steps`, `problem`, `metrics`, `draws`, `seed`, and `rows`; see docs/statistics.md for a row's fields.
    """
    assert records.ran_every_step, "a study needs the logits of every step"
    bench = _Bench(records, problem, metrics, price, torch.Generator().manual_seed(seed))
    rows = [bench.row(rule) for rule in rules]
    rows.append(bench.oracle())
    about = {"n": len(records), "max_steps": records.max_updates, "problem": problem, "metrics": list(metrics)}
    found = {**about, "draws": DRAWS, "seed": seed, "rows": rows}
    return mark_pareto(found)


class _Bench:
    """The recorded model: turns exit steps into the figures of a row."""

    def __init__(
        self, records: StepRecords, problem: Problem, metrics: Sequence[str], price: Price, generator: torch.Generator
    ) -> None:
        assert records.labels is not None
        assert records.step_logits is not None
        self.records, self.problem, self.metrics = records, problem, metrics
        self.labels, self.step_logits = records.labels, records.step_logits
        self.price, self.generator = price, generator
        self.full_macs = self._macs(torch.full_like(records.lengths, records.max_updates))

    def row(self, rule: ExitRule) -> dict[str, Any]:
        """The figures of a rule, and of its permuted exits where it is adaptive."""
        draws = DRAWS if rule.name == "sample" else 1
        exits = [apply_rule(rule, self.step_logits, self.records.halting_logits, self.generator) for _ in range(draws)]
        logits = [predictions_at(rule, self.step_logits, self.records.halting_logits, steps) for steps in exits]
        row = self._figures(rule.label, "rule", exits, logits)
        if rule.name == "fixed" or rule.mixes:
            return row
        steps = exits[0].unique()
        if len(steps) == 1:
            row["warning"] = _constant(int(steps), self.records.max_updates)
            return row
        permuted = [random_exits(exits[draw % draws], self.generator) for draw in range(DRAWS)]
        control = self._figures("", "", permuted, [self._at(chosen) for chosen in permuted])
        return row | {"permuted": {key: control[key] for key in ("quality", "quality_std", "macs")}}

    def oracle(self) -> dict[str, Any]:
        """The figures of the oracle."""
        steps = oracle_exits(self.step_logits, self.labels)
        return self._figures(ORACLE, "ceiling", [steps], [self._at(steps)])

    def _at(self, steps: Tensor) -> Tensor:
        return self.step_logits[torch.arange(len(steps)), steps - 1]

    def _macs(self, steps: Tensor) -> float:
        return float(self.price(steps, self.records.lengths)) / len(steps)

    def _figures(self, name: str, kind: str, exits: Sequence[Tensor], logits: Sequence[Tensor]) -> dict[str, Any]:
        """A row from the exit steps (M,) and the predictions' logits (M, C) of every draw."""
        max_updates = self.records.max_updates
        counts = torch.stack([torch.bincount(steps, minlength=max_updates + 1)[1:] for steps in exits])
        updates = torch.stack([self.records.updates(steps).mean() for steps in exits])
        macs = float(np.mean([self._macs(steps) for steps in exits]))
        drawn = [quality_of(values, self.labels, self.problem, self.metrics) for values in logits]
        # A figure that one draw lacks has no mean.
        common = [key for key in drawn[0] if all(key in values for values in drawn)]
        row: dict[str, Any] = {
            "rule": name,
            "kind": kind,
            "draws": len(exits),
            "quality": {key: float(np.mean([values[key] for values in drawn])) for key in common},
            "mean_updates": float(updates.mean()),
            "macs": macs,
            "macs_ratio": self.full_macs / macs,
            "shares": (counts.double().mean(dim=0) / len(self.labels)).tolist(),
        }
        if row["mean_updates"] > 0:
            row["layer_ratio"] = max_updates / row["mean_updates"]
        if len(exits) > 1:
            row["quality_std"] = {key: float(np.std([values[key] for values in drawn], ddof=1)) for key in common}
            row["mean_updates_std"] = float(updates.std())
        return row


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
