"""Duration and verdict of every configuration that needs no download.

    python benchmarks/first_minutes.py [--folder FOLDER] [--only NAME ...] [--seeds 0 1 2] [--jobs 1|2] [--threads 1]
        [--page docs/first_minutes.md]

A run is `python adadepth/run.py --config-name NAME seed=SEED` and nothing else. The result of every run is stored in
the folder, so that the same command resumes after an interruption and repeats failed runs. The table is printed. With
--page, the results are also written to the JSON file beside the page, where they replace those of the same runs, and
the tables of all results in that file are written into the page, between its two marks. The first table has the
configurations that are better than their matched baseline with four of five seeds, and the second one all others, with
the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any

from adadepth.report.baseline_comparison import ANSWERS, qualities
from adadepth.report.run_files import HALTING, RunFiles, read_run, write_json
from adadepth.runtime.files import write_atomic

ROOT = Path(__file__).resolve().parents[1]
# The quickest first.
CONFIGURATIONS = (
    "adalayers_tiny", "ponder_tiny", "ponder_parity", "act_hops", "act_addition", "act_maze", "loop_hops", "loop_trace",
    "loop_mano", "ponder_hops", "exit_hops", "exit_bigram", "exit_tiny", "loop_tiny", "par_tiny", "trm_tiny",
    "act_tiny", "act_small", "act_base",
)  # fmt: skip
SHOWN = 0.8  # share of seeds with the answer yes, from which a configuration is in the first table
# Why a configuration is not better than its matched baseline.
REASONS = {
    "ponder_tiny": "the network reads single words: it scores below logistic regression on word counts, at any depth",
    "ponder_hops": "every step answers, but the halting head hardly tells the steps apart; a head that is trained "
    "alone afterwards (`halting.alone=true`) exits after 1.3 to 1.6 steps",
    "loop_trace": "the network does not learn to look up names in these optimiser steps",
    "loop_mano": "the network learns expressions with one operation only",
    "exit_bigram": "396 sentences decide, too few to show a gain of .015 in accuracy over fixed exits with every seed",
    "exit_tiny": "a layer is worth little in a model of this size, and reading an exit costs more than a layer",
    "loop_tiny": "as for `exit_tiny`",
    "par_tiny": "the search finds no better networks than a random choice of as many blocks",
    "act_tiny": "two seeds of three are better, the third one is not clearly better than one fixed depth",
    "act_small": "a masked word hardly needs the depth of its token in a model of this size",
    "act_base": "as for `act_small`",
}
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
UNKNOWN = ANSWERS["unknown"]
# Name of a comparison in the table, by the prefix of its figure's name.
_COMPARED = {
    "fixed_step": "one fixed depth",
    "random_depths": "shuffled depths",
    "matched_baseline": "last layer, trained",
    "architecture": "networks of equal compute, trained",
}
_GAIN = "gain_over_"
Cell = tuple[str, int]  # name of a configuration, and seed


def main() -> None:
    """Run the cells that are not done, and write the table; exit with an error if a run failed."""
    options = parse_options()
    folder = options.folder.resolve()
    cells = [(name, seed) for seed in options.seeds for name in options.only]
    missing = [cell for cell in cells if not locate_result(folder, *cell).exists()]
    with ThreadPoolExecutor(options.jobs) as pool:
        errors = list(filter(None, pool.map(lambda cell: run_cell(folder, cell[0], cell[1], options.threads), missing)))
    results = {cell: read_result(folder, *cell) for cell in cells if locate_result(folder, *cell).exists()}
    if options.page is not None:
        results = merge_results(options.page.with_suffix(".json"), results)
    table = format_tables(list(summarise(results)))
    print(table, flush=True)
    if options.page is not None:
        write_page(options.page, table)
    if errors:
        raise SystemExit("\n".join(errors))


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=ROOT / "outputs" / "first_minutes")
    parser.add_argument("--only", nargs="+", choices=CONFIGURATIONS, default=list(CONFIGURATIONS), metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="SEED")
    parser.add_argument("--jobs", type=int, choices=(1, 2), default=1, help="runs beside each other")
    parser.add_argument("--threads", type=int, default=1, help="threads of each run")
    parser.add_argument("--page", type=Path, help="a page that has the table between its marks")
    return parser.parse_args()


def locate_result(folder: Path, name: str, seed: int) -> Path:
    """Return the file of a run's result."""
    return folder / f"{name}.{seed}.json"


def run_cell(folder: Path, name: str, seed: int, threads: int) -> str | None:
    """Run a configuration with a seed and write its result to a file; return an error."""
    output, log = folder / "outputs" / f"{name}.{seed}", folder / f"{name}.{seed}.log"
    output.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "adadepth/run.py", "--config-name", name, f"seed={seed}"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(ROOT)}
    print(f"{name} seed {seed}: {log}", flush=True)
    begun = time.monotonic()
    with log.open("wb") as file:
        status = subprocess.call(
            [*command, f"output_dir={output}"], cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, env=environment
        )
    seconds = time.monotonic() - begun
    if status:
        return f"{name} seed {seed}: failed with status {status}, {log}"
    run = max(output.glob(f"{name}/*/run.json"), key=lambda path: path.stat().st_mtime).parent
    write_json(locate_result(folder, name, seed), {"minutes": seconds / 60, **describe_run(read_run(run))})
    print(f"{name} seed {seed}: {seconds / 60:.1f} minutes", flush=True)
    return None


