"""Settings of an experiment except its data: model, trainer, depth budget, architecture search, loggers and runtime."""

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
    """Declare the `name` field of a model family's settings, which selects the family."""
    return setting(name, "name of the model family", in_model=False)


@dataclass
class ModelConfig:
    """Settings that every model family has: the name of the family, and the source of initial weights."""

    name: str = family_name(MISSING)
    pretrained: str | None = setting(None, "folder or hub id of the initial weights", in_model=False)


@dataclass
class HaltingConfig:
    """Settings of the second stage of training, in which only the halting head of a trained model learns."""

    alone: bool = setting(False, "train only the halting head of the model in model.pretrained")
    slope: float = setting(20.0, "slope of the target between halting and continuing", POSITIVE)
    threshold: float = setting(
        0.1, "minimum reduction of the loss by a later step that justifies continuing", at_least(0)
    )


TokenizerKind = StrEnum("TokenizerKind", ["unigram", "word", "byte"])


@dataclass
class TokenizerConfig:
    """Settings of the tokenizer, which is an existing one or is trained on the corpus."""

    path: str | None = setting(None, "folder or hub id of a tokenizer; None: train one")
    kind: TokenizerKind = setting(
        TokenizerKind.unigram, "unigram: pieces of words; word or byte, for streams of text only"
    )
    vocab_size: int | None = setting(
        8000,
        "vocabulary size of a trained tokenizer; None: all words, with kind=word",
        between(32, 1_000_000),
        shape=True,
        debug=300,
    )
    lowercase: bool = setting(True, "lower-case the text, for a trained tokenizer")
    symbols: list[str] = setting([], "strings that a trained tokenizer never splits")
    train_documents: int | None = setting(
        None, "maximum number of documents to train the tokenizer on, from the start; None: all", at_least(1)
    )


Optimizer = StrEnum("Optimizer", ["adamw", "adam", "adam_atan2", "lamb", "muon"])
Schedule = StrEnum("Schedule", ["linear", "reference_linear", "constant", "cosine", "plateau"])
Precision = StrEnum("Precision", ["auto", "bf16", "fp16", "fp32"])
EvalStrategy = StrEnum("EvalStrategy", ["no", "steps", "epoch"])
SaveStrategy = StrEnum("SaveStrategy", ["no", "steps", "epoch", "best"])
_UPDATES = Allowed(lambda value: value == -1 or value >= 1, "at least 1, or -1 for num_train_epochs")


