"""Groups of runs that differ only in the seed, comparisons of groups, and the trials of a hyperparameter search."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from string import ascii_uppercase
from typing import Any, NamedTuple

from adadepth.config.fingerprint import select_result_settings
from adadepth.metrics.directions import is_less_better
from adadepth.metrics.exit_pareto import pareto
from adadepth.metrics.metric_names import PREFERRED_QUALITIES, SPEEDUPS, WORK
from adadepth.metrics.unit_costs import TIME, UNIT_MACS, UNIT_MACS_WITH_PREDICTIONS, compute_prediction_factor
from adadepth.report.compute_cost import measure_unit_costs
from adadepth.report.figure import Points
from adadepth.report.matched_networks import find_fixed_depth
from adadepth.report.run_files import (
    CONFIG,
    METRICS,
    RUN,
    RunFiles,
    get_early_stop_reason,
    get_run_unit,
    halts,
    is_summary_of_seeds,
    read_run,
    read_seed_runs,
    series,
)
from adadepth.report.run_metadata import title
from adadepth.report.seeds import select_headline_metrics, summarise_seeds
from adadepth.report.table import number


@dataclass(frozen=True)
class Parameter:
    """Hyperparameter of a search, with its range.

    Attributes:
        key: Configuration key.
        low: Lowest value, or the first choice.
        high: Highest value, or the last choice.
        is_log: Whether it was sampled on a logarithmic scale.
        choices: All values of a categorical parameter.
    """

    key: str
    low: Any
    high: Any
    is_log: bool = False
    choices: Sequence[Any] = ()

    def place(self, value: Any) -> float:
        """Scale a hyperparameter's value to [0, 1], from its lowest to its highest value."""
        if self.choices:
            return self.choices.index(value) / max(len(self.choices) - 1, 1)
        low, high, scaled = (
            math.log(number) if self.is_log else float(number) for number in (self.low, self.high, value)
        )
        return (scaled - low) / (high - low) if high > low else 0.5

    @property
    def name(self) -> str:
        """Last part of the hyperparameter's configuration key."""
        return self.key.rpartition(".")[2]


@dataclass(frozen=True)
class Search:
    """Hyperparameter search with its finished trials.

    Attributes:
        metric: Optimised metric.
        less_is_better: Whether the metric was minimised.
        parameters: Dimensions of the search space.
        trials: Parameter values and metric of every trial that has a metric.
        importances: Share of the variance of the metric that each parameter explains, by key (fANOVA, Hutter et al.
            2014). It is empty if the trials are insufficient for an estimate.
    """

    metric: str
    less_is_better: bool
    parameters: Sequence[Parameter]
    trials: Sequence[tuple[Mapping[str, Any], float]]
    importances: Mapping[str, float]

    @property
    def best_first(self) -> list[tuple[Mapping[str, Any], float]]:
        """Trials of the search from best to worst."""
        return sorted(self.trials, key=lambda trial: trial[1] if self.less_is_better else -trial[1])


_RUN_FILE_NAMES = frozenset({RUN, CONFIG, METRICS})


def find_runs(folder: Path) -> list[RunFiles]:
    """Find all runs below a folder, or the folder itself if it is a run, and read their files.

    Subfolders of a run, such as its evaluations, are not searched. A summary of seeds is replaced by its runs. If there
    are training runs, evaluations next to them are skipped.
    """
    runs = [run for path in _iterate_run_folders(folder) for run in _expand_seeds(read_run(path))]
    trainings = [run for run in runs if run.run.get("mode", "train") == "train"]
    return deduplicate_runs(trainings or runs)


def find_sweep_runs(folders: Iterable[Path], sweep: str) -> list[RunFiles]:
    """Find the runs below some folders that belong to one sweep, and read their files.

    Evaluations are included, summaries over seeds are not.

    Args:
        folders: Folders to search.
        sweep: Value of `sweep` in run.json.
    """
    records = (path for folder in folders for path in sorted(folder.rglob(RUN)) if sweep in path.read_text("utf-8"))
    runs = (read_run(path.parent) for path in records)
    return deduplicate_runs(run for run in runs if run.run.get("sweep") == sweep and not is_summary_of_seeds(run))


