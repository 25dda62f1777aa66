"""Summary of a grid of settings, seeds and epochs: mean and spread of scores, and the best combination."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from adadepth.report.page_writer import write_page
from adadepth.report.section import Section, fill
from adadepth.report.table import Column, Table, make_number_format, plain, text, to_text
from adadepth.runtime.files import write_atomic


@dataclass(frozen=True)
class CellScores:
    """Scores of one combination of settings in a grid search, by epoch and seed.

    Attributes:
        settings: Values of the swept keys in this cell.
        seeds: Seeds that were planned.
        scores: Measured scores by seed and epoch.
        failure: Reason for missing scores.
    """

    settings: Mapping[str, str]
    seeds: Sequence[int]
    scores: Mapping[int, Mapping[int, float]] = field(default_factory=dict)
    failure: str | None = None


def summarise_grid(cells: Sequence[CellScores], *, from_epoch: int, maximize: bool) -> dict[str, Any]:
    """Select the settings and the epoch with the best mean score over seeds (Simoulin & Crabbé 2021).

    An epoch of a cell is eligible if it is not earlier than `from_epoch` and all seeds of the cell have a score for it.
    A mean over fewer seeds would favour cells with failed seeds. If means are equal, the earlier epoch is selected,
    then the cell that is named first. Within the selected cell and epoch, the best seed is selected, and the first one
    if several are equal.

    Returns:
        `rows`, one for each epoch of a cell: `cell`, its number; `settings`, `epoch`, `n`, `values` by seed, `mean` and
        the sample standard deviation `std` (None without enough values), `remark`, and whether it was `chosen`. A cell
        without any score has one row with epoch None.
        `chosen`: `cell`, `settings`, `epoch`, `n`, `mean` and `std` of the chosen row, with the best `seed` and its
        `score`, or None if no row is eligible.
        `left_out`: the settings of incomplete cells, and the reason.
    """
    rows = [row for number, cell in enumerate(cells) for row in _build_rows(number, cell, from_epoch)]
    able = [row for row in rows if not row["remark"]]
    selected = min(able, key=lambda row: (-row["mean"] if maximize else row["mean"], row["epoch"]), default=None)
    if selected is not None:
        selected |= {"chosen": True, "remark": "chosen"}
    left_out = [
        {"settings": dict(cell.settings), "reason": cell.failure or "some of its runs are missing"}
        for cell in cells
        if cell.failure or any(not cell.scores.get(seed) for seed in cell.seeds)
    ]
    return {"rows": rows, "chosen": selected and _select_best_seed(selected, maximize), "left_out": left_out}


def _build_rows(number: int, cell: CellScores, from_epoch: int) -> list[dict[str, Any]]:
    epochs = sorted({epoch for scores in cell.scores.values() for epoch in scores})
    return [_build_row(number, cell, epoch, from_epoch) for epoch in epochs] or [
        _build_row(number, cell, None, from_epoch)
    ]


def _build_row(number: int, cell: CellScores, epoch: int | None, from_epoch: int) -> dict[str, Any]:
    by_seed = {seed: cell.scores.get(seed, {}).get(epoch) for seed in cell.seeds if epoch is not None}
    values = {str(seed): score for seed, score in by_seed.items() if score is not None}
    scores = list(values.values())
    remark = ""
    if len(scores) < len(cell.seeds):
        remark = f"{len(scores)} of {len(cell.seeds)} seeds"
    elif epoch is not None and epoch < from_epoch:
        remark = "too early"
    return {
        "cell": number,
        "settings": dict(cell.settings),
        "epoch": epoch,
        "n": len(scores),
        "values": values,
        "mean": fmean(scores) if scores else None,
        "std": stdev(scores) if len(scores) > 1 else None,
        "remark": remark,
        "chosen": False,
    }


def _select_best_seed(row: Mapping[str, Any], maximize: bool) -> dict[str, Any]:
    sign = -1 if maximize else 1
    seed, score = min(row["values"].items(), key=lambda item: (sign * item[1], int(item[0])))
    fields = {key: row[key] for key in ("cell", "settings", "epoch", "n", "mean", "std")}
    return {**fields, "seed": int(seed), "score": score}


def build_grid_table(grid: Mapping[str, Any]) -> Table:
    """Build the table of scores by epoch for every combination of settings."""
    rows = grid["rows"]
    keys = list(dict.fromkeys(key for row in rows for key in row["settings"]))
    seeds = list(dict.fromkeys(seed for row in rows for seed in row["values"]))
    columns = [
        *(Column(key, key.rpartition(".")[2], text, "text") for key in keys),
        Column("epoch"),
        Column("mean", "mean", make_number_format(4)),
        Column("std", "sd", make_number_format(4)),
        Column("n"),
        *(Column(f"seed_{seed}", f"seed {seed}", make_number_format(4)) for seed in seeds),
        Column("remark", "", text, "text"),
    ]
    flat = [
        {**row, **row["settings"], **{f"seed_{seed}": score for seed, score in row["values"].items()}} for row in rows
    ]
    return Table("grid", columns, flat)


def format_cell_settings(settings: Mapping[str, str]) -> str:
    """Format a combination of settings as on the command line."""
    return " ".join(f"{key}={value}" for key, value in settings.items()) or "the only cell"


CHOICE = "choice.json"


def write_grid(folder: Path, grid: Mapping[str, Any], extra: Sequence[Section] = ()) -> Path:
    """Write the report of a grid search into its folder, and return the path.

    Args:
        folder: Folder of the sweep.
        grid: Result of `summarise_grid`, with `name`, `metric` and `from_epoch`. For the selected run it has `run`,
            `checkpoint` and `evaluation`, which are folders relative to `folder`, and `submissions`, which are files in
            `submission/`.
        extra: Sections that are added after the grid.
    """
    write_atomic(folder / CHOICE, json.dumps(grid, indent=1, allow_nan=False) + "\n")
    table = build_grid_table(grid)
    html = fill("grid", table=table, grid=grid, selected=grid["chosen"], settings=format_cell_settings)
    section = Section("Grid", "grid", html, tables=[table])
    subtitle = f"Grid search, selected by {grid['metric']}"
    sections = [section, *extra]
    return write_page(folder, sections, title=grid["name"], subtitle=subtitle, sources=[CHOICE], owner="this grid")


def format_grid(grid: Mapping[str, Any]) -> str:
    """Format the results of a grid search and its best combination of settings as text."""
    lines = [f"{grid['metric']} of every cell and epoch", "", to_text(build_grid_table(grid)), ""]
    lines += [f"left out: {format_cell_settings(cell['settings'])}: {cell['reason']}" for cell in grid["left_out"]]
    if (selected := grid["chosen"]) is None:
        return "\n".join([*lines, f"no selection: no epoch from {grid['from_epoch']} on has scores of all seeds"])
    spread = "" if selected["std"] is None else f" +- {selected['std']:.4f}"
    seeds = f"over {selected['n']} seeds" if selected["n"] > 1 else "of one seed"
    lines += [
        f"chosen: {format_cell_settings(selected['settings'])}, epoch {selected['epoch']}: {grid['metric']} "
        f"{selected['mean']:.4f}{spread} {seeds}; best seed {selected['seed']}: {selected['score']:.4f}",
    ]
    return plain("\n".join(lines))
