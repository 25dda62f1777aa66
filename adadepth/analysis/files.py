"""The files of a run directory that hold statistics of depth: writing them, and reading a run back.

The JSON and CSV files are the truth; figures and report are drawn from them.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from adadepth.atomic import write_atomic

HALTING, SENTENCES, DEPTH_BY_CLASS = "halting.json", "sentences.jsonl", "depth_by_class.csv"
EXITS, EXIT_RULES, PARETO, SEEDS = "exits.json", "exit_rules.json", "pareto.csv", "seeds.json"
BUDGETS, BUDGETS_TABLE, RIVALS = "budgets.json", "budgets.csv", "rivals.json"
ARCHITECTURES, GRIDS = "architectures.json", "grids.json"
RUN, CONFIG, METRICS = "run.json", "config.yaml", "metrics.jsonl"
SPLITS = ("train", "eval")
_CLASS_COLUMNS = (
    "n", "mean", "std", "p10", "median", "p90", "at_cap", "entropy", "remainder", "ponder_cost", "loss", "loss_n",
    "accuracy", "accuracy_n",
)  # fmt: skip


def write_halting_files(
    directory: Path,
    summary: Mapping[str, Any],
    sentences: Sequence[Mapping[str, Any]],
    step: int,
    name: str | None = None,
    further_sets: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Write halting.json and, where units have depths, depth_by_class.csv and sentences.jsonl.

    Args:
        directory: Of the run.
        summary: From `HaltingStatistics.summary`, of the set that selects the model. One architecture is the same for
            everything that is evaluated.
        sentences: From `SentenceSampler.sentences`, likewise.
        step: Optimiser steps done.
        name: Of that set.
        further_sets: Summaries of other sets, by name; of them what is told of difficulty is kept.
    """
    directory.mkdir(parents=True, exist_ok=True)
    told = {set_name: {"difficulty": other["difficulty"]} for set_name, other in (further_sets or {}).items()
            if "difficulty" in other}  # fmt: skip
    named = {} if name is None else {"set": name}
    _write_json(directory / HALTING, {"step": step, **named, **summary, **({"further_sets": told} if told else {})})
    if summary["unit"] == "architecture":
        return
    write_atomic(directory / DEPTH_BY_CLASS, _as_csv(*class_table(summary)))
    lines = (json.dumps(sentence, ensure_ascii=False, allow_nan=False) for sentence in sentences)
    write_atomic(directory / SENTENCES, "".join(f"{line}\n" for line in lines))


def write_grids(directory: Path, grids: Mapping[str, Sequence[Mapping[str, Any]]], max_depth: int, step: int) -> None:
    """Write grids.json: the example grids of every evaluated set by name, after `step` optimiser steps."""
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"step": step, "max_depth": max_depth, "sets": grids}, allow_nan=False)
    write_atomic(directory / GRIDS, text + "\n")


def write_exits(directory: Path, summaries: Mapping[str, Mapping[str, Any]], step: int) -> None:
    """Write exits.json: the step summary of every evaluated set by name, after `step` optimiser steps."""
    directory.mkdir(parents=True, exist_ok=True)
    _write_json(directory / EXITS, {"step": step, "sets": summaries})


def write_predictions(directory: Path, name: str, predictions: Mapping[str, str]) -> None:
    """Write predictions/NAME.json, the predicted texts of a set by id, as SQuAD's official script reads them."""
    folder = directory / "predictions"
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / f"{name}.json", predictions)


def write_exit_study(directory: Path, studies: Mapping[str, Mapping[str, Any]]) -> None:
    """Write exit_rules.json, the studies of every evaluated set by name, and pareto.csv, their rows."""
    directory.mkdir(parents=True, exist_ok=True)
    _write_json(directory / EXIT_RULES, {"sets": studies})
    write_atomic(directory / PARETO, _as_csv(*pareto_table(studies)))


