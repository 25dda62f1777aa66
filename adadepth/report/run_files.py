"""The files of a run directory with statistics of depth: writing them, and reading a run back.

The JSON and CSV files are the truth; figures and report are drawn from them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard

import yaml

from adadepth.errors import CheckpointError
from adadepth.metrics.metric_names import get_unit_wording
from adadepth.report.file_types import FILE_TYPES
from adadepth.runtime.files import write_atomic
from adadepth.runtime.json_files import find_type_problem, parse_json, read_regular_file
from adadepth.runtime.plain_yaml import parse_yaml

HALTING, SENTENCES, DEPTH_BY_CLASS = "halting.json", "sentences.jsonl", "depth_by_class.csv"
EXITS, EXIT_RULES, PARETO, SEEDS = "exits.json", "exit_rules.json", "pareto.csv", "seeds.json"
BUDGETS, BUDGETS_TABLE, RIVALS = "budgets.json", "budgets.csv", "rivals.json"
MATCHED_BASELINE = "matched_baseline.json"
ARCHITECTURES, GRIDS = "architectures.json", "grids.json"
PROBES, TEXTS_FILE = "probes.json", "texts.json"
RUN, CONFIG, METRICS = "run.json", "config.yaml", "metrics.jsonl"
SPLITS = ("train", "eval")


def write_grids(directory: Path, grids: Mapping[str, Sequence[Mapping[str, Any]]], max_updates: int, step: int) -> None:
    """Write grids.json: the example grids of every evaluated set by name, after `step` optimiser steps."""
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"step": step, "max_depth": max_updates, "sets": grids}, allow_nan=False)
    write_atomic(directory / GRIDS, text + "\n")


def write_exits(directory: Path, summaries: Mapping[str, Mapping[str, Any]], step: int) -> None:
    """Write exits.json: the step summary of every evaluated set by name, after `step` optimiser steps."""
    write_json(directory / EXITS, {"step": step, "sets": summaries})


def write_predictions(directory: Path, name: str, predictions: Mapping[str, str]) -> None:
    """Write predictions/NAME.json, the predicted texts of a set by id, as SQuAD's official script reads them."""
    write_json(directory / "predictions" / f"{name}.json", predictions)


