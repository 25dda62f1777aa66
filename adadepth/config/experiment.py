"""Settings of an experiment and of its groups other than data: model, trainer, budget, search, logger, runtime."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from adadepth.config.choices import TauSchedule
from adadepth.config.data import DatasetConfig
from adadepth.config.declaration import (
    BELOW_ONE,
    MISSING,
    OPEN_SHARE,
    POSITIVE,
    SHARE,
    TEXTS,
    Allowed,
    at_least,
    between,
    setting,
)
from adadepth.config.plugins import list_plugin_names

Activation = StrEnum("Activation", ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu"])
Attention = StrEnum("Attention", ["eager", "sdpa", "flash_attention_2", "flex_attention"])


def family_name(name: str) -> Any:
    """Return the field `name` of a family's settings; its descriptor and its `model_type` follow from it."""
    return setting(name, "the family", in_model=False)


@dataclass
class ModelConfig:
    """Settings of every family: its name in the registry of families, and initial weights."""

    name: str = family_name(MISSING)
    pretrained: str | None = setting(None, "folder or hub id whose weights are loaded before training", in_model=False)


@dataclass
class HaltingConfig:
    """Second stage of training, in which only the halting head of a trained model learns."""

    alone: bool = setting(False, "train nothing but the halting head of the model that model.pretrained names")
    slope: float = setting(20.0, "how sharply the target turns from halting to going on", POSITIVE)
    threshold: float = setting(0.1, "of the loss: what the best further step must save to be worth it", at_least(0))


TokenizerKind = StrEnum("TokenizerKind", ["unigram", "word", "byte"])


@dataclass
class TokenizerConfig:
    """An existing tokenizer, or one trained on the corpus."""

    path: str | None = setting(None, "folder or hub id; None: train one")
    kind: TokenizerKind = setting(
        TokenizerKind.unigram, "pieces of words; streams of text also take whole words, or bytes"
    )
    vocab_size: int | None = setting(
        8000, "of a trained tokenizer; of words, None: all", between(32, 1_000_000), shape=True, debug=300
    )
    lowercase: bool = setting(True, "of a trained tokenizer")
    symbols: list[str] = setting([], "of a trained tokenizer: what is never taken apart")
    train_documents: int | None = setting(None, "train on the first documents only", at_least(1))


Optimizer = StrEnum("Optimizer", ["adamw", "adam", "adam_atan2", "lamb"])
Schedule = StrEnum("Schedule", ["linear", "reference_linear", "constant", "cosine", "plateau"])
Precision = StrEnum("Precision", ["auto", "bf16", "fp16", "fp32"])
EvalStrategy = StrEnum("EvalStrategy", ["no", "steps", "epoch"])
SaveStrategy = StrEnum("SaveStrategy", ["no", "steps", "epoch", "best"])
_UPDATES = Allowed(lambda value: value == -1 or value >= 1, "at least 1, or -1 for num_train_epochs")