def write_architectures(directory: Path, comparison: Mapping[str, Any]) -> None:
    """Write architectures.json: networks of several architectures side by side.

    Args:
        directory: Of the run.
        comparison: `reference`, the name of the row that costs are compared with; `derived`, the string that the search
            found; `shapes`, rows of `name`, `length`, `memory` and `batch`; `conditions` of the measured times
            (`device`, `dtype`, `threads`, `repeats`); `rows`: see `comparison`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    _write_json(directory / ARCHITECTURES, comparison)


def write_budgets(directory: Path, found: Mapping[str, Any]) -> None:
    """Write budgets.json and budgets.csv: one checkpoint at several depths, its rows from `budget_row`."""
    directory.mkdir(parents=True, exist_ok=True)
    _write_json(directory / BUDGETS, found)
    write_atomic(directory / BUDGETS_TABLE, _as_csv(*budget_columns(found)))


def write_rivals(directory: Path, found: Mapping[str, Any]) -> None:
    """Write rivals.json: an adaptive run beside networks of one depth and as much work."""
    _write_json(directory / RIVALS, found)


def budget_columns(found: Mapping[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Columns and rows of a checkpoint at several depths; None where a figure is missing."""
    metrics = list(found["rows"][0]["metrics"])
    columns = ["target", "level", "fitted", "mean", "std", "executed_over_full", "adaptive_over_full", *metrics]
    rows = [
        [
            row["target"], *((row["fit"] or {}).get(key) for key in ("level", "depth")),
            *(row.get(key) for key in columns[3:7]), *(row["metrics"].get(name) for name in metrics),
        ]
        for row in found["rows"]
    ]  # fmt: skip
    return columns, rows


