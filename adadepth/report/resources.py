"""Resources in which compared networks are matched: compute, parameters, and bytes of cache per token.

A control is complete if it is matched in all three (SMELT, arXiv 2609.01343). Networks of equal compute may have other
numbers of parameters, as layers that are run repeatedly, and other caches, as loops that each store keys and values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from adadepth.report.run_files import RunFiles

# Networks whose compute, or another resource, differs by at most this share are matched in it.
EQUAL_COMPUTE = 0.01
SIZE_FIELDS = ("parameters", "cache_bytes_per_token")  # fields of run.json and of a row of rivals.json
TITLES = {"compute": "compute", "parameters": "parameters", "cache_bytes_per_token": "cache bytes per token"}

Resources = Mapping[str, float | None]  # by the names of TITLES; None where a resource was not measured


def average_sizes(networks: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return the means over seeds of parameters and cache bytes per token, each None if it was not recorded."""
    sizes: dict[str, list[Any]] = {name: [network.get(name) for network in networks] for name in SIZE_FIELDS}
    return {name: None if None in values else fmean(values) for name, values in sizes.items()}


def get_sizes(files: RunFiles) -> dict[str, Any]:
    """Return parameters and cache bytes per token of a run, without those that it did not record."""
    return {name: files.run[name] for name in SIZE_FIELDS if files.run.get(name) is not None}


def compute_ratio(first: Resources, second: Resources, name: str) -> float | None:
    """Return a resource of the first network over that of the second, or None if one of both was not measured."""
    value, other = first.get(name), second.get(name)
    return value / other if value and other else None


def describe_matches(networks: Sequence[Resources]) -> str:
    """Describe in which resources all networks are matched and in which they are not; empty if nothing was measured."""
    parts: dict[str, list[str]] = {"matched": [], "not matched": []}
    for name, title in TITLES.items():
        values = [network.get(name) for network in networks]
        measured = [value for value in values if value is not None]
        if measured and len(measured) == len(values):
            is_matched = max(measured) <= (1 + EQUAL_COMPUTE) * min(measured)
            parts["matched" if is_matched else "not matched"].append(title)
        elif measured:
            parts.setdefault("not known", []).append(title)
    return "; ".join(f"{state}: {', '.join(titles)}" for state, titles in parts.items() if titles)
