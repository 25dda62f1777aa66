"""Settings of the stored runs: every family, at a size that learns nothing."""

from __future__ import annotations

import json
from pathlib import Path

# Adam divides by the root of the second moment: without a large epsilon a gradient that is nothing but rounding,
# that of attention's key biases, moves its weight as far as any other, and no two processors end with the same weights.
SMALL = (
    "seed=3", "dataset.cache_dir=cache", "trainer.disable_tqdm=true", "trainer.precision=fp32", "trainer.use_cpu=true",
    "trainer.max_steps=6", "trainer.eval_steps=2", "trainer.save_steps=2", "trainer.logging_steps=1",
    "trainer.adam_epsilon=1e-3", "trainer.per_device_train_batch_size=4", "trainer.per_device_eval_batch_size=4",
    "trainer.learning_rate=1e-2", "trainer.time_budget_minutes=null", "trainer.eval_strategy=steps",
    "trainer.save_total_limit=2",
)  # fmt: skip
BLOCK = (
    "model.embedding_size=8", "model.hidden_size=16", "model.num_hidden_layers=4", "model.num_attention_heads=2",
    "model.intermediate_size=16", "model.hidden_dropout_prob=0.1", "model.initializer_range=0.3",
)  # fmt: skip
EXAMPLES = ("dataset.max_evaluation_examples=24",)
# A later checkpoint is complete only together with the best one before it: the first evaluation comes after the stop.
SPARSE = (*SMALL, "trainer.eval_steps=4", "trainer.save_steps=4")
DECODER = (
    "model.hidden_size=8", "model.num_attention_heads=2", "model.intermediate_size=8", "model.initializer_range=0.3",
)  # fmt: skip
BLOCKS_OF_TEXT = (
    "dataset=causal_text", "dataset.path=text.txt", "dataset.document_separator=line", "dataset.sequence_length=16",
    "dataset.evaluation_fraction=0.1", "tokenizer.vocab_size=48",
)  # fmt: skip
POINTERS = (*EXAMPLES, "dataset.train_examples=48", "dataset.nodes=16", "dataset.sequence_length=16")
PARITY = (*BLOCK, *EXAMPLES, "dataset=parity", "dataset.train_examples=48", "model.max_position_embeddings=32")

# Name -> the shipped configuration and its overrides. Every run was stopped in its third update.
FIRST_RUNS: dict[str, tuple[str, ...]] = {
    "act_pretraining": (
        "act_tiny", *SMALL, *BLOCK, *EXAMPLES, "dataset=text", "dataset.path=text.txt",
        "dataset.document_separator=line", "dataset.sequence_length=32", "dataset.evaluation_fraction=0.2",
        "tokenizer.vocab_size=48", "model.max_position_embeddings=32", "model.halt_bias_init=0",
    ),
    "act_budget": (
        "act_hops", *SMALL, *BLOCK, *EXAMPLES, "dataset.train_examples=48", "model.recall=true",
        "model.halt_bias_init=0", "budget.target=2", "budget.grow=0.3",
        "budget.grow_from=2", "budget.hold=0.2", "budget.ramp=0.5",
    ),
    "ponder_albert": ("ponder_tiny", *SMALL, *PARITY, "model.head_size=8"),
    "ponder_rnn": (
        "ponder_parity", *SMALL, *EXAMPLES, "dataset.size=16", "dataset.train_ones=[1,8]",
        "dataset.extrapolation_ones=[9,16]", "dataset.train_examples=48", "dataset.easy_epochs=1",
        "dataset.easy_ones=2", "model.hidden_size=16",
    ),
    "multi_exit_albert": ("ponder_tiny", *SMALL, "model=pabee_mini", *PARITY, "model.exit_rule=patience:1"),
    "albert": ("ponder_tiny", *SMALL, "model=albert_mini", *PARITY),
    "adalayers": (
        "adalayers", *SMALL, *EXAMPLES, "dataset=table", "dataset.path=table", "dataset.sequence_length=16",
        "model.base_model=base", "model.classes_weights=null", "model.project_dim=8", "model.attention_heads_num=2",
        "model.dim_feedforward=16", "model.distribution_cutoff=0.2", "model.cutoff_warmup_steps=3",
        "trainer.optimizer=adamw", "trainer.decay_vectors=false", "trainer.max_grad_norm=1",
    ),
    "par_search": (
        "par_tiny", *SMALL, "dataset=stream_text", "dataset.path=text.txt", "dataset.evaluation_fraction=0.2",
        "dataset.sequence_length=8", "tokenizer=words", "model.cutoffs=[8]", "model.num_hidden_layers=3",
        "model.hidden_size=16", "model.num_attention_heads=2", "model.intermediate_size=16", "model.memory_length=8",
        "model.proj_factor=2", "search.method=two_phase", "search.weights_only=1", "search.sampled_paths=2",
        "search.timing_repeats=2", "search.shapes=[[8,8,2]]", "search.baselines=[alternating]",
    ),
}  # fmt: skip

