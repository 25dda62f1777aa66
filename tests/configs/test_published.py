"""Published settings of the originals against those of the shipped configurations.

The figures are read from papers and repositories, by hand; the docs pages of the families give the reasons
where a configuration differs on purpose, and those keys are not listed here.
"""

from __future__ import annotations

from typing import Any

import pytest
from omegaconf import OmegaConf

from tests.configs.support import compose_config, configured
from tests.marks_support import keep_one_quick

ROBERTA, BART = "FacebookAI/roberta-large", "facebook/bart-large-cnn"

# --- ACT-ALBERT: Simoulin & Crabbé 2021, table of models, pretraining and fine-tuning notebooks

_ACT_GEOMETRY = {
    "model.embedding_size": 128, "model.hidden_size": 768, "model.num_attention_heads": 12,
    "model.intermediate_size": 3072, "model.max_position_embeddings": 512, "model.hidden_act": "gelu_new",
    "model.act_epsilon": 0.01, "model.penalty_reduction": "sum_tokens", "model.cap_remainder": "reference",
    "model.state_rule": "single", "model.halting_input": "block_output", "model.halt_bias_init": 0.0,
    "model.hidden_dropout_prob": 0.0, "model.attention_probs_dropout_prob": 0.0,
}  # fmt: skip
_ACT_OPTIMISER = {
    "trainer.optimizer": "lamb", "trainer.schedule": "reference_linear", "trainer.adam_beta1": 0.9,
    "trainer.adam_beta2": 0.999, "trainer.adam_epsilon": 1e-6, "trainer.weight_decay": 0.01,
    "trainer.max_grad_norm": 1.0, "dataset.masking.max_predictions": 20, "dataset.short_sequence_probability": 0.1,
    "dataset.masking.probability": 0.15,
}  # fmt: skip
_ACT_DEPTHS = {"act_tiny": (6, 1e-3), "act_small": (12, 5e-4), "act_base": (24, 2.5e-4)}
_ACT_PHASES = {
    (): {
        "dataset.sequence_length": 128, "trainer.max_steps": 112_500, "trainer.learning_rate": 1.76e-3,
        "trainer.warmup_steps": 3125, "trainer.per_device_train_batch_size": 64,
        "trainer.gradient_accumulation_steps": 64,
    },
    ("trainer=albert_phase2",): {
        "dataset.sequence_length": 512, "trainer.max_steps": 12_500, "trainer.learning_rate": 2.75e-4,
        "trainer.warmup_steps": 312, "trainer.per_device_train_batch_size": 128,
        "trainer.gradient_accumulation_steps": 32,
    },
}  # fmt: skip
# Question answering and multiple choice: Lan et al. 2020, table 14, and the windows of its code.
_ALBERT = {
    "trainer.per_device_train_batch_size": 16, "trainer.optimizer": "adamw", "trainer.weight_decay": 0.01,
    "trainer.adam_epsilon": 1e-6,
}  # fmt: skip
_ACT = {
    **{(name, f"preset=paper/{name}", *phase): _ACT_GEOMETRY | _ACT_OPTIMISER | recipe | {
        "model.num_hidden_layers": layers, "model.act_penalty": penalty, "budget.target": None,
        "dataset.name": "wikipedia_bookcorpus", "dataset.sentence_order": True,
        "tokenizer.path": "albert/albert-base-v2", "trainer.time_budget_minutes": None,
    } for name, (layers, penalty) in _ACT_DEPTHS.items() for phase, recipe in _ACT_PHASES.items()},
    ("act_squad",): _ALBERT | {
        "dataset.sequence_length": 384, "trainer.learning_rate": 5e-5, "trainer.gradient_accumulation_steps": 3,
        "trainer.max_steps": 3649, "trainer.warmup_steps": 365, "dataset.stride": 128,
        "dataset.max_question_length": 64, "dataset.max_answer_length": 30, "dataset.n_best": 20,
    },
    ("act_squad", "dataset=squad_v2", "trainer=albert_squad_v2"): _ALBERT | {
        "dataset.sequence_length": 512, "trainer.learning_rate": 3e-5, "trainer.gradient_accumulation_steps": 3,
        "trainer.max_steps": 8144, "trainer.warmup_steps": 814, "dataset.unanswerable": True,
    },
    ("act_swag",): _ALBERT | {
        "dataset.sequence_length": 128, "trainer.learning_rate": 2e-5, "trainer.gradient_accumulation_steps": 2,
        "trainer.max_steps": 12_000, "trainer.warmup_steps": 1000,
    },
    ("act_cola",): {
        "trainer.optimizer": "lamb", "trainer.num_train_epochs": 4, "trainer.warmup_steps": 200,
        "dataset.sequence_length": 128, "model.classifier_dropout_prob": 0.1,
    },
}  # fmt: skip

