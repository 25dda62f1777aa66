"""The fields of a run's JSON files and their types, by which `adadepth.system.json_files` reads them.

Fields that are always there, and that no section of a report asks for first, are `Required`. A field that a
description does not name may hold anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NotRequired, Required, TypedDict

from adadepth.system.json_files import Count, Number, Positive

Metrics = dict[str, Number | None]
Texts = dict[str, str]
Curve = list[Number]


class Steps(TypedDict):
    """How many updates a training made, and how many it was to make."""

    done: Count
    planned: Count


class Answer(TypedDict, total=False):
    """What a verdict answers to one of its questions."""

    answer: str | None
    sentences: list[str]
    figures: dict[str, Any]


class WrittenFile(TypedDict):
    """Size and digest of a file."""

    bytes: Count
    crc32: NotRequired[Count]
    sha256: NotRequired[str]


class Hardware(TypedDict, total=False):
    """What a run had."""

    platform: str
    machine: str
    cpus: int | None
    threads: int
    gpus: list[str]
    processes: Count


class RunRecord(TypedDict, total=False):
    """`run.json`: what ran, where, how it ended."""

    status: str
    config_name: str
    mode: str
    seed: int
    result_hash: str
    dataset_schema: str
    settings: dict[str, dict[str, Any]]
    command: str
    launches: list[str]
    started: str
    resumed: str | None
    resumed_from: str | None
    sweep: str | None
    wall_time_s: float
    versions: Texts
    git_commit: str | None
    hardware: Hardware
    final_metrics: Metrics | None
    best_checkpoint: str | None
    trackers: Texts
    error: str | None
    data: dict[str, Any] | None
    baselines: dict[str, Any] | None
    precision: str
    parameters: Count
    saved: dict[str, dict[str, WrittenFile]]
    stopped_because: str | None
    steps: Steps | None
    verdict: dict[str, Answer] | None
    evaluated: str
    trained_steps: Count
    pushed_to: str


class Configuration(TypedDict, total=False):
    """`config.yaml`, as far as a report reads it; YAML has numbers that JSON has not."""

    name: str
    model: dict[str, object]
    dataset: dict[str, object]
    trainer: dict[str, object]
    tokenizer: dict[str, object] | None
    optimise: str | None


class Correlation(TypedDict, total=False):
    """Spearman's correlation with its 95 % interval."""

    value: Required[float]
    low: float
    high: float
    n: Count


class Depths(TypedDict, total=False):
    """Depths of the units of a class."""

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


class DepthByValue(Depths, total=False):
    """Depths of the examples of one difficulty, or of a range of an attribute."""

    difficulty: Required[float]


class DepthByRange(Depths, total=False):
    """Depths of the examples whose attribute lies in a range."""

    value: float


class ByDifficulty(TypedDict, total=False):
    """Depth by difficulty."""

    rows: Required[list[DepthByValue]]
    spearman: Correlation


class ByAttribute(TypedDict, total=False):
    """Depth by an attribute."""

    rows: Required[list[DepthByRange]]
    spearman: Correlation


class FurtherSet(TypedDict, total=False):
    """Depths of an evaluated set after the first."""

    difficulty: ByDifficulty
    attributes: dict[str, ByAttribute]


class DepthStep(TypedDict, total=False):
    """The units that stop at a depth."""

    depth: Required[Count]
    n: Required[Count]
    share: Required[float]
    reached: Count
    survival: float
    probability: float
    loss: float
    loss_n: Count


class CosineStep(TypedDict, total=False):
    """Similarity of the states before and after an iteration."""

    step: Required[Count]
    running: float
    running_n: Count
    all: float
    all_n: Count


class Between(TypedDict):
    """The share of the variance of depth between classes."""

    share: float
    classes: Count
    n: Count


class Adaptation(TypedDict, total=False):
    """How many depths there are in effect."""

    effective_depths: float
    effective_depths_within: float
    commonest: int
    commonest_share: float
    between: dict[str, Between]


class Cost(TypedDict, total=False):
    """Multiply-accumulates of an evaluation."""

    executed_macs: float
    dense_macs: float
    adaptive_macs: float
    full_macs: float
    executed_over_dense: float
    executed_over_full: float
    adaptive_over_full: float
    layer_ratio: float


class Thirds(TypedDict):
    """Operations in a third of an architecture."""

    attention: Count
    feed_forward: Count
    identity: Count


class Architecture(TypedDict, total=False):
    """The architecture of a network, and how sure its search is of it."""

    string: Required[str]
    blocks: Required[Count]
    probabilities: list[list[float]]
    entropy: list[float]
    mean_entropy: float
    temperature: float | None
    expected_blocks: float
    thirds: list[Thirds]


