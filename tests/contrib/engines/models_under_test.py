"""Small models of every family that other engines run, with rules by which their texts exit at different steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor

import adadepth
from tests.ecosystem.families_under_test import PAR_XL
from tests.models_support import MOVING, make_small_act, make_small_multi_exit, make_small_ponder

_SIZES = {name: MOVING[name] for name in ("vocab_size", "hidden_size", "num_attention_heads", "intermediate_size")}
_FEW = {"num_hidden_layers": 3}


def build_early_exit(head: str, base: str = "llama", **changes: Any) -> Any:
    """Return a tiny network with an exit after every layer."""
    torch.manual_seed(0)
    config = adadepth.EarlyExitConfig(
        base=base, **_SIZES, **_FEW, exit_heads="own", pad_token_id=0, initializer_range=0.3, **changes
    )
    return getattr(adadepth, head)(config).eval()


def build_looped(head: str, **changes: Any) -> Any:
    """Return a tiny looped model with two loops."""
    torch.manual_seed(0)
    return getattr(adadepth, head)(adadepth.LoopedConfig(**_SIZES, core=1, **{"num_loops": 2, **changes})).eval()


def build_trm(rule: str) -> Any:
    """Return a tiny recursive model whose puzzles exit at different steps."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 32, "cells": 9, "prefix_length": 1}
    config = adadepth.TrmConfig(
        vocab_size=12, **sizes, cycles=1, reasoning_updates=1, num_steps=3, exit_rule=rule, puzzle_kinds=2
    )
    model = adadepth.TrmForPuzzles(config).eval()
    with torch.no_grad():
        model.q_head.weight.normal_()
        model.q_head.bias.zero_()
    return model


def build_adalayers(head: str, reads_last: bool = True) -> Any:
    """Return a tiny BERT of which two states have weight: the last ones, or the first ones."""
    torch.manual_seed(0)
    sizes = {name: size for name, size in MOVING.items() if name != "embedding_size"} | _FEW
    settings = {"project_dim": 16, "attention_heads_num": 2, "dim_feedforward": 16, "topk_distribution": 2}
    base = transformers.BertConfig(**sizes)
    model = getattr(adadepth, head)(adadepth.AdaLayersConfig(base_config=base, base_saved=True, **settings)).eval()
    with torch.no_grad():
        scores = torch.linspace(0.0, 1.0, len(model.distribution))  # engines may order ties otherwise
        model.distribution.copy_(scores if reads_last else -scores)
    return model


def build_truncated_adalayers() -> Any:
    """Return a tiny BERT without the layers that have no weight."""
    model = build_adalayers("AdaLayersForTokenClassification", reads_last=False)
    model.truncate()
    return model


def build_par_xl() -> Any:
    """Return a tiny PAR-XL."""
    return adadepth.ParXLForCausalLM(adadepth.ParXLConfig(**PAR_XL, architecture="ss")).eval()


def build_routed() -> Any:
    """Return a tiny model of recursions."""
    config = adadepth.RoutedConfig(**_SIZES, num_hidden_layers=2, recursions=2, prelude=1, pad_token_id=0)
    return adadepth.RoutedForCausalLM(config).eval()


# Texts or puzzles exit as a whole, so that their exits are branches.
BRANCHING: dict[str, Callable[[], Any]] = {
    "ponder": lambda: make_small_ponder(num_hidden_layers=4, exit_rule="quantile:0.5"),
    "multi_exit": lambda: make_small_multi_exit(num_hidden_layers=4, exit_rule="patience:1"),
    "early_exit_bert": lambda: build_early_exit(
        "EarlyExitForSequenceClassification", "bert", exit_rule="confidence:0.8"
    ),
    "early_exit_llama": lambda: build_early_exit(
        "EarlyExitForSequenceClassification", exit_gate=True, exit_rule="correct:0.5"
    ),
    "trm": lambda: build_trm("correct:0.5"),
}
# Everything is computed.
DENSE: dict[str, Callable[[], Any]] = {
    "act_words": lambda: make_small_act(adadepth.AlbertActForMaskedLM, **_FEW),
    "act_texts": lambda: make_small_act(adadepth.AlbertActForSequenceClassification, **_FEW),
    "act_fixed": lambda: make_small_act(adadepth.AlbertActForTokenClassification, **_FEW, fixed_depth=2),
    "ponder_mean": lambda: make_small_ponder(num_hidden_layers=3, exit_rule="expectation"),
    "ponder_fixed": lambda: make_small_ponder(num_hidden_layers=3, exit_rule="fixed:2"),
    "trm_fixed": lambda: build_trm("fixed:2"),
    "adalayers_texts": lambda: build_adalayers("AdaLayersForSequenceClassification"),
    "adalayers_tokens": lambda: build_adalayers("AdaLayersForTokenClassification"),
    "adalayers_shallow": lambda: build_adalayers("AdaLayersForSequenceClassification", reads_last=False),
    "adalayers_truncated": build_truncated_adalayers,
    "early_exit_next_words": lambda: build_early_exit("EarlyExitForCausalLM", exit_rule="fixed:2"),
    "early_exit_masked_words": lambda: build_early_exit("EarlyExitForMaskedLM", "bert", exit_rule="fixed:2"),
    "early_exit_tokens": lambda: build_early_exit("EarlyExitForTokenClassification", exit_rule="confidence:0.8"),
    "looped_next_words": lambda: build_looped("LoopedForCausalLM", exit_rule="fixed:2"),
    "looped_texts": lambda: build_looped("LoopedForSequenceClassification"),
    "looped_tokens": lambda: build_looped("LoopedForTokenClassification"),
}


def draw_batch(model: Any, rows: int, length: int) -> dict[str, Tensor]:
    """Return random inputs of a model, the first rows with padding, in the order of its program's inputs."""
    from adadepth.contrib.engines.programs import make_example

    names = [*make_example(model)]
    if "attention_mask" not in names:
        cells = torch.randint(model.config.vocab_size, (rows, model.config.cells))
        return {"input_ids": cells, "puzzle_kinds": torch.zeros(rows, dtype=torch.int64)}
    mask = torch.ones(rows, length, dtype=torch.int64)
    if rows > 1:
        mask[0, -2:] = 0
    ids = torch.randint(5, model.config.vocab_size if hasattr(model.config, "vocab_size") else 100, (rows, length))
    inputs = {"input_ids": ids * mask, "attention_mask": mask, "token_type_ids": (mask.cumsum(dim=1) > 2).long() * mask}
    return {name: inputs[name] for name in names}


def predict(model: Any, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the model's own logits, 0 at padding, and depths."""
    with torch.no_grad():
        output = model(**batch)
    return clear_padding(output.logits, batch), output.trace.updates.long()


def clear_padding(logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """Return logits with 0 at padding, where predictions have no meaning."""
    mask = batch.get("attention_mask")
    return logits if mask is None or logits.dim() == 2 else logits * mask.unsqueeze(-1)
