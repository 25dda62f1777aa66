"""The section of the report: when the training reached which depth."""

from __future__ import annotations

from markupsafe import Markup

from adadepth.report.run_files import RunFiles
from adadepth.report.section import Section, SectionEntry
from adadepth.report.table import Column, Table, number, to_html


def _depths_reached(files: RunFiles) -> Section | None:
    found = files.of("brackets.json", {"reached": list}).get("reached")
    if not found:
        return None
    columns = [Column("depth", "depth", number), Column("update", "from update", number)]
    table = Table("brackets", columns, [{"depth": depth, "update": update} for update, depth in found])
    return Section("Depths of brackets", "brackets", Markup(to_html(table)), tables=[table], of="n = 1 run")


depths_reached = SectionEntry(255, _depths_reached)  # before the losses and the text on words, which end a page