class Halting(TypedDict, total=False):
    """`halting.json`: depths of the last evaluation."""

    step: Count
    set: str
    unit: str
    max_depth: Count
    n: Count
    classes: dict[str, Depths]
    adaptation: Adaptation
    steps: list[DepthStep]
    cosine: dict[str, list[CosineStep]]
    spearman: dict[str, Correlation]
    difficulty: ByDifficulty
    attributes: dict[str, ByAttribute]
    further_sets: dict[str, FurtherSet]
    cost: Cost | None
    missing: Texts
    architecture: Architecture
    evaluations: dict[str, Metrics]
    layers: dict[str, Any]
    words: dict[str, Any]


class Sentence(TypedDict, total=False):
    """A line of `sentences.jsonl`: an example with the depths of its tokens."""

    rule: Required[str]
    index: Count
    mean_depth: float
    tokens: Required[list[str]]
    updates: list[Count]
    probabilities: list[list[float]]
    remainders: list[float | None]
    mask_kind: list[str]
    original: list[str | None]
    predicted: list[str | None]
    loss: list[float | None]
    iterations: list[list[int]]
    distribution: list[float]


class MetricLine(TypedDict):
    """A line of `metrics.jsonl`; its other fields are values by the names of metrics."""

    step: Count


class Exit(TypedDict, total=False):
    """Where the examples of a set exit."""

    n: Count
    mean: Required[float]
    std: float
    median: float
    histogram: list[Count]
    quality: Metrics
    loss: float


class ExitStep(TypedDict, total=False):
    """A set read at one step."""

    step: Required[Count]
    n: Count
    share: float
    survival: float
    posterior: float
    halting_probability: float
    prior: float
    quality: Metrics
    loss: float


class ExitClass(TypedDict, total=False):
    """Steps of the examples of a class."""

    n: Required[Count]
    mean: float
    std: float
    expected_steps: float


class ExitSet(TypedDict, total=False):
    """Exits of an evaluated set."""

    n: Required[Count]
    max_steps: Required[Count]
    problem: str
    exit: Required[Exit]
    halting: dict[str, Any]
    steps: Required[list[ExitStep]]
    classes: dict[str, ExitClass]
    calibration: dict[str, Any]
    spearman: dict[str, Correlation]
    missing: Texts


class Exits(TypedDict, total=False):
    """`exits.json`."""

    step: Count
    sets: Required[dict[str, ExitSet]]


class RuleControl(TypedDict, total=False):
    """A rule's exits dealt at random, or a mixture of two fixed depths."""

    quality: Required[Metrics]
    quality_std: Metrics
    macs: float
    depths: list[Count]
    share: float


class RuleRow(TypedDict, total=False):
    """An exit rule at one of its thresholds."""

    rule: Required[str]
    kind: Required[str]
    draws: Count
    quality: Required[Metrics]
    quality_std: Metrics
    mean_updates: Required[float]
    mean_updates_std: float
    macs: Required[float]
    macs_ratio: float
    shares: list[float]
    layer_ratio: float
    from_oracle: dict[str, float]
    by_difficulty: dict[str, float]
    spearman: Correlation
    calibration: float
    permuted: RuleControl
    mixture: RuleControl
    online: dict[str, Any]
    pareto: list[str]
    seconds: dict[str, float]
    time_ratio: dict[str, float]
    warning: str


class RulePoint(TypedDict, total=False):
    """A threshold that was chosen on one half, and its score on the other."""

    rule: Required[str | None]
    score: Required[float | None]
    score_error: float | None
    chosen_score: float | None
    updates: float | None
    updates_error: float | None
    macs: float | None
    spearman: float | None


class Study(TypedDict, total=False):
    """Exit rules on a set."""

    n: Count
    max_steps: Count
    problem: str
    metrics: list[str]
    draws: Count
    seed: int
    overthinking: dict[str, Number]
    groups: dict[str, Count]
    rows: Required[list[RuleRow]]
    readings: dict[str, list[RulePoint]]
    timing: dict[str, Any]
    advice: dict[str, Any]


class ExitRules(TypedDict, total=False):
    """`exit_rules.json`."""

    sets: Required[dict[str, Study]]


class BudgetRow(TypedDict, total=False):
    """A network that was set to one depth without training."""

    target: Required[float | None]
    fit: dict[str, Any] | None
    mean: Required[float]
    std: float
    executed_over_full: float
    adaptive_over_full: float
    metrics: Required[Metrics]


class Budgets(TypedDict, total=False):
    """`budgets.json`."""

    unit: Required[str]
    set: str
    knob: str
    fitted_on: Count
    measured_on: Count
    rows: Required[list[BudgetRow]]


