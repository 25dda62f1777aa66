"""Runs of a bench: their command-line overrides and order, and their results.

A *task* is a list of overrides and has methods (`ways` in YAML), which are also lists of overrides. A method with
several values of a key has several settings, with one run for each setting and seed. Overrides that begin with
`exit_rules=` or `budget.targets=` belong to an evaluation that follows the training. In a value, the prefix `@NAME`
stands for the run directory of the method NAME on the same task with the same seed; that method runs first. The hash of
its settings identifies a run, so that a repeated command finds finished runs. The overrides under `places` of a task
locate its files and are not part of that identity.

If a method of a task has `budget.targets=`, every run of the task is also scored on the two halves of the first
evaluation set, because only points with scores on the same examples can be compared.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser

from adadepth.config import ExperimentConfig
from adadepth.contrib.bench.measures import BUDGET
from adadepth.errors import CheckpointError, ConfigError
from adadepth.report.run_files import BUDGETS, EXIT_RULES, HALTING, RunFiles, read_run
from adadepth.runs.directory import RECORD, read_settings
from adadepth.tasks.grid_search import log_warning_once, read_sound_record

_TARGETS = "budget.targets="
_EVALUATION_PREFIXES = ("exit_rules=", _TARGETS)
_SCORE_HALVES = "score_halves=true"
_RUN_REFERENCE = re.compile(r"(?<==)@(\w+)")

OverrideExpander = Callable[[Sequence[str]], list[list[str]]]


@dataclass(frozen=True)
class BenchRun:
    """Training run of one method on one task with one seed, and the evaluation after it.

    Attributes:
        task: Name of the task.
        method: Name of the method.
        setting: Overrides that differ between the runs of the method. It is empty if the method has one run per seed.
        seed: Seed of the run.
        training: Overrides of the training. A value may refer to the run of another method.
        evaluation: Overrides of the evaluation after the training, added to those of the training. It is empty if there
            is none.
        file_locations: Overrides of the training that only locate files.
    """

    task: str
    method: str
    setting: tuple[str, ...]
    seed: int
    training: tuple[str, ...]
    evaluation: tuple[str, ...]
    file_locations: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the result file."""
        setting = "".join(f".{override.replace('=', '_')}" for override in self.setting)
        return re.sub(r"[^\w.-]+", "_", f"{self.task}.{self.method}{setting}.{self.seed}")

    @property
    def overrides(self) -> list[str]:
        """All overrides of training and evaluation that can change the result."""
        overrides = (*self.training, *self.evaluation)
        return [
            override
            for override in overrides
            if override not in (*self.file_locations, _SCORE_HALVES)
            and not override.startswith(("output_dir=", "bench="))
        ]

    def has_overrides(self, overrides: Sequence[str]) -> bool:
        """Return whether a stored run had the same overrides, in any order and notation."""
        return _parse_values(overrides) == _parse_values(self.overrides)

    @property
    def prerequisites(self) -> set[str]:
        """Names of the methods that must run first, because this run starts from their models."""
        return {name for override in self.training for name in _RUN_REFERENCE.findall(override)}

    def resolve_folders(self, folders: Mapping[str, Path]) -> BenchRun:
        """Return the run with its references to other methods replaced by their run directories.

        Args:
            folders: Run directory of each method in `prerequisites`.
        """
        resolved = (_RUN_REFERENCE.sub(lambda match: str(folders[match[1]]), override) for override in self.training)
        return replace(self, training=tuple(resolved))


