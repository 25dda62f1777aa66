"""Range and cross-field checks of a configuration: all mistakes are collected, each a line a person can act on."""

import copy
import dataclasses
import importlib.util
import math
import os
from collections.abc import Callable, Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from adadepth.analysis.quality import check_metrics, check_tags, metric_key
from adadepth.config import (
    AdaLayersModelConfig,
    AlbertActModelConfig,
    AlbertModelConfig,
    ContextConfig,
    CorpusConfig,
    ExperimentConfig,
    FeaturesConfig,
    GatePath,
    HaltingHead,
    Head,
    LabelledConfig,
    Mode,
    ParityConfig,
    ParXLModelConfig,
    PonderAlbertModelConfig,
    PonderRnnModelConfig,
    Precision,
    Problem,
    Representation,
    Schedule,
    SearchConfig,
    SearchMethod,
    Sink,
    Source,
    Stage,
    StreamConfig,
    TableConfig,
    TaggingConfig,
    Task,
    TextConfig,
    TokenizerKind,
    to_config,
)
from adadepth.errors import ConfigError, nearest

_HUB_KEYS = ("path", "name", "split", "rows_per_document")
_PROCESSES = int(os.environ.get("WORLD_SIZE", "1"))
METRIC_PREFIXES = ("train/", "eval/", "halting/", "cost/", "search/")
# What an evaluation of the pretraining task measures, so that a wrong name fails before the training, not after it.
PRETRAINING_METRICS = ("loss", "mlm_loss", "mlm_accuracy", "sop_loss", "sop_accuracy", "ponder_cost", "ponder_loss")
LANGUAGE_METRICS = ("loss", "lm_loss", "perplexity", "word_perplexity", "bits_per_character")
_LOSS_PARTS = {
    "adalayers": ("entropy_loss", "depth_loss"),
    "albert_act": ("ponder_loss",),
    "ponder_albert": ("kl_loss",),
    "ponder_rnn": ("kl_loss",),
}


def checked(composed: DictConfig) -> ExperimentConfig:
    """Turn a composed configuration into typed objects and validate it; Hydra's own node is left out."""
    if "hydra" in composed:
        composed = copy.deepcopy(composed)
        with open_dict(composed):
            del composed["hydra"]
    if unknown := list(_unknown_keys(composed)):
        raise ConfigError("\n".join(f"{key}: unknown key; leave out the + that forces it in" for key in unknown))
    config = to_config(composed)
    validate(config)
    return config


def validate(config: ExperimentConfig) -> None:
    """Raise one ``ConfigError`` with a line for every mistake."""
    checks = (
        _ranges, _task, _model, _adalayers, _par_xl, _search, _text, _corpus, _stream, _tokenizer, _table, _labelled,
        _tagging, _parity, _trainer, _mode, _modes, _names, _extras,
    )  # fmt: skip
    if problems := [problem for check in checks for problem in check(config)]:
        raise ConfigError("\n".join(problems))


def _unknown_keys(node: DictConfig, prefix: str = "") -> Iterator[str]:
    """Yield the keys that ``+key=value`` forced past the schema."""
    schema = OmegaConf.get_type(node)
    known = {field.name for field in dataclasses.fields(schema)} if dataclasses.is_dataclass(schema) else None
    for key in map(str, node):
        if known is not None and key not in known:
            yield f"{prefix}{key}"
        elif not OmegaConf.is_missing(node, key) and OmegaConf.is_dict(node[key]):
            yield from _unknown_keys(node[key], f"{prefix}{key}.")


def _at_least(low: float) -> tuple[Callable[[Any], bool], str]:
    return lambda value: low <= value < math.inf, f"at least {low}"


_POSITIVE = (lambda value: 0 < value < math.inf, "above 0")
_SHARE = (lambda value: 0 <= value <= 1, "from 0 to 1")
_OPEN_SHARE = (lambda value: 0 < value < 1, "above 0 and below 1")
_DROPOUT = (lambda value: 0 <= value < 1, "at least 0 and below 1")