def write_seeds(directory: Path, summary: Mapping[str, Any]) -> None:
    """Write seeds.json, from `summarise_seeds`."""
    directory.mkdir(parents=True, exist_ok=True)
    _write_json(directory / SEEDS, summary)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_atomic(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def pareto_table(studies: Mapping[str, Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Columns and rows of the studied exit rules; None where a figure is missing, 1 where a row is in a Pareto set."""
    rows = [(name, row) for name, study in studies.items() for row in study["rows"]]
    metrics = list(dict.fromkeys(metric for _, row in rows for metric in row["quality"]))
    timed = sorted({batch for _, row in rows for batch in row.get("seconds", {})}, key=int)
    axes = ["mean_updates", "macs", *(f"seconds/{batch}" for batch in timed)]
    columns = [
        "set", "rule", "kind", "draws", *metrics, "score_std", "permuted_score", "online_score", "online_updates",
        "mean_updates", "layer_ratio", "macs", "macs_ratio", *(f"seconds/{batch}" for batch in timed),
        *(f"time_ratio/{batch}" for batch in timed),
        *(f"pareto/{axis}" for axis in axes),
    ]  # fmt: skip
    table = [
        [
            name, row["rule"], row["kind"], row["draws"], *(row["quality"].get(metric) for metric in metrics),
            row.get("quality_std", {}).get("score"), row.get("permuted", {}).get("quality", {}).get("score"),
            row.get("online", {}).get("quality", {}).get("score"), row.get("online", {}).get("mean_updates"),
            row["mean_updates"], row["layer_ratio"], row["macs"], row["macs_ratio"],
            *(row.get(key, {}).get(batch) for key in ("seconds", "time_ratio") for batch in timed),
            *(int(axis in row["pareto"]) for axis in axes),
        ]
        for name, row in rows
    ]  # fmt: skip
    return columns, table


def class_table(summary: Mapping[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Columns and rows of the figures by class; None where one is missing."""
    depths = range(summary["max_depth"] + 1)
    rows = []
    for name, described in summary["classes"].items():
        histogram = described.get("histogram", [None] * len(depths))
        rows.append([name, *(described.get(column) for column in _CLASS_COLUMNS), *histogram])
    return ["class", *_CLASS_COLUMNS, *(f"depth_{depth}" for depth in depths)], rows


def _as_csv(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *rows])
    return text.getvalue()


@dataclass(frozen=True)
class RunFiles:
    """What the files of a run directory say; what could not be read is empty, and `missing` says why.

    Of the files that only some runs have (`exits`, `exit_rules`, `architectures`, `budgets`, `rivals`, `grids`,
    `seeds`) it tells damage only.
    """

    directory: Path
    run: dict[str, Any]
    config: dict[str, Any]
    metrics: list[dict[str, Any]]
    halting: dict[str, Any]
    sentences: list[dict[str, Any]]
    exits: dict[str, Any]
    exit_rules: dict[str, Any]
    architectures: dict[str, Any]
    budgets: dict[str, Any]
    rivals: dict[str, Any]
    grids: dict[str, Any]
    seeds: dict[str, Any]
    missing: dict[str, str]


def read_run(directory: Path) -> RunFiles:
    """Read a run directory, whatever is missing or damaged in it.

    Of several metric lines at the same step (a resumed run writes some again) the values of the last win.
    """
    missing: dict[str, str] = {}

    def mapping(name: str, parse: Callable[[str], Any]) -> dict[str, Any]:
        try:
            value = parse((directory / name).read_text(encoding="utf-8"))
        except OSError:
            missing[name] = f"there is no {name}"
        except (ValueError, yaml.YAMLError):
            missing[name] = f"{name} is damaged"
        else:
            if isinstance(value, dict):
                return value
            missing[name] = f"{name} is damaged"
        return {}

    def optional(name: str) -> dict[str, Any]:
        return mapping(name, json.loads) if (directory / name).exists() else {}

    def lines(name: str) -> list[dict[str, Any]]:
        try:
            return _json_lines((directory / name).read_text(encoding="utf-8"))
        except OSError:
            missing[name] = f"there is no {name}"
        except ValueError:
            missing[name] = f"{name} is damaged"
        return []

    return RunFiles(
        directory=directory,
        run=mapping(RUN, json.loads),
        config=mapping(CONFIG, yaml.safe_load),
        metrics=_by_step(lines(METRICS)),
        halting=mapping(HALTING, json.loads),
        sentences=lines(SENTENCES),
        exits=optional(EXITS),
        exit_rules=optional(EXIT_RULES),
        architectures=optional(ARCHITECTURES),
        budgets=optional(BUDGETS),
        rivals=optional(RIVALS),
        grids=optional(GRIDS),
        seeds=optional(SEEDS),
        missing=missing,
    )


def run_unit(files: RunFiles) -> str:
    """What has a depth of its own in a run: token, sequence, task or architecture."""
    return str(files.halting.get("unit", "architecture" if files.architectures else "token"))


def _json_lines(text: str) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file; a line cut short by a kill is left out."""
    found = []
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def _by_step(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Metric lines merged by step, in order."""
    merged: dict[int, dict[str, Any]] = {}
    for line in lines:
        if isinstance(step := line.get("step"), int):
            merged.setdefault(step, {}).update(line)
    return [merged[step] for step in sorted(merged)]


def series(metrics: Sequence[Mapping[str, Any]], name: str) -> list[tuple[int, float]]:
    """The curve of one metric: (step, value) where it is a number."""
    return [(line["step"], float(line[name])) for line in metrics if isinstance(line.get(name), int | float)]


def depth_histograms(metrics: Sequence[Mapping[str, Any]]) -> list[tuple[int, list[int]]]:
    """(step, counts of depths 0..L of all units) of every evaluation; all as long as the last one's."""
    return distributions(metrics, "halting/all/histogram")


def distributions(metrics: Sequence[Mapping[str, Any]], name: str) -> list[tuple[int, list[Any]]]:
    """(step, counts or weights) of every line that has the list `name`; all as long as the last one's."""
    found = [(line["step"], line.get(name)) for line in metrics]
    valid = [(step, counts) for step, counts in found if isinstance(counts, list) and len(counts) > 1 and sum(counts)]
    return [(step, counts) for step, counts in valid if len(counts) == len(valid[-1][1])]


def loss_curves(metrics: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[str, list[tuple[int, float]]]]]:
    """By loss, the total first: its curve in training and in evaluation, as far as there are numbers.

    Losses of single steps and of further sets, which have a longer name, are left out.
    """
    names = {rest for line in metrics for name in line for split, _, rest in [name.partition("/")] if split in SPLITS}
    ordered = sorted(
        (name for name in names if name.endswith("loss") and "/" not in name), key=lambda name: (name != "loss", name)
    )
    curves = {name: [(split, series(metrics, f"{split}/{name}")) for split in SPLITS] for name in ordered}
    return {name: lines for name, lines in curves.items() if any(points for _, points in lines)}
