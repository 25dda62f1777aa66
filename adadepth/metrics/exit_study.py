"""Comparison of exit rules: each is replayed on the same recorded predictions, next to controls and oracles.

The value of a rule is its gain over exits that ignore the examples. Two such controls are the same exit steps permuted
at random, and two fixed depths mixed at random to the same compute. The oracles use the labels and bound the gain of
any rule; `adadepth.metrics.expected_exits` estimates how much of it predictions reveal.

Shape legend: M examples, N steps, C classes, L cells.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adadepth.config.kinds import Problem
from adadepth.errors import ConfigError
from adadepth.halting.exit_rules import (
    LOGITS,
    Acceleration,
    Confidence,
    Correct,
    Distance,
    Divergence,
    Entropy,
    ExitRule,
    Expectation,
    Fixed,
    Hazard,
    Margin,
    NormalisedEntropy,
    Patience,
    Quantile,
    Sample,
    apply_rule,
    list_supported_rules,
    parse_rule,
    select_predictions,
)
from adadepth.metrics.adaptation import spearman
from adadepth.metrics.exit_gains import estimate_fixed_gains, estimate_permuted_gain
from adadepth.metrics.exit_pareto import CONTROL, ORACLE, SETTLED, mark_pareto
from adadepth.metrics.expected_exits import EXPECTED, find_expected_exits
from adadepth.metrics.scoring import compute_quality, is_right
from adadepth.metrics.step_records import StepRecords
from adadepth.metrics.step_scores import StepScores, find_first_stable_step, find_least_loss_exits, find_near_last_exits
from adadepth.metrics.step_summary import confidence_calibration, find_first_correct_steps
from adadepth.metrics.unit_classes import build_sequence_classes
from adadepth.runtime.timing import compare_rounds


def list_standard_rules(signals: frozenset[str], num_classes: int, max_updates: int) -> list[str]:
    """Return every exit rule that a model supports in text form, with a small grid of parameters.

    Rules of plug-ins have their default parameters.
    """
    fixed = torch.linspace(1, max_updates, min(max_updates, 12)).round().long().unique().tolist()
    uncertainty = (0.05, 0.1, 0.2, 0.3, 0.5)
    grids: dict[str, list[ExitRule]] = {
        "quantile": [Quantile(q) for q in (0.1, 0.25, 0.5, 0.75, 0.9)],
        "hazard": [Hazard(threshold) for threshold in (0.1, 0.25, 0.5, 0.75, 0.9)],
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
    supported = list_supported_rules(signals, num_classes)
    return [rule.label for name in supported for rule in (grids[name] if name in grids else [parse_rule(name)])]


def permute_exits(exit_steps: Tensor, generator: torch.Generator) -> Tensor:
    """Shuffle exit steps over the examples, int64 (M,), as a control whose exits ignore the input."""
    order = torch.randperm(len(exit_steps), generator=generator)
    return exit_steps[order.to(exit_steps.device)]


def find_oracle_exits(step_logits: Tensor, labels: Tensor) -> Tensor:
    """Return the first step whose prediction is right, or N if there is none, int64 (M,).

    This is an upper bound and not a method that can be run, because it uses the labels.

    For a regression it is the first step with the smallest absolute error.

    Args:
        step_logits: Logits of every step, (M, N, C), or (M, N, L, C).
        labels: Classes or values, (M,), or classes of cells, (M, L).
    """
    if step_logits.shape[-1] == 1:
        errors = (step_logits.squeeze(-1).float() - labels.float().unsqueeze(1)).abs()
        return errors.argmin(dim=1) + 1
    return find_first_correct_steps(step_logits, labels).clamp(max=step_logits.shape[1])


def find_settled_exits(step_logits: Tensor, labels: Tensor) -> Tensor:
    """Return the first step from which the prediction stays right, or N if there is none, int64 (M,).

    These exits are as accurate as the last step, with the fewest updates. The arguments are those of
    `find_oracle_exits`, for classes only.
    """
    return find_first_stable_step(is_right(step_logits, labels))


DRAWS = 5

# Multiply-accumulates of all examples, from records, exit steps (M,), and the signals read after every update.
Macs = Callable[[StepRecords, Tensor, Collection[str]], float]


def study(
    records: StepRecords,
    rules: Sequence[ExitRule],
    *,
    problem: Problem,
    metrics: Sequence[str],
    macs: Macs,
    seed: int = 0,
    expected: bool = False,
) -> dict[str, Any]:
    """Evaluate exit rules, their controls and the oracles on predictions recorded after every step.

    Every fixed step that is not among the rules has a row, too, so that no rule is in a Pareto set if a fixed step is
    better at the same compute.

    Args:
        records: Records of a labelled set with the logits of every step.
        rules: Exit rules that the model supports.
        problem: Kind of prediction.
        metrics: Names of the metrics of `quality`. The Pareto sets compare `score`, the mean of these metrics.
        macs: Function that returns the multiply-accumulates of recorded examples without padding; see `Macs`.
        seed: Seed of sampled exits, permutations and mixtures. Each is repeated `DRAWS` times and reported as mean and
            sample standard deviation.
        expected: Whether to add exits by the expected gain of further steps; see `adadepth.metrics.expected_exits`.

    Raises:
        ConfigError: If exits by the expected gain cannot be computed.

    Returns:
        `n`, `unit`, `max_steps`, `problem`, `metrics`, `draws`, `seed`, `overthinking`, `groups` of difficulty, and
        `rows`. docs/statistics.md lists their fields.
    """
    assert records.ran_every_step, "a comparison of exit rules needs the logits of every step"
    evaluator = _ReplayEvaluator(records, problem, metrics, macs, seed)
    steps = [Fixed(step) for step in range(1, records.max_updates + 1)]
    unlisted = [step for step in steps if step.label not in {rule.label for rule in rules}]
    controls = [{**evaluator.evaluate(step), "kind": CONTROL} for step in unlisted]
    return mark_pareto(
        {
            "n": len(records),
            "unit": records.unit,
            "max_steps": records.max_updates,
            "problem": problem,
            "metrics": list(metrics),
            "draws": DRAWS,
            "seed": seed,
            "overthinking": evaluator.compare_last_step(),
            "groups": {name: int(mask.sum()) for name, mask in evaluator.groups.items()},
            "rows": [evaluator.evaluate(rule) for rule in rules] + controls + evaluator.evaluate_oracles(expected),
        }
    )


class _ReplayEvaluator:
    """Evaluator of exit rules on recorded predictions: quality and compute at given exit steps.

    Attributes:
        groups: Mask of the examples of each range of difficulty, boolean (M,), by name. It is empty if the data have no
            difficulty.
    """

    def __init__(self, records: StepRecords, problem: Problem, metrics: Sequence[str], macs: Macs, seed: int) -> None:
        assert records.step_logits is not None
        self.records, self.step_logits = records, records.step_logits
        self.scores, self._problem = StepScores(records, problem, metrics), problem
        self._macs, self.generator = macs, torch.Generator().manual_seed(seed)
        self.groups = _group_difficulties(records)
        steps = range(1, records.max_updates + 1)
        self.fixed_macs = [self._compute_mean_macs(torch.full_like(records.lengths, step), ()) for step in steps]
        self.fixed_quality = [self.scores.score_exits(torch.full_like(records.lengths, step)) for step in steps]
        self.right = self.scores.right
        self.first, self.settled = self._find_oracle_exits()

    def _find_oracle_exits(self) -> tuple[Tensor, Tensor]:
        """Return the first step with a right prediction, and the first step from which it stays right.

        For a text, they are the step of least loss, and the first step with a loss that stays near the last one.
        """
        if self.scores.losses is not None:
            return find_least_loss_exits(self.scores.losses), find_near_last_exits(self.scores.losses)
        assert self.records.labels is not None
        first = find_oracle_exits(self.step_logits, self.records.labels)
        return first, first if self.right is None else find_settled_exits(self.step_logits, self.records.labels)

    def evaluate(self, rule: ExitRule) -> dict[str, Any]:
        """Return quality and compute of an exit rule and, if the rule is adaptive, of its controls."""
        draws = DRAWS if rule.name == "sample" else 1
        signals = (self.step_logits, self.records.halting_logits, self.generator, self.records.state_moves)
        exits = [apply_rule(rule, *signals) for _ in range(draws)]
        if rule.mixes:
            logits = [select_predictions(rule, self.step_logits, self.records.halting_logits, steps) for steps in exits]
            return self._build_row(
                rule.label, "rule", exits, [self.scores.score_logits(mixed) for mixed in logits], rule.reads
            )
        row = self._build_row(rule.label, "rule", exits, self._score(exits), rule.reads)
        row |= self._compare_to_oracle(exits[0]) | self._measure_calibration(exits[0])
        if rule.name == "fixed":
            return row
        steps = exits[0].unique()
        if len(steps) == 1:
            step = int(steps)
            row["warning"] = f"always fires at step {step}: every {self.records.unit} exits there"
            if step == self.records.max_updates:
                row["warning"] = f"never fires: every {self.records.unit} runs all steps"
            row["gains"] = self._estimate_gains(exits[0], [], row["macs"])
            return row
        permuted = [permute_exits(exits[draw % draws], self.generator) for draw in range(DRAWS)]
        row["permuted"] = self._evaluate_control(permuted, rule.reads)
        row["gains"] = self._estimate_gains(exits[0], permuted, row["macs"])
        mixed, depths = self._mix_fixed_depths(row["macs"])
        row["mixture"] = {**self._evaluate_control(mixed, ()), **depths}
        return row

    def _estimate_gains(self, exits: Tensor, permuted: Sequence[Tensor], macs: float) -> dict[str, Any]:
        """Return the gains over permuted exits, if there are any, and over fixed steps of at most its compute.

        Between two steps, the best fixed step may be a mixture of both with the compute of the rule.
        """
        most: float = sum(cost <= macs for cost in self.fixed_macs)
        if 0 < most < len(self.fixed_macs):
            below, above = self.fixed_macs[int(most) - 1 : int(most) + 1]
            most += (macs - below) / (above - below)
        gains = estimate_fixed_gains(self.scores, exits, self.records.sequences, most)
        shuffled = estimate_permuted_gain(self.scores, exits, permuted, self.records.sequences)
        return gains if shuffled is None else {**gains, "permuted": shuffled}

    def evaluate_oracles(self, expected: bool) -> list[dict[str, Any]]:
        """Return quality and compute of both oracles; a regression has only the first one.

        Args:
            expected: Whether to add exits by the expected gain, whose compute includes the predictions that they read.

        Raises:
            ConfigError: See `find_expected_exits`.
        """
        oracles = {ORACLE: (self.first, frozenset[str]())}
        if self.right is not None:
            oracles[SETTLED] = self.settled, frozenset()
        if expected:
            if self.scores.by_step is None:
                raise ConfigError(f"exit_rules=[{EXPECTED}]: not used with values, which are neither right nor wrong")
            exits = find_expected_exits(self.records, self.scores.by_step)
            oracles |= {f"{EXPECTED}:{share:g}": (steps, frozenset({LOGITS})) for share, steps in exits.items()}
        return [
            self._build_row(name, "ceiling", [steps], self._score([steps]), reads) | self._compare_to_oracle(steps)
            for name, (steps, reads) in oracles.items()
        ]

    def compare_last_step(self) -> dict[str, Any]:
        """Compare the best fixed exit step with the last step, to measure overthinking.

        `gap` is the best score minus the last. `lost` is the share of examples that were right at some step and are
        wrong at the last.
        """
        scores = [quality.get("score") for quality in self.fixed_quality]
        candidates = [(score, -step) for step, score in enumerate(scores, start=1) if score is not None]
        if not candidates or scores[-1] is None:
            return {}
        best, step = max(candidates)
        overthinking = {"step": -step, "best": best, "last": scores[-1], "gap": best - scores[-1]}
        if self.right is not None:
            overthinking["lost"] = float((self.right.any(dim=1) & ~self.right[:, -1]).double().mean())
        return overthinking

    def _compare_to_oracle(self, exits: Tensor) -> dict[str, Any]:
        """Return the distance of exits from the oracle's, and the mean exit step by range of difficulty.

        `from_oracle` is the mean distance in updates to the first step with a prediction that stays right (for a text,
        with a loss that stays near the last one). It includes the shares of examples that exit before it and after it.
        """
        late = (exits - self.settled).double()
        shares = {"early": float((late < 0).double().mean()), "late": float((late > 0).double().mean())}
        comparison: dict[str, Any] = {"from_oracle": {"updates": float(late.abs().mean()), **shares}}
        if self.groups:
            assert self.records.difficulty is not None
            means = {name: float(exits[mask].double().mean()) for name, mask in self.groups.items()}
            comparison["by_difficulty"] = means
            has_difficulty = self.records.difficulty >= 0
            correlation = spearman(
                exits[has_difficulty].numpy(),
                self.records.difficulty[has_difficulty].numpy(),
                self.records.sequences[has_difficulty].numpy(),
            )
            if correlation is not None:
                comparison["spearman"] = correlation._asdict()
        return comparison

    def _measure_calibration(self, exits: Tensor) -> dict[str, float]:
        """Return the expected calibration error of the predictions at the exits, if every example has one class."""
        labels = self.records.labels
        assert labels is not None
        if self._problem not in ("classification", "language_model") or labels.dim() > 1:
            return {}
        logits = self.step_logits[torch.arange(len(exits)), exits - 1].float()
        confidence, predicted = logits.softmax(dim=-1).max(dim=-1)
        return {"calibration": confidence_calibration(confidence, predicted == labels)["ece"]}

    def _mix_fixed_depths(self, macs: float) -> tuple[list[Tensor], dict[str, Any]]:
        """Return random exits at two neighbouring fixed depths with the same mean compute as an exit rule.

        If the compute exceeds full depth's, because a rule needs more for its signals, all exits are at full depth.
        """
        last = len(self.fixed_macs) - 1
        low = max([step for step, cost in enumerate(self.fixed_macs[:last]) if cost <= macs], default=0)
        high = min(low + 1, last)
        between = self.fixed_macs[high] - self.fixed_macs[low]
        share = min(max((macs - self.fixed_macs[low]) / between, 0.0), 1.0) if between > 0 else 0.0
        count = round(share * len(self.records))
        masks = [torch.randperm(len(self.records), generator=self.generator) < count for _ in range(DRAWS)]
        return [torch.where(deeper, high, low) + 1 for deeper in masks], {"depths": [low + 1, high + 1], "share": share}

    def _evaluate_control(self, exits: Sequence[Tensor], reads: Collection[str]) -> dict[str, Any]:
        figures = self._build_row("", "", exits, self._score(exits), reads)
        return {key: figures[key] for key in ("quality", "quality_std", "macs")}

    def _score(self, exits: Sequence[Tensor]) -> list[dict[str, float]]:
        return [self.scores.score_exits(steps) for steps in exits]

    def _compute_mean_macs(self, steps: Tensor, reads: Collection[str]) -> float:
        """Return the mean multiply-accumulates per example at given exit steps."""
        return self._macs(self.records, steps, reads) / len(steps)

    def _build_row(
        self,
        name: str,
        kind: str,
        exits: Sequence[Tensor],
        qualities: Sequence[Mapping[str, float]],
        reads: Collection[str],
    ) -> dict[str, Any]:
        """Build the result row of an exit rule from its exit steps (M,) and the quality of every random draw."""
        max_updates = self.records.max_updates
        counts = torch.stack([torch.bincount(steps, minlength=max_updates + 1)[1:] for steps in exits])
        updates = torch.stack([self.records.updates(steps).mean() for steps in exits])
        macs = float(np.mean([self._compute_mean_macs(steps, reads) for steps in exits]))
        # A figure that one draw lacks has no mean.
        common = [key for key in qualities[0] if all(key in values for values in qualities)]
        row: dict[str, Any] = {
            "rule": name,
            "kind": kind,
            "draws": len(exits),
            "quality": {key: float(np.mean([values[key] for values in qualities])) for key in common},
            "mean_updates": float(updates.mean()),
            "macs": macs,
            "macs_ratio": self.fixed_macs[-1] / macs,
            "shares": (counts.double().mean(dim=0) / len(self.records)).tolist(),
        }
        if row["mean_updates"] > 0:
            row["layer_ratio"] = max_updates / row["mean_updates"]
        if len(exits) > 1:
            row["quality_std"] = {key: float(np.std([values[key] for values in qualities], ddof=1)) for key in common}
            row["mean_updates_std"] = float(updates.std())
        return row


def _group_difficulties(records: StepRecords) -> dict[str, Tensor]:
    """Return the mask of the examples in each range of difficulty, by the name of the range."""
    difficulty = records.difficulty
    if difficulty is None:
        return {}
    classes = build_sequence_classes((), records.lengths, difficulty[difficulty >= 0])
    masks = classes.masks(records.logits, None, records.lengths, difficulty)
    return {name: mask for name, mask in masks.items() if name.startswith("difficulty") and mask.any()}


# ---- wall clock


def add_timings(
    results: Mapping[str, Any], timings: Mapping[str, Mapping[int, Sequence[float]]], conditions: Mapping[str, Any]
) -> dict[str, Any]:
    """Add measured times to the rows of an exit-rule comparison: seconds per example, and speed-up over full depth.

    Args:
        results: Results of `study`.
        timings: Seconds per example in every round, by rule and batch size. The rules take turns in a round. The
            speed-up requires a timing of the rule `fixed:<max_steps>` too.
        conditions: Conditions of the measurement, such as device, precision, length, warm-up and repetitions.

    Returns:
        The study with `timing`, and by batch size `seconds`, `time_ratio` and `time_ratio_range` (the least and the
        greatest ratio of a round) for each timed row and the recommendation. Seconds and ratio are medians over rounds.
    """
    full = timings.get(f"fixed:{results['max_steps']}", {})

    def add(row: Mapping[str, Any]) -> dict[str, Any]:
        if row["rule"] not in timings:
            return dict(row)
        rounds = {str(batch): seconds for batch, seconds in timings[row["rule"]].items()}
        ratios = {
            batch: compare_rounds(full[int(batch)], seconds) for batch, seconds in rounds.items() if int(batch) in full
        }
        return {
            **row,
            "seconds": {batch: median(seconds) for batch, seconds in rounds.items()},
            "time_ratio": {batch: ratio.median for batch, ratio in ratios.items()},
            "time_ratio_range": {batch: [ratio.low, ratio.high] for batch, ratio in ratios.items()},
        }

    timed = {**results, "timing": dict(conditions), "rows": [add(row) for row in results["rows"]]}
    if results.get("advice"):
        timed["advice"] = {**results["advice"], "rule": add(results["advice"]["rule"])}
    return mark_pareto(timed)


def add_online(results: Mapping[str, Any], figures: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Add to each row of an exit-rule comparison, as `online`, the results of deciding exits while the model ran.

    In the replay, a unit attends to the states of units that never stop. Online results differ if an exit changes the
    inputs of other units, as the exit of a token does.

    Args:
        results: Results of `study`.
        figures: Results by rule, from `online_figures`.
    """
    rows = [row | ({"online": dict(figures[row["rule"]])} if row["rule"] in figures else {}) for row in results["rows"]]
    return {**results, "rows": rows}


def online_figures(records: StepRecords, problem: Problem, metrics: Sequence[str]) -> dict[str, Any]:
    """Return the quality and mean updates of examples whose exits were decided while the model ran."""
    assert records.labels is not None
    return {
        "quality": compute_quality(records.logits, records.labels, problem, metrics),
        "mean_updates": float(records.depth.double().mean()),
    }