# key -> (test, what is allowed). A key the configuration lacks (another family's) and None are skipped.
_ALLOWED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "seed": (lambda value: 0 <= value < 2**32, "from 0 to 2^32 - 1"),
    "seeds": _at_least(1),
    "model.vocab_size": _at_least(5),
    **{
        f"model.{name}": _at_least(1)
        for name in (
            "embedding_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
            "max_position_embeddings", "halting_head_layers", "head_size", "num_steps", "layers_num", "project_dim",
            "topk_distribution", "attention_heads_num", "attention_layers_num", "dim_feedforward", "proj_factor",
        )
    },
    "model.hidden_dropout_prob": _DROPOUT,
    "model.attention_probs_dropout_prob": _DROPOUT,
    "model.classifier_dropout_prob": _DROPOUT,
    "model.initializer_range": _POSITIVE,
    "model.layer_norm_eps": _POSITIVE,
    "model.act_epsilon": _OPEN_SHARE,
    "model.act_penalty": _at_least(0),
    "model.target_halt_probability": _OPEN_SHARE,
    "model.kl_penalty_factor": _at_least(0),
    "model.halt_bias_init": (math.isfinite, "a finite number"),
    **{f"model.{name}": _POSITIVE for name in ("alpha_distribution", "distribution_lr_multiplier")},
    "model.distribution_cutoff": _DROPOUT,
    "model.cutoff_warmup_steps": _at_least(0),
    "model.lambda_distribution_entropy": (math.isfinite, "a finite number"),
    "model.lambda_distribution_depth": _at_least(0),
    "model.attention_dropout_prob": _DROPOUT,
    "model.focal_loss_gamma": _at_least(0),
    "model.focal_loss_alpha": _POSITIVE,
    "model.memory_length": _at_least(0),
    "model.activation_dropout_prob": _DROPOUT,
    **{f"search.{name}": _POSITIVE for name in ("tau_start", "tau_end", "gate_learning_rate")},
    **{f"search.{name}": _at_least(0) for name in ("gate_weight_decay", "weights_only", "latency_weight")},
    **{f"search.{name}": _at_least(1) for name in ("sampled_paths", "retrain_steps", "paper_ratio", "timing_repeats")},
    "search.gate_beta1": _DROPOUT,
    "search.architecture_share": (lambda value: 0 < value <= 0.5, "above 0 and at most 0.5"),
    "context.memory_length": _at_least(0),
    "context.clamp_length": _at_least(1),
    "dataset.evaluation_length": _at_least(1),
    "dataset.max_evaluation_tokens": _at_least(1),
    "dataset.evaluation_fraction": _OPEN_SHARE,
    "dataset.held_out": _OPEN_SHARE,
    "dataset.max_evaluation_examples": _at_least(1),
    "dataset.shuffle_buffer": _at_least(1),
    "dataset.max_documents": _at_least(2),
    "dataset.max_train_examples": _at_least(1),
    "dataset.size": _at_least(1),
    "dataset.train_examples": _at_least(1),
    "dataset.easy_epochs": _at_least(0),
    "dataset.sequence_length": _at_least(8),
    "dataset.short_sequence_probability": _SHARE,
    "dataset.masking.probability": _OPEN_SHARE,
    "dataset.masking.max_predictions": _at_least(1),
    "dataset.masking.max_ngram": _at_least(1),
    "dataset.masking.mask_share": _SHARE,
    "dataset.masking.random_share": _SHARE,
    "tokenizer.vocab_size": _at_least(32),
    "tokenizer.train_documents": _at_least(1),
    "trainer.max_steps": (lambda value: value == -1 or value >= 1, "at least 1, or -1 for num_train_epochs"),
    **{
        f"trainer.{name}": _at_least(1)
        for name in (
            "per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps", "logging_steps",
            "eval_steps", "save_steps", "save_total_limit", "ddp_timeout", "dataloader_prefetch_factor",
            "early_stopping_patience", "plateau_patience",
        )
    },
    **{
        f"trainer.{name}": _POSITIVE
        for name in ("num_train_epochs", "learning_rate", "adam_epsilon", "time_budget_minutes")
    },
    **{f"trainer.{name}": _at_least(0) for name in ("weight_decay", "max_grad_norm", "warmup_steps",
                                               "early_stopping_threshold", "plateau_min_lr")},
    "trainer.adam_beta1": _DROPOUT,
    "trainer.adam_beta2": _DROPOUT,
    "features.limit_gib": _POSITIVE,
    "features.batch_tokens": _at_least(1),
    "runtime.num_workers": _at_least(0),
    "runtime.threads": _at_least(1),
}  # fmt: skip


