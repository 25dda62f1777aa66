"""Section of the report on routers: load of each routed part, tokens without any, and what later tokens are worth."""

from __future__ import annotations

from markupsafe import Markup

from adadepth.report.run_files import RunFiles, series
from adadepth.report.section import Section, SectionEntry
from adadepth.report.table import Column, Table, make_number_format, percent, text, to_html

_LOADS = "eval/routing/load_"
_NOTE = Markup(
    '<p class="note">Load: share of the tokens that a routed part processes in evaluation, where no choice depends on '
    "later tokens. In training a part processes as many tokens as its capacity says.</p>\n"
)


def build_routing_section(files: RunFiles) -> Section | None:
    """Return the section on the routers of a run, or None if it has none."""
    last = {name: series(files.metrics, name)[-1][1] for name in _list_measures(files)}
    if not any(name.startswith(_LOADS) for name in last):
        return None
    loads = sorted((int(name.removeprefix(_LOADS)), load) for name, load in last.items() if name.startswith(_LOADS))
    kind = "recursion" if files.config["model"].get("recursions") else "routed layer"
    load_columns = [Column("part", kind), Column("load", "load", percent)]
    table = Table("routing_load", load_columns, [{"part": number, "load": load} for number, load in loads])
    loss = make_number_format(4)
    rows = [
        {"measure": words, "value": loss(last[name]) if name.endswith("_loss") else percent(last[name])}
        for name, words in _MEASURES.items()
        if name in last
    ]
    measures = Table("routing", [Column("measure", "measure", text, "text"), Column("value", "value", text)], rows)
    html = _NOTE + to_html(table) + to_html(measures)
    return Section("Routing", "routing", html, tables=[table, measures])


_MEASURES = {
    "eval/routing/dead": "tokens that no routed part processes",
    "eval/routing/agreement": "choices that equal those of the largest scores of the whole row",
    "eval/task_loss": "task loss (choices without later tokens)",
    "eval/routing/topk_loss": "task loss with the largest scores of the whole row, which see later tokens",
}


def _list_measures(files: RunFiles) -> list[str]:
    names = {name for line in files.metrics for name in line}
    return [name for name in names if name.startswith(_LOADS) or name in _MEASURES]


ROUTING_SECTION = SectionEntry(76, build_routing_section)
