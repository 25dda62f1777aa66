"""What a search by Optuna tried, as plain values."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from string import ascii_uppercase
from typing import Any, NamedTuple

from adadepth.measure.exit_costs import pareto
from adadepth.measure.names import SPEEDUPS, WORK, is_loss
from adadepth.report.facts import title
from adadepth.report.figure import Points
from adadepth.report.run_files import (
    CONFIG,
    METRICS,
    RUN,
    SEEDS,
    RunFiles,
    cut_short,
    halts,
    is_summary_of_seeds,
    read_run,
    run_unit,
    series,
)
from adadepth.report.seeds import headline_metrics, summarise_seeds
from adadepth.report.table import number
from adadepth.settings.fingerprint import result_settings


@dataclass(frozen=True)
class Parameter:
    """One dimension of what was searched.

    Attributes:
        key: Of the configuration.
        low: The lowest value, or the first choice.
        high: The highest value, or the last choice.
        is_log: Whether it was drawn evenly in the logarithm.
        choices: All values, of one that has no order.
    """

    key: str
    low: Any
    high: Any
    is_log: bool = False
    choices: Sequence[Any] = ()

    def place(self, value: Any) -> float:
        """Where a value lies between lowest (0) and highest (1)."""
        if self.choices:
            return self.choices.index(value) / max(len(self.choices) - 1, 1)
        low, high, at = (math.log(each) if self.is_log else float(each) for each in (self.low, self.high, value))
        return (at - low) / (high - low) if high > low else 0.5

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.key.rpartition(".")[2]


@dataclass(frozen=True)
class Search:
    """Finished trials of a study.

    Attributes:
        metric: What was optimised.
        less_is_better: Whether it was minimised.
        parameters: What was searched.
        trials: The values of the parameters, and the metric, of every trial that has one.
        importances: By key the share of the metric's variance that the parameter explains (fANOVA, Hutter et al. 2014);
            empty where the trials do not tell.
    """

    metric: str
    less_is_better: bool
    parameters: Sequence[Parameter]
    trials: Sequence[tuple[Mapping[str, Any], float]]
    importances: Mapping[str, float]

    @property
    def best_first(self) -> list[tuple[Mapping[str, Any], float]]:
        """The trials by what they reached."""
        return sorted(self.trials, key=lambda trial: trial[1] if self.less_is_better else -trial[1])


_MARKS = frozenset({RUN, CONFIG, METRICS})


def runs_in(folder: Path) -> list[RunFiles]:
    """The runs in a folder, or the folder itself if it is a run.

    What lies in a run, such as its evaluations, is not looked for. A summary of seeds stands for its runs. Where there
    are trainings, evaluations beside them are left out.
    """
    found = [run for path in _folders(folder) for run in _whole(read_run(path))]
    trainings = [run for run in found if run.run.get("mode", "train") == "train"]
    return once(trainings or found)


def of_sweep(folders: Iterable[Path], sweep: str) -> list[RunFiles]:
    """The runs below some folders that jobs of one sweep made, evaluations of runs among them; summaries of seeds not.

    Args:
        folders: Where to look.
        sweep: What run.json names in `sweep`.
    """
    records = (path for folder in folders for path in sorted(folder.rglob(RUN)) if sweep in path.read_text("utf-8"))
    runs = (read_run(path.parent) for path in records)
    return once(run for run in runs if run.run.get("sweep") == sweep and not is_summary_of_seeds(run))


def once(runs: Iterable[RunFiles]) -> list[RunFiles]:
    """Every run once, in the order in which they are named."""
    return list({run.directory.resolve(): run for run in runs}.values())


def _folders(folder: Path) -> Iterator[Path]:
    """Folders of runs from the oldest on, as their names begin with the time."""
    for path, below, files in os.walk(folder):
        below.sort()
        if _MARKS.intersection(files):
            below.clear()
            yield Path(path)


def _whole(run: RunFiles) -> list[RunFiles]:
    """A run, or those that a summary of seeds is of; one of an older version does not say them, and is none."""
    return seeds_of(run) if is_summary_of_seeds(run) else [run]


def seeds_of(summary: RunFiles) -> list[RunFiles]:
    """The runs that a summary of seeds is of, as far as it says where they are."""
    return [read_run(summary.directory / place) for place in (summary.of(SEEDS).get("runs") or {}).values()]


Settings = Mapping[str, Any]
_MAX_KEYS, _MAX_LABEL = 3, 40  # of a label
_DATA = ("dataset.name", "dataset.path")
_TOKENIZER = ("tokenizer.kind", "tokenizer.path", "tokenizer.vocab_size")


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed only.

    Attributes:
        label: What it is called.
        settings: What may change a result, by key, without the seed.
        runs: One or more.
        summary: Mean and deviation of their final metrics, from `summarise_seeds`.
    """

    label: str
    settings: Settings
    runs: Sequence[RunFiles]
    summary: Mapping[str, Any]

    def figure(self, name: str) -> Mapping[str, Any] | None:
        """`n`, `mean` and, of several values, `std` of a final metric; None where no run has it."""
        found: Mapping[str, Any] | None = self.summary["metrics"].get(name)
        return found


