"""Which metrics a run can be asked to return, before it is run.

The names of an evaluation's own metrics, `eval/...`, are known beforehand. The others hold names of data sets and of
classes, which are not; what stands at their end is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from adadepth.analysis.measure.names import ADAPTATION, CLASS_SCALARS, LAYER_SCALARS, SPEEDUPS
from adadepth.config import ExperimentConfig, Mode, Task
from adadepth.errors import nearest
from adadepth.families.registry import family

_QUALITY = ("loss", "lm_loss", "perplexity", "perplexity_std", "word_perplexity", "bits_per_character")
_OTHERS = ("length", "difficulty", "loss")
# What a run logs, by kind: N is any number, CLASS the name of a class, LOSS of a part of the loss, OPERATION of what is
# searched, EVALUATION of an evaluation or a network. A set that does not select the model comes after the kind.
NAMES = {
    "train": (
        "epoch", "grad_norm", "learning_rate", "loss", "LOSS_loss", "peak_memory_gib", "runtime", "samples_per_second",
        "steps_per_second", "tokens_per_second",
    ),
    "halting": (
        "remainder", "ponder_cost", "entropy", "expected_steps", "posterior_entropy", "kl", "exit_step/mean",
        "exit_step/std", "calibration/tv", "calibration/ece", "probability/N", "cosine/N", "posterior/N",
        "layers/weight/N", "difficulty/N/mean", "difficulty/N/accuracy", "between/CLASS", "spearman_depth_loss",
        "spearman_depth_difficulty",
        *(f"spearman_{depth}_{other}" for depth in ("updates", "expected_steps") for other in _OTHERS),
        *ADAPTATION, *(f"layers/{key}" for key in LAYER_SCALARS),
        *(f"CLASS/{key}" for key in CLASS_SCALARS if key != "histogram"),
    ),
    "cost": (
        "executed_macs", "dense_macs", "adaptive_macs", "full_macs", "executed_over_dense", "executed_over_full",
        "adaptive_over_full", "layer_ratio", "added_parameters",
        *(name.removeprefix("cost/") for name in SPEEDUPS.values()),
    ),
    "search": (
        "mean_entropy", "expected_blocks", "temperature", "thirds/N/OPERATION", "block/N/OPERATION",
        "EVALUATION/tokens_per_second", "EVALUATION/runtime", *(f"EVALUATION/{key}" for key in _QUALITY),
    ),
    "budget": ("target", "measured", "multiplier"),
}  # fmt: skip
_OPEN = {"N": r"\d+", "CLASS": ".+", "LOSS": r"\w+", "OPERATION": r"\w+", "EVALUATION": ".+"}
_WITH_SETS = ("halting", "cost")
_COMMONEST = {"N": "1", "CLASS": "all", "LOSS": "task", "OPERATION": "attention", "EVALUATION": "soft"}


def check_optimised(config: ExperimentConfig) -> Iterator[str]:
    """`optimise` names what the run can log; what an evaluation measures is checked with the data."""
    name = config.optimise
    kind = name.partition("/")[0]
    if kind not in NAMES:
        return
    if not may_be_logged(name):
        known = [f"{kind}/{each}" for each in NAMES[kind]]
        hint = nearest(name, [_filled(each, _COMMONEST) for each in known])
        yield f"optimise={name}: no run has such a metric{hint}; known: {', '.join(known)}"
    elif (reason := _not_by(config, name, kind)) is not None:
        yield f"optimise={name}: {reason}"


def may_be_logged(name: str) -> bool:
    """Whether some run of some data set has a metric of this name."""
    kind, _, rest = name.partition("/")
    some_set = "(.+/)?" if kind in _WITH_SETS else ""
    return any(re.fullmatch(some_set + _filled(re.escape(each), _OPEN), rest) for each in NAMES[kind])


def _not_by(config: ExperimentConfig, name: str, kind: str) -> str | None:
    """Why a run with these settings has no metric of this kind."""
    if kind == "search" and family(config.model.name).search is None:
        return f"model={config.model.name} has no architectures to search"
    if config.task is Task.architecture_search and kind != "search":
        return "a search has only eval/... and search/..."
    if kind == "budget" and (config.budget.target is None or config.mode is not Mode.train):
        return "only a training with budget.target has it"
    if kind == "train" and config.mode is not Mode.train and name != "train/epoch":
        return "only a training has it"
    if kind in _WITH_SETS and name not in SPEEDUPS.values() and not config.trainer.halting_statistics:
        return "needs trainer.halting_statistics=true"
    return None


def _filled(name: str, values: dict[str, str]) -> str:
    return re.sub("[A-Z]+", lambda word: values[word[0]], name)
