"""Report pages of runs and of comparisons, made only from the files of runs.

The page is a list of sections. Each section is built from the files, and is skipped if they have no data for it. The
figures and tables of a section are also written as separate files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from adadepth import report
from adadepth.metrics.metric_names import get_unit_wording
from adadepth.report import export
from adadepth.report.architectures import build_frame_panel, get_search_history
from adadepth.report.baseline_comparison import Verdict
from adadepth.report.comparison import (
    build_comparison_sections,
    build_sections_beside_seeds,
    build_tradeoff_section,
    count_runs,
)
from adadepth.report.figure import subsample
from adadepth.report.guard import build_or_leave_out
from adadepth.report.matched_networks import rivals
from adadepth.report.page_writer import FIGURES, sanitise_file_name, write_page
from adadepth.report.quality_against_compute import build_quality_section
from adadepth.report.run_files import (
    CONFIG,
    HALTING,
    METRICS,
    RUN,
    SEEDS,
    RunFiles,
    evaluated,
    get_early_stop_reason,
    get_evaluation_step,
    get_run_unit,
    get_status,
    is_interrupted,
    is_summary_of_seeds,
    max_updates,
    read_seed_runs,
    sources,
)
from adadepth.report.run_groups import Comparison, compare, join_names
from adadepth.report.run_metadata import build_facts_section, title
from adadepth.report.section import Section, SectionEntry, SectionOf
from adadepth.report.seeds import seeds
from adadepth.report.verdict import build_verdict_section, verdict

FILM = "gates.gif"
_MAX_FRAMES = 60  # of the film

VERDICT_ORDER = 10
EXTRA_ORDER = 120  # where sections stand that are functions of another package, or of a family: after depths


@cache
def collect_sections() -> tuple[SectionEntry, ...]:
    """Return the report sections that the modules of this package declare, in order."""
    modules = (import_module(f"{report.__name__}.{module.name}") for module in iter_modules(report.__path__))
    registered = (placed for module in modules for placed in getattr(module, "SECTIONS", ()))
    return tuple(sorted(registered, key=lambda placed: placed.order))


def _build_sections(files: RunFiles, findings: Verdict, extra: Iterable[SectionOf | SectionEntry]) -> list[Section]:
    """Build the sections of a run's report page, in order."""
    if is_summary_of_seeds(files):
        return _build_seed_sections(files, findings)

    def build_verdict(files: RunFiles) -> Section | None:
        return build_verdict_section(files, findings)

    own_entries = [*collect_sections(), SectionEntry(VERDICT_ORDER, build_verdict)]
    extra_entries = [entry if isinstance(entry, SectionEntry) else SectionEntry(EXTRA_ORDER, entry) for entry in extra]
    placed = sorted((*own_entries, *extra_entries), key=lambda placed: placed.order)
    if alone := _find_standalone(files, placed):
        placed = [entry for entry in placed if entry is alone or entry.always]
    else:
        placed = [entry for entry in placed if entry.alone is None]
    sections = (build_or_leave_out(entry.build, files, None) for entry in placed)
    return [_add_sample_size(section, files) for section in sections if section is not None]


def _find_standalone(files: RunFiles, placed: Iterable[SectionEntry]) -> SectionEntry | None:
    """Return the section that replaces the whole report because its file exists, or None if there is no such file."""
    return next((entry for entry in placed if entry.alone is not None and files.of(entry.alone)), None)


def _build_seed_sections(summary: RunFiles, findings: Verdict) -> list[Section]:
    """Build the sections of a summary over seeds and, if it names its runs, the sections that compare them."""
    comparison = compare(read_seed_runs(summary))
    beside = build_sections_beside_seeds(comparison, summary.directory) if comparison.runs else []
    sections = [
        _build_seed_quality(summary, comparison),
        build_verdict_section(summary, findings),
        *(build_or_leave_out(build, summary, None) for build in (rivals, seeds)),
        *beside,
        build_or_leave_out(build_facts_section, summary, None),
    ]
    return [_add_sample_size(section, summary) for section in sections if section is not None]


def _build_seed_quality(summary: RunFiles, comparison: Comparison) -> Section | None:
    """Build the section on quality against compute: means over seeds beside those of baselines, and every seed."""
    means = build_or_leave_out(build_quality_section, summary, None)
    by_seed = build_tradeoff_section(comparison, summary.directory)
    if means is None or by_seed is None:
        return means or by_seed
    return replace(by_seed, html=means.html + by_seed.html, figures=[*means.figures, *by_seed.figures])