def _ranges(config: ExperimentConfig) -> Iterator[str]:
    for key, (test, allowed) in _ALLOWED.items():
        value: Any = config
        for name in key.split("."):
            value = getattr(value, name, None)
        if value is not None and not test(value):
            yield f"{key}={value}: must be {allowed}"


def _task(config: ExperimentConfig) -> Iterator[str]:
    """Which models and data a task takes, and what only some tasks and modes read."""
    model, dataset = config.model, config.dataset
    if config.task is Task.pretrain:
        if not isinstance(dataset, CorpusConfig):
            yield f"dataset={dataset.name}: task=pretrain reads a corpus, e.g. dataset=python_docs"
        if not isinstance(model, AlbertActModelConfig):
            yield f"model={model.name}: task=pretrain trains albert_act, e.g. model=albert_act_mini"
    elif config.task is not Task.finetune:
        if not isinstance(dataset, StreamConfig):
            yield f"dataset={dataset.name}: task={config.task} reads streams of text, e.g. dataset=stream_python_docs"
        if not isinstance(model, ParXLModelConfig):
            yield f"model={model.name}: task={config.task} trains par_xl, e.g. model=par_xl_mini"
        return
    elif isinstance(dataset, TextConfig):
        yield f"dataset={dataset.name}: task=finetune reads labelled data, e.g. dataset=cola"
    elif isinstance(model, ParXLModelConfig):
        yield f"model={model.name}: task=finetune has no classifier of this family"
    if isinstance(dataset, TaggingConfig) and not isinstance(model, AdaLayersModelConfig):
        yield f"model={model.name}: dataset={dataset.name} tags words, for adalayers, e.g. model=adalayers_minilm"
    vectors = isinstance(dataset, ParityConfig) and dataset.representation is Representation.vectors
    if isinstance(model, PonderRnnModelConfig) != vectors and not isinstance(dataset, TextConfig):
        wanted = "a recurrent cell, model=parity_rnn" if vectors else "a model of tokens, e.g. ponder_albert"
        yield f"model={model.name}: dataset={dataset.name} needs {wanted}"


def _modes(config: ExperimentConfig) -> Iterator[str]:
    if config.exit_rules and (config.mode is not Mode.evaluate or config.task is not Task.finetune):
        yield f"exit_rules={config.exit_rules}: read only with task=finetune mode=evaluate"
    if config.seeds > 1 and (config.mode is not Mode.train or config.resume is not None):
        yield f"seeds={config.seeds}: read only with mode=train, and not with resume"


_SIZES = (
    "embedding_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "max_position_embeddings",
)  # fmt: skip


def _model(config: ExperimentConfig) -> Iterator[str]:
    model = config.model
    if isinstance(model, PonderAlbertModelConfig):
        head, layers = model.halting_head, model.halting_head_layers
        if layers > 1 and head is not HaltingHead.linear_cat:
            yield f"model.halting_head_layers={layers}: read only with model.halting_head=linear_cat"
    if not isinstance(model, AlbertModelConfig):
        return
    if model.pretrained is None and config.mode is Mode.train:
        for name in _SIZES:
            if getattr(model, name) is None:
                yield f"model.{name}: a value is missing; without model.pretrained there is nothing to take it from"
    heads, hidden, positions = model.num_attention_heads, model.hidden_size, model.max_position_embeddings
    if heads is not None and hidden is not None and heads >= 1 and hidden % heads:
        yield f"model.num_attention_heads={heads}: must divide model.hidden_size={hidden}"
    if positions is not None and config.dataset.sequence_length > positions:
        yield (
            f"dataset.sequence_length={config.dataset.sequence_length}: the model has only "
            f"model.max_position_embeddings={positions} positions"
        )