def deduplicate_runs(runs: Iterable[RunFiles]) -> list[RunFiles]:
    """Remove runs that occur twice, keeping the order of the others."""
    return list({run.directory.resolve(): run for run in runs}.values())


def _iterate_run_folders(folder: Path) -> Iterator[Path]:
    """Yield the run directories in a folder, oldest first."""
    for path, below, files in os.walk(folder):
        below.sort()
        if _RUN_FILE_NAMES.intersection(files):
            below.clear()
            yield Path(path)


def _expand_seeds(run: RunFiles) -> list[RunFiles]:
    """Return a run as a list, or the runs behind it if it is a summary over seeds.

    The list is empty for an older summary that does not name its runs.
    """
    return read_seed_runs(run) if is_summary_of_seeds(run) else [run]


Settings = Mapping[str, Any]
_MAX_KEYS, _MAX_LABEL = 3, 40  # of a label
# Settings of data that change what a model learns from, but not what it is evaluated on.
_TRAINING_DATA = frozenset(
    f"dataset.{name}"
    for name in (
        "train_examples", "max_train_examples", "easy_epochs", "easy_ones", "symmetries", "class_weights",
        "shuffle_buffer", "prepare_workers", "pad_to_length",
    )
)  # fmt: skip
_STORAGE = ("model.save_base",)  # settings of written files, which change no result
_TOKENIZER = ("tokenizer.kind", "tokenizer.path", "tokenizer.vocab_size")


@dataclass(frozen=True)
class Group:
    """Runs with equal settings that differ only in the seed.

    Attributes:
        label: Display name.
        settings: Settings that may change a result, by key, without the seed.
        runs: Runs of the group, at least one.
        summary: Mean and standard deviation of their final metrics, from `summarise_seeds`.
    """

    label: str
    settings: Settings
    runs: Sequence[RunFiles]
    summary: Mapping[str, Any]

    def figure(self, name: str) -> Mapping[str, Any] | None:
        """Return `n`, `mean` and, for several values, `std` of a final metric in the group; None without a value."""
        spread: Mapping[str, Any] | None = self.summary["metrics"].get(name)
        return spread

    @property
    def model(self) -> tuple[Any, Any, bool]:
        """Family, number of parameters, and whether it is a matched baseline: equal for one model at several depths."""
        is_baseline = bool(self.runs[0].config.get("rival_of"))
        return self.settings.get("model.name"), self.runs[0].run.get("parameters"), is_baseline


@dataclass(frozen=True)
class Comparison:
    """Comparison of several groups of runs.

    Attributes:
        groups: Groups in the order of their first runs.
        left_out: Sentences about runs that could not be compared.
        search: Search that produced the runs, or None if they are not trials of a search.
    """

    groups: Sequence[Group]
    left_out: Sequence[str]
    search: Search | None = None

    @property
    def runs(self) -> list[RunFiles]:
        """Runs of all groups, in order."""
        return [run for group in self.groups for run in group.runs]

    @property
    def entries(self) -> Sequence[Group]:
        """Rows and curves with their own colour: the groups or, for a single group, its runs."""
        if len(self.groups) > 1:
            return self.groups
        return [
            Group(f"seed {seed(run)}", group.settings, [run], _summarise_group([run]))
            for group in self.groups
            for run in group.runs
        ]

    @property
    def other_data(self) -> list[str]:
        """Data settings that differ between the runs, so that their losses and scores cannot be compared."""
        is_tokenized = any("tokenizer" in (run.run.get("data") or {}) for run in self.runs)
        return [
            key
            for key in get_differing_keys([group.settings for group in self.groups])
            if (key.startswith("dataset.") and key not in _TRAINING_DATA) or (is_tokenized and key in _TOKENIZER)
        ]

    @property
    def unit(self) -> str | None:
        """Unit that has a depth in all compared runs, such as a token; None if the runs differ or nothing halts."""
        units = {get_run_unit(run) if halts(run) else "" for run in self.runs if run.halting}
        return (units.pop() or None) if len(units) == 1 else None


