"""A bench: ways of allocating depth on tasks, each run once with every seed; which runs there are, and what they say.

A *task* is a list of overrides and has *ways*, lists of overrides too. A way with several values of a key has several
settings, a run each. Overrides that begin with `exit_rules=` or `budget.targets=` are of an evaluation that follows.
A value that begins with `@NAME` begins with the folder of the run of another way of that name, on the same task with
the same seed, which comes first. A run is known by the hash of its settings, so that a repeated command finds what is
done. `places` of a task are overrides that say where its files are, which is no part of what its runs are.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adadepth.errors import CheckpointError, ConfigError
from adadepth.report.run_files import BUDGETS, EXIT_RULES, HALTING, RunFiles, read_run
from adadepth.runs.directory import RECORD, read_settings
from adadepth.settings import ExperimentConfig
from adadepth.tasks.grid_search import read_sound_record, warn_once

_EVALUATES = ("exit_rules=", "budget.targets=")
_NAMED = re.compile(r"(?<==)@(\w+)")

Swept = Callable[[Sequence[str]], list[list[str]]]


@dataclass(frozen=True)
class BenchRun:
    """A run of the bench.

    Attributes:
        task: Its name.
        way: Its name.
        setting: The overrides that tell it from other runs of the way; empty: it has one run a seed.
        seed: Of the run.
        training: Its overrides; some may name another way.
        evaluation: Further overrides of the evaluation that follows; empty: none does.
        places: Those of the training that only say where files are.
    """

    task: str
    way: str
    setting: tuple[str, ...]
    seed: int
    training: tuple[str, ...]
    evaluation: tuple[str, ...]
    places: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Of its file of results."""
        told = "".join(f".{override.replace('=', '_')}" for override in self.setting)
        return re.sub(r"[^\w.-]+", "_", f"{self.task}.{self.way}{told}.{self.seed}")

    @property
    def overrides(self) -> list[str]:
        """All it was run and evaluated with, wherever its files are and whichever other runs there were."""
        every = (*self.training, *self.evaluation)
        return [each for each in every if each not in self.places and not each.startswith(("output_dir=", "bench="))]

    @property
    def needs(self) -> set[str]:
        """Ways whose runs it starts from."""
        return {name for override in self.training for name in _NAMED.findall(override)}

    def after(self, folders: Mapping[str, Path]) -> BenchRun:
        """With the folders of the runs that it starts from."""
        named = (_NAMED.sub(lambda found: str(folders[found[1]]), override) for override in self.training)
        return replace(self, training=tuple(named))


def runs_of(tasks: Mapping[str, Any], seeds: Iterable[int], further: Sequence[str], swept: Swept) -> list[BenchRun]:
    """All runs of a bench.

    Args:
        tasks: By name `overrides`, `places`, and `ways`, lists of overrides by name.
        seeds: Of every run.
        further: Overrides of all runs, which have the last word.
        swept: From overrides to those of each combination of their values.

    Raises:
        ConfigError: If a task has no ways, or a way needs one that there is not.
    """
    found = []
    for task, about in tasks.items():
        ways = {
            name: _split(overrides)
            for name, overrides in dict(about.get("ways") or {}).items()
            if overrides is not None
        }
        if not ways:
            raise ConfigError(f"hydra.sweeper.tasks.{task}: has no ways")
        places = tuple(about.get("places", ()))
        for (way, (trained, evaluated)), seed in itertools.product(ways.items(), seeds):
            for setting in swept(trained):
                shared = (*about.get("overrides", ()), *places)
                given = _last_words([*shared, *setting, *further, f"seed={seed}", "seeds=1"])
                told = tuple(setting) if len(swept(trained)) > 1 else ()
                told = tuple(each for each in told if each not in trained)
                cell = BenchRun(task, way, told, seed, given, tuple(evaluated), places)
                if unknown := cell.needs - (set(ways) - {way}):
                    raise ConfigError(
                        f"hydra.sweeper.tasks.{task}.ways.{way}: no other way is named {sorted(unknown)[0]}"
                    )
                found.append(cell)
    return found


def _last_words(overrides: Iterable[str]) -> tuple[str, ...]:
    """The overrides of a run: of a key that is given several times the last, which Hydra refuses of groups."""
    return tuple({override.lstrip("+").partition("=")[0]: override for override in overrides}.values())


def _split(overrides: Any) -> tuple[list[str], list[str]]:
    """Those of the training, and those of the evaluation."""
    given = [str(override) for override in ([overrides] if isinstance(overrides, str) else overrides)]
    evaluated = [override for override in given if override.startswith(_EVALUATES)]
    return [override for override in given if override not in evaluated], evaluated


