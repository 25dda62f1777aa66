"""A looped language model as its paper defines it: one text, one loop, one token and one head at a time, torch alone.

Ouro (Zhu et al. 2025, arXiv 2510.25741): all layers are applied N times, and a gate is read after every loop.

    s_0      = E[tokens]                                                                                   (1)
    s_n      = rms(layer_C(... layer_1(s_{n-1})))            the normed state enters the next loop         (2)
    layer(x) = x + rms(attention(rms(x))), then x + rms(mlp(rms(x)))       causal, rotary positions        (3)
    lambda_n = sigmoid(g . s_n + b)                          the gate: stop now, if not stopped before     (4)
    p_n      = lambda_n prod_{j<n} (1 - lambda_j), n < N;    p_N = prod_{j<N} (1 - lambda_j)               (5)
    L        = mean over tokens of sum_n p_n CE(W s_n) - beta H(p)         stage I of the training         (6)
    exit     = smallest n with 1 - prod_{j<=n} (1 - lambda_j) > q, at most N                               (7)

Other tokens see s_n of a token at every n, whatever its exit. `modeling.py` (`loop_once`) has (1) to (4) for a batch,
`objectives.py` (6) without all logits at once, and `exits.py` (7) and the end of the loops.
Shape legend: B texts, T tokens, D width, d width of a head, V words, C layers, N loops.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

Weights = Mapping[str, Tensor]  # parameters by their names in the state dict


class Output(NamedTuple):
    """Results of a batch, by text without its padding."""

    step_logits: list[Tensor]  # after every loop, (T, N, V)
    pmf: list[Tensor]  # p_n, (T, N)
    exit_steps: list[list[int]]  # loop of every token, from 1
    logits: list[Tensor]  # of the loop at which each token exits, (T, V)
    loss: Tensor
    loss_parts: dict[str, Tensor]  # task and entropy, which sum to the loss


def forward(
    weights: Weights,
    input_ids: Tensor,  # (B, T), padding at the end
    attention_mask: Tensor,  # 1 at real tokens, (B, T)
    labels: Tensor,  # the input ids, negative where nothing is to be predicted, (B, T)
    quantile: float,  # q
    *,
    core: int,  # C
    num_loops: int,  # N
    num_attention_heads: int, rope_theta: float, rms_norm_eps: float,
    entropy_weight: float,  # beta
) -> Output:  # fmt: skip
    """Run all loops of a batch of texts, and compute exits and the loss (6)."""
    all_logits, pmfs, exits, at_exit = [], [], [], []
    task, entropy = torch.zeros(()), torch.zeros(())
    for ids, mask, targets in zip(input_ids, attention_mask, labels, strict=True):
        s = weights["model.embed_tokens.weight"][ids[mask.bool()]]  # (1), (T, D)
        loops, gates = [], []
        for _ in range(num_loops):
            for layer in range(core):
                s = apply_layer(weights, f"model.core.{layer}.", s, num_attention_heads, rope_theta, rms_norm_eps)
            s = normalise(weights, "model.norm", s, rms_norm_eps)  # (2)
            gates.append(torch.sigmoid((s @ weights["model.gate.weight"].T + weights["model.gate.bias"])[:, 0]))  # (4)
            loops.append(s @ weights["lm_head.weight"].T)
        logits, lambdas = torch.stack(loops, dim=1), torch.stack(gates, dim=1)  # (T, N, V), (T, N)
        pmf = torch.stack([compute_pmf(token) for token in lambdas])
        for t, target in enumerate(targets[1 : len(s)].tolist()):
            for n in range(num_loops if target >= 0 else 0):  # (6)
                task = task - pmf[t, n] * logits[t, n].log_softmax(-1)[target]
                entropy = entropy - pmf[t, n] * pmf[t, n].log()
        steps = [find_exit(token, quantile) for token in lambdas]
        all_logits.append(logits)
        pmfs.append(pmf)
        exits.append(steps)
        at_exit.append(torch.stack([logits[t, step - 1] for t, step in enumerate(steps)]))
    count = (labels[:, 1:] >= 0).sum()
    parts = {"task": task / count, "entropy": -entropy_weight * entropy / count}
    return Output(all_logits, pmfs, exits, at_exit, parts["task"] + parts["entropy"], parts)


def compute_pmf(lambdas: Tensor) -> Tensor:
    """Return the distribution (5) of a token over the loops, (N,)."""
    masses, remaining = [], torch.ones(())
    for probability in lambdas[:-1]:
        masses.append(remaining * probability)
        remaining = remaining * (1.0 - probability)
    return torch.stack([*masses, remaining])


def find_exit(lambdas: Tensor, quantile: float) -> int:
    """Return the loop (7) at which a token exits."""
    remaining = 1.0
    for n, probability in enumerate(lambdas.tolist(), start=1):
        remaining *= 1.0 - probability
        if 1.0 - remaining > quantile:
            return n
    return len(lambdas)


def apply_layer(weights: Weights, name: str, x: Tensor, heads: int, theta: float, epsilon: float) -> Tensor:
    """Apply a layer (3) to the states of a text, (T, D), one head and one query at a time."""
    u = normalise(weights, name + "attention_norm", x, epsilon)
    q, k, v = (u @ weights[f"{name}self_attn.{part}_proj.weight"].T for part in "qkv")
    contexts, width = [], x.shape[-1] // heads
    for part in (slice(head * width, (head + 1) * width) for head in range(heads)):
        queries, keys, rows = rotate(q[:, part], theta), rotate(k[:, part], theta), []
        for t in range(len(x)):  # sees itself and the tokens before it
            scores = keys[: t + 1] @ queries[t] / math.sqrt(width)
            rows.append(torch.softmax(scores, dim=0) @ v[: t + 1, part])
        contexts.append(torch.stack(rows))
    attended = torch.cat(contexts, dim=-1) @ weights[name + "self_attn.o_proj.weight"].T
    x = x + normalise(weights, name + "attention_post_norm", attended, epsilon)
    u = normalise(weights, name + "mlp_norm", x, epsilon)
    inner = F.silu(u @ weights[name + "mlp.gate_proj.weight"].T) * (u @ weights[name + "mlp.up_proj.weight"].T)
    return x + normalise(weights, name + "mlp_post_norm", inner @ weights[name + "mlp.down_proj.weight"].T, epsilon)


def rotate(vectors: Tensor, theta: float) -> Tensor:
    """Rotate the features (i, i + d/2) of a head at every position t, (T, d), by the angle t / theta^(2i/d)."""
    positions, half = torch.arange(len(vectors)).unsqueeze(1), vectors.shape[-1] // 2
    angles = positions * theta ** (-torch.arange(half) / half)
    first, second = vectors.chunk(2, dim=-1)
    return torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], -1)


def normalise(weights: Weights, name: str, x: Tensor, epsilon: float) -> Tensor:
    """Return the root mean square norm of this name over the last dimension."""
    return weights[name + ".weight"] * x / (x.square().mean(dim=-1, keepdim=True) + epsilon).sqrt()