def list_bench_runs(
    tasks: Mapping[str, Any], seeds: Iterable[int], common_overrides: Sequence[str], expand: OverrideExpander
) -> list[BenchRun]:
    """List all runs of a bench.

    Args:
        tasks: Settings by task: `overrides`, `places`, and `ways`, the lists of overrides by method.
        seeds: Seeds for every method.
        common_overrides: Overrides of all runs, which take precedence over those of tasks and methods.
        expand: Function that returns the overrides of each combination of swept values.

    Raises:
        ConfigError: If a task has no methods, or a method refers to one that does not exist.
    """
    runs = []
    for task, task_settings in tasks.items():
        methods = {
            name: _split_overrides(overrides)
            for name, overrides in dict(task_settings.get("ways") or {}).items()
            if overrides is not None
        }
        if not methods:
            raise ConfigError(f"hydra.sweeper.tasks.{task}: has no methods (ways)")
        file_locations = tuple(task_settings.get("places", ()))
        has_targets = any(o.startswith(_TARGETS) for _, evaluation in methods.values() for o in evaluation)
        halves = [_SCORE_HALVES] if has_targets else []
        for (method, (training, evaluation)), seed in itertools.product(methods.items(), seeds):
            settings = expand(training)
            common = set.intersection(*map(set, settings))
            for setting in settings:
                shared = (*task_settings.get("overrides", ()), *file_locations)
                overrides = _deduplicate_overrides([*shared, *setting, *common_overrides, f"seed={seed}", "seeds=1"])
                distinct = tuple(override for override in setting if override not in common)
                run = BenchRun(task, method, distinct, seed, overrides, (*evaluation, *halves), file_locations)
                if unknown := run.prerequisites - (set(methods) - {method}):
                    raise ConfigError(
                        f"hydra.sweeper.tasks.{task}.ways.{method}: refers to {sorted(unknown)[0]}, "
                        "which is not another method"
                    )
                runs.append(run)
    return runs


def _deduplicate_overrides(overrides: Iterable[str]) -> tuple[str, ...]:
    """Return the last override of each key, because Hydra rejects a group that is set twice."""
    return tuple({override.lstrip("+").partition("=")[0]: override for override in overrides}.values())


def _parse_values(overrides: Sequence[str]) -> dict[str, str]:
    """Parse the value of each override, so that `false` equals `False`, and `1e-2` equals `0.01`."""
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    return {override.get_key_element(): str(override.value()) for override in parsed}


def _split_overrides(overrides: Any) -> tuple[list[str], list[str]]:
    """Split overrides into those for training and those for the evaluation after it."""
    texts = [str(override) for override in ([overrides] if isinstance(overrides, str) else overrides)]
    evaluation = [override for override in texts if override.startswith(_EVALUATION_PREFIXES)]
    return [override for override in texts if override not in evaluation], evaluation


def add_prerequisites(missing: Iterable[BenchRun], all_runs: Sequence[BenchRun]) -> list[BenchRun]:
    """Return the missing runs with all runs on which they depend, in the order of `all_runs`."""
    selected = set(missing)
    while True:
        prerequisites = {(run.task, run.seed, name) for run in selected for name in run.prerequisites}
        added = {run for run in all_runs if (run.task, run.seed, run.method) in prerequisites} - selected
        if not added:
            return [run for run in all_runs if run in selected]
        selected |= added


def find_ready_runs(
    runs: Iterable[BenchRun], finished: Mapping[BenchRun, Path], failed: Collection[BenchRun]
) -> Iterator[tuple[BenchRun, BenchRun]]:
    """Yield each run whose prerequisites are finished, with and without resolved run directories.

    Args:
        runs: Candidate runs. Finished and failed runs are skipped.
        finished: Run directories of the finished runs.
        failed: Runs that failed.
    """
    folders = {(run.task, run.seed, run.method): folder for run, folder in finished.items()}
    for run in runs:
        if (
            run in finished
            or run in failed
            or any((run.task, run.seed, name) not in folders for name in run.prerequisites)
        ):
            continue
        yield run, run.resolve_folders({name: folders[run.task, run.seed, name] for name in run.prerequisites})


def build_evaluation_overrides(run: BenchRun, folder: Path) -> list[str]:
    """Return the overrides of the evaluation after a run, without settings of training stages."""
    training = [override for override in run.training if not override.lstrip("+").startswith("halting.")]
    return [*training, "mode=evaluate", f"checkpoint={folder}", *run.evaluation]