def _adalayers(config: ExperimentConfig) -> Iterator[str]:
    model, features = config.model, config.features
    if not isinstance(model, AdaLayersModelConfig):
        if features != FeaturesConfig():
            yield f"features: read only with a frozen base, model=adalayers_*, but model={model.name}"
        return
    if model.pretrained is not None:
        yield f"model.pretrained={model.pretrained}: the base is named by model.base_model"
    if features.cache and not model.freeze_base_model:
        yield (
            "features.cache=true: with model.freeze_base_model=false the base's states change at every update; "
            "set features.cache=false"
        )
    heads, width = model.attention_heads_num, model.project_dim
    if model.head is Head.attention and heads >= 1 and width % heads:
        yield f"model.attention_heads_num={heads}: must divide model.project_dim={width}"
    if model.layers_num is not None and not model.seed_compat:
        yield f"model.layers_num={model.layers_num}: read only with model.seed_compat=true; else it is the base's"


def _par_xl(config: ExperimentConfig) -> Iterator[str]:
    model = config.model
    if not isinstance(model, ParXLModelConfig):
        if config.context != ContextConfig():
            yield f"context: read only with a model that remembers, model=par_xl_*, but model={model.name}"
        return
    heads, hidden = model.num_attention_heads, model.hidden_size
    if heads >= 1 and hidden % heads:
        yield f"model.num_attention_heads={heads}: must divide model.hidden_size={hidden}"
    cutoffs = model.cutoffs
    if any(cutoff < 1 for cutoff in cutoffs) or cutoffs != sorted(set(cutoffs)):
        yield f"model.cutoffs={cutoffs}: must be positive and increase"
    if model.architecture is not None and config.task is Task.architecture_search:
        yield f"model.architecture={model.architecture}: task=architecture_search searches it; use task=language_model"


def _search(config: ExperimentConfig) -> Iterator[str]:
    """How gates learn is read only where there are gates, and each setting only where it means something."""
    search, is_search = config.search, config.task is Task.architecture_search
    has_gates = isinstance(config.model, ParXLModelConfig) and config.model.architecture is None
    if not has_gates:
        if search != SearchConfig():
            yield (
                "search: read only with a supernet, model=par_xl_* without model.architecture; one network trains with "
                "--config-name par_network"
            )
        return
    if search.method is SearchMethod.two_phase:
        if search.gate_learning_rate is None:
            yield "search.gate_learning_rate: search.method=two_phase needs it, e.g. 1e-2"
        if config.trainer.max_steps == -1:
            yield "trainer.max_steps=-1: search.method=two_phase needs the number of updates"
    if search.latency_weight > 0 and not is_search:
        yield f"search.latency_weight={search.latency_weight}: read only with task=architecture_search"
    if is_search and not search.stages:
        yield f"search.stages=[]: at least one is needed, of {', '.join(Stage)}"
    for shape in search.shapes:
        if len(shape) != 3 or shape[0] < 1 or shape[1] < 0 or shape[2] < 1:
            yield f"search.shapes={shape}: must be [length, memory, batch], e.g. [64, 640, 1]"
    if config.trainer.ddp_find_unused_parameters is not True and search.path is GatePath.sampled and _PROCESSES > 1:
        yield "trainer.ddp_find_unused_parameters: search.path=sampled leaves parameters unused, set it to true"