# The families and modes of training that the first runs do not have.
LATER_RUNS: dict[str, tuple[str, ...]] = {
    "looped": (
        "loop_tiny", *SPARSE, *BLOCKS_OF_TEXT, *DECODER, "model.core=1", "model.num_loops=3", "model.injection=linear",
        "model.gate=true", "model.objective=gate", "model.exit_rule=quantile:0.5",
    ),
    "looped_pointers": (
        "loop_hops", *SPARSE, *POINTERS, *DECODER, "model.num_loops=3", "model.exit_rule=margin:0.3",
    ),
    "looped_two_states": (
        "loop_tiny", *SPARSE, "model=hrm_text_1b", *BLOCKS_OF_TEXT, *DECODER, "model.vocab_size=null", "model.core=1",
        "model.low_layers=1", "model.low_cycles=2", "model.head_dim=4", "model.embedding_scale=2",
        "model.exit_rule=margin:0.1",
    ),
    "looped_chat": (
        "loop_retrofit", *SPARSE, "dataset=conversations", "dataset.path=chat.jsonl", "dataset.sequence_length=32",
        "dataset.evaluation_fraction=0.2", "model.pretrained=decoder", "tokenizer.path=decoder", "model.prelude=1",
        "model.core=1", "model.coda=1", "model.num_loops=2", "model.loop_lora_rank=1", "model.exit_rule=margin:0.1",
        "trainer.lora.rank=1",
    ),
    "early_exit": (
        "exit_tiny", *SPARSE, *BLOCKS_OF_TEXT, *DECODER, "model.num_hidden_layers=3", "model.exit_layers=[1,2]",
        "model.exit_heads=norm", "model.exit_gate=true", "model.exit_rule=margin:0.1",
    ),
    "routed": (
        "mor_tiny", *SPARSE, *BLOCKS_OF_TEXT, *DECODER, "model.num_hidden_layers=3", "model.recursions=2",
    ),
    "trm": (
        "trm_tiny", *SPARSE, *EXAMPLES, "dataset.size=4", "dataset.train_examples=48", "model.hidden_size=16",
        "model.num_attention_heads=2", "model.intermediate_size=16", "model.mixing_size=16", "model.num_steps=3",
        "model.exit_rule=margin:0.01", "trainer.ema_decay=0.5",
    ),
}  # fmt: skip
RUNS = FIRST_RUNS | LATER_RUNS


BEFORE = Path(__file__).resolve().parent


def list_former_names() -> set[str]:
    """Return the metrics that every family logged before their names were changed to safe ones."""
    lines = [
        json.loads(line)
        for name in FIRST_RUNS
        for line in (BEFORE / name / "stopped" / "metrics.jsonl").read_text().splitlines()
    ]
    evaluated = [json.loads((BEFORE / name / "evaluated.json").read_text()) for name in FIRST_RUNS]
    return {name for metrics in (*lines, *evaluated) for name in metrics}


def list_evaluation_overrides(name: str) -> tuple[str, ...]:
    """Return the settings of a run without those of adapters, which only training accepts."""
    return tuple(override for override in RUNS[name] if not override.startswith("trainer.lora."))
