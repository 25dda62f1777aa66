"""Multiply-accumulates: executed, and needed by the depths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adadepth.analysis.files import RunFiles, run_unit, series
from adadepth.analysis.render.formats import percent
from adadepth.analysis.render.section import Section, absent, fill
from adadepth.analysis.render.table import Column, Table, text
from adadepth.analysis.units import words


def work(files: RunFiles) -> Section | None:
    """What was computed, beside what had to be."""
    cost, unit = files.halting.get("cost", {}), run_unit(files)
    if not cost:
        is_told = unit == "architecture" and not files.halting  # a comparison alone measures no work
        return None if is_told else Section("Work", "work", absent("Work is", files, "halting.json"))
    table = work_table(cost, unit)
    speed = [value for _, value in series(files.metrics, "eval/tokens_per_second")]
    html = fill(
        "work", table=table, unit=unit, cost=cost, evaluation_speed=speed[-1] if speed else None,
        times=_times(files), from_cache=files.halting.get("layers", {}).get("from_cache", False),
        runs_all_steps=bool(files.exits.get("sets")),
    )  # fmt: skip
    return Section("Work", "work", html, tables=[table])


def _times(files: RunFiles) -> str:
    """Where times were measured."""
    studies = files.exit_rules.get("sets", {}).values()
    if any("seconds" in row for study in studies for row in study["rows"]):
        return "the exit rules"
    return (
        "the architectures compared" if any(row.get("seconds") for row in files.architectures.get("rows", ())) else ""
    )


def work_table(cost: Mapping[str, Any], unit: str) -> Table:
    """A row for every count of multiply-accumulates, with its shares of two others."""
    about = words(unit)
    names = {"executed": "executed, padding included", "dense": "dense: every row until the deepest has halted",
             "adaptive": about.needed, "full": about.full}  # fmt: skip
    if not about.halts:
        del names["dense"]
    columns = [
        Column("work", "work", text, "text"),
        Column("macs", about.macs, "{:.4g}".format),
        *([Column("of_dense", "of dense", percent)] if "dense" in names else []),
        Column("of_full", f"of {about.of_full}", percent),
    ]
    return Table("work", columns, [{"work": name, **_shares(cost, key)} for key, name in names.items()])


def _shares(cost: Mapping[str, Any], key: str) -> dict[str, float]:
    macs = cost.get(f"{key}_macs")
    if macs is None:
        return {}
    shares = {f"of_{whole}": macs / cost[f"{whole}_macs"] for whole in ("dense", "full") if cost.get(f"{whole}_macs")}
    return {"macs": macs, **shares}