@dataclass
class BorrowedConfig:
    """Fields of ``transformers.TrainingArguments`` under their own names."""

    max_steps: int = setting(300, "optimizer updates; -1: num_train_epochs decides", _UPDATES, debug=2)
    num_train_epochs: float = setting(3.0, "with max_steps=-1", POSITIVE)
    per_device_train_batch_size: int = setting(16, "sequences a device and micro-batch", at_least(1), debug=4)
    per_device_eval_batch_size: int = setting(32, "sequences a device", at_least(1), neutral=True, debug=4)
    gradient_accumulation_steps: int = setting(1, "micro-batches an update", at_least(1), debug=1)
    learning_rate: float = setting(1e-3, "peak", POSITIVE)
    weight_decay: float = setting(0.01, "of matrices; see decay_vectors", at_least(0))
    adam_beta1: float = setting(0.9, "decay of the first moment, of either optimizer", BELOW_ONE)
    adam_beta2: float = setting(0.999, "decay of the second moment", BELOW_ONE)
    adam_epsilon: float = setting(1e-6, "added to the root of the second moment", POSITIVE)
    max_grad_norm: float = setting(1.0, "global norm, clipped once per update; 0: no clipping", at_least(0))
    warmup_steps: float = setting(0, "updates; below 1: share of all updates", at_least(0), debug=0)
    logging_steps: int = setting(
        10, "updates between two lines of training metrics", at_least(1), neutral=True, debug=1
    )
    eval_strategy: EvalStrategy = setting(
        EvalStrategy.steps, "evaluate every eval_steps updates, every epoch, or never", debug=EvalStrategy.steps
    )
    eval_steps: int | None = setting(100, "updates", at_least(1), debug=2)
    eval_on_start: bool = setting(True, "also evaluates the untrained model: its depth explains collapsed runs")
    save_strategy: SaveStrategy = setting(
        SaveStrategy.steps, "best: whenever the best metric improves", debug=SaveStrategy.steps
    )
    save_steps: int = setting(
        100, "updates; a multiple of eval_steps if the best model is loaded at the end", at_least(1), debug=2
    )
    save_total_limit: int | None = setting(
        2, "the best and the newest checkpoint are always kept", at_least(1), neutral=True
    )
    load_best_model_at_end: bool = setting(True, "report and keep the best evaluated weights, not the last")
    metric_for_best_model: str | None = setting("eval_loss", "under the name transformers knows")
    greater_is_better: bool | None = setting(
        None, "of metric_for_best_model; None: false of losses and errors, true of all others"
    )
    tf32: bool | None = setting(None, "Ampere and later; None: torch's default")
    gradient_checkpointing: bool = setting(False, "recompute the block in the backward pass", neutral=True)
    torch_compile_backend: str | None = setting(None, "with runtime.compile", neutral=True)
    torch_compile_mode: str | None = setting(None, "with runtime.compile", neutral=True)
    ddp_backend: str | None = setting(None, "None: nccl on GPUs, gloo on CPUs", neutral=True)
    ddp_find_unused_parameters: bool | None = setting(False, "True hides parameters that never train", neutral=True)
    ddp_bucket_cap_mb: int | None = setting(None, "size of a gradient bucket", neutral=True)
    ddp_broadcast_buffers: bool | None = setting(None, "None: unless gradients are checkpointed")
    ddp_timeout: int = setting(1800, "seconds", at_least(1), neutral=True)
    fsdp: bool = setting(False, "shard parameters over processes")
    fsdp_config: Any = setting(None, "FSDP's own settings: a JSON file or a mapping")
    deepspeed: Any = setting(None, "a DeepSpeed configuration: a JSON file or a mapping")
    dataloader_drop_last: bool = setting(False, "leave out an incomplete last batch")
    dataloader_pin_memory: bool = setting(True, "faster copies to a GPU", neutral=True)
    dataloader_persistent_workers: bool = setting(False, "keep workers from one epoch to the next", neutral=True)
    dataloader_prefetch_factor: int | None = setting(
        None, "batches a worker, with runtime.num_workers > 0", at_least(1), neutral=True
    )
    full_determinism: bool = setting(False, "slower kernels, the same bits")
    use_cpu: bool = setting(False, "ignore GPUs")
    disable_tqdm: bool | None = setting(None, "None: a bar where there is a terminal", neutral=True)
    push_to_hub: bool = setting(False, "upload the model and its card to the Hugging Face hub at the end", neutral=True)
    hub_model_id: str | None = setting(None, "its name there, OWNER/NAME; None: the experiment's", neutral=True)
    hub_private_repo: bool | None = setting(None, "who sees a new one; None: as set on the hub", neutral=True)


@dataclass
class TrainerConfig(BorrowedConfig):
    """Settings of transformers' trainer, and those that `adadepth.training` translates for it."""

    optimizer: Optimizer = setting(
        Optimizer.adamw,
        "adam: weight decay is a part of the gradient; adam_atan2: of tiny recursive models, without adam_epsilon; "
        "lamb: ALBERT's published recipe",
    )
    decay_vectors: bool = setting(False, "weight_decay on biases and layer norms, too")
    ema_decay: float | None = setting(
        None, "evaluate and keep an exponential moving average of the weights, of this decay an update", OPEN_SHARE
    )
    schedule: Schedule = setting(
        Schedule.linear, "reference_linear decays from step 0; plateau when the metric stops improving"
    )
    plateau_patience: int | None = setting(
        None, "evaluations without improvement before the rate is halved", at_least(1)
    )
    plateau_min_lr: float = setting(1e-6, "lowest rate of schedule=plateau", at_least(0))
    precision: Precision = setting(Precision.auto, "auto: bf16 where supported, else fp16 on a GPU, else fp32")
    time_budget_minutes: float | None = setting(None, "stop, save and evaluate when it is spent", POSITIVE)
    early_stopping_patience: int | None = setting(None, "evaluations without improvement before stopping", at_least(1))
    early_stopping_threshold: float = setting(0.0, "what counts as improvement", at_least(0))
    profiler: bool = setting(False, "write a trace of a few updates, which ui.perfetto.dev opens", neutral=True)
    halting_statistics: bool = setting(True, "depth per token class at every evaluation", neutral=True)