@dataclass(frozen=True)
class Comparison:
    """Runs side by side.

    Attributes:
        groups: In the order in which their first runs were named.
        left_out: Sentences about what could not be compared.
        search: The search whose trials the runs are, where they are trials.
    """

    groups: Sequence[Group]
    left_out: Sequence[str]
    search: Search | None = None

    @property
    def runs(self) -> list[RunFiles]:
        """The runs of all groups in order."""
        return [run for group in self.groups for run in group.runs]

    @property
    def entries(self) -> Sequence[Group]:
        """What has a colour of its own: the groups, or, of a single group, its runs."""
        if len(self.groups) > 1:
            return self.groups
        return [
            Group(f"seed {seed(run)}", group.settings, [run], _summary([run]))
            for group in self.groups
            for run in group.runs
        ]

    @property
    def other_data(self) -> list[str]:
        """Settings by which the data of the runs differ: their losses and scores do not compare."""
        is_tokenized = any("tokenizer" in (run.run.get("data") or {}) for run in self.runs)
        kept = (*_DATA, *_TOKENIZER) if is_tokenized else _DATA
        return [key for key in differing([group.settings for group in self.groups]) if key in kept]

    @property
    def unit(self) -> str | None:
        """What has a depth of its own; None where runs that measured it differ, or nothing halts."""
        units = {run_unit(run) if halts(run) else "" for run in self.runs if run.halting}
        return (units.pop() or None) if len(units) == 1 else None


def compare(runs: Iterable[RunFiles], further: Sequence[str] = ()) -> Comparison:
    """Group runs; those that cannot be read, and repetitions of a seed, are named and left out.

    Args:
        runs: The runs to compare.
        further: Sentences about what else is not there.
    """
    left_out, kept = list(further), dict[tuple[str, Any], RunFiles]()
    for run in runs:
        if damage := [run.missing[name] for name in (RUN, CONFIG) if name in run.missing]:
            left_out.append(f"{run.directory}: left out, {' and '.join(damage)}.")
            continue
        key = json.dumps(run_settings(run), sort_keys=True, default=str), seed(run)
        earlier = kept.get(key)
        kept[key] = earlier if earlier and final(earlier) and not final(run) else run
        if earlier:
            other = run if kept[key] is earlier else earlier
            left_out.append(f"{other.directory}: left out, {kept[key].directory} has the same settings and seed.")
    left_out += [remark for run in kept.values() for remark in _remarks(run)]
    grouped: dict[str, list[RunFiles]] = {}
    for (settings, _), run in kept.items():
        grouped.setdefault(settings, []).append(run)
    groups = list(grouped.values())
    return Comparison(
        [Group(label, run_settings(of[0]), of, _summary(of)) for label, of in zip(labels(groups), groups, strict=True)],
        left_out,
    )


