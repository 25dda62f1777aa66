"""Make docs/results.md, and the figure that README shows, from the results of the full bench in results.parquet.

    python benchmarks/results_page.py [FOLDER ...]

Results in the folders are taken into the table first; `depth_bench bench=full` writes such folders.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import yaml
from results_table import read_table, write_table

from adadepth.contrib.bench.page import read_results, to_markdown, write_bench

ROOT = Path(__file__).resolve().parents[1]
FIRST = "hops_causal"  # whose figure README shows


def main(folders: list[str]) -> None:
    if folders:
        new = [result for folder in folders for result in read_results(Path(folder))]
        write_table({result["name"]: result for result in [*read_table(), *new]}.values())
    results = read_table()
    files = sorted((ROOT / "configs" / "bench" / "task").glob("*.yaml"))
    about = {file.stem: yaml.safe_load(file.read_text(encoding="utf-8"))["about"] for file in files}
    (ROOT / "docs" / "results.md").write_text(to_markdown(results, about), encoding="utf-8")
    with tempfile.TemporaryDirectory() as page:
        write_bench(Path(page), results, about, [])
        (picture,) = Path(page).glob(f"figures/*{FIRST}*.svg")
        shutil.copy(picture, ROOT / "docs" / "figures" / "bench.svg")


if __name__ == "__main__":
    main(sys.argv[1:])
