"""What a tiny recursive model costs, in multiply-accumulates. Shape legend: S positions, D, F, V as in `modeling`."""

from __future__ import annotations

import torch

from adadepth.families.trm.configuration import TrmConfig
from adadepth.halting.trace import DepthTrace, Work


def block_macs(config: TrmConfig) -> float:
    """Of one block and row: 4 S D^2 + 2 S^2 D of attention, or 3 S F_S D of positions, and 3 S D F."""
    length, width = config.length, config.hidden_size
    attention = 4 * length * width**2 + 2 * length**2 * width
    mixing = 3 * length * config.mixing_width * width if config.mixing == "positions" else attention
    return float(mixing + 3 * length * width * config.inner_width)


def step_macs(config: TrmConfig) -> float:
    """Of one supervision step and row, both heads included: T (n + 1) applications of all blocks."""
    heads = config.cells * config.hidden_size * config.vocab_size + config.hidden_size
    return config.applications * config.num_layers * block_macs(config) + heads


def price_puzzles(config: TrmConfig, trace: DepthTrace) -> Work:
    """Work of a traced batch; rows that have left are not computed."""
    each, updates, ran = step_macs(config), trace.updates.double(), trace.executed
    computed = torch.as_tensor(len(updates) * ran.steps) if ran.rows is None else ran.rows.sum()
    return Work(
        executed=each * computed.to(updates),
        dense=each * len(updates) * updates.max(),
        adaptive=each * updates.sum(),
        full=each * len(updates) * updates.new_tensor(trace.max_depth),
    )
