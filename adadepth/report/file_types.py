"""The fields of a run's JSON files and their types, by which `adadepth.runtime.json_files` reads them.

Described are the record of a run, which every command reads, and of other files what a page reads before its sections
do. What one section alone reads may hold anything: a section whose file is not as it expects is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NotRequired, Required, TypedDict

from adadepth.runtime.json_files import Count, DepthCount, JsonNumber

_Metrics = dict[str, JsonNumber]
_Texts = dict[str, str]


class StepsFields(TypedDict):
    """How many updates a training made, and how many it was to make."""

    done: Count
    planned: Count


class AnswerFields(TypedDict, total=False):
    """What a verdict answers to one of its questions."""

    answer: str | None
    sentences: list[str]
    figures: dict[str, Any]


class WrittenFileFields(TypedDict):
    """Size and digest of a file."""

    bytes: Count
    crc32: NotRequired[Count]
    sha256: NotRequired[str]


class HardwareFields(TypedDict, total=False):
    """What a run had."""

    platform: str
    machine: str
    processor: str
    cpus: int | None
    threads: int
    gpus: list[str]
    processes: Count


class ExecutionSpeedFields(TypedDict):
    """How ragged execution compares with dense execution: measured, and as far as the work allows."""

    speedup: float
    allowed: float
    sequences: Count


class ExecutionsFields(TypedDict):
    """The same of evaluation and training, and what it was measured on."""

    machine: str
    width: Count | None
    evaluation: NotRequired[ExecutionSpeedFields]
    training: NotRequired[ExecutionSpeedFields]


class RunRecordFields(TypedDict, total=False):
    """`run.json`: what ran, where, how it ended."""

    status: str
    config_name: str
    mode: str
    seed: int
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
    final_metrics: dict[str, JsonNumber | None] | None
    best_checkpoint: str | None
    trackers: _Texts
    error: str | None
    data: dict[str, Any] | None
    baselines: dict[str, Any] | None
    precision: str
    parameters: Count
    saved: dict[str, dict[str, WrittenFileFields]]
    stopped_because: str | None
    steps: StepsFields | None
    verdict: dict[str, AnswerFields] | None
    evaluated: str
    trained_steps: Count
    pushed_to: str


class ConfigurationFields(TypedDict, total=False):
    """`config.yaml`, as far as a report reads it; YAML has numbers that JSON has not."""

    name: str
    model: dict[str, object]
    dataset: dict[str, object]
    trainer: dict[str, object]
    tokenizer: dict[str, object] | None
    optimise: str | None


class MetricLineFields(TypedDict):
    """A line of `metrics.jsonl`; its other fields are values by the names of metrics."""

    step: Count


class SentenceFields(TypedDict, total=False):
    """A line of `sentences.jsonl`: an example with the depths of its tokens."""

    rule: Required[str]
    tokens: Required[list[str]]
    updates: list[DepthCount]


class ClassFields(TypedDict, total=False):
    """The depths of a class of units."""

    n: Required[Count]
    mean: float
    std: float


class HaltingFields(TypedDict, total=False):
    """`halting.json`: depths of the last evaluation."""

    step: Count
    set: str
    unit: str
    max_depth: DepthCount
    n: Count
    classes: dict[str, ClassFields]
    adaptation: dict[str, Any]
    architecture: dict[str, Any]
    cost: dict[str, Any] | None
    missing: _Texts


class SeedMetricFields(TypedDict, total=False):
    """A metric over seeds."""

    n: Required[Count]
    mean: Required[JsonNumber]
    std: JsonNumber


class SeedsFields(TypedDict, total=False):
    """`seeds.json`: what runs of several seeds have in common."""

    seeds: Required[list[int]]
    n: Required[Count]
    metrics: Required[dict[str, SeedMetricFields]]
    runs: _Texts


class OfSets(TypedDict):
    """A file about evaluated sets by name."""

    sets: dict[str, dict[str, Any]]


class OfRows(TypedDict):
    """A file of rows that stand side by side."""

    rows: list[dict[str, Any]]


class ReadTextsFields(TypedDict, total=False):
    """`texts.json`: what a model says about a user's texts."""

    max_depth: DepthCount
    texts: Required[list[dict[str, Any]]]


class MatchedBaselineFields(TypedDict, total=False):
    """`matched_baseline.json`; `left_out` says why there is nothing else."""

    sets: dict[str, dict[str, Any]]
    networks: list[dict[str, Any]]
    left_out: str


FILE_TYPES: Mapping[str, Any] = {
    "run.json": RunRecordFields, "config.yaml": ConfigurationFields, "metrics.jsonl": MetricLineFields,
    "sentences.jsonl": SentenceFields, "halting.json": HaltingFields, "exits.json": OfSets, "exit_rules.json": OfSets,
    "budgets.json": OfRows, "rivals.json": OfRows, "architectures.json": OfRows, "seeds.json": SeedsFields,
    "texts.json": ReadTextsFields, "matched_baseline.json": MatchedBaselineFields,
}  # fmt: skip
