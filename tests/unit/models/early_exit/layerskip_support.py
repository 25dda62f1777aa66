"""A small folder in the format of LayerSkip's checkpoints: a plain Llama."""

from __future__ import annotations

import json
from pathlib import Path

from transformers import LlamaConfig, LlamaForCausalLM

from tests.unit.data.tokenizers_support import tokenizer
from tests.unit.models.early_exit.early_exit_support import draw_weights

LAYERS, ROPE = 5, {"rope_type": "llama3", "rope_theta": 5e5, "factor": 32.0, "low_freq_factor": 1.0,
                   "high_freq_factor": 4.0, "original_max_position_embeddings": 16}  # fmt: skip


def write_layerskip(folder: Path) -> None:
    """Write a small Llama 3.2 with tied embeddings and its tokenizer."""
    words = tokenizer("roberta")
    config = LlamaConfig(
        vocab_size=len(words) + 3, hidden_size=32, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=48, max_position_embeddings=128, tie_word_embeddings=True,
        rope_parameters=ROPE, eos_token_id=words.eos_token_id, bos_token_id=words.bos_token_id,
    )  # fmt: skip
    llama = draw_weights(LlamaForCausalLM(config))
    llama.save_pretrained(folder)
    contradictory = {"do_sample": False, "temperature": 0.6, "top_p": 0.9, "eos_token_id": words.eos_token_id}
    (folder / "generation_config.json").write_text(json.dumps(contradictory))
    words.save_pretrained(folder)
