"""Fields and types of the result files of a bench; see `adadepth.report.file_types`."""

from __future__ import annotations

from typing import Required, TypedDict

from adadepth.report.file_types import HardwareFields
from adadepth.runtime.json_files import Count, DepthCount, JsonNumber, Positive


class BenchPointFields(TypedDict, total=False):
    """Operating point of a method: a score, and the compute that it needs."""

    rule: Required[str | None]
    score: Required[float | None]
    score_error: Required[float | None]
    chosen_score: float | None
    updates: Required[Positive | None]
    updates_error: Required[float | None]
    macs: Required[Positive | None]
    prediction_macs: JsonNumber | None
    spearman: float | None


class BenchRuleFields(TypedDict, total=False):
    """Results of an exit rule on an evaluation set, with controls and times."""

    rule: Required[str]
    score: Required[float | None]
    online: Required[float | None]
    online_updates: Required[float | None]
    updates: Required[float]
    macs: Required[float]
    permuted: Required[float | None]
    permuted_std: Required[float | None]
    mixture: Required[float | None]
    spearman: Required[float | None]
    calibration: Required[float | None]
    time: Required[dict[str, float]]


class BenchSetFields(TypedDict, total=False):
    """Results of a run on one evaluation set."""

    n: Required[Count]
    readings: Required[dict[str, list[BenchPointFields]]]
    half_readings: dict[str, list[BenchPointFields]]
    rules: list[BenchRuleFields]
    overthinking: dict[str, JsonNumber]


class BenchResultFields(TypedDict):
    """Result file of one run of a bench; see `adadepth.contrib.bench.runs.read_bench_result`."""

    name: str
    task: str
    way: str
    setting: list[str]
    seed: int
    overrides: list[str]
    commit: str | None
    hardware: HardwareFields | None
    versions: dict[str, str | None]
    seconds: float | None
    steps: Count
    unit: str
    max_updates: DepthCount
    sets: dict[str, BenchSetFields]