def _remarks(run: RunFiles) -> list[str]:
    """Sentences about a run that is there, but not whole."""
    found = [f"{run.directory}: {run.missing[METRICS]}, so it has no curves."] if METRICS in run.missing else []
    if reason := cut_short(run):
        found.append(f"{run.directory}: cut short, {reason}; its figures are of a training that had not ended.")
    if not final(run):
        status, error = run.run.get("status", "not finished"), run.run.get("error")
        found.append(f"{run.directory}: {status}, so it has no final figures" + (f"; {error}." if error else "."))
    return found


def final(run: RunFiles) -> Mapping[str, Any]:
    """The final metrics of a run; empty where it has none."""
    found = run.run.get("final_metrics")
    return found if isinstance(found, dict) else {}


def seed(run: RunFiles) -> Any:
    """The seed of a run."""
    return run.run.get("seed", run.config.get("seed"))


def name_of(entry: Group, run: RunFiles) -> str:
    """What a run of a group is called."""
    return f"{entry.label}, seed {seed(run)}" if len(entry.runs) > 1 else entry.label


def _summary(runs: Sequence[RunFiles]) -> Mapping[str, Any]:
    return summarise_seeds([(seed(run), final(run)) for run in runs])


# ---- settings


def run_settings(run: RunFiles) -> Settings:
    """What may have changed a result, by key, without the seed; of an evaluation also what was evaluated."""
    chosen = result_settings({key: value for key, value in run.config.items() if key not in ("seed", "seeds")})
    if run.config.get("checkpoint") is not None:
        chosen["checkpoint"] = run.config["checkpoint"]
    return _flat(chosen)


