"""Files of a made-up run that learned one distribution over the layers of its base."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from adadepth.halting.trace import DepthTrace, Execution, Work
from adadepth.metrics.depth_statistics import HaltingStatistics, flatten
from adadepth.report.depth_by_class import write_halting_files

FACTS = {"added_parameters": 345_098, "base_parameters": 10_566_912, "from_cache": False}


def make_learned_weights(blocks: int, progress: float = 1.0) -> torch.Tensor:
    """Return weights that are uniform at first, then around two thirds of the depth; small ones are cut off."""
    states = torch.arange(blocks + 1)
    weights = torch.softmax(-progress * (states - 0.66 * blocks) ** 2 / (0.15 * blocks), dim=0)
    large_weights = torch.where(weights > 0.005, weights, 0)
    return large_weights / large_weights.sum()


def evaluate(weights: torch.Tensor, batches: int = 3, **facts: Any) -> dict[str, Any]:
    """Return the summary of an evaluation with these weights of the states 0..N."""
    blocks, deepest = len(weights) - 1, int(weights.nonzero().max())
    statistics = HaltingStatistics(blocks, ("all",), "cpu")
    for size in range(4, 4 + batches):
        valid = torch.ones(size, dtype=torch.bool)
        trace = DepthTrace(
            "task",
            torch.full((size,), float(deepest)),
            valid,
            blocks,
            execution=Execution(deepest),
            layer_weights=weights,
        )
        needed, full = (torch.tensor(7e8 * size * part + 4e7 * size).double() for part in (deepest, blocks))
        statistics.update(trace, {"all": valid}, work=Work(1.2 * needed, 1.2 * needed, needed, full))
    summary = statistics.summary()
    summary["layers"] |= FACTS | facts
    return summary


def make_layer_run(directory: Path, blocks: int = 6, evaluations: int = 8, **facts: Any) -> Path:
    """Write every file of a finished run."""
    lines = []
    for index in range(evaluations):
        progress = index / max(evaluations - 1, 1)
        summary = evaluate(make_learned_weights(blocks, progress), **facts)
        losses = {"train/loss": 0.7 - 0.4 * progress, "eval/loss": 0.7 - 0.3 * progress}
        lines.append({"step": 50 * index, "time": 9.0 * index, **losses, **flatten(summary)})
    write_halting_files(directory, summary, [], lines[-1]["step"])
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    run = {"status": "finished", "config_name": "adalayers_sst2", "seed": 0, "final_metrics": {"eval/accuracy": 0.8321}}
    (directory / "run.json").write_text(json.dumps(run), encoding="utf-8")
    config = "name: adalayers_sst2\nmodel:\n  name: adalayers\n  base_model: minilm\n  alpha_distribution: 10.0\n"
    (directory / "config.yaml").write_text(config, encoding="utf-8")
    return directory