def _table(config: ExperimentConfig) -> Iterator[str]:
    dataset = config.dataset
    if not isinstance(dataset, TableConfig):
        return
    if dataset.source is Source.local and not dataset.path:
        yield "dataset.path: dataset.source=local needs a folder, or a mapping of splits to files"
    if dataset.source is Source.hub and not dataset.hub.path:
        yield "dataset.hub.path: dataset.source=hub needs it"
    if not dataset.evaluation_splits:
        yield "dataset.evaluation_splits=[]: at least one is needed, to select the model on"
    if dataset.held_out is None and "held_out" in dataset.evaluation_splits:
        yield "dataset.evaluation_splits=held_out: needs dataset.held_out, the share of the training rows set aside"
    if dataset.held_out is not None and "held_out" not in dataset.evaluation_splits:
        yield f"dataset.held_out={dataset.held_out}: name held_out in dataset.evaluation_splits, to evaluate on it"
    if dataset.held_out is not None and dataset.source is Source.embedded:
        yield f"dataset.held_out={dataset.held_out}: read only with dataset.source=local or hub"


def _labelled(config: ExperimentConfig) -> Iterator[str]:
    dataset = config.dataset
    if not isinstance(dataset, LabelledConfig):
        return
    if len(dataset.text_columns) not in (1, 2):
        yield f"dataset.text_columns={dataset.text_columns}: must name one column, or two for pairs"
    try:
        check_metrics(dataset.metrics, "regression" if dataset.problem is Problem.regression else "classification")
    except ConfigError as error:
        yield str(error)
    if dataset.submission and len(dataset.submission) != len(dataset.test_splits):
        yield f"dataset.submission={dataset.submission}: needs a name for each of {dataset.test_splits}"


def _tagging(config: ExperimentConfig) -> Iterator[str]:
    dataset = config.dataset
    if not isinstance(dataset, TaggingConfig):
        return
    if dataset.source is Source.embedded:
        yield "dataset.source=embedded: tagged sentences are read from the hub or local files"
    try:
        check_metrics(dataset.metrics, "tagging")
        check_tags(dataset.metrics, dataset.labels or [])
    except ConfigError as error:
        yield str(error)


def _parity(config: ExperimentConfig) -> Iterator[str]:
    dataset = config.dataset
    if not isinstance(dataset, ParityConfig):
        return
    if (dataset.easy_epochs > 0) != (dataset.easy_ones is not None):
        yield "dataset.easy_epochs and dataset.easy_ones: need each other"
    if dataset.easy_ones is not None and not dataset.train_ones[0] <= dataset.easy_ones <= dataset.train_ones[-1]:
        yield f"dataset.easy_ones={dataset.easy_ones}: must lie within dataset.train_ones={dataset.train_ones}"
    for key in ("train_ones", "extrapolation_ones"):
        ones = getattr(dataset, key)
        if ones is None:
            continue
        if len(ones) != 2 or not 1 <= ones[0] <= ones[1] <= dataset.size:
            yield f"dataset.{key}={ones}: must be [lowest, highest] within 1 and dataset.size={dataset.size}"


def _text(config: ExperimentConfig) -> Iterator[str]:
    dataset = config.dataset
    if not isinstance(dataset, TextConfig):
        return
    if dataset.source is Source.local and not dataset.path:
        yield "dataset.path: dataset.source=local needs a file, a folder or a list of them"
    if dataset.evaluation_path is not None and dataset.source is not Source.local:
        yield f"dataset.evaluation_path={dataset.evaluation_path}: read only with dataset.source=local"
    if dataset.source is Source.hub and not dataset.hub:
        yield "dataset.hub: dataset.source=hub needs a list of {path, name, split} entries"
    for key in ("hub", "evaluation_hub", "test_hub"):
        yield from _hub_entries(f"dataset.{key}", getattr(dataset, key, []))


def _hub_entries(name: str, entries: list[dict[str, Any]]) -> Iterator[str]:
    for number, entry in enumerate(entries):
        for key in sorted(entry.keys() - set(_HUB_KEYS)):
            yield f"{name}[{number}].{key}: unknown key{nearest(key, _HUB_KEYS)}; known: {', '.join(_HUB_KEYS)}"
        if not entry.get("path"):
            yield f"{name}[{number}].path: missing, the data set's name on the hub"


