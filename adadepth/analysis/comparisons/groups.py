"""Runs that differ in their seed only are one group: which groups there are, what they are called, how they differ."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

from adadepth.analysis.comparisons.trials import Search
from adadepth.analysis.files import CONFIG, METRICS, RUN, RunFiles, cut_short, halts, run_unit
from adadepth.analysis.measure.seeds import summarise_seeds
from adadepth.analysis.render.formats import number
from adadepth.analysis.runs.facts import title
from adadepth.results import result_settings

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
        search: That they are the trials of, where they are.
    """

    groups: Sequence[Group]
    left_out: Sequence[str]
    search: Search | None = None

    @property
    def runs(self) -> list[RunFiles]:
        """All of them."""
        return [run for group in self.groups for run in group.runs]

    @property
    def entries(self) -> Sequence[Group]:
        """What has a colour of its own: the groups, or, of a single group, its runs."""
        if len(self.groups) > 1:
            return self.groups
        return [Group(f"seed {seed(run)}", group.settings, [run], _summary([run]))
                for group in self.groups for run in group.runs]  # fmt: skip

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
        runs: Those to compare.
        further: Sentences about what else is not there.
    """
    left_out, kept = list(further), dict[tuple[str, Any], RunFiles]()
    for run in runs:
        if damage := [run.missing[name] for name in (RUN, CONFIG) if name in run.missing]:
            left_out.append(f"{run.directory}: left out, {' and '.join(damage)}.")
            continue
        key = json.dumps(settings_of(run), sort_keys=True, default=str), seed(run)
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
    return Comparison([
        Group(label, settings_of(of[0]), of, _summary(of)) for label, of in zip(labels(groups), groups, strict=True)
    ], left_out)  # fmt: skip


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


def settings_of(run: RunFiles) -> Settings:
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
    settings = [settings_of(runs[0]) for runs in groups]
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