# --- PonderALBERT: Banino et al. 2021; PALBERT, PABEE and PonderNet over ALBERT: Balagansky & Gavrilov 2022, README

_PALBERT = {
    "trainer.optimizer": "adam", "trainer.schedule": "constant", "trainer.warmup_steps": 0,
    "trainer.learning_rate": 1e-5, "trainer.weight_decay": 0, "trainer.adam_beta1": 0.9, "trainer.adam_beta2": 0.999,
    "trainer.adam_epsilon": 1e-8, "trainer.max_grad_norm": 0, "trainer.num_train_epochs": 25,
    "trainer.per_device_train_batch_size": 32, "trainer.early_stopping_patience": 5,
    "trainer.metric_for_best_model": "eval_score", "dataset.sequence_length": 128,
    "model.pretrained": "albert/albert-base-v2", "model.hidden_dropout_prob": 0.0,
    "model.attention_probs_dropout_prob": 0.0, "model.classifier_dropout_prob": 0.1,
}  # fmt: skip
_PALBERT_HEADS = _PALBERT | {
    "model.readout": "pooler", "model.halting_head": "linear_cat", "model.halting_head_layers": 3,
    "model.kl_penalty_factor": 0.5, "model.kl_direction": "prior_posterior", "model.prior": "geometric",
    "model.exit_rule": "quantile:0.5",
}  # fmt: skip
_PONDER = {
    ("ponder_rte", "preset=paper/ponder_rte"): _PALBERT_HEADS | {"dataset.metrics": ["accuracy"]},
    ("ponder_tiny", "preset=paper/ponder_tiny"): _PALBERT_HEADS | {"dataset.metrics": ["matthews"]},
    ("ponder_rte", "model=pondernet_pretrained", "trainer=palbert"): _PALBERT | {
        "model.readout": "pooler", "model.halting_head": "linear", "model.halting_head_layers": 1,
        "model.kl_penalty_factor": 0.5, "model.kl_direction": "prior_posterior", "model.exit_rule": "sample",
    },
    ("ponder_rte", "model=pabee_pretrained", "trainer=palbert"): _PALBERT | {
        "model.exit_rule": "patience:6", "model.exit_weights": "linear",
    },
    ("ponder_rte",): {
        "model.readout": "tokens", "model.halting_head": "mlp", "model.head_size": 128, "model.prior": "geometric",
        "model.kl_penalty_factor": 0.01, "model.kl_direction": "posterior_prior",
    },
    ("ponder_parity",): {
        "dataset.size": 96, "dataset.train_ones": [1, 48],
        "dataset.extrapolation_ones": [49, 96],
    },
    ("ponder_parity", "preset=paper/ponder_parity"): {
        "dataset.size": 96, "dataset.train_ones": [1, 48], "dataset.extrapolation_ones": [49, 96],
        "dataset.easy_epochs": 0, "model.hidden_size": 128, "model.num_steps": 20, "model.cell": "tanh",
        "model.prior": "geometric", "model.target_halt_probability": 0.1, "model.kl_penalty_factor": 0.01,
        "model.kl_direction": "posterior_prior", "model.exit_rule": "sample", "trainer.optimizer": "adam",
        "trainer.learning_rate": 3e-4, "trainer.schedule": "constant", "trainer.warmup_steps": 0,
        "trainer.weight_decay": 0, "trainer.max_grad_norm": 0, "trainer.per_device_train_batch_size": 128,
    },
}  # fmt: skip

