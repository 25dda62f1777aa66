"""Made-up but plausible records of a model that predicts after every step, for tests of exits, reports and figures."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from adadepth.halting.distribution import geometric_prior
from adadepth.halting.exit_rules import apply_rule, parse_rule, select_predictions
from adadepth.halting.trace import DepthTrace
from adadepth.metrics.depth_statistics import HaltingStatistics, flatten
from adadepth.metrics.exit_study import add_timings, list_standard_rules, study
from adadepth.metrics.step_records import StepRecords
from adadepth.metrics.step_summary import summarise_steps
from adadepth.metrics.unit_classes import SequenceClasses
from adadepth.report.depth_by_class import write_halting_files
from adadepth.report.exits import write_exit_study
from adadepth.report.run_files import write_exits

LABELS = ("negative", "positive")
BOTH = frozenset({"logits", "halting"})


def make_records(
    size: int = 300, steps: int = 6, classes: int = 2, seed: int = 0, rule: str = "quantile:0.5"
) -> StepRecords:
    """Return records whose harder examples are right and halt later, with noise; `classes` 1 is a regression."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    difficulty = torch.randint(1, steps + 1, (size,), generator=generator)
    progress = torch.arange(1, steps + 1) - difficulty[:, None] + 0.5 * noise(size, steps)
    if classes == 1:
        labels: Tensor = 2.5 + noise(size)
        step_logits = (labels[:, None] + noise(size, steps) * torch.exp(-0.5 * progress)).unsqueeze(-1)
    else:
        labels = torch.randint(classes, (size,), generator=generator)
        step_logits = torch.nn.functional.one_hot(labels, classes)[:, None] * progress[..., None] * 1.5
        step_logits = step_logits + 0.3 * noise(size, steps, classes)
    halting_logits = 1.2 * progress - 1
    parsed = parse_rule(rule)
    exit_steps = apply_rule(parsed, step_logits, halting_logits, generator)
    return StepRecords(
        index=torch.arange(size),
        lengths=torch.randint(5, 60, (size,), generator=generator),
        logits=select_predictions(parsed, step_logits, halting_logits, exit_steps),
        depth=exit_steps.float(),
        max_updates=steps,
        labels=labels,
        difficulty=difficulty,
        step_logits=step_logits,
        halting_logits=halting_logits,
        exit_steps=exit_steps,
    )


def count_macs(records: StepRecords, steps: Tensor, reads: Collection[str]) -> float:
    """Return compute in which every step costs the same per token, and embedding and heads cost something too."""
    return float((7e6 * records.lengths * steps + 1e6 * records.lengths).sum())


def make_summary(records: StepRecords, **changes: Any) -> dict[str, Any]:
    regression = records.logits.shape[1] == 1
    settings: dict[str, Any] = {
        "problem": "regression" if regression else "classification",
        "labels": () if regression else LABELS,
        "metrics": ["pearson", "spearman"] if regression else ["accuracy", "f1"],
        "prior_pmf": geometric_prior(0.3, records.max_updates, "renormalise").pmf,
        "truncation": "renormalise",
    }
    return summarise_steps(records, **settings | changes)


def make_study(records: StepRecords, timed: bool = True) -> dict[str, Any]:
    regression = records.logits.shape[1] == 1
    rules = [parse_rule(text) for text in list_standard_rules(BOTH, records.logits.shape[1], records.max_updates)]
    problem, metrics = ("regression", ["pearson", "spearman"]) if regression else ("classification", ["accuracy"])
    content = study(records, rules, problem=problem, metrics=metrics, macs=count_macs)  # type: ignore[arg-type]
    if not timed:
        return content
    timings = {
        row["rule"]: {
            batch: [1e-4 * (row["mean_updates"] + 0.3) / batch**0.5 * load for load in (1.0, 1.4, 0.9)]
            for batch in (1, 8, 32)
        }
        for row in content["rows"]
        if row["kind"] == "rule"
    }
    return add_timings(content, timings, {"device": "CPU", "precision": "float32", "length": 64, "repetitions": 5})


def add_exit_files(directory: Path) -> Path:
    """Write exits.json, exit_rules.json and pareto.csv of a classification with a second, harder set."""
    first, second = make_records(), make_records(seed=1)
    write_exits(directory, {"validation": make_summary(first), "mismatched": make_summary(second)}, step=120)
    write_exit_study(directory, {"validation": make_study(first)})
    return directory


def add_halting_files(directory: Path) -> Path:
    """Write halting.json and metrics.jsonl of a model that halts whole sequences."""
    records = make_records()
    classes = SequenceClasses(LABELS, (20, 40), (2, 4))
    statistics = HaltingStatistics(records.max_updates, classes.names, "cpu")
    valid = torch.ones(len(records), dtype=torch.bool)
    trace = DepthTrace("sequence", records.depth, valid, records.max_updates)
    masks = classes.masks(records.logits, records.labels, records.lengths, records.difficulty, valid)
    statistics.update(trace, masks, torch.rand(len(records), generator=torch.Generator().manual_seed(0)))
    summary = statistics.summary()
    write_halting_files(directory, summary, [], step=120)
    lines = [{"step": step, **flatten(summary)} for step in (0, 60, 120)]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return directory
