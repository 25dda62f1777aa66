"""The supernet of PAR-XL with the original code's choices and other contexts, on the functions of its reference."""

import math

import torch

from adadepth.models.par_xl.reference import attend, mix_operations, normalise, transform


def run_plain_supernet(weights, ids, mixes, memory, *, heads, scale, relu, norm, epsilon, clamp=None, window=None):
    """Return final states (B, T, d) and the input of every block (N, B, M + T, d).

    Args:
        weights: Parameters by name, float64.
        ids: (B, T).
        mixes: The weight of attention, feed-forward and identity in every block, N x 3.
        memory: (N, B, M, d).
        heads: Number of attention heads.
        scale: Divisor of the scores.
        relu: Whether a ReLU follows the attention's output projection.
        norm: `per_branch` or `paper`.
        epsilon: Epsilon of the norms.
        clamp: Largest distance; larger ones are treated as this one.
        window: Number of positions that a query attends to, itself included.
    """
    table = weights["model.embedding.tables.0.weight"]
    outputs, inputs = [], []
    for row, words in enumerate(ids.tolist()):
        states = [table[word] * math.sqrt(table.shape[1]) for word in words]
        seen = []
        for block, mix in enumerate(mixes):
            past = [*memory[block, row], *states]
            seen.append(torch.stack(past))
            for i, x in enumerate(states):
                prefix, here = f"model.blocks.{block}.", len(past) - len(states) + i
                distances = list_distances(here, clamp, window)
                attended = attend(weights, prefix + "attention.", past, here, distances, heads, scale)
                attended = attended.clamp(min=0) if relu else attended
                states[i] = mix_branches(weights, prefix, mix, x, attended, norm, epsilon)
        outputs.append(torch.stack(states))
        inputs.append(torch.stack(seen))
    return torch.stack(outputs), torch.stack(inputs, dim=1)


def list_distances(here, clamp, window):
    """Return the distance of every position that a query attends to."""
    first = 0 if window is None else max(here - window + 1, 0)
    return {j: here - j if clamp is None else min(here - j, clamp) for j in range(first, here + 1)}


def mix_branches(weights, prefix, mix, x, attended, kind, epsilon):
    """Return the next state of one position."""
    if kind == "per_branch":
        return mix_operations(weights, prefix, mix, x, attended, epsilon)
    transformed = transform(weights, prefix + "feed_forward.", x)
    return normalise(weights, prefix + "norm", x + mix[0] * attended + mix[1] * transformed, epsilon)