def compare(runs: Iterable[RunFiles], remarks: Sequence[str] = ()) -> Comparison:
    """Group runs with equal settings. Unreadable runs and repeated seeds are excluded and named.

    Equal tokenizers count as equal settings, wherever their files lie.

    Args:
        runs: The runs to compare.
        remarks: Sentences about other missing runs.
    """
    left_out, selected = list(remarks), dict[tuple[str, Any], RunFiles]()
    for run in _unify_tokenizers(runs):
        if damage := [run.missing[name] for name in (RUN, CONFIG) if name in run.missing]:
            left_out.append(f"{run.directory}: excluded, {' and '.join(damage)}.")
            continue
        key = json.dumps(get_run_settings(run), sort_keys=True, default=str), seed(run)
        earlier = selected.get(key)
        selected[key] = earlier if earlier and final(earlier) and not final(run) else run
        if earlier:
            other = run if selected[key] is earlier else earlier
            left_out.append(
                f"{other.directory}: excluded, because {selected[key].directory} has the same settings and seed."
            )
    left_out += [remark for run in selected.values() for remark in _describe_gaps(run)]
    grouped: dict[str, list[RunFiles]] = {}
    for (settings, _), run in selected.items():
        grouped.setdefault(settings, []).append(run)
    groups = list(grouped.values())
    return Comparison(
        [
            Group(label, get_run_settings(members[0]), members, _summarise_group(members))
            for label, members in zip(labels(groups), groups, strict=True)
        ],
        left_out,
    )


def _unify_tokenizers(runs: Iterable[RunFiles]) -> Iterator[RunFiles]:
    """Yield the runs with the tokenizer's settings of the first run that has the same tokenizer, by its digest."""
    settings: dict[str, Any] = {}
    for run in runs:
        digest = _find_tokenizer_digest(run)
        if digest is None or "tokenizer" not in run.config:
            yield run
        else:
            first = settings.setdefault(digest, run.config["tokenizer"])
            yield replace(run, config={**run.config, "tokenizer": first})


def _find_tokenizer_digest(run: RunFiles) -> str | None:
    """Return the digest of a run's tokenizer from its record, or from the model of an earlier version's run."""
    recorded = (run.run.get("data") or {}).get("tokenizer") or {}
    trained = run.of("model/config.json", {"training_data": dict[str, Any] | None}).get("training_data") or {}
    digest = recorded.get("digest", trained.get("tokenizer"))
    return digest if isinstance(digest, str) else None


def _describe_gaps(run: RunFiles) -> list[str]:
    """Return a sentence for each file that a readable run lacks."""
    remarks = [f"{run.directory}: {run.missing[METRICS]}, so it has no curves."] if METRICS in run.missing else []
    if reason := get_early_stop_reason(run):
        remarks.append(f"{run.directory}: ended early, {reason}; its figures come from an unfinished training.")
    if not final(run):
        status, error = run.run.get("status", "not finished"), run.run.get("error")
        remarks.append(f"{run.directory}: {status}, so it has no final figures" + (f"; {error}." if error else "."))
    return remarks


def final(run: RunFiles) -> Mapping[str, Any]:
    """Return the final metrics of a run, or an empty mapping if it has none."""
    metrics = run.run.get("final_metrics")
    return metrics if isinstance(metrics, dict) else {}


def seed(run: RunFiles) -> Any:
    """Return the seed of a run."""
    return run.run.get("seed", run.config.get("seed"))


def format_run_name(entry: Group, run: RunFiles) -> str:
    """Return the display name of a run in a group."""
    return f"{entry.label}, seed {seed(run)}" if len(entry.runs) > 1 else entry.label


def _summarise_group(runs: Sequence[RunFiles]) -> Mapping[str, Any]:
    """Summarise final metrics over seeds, with compute and time of a token, which older runs did not record.

    Compute with predictions at exits stands beside that without, as far as it is known. The depth of a matched baseline
    is that in updates of the adaptive network.
    """
    metrics = []
    for run in runs:
        values = {**measure_unit_costs(run), **final(run)} if final(run) else {}
        if (factor := compute_prediction_factor(run.halting)) is not None:
            values |= {name: values[key] * factor for key, name in UNIT_MACS_WITH_PREDICTIONS.items() if key in values}
        if DEPTH in values and (depth := find_fixed_depth(run)) is not None:
            values[DEPTH] = float(depth)
        metrics.append((seed(run), values))
    return summarise_seeds(metrics)


