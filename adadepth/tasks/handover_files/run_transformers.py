"""Engine that runs a language model in this folder with transformers, for check.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, GenerationConfig


def load(folder: Path) -> Any:
    """Load the model of a folder.

    Raises:
        SystemExit: If transformers does not know its layout.
    """
    model_type = json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"]
    if model_type not in CONFIG_MAPPING:
        raise SystemExit(
            f"transformers does not know the layout {model_type}; serve the folder with an engine that does "
            "(README.md names some), and run: python check.py --url http://localhost:8000/v1"
        )
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", trust_remote_code=False).eval()
    ends, padding = model.generation_config.eos_token_id, model.generation_config.pad_token_id
    model.generation_config = GenerationConfig(eos_token_id=ends, pad_token_id=padding)  # without penalties
    return model


@torch.inference_mode()
def compute_logits(model: Any, token_ids: list[int]) -> list[list[float]]:
    """Return the logits at every position of an input, (T, vocabulary)."""
    logits: list[list[float]] = model(torch.tensor([token_ids])).logits[0].float().tolist()
    return logits


def generate(model: Any, token_ids: list[int], count: int) -> list[int]:
    """Return the greedy continuation of an input, at most `count` tokens."""
    ids = torch.tensor([token_ids])
    written = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False)
    continuation: list[int] = written[0, len(token_ids) :].tolist()
    return continuation