# --- Adalayers: Dremov 2024, configs/ of the repository. Its entropy is divided by the layers that it mixes.

_ADALAYERS = {
    "model.base_model": ROBERTA, "model.project_dim": 64, "model.attention_heads_num": 16,
    "model.attention_dropout_prob": 0.3, "model.lambda_distribution_entropy": 0.0, "model.alpha_distribution": 64,
    "model.distribution_cutoff": 0.0, "model.add_pos_embeddings": False, "model.classes_weights": None,
    "model.freeze_base_model": True, "dataset.sequence_length": 512, "trainer.optimizer": "adam",
    "trainer.learning_rate": 1e-4, "trainer.weight_decay": 0, "trainer.decay_vectors": True,
    "trainer.adam_beta1": 0.9, "trainer.adam_beta2": 0.999, "trainer.adam_epsilon": 1e-8, "trainer.max_grad_norm": 0,
    "trainer.schedule": "plateau", "trainer.warmup_steps": 0, "trainer.plateau_patience": 5,
    "trainer.plateau_min_lr": 1e-6, "trainer.early_stopping_patience": 10, "trainer.early_stopping_threshold": 0,
    "trainer.num_train_epochs": 32,
}  # fmt: skip
_BART = {"model.base_model": BART, "dataset.sequence_length": 1024}
_HELD_OUT = {"dataset.held_out": 0.1, "dataset.evaluation_splits": ["held_out", "validation"]}
_IMDB = _ADALAYERS | {
    "model.alpha_distribution": 70, "model.distribution_cutoff": 0.005, "trainer.weight_decay": 1e-3,
    "trainer.per_device_train_batch_size": 400, "trainer.num_train_epochs": 128,
    "trainer.metric_for_best_model": "eval_f1_macro", "dataset.held_out": 0.1,
    "dataset.evaluation_splits": ["held_out", "test"],
}  # fmt: skip
_COLA = _ADALAYERS | _HELD_OUT | {
    "model.attention_heads_num": 8, "model.distribution_cutoff": 0.01, "model.add_pos_embeddings": True,
    "trainer.per_device_train_batch_size": 600, "trainer.num_train_epochs": 256, "trainer.plateau_patience": 25,
    "trainer.early_stopping_patience": 30, "trainer.metric_for_best_model": "eval_f1_macro",
}  # fmt: skip
_CONLL = _ADALAYERS | {
    "model.project_dim": 128, "model.attention_heads_num": 8, "model.attention_dropout_prob": 0.2,
    "model.attention_layers_num": 1, "model.dim_feedforward": 2048, "model.alpha_distribution": 128,
    "model.lambda_distribution_entropy": 1e-3 / 24, "model.distribution_cutoff": 0.01,
    "model.add_pos_embeddings": True, "model.focal_loss_enabled": False,
    "model.classes_weights":
        [0.0292, 0.12183, 0.11771, 0.12196, 0.11923, 0.1215697, 0.121895, 0.123348, 0.1232325],
    "dataset.labelled_pieces": "all", "dataset.evaluation_splits": ["validation", "test"],
    "trainer.weight_decay": 1e-3, "trainer.per_device_train_batch_size": 356, "trainer.num_train_epochs": 256,
    "trainer.plateau_patience": 16, "trainer.early_stopping_patience": 40, "trainer.early_stopping_threshold": 1e-3,
}  # fmt: skip
_ADALAYERS_ROOTS = {
    ("adalayers_imdb",): _IMDB,
    ("adalayers_imdb_bart",): _IMDB | _BART | {
        "model.attention_dropout_prob": 0.005, "trainer.per_device_train_batch_size": 196,
    },
    ("adalayers_imdb_single_pick",): _IMDB | {"model.pick_one_layer_only": -1},
    ("adalayers_cola",): _COLA,
    ("adalayers_tiny", "preset=paper/adalayers_tiny"): _COLA,
    ("adalayers_cola_bart",): _COLA | _BART | {
        "model.attention_dropout_prob": 0.1, "trainer.per_device_train_batch_size": 900,
        "trainer.plateau_patience": 16, "trainer.early_stopping_patience": 32,
    },
    ("adalayers_cola_single_pick",): _COLA | {
        "model.pick_one_layer_only": -1, "model.project_dim": 128, "model.attention_dropout_prob": 0.1,
        "trainer.plateau_patience": 32, "trainer.early_stopping_patience": 64,
    },
    ("adalayers_conll",): _CONLL,
    ("adalayers_conll_bart",): _CONLL | _BART | {
        "model.lambda_distribution_entropy": 1e-3 / 13, "model.classes_weights": None,
    },
    ("adalayers_conll_single_pick",): _CONLL | {"model.pick_one_layer_only": -1},
    ("adalayers_rte",): _ADALAYERS | _HELD_OUT | {
        "model.attention_heads_num": 8, "model.alpha_distribution": 256,
        "model.lambda_distribution_entropy": 1e-3 / 24, "trainer.per_device_train_batch_size": 256,
        "trainer.num_train_epochs": 128, "trainer.plateau_patience": 10,
        "trainer.metric_for_best_model": "eval_score",
    },
    ("adalayers_cola", "model=adalayers_bert_base"): {
        "model.base_model": "google-bert/bert-base-cased", "model.project_dim": 128,
        "model.lambda_distribution_entropy": 0.1 / 13,
    },
}  # fmt: skip