def _stream(config: ExperimentConfig) -> Iterator[str]:
    dataset = config.dataset
    if not isinstance(dataset, StreamConfig):
        return
    if dataset.test_path is not None and dataset.source is not Source.local:
        yield f"dataset.test_path={dataset.test_path}: read only with dataset.source=local"
    for key in ("evaluation_hub", "test_hub"):
        if getattr(dataset, key) and dataset.source is not Source.hub:
            yield f"dataset.{key}: read only with dataset.source=hub"


def _tokenizer(config: ExperimentConfig) -> Iterator[str]:
    """What of a trained tokenizer is read depends on its kind."""
    tokenizer = config.tokenizer
    kind, is_stream = tokenizer.kind, isinstance(config.dataset, StreamConfig)
    if tokenizer.path is not None:
        return
    if kind is not TokenizerKind.unigram and not is_stream:
        yield f"tokenizer.kind={kind}: read only with streams of text, e.g. dataset=stream_python_docs"
    if tokenizer.symbols and kind is not TokenizerKind.unigram:
        yield f"tokenizer.symbols={tokenizer.symbols}: read only with tokenizer.kind=unigram"
    if kind is TokenizerKind.unigram and tokenizer.vocab_size is None:
        yield "tokenizer.vocab_size: tokenizer.kind=unigram needs it"
    if kind is TokenizerKind.byte and tokenizer.vocab_size is not None:
        yield f"tokenizer.vocab_size={tokenizer.vocab_size}: tokenizer.kind=byte has 256; set it to null"


def _corpus(config: ExperimentConfig) -> Iterator[str]:
    dataset = config.dataset
    if not isinstance(dataset, CorpusConfig):
        return
    shares = dataset.masking.mask_share + dataset.masking.random_share
    if shares > 1 + 1e-9:
        yield f"dataset.masking: mask_share + random_share = {shares:g}, must be at most 1"
    if dataset.streaming and dataset.source is Source.embedded:
        yield "dataset.streaming=true: the embedded corpus is not streamed"
    if dataset.streaming and config.trainer.max_steps == -1:
        yield "trainer.max_steps=-1: dataset.streaming=true has no known length, give a number of steps"


def _trainer(config: ExperimentConfig) -> Iterator[str]:
    trainer = config.trainer
    if trainer.eval_strategy == "steps" and trainer.eval_steps is None:
        yield "trainer.eval_steps: trainer.eval_strategy=steps needs it"
    if trainer.load_best_model_at_end:
        yield from _best_model(config)
    if trainer.early_stopping_patience is not None and not trainer.load_best_model_at_end:
        yield "trainer.early_stopping_patience: needs trainer.load_best_model_at_end=true"
    if trainer.early_stopping_threshold and trainer.early_stopping_patience is None:
        yield "trainer.early_stopping_threshold: read only with trainer.early_stopping_patience"
    yield from _plateau(config)
    if trainer.precision is Precision.fp16 and trainer.use_cpu:
        yield "trainer.precision=fp16: needs a GPU, but trainer.use_cpu=true; use fp32 or bf16"
    if trainer.fsdp and trainer.deepspeed:
        yield "trainer.fsdp and trainer.deepspeed: choose one"
    for name in ("deepspeed", "fsdp_config"):
        if not isinstance(value := getattr(trainer, name), str | dict | None):
            yield f"trainer.{name}={value}: must be a JSON file or a mapping"
    if trainer.dataloader_prefetch_factor is not None and config.runtime.num_workers == 0:
        yield "trainer.dataloader_prefetch_factor: needs runtime.num_workers of at least 1"


