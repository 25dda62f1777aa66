"""The tiny recursive model as its paper defines it: one puzzle, step, cycle and head at a time, with torch alone.

Jolicoeur-Martineau 2025, "Less is More: Recursive Reasoning with Tiny Networks" (arXiv 2510.04871), with the losses of
its published code. x is the embedded puzzle, y the answer and z the reasoning; y and z begin with constants:

    z <- f(z + (y + x)), n times, then y <- f(y + z)            a cycle; f is one network of a few blocks         (1)
    T - 1 cycles without gradients, then one with them          a supervision step; y, z pass on without gradients (2)
    logits = W y,  q = w . y_0 + b                              the cells of the answer, and: is it right?        (3)
    L = mean over puzzles of [mean over cells of CE + 1/2 BCE(sigmoid(q), 1[all cells right])]                    (4)
    exit   = smallest step with q > 0, at most N                the depth of a puzzle                             (5)
    p(v)   = s(v) / sum s,  s(v) = v + 1 if v >= 0, else 1 / (1 - v)        stablemax, in place of softmax in CE  (6)

This file averages (4) over all N steps. Training makes an optimiser step at every supervision step, and replaces
puzzles by (5): `modeling.py`, `refill_slots` and `decide_halting`. `network.py` has f for a batch.
Shape legend: B puzzles, L cells, P registers before them, S = P + L positions, D width, V symbols, N steps.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

Weights = Mapping[str, Tensor]  # parameters and buffers by their names in the state dict


class Output(NamedTuple):
    """Results of a batch."""

    step_logits: Tensor  # of every step, (B, N, L, V)
    halting_logits: Tensor  # q of every step, (B, N)
    exit_steps: list[int]  # step of every puzzle, from 1
    logits: Tensor  # of the step at which each puzzle exits, (B, L, V)
    loss: Tensor
    loss_parts: dict[str, Tensor]  # task and halt, which sum to the loss


def forward(
    weights: Weights,
    input_ids: Tensor,  # cells, (B, L)
    puzzle_kinds: Tensor,  # (B,)
    labels: Tensor,  # the right symbols, negative where a cell is not labelled, (B, L)
    *,
    num_steps: int,  # N
    cycles: int,  # T
    reasoning_updates: int,  # n
    prefix_length: int,  # P
    num_layers: int, num_attention_heads: int, rope_theta: float,
    halt_loss_weight: float,  # 1/2
) -> Output:  # fmt: skip
    """Run all steps of a batch of puzzles, and compute exits and losses."""
    all_logits, all_q, exits = [], [], []
    task, halt = torch.zeros(()), torch.zeros(())
    sizes = (num_layers, num_attention_heads, rope_theta)
    for cells, kind, targets in zip(input_ids, puzzle_kinds, labels, strict=True):
        x = embed(weights, cells, kind, prefix_length)  # (S, D)
        y, z = weights["answer_init"].expand_as(x), weights["reasoning_init"].expand_as(x)
        row_logits, row_q, labelled = [], [], targets >= 0
        for _ in range(num_steps):
            for cycle in range(cycles):  # (2)
                with torch.set_grad_enabled(cycle == cycles - 1):
                    for _ in range(reasoning_updates):  # (1)
                        z = apply_network(weights, z + (y + x), *sizes)
                    y = apply_network(weights, y + z, *sizes)
            logits = y[prefix_length:] @ weights["lm_head.weight"].T  # (3), (L, V)
            q = weights["q_head.weight"][0] @ y[0] + weights["q_head.bias"][0]
            right = bool((logits.argmax(-1) == targets)[labelled].all())
            cell_losses = [-compute_stablemax(logits[i])[targets[i]].log() for i in labelled.nonzero().squeeze(1)]
            task = task + sum(cell_losses, torch.zeros(())) / max(len(cell_losses), 1)  # (4)
            halt = halt - F.logsigmoid(q if right else -q)
            row_logits.append(logits)
            row_q.append(q)
            y, z = y.detach(), z.detach()
        exits.append(next((step for step, q in enumerate(row_q, start=1) if q > 0), num_steps))  # (5)
        all_logits.append(torch.stack(row_logits))
        all_q.append(torch.stack(row_q))
    count = len(input_ids) * num_steps
    parts = {"task": task / count, "halt": halt_loss_weight * halt / count}
    last = torch.stack([rows[step - 1] for rows, step in zip(all_logits, exits, strict=True)])
    return Output(torch.stack(all_logits), torch.stack(all_q), exits, last, parts["task"] + parts["halt"], parts)


def embed(weights: Weights, cells: Tensor, kind: Tensor, registers: int) -> Tensor:
    """Return the embedded puzzle x, (S, D): a vector of its kind, empty registers and its cells, times sqrt(D)."""
    words = weights["embed_tokens.weight"][cells]
    empty = words.new_zeros(registers - 1, words.shape[-1])
    return torch.cat([weights["prefix.weight"][kind].unsqueeze(0), empty, words]) * math.sqrt(words.shape[-1])


def compute_stablemax(logits: Tensor) -> Tensor:
    """Return the probabilities (6) of the symbols of a cell, (V,), in float64 as in the published code."""
    logits = logits.double()
    scores = logits.clamp(min=0) + 1.0 / (1.0 - logits.clamp(max=0))  # one of the terms is constant
    return scores / scores.sum()


def apply_network(weights: Weights, u: Tensor, layers: int, heads: int, theta: float) -> Tensor:
    """Apply the network f to states, (S, D): blocks of attention and a gated feed-forward layer, norms after sums."""
    for name in (f"network.layers.{layer}." for layer in range(layers)):
        q, k, v = (u @ weights[name + "self_attn.qkv_proj.weight"].T).chunk(3, dim=-1)
        contexts, width = [], u.shape[-1] // heads
        for part in (slice(head * width, (head + 1) * width) for head in range(heads)):
            query, key = rotate(q[:, part], theta), rotate(k[:, part], theta)
            contexts.append(torch.softmax(query @ key.T / math.sqrt(width), dim=-1) @ v[:, part])
        u = normalise(u + torch.cat(contexts, dim=-1) @ weights[name + "self_attn.o_proj.weight"].T)
        gate, up = (u @ weights[name + "mlp.gate_up_proj.weight"].T).chunk(2, dim=-1)
        u = normalise(u + (F.silu(gate) * up) @ weights[name + "mlp.down_proj.weight"].T)
    return u


def rotate(vectors: Tensor, theta: float) -> Tensor:
    """Rotate the features (i, i + d/2) of a head at every position s, (S, d), by the angle s / theta^(2i/d)."""
    positions, half = torch.arange(len(vectors)).unsqueeze(1), vectors.shape[-1] // 2
    angles = positions * theta ** (-torch.arange(half) / half)
    first, second = vectors.chunk(2, dim=-1)
    return torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], -1)


def normalise(u: Tensor) -> Tensor:
    """Divide states by the root of their mean square, over the last dimension."""
    return u / (u.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt()
