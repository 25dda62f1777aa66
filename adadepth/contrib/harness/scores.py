"""Scores in the results of lm-evaluation-harness."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any


def read_scores(results: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Return a row with the scores of a task or group, or of its tasks if a group has no score of its own.

    Args:
        results: Return value of `lm_eval.simple_evaluate`.
        name: Name of the task or group.

    Returns:
        Rows with `task`, the number `n` of its documents, its `version`, and `scores`: for each metric its `value`, its
        standard error `stderr` or None, and `greater`, whether a greater value is better, or None if unknown.
    """
    scores = {task: dict(_list_scores(results, task)) for task in results["results"]}
    tasks = [name] if scores.get(name) else [task for task, values in scores.items() if values]
    return [
        {
            "task": task,
            "n": _count_documents(results, task),
            "version": results["versions"].get(task),
            "scores": scores[task],
        }
        for task in tasks
    ]


def _list_scores(results: Mapping[str, Any], task: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the metrics of a task, whose keys are `metric,filter`, with the name of the filter unless it is `none`."""
    entry = results["results"][task]
    greater = results["higher_is_better"].get(task) or {}
    for key, value in entry.items():
        metric, _, chosen = key.partition(",")
        if not chosen or metric.endswith("_stderr"):
            continue
        stderr = entry.get(f"{metric}_stderr,{chosen}")
        name = metric if chosen == "none" else f"{metric} ({chosen})"
        yield name, {"value": _to_float(value), "stderr": _to_float(stderr), "greater": greater.get(metric)}


def _to_float(value: Any) -> float | None:
    """Return a finite number as a float, and None for any other value, such as `N/A`."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


def _count_documents(results: Mapping[str, Any], task: str) -> int | None:
    """Return the number of documents of a task, or of all tasks of a group."""
    counts = results["n-samples"]
    if task in counts:
        return int(counts[task]["effective"])
    members = results.get("group_subtasks", {}).get(task, [])
    documents = [count for member in members if (count := _count_documents(results, member)) is not None]
    return sum(documents) if documents else None
