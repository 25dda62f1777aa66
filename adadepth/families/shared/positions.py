"""Codes of positions that nothing learns; T tokens, k width."""

from __future__ import annotations

import torch
from torch import Tensor


def sinusoidal_positions(length: int, like: Tensor) -> Tensor:
    """Vaswani et al. 2017 (arXiv 1706.03762), section 3.5: sines and cosines in turn, (T, k), for any length."""
    width = like.shape[-1]
    positions = torch.arange(length, device=like.device, dtype=torch.float32).unsqueeze(1)
    steps = torch.arange(0, width, 2, device=like.device, dtype=torch.float32)
    angles = positions * 10000.0 ** (-steps / width)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :width].to(like.dtype)
