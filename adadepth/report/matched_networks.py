"""Trained matched baselines of a run: networks of fixed depth, with their steps of training, compute and quality.

The rows of rivals.json are networks of one seed. Rows with the same `group` and `depth` differ only in the seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from adadepth.metrics.metric_names import PREFERRED_QUALITIES
from adadepth.report.resources import SIZE_FIELDS, TITLES, average_sizes, describe_matches
from adadepth.report.run_files import RIVALS, RunFiles, read_run
from adadepth.report.section import Section, SectionEntry, fill
from adadepth.report.table import Column, Table, has_values, make_number_format, text, to_text

Networks = Sequence[Mapping[str, Any]]  # rows of rivals.json that differ only in the seed

_METRICS = tuple(f"/{name}" for name in PREFERRED_QUALITIES)


def group_networks(comparison: Mapping[str, Any]) -> list[Networks]:
    """Return the networks of a comparison by group and depth: first the adaptive ones, then each matched baseline.

    Args:
        comparison: Contents of rivals.json, or an empty mapping, which has no networks.
    """
    groups: dict[object, list[Mapping[str, Any]]] = {}
    for number, row in enumerate(comparison.get("rows", [])):
        is_adaptive = number == 0 or row.get("kind") == "adaptive"
        # Rows of earlier versions have no group: each is a baseline of its own.
        key = "adaptive" if is_adaptive else (row.get("group", number), get_depth(row))
        groups.setdefault(key, []).append(row)
    return list(groups.values())


def get_depth(row: Mapping[str, Any]) -> int:
    """Return the fixed depth of a matched baseline, in updates of the adaptive network."""
    depth: int = row["depth"] if "depth" in row else row["max_depth"]
    return depth


def find_fixed_depth(files: RunFiles) -> int | None:
    """Return the fixed depth of a run that is a matched baseline, in updates of the adaptive network.

    The run itself counts its own updates, and a network with fewer layers may have a single one. The depth is therefore
    that of rivals.json of the run that trained the baseline. It is None for any other run, and without that file.
    """
    owner = files.run.get("owner")
    if not files.config.get("rival_of") or owner is None:
        return None
    rows = [row for row in read_run(files.directory.parent / owner).of(RIVALS).get("rows", []) if "depth" in row]
    return next((get_depth(row) for row in rows if Path(row["run"]).name == files.directory.name), None)


def average_compute(networks: Networks) -> float | None:
    """Return the mean over seeds of the multiply-accumulates that the depths require, or None if not recorded.

    Some older rows have only those that were executed.
    """
    macs = [row.get("adaptive_macs", row.get("executed_macs")) for row in networks]
    return None if None in macs else fmean(macs)


def get_steps(networks: Networks) -> list[int | None]:
    """Return the optimiser steps of networks, each None if it is not recorded."""
    return [row.get("steps") for row in networks]


def format_steps(counts: Sequence[int | None]) -> str | None:
    """Format the optimiser steps of networks that differ only in the seed, or return None if one is not recorded."""
    recorded = sorted(count for count in counts if count is not None)
    if not recorded or None in counts:
        return None
    return " to ".join(dict.fromkeys(f"{count:,}" for count in (recorded[0], recorded[-1])))


def describe_unequal_steps(subject: str, steps: Mapping[str, Sequence[int | None]]) -> str | None:
    """Return a sentence on the optimiser steps of networks if they differ, or None if they are equal or unknown.

    Args:
        subject: Noun for the networks, in the plural.
        steps: Optimiser steps for every seed, by the name of the network.
    """
    if len({count for counts in steps.values() for count in counts if count is not None}) < 2:
        return None
    trained = [f"{name}: {text}" for name, counts in steps.items() if (text := format_steps(counts)) is not None]
    return f"{subject} were trained for different numbers of steps: {'; '.join(trained)}."


def _describe_steps(groups: Sequence[Networks]) -> str | None:
    steps = {_name_networks(networks): get_steps(networks) for networks in groups}
    return describe_unequal_steps("The networks", steps)


def _name_networks(networks: Networks) -> str:
    first = networks[0]
    return "adaptive" if first.get("kind") == "adaptive" else f"{first['kind']} {get_depth(first)}"


def build_rival_table(comparison: Mapping[str, Any]) -> Table:
    """Build the table of an adaptive network and its matched baselines: depth, compute, sizes, quality, and matches.

    Values are means over seeds. A column of standard deviations names what it is over: units of an evaluation for the
    depth, and seeds, if there are several, for a metric.

    Args:
        comparison: Contents of rivals.json.
    """
    groups = group_networks(comparison)
    reference = average_compute(groups[0])
    names = [name for name in groups[0][0]["metrics"] if name.endswith(_METRICS) and "/step_" not in name]
    columns = [
        Column("network", "network", text, "text"),
        Column("mean", "depth", make_number_format(4)),
        Column("std", "sd over units", make_number_format(4)),
        Column("macs", "MACs per unit", "{:.4g}".format),
        Column("compute", "compute ratio", make_number_format(4)),
        *(Column(name, TITLES[name], "{:,.0f}".format) for name in SIZE_FIELDS),
        Column("steps", "steps", text, "text"),
        Column("seeds", "seeds"),
    ]
    for name in names:
        columns.append(Column(name, name.removeprefix("eval/"), make_number_format(4)))
        columns.append(Column(f"{name}/std", "sd over seeds", make_number_format(4)))
    columns.append(Column("matches", "against the adaptive network", text, "text"))
    rows = [_describe_networks(networks, names, reference) for networks in groups]
    for row in rows[1:]:
        row["matches"] = describe_matches([rows[0], row]) or None
    return Table("rivals", [column for column in columns if has_values(column, rows)], rows)


def _describe_networks(networks: Networks, names: Sequence[str], reference: float | None) -> dict[str, Any]:
    """Return the table row of networks that differ only in the seed; `reference` is the compute of the adaptive one."""
    first, compute = networks[0], average_compute(networks)
    is_adaptive = first.get("kind") == "adaptive"
    row: dict[str, Any] = {
        "network": _name_networks(networks),
        # A network with fewer layers counts other updates than the adaptive one.
        "mean": fmean(row["mean"] for row in networks) if is_adaptive else float(get_depth(first)),
        "std": fmean(row["std"] for row in networks),
        "macs": compute / first["n"] if compute is not None and first.get("n") else None,
        "compute": compute / reference if compute is not None and reference else None,
        "steps": format_steps(get_steps(networks)),
        "seeds": len(networks) if len(networks) > 1 else None,
        **average_sizes(networks),
    }
    for name in names:
        values = [row["metrics"][name] for row in networks if name in row["metrics"]]
        row[name] = fmean(values) if values else None
        row[f"{name}/std"] = stdev(values) if len(values) > 1 else None
    return row


def format_rivals(comparison: Mapping[str, Any]) -> str:
    """Format an adaptive network and its matched baselines as text for a screen of 100 columns.

    The quality is the first metric of the first evaluated set. `build_rival_table` has all columns, for the report.

    Args:
        comparison: Contents of rivals.json.
    """
    table, steps = build_rival_table(comparison), _describe_steps(group_networks(comparison))
    keys = [column.key for column in table.columns]
    quality = next((name for metric in PREFERRED_QUALITIES if (name := f"eval/{metric}") in keys), None)
    screen_keys = ("network", "mean", "std", "compute", "steps", quality, f"{quality}/std")
    screen = replace(table, columns=[column for column in table.columns if column.key in screen_keys])
    matches = [f"{row['network']}, {row['matches']}" for row in table.rows if row.get("matches")]
    matches = ["\n".join(["against the adaptive network:", *matches])] if matches else []
    header = "matched baselines of fixed depth (compute relative to the adaptive network):"
    return "\n\n".join([header, to_text(screen), *matches, *filter(None, [steps])])


def rivals(files: RunFiles) -> Section | None:
    """Build the report section on trained matched baselines of fixed depth."""
    groups = group_networks(files.of(RIVALS))
    if not groups:
        return None
    table, seeds = build_rival_table(files.of(RIVALS)), len(groups[0])
    sample = f"n = {len(groups)} networks, {'one seed' if seeds == 1 else f'{seeds} seeds'} each"
    html = fill("matched_networks", table=table, unequal_steps=_describe_steps(groups))
    return Section("Matched baselines of fixed depth", "rivals", html, tables=[table], of=sample)


SECTIONS = (SectionEntry(170, rivals),)
