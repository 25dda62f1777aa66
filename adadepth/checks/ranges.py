"""Ranges of single values."""

import math
from collections.abc import Callable, Iterator
from typing import Any

from adadepth.config import ExperimentConfig


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
    "model.readout_weight": _at_least(0),
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
    "budget.target": _POSITIVE,
    "budget.grow": _SHARE,
    "budget.grow_from": _at_least(1),
    "budget.hold": _SHARE,
    "budget.ramp": _SHARE,
    "budget.gain": _POSITIVE,
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
    **{f"dataset.{name}": _at_least(1) for name in ("stride", "max_question_length", "max_answer_length", "n_best")},
    "dataset.null_score_threshold": (math.isfinite, "a finite number"),
    "dataset.size": _at_least(1),
    "dataset.train_examples": _at_least(1),
    "dataset.walls": _DROPOUT,
    "dataset.field": _at_least(1),
    "dataset.nodes": _at_least(2),
    "dataset.colours": (lambda value: 2 <= value <= 8, "from 2 to 8"),
    "dataset.digits": _at_least(1),
    "dataset.nines": _DROPOUT,
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
    "halting.slope": _POSITIVE,
    "halting.threshold": _at_least(0),
    "features.batch_tokens": _at_least(1),
    "runtime.num_workers": _at_least(0),
    "runtime.threads": _at_least(1),
}  # fmt: skip


def check_ranges(config: ExperimentConfig) -> Iterator[str]:
    """Every value that has a range lies in it."""
    for key, (test, allowed) in _ALLOWED.items():
        value: Any = config
        for name in key.split("."):
            value = getattr(value, name, None)
        if value is not None and not test(value):
            yield f"{key}={value}: must be {allowed}"