def with_needed(missing: Iterable[BenchRun], cells: Sequence[BenchRun]) -> list[BenchRun]:
    """Runs, and those that they start from, in the order of all."""
    wanted = set(missing)
    while True:
        needed = {(cell.task, cell.seed, name) for cell in wanted for name in cell.needs}
        more = {cell for cell in cells if (cell.task, cell.seed, cell.way) in needed} - wanted
        if not more:
            return [cell for cell in cells if cell in wanted]
        wanted |= more


def ready(
    cells: Iterable[BenchRun], done: Mapping[BenchRun, Path], failed: Collection[BenchRun]
) -> Iterator[tuple[BenchRun, BenchRun]]:
    """Cells that were not run yet and need none that was not, as they are and with the folders that they name."""
    folders = {(cell.task, cell.seed, cell.way): run for cell, run in done.items()}
    for cell in cells:
        if cell in done or cell in failed or any((cell.task, cell.seed, name) not in folders for name in cell.needs):
            continue
        yield cell, cell.after({name: folders[cell.task, cell.seed, name] for name in cell.needs})


def evaluation_of(cell: BenchRun, run: Path) -> list[str]:
    """The overrides of the evaluation that follows a run; a second stage, `halting`, is of training alone."""
    read = [override for override in cell.training if not override.lstrip("+").startswith("halting.")]
    return [*read, "mode=evaluate", f"checkpoint={run}", *cell.evaluation]


def finished_evaluation(run: Path, asked: ExperimentConfig) -> Path | None:
    """The newest finished evaluation of a run by these exit rules and budgets."""
    wanted = (asked.exit_rules, asked.budget.targets)
    for record in sorted(run.glob(f"evaluations/*/{RECORD}"), reverse=True):
        try:
            settings = read_settings(record.parent)
        except CheckpointError as error:
            warn_once(f"{error}; that evaluation is made anew")
            continue
        found = [list(settings.get("exit_rules") or ()), list((settings.get("budget") or {}).get("targets") or ())]
        is_wanted = found == [list(each or ()) for each in wanted]
        if (
            is_wanted
            and read_sound_record(record.parent).get("status") == "finished"
            and not _is_damaged(record.parent)
        ):
            return record.parent
    return None


def _is_damaged(evaluation: Path) -> bool:
    """Whether what an evaluation studied cannot be read, which a warning says."""
    files = read_run(evaluation)
    files.of(EXIT_RULES), files.of(BUDGETS)
    problem = next((files.missing[name] for name in (EXIT_RULES, BUDGETS) if name in files.missing), None)
    if problem is not None:
        warn_once(f"{evaluation}: {problem}; that evaluation is made anew")
    return problem is not None


def readable_runs(runs: Mapping[str, Path]) -> dict[str, Path]:
    """Leave out the finished runs that cannot say what a bench asks of them, each with a warning."""
    problems = {run: _problem_of_run(run) for run in runs.values()}
    for run, problem in problems.items():
        if problem is not None:
            warn_once(f"{run}: {problem}; that run is made anew")
    return {name: run for name, run in runs.items() if problems[run] is None}


def _problem_of_run(run: Path) -> str | None:
    files = read_run(run)
    if problem := next((files.missing[name] for name in (RECORD, HALTING) if name in files.missing), None):
        return problem
    needed = (("unit", "max_depth", "set", "classes"), ("steps", "final_metrics"))
    absent = [
        f"{file} lacks {name}"
        for file, names, fields in zip((HALTING, RECORD), needed, (files.halting, files.run), strict=True)
        for name in names
        if fields.get(name) is None
    ]
    if not absent and not {"n", "mean", "std"} <= files.halting["classes"].get("all", {}).keys():
        return f"{HALTING} lacks depths of all units"
    return next(iter(absent), None)


# ---- what runs say


