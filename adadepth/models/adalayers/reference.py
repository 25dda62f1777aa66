"""Adalayers as its thesis defines it: one sequence and one head of attention at a time, with torch alone.

A. Dremov, "Using Internal Representations of Frozen Transformer Models to Solve Downstream Tasks" (MIPT 2024). Z_0 to
Z_N are the hidden states of a frozen transformer, Z_0 those of its embeddings. Layer i has scores p_i, 1 at first:

    f_i  = LN(W_i GELU(Z_i))                           W_i without bias, the norm without parameters           (1)
    p~   = softmax(alpha p)                                                                                    (2)
    p~_i = 0 where p~_i <= cutoff,                     then p~ is divided by its sum                           (3)
    F    = GELU(sum_i p~_i f_i)                                                                                (4)
    L    = CE + lambda H(p~),                          H(p~) = -sum_i p~_i log p~_i                            (5)

A head of attention reads F: for sequences GELU(attention(F)), its mean over real tokens and a linear layer; for tokens
pre-norm encoder layers and a linear layer. The depth of the task is the deepest state i with p~_i > 0: blocks after it
need not run. `modeling.py` adds up (4) while the transformer runs, and stops it there.
Shape legend: B sequences, T tokens, K width of the states, k width of the head, L layers, C classes.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

Weights = Mapping[str, Tensor]  # parameters by their names in the state dict


class Output(NamedTuple):
    """Results of a batch."""

    logits: Tensor  # (B, C) of sequences, (B, T, C) of tokens
    distribution: Tensor  # p~, (L,)
    depth: int  # the deepest state that is read
    loss: Tensor
    loss_parts: dict[str, Tensor]  # task and entropy, which sum to the loss


def forward(
    weights: Weights,
    hidden_states: Sequence[Tensor],  # Z_0 to Z_N, (B, T, K) each
    attention_mask: Tensor,  # 1 at real tokens, (B, T)
    labels: Tensor,  # classes of sequences, (B,), or of tokens, (B, T), negative where there is none
    *,
    alpha_distribution: float,
    distribution_cutoff: float,
    attention_heads_num: int,
    lambda_distribution_entropy: float,
) -> Output:
    """Compute predictions and the loss (5), with the weights of an Adalayers model; those of the base are not read."""
    distribution = compute_distribution(weights, alpha_distribution, distribution_cutoff)
    features = mix_layers(weights, hidden_states, distribution)
    classify = classify_sequences if "self_attention.in_proj_weight" in weights else classify_tokens
    logits = classify(weights, features, attention_mask, attention_heads_num)
    entropy = torch.zeros(())
    for p in distribution:
        entropy = entropy - p * p.log() if p > 0 else entropy
    task = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=-100)
    parts = {"task": task, "entropy": lambda_distribution_entropy * entropy}
    depth = max(i for i, p in enumerate(distribution) if p > 0)
    return Output(logits, distribution, depth, parts["task"] + parts["entropy"], parts)


def compute_distribution(weights: Weights, alpha: float, cutoff: float) -> Tensor:
    """Return p~ of equations (2) and (3), (L,)."""
    powers = [torch.exp(alpha * p) for p in weights["distribution"].flatten()]
    total = sum(powers, torch.zeros(()))
    shares = [power / total if power / total > cutoff else torch.zeros(()) for power in powers]
    return torch.stack(shares) / sum(shares, torch.zeros(()))


def mix_layers(weights: Weights, hidden_states: Sequence[Tensor], distribution: Tensor) -> Tensor:
    """Return F of equations (1) and (4), (B, T, k), from the first L hidden states."""
    total = torch.zeros(())
    for i, share in enumerate(distribution):
        projected = F.gelu(hidden_states[i]) @ weights[f"projectors.{i}.weight"].T
        total = total + share * F.layer_norm(projected, projected.shape[-1:])
    return F.gelu(total)


def classify_sequences(weights: Weights, features: Tensor, mask: Tensor, heads: int) -> Tensor:
    """Return the logits of every sequence, (B, C)."""
    rows = []
    for x, real in zip(features, mask.bool(), strict=True):
        attended = F.gelu(attend(weights, "self_attention.", x, real, heads))
        rows.append(apply_linear(weights, "logits", attended[real].mean(dim=0)))
    return torch.stack(rows)


def classify_tokens(weights: Weights, features: Tensor, mask: Tensor, heads: int) -> Tensor:
    """Return the logits of every token, (B, T, C); those at padding have no meaning."""
    layers = sum(name.startswith("encoder_layers.") and name.endswith("linear1.weight") for name in weights)
    rows = []
    for x, real in zip(features, mask.bool(), strict=True):
        for e in (f"encoder_layers.{j}." for j in range(layers)):
            x = x + attend(weights, e + "self_attn.", normalise(weights, e + "norm1", x), real, heads)
            inner = F.gelu(apply_linear(weights, e + "linear1", normalise(weights, e + "norm2", x)))
            x = x + apply_linear(weights, e + "linear2", inner)
        rows.append(apply_linear(weights, "logits", x))
    return torch.stack(rows)


def attend(weights: Weights, prefix: str, x: Tensor, real: Tensor, heads: int) -> Tensor:
    """Return the self-attention of one sequence, (T, k), in which all tokens attend to the real ones."""
    projected = x @ weights[prefix + "in_proj_weight"].T + weights[prefix + "in_proj_bias"]
    q, k, v = projected.chunk(3, dim=-1)
    contexts, width = [], x.shape[1] // heads
    for part in (slice(head * width, (head + 1) * width) for head in range(heads)):
        scores = q[:, part] @ k[real, part].T / math.sqrt(width)
        contexts.append(torch.softmax(scores, dim=-1) @ v[real, part])
    return apply_linear(weights, prefix + "out_proj", torch.cat(contexts, dim=-1))


def apply_linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    """Return W x + b of the module with this name."""
    return x @ weights[name + ".weight"].T + weights[name + ".bias"]


def normalise(weights: Weights, name: str, x: Tensor) -> Tensor:
    """Return the layer norm of this name over the last dimension."""
    return F.layer_norm(x, x.shape[-1:], weights[name + ".weight"], weights[name + ".bias"])
