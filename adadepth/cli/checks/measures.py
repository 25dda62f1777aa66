"""Checks of the settings of metrics and prediction."""

from __future__ import annotations

import re
from collections.abc import Iterator

from adadepth.config import DatasetConfig, ExperimentConfig, Mode, Task
from adadepth.config.kinds import PREDICTED, PredictionSpec, get_kind, get_problem
from adadepth.errors import ConfigError, nearest
from adadepth.metrics.metric_names import ADAPTATION, CLASS_SCALARS, LAYER_SCALARS, SPEEDUPS
from adadepth.metrics.task_metrics import check_metrics
from adadepth.metrics.unit_costs import TIME, UNIT_MACS
from adadepth.models.registry import Family, families, family, join_alternatives, list_families_with_head

_QUALITY = (
    "loss", "lm_loss", "perplexity", "perplexity_std", "word_perplexity", "bits_per_character", "bits_per_byte",
)  # fmt: skip
_CORRELATED = ("length", "difficulty", "loss")
_SLOT_LOGS = ("halted", "exact_accuracy", "halting_steps")  # of `TrainingSlots`
# Metrics that a run logs, by prefix. N is any number, CLASS the name of a class, LOSS that of a part of the loss,
# OPERATION that of a searched operation, EVALUATION that of an evaluation or a network. The name of a set that does not
# select the model follows the prefix.
NAMES = {
    "train": (
        "epoch", "grad_norm", "learning_rate", "loss", "LOSS_loss", "peak_memory_gib", "runtime", "samples_per_second",
        "skipped_steps", "steps_per_second", "tokens_per_second", *_SLOT_LOGS,
    ),
    "halting": (
        "remainder", "ponder_cost", "entropy", "expected_steps", "posterior_entropy", "kl", "exit_step/mean",
        "exit_step/std", "calibration/tv", "calibration/ece", "probability/N", "cosine/N", "posterior/N",
        "layers/weight/N", "difficulty/N/mean", "difficulty/N/accuracy", "between/CLASS", "spearman_depth_loss",
        "spearman_depth_difficulty",
        *(f"spearman_{depth}_{other}" for depth in ("updates", "expected_steps") for other in _CORRELATED),
        *ADAPTATION, *(f"layers/{key}" for key in LAYER_SCALARS),
        *(f"CLASS/{key}" for key in CLASS_SCALARS if key != "histogram"),
    ),
    "cost": (
        "executed_macs", "dense_macs", "adaptive_macs", "full_macs", "executed_over_dense", "executed_over_full",
        "adaptive_over_full", "layer_ratio", "added_parameters",
        *(name.removeprefix("cost/") for name in (*UNIT_MACS, TIME)),
        *(name.removeprefix("cost/") for name in SPEEDUPS.values()),
    ),
    "search": (
        "mean_entropy", "expected_blocks", "temperature", "thirds/N/OPERATION", "block/N/OPERATION",
        "EVALUATION/tokens_per_second", "EVALUATION/runtime", *(f"EVALUATION/{key}" for key in _QUALITY),
    ),
    "budget": ("target", "measured", "multiplier"),
}  # fmt: skip
_PATTERNS = {"N": r"\d+", "CLASS": ".+", "LOSS": r"\w+", "OPERATION": r"\w+", "EVALUATION": ".+"}
_EXAMPLES = {"N": "1", "CLASS": "all", "LOSS": "task", "OPERATION": "attention", "EVALUATION": "soft"}
_WITH_SETS = ("halting", "cost")


def check_optimised(config: ExperimentConfig) -> Iterator[str]:
    """Check that the run will log the metric that the setting `optimise` names.

    Metrics of an evaluation are checked together with the data.
    """
    name = config.optimise
    prefix = name.partition("/")[0]
    if prefix not in NAMES:
        return
    if not may_be_logged(name):
        metrics = [f"{prefix}/{metric}" for metric in NAMES[prefix]]
        hint = nearest(name, [_fill_name(metric, _EXAMPLES) for metric in metrics])
        yield f"optimise={name}: unknown metric{hint}; known: {', '.join(metrics)}"
    elif (reason := _find_reason_against(config, name, prefix)) is not None:
        yield f"optimise={name}: {reason}"


def may_be_logged(name: str) -> bool:
    """Return whether any kind of run could log a metric of this name."""
    prefix, _, rest = name.partition("/")
    some_set = "(.+/)?" if prefix in _WITH_SETS else ""
    return any(re.fullmatch(some_set + _fill_name(re.escape(metric), _PATTERNS), rest) for metric in NAMES[prefix])


def _find_reason_against(config: ExperimentConfig, name: str, prefix: str) -> str | None:
    """Return why a run with these settings does not log a metric, or None if it does."""
    if prefix == "search" and family(config.model.name).search is None:
        return f"model={config.model.name} has no architectures to search"
    if config.task is Task.architecture_search and prefix != "search":
        return "an architecture search has only eval/... and search/..."
    if prefix == "budget" and (config.budget.target is None or config.mode is not Mode.train):
        return "only a training run with budget.target has it"
    if prefix == "train" and config.mode is not Mode.train and name != "train/epoch":
        return "only a training run has it"
    if name.removeprefix("train/") in _SLOT_LOGS and not family(config.model.name).trains_in_slots:
        return f"model={config.model.name} is not trained on examples that leave their slots when they halt"
    if prefix in _WITH_SETS and name not in (TIME, *SPEEDUPS.values()) and not config.trainer.halting_statistics:
        return "needs trainer.halting_statistics=true"
    return None


def _fill_name(name: str, values: dict[str, str]) -> str:
    return re.sub("[A-Z]+", lambda word: values[word[0]], name)


def check_prediction(config: ExperimentConfig) -> Iterator[str]:
    """Check that the model family can predict the labels of the data set, and check related settings."""
    dataset, model = config.dataset, family(config.model.name)
    problem = get_problem(dataset)
    if problem is None:
        return
    predicted = PREDICTED[problem]
    if config.task is Task.finetune:
        yield from _check_tagger(model, dataset) if problem == "tagging" else _check_head(model, dataset, predicted)
    if config.exit_rules and not predicted.studies_exits:
        yield (
            f"exit_rules={config.exit_rules}: dataset={dataset.name} {predicted.what}; only used with classes, values "
            "and tags"
        )
    if hasattr(dataset, "metrics"):
        try:
            check_metrics(dataset.metrics, problem)
        except ConfigError as error:
            yield str(error)


def _check_head(model: Family, dataset: DatasetConfig, predicted: PredictionSpec) -> Iterator[str]:
    if predicted.head in model.heads:
        return
    if predicted.head == "classification":
        yield f"model={model.name}: task=finetune has no classifier of this family"
    else:
        able = join_alternatives(list_families_with_head(predicted.head))
        yield f"model={model.name}: dataset={dataset.name} {predicted.what}; use {able}"


def _check_tagger(model: Family, dataset: DatasetConfig) -> Iterator[str]:
    """Check that the model family can classify tokens, and that it can read the generated data."""
    able = [name for name in list_families_with_head("tagging") if families()[name].own_symbols]
    if get_kind(dataset).own_symbols and model.name not in able:
        yield f"model={model.name}: dataset={dataset.name} labels symbols of its own; use {join_alternatives(able)}"
    elif "tagging" not in model.heads:
        taggers = join_alternatives(list_families_with_head("tagging"))
        yield f"model={model.name}: dataset={dataset.name} tags words; use {taggers}"