BudgetUnit = StrEnum("BudgetUnit", ["updates", "macs", "deepest_layer", "expected_layer", "milliseconds"])


@dataclass
class BudgetConfig:
    """Depth budget: a mean depth that training holds, instead of a penalty on depth."""

    target: float | None = setting(None, "mean depth of a unit, in `unit`; None: no budget", POSITIVE)
    unit: BudgetUnit = setting(BudgetUnit.updates, "of a token or sequence; docs/budget.md lists the others")
    grow: float = setting(
        0.0, "share of all updates, at first, in which nobody halts and depth grows from `grow_from` to full", SHARE
    )
    grow_from: int = setting(2, "updates of everybody in the first of them", at_least(1))
    hold: float = setting(0.15, "share of all updates at full depth after that", SHARE)
    ramp: float = setting(0.25, "share of all updates on the way from full depth to `target`", SHARE)
    gain: float = setting(1.0, "how hard the controller pulls", POSITIVE)
    targets: list[float] = setting([], "mode=evaluate: fit the checkpoint to each of these, in `unit`")


@dataclass
class DistanceConfig:
    """Distances in attention, which a model's configuration has, too."""

    clamp_length: int | None = setting(None, "distances beyond count as this one; None: no limit", at_least(1))
    same_length: bool = setting(
        False,
        "every position sees as many others, as the first one does",
        more="The last `memory_length`, itself included.",
    )


@dataclass
class ContextConfig(DistanceConfig):
    """Context of attention in evaluation, where that differs from training."""

    memory_length: int | None = setting(None, "positions before the segment; None: the model's", at_least(0))


StatePrecision = StrEnum("StatePrecision", ["fp32", "bf16", "fp16"])


@dataclass
class FeaturesConfig:
    """Hidden states of a frozen base, computed once and read again in every epoch, run and seed."""

    cache: bool = setting(True, "false: run the base in every epoch")
    precision: StatePrecision = setting(StatePrecision.fp32, "of the stored states; fp16 and bf16 halve the disk space")
    limit_gib: float = setting(100.0, "refuse to write more", POSITIVE, neutral=True)
    batch_tokens: int = setting(8192, "padded tokens at once while computing", at_least(1))


SearchMethod = StrEnum("SearchMethod", ["joint", "two_phase"])
GatePath = StrEnum("GatePath", ["soft", "sampled"])
Costs = StrEnum("Costs", ["measured", "macs"])
Stage = StrEnum("Stage", ["search", "derive", "retrain", "compare"])
RetrainFrom = StrEnum("RetrainFrom", ["scratch", "supernet"])
BaselineArchitecture = StrEnum("BaselineArchitecture", ["alternating", "paper_rule", "sandwich", "random"])
_UP_TO_HALF = Allowed(lambda value: 0 < value <= 0.5, "above 0 and at most 0.5")


@dataclass
class GateConfig:
    """Gates of a supernet in training, which a model's configuration has, too."""

    straight_through: bool = setting(False, "forward the largest gate alone, backward the soft ones")
    tau_start: float = setting(1.0, "temperature of the gates in the first update", POSITIVE)
    tau_end: float = setting(0.1, "temperature of the gates in the last update", POSITIVE)
    tau_schedule: TauSchedule = setting(
        TauSchedule.exponential,
        "how the temperature falls",
        more="The gates are drawn at this temperature.",
    )


