"""The PAR Transformer-XL supernet as its papers define it: one row, head, query and key at a time, with torch alone.

"Pay Attention when Required" (Mandava, Migacz & Fit-Florea 2020, arXiv 2009.04534) on Transformer-XL (Dai et al. 2019).
Every block b mixes attention, feed-forward and identity; x_0 are the embeddings times sqrt(d):

    w   = softmax((a_b + g) / tau),  g = -log(-log U)           Gumbel noise in training; 0, with tau = 1, otherwise (1)
    x_b = w_s LN(x + attention(x)) + w_f LN(x + feed_forward(x)) + w_- x,             x = x_{b-1}                    (2)
    A_ij = [(q_i + u) . k_j + (q_i + v) . W_R r_{i-j}] / sqrt(d_head)       i new positions, j <= i, memory included (3)
    r_delta = (sin, cos)(delta / 10000^(2k/d)) in turn,         the code of a distance                               (4)
    L   = -1/P sum over targets of log p(word),                 p an adaptive softmax of the states x_N              (5)

The memory is the input of each block at earlier positions, without gradient. The depth is sum_b (1 - w_-). `blocks.py`
computes (2) for all rows, `attention.py` (3) by products and a shift, and `adaptive_softmax.py` (5) in chunks.
Shape legend: B rows, T new tokens, M remembered positions, N blocks, d width, V words, P targets.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

Weights = Mapping[str, Tensor]  # parameters by their names in the state dict


class Output(NamedTuple):
    """Results of a segment."""

    logits: Tensor  # log-probabilities of all words, (B, T, V)
    operations: Tensor  # w_s, w_f and w_- of every block, (N, 3)
    depth: Tensor  # blocks that are no identity, by their weights
    memory: Tensor  # inputs of every block up to the last token, (N, B, M + T, d)
    loss: Tensor


def forward(
    weights: Weights,
    input_ids: Tensor,  # (B, T)
    targets: Tensor,  # the word after each token, negative where there is none, (B, T)
    memory: Tensor,  # of the segments before, (N, B, M, d)
    noise: Tensor,  # g of equation (1), (N, 3)
    temperature: float,  # tau
    *,
    num_attention_heads: int, cutoffs: Sequence[int], layer_norm_eps: float,
) -> Output:  # fmt: skip
    """Compute predictions, weights of operations, the next memory and the loss of a segment of text."""
    operations = torch.softmax((weights["gates"] + noise) / temperature, dim=-1)  # (1)
    table, logits, inputs = weights["model.embedding.tables.0.weight"], [], []
    for row in range(len(input_ids)):
        x = [table[word] * math.sqrt(table.shape[1]) for word in input_ids[row].tolist()]
        seen = []
        for b in range(len(operations)):
            prefix, past = f"model.blocks.{b}.", [*memory[b, row].detach(), *x]
            seen.append(torch.stack(past))
            for i in range(len(x)):
                here = len(past) - len(x) + i
                distances = {j: here - j for j in range(here + 1)}
                scale = math.sqrt(table.shape[1] // num_attention_heads)
                attended = attend(weights, prefix + "attention.", past, here, distances, num_attention_heads, scale)
                x[i] = mix_operations(weights, prefix, operations[b], x[i], attended, layer_norm_eps)
        logits.append(torch.stack([compute_log_probabilities(weights, state, cutoffs) for state in x]))
        inputs.append(torch.stack(seen))
    table_of_logits, loss = torch.stack(logits), torch.zeros(())
    for row, t in (targets >= 0).nonzero().tolist():  # (5)
        loss = loss - table_of_logits[row, t, targets[row, t]]
    depth = (1.0 - operations[:, 2]).sum()
    return Output(table_of_logits, operations, depth, torch.stack(inputs, dim=1), loss / (targets >= 0).sum())


def attend(
    weights: Weights, prefix: str, past: Sequence[Tensor], here: int, distances: Mapping[int, int], heads: int,
    scale: float,
) -> Tensor:  # fmt: skip
    """Return the attention (3) of the query at position `here`, (d,), all heads side by side and projected.

    Args:
        weights: Parameters by name.
        prefix: Start of the names of this attention.
        past: Inputs of the block at all positions, (d,) each.
        here: Position of the query.
        distances: Distance i - j of every position j to which the query attends.
        heads: Number of heads.
        scale: Divisor of the scores.
    """
    width = len(past[0]) // heads
    owner = "model." if "model.position_bias_u" in weights else prefix
    query, contexts = apply_linear(weights, prefix + "query", past[here]), []
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        u, v = (weights[f"{owner}position_bias_{letter}"][head] for letter in "uv")
        scores, values = [], []
        for j, distance in distances.items():
            key, value = apply_linear(weights, prefix + "key_value", past[j]).chunk(2)
            position = apply_linear(weights, prefix + "position", encode_distance(distance, len(past[0])).to(key))
            scores.append(((query[part] + u) @ key[part] + (query[part] + v) @ position[part]) / scale)
            values.append(value[part])
        contexts.append(torch.softmax(torch.stack(scores), dim=0) @ torch.stack(values))
    return apply_linear(weights, prefix + "output", torch.cat(contexts))


def encode_distance(distance: int, width: int) -> Tensor:
    """Return the code (4) of a distance, (d,)."""
    angles = [distance / 10000.0 ** (2 * k / width) for k in range(width // 2)]
    code = [wave(angle) for angle in angles for wave in (math.sin, math.cos)]
    return torch.tensor(code, dtype=torch.float64)


def mix_operations(
    weights: Weights, prefix: str, w: Tensor | Sequence[float], x: Tensor, attended: Tensor, epsilon: float
) -> Tensor:
    """Return the output (2) of a block for one position, (d,)."""
    first = normalise(weights, prefix + "attention.norm", x + attended, epsilon)
    second = x + transform(weights, prefix + "feed_forward.", x)
    return w[0] * first + w[1] * normalise(weights, prefix + "feed_forward.norm", second, epsilon) + w[2] * x


def transform(weights: Weights, prefix: str, x: Tensor) -> Tensor:
    """Return the feed-forward operation of a state, (d,)."""
    return apply_linear(weights, prefix + "output", apply_linear(weights, prefix + "inner", x).clamp(min=0))


def compute_log_probabilities(weights: Weights, x: Tensor, cutoffs: Sequence[int]) -> Tensor:
    """Return the log-probabilities of all words, (V,): one softmax over frequent words and tails, one in each tail."""
    head = apply_linear(weights, "head.tables.0", x)
    if not cutoffs:
        return head.log_softmax(-1)
    head = torch.cat([head, apply_linear(weights, "head.tail_entries", x)]).log_softmax(-1)
    parts = [head[: cutoffs[0]]]
    for tail in range(1, len(cutoffs) + 1):
        narrow = apply_linear(weights, f"head.projections.{tail}", x)
        words = apply_linear(weights, f"head.tables.{tail}", narrow).log_softmax(-1)
        parts.append(head[cutoffs[0] + tail - 1] + words)
    return torch.cat(parts)


def apply_linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    """Return W x, or W x + b, of the module with this name, for one state."""
    product = weights[name + ".weight"] @ x
    return product + weights[name + ".bias"] if name + ".bias" in weights else product


def normalise(weights: Weights, name: str, x: Tensor, epsilon: float) -> Tensor:
    """Return the layer norm of this name for one state."""
    return F.layer_norm(x, x.shape, weights[name + ".weight"], weights[name + ".bias"], epsilon)
