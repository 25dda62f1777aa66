"""Write docs/results.md and its figures docs/figures/bench*.svg from the results of the full bench in results.parquet.

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

from adadepth.contrib.bench.page import read_results, to_markdown, write_bench
from adadepth.contrib.bench.recommendations import RECOMMENDATIONS

ROOT = Path(__file__).resolve().parents[1]
_TASKS = ROOT / "adadepth" / "contrib" / "bench" / "configs" / "bench" / "task"
PAGE = ROOT / "docs" / "results.md"


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


def main(folders: list[str]) -> None:
    """Add the results in the folders to the table, and write the page and its figures."""
    if folders:
        new = [result for folder in folders for result in read_results(Path(folder))]
        write_table({result["name"]: result for result in [*read_table(), *new]}.values())
    results = read_table()
    PAGE.write_text(format_page(results), encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        write_bench(Path(folder), results, read_descriptions(), [])
        for figure in Path(folder).glob("figures/*.svg"):
            shutil.copy(figure, PAGE.parent / locate_figure(figure.stem))


if __name__ == "__main__":
    main(sys.argv[1:])
