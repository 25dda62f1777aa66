"""Reading and writing of the files of a run directory that hold depth statistics.

Figures and reports are always made from the JSON and CSV files.
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
from adadepth.report.file_types import FILE_TYPES, REPORTING
from adadepth.runtime.files import write_atomic
from adadepth.runtime.json_files import find_type_problem, parse_json, read_regular_file
from adadepth.runtime.plain_yaml import parse_yaml

HALTING, SENTENCES, DEPTH_BY_CLASS = "halting.json", "sentences.jsonl", "depth_by_class.csv"
EXITS, EXIT_RULES, PARETO, SEEDS = "exits.json", "exit_rules.json", "pareto.csv", "seeds.json"
BUDGETS, BUDGETS_TABLE, RIVALS = "budgets.json", "budgets.csv", "rivals.json"
MATCHED_BASELINE, STATE_DIAGNOSTICS = "matched_baseline.json", "states.json"
ARCHITECTURES, GRIDS = "architectures.json", "grids.json"
TEXTS_FILE = "texts.json"
RUN, CONFIG, METRICS = "run.json", "config.yaml", "metrics.jsonl"
REPORT = "report.html"
SPLITS = ("train", "eval")


def write_grids(directory: Path, grids: Mapping[str, Sequence[Mapping[str, Any]]], max_updates: int, step: int) -> None:
    """Write the example grids of every evaluated set to grids.json."""
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"step": step, "max_depth": max_updates, "sets": grids}, allow_nan=False)
    write_atomic(directory / GRIDS, text + "\n")


def write_exits(directory: Path, summaries: Mapping[str, Mapping[str, Any]], step: int) -> None:
    """Write the step summary of every evaluated set to exits.json."""
    write_json(directory / EXITS, {"step": step, "sets": summaries})


def write_predictions(directory: Path, name: str, predictions: Mapping[str, str]) -> None:
    """Write answers by question id to predictions/NAME.json, the format of the SQuAD evaluation script."""
    write_json(directory / "predictions" / f"{name}.json", predictions)


def write_prediction_rows(directory: Path, name: str, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write one line of prediction results per example to predictions/NAME.jsonl."""
    folder = directory / "predictions"
    folder.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(row, ensure_ascii=False, allow_nan=False) for row in rows)
    path = folder / f"{name}.jsonl"
    write_atomic(path, "".join(f"{line}\n" for line in lines))
    return path


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a value to a JSON file atomically, and create the folder if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


@dataclass(frozen=True)
class RunFiles:
    """Content of a run directory's files. An unreadable file counts as empty, and `missing` gives the reason.

    Files that only some runs have are read on demand. `missing` lists such a file only if it is damaged.
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
        """Return the content of an optional JSON file, or an empty dictionary if it is missing or damaged.

        Args:
            name: File name.
            kind: Types of its fields, such as `{"reached": list}`, or None for those of `adadepth.report.file_types`.
        """
        if name not in self.others:
            exists = (self.directory / name).exists()
            self.others[name] = _parse_file(self.directory, self.missing, name, kind) if exists else {}
        return self.others[name]


def read_run(directory: Path) -> RunFiles:
    """Read the files of a run directory, even if some of them are missing or damaged.

    A resumed run writes some metric lines again. If several lines have the same step, the values of the last line are
    used.
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
    """Return the content of a run's file, or an empty dictionary with a reason in `missing` if it cannot be read."""
    kind = FILE_TYPES.get(name, dict[str, Any]) if kind is None else kind
    with _record_failure(missing, name):
        text = read_regular_file(directory / name).decode("utf-8")
        value: dict[str, Any] = _parse_yaml(text, kind) if name == CONFIG else parse_json(text, kind)
        return value
    return {}


def _parse_lines(directory: Path, missing: dict[str, str], name: str) -> list[dict[str, Any]]:
    """Return the objects of a JSON-lines file, skipping lines that are incomplete or not valid."""
    records = []
    with _record_failure(missing, name):
        for line in read_regular_file(directory / name).decode("utf-8").split("\n"):
            with suppress(ValueError):
                records.append(parse_json(line, FILE_TYPES[name]))
    return records


@contextmanager
def _record_failure(missing: dict[str, str], name: str) -> Iterator[None]:
    """Record in `missing` the reason why a file cannot be read."""
    try:
        yield
    except CheckpointError as error:
        is_there = not isinstance(error.__cause__, FileNotFoundError)
        missing[name] = f"{name} is damaged ({str(error).rpartition(': ')[2]})" if is_there else f"there is no {name}"
    except ValueError as error:
        missing[name] = f"{name} is damaged ({error})"


