"""A small tiny recursive model, and puzzles of random cells."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from adadepth.models.trm.configuration import TrmConfig
from adadepth.models.trm.modeling import TrmForPuzzles

CELLS, SYMBOLS, WIDTH, HEADS = 9, 5, 16, 2


def build_trm(**changes: Any) -> TrmForPuzzles:
    """Build a model whose Q head gives different puzzles different values."""
    sizes = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "intermediate_size": 24, "mixing_size": 20,
             "prefix_length": 2, "vocab_size": SYMBOLS, "cells": CELLS, "cycles": 2, "reasoning_updates": 3,
             "num_steps": 4, "exploration": 0.0}  # fmt: skip
    torch.manual_seed(2)
    model = TrmForPuzzles(TrmConfig(**{**sizes, **changes}))
    torch.manual_seed(2)
    with torch.no_grad():
        model.q_head.weight.normal_(0.0, 2.0)
        model.q_head.bias.zero_()
        model.prefix.weight.normal_()
    return model


def draw_puzzles(rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Draw random cells and random answers; the first cell of an answer has no label."""
    generator = torch.Generator().manual_seed(seed)
    cells = torch.randint(1, SYMBOLS, (rows, CELLS), generator=generator)
    labels = torch.randint(1, SYMBOLS, (rows, CELLS), generator=generator)
    labels[:, 0] = -100
    return cells, labels
