"""Run directories with a handful of figures, for tests of comparisons: no model, no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

CONFIG: Mapping[str, Any] = {
    "name": "act_hops", "optimise": "eval/score",
    "model": {"name": "albert_act", "act_penalty": 0.0},
    "dataset": {"name": "hops", "cache_dir": "anywhere"},
    "trainer": {"max_steps": 20, "metric_for_best_model": "eval_loss", "greater_is_better": False},
    "budget": {"target": 2.5, "unit": "updates"},
}  # fmt: skip


def record(
    folder: Path, seed: int = 0, *, score: float = 0.5, work: float = 0.4, depth: float = 2.0, unit: str = "token",
    losses: Mapping[int, float] | None = None, classes: Mapping[str, float] | None = None,
    more: Mapping[str, float] | None = None, run: Mapping[str, Any] | None = None, rival_of: str | None = None,
    **groups: Mapping[str, Any],
) -> Path:  # fmt: skip
    """Write a run directory; `groups` are laid over those of CONFIG, `run` over run.json."""
    folder.mkdir(parents=True)
    merged = {name: {**CONFIG[name], **groups.get(name, {})} for name in ("model", "dataset", "trainer", "budget")}
    (folder / "config.yaml").write_text(yaml.safe_dump({**CONFIG, **merged, "seed": seed, "rival_of": rival_of}))
    final = {"eval/score": score, "eval/loss": 1.0 - score, "cost/adaptive_over_full": work, "halting/all/mean": depth}
    run_record = {
        "status": "finished", "config_name": CONFIG["name"], "mode": "train", "seed": seed, "error": None,
        "started": "2026-11-22T14:00:00+00:00", "wall_time_s": 61.0, "parameters": 1234,
        "final_metrics": {**final, **(more or {})},
        "verdict": {"adapts": {"answer": "yes", "sentences": ["It does."], "figures": {}}},
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps({**run_record, **(run or {})}))
    curve = losses or {10: 0.9, 20: 0.5}
    (folder / "metrics.jsonl").write_text(
        "".join(
            json.dumps({"step": step, "eval/loss": loss, "halting/all/mean": depth}) + "\n"
            for step, loss in curve.items()
        )
    )
    class_figures = {
        name: {"n": 4, "mean": mean, "std": 0.7, "entropy": 1.0, "p10": 1, "p90": 3, "histogram": [0, 1, 2, 1]}
        for name, mean in {"all": depth, **(classes or {})}.items()
    }
    cost = {"adaptive_over_full": work, "executed_over_full": 1.5}
    halting = {
        "step": 20,
        "unit": unit,
        "n": 4,
        "max_depth": 3,
        "classes": class_figures,
        "set": "inside",
        "cost": cost,
    }
    (folder / "halting.json").write_text(json.dumps(halting))
    return folder