# --- PAR-XL: the search of Mandava et al. 2020, in NVIDIA's recipe for Transformer-XL base (192 tokens and as many
# remembered, 256 segments an update; evaluated with a memory of 640), and base_model.sh and train.py of the original
# implementation, at its own choices

_PAR_SIZE = {
    "model.hidden_size": 512, "model.num_hidden_layers": 32, "model.num_attention_heads": 8,
    "model.intermediate_size": 2048, "model.memory_length": 192, "dataset.sequence_length": 192,
    "dataset.evaluation_length": 64, "context.memory_length": 640, "context.clamp_length": 400,
    "context.same_length": True, "tokenizer.kind": "word", "tokenizer.vocab_size": None, "tokenizer.lowercase": False,
    "trainer.optimizer": "lamb", "trainer.learning_rate": 1e-2, "trainer.schedule": "cosine",
    "trainer.warmup_steps": 1000, "trainer.max_steps": 40_000,
}  # fmt: skip
_PAR_SEARCH = _PAR_SIZE | {
    "task": "architecture_search", "search.method": "two_phase", "search.weights_only": 10_000,
    "search.architecture_share": 0.2, "search.gate_learning_rate": 1e-2, "search.gate_weight_decay": 5e-4,
    "search.latency_weight": 0, "search.path": "soft", "search.paper_ratio": 5,
}  # fmt: skip
_PAR = {
    ("par_base",): _PAR_SEARCH,
    ("par_tiny", "preset=paper/par_tiny"): _PAR_SEARCH,
    ("par_network", "preset=paper/par_network"): _PAR_SIZE | {
        "task": "language_model", "model.architecture": "sfff" * 6 + "f" * 8,
    },
    ("par_wikitext2", "preset=seed"): {
        "model.hidden_size": 128, "model.num_hidden_layers": 6, "model.num_attention_heads": 4,
        "model.intermediate_size": 512, "model.memory_length": 16, "model.cutoffs": [250, 2500],
        "model.proj_factor": 4, "model.hidden_dropout_prob": 0.1, "model.output_dropout_prob": 0,
        "model.attention_scale": "linear", "model.attention_out_act": "relu", "model.share_position_bias": False,
        "model.projection_bias": True, "model.softmax_bias": True, "model.layer_norm_eps": 1e-3,
        "model.initializer": "glorot", "search.gate_learning_rate": None, "search.seed_evaluation": True,
        "search.method": "joint", "search.path": "soft", "search.straight_through": False, "search.tau_start": 1.0,
        "search.tau_end": 0.1, "dataset.sequence_length": 32, "dataset.append_eos": False, "tokenizer.kind": "unigram",
        "tokenizer.vocab_size": 12_000, "tokenizer.lowercase": True, "tokenizer.symbols": ["@-@"],
        "trainer.learning_rate": 1e-4, "trainer.warmup_steps": 4000, "trainer.schedule": "cosine",
        "trainer.adam_epsilon": 1e-7, "trainer.weight_decay": 0, "trainer.max_grad_norm": 0,
        "trainer.per_device_train_batch_size": 32, "trainer.max_steps": 56_500,
    },
}  # fmt: skip

