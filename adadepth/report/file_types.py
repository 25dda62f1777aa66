"""The fields of a run's JSON files and their types, by which `adadepth.system.json_files` reads them.

Fields that are always there, and that no section of a report asks for first, are `Required`. A field that a
description does not name may hold anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NotRequired, Required, TypedDict

from adadepth.system.json_files import Count, DepthCount, JsonNumber

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


class CorrelationFields(TypedDict, total=False):
    """Spearman's correlation with its 95 % interval."""

    value: Required[float]
    low: float
    high: float
    n: Count


class DepthsFields(TypedDict, total=False):
    """DepthsFields of the units of a class."""

    n: Required[Count]
    mean: float
    std: float
    p10: float
    median: float
    p90: float
    at_cap: float
    entropy: float
    histogram: list[Count]
    remainder: float
    ponder_cost: float
    loss: float
    loss_n: Count
    accuracy: float
    accuracy_n: Count


class DepthByValueFields(DepthsFields, total=False):
    """DepthsFields of the examples of one difficulty, or of a range of an attribute."""

    difficulty: Required[float]


class DepthByRangeFields(DepthsFields, total=False):
    """DepthsFields of the examples whose attribute lies in a range."""

    value: float


class ByDifficultyFields(TypedDict, total=False):
    """DepthCount by difficulty."""

    rows: Required[list[DepthByValueFields]]
    spearman: CorrelationFields


class ByAttributeFields(TypedDict, total=False):
    """DepthCount by an attribute."""

    rows: Required[list[DepthByRangeFields]]
    spearman: CorrelationFields


class FurtherSetFields(TypedDict, total=False):
    """DepthsFields of an evaluated set after the first."""

    difficulty: ByDifficultyFields
    attributes: dict[str, ByAttributeFields]


class DepthStepFields(TypedDict, total=False):
    """The units that stop at a depth."""

    depth: Required[DepthCount]
    n: Required[Count]
    share: Required[float]
    reached: Count
    survival: float
    probability: float
    loss: float
    loss_n: Count


class CosineStepFields(TypedDict, total=False):
    """Similarity of the states before and after an iteration."""

    step: Required[Count]
    running: float
    running_n: Count
    all: float
    all_n: Count


class BetweenFields(TypedDict):
    """The share of the variance of depth between classes."""

    share: float
    classes: Count
    n: Count


class AdaptationFields(TypedDict, total=False):
    """How many depths there are in effect."""

    effective_depths: float
    effective_depths_within: float
    commonest: int
    commonest_share: float
    between: dict[str, BetweenFields]


class CostFields(TypedDict, total=False):
    """Multiply-accumulates of an evaluation."""

    executed_macs: float
    dense_macs: float
    adaptive_macs: float
    full_macs: float
    executed_over_dense: float
    executed_over_full: float
    adaptive_over_full: float
    layer_ratio: float


class ThirdsFields(TypedDict):
    """Operations in a third of an architecture."""

    attention: Count
    feed_forward: Count
    identity: Count


class ArchitectureFields(TypedDict, total=False):
    """The architecture of a network, and how sure its search is of it."""

    string: Required[str]
    blocks: Required[DepthCount]
    probabilities: list[list[float]]
    entropy: list[float]
    mean_entropy: float
    temperature: float | None
    expected_blocks: float
    thirds: list[ThirdsFields]


class HaltingFields(TypedDict, total=False):
    """`halting.json`: depths of the last evaluation."""

    step: Count
    set: str
    unit: str
    max_depth: DepthCount
    n: Count
    classes: dict[str, DepthsFields]
    adaptation: AdaptationFields
    steps: list[DepthStepFields]
    cosine: dict[str, list[CosineStepFields]]
    spearman: dict[str, CorrelationFields]
    difficulty: ByDifficultyFields
    attributes: dict[str, ByAttributeFields]
    further_sets: dict[str, FurtherSetFields]
    cost: CostFields | None
    missing: _Texts
    architecture: ArchitectureFields
    evaluations: dict[str, _Metrics]
    layers: dict[str, Any]
    words: dict[str, Any]


class SentenceFields(TypedDict, total=False):
    """A line of `sentences.jsonl`: an example with the depths of its tokens."""

    rule: Required[str]
    index: Count
    mean_depth: float
    tokens: Required[list[str]]
    updates: list[DepthCount]
    probabilities: list[list[float]]
    remainders: list[float | None]
    mask_kind: list[str]
    original: list[str | None]
    predicted: list[str | None]
    loss: list[float | None]
    iterations: list[list[int]]
    distribution: list[float]