def write_prediction_rows(directory: Path, name: str, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write predictions/NAME.jsonl, a line an example of a set; see `adadepth.evaluation.predictions`."""
    folder = directory / "predictions"
    folder.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(row, ensure_ascii=False, allow_nan=False) for row in rows)
    path = folder / f"{name}.jsonl"
    write_atomic(path, "".join(f"{line}\n" for line in lines))
    return path


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a value as JSON, whole or not at all; the folder is made where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


@dataclass(frozen=True)
class RunFiles:
    """Contents of the files of a run directory; an unreadable file is empty, and `missing` gives the reason.

    Files that only some runs have are read when a section asks for them; of these `missing` tells damage only.
    """

    directory: Path
    run: dict[str, Any]
    config: dict[str, Any]
    metrics: list[dict[str, Any]]
    halting: dict[str, Any]
    sentences: list[dict[str, Any]]
    missing: dict[str, str]
    others: dict[str, dict[str, Any]] = field(default_factory=dict)

    def of(self, name: str, kind: Any = None) -> dict[str, Any]:
        """Return the contents of an optional JSON file; empty where it is missing or damaged.

        Args:
            name: File name.
            kind: The types of its fields, such as `{"reached": list}`; None: those of `adadepth.report.file_types`.
        """
        if name not in self.others:
            exists = (self.directory / name).exists()
            self.others[name] = _parse_file(self.directory, self.missing, name, kind) if exists else {}
        return self.others[name]


def read_run(directory: Path) -> RunFiles:
    """Read a run directory, whatever is missing or damaged in it.

    Of several metric lines at the same step (a resumed run writes some again) the values of the last win.
    """
    missing: dict[str, str] = {}
    parse = partial(_parse_file, directory, missing)
    return RunFiles(
        directory=directory,
        run=parse(RUN),
        config=parse(CONFIG),
        metrics=_merge_by_step(_parse_lines(directory, missing, METRICS)),
        halting=parse(HALTING),
        sentences=_parse_lines(directory, missing, SENTENCES),
        missing=missing,
    )


def _parse_file(directory: Path, missing: dict[str, str], name: str, kind: Any = None) -> dict[str, Any]:
    """Read a file of a run; empty where that is not possible, which `missing` then explains."""
    kind = FILE_TYPES.get(name, dict[str, Any]) if kind is None else kind
    with _record_failure(missing, name):
        text = read_regular_file(directory / name).decode("utf-8")
        value: dict[str, Any] = _parse_yaml(text, kind) if name == CONFIG else parse_json(text, kind)
        return value
    return {}


def _parse_lines(directory: Path, missing: dict[str, str], name: str) -> list[dict[str, Any]]:
    """Read the objects of a JSON-lines file; a line that a kill has cut short, or of other types, is left out."""
    records = []
    with _record_failure(missing, name):
        for line in read_regular_file(directory / name).decode("utf-8").split("\n"):
            with suppress(ValueError):
                records.append(parse_json(line, FILE_TYPES[name]))
    return records


@contextmanager
def _record_failure(missing: dict[str, str], name: str) -> Iterator[None]:
    """Note why a file cannot be read."""
    try:
        yield
    except CheckpointError as error:
        is_there = not isinstance(error.__cause__, FileNotFoundError)
        missing[name] = f"{name} is damaged ({str(error).rpartition(': ')[2]})" if is_there else f"there is no {name}"
    except ValueError as error:
        missing[name] = f"{name} is damaged ({error})"


def _parse_yaml(text: str, kind: Any) -> dict[str, Any]:
    """Parse YAML of the described kind.

    Raises:
        ValueError: Naming the field.
    """
    try:
        value: dict[str, Any] = parse_yaml(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError("no YAML") from error
    if problem := find_type_problem(value, kind):
        raise ValueError(problem)
    return value


def evaluated(files: RunFiles) -> str:
    """Return the number of units of the last evaluation, its set and step in words; empty where unknown."""
    halting = files.halting
    unit, n = halting.get("unit", ""), halting.get("n")
    if unit == "architecture":
        return "n = 1 architecture, the same for all data"
    if n is None:
        return ""
    counted = f"n = {n:,} {'example' if unit == 'task' else unit}{'' if n == 1 else 's'}"
    return f"{counted}{describe_set_and_step(files)}"


def describe_set_and_step(files: RunFiles) -> str:
    """Return the set and the step of the last evaluation in words, to follow a count."""
    where = f" of {files.halting['set']}" if "set" in files.halting else ""
    step = get_evaluation_step(files)
    return where + ("" if step is None else f", step {step:,}")


def get_evaluation_step(files: RunFiles) -> int | None:
    """Return the optimiser step of the last evaluation; None if unknown or if another run was trained."""
    step: int | None = None if "evaluated" in files.run else files.halting.get("step")
    return step


def get_run_unit(files: RunFiles) -> str:
    """Return what has a depth in a run: token, sequence, task or architecture."""
    return str(files.halting.get("unit", "architecture" if files.of(ARCHITECTURES) else "token"))


def halts(files: RunFiles) -> bool:
    """Return whether units of a run halt one by one, as tokens and sequences do; a task has one depth."""
    return get_unit_wording(get_run_unit(files)).halts


def get_early_stop_reason(files: RunFiles) -> str:
    """Return why and where training ended before all its updates; empty if it did not."""
    reason, steps = files.run.get("stopped_because"), files.run.get("steps") or {}
    if not reason or (steps and steps["done"] >= steps["planned"]):
        return ""
    return f"{reason} at step {steps['done']:,} of {steps['planned']:,}" if steps else str(reason)


def is_summary_of_seeds(files: RunFiles) -> bool:
    """Return whether a directory holds a summary over seeds instead of a run."""
    return bool(files.of(SEEDS)) and HALTING in files.missing


def max_updates(files: RunFiles) -> int:
    """Return L of a run: from the statistics, or what it predicted, else the deepest token of the sentences."""
    deepest = max((max(sentence.get("updates") or [1]) for sentence in files.sentences), default=1)
    return int(files.halting.get("max_depth") or files.of(TEXTS_FILE).get("max_depth") or deepest)


def sources(files: RunFiles) -> list[str]:
    """Return the names of the files that were read and hold something."""
    always = [name for name in (RUN, CONFIG, METRICS, HALTING, SENTENCES) if name not in files.missing]
    return [*always, *sorted(name for name, value in files.others.items() if value)]


def _merge_by_step(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Merge metric lines by step, in order."""
    merged: dict[int, dict[str, Any]] = {}
    for line in lines:
        merged.setdefault(line["step"], {}).update(line)
    return [merged[step] for step in sorted(merged)]


def series(metrics: Sequence[Mapping[str, Any]], name: str) -> list[tuple[int, float]]:
    """Return (step, value) of one metric, where it is a number."""
    return [(line["step"], float(line[name])) for line in metrics if isinstance(line.get(name), int | float)]


def distributions(metrics: Sequence[Mapping[str, Any]], name: str) -> list[tuple[int, list[Any]]]:
    """Return (step, counts or weights) of every line with the list `name`; all as long as the last one."""
    pairs = [(line["step"], line.get(name)) for line in metrics]
    valid = [(step, counts) for step, counts in pairs if _are_numbers(counts) and len(counts) > 1 and any(counts)]
    return [(step, counts) for step, counts in valid if len(counts) == len(valid[-1][1])]


def _are_numbers(counts: Any) -> TypeGuard[list[float]]:
    return isinstance(counts, list) and all(isinstance(count, int | float) for count in counts)


def get_loss_curves(metrics: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[str, list[tuple[int, float]]]]]:
    """Return the curves of every loss in training and evaluation, the total loss first.

    Losses of single steps and of further sets, which have a longer name, are left out.
    """
    names = {rest for line in metrics for name in line for split, _, rest in [name.partition("/")] if split in SPLITS}
    ordered = sorted(
        (name for name in names if name.endswith("loss") and "/" not in name), key=lambda name: (name != "loss", name)
    )
    curves = {name: [(split, series(metrics, f"{split}/{name}")) for split in SPLITS] for name in ordered}
    return {name: lines for name, lines in curves.items() if any(points for _, points in lines)}