class RivalRow(TypedDict, total=False):
    """A network of one depth and as much work, or the adaptive one."""

    kind: Required[str]
    run: str
    seed: int
    mean: Required[float]
    std: float
    max_depth: Required[Count]
    executed_macs: float
    adaptive_macs: float
    difficulty: dict[str, list[DepthByValue]]
    seconds: float | None
    metrics: Required[Metrics]


class Rivals(TypedDict, total=False):
    """`rivals.json`."""

    rows: Required[list[RivalRow]]


class Grids(TypedDict, total=False):
    """`grids.json`: example pictures of every evaluated set."""

    step: Count
    max_depth: Count
    sets: Required[dict[str, list[dict[str, Any]]]]


class ComparedArchitecture(TypedDict, total=False):
    """A network among those compared."""

    name: Required[str]
    kind: Required[str]
    trained: Required[str]
    architecture: str
    parameters: Count
    quality: Metrics | None
    quality_set: str
    macs: dict[str, float] | None
    seconds: dict[str, dict[str, float]] | None


class Architectures(TypedDict, total=False):
    """`architectures.json`."""

    reference: str
    derived: str
    shapes: list[dict[str, Any]]
    conditions: dict[str, Any]
    rows: Required[list[ComparedArchitecture]]


class SeedMetric(TypedDict, total=False):
    """A metric over seeds."""

    n: Required[Count]
    mean: Required[Number]
    std: Number
    values: dict[str, Number]


class Seeds(TypedDict, total=False):
    """`seeds.json`: what runs of several seeds have in common."""

    seeds: Required[list[int]]
    n: Required[Count]
    metrics: Required[dict[str, SeedMetric]]
    architecture_agreement: dict[str, Any]
    layer_distance: dict[str, Any]
    runs: Texts


class TextToken(TypedDict, total=False):
    """A token of a user's text."""

    piece: Required[str]
    part: int | None
    span: list[int] | None
    updates: float
    label: str | None
    score: float | None
    candidates: dict[str, float] | None


class ReadText(TypedDict, total=False):
    """What a model says about a user's text."""

    text: Required[list[str]]
    updates: float
    label: str | None
    score: float | None
    scores: dict[str, float] | None
    tokens: list[TextToken] | None


class ReadTexts(TypedDict, total=False):
    """`texts.json`."""

    unit: str
    max_depth: Count
    predicts: str
    mean: float
    work: float | None
    texts: Required[list[ReadText]]


class Words(TypedDict, total=False):
    """`words.json`: depth by the kinds of words of a treebank."""

    max_depth: Required[Count]
    masks: bool
    counted_words: Count
    counted_in: list[str]
    sentences: dict[str, Count]
    words: dict[str, Count]
    sets: Required[dict[str, dict[str, Any]]]


class Probes(TypedDict, total=False):
    """`probes.json`: classifiers on the states of every depth."""


class BenchPoint(TypedDict, total=False):
    """What a reading of a bench reached, and the work that it took."""

    rule: Required[str | None]
    score: Required[float | None]
    score_error: Required[float | None]
    chosen_score: float | None
    updates: Required[Positive | None]
    updates_error: Required[float | None]
    macs: Required[Positive | None]
    spearman: float | None


class BenchRule(TypedDict, total=False):
    """An exit rule as a bench keeps it."""

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


class BenchSet(TypedDict, total=False):
    """What a run of a bench says of an evaluated set."""

    n: Required[Count]
    readings: Required[dict[str, list[BenchPoint]]]
    rules: list[BenchRule]
    overthinking: dict[str, Number]


class BenchResult(TypedDict):
    """A file among the results of a bench, see `adadepth.tasks.bench.result_of`."""

    name: str
    task: str
    way: str
    setting: list[str]
    seed: int
    overrides: list[str]
    commit: str | None
    hardware: Hardware | None
    versions: dict[str, str | None]
    seconds: float | None
    steps: Count
    unit: str
    max_updates: Count
    sets: dict[str, BenchSet]


FILE_TYPES: Mapping[str, Any] = {
    "run.json": RunRecord, "config.yaml": Configuration, "metrics.jsonl": MetricLine, "sentences.jsonl": Sentence,
    "halting.json": Halting, "exits.json": Exits, "exit_rules.json": ExitRules, "budgets.json": Budgets,
    "rivals.json": Rivals, "grids.json": Grids, "architectures.json": Architectures, "seeds.json": Seeds,
    "texts.json": ReadTexts, "words.json": Words, "probes.json": Probes,
}  # fmt: skip
