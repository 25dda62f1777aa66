"""Report of the first hour on a device: a page without external files, and the same as one JSON file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from first_hour_steps import Step, find_crossovers, read_benchmark
from markupsafe import Markup

from adadepth.report.page_writer import write_page
from adadepth.report.run_files import write_json
from adadepth.report.section import Section
from adadepth.report.table import Column, Table, format_duration, make_number_format, text, to_html

RESULTS = "first_hour.json"
WORDS = {"done": "done", "failed": "failed", "cut": "its time ran out", "waiting": "not begun"}


def write_report(
    folder: Path, setup: Mapping[str, Any], plan: Sequence[Step], results: Mapping[str, Mapping[str, Any]]
) -> Path:
    """Write first_hour.json and report.html, and return the page.

    Args:
        folder: Folder of the files.
        setup: Machine, versions, and the command of the steps.
        plan: All steps.
        results: Status, seconds, command, error and figures of the started steps, by name.
    """
    write_json(folder / RESULTS, {**setup, "steps": dict(results)})
    sections = [_build_overview(plan, results), _build_machine_section(setup), *_build_crossovers(folder)]
    sections += [_build_step_section(step, results[step.name]) for step in plan if step.name in results]
    device = setup["device"]["name"]
    return write_page(folder, sections, title="The first hour", subtitle=device, sources=[RESULTS], owner="this folder")


def _build_overview(plan: Sequence[Step], results: Mapping[str, Mapping[str, Any]]) -> Section:
    columns = [
        Column("step", "step", text, "text"),
        Column("status", "status", text, "text"),
        Column("time", "time", format_duration),
        Column("figures", "figures"),
        Column("error", "what went wrong", text, "text", absent=""),
    ]
    rows = [
        {
            "step": step.title,
            "status": WORDS[result.get("status", "waiting")],
            "time": result.get("seconds"),
            "figures": len(result.get("figures", [])),
            "error": result.get("error"),
        }
        for step in plan
        for result in (results.get(step.name, {}),)
    ]
    done = sum(row["status"] == WORDS["done"] for row in rows)
    table = Table("steps", columns, rows)
    note = Markup('<p class="note">{} of {} steps are done. The same command goes on with the others.</p>')
    html = to_html(table, wide=True) + note.format(done, len(rows))
    return Section("Steps", "steps", html, tables=[table], of=None)


def _build_machine_section(setup: Mapping[str, Any]) -> Section:
    facts = {**setup["device"], **setup["hardware"], "commit": setup["git_commit"], "begun": setup["begun"]}
    facts |= {f"version of {name}": version for name, version in setup["versions"].items()}
    rows = [{"fact": name, "value": value} for name, value in facts.items() if value not in (None, [])]
    columns = [Column("fact", "fact", text, "text"), Column("value", "value", text, "text")]
    table = Table("machine", columns, rows)
    return Section("Machine", "machine", to_html(table), tables=[table], of=None)


def _build_crossovers(folder: Path) -> Iterator[Section]:
    """Yield the section that compares measured crossovers with the accelerator defaults, which are guesses."""
    rows = read_benchmark(folder / "ragged").get("rows", [])
    if not rows:
        return
    sentences = []
    for mode, least in find_crossovers(rows).items():
        count = sum(row["mode"] == mode for row in rows)
        if least is None:
            sentence = f"{mode}: the largest of {count} sizes is not faster ragged; dense stays the better choice."
        else:
            macs = f"{least / 1e6:,.1f} million multiply-accumulates an iteration"
            sentence = f"{mode}: ragged is faster from {macs} on, of {count} sizes."
        sentences.append(Markup("<li>{}</li>").format(sentence))
    html = Markup("<ul>{}</ul>").format(Markup("").join(sentences)) + Markup(
        '<p class="note">An iteration of B rows of T tokens has 12 H² B T. <code>model.execution=ragged</code> or '
        "<code>dense</code> chooses for a run. What <code>auto</code> does is set for a kind of device by "
        "<code>_THREAD_NEEDS</code> in adadepth/models/albert_act/modeling.py (the larger of the numbers above; an "
        "accelerator has none, and runs dense), and how much work must be saved before tokens are packed anew by "
        "<code>_REPACK_SAVES</code> in ragged.py beside it. Few sizes give a rough number: send it with this page.</p>"
    )
    yield Section("Ragged or dense", "crossovers", html, of=None)


def _build_step_section(step: Step, result: Mapping[str, Any]) -> Section:
    columns = [
        Column("what", "what", text, "text"),
        Column("value", "value", make_number_format(4)),
        Column("unit", "unit", text, "text", absent=""),
        Column("n", "n"),
        Column("low", "from", make_number_format(4)),
        Column("high", "to", make_number_format(4)),
    ]
    parts = [Markup("<p>{}</p>").format(step.description)]
    if result["status"] != "done":
        warning = f"{WORDS[result['status']]}: {result['error']}"
        parts.append(Markup('<p class="warning">{}</p>').format(warning))
    table = Table(f"first_hour_{step.name}", columns, result["figures"])
    if result["figures"]:
        parts.append(to_html(table, wide=True))
    parts.append(Markup("<details><summary>Command</summary><pre>{}</pre></details>").format(result["command"]))
    tables = [table] if result["figures"] else []
    return Section(step.title, step.name, Markup("").join(parts), tables=tables, of=None)
