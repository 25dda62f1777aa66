"""Types that validate the JSON files of a run directory; see `adadepth.runtime.json_files`.

The types cover the record of a run, which every command reads, and the fields of other files that a page reads before
its sections do. Fields that only one section reads are not checked. If they are invalid, that section is skipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NotRequired, Required, TypedDict

from adadepth.runtime.json_files import Count, DepthCount, JsonNumber

_Metrics = dict[str, JsonNumber]
_Texts = dict[str, str]


class StepsFields(TypedDict):
    """Number of completed optimiser steps of a training run, and of planned ones."""

    done: Count
    planned: Count


class AnswerFields(TypedDict, total=False):
    """Answer to one question of a run's verdict, as stored in `run.json`."""

    answer: str | None
    sentences: list[str]
    figures: dict[str, Any]


class WrittenFileFields(TypedDict):
    """Size and digest of a file, as stored in `run.json`."""

    bytes: Count
    crc32: NotRequired[Count]
    sha256: NotRequired[str]


class HardwareFields(TypedDict, total=False):
    """Description of a run's hardware, as stored in `run.json`."""

    platform: str
    machine: str
    processor: str
    cpus: int | None
    threads: int
    gpus: list[str]
    processes: Count


class ExecutionSpeedFields(TypedDict):
    """Speed-up of ragged over dense execution: the measured one, and the limit set by the saved compute."""

    speedup: float
    speedup_range: NotRequired[list[float]]
    allowed: float
    sequences: Count


class ExecutionsFields(TypedDict):
    """Speed-ups of ragged over dense execution in evaluation and training, with the measurement conditions."""

    machine: str
    width: Count | None
    evaluation: NotRequired[ExecutionSpeedFields]
    training: NotRequired[ExecutionSpeedFields]


REPORTING = "reporting"  # status of a run whose results are complete, while its report is written


class CorrectedDepthFields(TypedDict):
    """Depth and metrics on one side of a correction, as stored in `run.json`."""

    mean: JsonNumber
    std: JsonNumber
    effective_depths: JsonNumber
    metrics: dict[str, JsonNumber]


class DepthCorrectionFields(TypedDict):
    """Shift of the halting bias after training, with the depths before and after it, as stored in `run.json`."""

    set: str
    examples: Count
    shift: JsonNumber
    before: CorrectedDepthFields
    after: CorrectedDepthFields


class RunRecordFields(TypedDict, total=False):
    """`run.json`: settings, command, environment and outcome of a run."""

    status: str
    config_name: str
    mode: str
    seed: int
    seeds: int
    owner: str | None
    trains_baselines: bool
    result_hash: str
    dataset_schema: str
    settings: dict[str, dict[str, Any]]
    command: str
    chosen: list[str]
    launches: list[str]
    started: str
    resumed: str | None
    resumed_from: str | None
    sweep: str | None
    wall_time_s: float
    versions: _Texts
    git_commit: str | None
    hardware: HardwareFields
    executions: ExecutionsFields
    depth_correction: DepthCorrectionFields
    final_metrics: dict[str, JsonNumber | None] | None
    best_checkpoint: str | None
    trackers: _Texts
    error: str | None
    data: dict[str, Any] | None
    baselines: dict[str, Any] | None
    precision: str
    parameters: Count
    parameters_without_embeddings: Count
    cache_bytes_per_token: JsonNumber
    saved: dict[str, dict[str, WrittenFileFields]]
    stopped_because: str | None
    steps: StepsFields | None
    verdict: dict[str, AnswerFields] | None
    evaluated: str
    exit_rule: str | None
    trained_steps: Count
    pushed_to: str


class ConfigurationFields(TypedDict, total=False):
    """`config.yaml`, limited to the fields that a report reads."""

    name: str
    model: dict[str, object]
    dataset: dict[str, object]
    trainer: dict[str, object]
    tokenizer: dict[str, object] | None
    optimise: str | None


class MetricLineFields(TypedDict):
    """Line of `metrics.jsonl`. All fields except `step` are values of metrics by name."""

    step: Count


class SentenceFields(TypedDict, total=False):
    """Line of `sentences.jsonl`: an example sentence with the depths of its tokens."""

    rule: Required[str]
    tokens: Required[list[str]]
    updates: list[DepthCount]


class ClassFields(TypedDict, total=False):
    """Depth statistics of one class of tokens or sequences, as stored in `halting.json`."""

    n: Required[Count]
    mean: float
    std: float


class HaltingFields(TypedDict, total=False):
    """`halting.json`: depth statistics of the last evaluation."""

    step: Count
    set: str
    unit: str
    max_depth: DepthCount
    n: Count
    classes: dict[str, ClassFields]
    adaptation: dict[str, Any]
    architecture: dict[str, Any]
    cost: dict[str, Any] | None
    prediction_macs: JsonNumber
    predictions_per_unit: JsonNumber
    missing: _Texts


class SeedMetricFields(TypedDict, total=False):
    """Statistics of one metric over seeds, as stored in `seeds.json`."""

    n: Required[Count]
    mean: Required[JsonNumber]
    std: JsonNumber


class SeedsFields(TypedDict, total=False):
    """`seeds.json`: metrics over runs that differ only in the seed."""

    seeds: Required[list[int]]
    n: Required[Count]
    metrics: Required[dict[str, SeedMetricFields]]
    runs: _Texts


class OfSets(TypedDict):
    """JSON file with one entry per evaluated set, under `sets`."""

    sets: dict[str, dict[str, Any]]


class OfRows(TypedDict):
    """JSON file with a list of rows that are compared, under `rows`."""

    rows: list[dict[str, Any]]


class ReadTextsFields(TypedDict, total=False):
    """`texts.json`: a model's predictions on texts that a user gave."""

    max_depth: DepthCount
    texts: Required[list[dict[str, Any]]]


class MatchedBaselineFields(TypedDict, total=False):
    """`matched_baseline.json`: the comparison, or in `left_out` the reason why there is none."""

    sets: dict[str, dict[str, Any]]
    networks: list[dict[str, Any]]
    left_out: str


FILE_TYPES: Mapping[str, Any] = {
    "run.json": RunRecordFields, "config.yaml": ConfigurationFields, "metrics.jsonl": MetricLineFields,
    "sentences.jsonl": SentenceFields, "halting.json": HaltingFields, "exits.json": OfSets, "exit_rules.json": OfSets,
    "budgets.json": OfRows, "rivals.json": OfRows, "states.json": OfRows, "architectures.json": OfRows,
    "seeds.json": SeedsFields, "texts.json": ReadTextsFields, "matched_baseline.json": MatchedBaselineFields,
}  # fmt: skip