@dataclass
class BorrowedConfig:
    """Settings that `transformers.TrainingArguments` also has, under the same names."""

    max_steps: int = setting(300, "number of optimiser steps; -1: num_train_epochs decides", _UPDATES, debug=2)
    num_train_epochs: float = setting(3.0, "number of epochs, with max_steps=-1", POSITIVE)
    per_device_train_batch_size: int = setting(
        16, "number of sequences per device and micro-batch", at_least(1), debug=4
    )
    per_device_eval_batch_size: int = setting(32, "number of sequences per device", at_least(1), neutral=True, debug=4)
    gradient_accumulation_steps: int = setting(1, "number of micro-batches per optimiser step", at_least(1), debug=1)
    learning_rate: float = setting(1e-3, "peak learning rate", POSITIVE)
    weight_decay: float = setting(0.01, "weight decay of matrices; see decay_vectors", at_least(0))
    adam_beta1: float = setting(0.9, "decay rate of the first moment, for every optimizer", BELOW_ONE)
    adam_beta2: float = setting(0.999, "decay rate of the second moment", BELOW_ONE)
    adam_epsilon: float = setting(1e-6, "constant added to the root of the second moment", POSITIVE)
    max_grad_norm: float = setting(1.0, "maximum global gradient norm per optimiser step; 0: no clipping", at_least(0))
    warmup_steps: float = setting(
        0, "number of warm-up steps; below 1: share of all optimiser steps", at_least(0), debug=0
    )
    logging_steps: int = setting(
        10, "number of optimiser steps between two lines of training metrics", at_least(1), neutral=True, debug=1
    )
    eval_strategy: EvalStrategy = setting(
        EvalStrategy.steps, "evaluate every eval_steps optimiser steps, every epoch, or never", debug=EvalStrategy.steps
    )
    eval_steps: int | None = setting(100, "number of optimiser steps between evaluations", at_least(1), debug=2)
    eval_on_start: bool = setting(True, "also evaluate the untrained model; its depth explains collapsed runs")
    save_strategy: SaveStrategy = setting(
        SaveStrategy.steps,
        "when to save checkpoints; best: whenever the best metric improves",
        debug=SaveStrategy.steps,
    )
    save_steps: int = setting(
        100,
        "number of optimiser steps between checkpoints; a multiple of eval_steps if load_best_model_at_end",
        at_least(1),
        debug=2,
    )
    save_total_limit: int | None = setting(
        2, "maximum number of checkpoints; the best and the newest one are always kept", at_least(1), neutral=True
    )
    load_best_model_at_end: bool = setting(
        True, "report and keep the best evaluated weights of a checkpoint, not the last"
    )
    metric_for_best_model: str | None = setting(
        "eval_loss", "metric that selects the best model, under its name in transformers"
    )
    greater_is_better: bool | None = setting(
        None,
        "whether a greater metric_for_best_model is better; None: false for losses and errors, true for all others",
    )
    tf32: bool | None = setting(None, "TF32 matrix products on Ampere and later GPUs; None: torch's default")
    gradient_checkpointing: bool = setting(False, "recompute the block in the backward pass", neutral=True)
    torch_compile_backend: str | None = setting(None, "backend of torch.compile, with runtime.compile", neutral=True)
    torch_compile_mode: str | None = setting(None, "mode of torch.compile, with runtime.compile", neutral=True)
    ddp_backend: str | None = setting(
        None, "backend of distributed training; None: nccl on GPUs, gloo on CPUs", neutral=True
    )
    ddp_find_unused_parameters: bool | None = setting(
        None,
        "let DDP accept parameters without a gradient in a step; None: true; false saves reading the graph of the loss",
        more="With false, DDP ends the training if a step leaves a parameter without a gradient.",
        neutral=True,
    )
    ddp_bucket_cap_mb: int | None = setting(None, "size of a gradient bucket of DDP, in MB", neutral=True)
    ddp_broadcast_buffers: bool | None = setting(
        None, "broadcast buffers in DDP; None: unless gradients are checkpointed"
    )
    ddp_timeout: int = setting(1800, "timeout of distributed operations, in seconds", at_least(1), neutral=True)
    fsdp: bool = setting(False, "shard parameters over ranks (FSDP)")
    fsdp_config: Any = setting(None, "FSDP's own settings: a JSON file or a mapping")
    deepspeed: Any = setting(None, "a DeepSpeed configuration: a JSON file or a mapping")
    dataloader_drop_last: bool = setting(False, "drop an incomplete last batch")
    dataloader_pin_memory: bool = setting(True, "pin memory for faster copies to a GPU", neutral=True)
    dataloader_persistent_workers: bool = setting(False, "keep workers from one epoch to the next", neutral=True)
    dataloader_prefetch_factor: int | None = setting(
        None, "number of prefetched batches per worker, with runtime.num_workers > 0", at_least(1), neutral=True
    )
    full_determinism: bool = setting(False, "use deterministic kernels: slower, with bit-identical results")
    use_cpu: bool = setting(False, "ignore GPUs")
    disable_tqdm: bool | None = setting(None, "hide the progress bar; None: show it in a terminal only", neutral=True)
    push_to_hub: bool = setting(False, "upload the model and its card to the Hugging Face hub at the end", neutral=True)
    hub_model_id: str | None = setting(
        None, "name of the repository on the hub, OWNER/NAME; None: the name of the experiment", neutral=True
    )
    hub_private_repo: bool | None = setting(
        None, "make a new repository private; None: as set on the hub", neutral=True
    )


