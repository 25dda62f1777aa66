"""Report sections on a run's metadata: settings, data, hardware and final metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from adadepth.config.kinds import kinds
from adadepth.metrics.adaptation import DECIDED, FEWEST_DEPTHS
from adadepth.metrics.metric_names import get_unit_wording
from adadepth.report.baseline_comparison import SURE, UNDECIDED, format_whole_percent
from adadepth.report.run_files import (
    CONFIG,
    EXIT_RULES,
    EXITS,
    SEEDS,
    TEXTS_FILE,
    RunFiles,
    get_early_stop_reason,
    get_evaluation_step,
    get_run_unit,
    get_status,
    is_summary_of_seeds,
)
from adadepth.report.section import Section, SectionEntry, absent, fill
from adadepth.report.table import Column, Table, format_duration, is_number, make_number_format, number, text


def build_facts_section(files: RunFiles) -> Section:
    """Build the report section on a run's settings, environment, final metrics and configuration file."""
    missing = [
        absent(what, files, name)
        for what, name in (("Facts about the run are", "run.json"), ("The configuration is", CONFIG))
        if name in files.missing and not is_summary_of_seeds(files)
    ]
    metrics = final_metrics(files)
    table = Table(
        "final_metrics",
        [Column("metric", "metric", text, "text"), Column("value", "value", make_number_format(4))],
        [{"metric": name, "value": value} for name, value in metrics],
    )
    html = fill(
        "run:facts",
        missing=Markup("").join(missing),
        facts=facts(files),
        table=table if metrics else None,
        expects_metrics=_lacks_metrics(files),
        config=read_config_text(files),
    )
    sample = f"n = {files.of(SEEDS)['n']} runs" if is_summary_of_seeds(files) else "n = 1 run"
    return Section("Run", "run", html, tables=[table] if metrics else [], of=sample)


def _lacks_metrics(files: RunFiles) -> bool:
    """Return whether a run should have metrics in run.json but has none."""
    expects_metrics = not is_summary_of_seeds(files) and not files.of(TEXTS_FILE)
    return "run.json" not in files.missing and expects_metrics and not files.run.get("final_metrics")


def title(files: RunFiles) -> str:
    """Return the title of a run's page: its configuration name, or the name of its folder."""
    return str(files.run.get("config_name") or files.config.get("name") or files.directory.resolve().name)


def facts(files: RunFiles) -> list[tuple[str, str]]:
    """Return (name, value) pairs of a run's settings and environment, for the report."""
    run, config = files.run, files.config
    data = config.get("dataset") or {}
    kind = kinds().get(str(run.get("dataset_schema")))
    length_setting = "sequence_length" if kind is None else kind.positions
    settings = run.get("settings") or {"model": config.get("model")}
    values = {
        **{title: _join_settings(settings.get(group) or {}) for group, title in _SETTING_TITLES.items()},
        "Data": _join_settings({key: data.get(key) for key in ("name", "source", length_setting)}),
        "Tokenizer": tokenizer(files) if get_run_unit(files) == "architecture" else "",
        "Evaluated": _format_value(run.get("evaluated")),
        "Step": "" if (step := get_evaluation_step(files)) is None else number(step),
        "Seed": _format_seeds(files),
        "Hardware": _format_value(run.get("hardware")),
        "Status": ", ended early: ".join(filter(None, (get_status(files), get_early_stop_reason(files)))),
        "Started": _format_value(run.get("started")),
        "Wall time": format_duration(run["wall_time_s"]) if is_number(run.get("wall_time_s")) else "",
        "Command": _format_value(run.get("command")),
        "Git commit": _format_value(run.get("git_commit")),
        "Versions": _format_value(run.get("versions")),
        "Best checkpoint": _format_value(run.get("best_checkpoint")),
        "Error": _format_value(run.get("error")),
    }
    return [(name, value) for name, value in values.items() if value]


# Parts of a configuration -> what they are called; `settings` of run.json has of each what tells a run from others.
_SETTING_TITLES = {
    "model": "Model",
    "features": "Stored states",
    "budget": "Budget",
    "halting": "Second stage",
    "search": "Search",
    "context": "Evaluation",
}


def tokenizer(files: RunFiles) -> str:
    """Describe a run's tokenizer, without which perplexities per token cannot be compared."""
    settings, data = files.config.get("tokenizer") or {}, files.run.get("data") or {}
    trained = (data.get("tokenizer") if isinstance(data, Mapping) else None) or {}
    name = settings.get("path") or settings.get("kind")
    size = trained.get("vocab_size") or settings.get("vocab_size")
    parts = [str(name)] if name else []
    parts += [f"{number(size)} entries"] if size else []
    return ", ".join([*parts, *(["lower-cased"] if settings.get("lowercase") and not settings.get("path") else [])])


def _format_seeds(files: RunFiles) -> str:
    seeds = files.of(SEEDS).get("seeds") or [files.run.get("seed", files.config.get("seed"))]
    if seeds == [None]:
        return ""
    return f"{', '.join(map(str, seeds))} ({len(seeds)} seed{'s' * (len(seeds) != 1)})"


def _join_settings(section: Mapping[str, Any]) -> str:
    entries = ((key, value) for key, value in section.items() if value is not None)
    return ", ".join(str(value) if key == "name" else f"{key} {value}" for key, value in entries)


def _format_value(value: Any) -> str:
    """Format a value of run.json on one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_format_value(item)}" for key, item in value.items() if item not in (None, []))
    return "" if value is None else str(value)


def final_metrics(files: RunFiles) -> list[tuple[str, Any]]:
    """Return the final metrics of a run, from its last evaluation and last training log."""
    metrics = files.run.get("final_metrics") or {}
    return [
        (name, value)
        for name, value in metrics.items()
        if name.split("/")[0] in ("eval", "train") and "/step_" not in name
    ]


def read_config_text(files: RunFiles) -> str:
    """Read the run's config.yaml as text, cut to 12,000 characters."""
    return (files.directory / CONFIG).read_text(encoding="utf-8")[:12_000] if CONFIG not in files.missing else ""


def definitions(files: RunFiles) -> Section:
    """Build the report section that defines its terms and explains absent values."""
    unit, has_exits = get_run_unit(files), bool(files.of(EXITS).get("sets") or files.of(EXIT_RULES).get("sets"))
    shares = {
        "decided": format_whole_percent(DECIDED),
        "undecided": format_whole_percent(UNDECIDED),
        "sure": format_whole_percent(SURE),
    }
    content = {**shares, "fewest": FEWEST_DEPTHS, "not_computed": files.halting.get("missing")}
    html = fill("run:definitions", terms=get_unit_wording(unit).terms, unit=unit, has_exits=has_exits, **content)
    return Section("Definitions", "definitions", html, of=None)


SECTIONS = (SectionEntry(280, definitions), SectionEntry(290, build_facts_section, always=True))