def _parse_yaml(text: str, kind: Any) -> dict[str, Any]:
    """Parse a YAML file and check that it has the described types.

    Raises:
        ValueError: If the text is not valid YAML, or a field has another type. The message names the field.
    """
    try:
        value: dict[str, Any] = parse_yaml(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError("no YAML") from error
    if problem := find_type_problem(value, kind):
        raise ValueError(problem)
    return value


def evaluated(files: RunFiles) -> str:
    """Format the number of tokens or sequences, the data set and the step of the last evaluation.

    The text is empty if the number is unknown.
    """
    halting = files.halting
    unit, n = halting.get("unit", ""), halting.get("n")
    if unit == "architecture":
        return "n = 1 architecture, the same for all data"
    if n is None:
        return ""
    counted = f"n = {n:,} {'sequence' if unit == 'task' else unit}{'' if n == 1 else 's'}"
    return f"{counted}{describe_set_and_step(files)}"


def describe_set_and_step(files: RunFiles) -> str:
    """Format the data set and the step of the last evaluation, for a sentence that begins with a count."""
    where = f" of {files.halting['set']}" if "set" in files.halting else ""
    step = get_evaluation_step(files)
    return where + ("" if step is None else f", step {step:,}")


def get_evaluation_step(files: RunFiles) -> int | None:
    """Return the optimiser step of the last evaluation.

    It is None if the step is unknown, or if the run evaluated a model of another run.
    """
    step: int | None = None if "evaluated" in files.run else files.halting.get("step")
    return step


def get_run_unit(files: RunFiles) -> str:
    """Return what has a depth in this run: token, sequence, task or architecture."""
    return str(files.halting.get("unit", "architecture" if files.of(ARCHITECTURES) else "token"))


def halts(files: RunFiles) -> bool:
    """Return whether the model decides a depth for each token or sequence of the run."""
    return get_unit_wording(get_run_unit(files)).halts


def get_exit_rule(files: RunFiles) -> str | None:
    """Return the exit rule of the run's model; an evaluated checkpoint has its own, unless the user set another.

    Records of earlier versions have the rule of the evaluation's settings only.
    """
    rule: str | None = files.run.get("exit_rule", (files.config.get("model") or {}).get("exit_rule"))
    return rule


def get_status(files: RunFiles) -> str:
    """Return the status of a run for its report; a run whose report is written is finished."""
    status = str(files.run.get("status") or "")
    return "finished" if status == REPORTING else status


def is_interrupted(files: RunFiles) -> bool:
    """Return whether a signal ended the training of a run, so that its files show an earlier evaluation."""
    return files.run.get("status") == "interrupted"


def get_early_stop_reason(files: RunFiles) -> str:
    """Describe why and when training ended early; return an empty text if it did not."""
    reason, steps = files.run.get("stopped_because"), files.run.get("steps") or {}
    if not reason or (steps and steps["done"] >= steps["planned"]):
        return ""
    return f"{reason} at step {steps['done']:,} of {steps['planned']:,}" if steps else str(reason)


def is_summary_of_seeds(files: RunFiles) -> bool:
    """Return whether a directory contains a summary over seeds instead of a run."""
    return bool(files.of(SEEDS)) and HALTING in files.missing


def read_seed_runs(summary: RunFiles) -> list[RunFiles]:
    """Read the runs that a summary over seeds names; return an empty list for an ordinary run."""
    return [read_run(summary.directory / folder) for folder in (summary.of(SEEDS).get("runs") or {}).values()]


def max_updates(files: RunFiles) -> int:
    """Return the maximum depth L of a run's model.

    It comes from the statistics or from the predictions. Otherwise it is the depth of the deepest token of the
    sentences.
    """
    deepest = max((max(sentence.get("updates") or [1]) for sentence in files.sentences), default=1)
    return int(files.halting.get("max_depth") or files.of(TEXTS_FILE).get("max_depth") or deepest)


def sources(files: RunFiles) -> list[str]:
    """Return the names of the run's files that were read and are not empty."""
    always = [name for name in (RUN, CONFIG, METRICS, HALTING, SENTENCES) if name not in files.missing]
    return [*always, *sorted(name for name, value in files.others.items() if value)]


def _merge_by_step(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Merge the lines of metrics.jsonl that belong to the same step, in order of the steps."""
    merged: dict[int, dict[str, Any]] = {}
    for line in lines:
        merged.setdefault(line["step"], {}).update(line)
    return [merged[step] for step in sorted(merged)]


def series(metrics: Sequence[Mapping[str, Any]], name: str) -> list[tuple[int, float]]:
    """Return (step, value) of a metric for every line of metrics.jsonl that has a number for it."""
    return [(line["step"], float(line[name])) for line in metrics if isinstance(line.get(name), int | float)]


def distributions(metrics: Sequence[Mapping[str, Any]], name: str) -> list[tuple[int, list[Any]]]:
    """Return (step, values) of a list-valued metric from metrics.jsonl, only lists as long as the last one."""
    pairs = [(line["step"], line.get(name)) for line in metrics]
    valid = [(step, counts) for step, counts in pairs if _are_numbers(counts) and len(counts) > 1 and any(counts)]
    return [(step, counts) for step, counts in valid if len(counts) == len(valid[-1][1])]


def _are_numbers(counts: Any) -> TypeGuard[list[float]]:
    return isinstance(counts, list) and all(isinstance(count, int | float) for count in counts)


def get_loss_curves(metrics: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[str, list[tuple[int, float]]]]]:
    """Return the training and evaluation curves of every loss, the total loss first.

    Losses of single steps and of further sets, which have longer names, are skipped.
    """
    names = {rest for line in metrics for name in line for split, _, rest in [name.partition("/")] if split in SPLITS}
    ordered = sorted(
        (name for name in names if name.endswith("loss") and "/" not in name), key=lambda name: (name != "loss", name)
    )
    curves = {name: [(split, series(metrics, f"{split}/{name}")) for split in SPLITS] for name in ordered}
    return {name: lines for name, lines in curves.items() if any(points for _, points in lines)}