def find_finished_evaluation(run: Path, config: ExperimentConfig) -> Path | None:
    """Return the newest finished evaluation of a run with the exit rules, budgets and halves of a configuration."""
    expected = [list(config.exit_rules or ()), list(config.budget.targets or ()), config.score_halves]
    for record in sorted(run.glob(f"evaluations/*/{RECORD}"), reverse=True):
        try:
            settings = read_settings(record.parent)
        except CheckpointError as error:
            log_warning_once(f"{error}; that evaluation will be repeated")
            continue
        stored = [
            list(settings.get("exit_rules") or ()),
            list((settings.get("budget") or {}).get("targets") or ()),
            bool(settings.get("score_halves")),
        ]
        if (
            stored == expected
            and read_sound_record(record.parent).get("status") == "finished"
            and not _is_damaged(record.parent)
        ):
            return record.parent
    return None


def _is_damaged(evaluation: Path) -> bool:
    """Return whether the result files of an evaluation are damaged, and warn about it."""
    files = read_run(evaluation)
    files.of(EXIT_RULES), files.of(BUDGETS)
    problem = next((files.missing[name] for name in (EXIT_RULES, BUDGETS) if name in files.missing), None)
    if problem is not None:
        log_warning_once(f"{evaluation}: {problem}; that evaluation will be repeated")
    return problem is not None


def select_readable_runs(runs: Mapping[str, Path]) -> dict[str, Path]:
    """Return the finished runs whose files a bench can read, and warn about the others.

    Args:
        runs: Run directories by the hash of their settings.
    """
    problems = {run: _find_problem(run) for run in runs.values()}
    for run, problem in problems.items():
        if problem is not None:
            log_warning_once(f"{run}: {problem}; that run will be repeated")
    return {name: run for name, run in runs.items() if problems[run] is None}


def _find_problem(run: Path) -> str | None:
    """Return the file or field that is missing or damaged in a run directory, or None if all are present."""
    files = read_run(run)
    if problem := next((files.missing[name] for name in (RECORD, HALTING) if name in files.missing), None):
        return problem
    required = (("unit", "max_depth", "set", "classes"), ("steps", "final_metrics"))
    absent = [
        f"{file} lacks {name}"
        for file, names, fields in zip((HALTING, RECORD), required, (files.halting, files.run), strict=True)
        for name in names
        if fields.get(name) is None
    ]
    if not absent and not {"n", "mean", "std"} <= files.halting["classes"].get("all", {}).keys():
        return f"{HALTING} lacks the depths of all units"
    return next(iter(absent), None)


# ---- results


def read_bench_result(run: BenchRun, folder: Path, evaluation: Path | None) -> dict[str, Any]:
    """Read the results of a run and of the evaluation after it, for every evaluation set.

    Args:
        run: Run of the bench.
        folder: Run directory of its training.
        evaluation: Run directory of the evaluation after the training, or None without one.

    Returns:
        The origin of the result: `name`, `task`, `way` (the method), `setting`, `seed`, `overrides`, `commit`,
        `hardware`, `versions`, `seconds` and the `steps` of the training. Then `unit`, `max_updates`, and `sets` by
        name. A set has `n` units and `readings`, the operating points by halting rule: `run` for the run itself,
        `budget` for mean depths set afterwards, and the exit rules. Exit studies add `rules`, with controls and times,
        and `overthinking`. See `adadepth.metrics.exit_rule_selection.readings` for the fields of a point. A point that
        was not selected on one half of the examples has no `chosen_score`. If the evaluation scored the halves of the
        first set, the set also has `half_readings`: all operating points, selected on the first half and scored on the
        second.
    """
    files, evaluated = read_run(folder), None if evaluation is None else read_run(evaluation)
    exit_studies = {} if evaluated is None else evaluated.of(EXIT_RULES).get("sets", {})
    record, halting = files.run, files.halting
    sets = {}
    for number, set_name in enumerate([halting["set"], *halting.get("further_sets", {})]):
        statistics = halting if number == 0 else halting["further_sets"][set_name]
        set_result: dict[str, Any] = {
            "n": _count_units(statistics),
            "readings": {"run": [_build_run_point(files, statistics, set_name, number == 0)]},
        }
        if study := exit_studies.get(set_name):
            set_result |= _summarise_exit_study(study)
            set_result["readings"] |= study["readings"] | collect_online_points(set_result["rules"])
        if number == 0 and evaluated is not None and (rows := evaluated.of(BUDGETS).get("rows")):
            set_result["half_readings"] = build_half_readings(rows, study)
        sets[set_name] = set_result
    return {
        "name": run.name,
        "task": run.task,
        "way": run.method,
        "setting": list(run.setting),
        "seed": run.seed,
        "overrides": run.overrides,
        "commit": record.get("git_commit"),
        "hardware": record.get("hardware"),
        "versions": {name: record.get("versions", {}).get(name) for name in ("adadepth", "torch", "transformers")},
        "seconds": record.get("wall_time_s"),
        "steps": record["steps"]["done"],
        "unit": halting["unit"],
        "max_updates": halting["max_depth"],
        "sets": sets,
    }