@dataclass
class SearchConfig(GateConfig):
    """Architecture search: how a supernet's blocks choose their operation, and the training of the derived network."""

    method: SearchMethod = setting(
        SearchMethod.joint, "gates with the weights on the same data, or in turns on held-out data"
    )
    path: GatePath = setting(
        GatePath.soft,
        "run all branches and mix them, or one drawn branch a block",
        more="In training; `soft` mixes them with noisy weights.",
    )
    gate_learning_rate: float | None = setting(
        None, "constant; None: that of the weights, which two_phase does not allow", POSITIVE
    )
    gate_weight_decay: float = setting(0.0, "of the gates", at_least(0))
    gate_beta1: float = setting(0.9, "decay of the gates' first moment", BELOW_ONE)
    weights_only: float = setting(
        0.25, "two_phase: updates before the gates learn; below 1: share of all updates", at_least(0)
    )
    architecture_share: float = setting(0.2, "two_phase: of the text and of the updates, for the gates", _UP_TO_HALF)
    stop_unchanged: float | None = setting(
        None, "end where this share of blocks kept their operation since the evaluation before; the paper: 0.75", SHARE
    )
    latency_weight: float = setting(
        0.0, "weight of the expected time, as a multiple of the alternating network's, in the loss", at_least(0)
    )
    latency_costs: Costs = setting(Costs.measured, "time of a block on this machine, or its multiply-accumulates")
    sampled_paths: int = setting(4, "evaluated paths drawn from the gates", at_least(1), debug=2)
    seed_evaluation: bool = setting(
        False, "also evaluate as the original did: noisy gates, mean of the batches' perplexities"
    )
    stages: list[Stage] = setting(list(Stage), "those already done are not done again", neutral=True)
    retrain_from: RetrainFrom = setting(RetrainFrom.scratch, "the derived network's initial weights")
    retrain_steps: int | None = setting(None, "updates of each retrained network; None: trainer.max_steps", at_least(1))
    baselines: list[BaselineArchitecture] = setting(list(BaselineArchitecture), "retrained too")
    paper_ratio: int = setting(5, "paper_rule: one attention block in so many", at_least(1))
    shapes: list[list[int]] = setting(
        [], "[length, memory, batch] of costs; the first makes baselines", debug=[[8, 8, 2]]
    )
    timing_repeats: int = setting(20, "runs of which a latency is the median", at_least(1), neutral=True, debug=2)


@dataclass
class RuntimeConfig:
    """Settings that may change the speed, never the result."""

    num_workers: int = setting(0, "data loading processes", between(0, 1024))
    compile: bool = setting(False, "torch.compile")
    threads: int | None = setting(None, "CPU threads of torch; None: torch's default", between(1, 1024))
    offline: bool = setting(False, "never look at the hub: a missing name fails at once")
    trust_remote_code: bool = setting(
        False, "run the code that comes with a model, a tokenizer or a metric which names it; a line says of which"
    )


TrackerMode = StrEnum("TrackerMode", ["offline", "online", "disabled"])
Kept = StrEnum("Kept", ["report", "model"])


@dataclass
class LoggerConfig:
    """Trackers of metrics besides ``metrics.jsonl``, which is always written."""

    report_to: Any = setting(None, "trackers: a name or a list; docs/tracking.md tells them", TEXTS)
    project: str = setting("adadepth", "of the tracker")
    entity: str | None = setting(None, "W&B team or user, Comet workspace")
    group: str | None = setting(None, "of runs; None: the experiment's name")
    tags: list[str] = setting([], "of the run")
    mode: TrackerMode = setting(TrackerMode.offline, "W&B and Comet; offline runs are uploaded later")
    artifacts: list[Kept] = setting([], "what a tracker keeps at the end of a run")

    def __post_init__(self) -> None:
        self.report_to = _list_names(self.report_to)


def _list_names(value: Any) -> list[str]:
    """Return names from one name, a list, or the mapping of names to true that several options of a group make."""
    if isinstance(value, dict):
        value = [name for name, is_active in value.items() if is_active]
    return [name for name in (value if isinstance(value, list) else [value]) if name not in (None, "none")]


Task = StrEnum("Task", ["pretrain", "finetune", "language_model", "architecture_search"])
MODES_GROUP = "adadepth.modes"


