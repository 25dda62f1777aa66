"""Write docs/results.md, its figures docs/figures/bench*.svg and the README's table from results.parquet.

    python benchmarks/results_page.py [FOLDER ...]

Results in the folders are added to the table first; `depth_bench bench=full` writes such folders. The README shows
docs/figures/bench.svg, the figure of the recommended methods.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from results_table import read_table, write_table

from adadepth.contrib.bench.comparisons import describe_p_value
from adadepth.contrib.bench.page import read_results, to_markdown, write_bench
from adadepth.contrib.bench.recommendations import RECOMMENDATIONS, TaskOutcome, evaluate_tasks
from adadepth.report.table import percent

ROOT = Path(__file__).resolve().parents[1]
_TASKS = ROOT / "adadepth" / "contrib" / "bench" / "configs" / "bench" / "task"
PAGE = ROOT / "docs" / "results.md"
README = ROOT / "README.md"
MARKS = ("<!-- results: written by benchmarks/results_page.py -->\n", "<!-- end of results -->")


def read_descriptions() -> dict[str, str]:
    """Return the description of each task of the bench."""
    files = sorted(_TASKS.glob("*.yaml"))
    return {file.stem: yaml.safe_load(file.read_text(encoding="utf-8"))["about"] for file in files}


def locate_figure(name: str) -> str:
    """Return the file of a figure, relative to the page."""
    return "figures/bench.svg" if name == RECOMMENDATIONS else f"figures/bench_{name}.svg"


def format_page(results: Sequence[Mapping[str, Any]]) -> str:
    """Format docs/results.md."""
    return to_markdown(results, read_descriptions(), locate_figure)


def format_readme_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Format the README's table: compute of the cheapest adaptive and fixed-depth method of each task."""
    lines = ["| task | adaptive depth | fixed depth | significant difference | seeds |", "|---|---|---|---|---|"]
    for outcome in evaluate_tasks(results):
        comparison = outcome.depth_comparison
        cheaper = None if comparison is None else comparison.significantly_cheaper
        cells = [
            _format_cheapest(outcome, is_adaptive, cheaper == name)
            for name, is_adaptive in (("first", True), ("second", False))
        ]
        p = "" if comparison is None else f" ({describe_p_value(comparison.p)})"
        verdict = {"first": "adaptive depth needs less", "second": "fixed depth needs less", None: "none"}[cheaper]
        lines.append(f"| `{outcome.task}` | {' | '.join(cells)} | {verdict}{p} | {len(outcome.seeds)} |")
    marks = "≈: interpolated between separately trained networks. †: the measured score is below the required 98 %."
    return "\n".join([*lines, "", marks]) + "\n"


def _format_cheapest(outcome: TaskOutcome, is_adaptive: bool, is_bold: bool) -> str:
    cheapest = outcome.find_cheapest(is_adaptive)
    if cheapest is None:
        return "98 % not reached"
    method, compute = cheapest
    requirement = outcome.get_requirement(method)
    between, below = "≈ " * requirement["is_between_networks"], "†" * requirement["is_below"]
    share = f"{between}{percent(compute.mean / outcome.full_depth)}{below}"
    return f"{f'**{share}**' if is_bold else share} ({method.label})"


def fill_readme(text: str, results: Sequence[Mapping[str, Any]]) -> str:
    """Return the README's text with the table of the results between its marks."""
    before, rest = text.split(MARKS[0])
    return before + MARKS[0] + format_readme_table(results) + MARKS[1] + rest.split(MARKS[1])[1]


def main(folders: list[str]) -> None:
    """Add the results in the folders to the table, and write the page and its figures."""
    if folders:
        new = [result for folder in folders for result in read_results(Path(folder))]
        write_table({result["name"]: result for result in [*read_table(), *new]}.values())
    results = read_table()
    PAGE.write_text(format_page(results), encoding="utf-8")
    README.write_text(fill_readme(README.read_text(encoding="utf-8"), results), encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        write_bench(Path(folder), results, read_descriptions(), [])
        for figure in Path(folder).glob("figures/*.svg"):
            shutil.copy(figure, PAGE.parent / locate_figure(figure.stem))


if __name__ == "__main__":
    main(sys.argv[1:])