def _build_run_point(files: RunFiles, statistics: Mapping[str, Any], set_name: str, is_first: bool) -> dict[str, Any]:
    """Return the operating point of a run that uses its own halting.

    Its `macs` leave out the prediction of a unit, whose compute is `prediction_macs`.
    """
    score = _get_score(files.run["final_metrics"], "eval/" if is_first else f"eval/{set_name}/")
    difficulty = statistics.get("difficulty", {})
    rows = [statistics["classes"]["all"]] if is_first else difficulty.get("rows", [])
    units = sum(row["n"] for row in rows)
    point = {
        "rule": None,
        "score": score,
        "score_error": _compute_share_error(score, units),
        "updates": sum(row["n"] * row["mean"] for row in rows) / units if units else None,
        "updates_error": rows[0]["std"] / math.sqrt(units) if is_first else None,
        "macs": statistics["cost"]["adaptive_macs"] / units if "adaptive_macs" in statistics.get("cost", {}) else None,
    }
    point |= _get_prediction_macs(statistics)
    return point | ({"spearman": difficulty["spearman"]["value"]} if "spearman" in difficulty else {})


def _get_prediction_macs(statistics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the field with the compute of one prediction, which is absent in results of earlier versions."""
    name = "prediction_macs"
    return {name: statistics[name]} if name in statistics else {}


def _get_score(metrics: Mapping[str, float], prefix: str) -> float | None:
    """Return the score of a run: the mean of its task metrics, or minus the language modelling loss."""
    losses = [-metrics[name] for part in ("lm_loss", "mlm_loss") if (name := f"{prefix}{part}") in metrics]
    return next(iter(losses), metrics.get(f"{prefix}score"))


def _count_units(statistics: Mapping[str, Any]) -> int:
    """Return the number of evaluated tokens or sequences of a set."""
    if "classes" in statistics:
        return int(statistics["classes"]["all"]["n"])
    return sum(row["n"] for row in statistics.get("difficulty", {}).get("rows", []))


def build_half_readings(
    rows: Sequence[Mapping[str, Any]], study: Mapping[str, Any] | None
) -> dict[str, list[dict[str, Any]]]:
    """Return the operating points that are selected on the first half of a set and scored on the second, by rule.

    Args:
        rows: Rows of budgets.json, with metrics on both halves: the run as trained, and fitted to targets.
        study: Comparison of exit rules on the set, or None without one. Its points are left out if they were measured
            on other halves or on a sample.
    """
    readings: dict[str, list[dict[str, Any]]] = {"run": []}
    for row in rows:
        readings.setdefault("run" if row["target"] is None else BUDGET, []).append(_build_half_point(row))
    if study and study.get("has_budget_halves"):
        readings |= study["readings"] | _collect_online_half_points(study)
    return readings


def _build_half_point(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the operating point of a run as trained or fitted to a target; see `build_half_readings`."""
    score, units = _get_score(row["metrics"], ""), row["n"]
    point = {
        "rule": None if row["target"] is None else f"budget.target={row['target']:g}",
        "chosen_score": _get_score(row["fitting_metrics"], ""),
        "score": score,
        "score_error": _compute_share_error(score, units),
        "updates": row["mean"],
        "updates_error": row["std"] / math.sqrt(units),
        "macs": row["adaptive_macs"] / units if "adaptive_macs" in row else None,
    }
    point |= _get_prediction_macs(row)
    return point | ({"spearman": row["spearman"]} if "spearman" in row else {})


def _compute_share_error(score: float | None, units: int) -> float | None:
    """Return the standard error of an accuracy over independent examples, or None for other scores."""
    return math.sqrt(score * (1.0 - score) / units) if units and score is not None and 0.0 <= score <= 1.0 else None


_SCORE_TOLERANCE = (
    0.005  # difference between online and replayed scores from which on exits are taken to change other units' inputs
)


def collect_online_points(rules: Sequence[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return operating points of exit rules that decided while the model ran, if their scores match the replay.

    If an exit changes the inputs of other units, a replay overestimates the score. Compute is that of the replay,
    scaled to the number of updates that ran online.

    Returns:
        Points by rule name.
    """
    executed = [row for row in rules if row["online"] is not None and row["updates"]]
    if all(abs(row["online"] - row["score"]) < _SCORE_TOLERANCE for row in executed):
        return {}
    by_rule: dict[str, list[dict[str, Any]]] = {}
    for row in executed:
        name, updates = row["rule"].partition(":")[0], row["online_updates"]
        macs = row["macs"] * updates / row["updates"]
        point = {"rule": row["rule"], "score": row["online"], "score_error": None, "updates": updates, "macs": macs}
        if name != "fixed":
            by_rule.setdefault(name, []).append(point | {"updates_error": None, "spearman": row["spearman"]})
    return by_rule


def _collect_online_half_points(study: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the points of `collect_online_points`, selected on the first half of the set and scored on the second."""
    halves = {row["rule"]: row["online"]["halves"] for row in study["rows"] if "online" in row}
    by_rule = collect_online_points(_summarise_exit_study(study)["rules"])
    for point in itertools.chain.from_iterable(by_rule.values()):
        first, second = halves[point["rule"]]
        updates = second["mean_updates"]
        point |= {"chosen_score": first["quality"].get("score"), "score": second["quality"].get("score")}
        point |= {"updates": updates, "macs": point["macs"] * updates / point["updates"]}
    return by_rule


def _summarise_exit_study(study: Mapping[str, Any]) -> dict[str, Any]:
    """Convert an exit-rule comparison to the format of result files.

    A rule has `score`; `online`, its score when it ran online; `updates` and `macs`; `permuted` and `mixture`, the
    scores of its controls, with `permuted_std`; `spearman` and `calibration`; and `time`, the share of full depth's
    time by batch size.
    """
    rules = []
    for row in study["rows"]:
        permuted, online = row.get("permuted", {}), row.get("online", {})
        rules.append(
            {
                "rule": row["rule"],
                "score": row["quality"].get("score"),
                "online": online.get("quality", {}).get("score"),
                "online_updates": online.get("mean_updates"),
                "updates": row["mean_updates"],
                "macs": row["macs"],
                "permuted": permuted.get("quality", {}).get("score"),
                "permuted_std": permuted.get("quality_std", {}).get("score"),
                "mixture": row.get("mixture", {}).get("quality", {}).get("score"),
                "spearman": row.get("spearman", {}).get("value"),
                "calibration": row.get("calibration"),
                "time": {batch: 1.0 / ratio for batch, ratio in row.get("time_ratio", {}).items()},
            }
        )
    return {"rules": rules, "overthinking": study["overthinking"]}