# --- Tiny recursive models: Jolicoeur-Martineau 2025, the README's commands

_TRM = {
    "trainer.optimizer": "adam_atan2", "trainer.learning_rate": 1e-4, "trainer.weight_decay": 1.0,
    "trainer.decay_vectors": True, "trainer.adam_beta1": 0.9, "trainer.adam_beta2": 0.95, "trainer.max_grad_norm": 0,
    "trainer.schedule": "constant", "trainer.warmup_steps": 2000, "trainer.ema_decay": 0.999,
    "trainer.per_device_train_batch_size": 768, "trainer.max_steps": 65_104, "model.hidden_size": 512,
    "model.num_layers": 2, "model.cycles": 3, "model.num_steps": 16, "model.exploration": 0.1,
    "model.answer_loss": "stablemax", "model.prefix_length": 16,
}  # fmt: skip
_TRM_ROOTS = {
    ("trm_sudoku_extreme",): _TRM | {"model.mixing": "positions", "model.reasoning_updates": 6},
    ("trm_tiny", "preset=paper/trm_tiny"): _TRM
    | {
        "model.mixing": "positions",
        "model.reasoning_updates": 6,
        "model.exit_rule": "fixed:16",
        "dataset.max_train_examples": 1000,
        "dataset.symmetries": "sudoku",
        "optimise": "eval/exact_accuracy",
    },
    ("trm_maze_hard",): _TRM | {"model.mixing": "attention", "model.reasoning_updates": 4},
}

PUBLISHED: dict[tuple[str, ...], dict[str, Any]] = _ACT | _PONDER | _ADALAYERS_ROOTS | _PAR | _TRM_ROOTS


@pytest.mark.parametrize("experiment", keep_one_quick(4, ((key,) for key in PUBLISHED)))
def test_a_shipped_configuration_has_the_published_values(experiment: tuple[str, ...]) -> None:
    config = OmegaConf.structured(configured(*experiment))
    values = {key: OmegaConf.select(config, key, throw_on_missing=True) for key in PUBLISHED[experiment]}
    for key, published in PUBLISHED[experiment].items():
        expected = pytest.approx(published, rel=0.05) if key.endswith("entropy") else published
        assert values[key] == expected, key


def test_the_grid_is_the_published_one() -> None:
    sweeper = compose_config("act_cola", "preset=paper/act_cola").hydra.sweeper
    assert sweeper.params == {"trainer.learning_rate": "5e-5,3e-5,2e-5", "trainer.per_device_train_batch_size": "16,32"}
    assert sweeper.from_epoch == 2
    assert configured("act_cola", "preset=paper/act_cola").seeds == 5
    large = {name for name, overrides in sweeper.of_dataset.items() if "seeds=1" in overrides}
    assert large == {"mnli", "qnli", "qqp"}
    metrics = {name: overrides[-1] for name, overrides in sweeper.of_dataset.items() if name not in ("mnli", "qnli")}
    accuracy, pearson = "optimise=eval/accuracy", "optimise=eval/pearson"
    assert metrics == {"qqp": accuracy, "mrpc": accuracy, "stsb": pearson}