def read_result(folder: Path, name: str, seed: int) -> dict[str, Any]:
    """Return the result of a run."""
    result: dict[str, Any] = json.loads(locate_result(folder, name, seed).read_text(encoding="utf-8"))
    return result


def merge_results(file: Path, results: Mapping[Cell, dict[str, Any]]) -> dict[Cell, dict[str, Any]]:
    """Write results into a JSON file beside those that it has, and return all of them."""
    stored = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    stored |= {f"{name}.{seed}": result for (name, seed), result in results.items()}
    write_json(file, dict(sorted(stored.items())))
    return {(key.rpartition(".")[0], int(key.rpartition(".")[2])): result for key, result in stored.items()}


def summarise(results: Mapping[Cell, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield a row of the table, the results of all seeds, for every configuration with a result."""
    for name in CONFIGURATIONS:
        rows = [results[cell] for cell in sorted(results) if cell[0] == name]
        if rows:
            compared = dict.fromkeys(words for row in rows for words in row["compared"])
            columns = {key: [row[key] for row in rows] for key in rows[0]}
            yield {"name": name, **columns, "compared": list(compared)}


def describe_run(run: RunFiles) -> dict[str, Any]:
    """Return answers, depth, quality and comparisons of a run."""
    verdict = run.run.get("verdict") or {}
    figures = verdict.get("worth", {}).get("figures", {})
    compared = dict.fromkeys(
        words for figure in figures for key, words in _COMPARED.items() if figure.startswith(_GAIN + key)
    )
    return {
        "adapts": _read_answer(verdict, "adapts"),
        "worth": _read_answer(verdict, "worth"),
        "depth": _read_depth(run),
        "quality": _read_quality(run),
        "compared": list(compared),
    }


def _read_answer(verdict: Mapping[str, Any], question: str) -> str:
    return ANSWERS.get(verdict.get(question, {}).get("answer"), UNKNOWN)


def _read_depth(run: RunFiles) -> tuple[float | None, str]:
    """Return the mean depth of a run and its unit, which contains the maximum."""
    halting = {} if HALTING in run.missing else run.halting
    if "layers" in halting:
        return halting["layers"]["expected_depth"], f"of {len(halting['layers']['weights'])} layers"
    if "architecture" in halting:
        return halting["architecture"]["expected_blocks"], f"of {halting['max_depth']} blocks"
    return halting.get("classes", {}).get("all", {}).get("mean"), f"of {halting.get('max_depth', 0)}"


def _read_quality(run: RunFiles) -> tuple[float | None, str]:
    """Return the first metric of quality that a run has, and its name."""
    metrics = run.run.get("final_metrics") or {}
    names = [name for name in [*qualities(run), "loss"] if isinstance(metrics.get(f"eval/{name}"), int | float)]
    return (metrics[f"eval/{names[0]}"], names[0]) if names else (None, "")


def format_tables(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return two Markdown tables: configurations that are better than their baselines, and the others."""
    better = [row for row in rows if row["worth"].count(ANSWERS["yes"]) >= SHOWN * len(row["worth"])]
    unproven = [{**row, "reason": REASONS.get(row["name"], UNKNOWN)} for row in rows if row not in better]
    tables = [_format_table(better, "matched baseline", lambda row: "; ".join(row["compared"]) or "nothing")]
    if unproven:
        tables += ["**What does not work**", _format_table(unproven, "reason", itemgetter("reason"))]
    return "\n".join(f"{table}\n" for table in tables)


def _format_table(rows: Iterable[Mapping[str, Any]], last: str, describe: Callable[[Any], str]) -> str:
    lines = [
        "| `--config-name` | minutes (range) | does depth adapt? | better than its baseline? | mean depth | quality "
        f"| {last} |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [
            f"`{row['name']}`",
            f"{median(row['minutes']):.1f} ({_format_range(row['minutes'], 1)})",
            *(", ".join(row[key]) for key in ("adapts", "worth")),
            _format_measured(row["depth"], 1),
            _format_measured(row["quality"], 3),
            describe(row),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _format_measured(figures: Sequence[Sequence[Any]], digits: int) -> str:
    """Format figures of several seeds, pairs of a value and its unit, as a range with the unit."""
    values = [value for value, _ in figures if value is not None]
    units = [unit for value, unit in figures if value is not None]
    return f"{_format_range(values, digits)} {units[0]}" if values else "-"


def _format_range(values: Sequence[float], digits: int) -> str:
    """Format the smallest and the greatest of some values, or one of them where they round to the same."""
    ends = dict.fromkeys(f"{value:.{digits}f}" for value in (min(values), max(values)))
    return " to ".join(ends)


def write_page(page: Path, table: str) -> None:
    """Put the table between the marks of a page."""
    text = page.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        raise SystemExit(f"--page {page}: has no {BEGIN} and {END}")
    before, _, rest = text.partition(BEGIN)
    write_atomic(page, f"{before}{BEGIN}\n\n{table}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