@dataclass
class LoraConfig:
    """Settings of low-rank adapters, which train a pretrained model with few parameters."""

    rank: int | None = setting(None, "rank r of the adapters; None: no adapters, all weights are trained", at_least(1))
    alpha: float = setting(16.0, "scale of the adapters, which is divided by the rank", POSITIVE)
    dropout: float = setting(0.0, "dropout probability of the inputs of adapters", BELOW_ONE)
    target_modules: list[str] | None = setting(
        None, "names, or ends of names, of the linear layers that get an adapter; None: all but heads and embeddings"
    )
    modules_to_save: list[str] | None = setting(
        None, "names, or ends of names, of the modules to train in full; None: task heads and halting heads"
    )


@dataclass
class TrainerConfig(BorrowedConfig):
    """Settings of the `transformers` trainer, and further ones that `adadepth.training` applies."""

    optimizer: Optimizer = setting(
        Optimizer.adamw,
        "adam: weight decay in the gradient; adam_atan2: as in tiny recursive models, without adam_epsilon; lamb: "
        "ALBERT's published recipe; muon: for matrices of hidden layers, with adamw for all others",
    )
    muon_learning_rate: float | None = setting(
        None, "peak learning rate of Muon's matrices; None: learning_rate", POSITIVE
    )
    lora: LoraConfig = setting(LoraConfig, "low-rank adapters (LoRA) on a pretrained model")
    decay_vectors: bool = setting(False, "apply weight_decay to biases and layer norms, too")
    ema_decay: float | None = setting(
        None,
        "decay per optimiser step of an exponential moving average of the weights, which is evaluated and "
        "saved; None: no average",
        OPEN_SHARE,
    )
    schedule: Schedule = setting(
        Schedule.linear,
        "learning-rate schedule; reference_linear: decay from step 0; plateau: halve when the metric stops improving",
    )
    plateau_patience: int | None = setting(
        None, "number of evaluations without improvement before the learning rate is halved", at_least(1)
    )
    plateau_min_lr: float = setting(1e-6, "lowest learning rate of schedule=plateau", at_least(0))
    precision: Precision = setting(Precision.auto, "auto: bf16 where supported, else fp16 on a GPU, else fp32")
    time_budget_minutes: float | None = setting(
        None, "time budget in minutes, after which training stops, saves and evaluates; None: unlimited", POSITIVE
    )
    early_stopping_patience: int | None = setting(
        None, "number of evaluations without improvement before training stops; None: no early stopping", at_least(1)
    )
    early_stopping_threshold: float = setting(
        0.0, "smallest change of the metric that counts as improvement", at_least(0)
    )
    time_executions: bool | None = setting(
        None,
        "time ragged against dense execution after training (None: if it takes under a tenth of it), and exit_rules",
        neutral=True,
    )
    state_diagnostics: bool = setting(
        False, "measure residual, similarity and spectral radius of the states of every update", neutral=True
    )
    profiler: bool = setting(False, "write a trace of a few optimiser steps, for ui.perfetto.dev", neutral=True)
    halting_statistics: bool = setting(True, "measure depth per token class at every evaluation", neutral=True)


BudgetUnit = StrEnum("BudgetUnit", ["updates", "macs", "deepest_layer", "expected_layer", "milliseconds"])


@dataclass
class BudgetConfig:
    """Settings of a depth budget: a target for the mean depth in training, which replaces a depth penalty."""

    target: float | None = setting(
        None, "target mean depth of a token or sequence, in `unit`; None: no budget", POSITIVE
    )
    unit: BudgetUnit = setting(
        BudgetUnit.updates, "unit of the target; updates: per token or sequence; docs/budget.md lists the others"
    )
    grow: float = setting(
        0.0,
        "initial share of optimiser steps without halting, in which depth grows from `grow_from` to full depth",
        SHARE,
    )
    grow_from: int = setting(2, "depth of all tokens at the first optimiser step, with budget.grow", at_least(1))
    hold: float = setting(0.15, "share of optimiser steps at full depth after growth", SHARE)
    ramp: float = setting(0.25, "share of optimiser steps in which depth falls from full depth to `target`", SHARE)
    gain: float = setting(1.0, "gain of the controller; a larger gain corrects the depth faster", POSITIVE)
    targets: list[float] = setting(
        [], "mode=evaluate: fit the depth of the checkpoint to each of these targets, in `unit`"
    )