def result_of(cell: BenchRun, run: Path, evaluation: Path | None) -> dict[str, Any]:
    """What a run, and the evaluation that followed, say about one place of the bench: figures of every evaluated set.

    Returns:
        How it was made: `name`, `task`, `way`, `setting`, `seed`, `overrides`, `commit`, `hardware`, `versions`,
        `seconds` and the `steps` of its training. Then `unit`, `max_updates`, and `sets` by name: `n` units;
        `readings`, points by name of what was read, those of the run itself as `run`, and those of budgets as `budget`;
        and of exit studies `rules`, what was studied with its controls and times, and `overthinking`. See
        `adadepth.measure.exit_rule_selection.readings` for points; what was not chosen has no `chosen_score`.
    """
    files, studied = read_run(run), {} if evaluation is None else read_run(evaluation).of(EXIT_RULES).get("sets", {})
    record, halting = files.run, files.halting
    sets = {}
    for number, name in enumerate([halting["set"], *halting.get("further_sets", {})]):
        told = halting if number == 0 else halting["further_sets"][name]
        found: dict[str, Any] = {"n": _units(told), "readings": {"run": [_own_point(files, told, name, number == 0)]}}
        if study := studied.get(name):
            found |= _studied(study)
            found["readings"] |= study["readings"] | really_run(found["rules"])
        if number == 0 and evaluation is not None and (rows := read_run(evaluation).of(BUDGETS).get("rows")):
            found["readings"]["budget"] = [_budget_point(row, halting) for row in rows if row.get("target") is not None]
        sets[name] = found
    return {
        "name": cell.name,
        "task": cell.task,
        "way": cell.way,
        "setting": list(cell.setting),
        "seed": cell.seed,
        "overrides": cell.overrides,
        "commit": record.get("git_commit"),
        "hardware": record.get("hardware"),
        "versions": {name: record.get("versions", {}).get(name) for name in ("adadepth", "torch", "transformers")},
        "seconds": record.get("wall_time_s"),
        "steps": record["steps"]["done"],
        "unit": halting["unit"],
        "max_updates": halting["max_depth"],
        "sets": sets,
    }


def _own_point(files: RunFiles, told: Mapping[str, Any], name: str, is_first: bool) -> dict[str, Any]:
    """A run at the depths that it has by itself; of further sets the work is not measured."""
    score = _score(files.run["final_metrics"], "eval/" if is_first else f"eval/{name}/")
    difficulty = told.get("difficulty", {})
    rows = [told["classes"]["all"]] if is_first else difficulty.get("rows", [])
    units = sum(row["n"] for row in rows)
    point = {
        "rule": None,
        "score": score,
        "score_error": _share_error(score, units),
        "updates": sum(row["n"] * row["mean"] for row in rows) / units if units else None,
        "updates_error": rows[0]["std"] / math.sqrt(units) if is_first else None,
        "macs": told["cost"]["adaptive_macs"] / units if "adaptive_macs" in told.get("cost", {}) else None,
    }
    return point | ({"spearman": difficulty["spearman"]["value"]} if "spearman" in difficulty else {})


def _score(metrics: Mapping[str, float], prefix: str) -> float | None:
    """The mean of the task's metrics, or minus the loss of a text's tokens."""
    losses = [-metrics[name] for part in ("lm_loss", "mlm_loss") if (name := f"{prefix}{part}") in metrics]
    return next(iter(losses), metrics.get(f"{prefix}score"))


def _units(told: Mapping[str, Any]) -> int:
    """How many units of a set were predicted."""
    if "classes" in told:
        return int(told["classes"]["all"]["n"])
    return sum(row["n"] for row in told.get("difficulty", {}).get("rows", []))


def _budget_point(row: Mapping[str, Any], halting: Mapping[str, Any]) -> dict[str, Any]:
    """A run at another depth, to which a half of the examples has set it."""
    score, units = _score(row["metrics"], "eval/"), halting["classes"]["all"]["n"] // 2
    full = halting["cost"]["full_macs"] / halting["classes"]["all"]["n"]
    return {
        "rule": f"budget.target={row['target']:g}",
        "score": score,
        "score_error": _share_error(score, units),
        "updates": row["mean"],
        "updates_error": row["std"] / math.sqrt(units),
        "macs": row["adaptive_over_full"] * full,
    }


def _share_error(score: float | None, units: int) -> float | None:
    """The standard error of a share of independent units."""
    return math.sqrt(score * (1.0 - score) / units) if units and score is not None and 0.0 <= score <= 1.0 else None


_SEEN = 0.005  # a difference of scores from which on exits are said to change what others see


def really_run(rules: Sequence[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Points of rules as they ran, by name of the rule, where exits change what others see: a replay says too much.

    Work is that of the replay at the updates that there really were.
    """
    ran = [row for row in rules if row["online"] is not None and row["updates"]]
    if all(abs(row["online"] - row["score"]) < _SEEN for row in ran):
        return {}
    found: dict[str, list[dict[str, Any]]] = {}
    for row in ran:
        name, updates = row["rule"].partition(":")[0], row["online_updates"]
        macs = row["macs"] * updates / row["updates"]
        point = {"rule": row["rule"], "score": row["online"], "score_error": None, "updates": updates, "macs": macs}
        if name != "fixed":
            found.setdefault(name, []).append(point | {"updates_error": None, "spearman": row["spearman"]})
    return found


def _studied(study: Mapping[str, Any]) -> dict[str, Any]:
    """What an exit study says besides its readings: the rules as they were given, and what updates after the best cost.

    A rule has `score`; `online`, its score where it really ran; `updates`, `macs`; `permuted` and `mixture`, its
    controls' scores, with `permuted_std`; `spearman`, `calibration`; and `time`, the share of full depth's by batch.
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