class MetricLineFields(TypedDict):
    """A line of `metrics.jsonl`; its other fields are values by the names of metrics."""

    step: Count


class ExitFields(TypedDict, total=False):
    """Where the examples of a set exit."""

    n: Count
    mean: Required[float]
    std: float
    median: float
    histogram: list[Count]
    quality: _Metrics
    loss: float


class ExitStepFields(TypedDict, total=False):
    """A set read at one step."""

    step: Required[Count]
    n: Count
    share: float
    survival: float
    posterior: float
    halting_probability: float
    prior: float
    quality: _Metrics
    loss: float


class ExitClassFields(TypedDict, total=False):
    """StepsFields of the examples of a class."""

    n: Required[Count]
    mean: float
    std: float
    expected_steps: float


class ExitSetFields(TypedDict, total=False):
    """ExitsFields of an evaluated set."""

    n: Required[Count]
    max_steps: Required[DepthCount]
    problem: str
    exit: Required[ExitFields]
    halting: dict[str, Any]
    steps: Required[list[ExitStepFields]]
    classes: dict[str, ExitClassFields]
    calibration: dict[str, Any]
    spearman: dict[str, CorrelationFields]
    missing: _Texts


class ExitsFields(TypedDict, total=False):
    """`exits.json`."""

    step: Count
    sets: Required[dict[str, ExitSetFields]]


class RuleControlFields(TypedDict, total=False):
    """A rule's exits dealt at random, or a mixture of two fixed depths."""

    quality: Required[_Metrics]
    quality_std: _Metrics
    macs: float
    depths: list[Count]
    share: float


class RuleRowFields(TypedDict, total=False):
    """An exit rule at one of its thresholds."""

    rule: Required[str]
    kind: Required[str]
    draws: Count
    quality: Required[_Metrics]
    quality_std: _Metrics
    mean_updates: Required[float]
    mean_updates_std: float
    macs: Required[float]
    macs_ratio: float
    shares: list[float]
    layer_ratio: float
    from_oracle: dict[str, float]
    by_difficulty: dict[str, float]
    spearman: CorrelationFields
    calibration: float
    permuted: RuleControlFields
    mixture: RuleControlFields
    online: dict[str, Any]
    pareto: list[str]
    seconds: dict[str, float]
    time_ratio: dict[str, float]
    warning: str


class RulePointFields(TypedDict, total=False):
    """A threshold that was chosen on one half, and its score on the other."""

    rule: Required[str | None]
    score: Required[float | None]
    score_error: float | None
    chosen_score: float | None
    updates: float | None
    updates_error: float | None
    macs: float | None
    spearman: float | None


class StudyFields(TypedDict, total=False):
    """ExitFields rules on a set."""

    n: Count
    max_steps: Count
    problem: str
    metrics: list[str]
    draws: Count
    seed: int
    overthinking: dict[str, JsonNumber]
    groups: dict[str, Count]
    rows: Required[list[RuleRowFields]]
    readings: dict[str, list[RulePointFields]]
    timing: dict[str, Any]
    advice: dict[str, Any]


class ExitRulesFields(TypedDict, total=False):
    """`exit_rules.json`."""

    sets: Required[dict[str, StudyFields]]


class FixedDepthFields(TypedDict):
    """A network that was read at one depth."""

    depth: Count
    quality: _Metrics


class MatchedSetFields(TypedDict, total=False):
    """A set of which a trained model was read at one depth, and with its depths dealt at random."""

    examples: Required[Count]
    of_examples: Required[Count]
    n: Count
    predictions: Required[Count]
    max_depth: DepthCount
    mean: Required[float]
    std: Required[float]
    rule: str | None
    own: Required[_Metrics]
    fixed: Required[list[FixedDepthFields]]
    permuted: Required[RuleControlFields]


class TrainedBaselineFields(TypedDict):
    """A network of one layer that was trained at the end of a run."""

    about: str
    steps: Count
    predictions: Count
    metrics: _Metrics


class MatchedBaselineFields(TypedDict, total=False):
    """`matched_baseline.json`; `left_out` says why there is nothing else."""

    seconds: float
    sets: dict[str, MatchedSetFields]
    networks: list[TrainedBaselineFields]
    left_out: str