@dataclass
class DistanceConfig:
    """Settings of relative positions in attention, shared by experiments and model configurations."""

    clamp_length: int | None = setting(
        None, "longest distance; longer ones are clamped to it; None: no limit", at_least(1)
    )
    same_length: bool = setting(
        False,
        "let every position attend to equally many positions",
        more="These are the last `memory_length` positions, the position itself included.",
    )


@dataclass
class ContextConfig(DistanceConfig):
    """Settings of the attention context in evaluation, which may differ from training."""

    memory_length: int | None = setting(
        None, "number of memory positions before the segment; None: as in the model", at_least(0)
    )


StatePrecision = StrEnum("StatePrecision", ["fp32", "bf16", "fp16"])


@dataclass
class FeaturesConfig:
    """Settings of the cache of a frozen base model's hidden states, shared by epochs, runs and seeds."""

    cache: bool = setting(True, "cache the states of the frozen base; false: run the base in every epoch")
    precision: StatePrecision = setting(
        StatePrecision.fp32, "precision of the stored states; fp16 and bf16 halve the disk space"
    )
    limit_gib: float = setting(100.0, "maximum size of the stored states, in GiB", POSITIVE, neutral=True)
    batch_tokens: int = setting(
        8192, "number of tokens per batch while computing states, padding included", at_least(1)
    )


SearchMethod = StrEnum("SearchMethod", ["joint", "two_phase"])
GatePath = StrEnum("GatePath", ["soft", "sampled"])
Costs = StrEnum("Costs", ["measured", "macs"])
Stage = StrEnum("Stage", ["search", "derive", "retrain", "compare"])
RetrainFrom = StrEnum("RetrainFrom", ["scratch", "supernet"])
BaselineArchitecture = StrEnum("BaselineArchitecture", ["alternating", "paper_rule", "sandwich", "random"])
_UP_TO_HALF = Allowed(lambda value: 0 < value <= 0.5, "above 0 and at most 0.5")


@dataclass
class GateConfig:
    """Settings for training a supernet's gates, shared by experiments and model configurations."""

    straight_through: bool = setting(
        False, "use only the largest gate in the forward pass and all soft gates in the backward pass"
    )
    tau_start: float = setting(1.0, "temperature of the gates in the first update", POSITIVE)
    tau_end: float = setting(0.1, "temperature of the gates in the last update", POSITIVE)
    tau_schedule: TauSchedule = setting(
        TauSchedule.exponential,
        "schedule of the temperature",
        more="The gates are sampled at this temperature.",
    )


@dataclass
class SearchConfig(GateConfig):
    """Settings of an architecture search, which chooses operations of a supernet and trains the derived network."""

    method: SearchMethod = setting(
        SearchMethod.joint,
        "joint: train gates and weights on the same data; two_phase: train gates in turns, on held-out data",
    )
    path: GatePath = setting(
        GatePath.soft,
        "soft: run and mix all branches; sampled: run one sampled branch per block",
        more="This applies to training; `soft` mixes the branches with noisy weights.",
    )
    gate_learning_rate: float | None = setting(
        None, "constant learning rate of the gates; None: that of the weights, for method=joint only", POSITIVE
    )
    gate_weight_decay: float = setting(0.0, "weight decay of the gates", at_least(0))
    gate_beta1: float = setting(0.9, "decay rate of the first moment of the gates", BELOW_ONE)
    weights_only: float = setting(
        0.25, "two_phase: number of optimiser steps before the gates learn; below 1: share of all steps", at_least(0)
    )
    architecture_share: float = setting(
        0.2, "two_phase: share of the text and of the optimiser steps for the gates", _UP_TO_HALF
    )
    stop_unchanged: float | None = setting(
        None,
        "stop when this share of blocks has kept its operation since the previous evaluation; the paper: "
        "0.75; None: never",
        SHARE,
    )
    latency_weight: float = setting(
        0.0, "weight in the loss of the expected latency, relative to that of the alternating network", at_least(0)
    )
    latency_costs: Costs = setting(
        Costs.measured, "cost of a block: measured latency on this machine, or multiply-accumulates"
    )
    sampled_paths: int = setting(4, "number of evaluated paths sampled from the gates", at_least(1), debug=2)
    seed_evaluation: bool = setting(
        False, "also evaluate as in the original code: noisy gates, mean of the perplexities of batches"
    )
    stages: list[Stage] = setting(list(Stage), "stages to run; finished ones are skipped", neutral=True)
    retrain_from: RetrainFrom = setting(RetrainFrom.scratch, "initial weights of the derived network")
    retrain_steps: int | None = setting(
        None, "number of optimiser steps of each retrained network; None: trainer.max_steps", at_least(1)
    )
    baselines: list[BaselineArchitecture] = setting(
        list(BaselineArchitecture), "baseline architectures that are retrained, too"
    )
    paper_ratio: int = setting(5, "paper_rule: one attention block per this number of blocks", at_least(1))
    shapes: list[list[int]] = setting(
        [],
        "shapes [length, memory, batch] at which costs are measured; the first one defines the baselines",
        debug=[[8, 8, 2]],
    )
    timing_repeats: int = setting(
        20, "number of timed passes; the latency is their median", at_least(1), neutral=True, debug=2
    )


