"""Several runs that differ in their seed only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adadepth.analysis.architecture.sections import letters
from adadepth.analysis.architecture.tables import third_table
from adadepth.analysis.files import RunFiles
from adadepth.analysis.measure.seed_tables import layer_seed_table, seed_table
from adadepth.analysis.render.section import Section, fill


def seeds(files: RunFiles) -> Section | None:
    """Metrics over seeds, and how far learned layers and searched architectures agree."""
    return seeds_section(files.seeds) if files.seeds else None


def seeds_section(found: Mapping[str, Any]) -> Section:
    """The same of a summary from `summarise_seeds`."""
    table, layer_table = seed_table(found), layer_seed_table(found)
    agreement = found.get("architecture_agreement")
    strips = [(seed, letters(string)) for seed, string in agreement["strings"].items()] if agreement else []
    thirds = third_table(agreement["thirds"]) if agreement else None
    html = fill(
        "seeds", thirds=thirds, n=found["n"], table=table, layer_table=layer_table,
        distance=found.get("layer_distance"), agreement=agreement, strips=strips,
    )  # fmt: skip
    title = f"Over {found['n']} seed{'' if found['n'] == 1 else 's'}"
    return Section(title, "seeds", html, tables=[table, *([layer_table] if layer_table else [])],
                   of=f"n = {found['n']} run{'' if found['n'] == 1 else 's'}")  # fmt: skip