def _plateau(config: ExperimentConfig) -> Iterator[str]:
    trainer = config.trainer
    if trainer.schedule is not Schedule.plateau:
        if trainer.plateau_patience is not None:
            yield f"trainer.plateau_patience={trainer.plateau_patience}: read only with trainer.schedule=plateau"
        return
    if trainer.plateau_patience is None:
        yield "trainer.plateau_patience: trainer.schedule=plateau needs it"
    if trainer.eval_strategy == "no" or trainer.metric_for_best_model is None:
        yield "trainer.schedule=plateau: needs trainer.eval_strategy and trainer.metric_for_best_model"
    if trainer.warmup_steps:
        yield f"trainer.warmup_steps={trainer.warmup_steps}: trainer.schedule=plateau has no warm-up"


def _best_model(config: ExperimentConfig) -> Iterator[str]:
    trainer = config.trainer
    because = "because trainer.load_best_model_at_end=true"
    if trainer.eval_strategy == "no":
        yield f"trainer.eval_strategy=no: must be steps or epoch, {because}"
    elif trainer.save_strategy == "best":
        return
    elif trainer.save_strategy.value != trainer.eval_strategy.value:
        yield (
            f"trainer.save_strategy={trainer.save_strategy}: must equal trainer.eval_strategy={trainer.eval_strategy}, "
            f"{because}"
        )
    elif trainer.eval_strategy == "steps" and trainer.eval_steps and trainer.save_steps % trainer.eval_steps:
        yield (
            f"trainer.save_steps={trainer.save_steps}: must be a multiple of trainer.eval_steps={trainer.eval_steps}, "
            f"{because}"
        )


def _mode(config: ExperimentConfig) -> Iterator[str]:
    needs = {"resume": Mode.train, "checkpoint": Mode.evaluate, "run": Mode.report}
    for key, mode in needs.items():
        value = getattr(config, key)
        if value is not None and config.mode is not mode:
            hint = "; to start from its weights set model.pretrained" if key == "checkpoint" else ""
            yield f"{key}={value}: read only with mode={mode}, but mode={config.mode}{hint}"
    if config.mode is Mode.evaluate and config.checkpoint is None:
        yield "checkpoint: mode=evaluate needs it (a run directory, one of its checkpoints, `latest`, or a hub id)"
    if config.mode is Mode.report and config.run is None:
        yield "run: mode=report needs it (a run directory, or `latest`)"


def _names(config: ExperimentConfig) -> Iterator[str]:
    if not config.name or config.name in (".", "..") or any(mark in config.name for mark in "/\\"):
        yield f"name={config.name}: must be a plain folder name"
    if not config.optimise.startswith(METRIC_PREFIXES):
        yield f"optimise={config.optimise}: must start with one of {', '.join(METRIC_PREFIXES)}"
    kind, _, metric = config.optimise.partition("/")
    known = evaluation_metrics(config)
    if kind == "eval":
        yield from _evaluation_metric("optimise", config.optimise, metric, known)
    if best := config.trainer.metric_for_best_model:
        yield from _evaluation_metric("trainer.metric_for_best_model", best, best.removeprefix("eval_"), known)


def _extras(config: ExperimentConfig) -> Iterator[str]:
    sink = config.logger.name
    if sink is not Sink.none and importlib.util.find_spec(sink.value) is None:
        yield f"logger={sink}: the package is missing, install it with pip install {sink}"


def evaluation_metrics(config: ExperimentConfig) -> tuple[str, ...]:
    """Names of what an evaluation measures on its first set, the one that selects."""
    dataset = config.dataset
    if isinstance(dataset, StreamConfig):
        return LANGUAGE_METRICS
    if isinstance(dataset, CorpusConfig):
        return PRETRAINING_METRICS
    losses = ("loss", "task_loss", *_LOSS_PARTS.get(config.model.name, ()))
    metrics = dataset.metrics if isinstance(dataset, TableConfig) else ["accuracy"]
    return (*losses, "score", *map(metric_key, metrics))


def _evaluation_metric(key: str, value: str, metric: str, known: tuple[str, ...]) -> Iterator[str]:
    if metric not in known:
        yield f"{key}={value}: an evaluation has no such metric{nearest(metric, known)}; known: {', '.join(known)}"