def _add_sample_size(section: Section, files: RunFiles) -> Section:
    """Add the sample size, such as `n = 3 runs`, to a section and its figures."""
    sample = evaluated(files) if section.of == "" else section.of or ""
    return replace(section, of=sample, figures=[replace(figure, of=sample) for figure in section.figures])


@dataclass(frozen=True)
class RunReport:
    """Report of a run, built once from its files and then written, drawn and printed.

    Attributes:
        files: Files of the run.
        verdict: Verdict on adaptive depth, which is empty if it cannot be decided.
        sections: Sections of the page, in order.
    """

    files: RunFiles
    verdict: Verdict
    sections: Sequence[Section]


def build_report(files: RunFiles, extra: Iterable[SectionOf | SectionEntry] = ()) -> RunReport:
    """Build the report of a run.

    Args:
        files: Files of the run.
        extra: Sections of the model family and of the dataset type.
    """
    findings: Verdict = build_or_leave_out(verdict, files, {})
    return RunReport(files, findings, _build_sections(files, findings, extra))


def write_report(report: RunReport) -> Path:
    """Write the report page of a run, its tables as CSV and LaTeX, and its figures as SVG, and return its path.

    Any file of the run may be missing or damaged, and its section then says so. Sections about exits, exit rules,
    compared architectures and seeds exist only if the run has such files. A directory with seeds.json but without
    halting.json has a small page.
    """
    files = report.files
    # A signal is no error; the subtitle names the interruption.
    error = None if is_interrupted(files) else files.run.get("error")
    return write_page(
        files.directory, report.sections, title=title(files), subtitle=_format_subtitle(files),
        sources=sources(files), error=error, max_updates=max_updates(files),
    )  # fmt: skip


def _format_subtitle(files: RunFiles) -> str:
    """Format the subtitle of a run's report page."""
    if is_summary_of_seeds(files):
        n = files.of(SEEDS)["n"]
        return f"{n} run{'s' * (n != 1)} that differ in the seed"
    if alone := _find_standalone(files, collect_sections()):
        return f"{alone.subtitle} · run {get_status(files) or 'unknown'}"
    parts = [f"{get_unit_wording(get_run_unit(files)).kind} report"]
    if "evaluated" in files.run:
        parts.append("evaluation of a trained model")
    elif (step := get_evaluation_step(files)) is not None:
        parts.append(f"evaluation at step {step:,}")
    if "status" in files.run:
        reason = get_early_stop_reason(files)
        parts.append(f"run ended early: {reason}" if reason else f"run {get_status(files)}")
    return " · ".join(parts)


def draw_figures(report: RunReport) -> list[Path]:
    """Draw every figure of a run's report as PNG and PDF and, for an architecture search, as an animation.

    Returns:
        Paths of the files.
    """
    directory = report.files.directory
    paths = draw(report.sections, directory)
    history = subsample(get_search_history(report.files), _MAX_FRAMES)
    if len(history) < 2:
        return paths
    film = directory / FIGURES / FILM
    export.save_film([build_frame_panel(step, described) for step, described in history], film)
    return [*paths, film]


def draw(sections: Iterable[Section], directory: Path) -> list[Path]:
    """Draw the figures of report sections as PNG and PDF files, and return their paths."""
    figures = [figure for section in sections for figure in section.figures]
    named_figures = [replace(figure, name=sanitise_file_name(figure.name)) for figure in figures]
    return [path for figure in named_figures for path in export.save_figure(figure, directory / FIGURES)]


COMPARISONS = "comparisons"  # the folder of such pages
_SOURCES = (RUN, CONFIG, METRICS, HALTING)


def write_comparison(folder: Path, comparison: Comparison) -> Path:
    """Write the report page of a comparison of runs, with its tables and figures, and return its path.

    `draw_comparison` writes the figures as PNG and PDF.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = list(dict.fromkeys(title(run) for run in comparison.runs))
    return write_page(
        folder, build_comparison_sections(comparison, folder), title=join_names(names, 3), sources=_SOURCES,
        owner="these runs", subtitle=f"Comparison of runs, {count_runs(comparison)}",
    )  # fmt: skip


def draw_comparison(folder: Path, comparison: Comparison) -> list[Path]:
    """Draw the figures of a comparison of runs as PNG and PDF, and return their paths."""
    return draw(build_comparison_sections(comparison, folder), folder)
