"""The rival of equal work: the same network with one depth for everybody, trained the same way, beside an adaptive run.

`rival_of=<run>` is an ordinary run of its own (it resumes, reports and sweeps like one); what it adds is the depth,
read off the run it is compared with, and at its end a row in that run's rivals.json and report.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from adadepth.analysis.console import difficulty_table, grid_picture, rivals_table
from adadepth.analysis.files import CONFIG, GRIDS, HALTING, RIVALS, write_rivals
from adadepth.analysis.plots import draw_figures
from adadepth.analysis.report import write_report
from adadepth.config import AlbertActModelConfig, BudgetConfig, ExperimentConfig
from adadepth.errors import CheckpointError
from adadepth.training.run_directory import read_record, resolve_run

SUFFIX = "_rival"


def train_rival(config: ExperimentConfig, train: Callable[[ExperimentConfig], dict[str, float]]) -> dict[str, float]:
    """Train the rival of a run, and put the two side by side; returns the rival's metrics."""
    rival, directory = as_rival(config)
    metrics = train(rival)
    if int(os.environ.get("RANK", "0")) == 0:
        compare(directory, _folder_of(rival))
    return metrics


def _folder_of(rival: ExperimentConfig) -> Path:
    """The folder that a rival was trained in: the newest finished one of its seed and of the run it is for."""
    if rival.resume is not None and rival.resume != "latest":
        return Path(rival.resume)
    wanted = (str(rival.rival_of), rival.seed)
    for folder in sorted((Path(rival.output_dir) / rival.name).iterdir(), reverse=True):
        found = yaml.safe_load((folder / CONFIG).read_text(encoding="utf-8")) if (folder / CONFIG).is_file() else {}
        if (found.get("rival_of"), found.get("seed")) == wanted and read_record(folder).get("status") == "finished":
            return folder
    raise AssertionError("the rival has just been trained")


def as_rival(config: ExperimentConfig) -> tuple[ExperimentConfig, Path]:
    """The settings of the rival, and the folder of the run that it is compared with.

    Its depth is the smallest whose work is at least what the run executed, so the rival never has less.

    Raises:
        CheckpointError: If that run is not finished, or has no measured work.
    """
    assert config.rival_of is not None
    assert isinstance(config.model, AlbertActModelConfig), "validated"
    directory = resolve_run(config.rival_of, config, needs=HALTING)
    record, found = read_record(directory), _read(directory / HALTING)
    share = found.get("cost", {}).get("executed_over_full")
    if record.get("status") != "finished" or share is None:
        raise CheckpointError(f"rival_of={config.rival_of}: {directory} is no finished run with measured work")
    depth = max(1, math.ceil(share * found["max_depth"] - 1e-6))
    rival = dataclasses.replace(
        config,
        name=config.name + SUFFIX,
        model=dataclasses.replace(config.model, fixed_depth=depth, num_hidden_layers=depth),
        budget=BudgetConfig(),
        rival_of=str(directory),
    )
    return rival, directory


def compare(directory: Path, rival: Path) -> None:
    """Put the figures of a finished rival beside those of the run in `directory`; print them, draw the report again."""
    earlier = _read(directory / RIVALS).get("rows", [])
    kept = [row for row in earlier if row["kind"] != "adaptive" and Path(row["run"]).name != rival.name]
    rows = [describe(directory, "adaptive"), *kept, describe(rival, "fixed depth")]
    found = {"rows": rows}
    write_rivals(directory, found)
    draw_figures(directory)
    for text in _shown(directory, rival):
        print(f"\n{text}")
    print(f"\n{rivals_table(found)}\n\nreport: {write_report(directory)}", flush=True)


def _shown(directory: Path, rival: Path) -> Iterator[str]:
    """What is worth seeing of the adaptive run: an example, depth by difficulty, the time that it saves."""
    sets: dict[str, Any] = _read(directory / GRIDS).get("sets", {})
    for grids in [grids for grids in sets.values() if grids][:1]:
        yield grid_picture(grids[0])
    if table := difficulty_table(_read(directory / HALTING), _read(rival / HALTING)):
        yield table
    speed = (read_record(directory).get("final_metrics") or {}).get("cost/speedup_over_dense")
    if speed is not None:
        yield f"evaluation without the halted tokens: {speed:.2f} times as fast as with them, and the same results"


def describe(directory: Path, kind: str) -> dict[str, Any]:
    """A row: what the network is, its depth and work, and how good it is on every evaluated set."""
    record, found = read_record(directory), _read(directory / HALTING)
    everyone, cost = found["classes"]["all"], found["cost"]
    metrics: Mapping[str, Any] = record.get("final_metrics") or {}
    return {
        "kind": kind,
        "run": str(directory),
        "seed": record.get("seed"),
        "mean": everyone["mean"],
        "std": everyone["std"],
        "max_depth": found["max_depth"],
        "executed_macs": cost.get("executed_macs"),
        "seconds": record.get("wall_time_s"),
        "metrics": {name: value for name, value in metrics.items() if name.startswith("eval")},
    }


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