@dataclass
class RuntimeConfig:
    """Settings that may change the speed of a run but never its result."""

    num_workers: int = setting(0, "number of data-loading processes", between(0, 1024))
    compile: bool = setting(False, "compile the model with torch.compile")
    threads: int | None = setting(
        None, "number of CPU threads of torch; None: the free CPUs, and fewer for small batches", between(1, 1024)
    )
    offline: bool = setting(False, "never contact the hub; missing files are an error")
    trust_remote_code: bool = setting(
        False, "run the code that comes with a model, tokenizer, metric or task; the log names each"
    )


TrackerMode = StrEnum("TrackerMode", ["offline", "online", "disabled"])
Kept = StrEnum("Kept", ["report", "model"])
LoggedMetrics = StrEnum("LoggedMetrics", ["main", "all"])


@dataclass
class LoggerConfig:
    """Settings of the experiment trackers, which receive metrics besides the file ``metrics.jsonl``."""

    report_to: Any = setting(None, "names of trackers: one or a list; see docs/tracking.md", TEXTS)
    project: str = setting("adadepth", "project of the tracker")
    entity: str | None = setting(None, "W&B team or user, Comet workspace")
    group: str | None = setting(
        None, "group of runs; None: the sweep, the run of several seeds or the search to which a run belongs"
    )
    tags: list[str] = setting([], "tags of the run, besides the name of the experiment and the overrides")
    metrics: LoggedMetrics = setting(
        LoggedMetrics.main, "metrics that trackers get: main ones, or all; metrics.jsonl always has all"
    )
    mode: TrackerMode = setting(TrackerMode.offline, "mode of W&B and Comet; offline runs are uploaded later")
    artifacts: list[Kept] = setting([], "artifacts that a tracker stores at the end of a run")

    def __post_init__(self) -> None:
        names = self.report_to
        if isinstance(names, dict):  # which Hydra makes of several options of a group
            names = [name for name, is_active in names.items() if is_active]
        self.report_to = [
            name for name in (names if isinstance(names, list) else [names]) if name not in (None, "none")
        ]


Task = StrEnum("Task", ["pretrain", "finetune", "language_model", "architecture_search"])
MODES_GROUP = "adadepth.modes"


class Mode(StrEnum):
    """Names of the command's modes, `mode=NAME`, including those of plug-ins."""

    _ignore_ = ["plugin"]
    train = "train"
    evaluate = "evaluate"
    predict = "predict"
    export = "export"
    report = "report"
    for plugin in list_plugin_names(MODES_GROUP):
        if plugin not in vars():
            vars()[plugin] = plugin


_SEED = Allowed(lambda value: 0 <= value < 2**32, "from 0 to 2^32 - 1")