class Mode(StrEnum):
    """Names of the modes of the core, which `adadepth.config.modes` describes, and of installed modes."""

    _ignore_ = ["plugin"]
    train = "train"
    evaluate = "evaluate"
    predict = "predict"
    probe = "probe"
    report = "report"
    for plugin in list_plugin_names(MODES_GROUP):
        if plugin not in vars():
            vars()[plugin] = plugin


_SEED = Allowed(lambda value: 0 <= value < 2**32, "from 0 to 2^32 - 1")


@dataclass
class ExperimentConfig:
    """One experiment: the root of every configuration."""

    name: str = setting(MISSING, "folder under output_dir")
    task: Task = setting(Task.pretrain, "what is trained or evaluated")
    mode: Mode = setting(Mode.train, "what the command does; `--help` alone says it of each")
    seed: int = setting(0, "of everything random: weights, data order, masking, dropout", _SEED)
    model: ModelConfig = setting(MISSING, "group model/")
    dataset: DatasetConfig = setting(MISSING, "group dataset/")
    tokenizer: TokenizerConfig = setting(MISSING, "group tokenizer/")
    trainer: TrainerConfig = setting(MISSING, "group trainer/")
    logger: LoggerConfig = setting(MISSING, "group logger/")
    features: FeaturesConfig = setting(FeaturesConfig, "of a frozen base: what is not run again")
    budget: BudgetConfig = setting(BudgetConfig, "group budget/: a mean depth to hold")
    halting: HaltingConfig = setting(HaltingConfig, "a second stage, in which only the halting head learns")
    search: SearchConfig = setting(SearchConfig, "task=architecture_search, and every supernet")
    context: ContextConfig = setting(ContextConfig, "of attention in the evaluation of a language model")
    runtime: RuntimeConfig = setting(RuntimeConfig, "speed only")
    seeds: int = setting(1, "runs with as many consecutive seeds; above 1 the metrics are means over them", at_least(1))
    exit_rules: list[str] = setting([], "mode=evaluate: compare these on one checkpoint; [all]")
    adopt_rule: bool = setting(
        False, "with exit_rules: save the model with the rule that is advised, by which it then stops"
    )
    predictions: bool = setting(False, "task=finetune: write what is predicted of every evaluated example")
    optimise: str = setting("eval/loss", "metric a sweep optimises; what the run returns")
    checkpoint: Any = setting(
        None,
        "for a mode that reads one: a run directory, one of its checkpoints, `latest`, a hub id, or a model of the "
        "package: demo:hops, demo:loop, demo:maze, demo:words; some modes take a list of them, too",
        TEXTS,
    )
    text: Any = setting(None, "mode=predict: a text, a list of texts or of pairs of them, or @FILE with one a line")
    new_tokens: int | None = setting(
        None, "mode=predict, with a language model: so many tokens continue each text, fewer where it ends", at_least(1)
    )
    input: str | None = setting(
        None, "mode=predict: a table (csv, tsv, jsonl, parquet, conllu, conll, txt), every row of which is predicted"
    )
    output: str | None = setting(
        None, "its rows with what is predicted (csv, tsv, jsonl); None: predictions.* in the folder of the prediction"
    )
    run: str | None = setting(None, "mode=report: a run directory, or `latest`")
    runs: list[str] = setting([], "mode=report: compare these runs, and those in these folders, on one page")
    matched_baseline: bool = setting(
        True,
        "compare a trained model with a fixed depth at its end, in at most a third of the run's time",
        neutral=True,
        debug=False,
    )
    rival_of: str | None = setting(
        None, "train the network of one depth and as much work as that run: a directory, or `latest`"
    )
    resume: str | None = setting(None, "continue a run: its directory, or `latest`")
    allow_changed_data: bool = setting(
        False, "use a model with other data, or another tokenizer, than it was trained with; the record says which"
    )
    output_dir: str = setting("outputs", "relative to where the command runs")
    small: bool = setting(False, "a run of seconds that learns nothing: settings with a value for that take it")


OPTIONAL_GROUPS: dict[str, type] = {
    "features": FeaturesConfig,
    "budget": BudgetConfig,
    "halting": HaltingConfig,
    "search": SearchConfig,
    "context": ContextConfig,
}