# ---- settings


def get_run_settings(run: RunFiles) -> Settings:
    """Return all settings of a run that may change a result, by dotted key and without the seed.

    For an evaluation they include the checkpoint.
    """
    settings = select_result_settings({key: value for key, value in run.config.items() if key not in ("seed", "seeds")})
    if run.config.get("checkpoint") is not None:
        settings["checkpoint"] = run.config["checkpoint"]
    return {key: value for key, value in _flatten(settings).items() if key not in _STORAGE}


def _flatten(node: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(node, dict) or not node:
        return {prefix[:-1]: node}
    return {key: value for name, child in node.items() for key, value in _flatten(child, f"{prefix}{name}.").items()}


def get_differing_keys(settings: Sequence[Settings]) -> list[str]:
    """Return the configuration keys whose values differ between runs."""
    if not settings:
        return []
    shared = [key for key in settings[0] if all(key in other for other in settings)]
    return [key for key in shared if any(other[key] != settings[0][key] for other in settings)]


def get_unshared_keys(settings: Sequence[Settings]) -> list[str]:
    """Return the configuration keys that only some of the runs have."""
    every = dict.fromkeys(key for group_settings in settings for key in group_settings)
    return [key for key in every if any(key not in group_settings for group_settings in settings)]


def labels(groups: Sequence[Sequence[RunFiles]]) -> list[str]:
    """Return a label for every group of runs: its configuration name, and the settings in which it differs.

    A letter replaces settings that are too long, and distinguishes equal names.
    """
    names = [title(runs[0]) for runs in groups]

    def write(name: str, values: Mapping[str, str]) -> str:
        parts = [name] if len(set(names)) > 1 or not values else []
        return " ".join([*parts, *(f"{key}={value}" for key, value in values.items())])

    return distinguish_names(names, [get_run_settings(runs[0]) for runs in groups], write, _MAX_LABEL)


def distinguish_names(
    names: Sequence[str], settings: Sequence[Settings], write: Callable[[str, Mapping[str, str]], str], longest: int
) -> list[str]:
    """Return a different label for each group of runs, from its name and the settings in which it differs.

    A letter replaces settings that are too long, and distinguishes equal names.

    Args:
        names: Name of each group, (G,).
        settings: Settings of each group, (G,).
        write: Function that returns a label from a name and from the settings in which groups of this name differ.
        longest: Largest number of characters of a label with settings.
    """
    texts = []
    for name, group_settings in zip(names, settings, strict=True):
        keys = get_differing_keys(
            [other for other_name, other in zip(names, settings, strict=True) if other_name == name]
        )
        text = write(name, {shorten_key(key, keys): format_setting(group_settings[key]) for key in keys})
        texts.append(name if len(keys) > _MAX_KEYS or len(text) > longest else text)
    return [
        text if texts.count(text) == 1 else f"{text} {_get_letter(texts[:index].count(text))}"
        for index, text in enumerate(texts)
    ]


def shorten_key(key: str, keys: Sequence[str]) -> str:
    """Return the last part of a configuration key if it is unique and not of the tokenizer, otherwise the whole key."""
    group, _, last = key.rpartition(".")
    return last if group != "tokenizer" and sum(other.rpartition(".")[2] == last for other in keys) == 1 else key


def _get_letter(index: int) -> str:
    return ascii_uppercase[index % 26] + (str(index // 26) if index >= 26 else "")


def format_setting(value: Any) -> str:
    """Format the value of a setting as on the command line."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def join_names(names: Sequence[str], limit: int = 8) -> str:
    """Join names on one line, abbreviated to the first names and a count if there are many."""
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {number(rest)} more" if rest > 0 else "")


DEPTH = "halting/all/mean"
_QUALITIES = tuple(f"eval/{name}" for name in PREFERRED_QUALITIES)
_TOTAL_LOSS = "eval/loss"  # it holds penalties too, other ones in other families
# Final figures that are no metrics of the evaluated set itself.
_COST_METRICS = (WORK, *SPEEDUPS.values())


class Quality(NamedTuple):
    """Quality metric, and whether a lower value of it is better."""

    name: str
    less_is_better: bool

    def best_first(self, entries: Sequence[Group]) -> list[Group]:
        """Return the groups of runs that have the metric, sorted from best to worst."""
        sign = 1 if self.less_is_better else -1
        return sorted((entry for entry in entries if entry.figure(self.name)), key=lambda entry: sign * self.of(entry))

    def of(self, entry: Group) -> float:
        """Return the mean of this metric over a group's runs, which must have it."""
        spread = entry.figure(self.name)
        assert spread is not None
        return float(spread["mean"])


def get_compared_quality(comparison: Comparison) -> Quality | None:
    """Return the quality metric that all runs have, for their comparison.

    The order of preference is the metric that all runs optimise, the metric for model selection, and a score.
    """
    optimised = _get_common(comparison, lambda run: run.config.get("optimise"))
    selecting = _get_common(comparison, lambda run: (run.config.get("trainer") or {}).get("metric_for_best_model"))
    if selecting is not None:
        selecting = "eval/" + selecting.removeprefix("eval_")
    names = [name for name in (optimised, selecting, *_QUALITIES) if name not in (None, _TOTAL_LOSS)]
    name = next((name for name in (*names, _TOTAL_LOSS) if name in get_shared_metrics(comparison.groups)), None)
    if name is None:
        return None
    return Quality(name, is_less_better(name, comparison.runs[0].config))


def _get_common(comparison: Comparison, read: Callable[[RunFiles], Any]) -> Any:
    """Return the value of a field if it is the same in all runs, otherwise None."""
    values = {read(run) for run in comparison.runs}
    return values.pop() if len(values) == 1 else None


def get_shared_metrics(groups: Sequence[Group]) -> list[str]:
    """Return the final metrics that all groups of runs have."""
    able = [group for group in groups if group.summary["metrics"]]
    return [name for name in _get_metric_names(able) if all(group.figure(name) for group in able)]


def get_unshared_metrics(groups: Sequence[Group]) -> list[str]:
    """Return headline metrics that only some groups of runs have."""
    shared = set(get_shared_metrics(groups))
    return [name for name in get_headline_metrics(groups) if name not in shared]


def get_headline_metrics(groups: Sequence[Group]) -> list[str]:
    """Return the final metrics to show in a table of groups of runs."""
    names = [name for group in groups for name in select_headline_metrics(group.summary)]
    return list(dict.fromkeys([*names, *(name for name in _COST_METRICS if name in _get_metric_names(groups))]))


def _get_metric_names(groups: Sequence[Group]) -> dict[str, None]:
    return dict.fromkeys(name for group in groups for name in group.summary["metrics"])


def find_pareto_groups(entries: Sequence[Group], cost: str, quality: Quality) -> list[bool]:
    """Return for each group of runs whether it is Pareto-optimal in mean cost and mean quality.

    A group is compared with all others if the cost is that of a token or sequence, otherwise with those of its model.
    """
    sign = -1 if quality.less_is_better else 1
    points = [
        (spread["mean"], sign * quality.of(entry))
        if (spread := entry.figure(cost)) and entry.figure(quality.name)
        else None
        for entry in entries
    ]
    if cost in (*UNIT_MACS, TIME):
        return pareto(points)
    models = [entry.model for entry in entries]

    def select(model: object) -> list[tuple[float, float] | None]:
        return [point if other == model else None for point, other in zip(points, models, strict=True)]

    return [pareto(select(model))[index] for index, model in enumerate(models)]


def choose_unit_macs(entries: Sequence[Group]) -> str | None:
    """Return the name of the compute of a token, else of a sequence, that all groups have, or None."""
    return next((name for name in UNIT_MACS if entries and all(entry.figure(name) for entry in entries)), None)


def curves(entry: Group, name: str) -> tuple[Points, list[Points]]:
    """Return the mean training curve of a metric over a group's runs, and the curve of each run.

    The mean curve has only the steps that all runs have.
    """
    run_curves: list[Points] = [points for run in entry.runs if (points := series(run.metrics, name))]
    if len(run_curves) < 2:
        return (run_curves or [[]])[0], []
    values = [dict(points) for points in run_curves]
    steps = sorted(set(values[0]).intersection(*values[1:]))
    return [(step, fmean(curve[step] for curve in values)) for step in steps], run_curves