@dataclass
class ExperimentConfig:
    """All settings of an experiment, the root of every configuration."""

    name: str = setting(MISSING, "name of the experiment and of its folder under output_dir")
    task: Task = setting(Task.pretrain, "task to train or evaluate")
    mode: Mode = setting(Mode.train, "what the command does; `--help` lists the modes")
    seed: int = setting(0, "random seed of weights, data order, masking and dropout", _SEED)
    model: ModelConfig = setting(MISSING, "group model/")
    dataset: DatasetConfig = setting(MISSING, "group dataset/")
    tokenizer: TokenizerConfig = setting(MISSING, "group tokenizer/")
    trainer: TrainerConfig = setting(MISSING, "group trainer/")
    logger: LoggerConfig = setting(MISSING, "group logger/")
    features: FeaturesConfig = setting(FeaturesConfig, "group features/: cached states of a frozen base")
    budget: BudgetConfig = setting(BudgetConfig, "group budget/: target mean depth")
    halting: HaltingConfig = setting(HaltingConfig, "second stage of training, for the halting head only")
    search: SearchConfig = setting(SearchConfig, "settings of task=architecture_search and of every supernet")
    context: ContextConfig = setting(ContextConfig, "attention context in the evaluation of a language model")
    runtime: RuntimeConfig = setting(RuntimeConfig, "settings that only change speed")
    seeds: int = setting(1, "number of runs with consecutive seeds; metrics are means over the runs", at_least(1))
    exit_rules: list[str] = setting([], "mode=evaluate: early-exit rules to compare on one checkpoint, or [all]")
    adopt_rule: bool = setting(False, "with exit_rules: save the model with the advised exit rule as its default")
    score_halves: bool = setting(
        False,
        "mode=evaluate: also score the model on the two halves of the first evaluation set, as `budget.targets` does",
    )
    predictions: bool = setting(False, "task=finetune: write the prediction of every evaluated example")
    optimise: str = setting("eval/loss", "metric that a sweep optimises and the run returns")
    checkpoint: Any = setting(
        None,
        "checkpoint to load: a run directory, one of its checkpoints, `latest`, a hub id, or a bundled model "
        "(demo:hops, demo:loop, demo:maze, demo:words); some modes also take a list",
        TEXTS,
    )
    text: Any = setting(None, "mode=predict: a text, a list of texts or of pairs, or @FILE with one per line")
    new_tokens: int | None = setting(
        None, "mode=predict with a language model: maximum number of tokens to generate for each text", at_least(1)
    )
    input: str | None = setting(
        None, "mode=predict: table of inputs (csv, tsv, jsonl, parquet, conllu, conll, txt); every row is predicted"
    )
    output: str | None = setting(
        None,
        "mode=predict: output file, the rows with their predictions (csv, tsv, jsonl); None: predictions.* in "
        "the run directory",
    )
    run: str | None = setting(None, "mode=report: run directory, or `latest`")
    runs: list[str] = setting([], "mode=report: run directories, or folders of runs, to compare on one page")
    matched_baseline: bool = setting(
        True,
        "compare the trained model with a fixed depth afterwards, which takes at most a third of the time of the run; "
        "if the comparison trains a network, at most the time of the run",
        neutral=True,
        debug=False,
    )
    bag_of_words: bool = setting(
        True, "train a bag of words on the rows of a local table, and compare the trained model with it", neutral=True
    )
    rival_of: str | None = setting(
        None,
        "train matched baselines of fixed depth, next to the compute of a run: its directory, of several seeds that of "
        "their summary, or `latest`",
    )
    resume: str | None = setting(None, "resume a run: its directory, or `latest`")
    allow_changed_data: bool = setting(
        False, "allow other data or another tokenizer than in training; the run record lists the differences"
    )
    output_dir: str = setting("outputs", "folder of all runs, relative to the working directory")
    quiet: bool | None = setting(
        None, "print warnings, errors and the result only; None: in the jobs of a sweep", neutral=True
    )
    small: bool = setting(False, "run for seconds to test the configuration: settings with a debug value take it")


OPTIONAL_GROUPS: dict[str, type] = {
    "features": FeaturesConfig,
    "budget": BudgetConfig,
    "halting": HaltingConfig,
    "search": SearchConfig,
    "context": ContextConfig,
}