def _flat(node: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(node, dict) or not node:
        return {prefix[:-1]: node}
    return {key: value for name, child in node.items() for key, value in _flat(child, f"{prefix}{name}.").items()}


def differing(settings: Sequence[Settings]) -> list[str]:
    """The keys that all have, and that not all have with the same value."""
    return [key for key in _shared(settings) if any(one[key] != settings[0][key] for one in settings)]


def unshared(settings: Sequence[Settings]) -> list[str]:
    """The keys that some have and others lack."""
    every = dict.fromkeys(key for one in settings for key in one)
    return [key for key in every if any(key not in one for one in settings)]


def _shared(settings: Sequence[Settings]) -> list[str]:
    return [key for key in settings[0] if all(key in one for one in settings)] if settings else []


def labels(groups: Sequence[Sequence[RunFiles]]) -> list[str]:
    """A name for every group: that of its configuration, and how it differs from others of that name.

    Where this is not short, or not its own, a letter stands for it.
    """
    names = [title(runs[0]) for runs in groups]
    settings = [run_settings(runs[0]) for runs in groups]
    told = []
    for name, own in zip(names, settings, strict=True):
        keys = differing([other for other_name, other in zip(names, settings, strict=True) if other_name == name])
        parts = [name] if len(set(names)) > 1 or not keys else []
        told.append(" ".join([*parts, *(f"{_short(key, keys)}={written(own[key])}" for key in keys)]))
        if len(keys) > _MAX_KEYS or len(told[-1]) > _MAX_LABEL:
            told[-1] = name
    return [
        text if told.count(text) == 1 else f"{text} {_letter(told[:index].count(text))}"
        for index, text in enumerate(told)
    ]


def _short(key: str, keys: Sequence[str]) -> str:
    """The last part of a key, if no other one ends so."""
    last = key.rpartition(".")[2]
    return last if sum(other.rpartition(".")[2] == last for other in keys) == 1 else key


def _letter(index: int) -> str:
    return ascii_uppercase[index % 26] + (str(index // 26) if index >= 26 else "")


def written(value: Any) -> str:
    """A setting as the command line takes it."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def listed(names: Sequence[str], most: int = 8) -> str:
    """Names in a line; of many the first ones and how many more."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {number(rest)} more" if rest > 0 else "")


DEPTH = "halting/all/mean"
_QUALITIES = ("eval/score", "eval/mlm_loss", "eval/lm_loss", "eval/task_loss")
_TOTAL = "eval/loss"  # it holds penalties too, other ones in other families
# Final figures that are no metrics of the evaluated set itself.
_FURTHER = (WORK, *SPEEDUPS.values())


class Quality(NamedTuple):
    """The metric that stands for quality, and whether less of it is better."""

    name: str
    less_is_better: bool

    def best_first(self, entries: Sequence[Group]) -> list[Group]:
        """The entries that have the metric, the best first."""
        sign = 1 if self.less_is_better else -1
        return sorted((entry for entry in entries if entry.figure(self.name)), key=lambda entry: sign * self.of(entry))

    def of(self, entry: Group) -> float:
        """Its mean in a group that has it."""
        found = entry.figure(self.name)
        assert found is not None
        return float(found["mean"])


def compared_quality(comparison: Comparison) -> Quality | None:
    """What all runs have and were to be good at: what they optimise, else what selects their model, else a score."""
    optimised = _common(comparison, lambda run: run.config.get("optimise"))
    trainers = [run.config.get("trainer") or {} for run in comparison.runs]
    selecting = _common(comparison, lambda run: (run.config.get("trainer") or {}).get("metric_for_best_model"))
    if selecting is not None:
        selecting = "eval/" + selecting.removeprefix("eval_")
    names = [name for name in (optimised, selecting, *_QUALITIES) if name not in (None, _TOTAL)]
    name = next((name for name in (*names, _TOTAL) if name in shared_figures(comparison.groups)), None)
    if name is None:
        return None
    if name == selecting and trainers[0].get("greater_is_better") is not None:
        return Quality(name, not trainers[0]["greater_is_better"])
    return Quality(name, is_loss(name))


def _common(comparison: Comparison, read: Callable[[RunFiles], Any]) -> Any:
    """What is the same in all runs; None otherwise."""
    found = {read(run) for run in comparison.runs}
    return found.pop() if len(found) == 1 else None


def shared_figures(groups: Sequence[Group]) -> list[str]:
    """Final metrics that all groups with any final metrics have."""
    able = [group for group in groups if group.summary["metrics"]]
    return [name for name in _names(able) if all(group.figure(name) for group in able)]


def unshared_figures(groups: Sequence[Group]) -> list[str]:
    """The figures worth a table that some of these groups have and others lack."""
    shared = set(shared_figures(groups))
    return [name for name in headlines(groups) if name not in shared]


def headlines(groups: Sequence[Group]) -> list[str]:
    """Final metrics worth a table, of any group."""
    wanted = [name for group in groups for name in headline_metrics(group.summary)]
    return list(dict.fromkeys([*wanted, *(name for name in _FURTHER if name in _names(groups))]))


def _names(groups: Sequence[Group]) -> dict[str, None]:
    return dict.fromkeys(name for group in groups for name in group.summary["metrics"])


def best_of_both(entries: Sequence[Group], cost: str, quality: Quality) -> list[bool]:
    """Which groups no other one beats in mean cost and mean quality at once."""
    sign = -1 if quality.less_is_better else 1
    points = [
        (found["mean"], sign * quality.of(entry))
        if (found := entry.figure(cost)) and entry.figure(quality.name)
        else None
        for entry in entries
    ]
    return pareto(points)


def curves(entry: Group, name: str) -> tuple[Points, list[Points]]:
    """The curve of a metric, of several runs their mean where all of them have a value, and the curves of the runs."""
    found: list[Points] = [points for run in entry.runs if (points := series(run.metrics, name))]
    if len(found) < 2:
        return (found or [[]])[0], []
    values = [dict(points) for points in found]
    steps = sorted(set(values[0]).intersection(*values[1:]))
    return [(step, fmean(of[step] for of in values)) for step in steps], found
