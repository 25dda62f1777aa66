"""Mixture-of-Recursions as its paper defines it: one row, one token and one key at a time, with torch alone.

Bae et al. 2025 (arXiv 2507.10524), expert choice with the weights "middle-cycle", on a Llama. A recursion r = 0..R-1
runs the same layers B for the tokens that its router chooses among those of the recursion before:

    z_t = w_r . x_t                                                                                                (1)
    k   = max(1, floor(n (R - r) / R))                          of the n tokens of a row                           (2)
    chosen: the k candidates with the largest z in training; those with z > 0, or all if r = 0, otherwise          (3)
    x_t = x_t + a sigmoid(z_t) B(x)_t                           of the chosen; others skip, and are not seen   (4)
    L_r = mean over candidates of BCE(sigmoid(z_t), 1[t is one of the k largest])                                  (5)
    L   = CE of the next token + weight sum_r L_r               means over labelled tokens; L_r is that of the row (6)

The published code chooses by (2) in evaluation too, which reads later tokens; z > 0 is what (5) trains. The depth of a
token is the number of its recursions. `spans.py` packs the chosen tokens of a batch, and `routers.py` has (1) to (3).
Shape legend: B rows, T tokens, D width, h heads of width d, V words, R recursions.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

Weights = Mapping[str, Tensor]  # parameters by their names in the state dict
Memory = dict[int, tuple[list[Tensor], list[Tensor]]]  # keys and values of every head, (d,) each, by token


class Output(NamedTuple):
    """Results of a batch, by row without its padding."""

    logits: list[Tensor]  # of the next word, (T, V)
    depths: list[list[int]]  # recursions of every token
    loss: Tensor
    loss_parts: dict[str, Tensor]  # task and routing, which sum to the loss


def forward(
    weights: Weights,
    input_ids: Tensor,  # (B, T), padding at the end
    attention_mask: Tensor,  # 1 at real tokens, (B, T)
    labels: Tensor,  # the input ids, negative where nothing is to be predicted, (B, T)
    training: bool,  # whether (3) chooses as in training
    *,
    num_hidden_layers: int, prelude: int, coda: int,  # layers with weights of their own; those before and after B
    num_attention_heads: int, rms_norm_eps: float,
    recursions: int,  # R
    gate_scale: float,  # a
    weight_of_routing: float,
) -> Output:  # fmt: skip
    """Compute predictions, recursions and the loss (6) of a batch of texts."""
    layers, sizes = list(range(num_hidden_layers)), (num_attention_heads, rms_norm_eps)
    first, core, last = layers[:prelude], layers[prelude : len(layers) - coda], layers[len(layers) - coda :]
    logits, depths, task, routing = [], [], torch.zeros(()), torch.zeros(())
    for ids, mask, targets in zip(input_ids, attention_mask, labels, strict=True):
        x = [weights["model.embed_tokens.weight"][word] for word in ids[mask.bool()].tolist()]
        tokens = candidates = list(range(len(x)))
        x, ran = run_layers(weights, first, x, tokens, *sizes), [0] * len(x)
        for r in range(recursions):
            z = {t: (weights[f"routers.{r}.output.weight"] @ x[t])[0] for t in candidates}  # (1)
            k = max(1, len(x) * (recursions - r) // recursions)  # (2)
            largest = sorted(candidates, key=lambda t: (-z[t].item(), t))[:k]
            losses = [-F.logsigmoid(z[t] if t in largest else -z[t]) for t in candidates]  # (5)
            routing = routing + (targets[1:] >= 0).sum() * sum(losses) / max(len(candidates), 1)
            chosen = sorted(largest) if training else [t for t in candidates if r == 0 or z[t] > 0]  # (3)
            updates = run_layers(weights, core, x, chosen, *sizes)
            for t in chosen:
                x[t] = x[t] + gate_scale * torch.sigmoid(z[t]) * updates[t]  # (4)
                ran[t] += 1
            candidates = chosen
        x = run_layers(weights, last, x, tokens, *sizes)
        logits.append(torch.stack([read(weights, state, rms_norm_eps) for state in x]))
        depths.append(ran)
        for t, target in enumerate(targets[1 : len(x)].tolist()):
            task = task - logits[-1][t].log_softmax(-1)[target] if target >= 0 else task
    labelled = (labels[:, 1:] >= 0).sum()
    parts = {"task": task / labelled, "routing": weight_of_routing * routing / labelled}
    return Output(logits, depths, parts["task"] + parts["routing"], parts)


def run_layers(
    weights: Weights, layers: Sequence[int], x: Sequence[Tensor], tokens: Sequence[int], heads: int, epsilon: float
) -> list[Tensor]:
    """Return the states after some layers for some tokens of a row, which see each other; others keep theirs."""
    x = list(x)
    for layer in layers:
        memory = {t: make_keys_and_values(weights, layer, x[t], t, heads, epsilon) for t in tokens}
        updated = {t: run_layer(weights, layer, x[t], t, memory, heads, epsilon) for t in tokens}
        for t in tokens:
            x[t] = updated[t]
    return x


def run_layer(
    weights: Weights, layer: int, x: Tensor, position: int, memory: Memory, heads: int, epsilon: float
) -> Tensor:
    """Run a layer of Llama for one token, (D,), which attends to the tokens of a memory up to itself."""
    name = f"model.layers.{layer}."
    normed = normalise(weights[name + "input_layernorm.weight"], x, epsilon)
    queries = (weights[name + "self_attn.q_proj.weight"] @ normed).view(heads, -1)
    seen, contexts = [t for t in sorted(memory) if t <= position], []
    for head, query in enumerate(queries):
        shared = head * len(memory[seen[0]][0]) // heads  # grouped heads share keys and values
        scores = torch.stack([rotate(query, position) @ memory[t][0][shared] for t in seen]) / math.sqrt(len(query))
        contexts.append(torch.softmax(scores, 0) @ torch.stack([memory[t][1][shared] for t in seen]))
    x = x + weights[name + "self_attn.o_proj.weight"] @ torch.cat(contexts)
    normed = normalise(weights[name + "post_attention_layernorm.weight"], x, epsilon)
    gate = F.silu(weights[name + "mlp.gate_proj.weight"] @ normed)
    return x + weights[name + "mlp.down_proj.weight"] @ (gate * (weights[name + "mlp.up_proj.weight"] @ normed))


def make_keys_and_values(
    weights: Weights, layer: int, x: Tensor, position: int, heads: int, epsilon: float
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the keys and values of a token in a layer, one of each per head."""
    name = f"model.layers.{layer}."
    normed = normalise(weights[name + "input_layernorm.weight"], x, epsilon)
    keys = (weights[name + "self_attn.k_proj.weight"] @ normed).view(-1, len(x) // heads)
    values = (weights[name + "self_attn.v_proj.weight"] @ normed).view(-1, len(x) // heads)
    return [rotate(key, position) for key in keys], list(values)


def rotate(vector: Tensor, position: int, base: float = 10000.0) -> Tensor:
    """Rotate the pairs (i, i + d/2) of a head by the angles position / base^(2i/d)."""
    half = len(vector) // 2
    angles = torch.tensor([position * base ** (-i / half) for i in range(half)]).to(vector)
    first, second = vector[:half], vector[half:]
    return torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()])


def normalise(weight: Tensor, x: Tensor, epsilon: float) -> Tensor:
    """Return the root mean square norm of a state."""
    return weight * x / torch.sqrt((x * x).mean() + epsilon)


def read(weights: Weights, x: Tensor, epsilon: float) -> Tensor:
    """Return the logits of the next word, (V,), for the last state of a token."""
    return weights["head.lm_head.weight"] @ normalise(weights["head.model.norm.weight"], x, epsilon)
