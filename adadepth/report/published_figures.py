"""Report section with published scores beside those of a run that could reproduce them.

The scores and their sources are in published_figures.yaml.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from markupsafe import Markup

from adadepth.report.run_files import RunFiles, max_updates
from adadepth.report.section import Section, SectionEntry
from adadepth.report.table import Column, Table, is_number, make_number_format, text, to_html
from adadepth.runtime.plain_yaml import parse_yaml

_FILE = Path(__file__).with_name("published_figures.yaml")
_UPDATES = "updates"  # name of the maximum number of updates among settings


@cache
def load_published_figures() -> tuple[Mapping[str, Any], ...]:
    """Return the entries of published_figures.yaml, one per source."""
    return tuple(parse_yaml(_FILE.read_text(encoding="utf-8")))


def find_published_figures(files: RunFiles) -> list[dict[str, Any]]:
    """Return a row for each metric of a run that was published for its model family and data set.

    Of several published models, the one with the fewest different settings is used.

    Returns:
        Rows with `metric`, the score `run` of the run and the `published` one, the published `model`, `differences` of
        settings in words, `note` and `source`.
    """
    metrics = files.run.get("final_metrics") or {}
    rows: dict[tuple[str, str], tuple[int, dict[str, Any]]] = {}
    for entry, model, metric, published in _list_scores(files):
        if not is_number(metrics.get(metric)):
            continue
        differences = list(_list_differences(files, model["settings"]))
        row = {
            "metric": metric,
            "run": metrics[metric] * (100 if entry["percent"] else 1),
            "published": published,
            "model": model["name"],
            "differences": ". ".join(differences),
            "note": entry["note"],
            "source": entry["source"],
        }
        key = entry["source"], metric
        if key not in rows or len(differences) < rows[key][0]:
            rows[key] = len(differences), row
    return [row for _, row in rows.values()]


def _list_scores(files: RunFiles) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any], str, float]]:
    """Yield source, model, metric and score of everything published for the family and the data set of a run."""
    family, dataset = (str((files.config.get(group) or {}).get("name")) for group in ("model", "dataset"))
    for entry in load_published_figures():
        if entry["family"] == family:
            for model in entry["models"]:
                for metric, score in model["scores"].get(dataset, {}).items():
                    yield entry, model, metric, score


def _list_differences(files: RunFiles, settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield the settings in which a run differs from a published model.

    A size that the run takes from its checkpoint is unknown and is not compared.
    """
    for key, published in settings.items():
        value = max_updates(files) if key == _UPDATES and files.halting else _get_setting(files.config, key)
        is_unknown = value is None and (key == _UPDATES or key.startswith("model."))
        if value != published and not is_unknown:
            yield f"Published for {key}={_format_setting(published)}, this run: {_format_setting(value)}"


def _get_setting(config: Mapping[str, Any], key: str) -> Any:
    """Return the value of a dotted key of a configuration, or None if it is not set."""
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _format_setting(value: Any) -> str:
    """Format the value of a setting as in an override."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:g}" if is_number(value) else str(value)


def build_published_figures(files: RunFiles) -> Section | None:
    """Build the report section with published scores, or return None if nothing was published for such a run."""
    rows = find_published_figures(files)
    if not rows:
        return None
    columns = [
        Column("metric", write=text, kind="code"),
        Column("run", "this run", make_number_format(2)),
        Column("published", "published", make_number_format(2)),
        Column("model", "published model", text, "text"),
        *(Column(key, write=text, kind="text", where="file") for key in ("source", "note", "differences")),
    ]
    table = Table("published_figures", columns, rows)
    remarks = dict.fromkeys((row["model"], row["source"], row["note"], row["differences"]) for row in rows)
    paragraphs = [
        Markup('<p class="note">{}: {}; {}. {}.</p>\n').format(
            model, source, note, differences or "The compared settings are equal"
        )
        for model, source, note, differences in remarks
    ]
    html = Markup("").join([to_html(table), *paragraphs])
    return Section("Published scores", "published_figures", html, tables=[table], of=None)


SECTIONS = (SectionEntry(25, build_published_figures, always=True),)