class BudgetRowFields(TypedDict, total=False):
    """A network that was set to one depth without training."""

    target: Required[float | None]
    fit: dict[str, Any] | None
    mean: Required[float]
    std: float
    executed_over_full: float
    adaptive_over_full: float
    metrics: Required[_Metrics]


class BudgetsFields(TypedDict, total=False):
    """`budgets.json`."""

    unit: Required[str]
    set: str
    knob: str
    fitted_on: Count
    measured_on: Count
    rows: Required[list[BudgetRowFields]]


class RivalRowFields(TypedDict, total=False):
    """A network of one depth and as much work, or the adaptive one."""

    kind: Required[str]
    run: str
    seed: int
    mean: Required[float]
    std: float
    max_depth: Required[DepthCount]
    executed_macs: float
    adaptive_macs: float
    difficulty: dict[str, list[DepthByValueFields]]
    seconds: float | None
    metrics: Required[_Metrics]


class RivalsFields(TypedDict, total=False):
    """`rivals.json`."""

    rows: Required[list[RivalRowFields]]


class GridsFields(TypedDict, total=False):
    """`grids.json`: example pictures of every evaluated set."""

    step: Count
    max_depth: DepthCount
    sets: Required[dict[str, list[dict[str, Any]]]]


class ComparedArchitectureFields(TypedDict, total=False):
    """A network among those compared."""

    name: Required[str]
    kind: Required[str]
    trained: Required[str]
    architecture: str
    parameters: Count
    quality: _Metrics | None
    quality_set: str
    macs: dict[str, float] | None
    seconds: dict[str, dict[str, float]] | None


class ArchitecturesFields(TypedDict, total=False):
    """`architectures.json`."""

    reference: str
    derived: str
    shapes: list[dict[str, Any]]
    conditions: dict[str, Any]
    rows: Required[list[ComparedArchitectureFields]]


class SeedMetricFields(TypedDict, total=False):
    """A metric over seeds."""

    n: Required[Count]
    mean: Required[JsonNumber]
    std: JsonNumber
    values: dict[str, JsonNumber]


class SeedsFields(TypedDict, total=False):
    """`seeds.json`: what runs of several seeds have in common."""

    seeds: Required[list[int]]
    n: Required[Count]
    metrics: Required[dict[str, SeedMetricFields]]
    architecture_agreement: dict[str, Any]
    layer_distance: dict[str, Any]
    runs: _Texts


class TextTokenFields(TypedDict, total=False):
    """A token of a user's text."""

    piece: Required[str]
    part: int | None
    span: list[int] | None
    updates: float
    label: str | None
    score: float | None
    candidates: dict[str, float] | None


class ReadTextFields(TypedDict, total=False):
    """What a model says about a user's text."""

    text: Required[list[str]]
    updates: float
    label: str | None
    score: float | None
    scores: dict[str, float] | None
    tokens: list[TextTokenFields] | None


class ReadTextsFields(TypedDict, total=False):
    """`texts.json`."""

    unit: str
    max_depth: DepthCount
    predicts: str
    mean: float
    work: float | None
    texts: Required[list[ReadTextFields]]


class WordsFields(TypedDict, total=False):
    """`words.json`: depth by the kinds of words of a treebank."""

    max_depth: Required[DepthCount]
    masks: bool
    counted_words: Count
    counted_in: list[str]
    sentences: dict[str, Count]
    words: dict[str, Count]
    sets: Required[dict[str, dict[str, Any]]]


class ProbesFields(TypedDict, total=False):
    """`probes.json`: classifiers on the states of every depth."""


FILE_TYPES: Mapping[str, Any] = {
    "run.json": RunRecordFields, "config.yaml": ConfigurationFields, "metrics.jsonl": MetricLineFields,
    "sentences.jsonl": SentenceFields, "halting.json": HaltingFields, "exits.json": ExitsFields,
    "exit_rules.json": ExitRulesFields, "budgets.json": BudgetsFields, "rivals.json": RivalsFields,
    "grids.json": GridsFields, "architectures.json": ArchitecturesFields, "seeds.json": SeedsFields,
    "texts.json": ReadTextsFields, "words.json": WordsFields, "probes.json": ProbesFields,
    "matched_baseline.json": MatchedBaselineFields,
}  # fmt: skip
