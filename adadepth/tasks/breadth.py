"""Comparison of breadth and depth: several noisy rollouts of every puzzle against one rollout of as many steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adadepth.metrics.significance import SeedMean, compare_means, correct_p_values, sum_clusters
from adadepth.models.trm.breadth import CHOICES, Rollouts, run_rollouts
from adadepth.models.trm.modeling import step_macs
from adadepth.models.trm.report import BREADTH, format_breadth
from adadepth.report.run_files import write_json
from adadepth.runtime.console import RESULT, progress, say
from adadepth.runtime.distributed import gather_from_processes
from adadepth.tasks.session import Session

# Columns of results per puzzle, (B,) each: (number of rollouts, steps of each, what was measured). Rollouts 0 stand for
# depth alone.
PuzzleResults = Mapping[tuple[int, int, str], Tensor]


def compare_breadth(session: Session) -> None:
    """Evaluate the rollouts of `breadth.rollouts` on the first evaluation set; write and print the results."""
    settings, trainer = session.config.breadth, session.trainer
    if not settings.rollouts:
        return
    name, dataset = next(iter(trainer.evaluation_sets.items()))
    model: Any = trainer.unwrapped_model
    parts = gather_from_processes(list(_measure_batches(session, model, dataset)))
    batches = [batch for part in parts for batch in part]
    _, order = np.unique(torch.cat([numbers for numbers, _ in batches]).numpy(), return_index=True)
    columns = {key: torch.cat([columns[key] for _, columns in batches]).numpy()[order] for key in batches[0][1]}
    breadth = {
        "set": name,
        "n": len(order),
        "noise": settings.noise,
        "exit_rule": model.config.exit_rule,
        **summarise_columns(columns, step_macs(model.config)),
    }
    if trainer.is_world_process_zero():
        write_json(session.run.directory / BREADTH, breadth)
        say(format_breadth(breadth), RESULT, wraps=True)


def _measure_batches(session: Session, model: Any, dataset: Any) -> Iterator[tuple[Tensor, PuzzleResults]]:
    """Yield the numbers and results of the puzzles. All rollouts that run together fill one batch."""
    config, trainer = session.config, session.trainer
    counts = sorted(config.breadth.rollouts)
    size = max(1, trainer.args.eval_batch_size // counts[-1])
    with progress("running rollouts", len(dataset), shown=trainer.is_world_process_zero()) as advance:
        for raw in trainer.get_eval_dataloader(dataset):
            batch = trainer.prepare_batch(raw)
            for start in range(0, len(batch["index"]), size):
                part = {
                    name: values[start : start + size] for name, values in batch.items() if isinstance(values, Tensor)
                }
                numbers = part["index"].cpu()
                run = partial(
                    run_rollouts, model, part["input_ids"], puzzle_kinds=part.get("puzzle_kinds"),
                    numbers=numbers.tolist(), seed=config.seed,
                )  # fmt: skip
                with trainer.autocast_smart_context_manager():
                    wide = run(rollouts=counts[-1], noise=config.breadth.noise)
                    deep = run(rollouts=1, noise=0.0, steps=counts[-1] * model.max_updates)
                yield numbers, measure_columns(wide, deep, part["labels"], counts)
                advance(len(numbers))


def measure_columns(wide: Rollouts, deep: Rollouts, labels: Tensor, counts: Sequence[int]) -> PuzzleResults:
    """Return which puzzles are solved, and the steps that they take, for all numbers of rollouts and steps.

    The steps of a rollout are powers of 2 and the maximum N. Depth alone has every number of steps that some rollouts
    have together, and the powers of 2 below.

    Args:
        wide: Rollouts with noise, of N steps.
        deep: One rollout without noise, of up to K N steps.
        labels: Right symbols, (B, L), negative where a cell is not labelled.
        counts: Numbers of rollouts, each at most that of `wide`.
    """
    columns = {}
    most = wide.q.shape[-1]
    lengths = sorted({2**power for power in range(most.bit_length())} | {most})
    for steps in sorted(set(lengths) | {count * steps for count in counts for steps in lengths}):
        columns[0, steps, "accuracy"] = _find_solved(deep.answers[:, 0, steps - 1], labels)
        columns[0, steps, "updates"] = deep.exit_steps[:, 0].clamp(max=steps)
    for steps in lengths:
        solved = _find_solved(wide.answers[:, :, steps - 1], labels.unsqueeze(1))
        for count in counts:
            columns[count, steps, "updates"] = wide.exit_steps[:, :count].clamp(max=steps).sum(dim=1)
            columns[count, steps, "mean"] = solved[:, :count].double().mean(dim=1)
            columns[count, steps, "any"] = solved[:, :count].any(dim=1)
            for by in CHOICES:
                chosen = wide.choose(by, count, steps).unsqueeze(1)
                columns[count, steps, by] = solved.gather(1, chosen).squeeze(1)
    return {key: values.double().cpu() for key, values in columns.items()}


def _find_solved(answers: Tensor, labels: Tensor) -> Tensor:
    """Return whether all labelled cells of each answer are right, boolean, without the last dimension."""
    return ((answers == labels) | (labels < 0)).all(dim=-1)


def summarise_columns(columns: Mapping[tuple[int, int, str], np.ndarray], macs: float) -> dict[str, Any]:
    """Return `depth`, the rows of depth alone, and `rows`, those of rollouts, each tested against as many steps.

    A test is that of the mean difference over puzzles (`difference`, `low`, `high`), with p corrected for the number of
    comparisons of more than one rollout (Holm).

    Args:
        columns: Results of every puzzle; see `measure_columns`.
        macs: Multiply-accumulates of one step.
    """
    rows: dict[tuple[int, int], dict[str, Any]] = {}
    tests = []
    for (count, steps, name), values in columns.items():
        row = rows.setdefault((count, steps), {"rollouts": count, "steps": steps})
        mean = _average(values)
        row[name] = mean.mean
        if name == "updates":
            row["macs"] = macs * mean.mean
            continue
        row["error" if name == "accuracy" else f"{name}_error"] = mean.error
        if name in CHOICES:
            difference = _average(values - columns[0, count * steps, "accuracy"])
            low, high = difference.interval
            test = {"difference": difference.mean, "low": low, "high": high}
            row[f"{name}_against_depth"] = test | {"p": compare_means(difference, SeedMean(0.0, 0.0))}
            tests += [row[f"{name}_against_depth"]] if count > 1 else []
    for test, p in zip(tests, correct_p_values([test["p"] for test in tests]), strict=True):
        test["p"] = p
    return {
        "depth": [row for (count, _), row in rows.items() if count == 0],
        "rows": [row for (count, _), row in sorted(rows.items()) if count > 0],
    }


def _average(values: np.ndarray) -> SeedMean:
    """Return the mean over puzzles with its standard error."""
    return sum_clusters(values, np.arange(len(values))).estimate_mean()
