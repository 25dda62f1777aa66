"""Early exit as its papers define it: one text, one layer, one token and one head at a time, with torch alone.

LayerSkip (Elhoushi et al. 2024, arXiv 2404.16710) on a Llama: all exits share the norm and the head of the last one,
and all of them are trained. A token exits by its confidence, as in DeeBERT and CALM (Schuster et al. 2022):

    h_0  = E[tokens]                                                                                    (1)
    h_l  = layer_l(h_{l-1}), l = 1..L                        causal, rotary positions                   (2)
    z_l  = W rms(h_l)                                        the exit after layer l                     (3)
    L    = mean over tokens of sum_l e_l CE(z_l) / sum_l e_l,      e_l = l                              (4)
    exit = smallest l with max softmax(z_l) > t, at most L   the depth of a token                       (5)

The weights e_l of (4) are the family's default, torchtune's `linear`; LayerSkip has l (l - 1) / 2 for early layers.
Other tokens see the states of a token at every layer, whatever its exit. `word_model.py` has (2) to (4) for a batch,
`losses.py` the weights, `halting/exit_by_prediction.py` (5), and `modeling.py` the texts that leave.
Shape legend: B texts, T tokens, D width, d width of a head, V words, L layers.
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

    step_logits: list[Tensor]  # of every exit, (T, L, V)
    exit_steps: list[list[int]]  # exit of every token, from 1
    logits: list[Tensor]  # of the exit of each token, (T, V)
    loss: Tensor
    loss_parts: dict[str, Tensor]  # task, which is the loss


def forward(
    weights: Weights,
    input_ids: Tensor,  # (B, T), padding at the end
    attention_mask: Tensor,  # 1 at real tokens, (B, T)
    labels: Tensor,  # the input ids, negative where nothing is to be predicted, (B, T)
    confidence: float,  # t
    *,
    num_hidden_layers: int,  # L
    num_attention_heads: int,
    rms_norm_eps: float,
) -> Output:
    """Run all layers of a batch of texts, and compute exits and the loss (4)."""
    all_logits, exits, at_exit, loss = [], [], [], torch.zeros(())
    total = num_hidden_layers * (num_hidden_layers + 1) / 2
    for ids, mask, targets in zip(input_ids, attention_mask, labels, strict=True):
        h = weights["model.embed_tokens.weight"][ids[mask.bool()]]  # (1), (T, D)
        layers = []
        for layer in range(num_hidden_layers):
            h = apply_layer(weights, f"model.layers.{layer}.", h, num_attention_heads, rms_norm_eps)  # (2)
            read = normalise(weights["head.model.norm.weight"], h, rms_norm_eps)
            layers.append(read @ weights["head.lm_head.weight"].T)  # (3), (T, V)
        for t, target in enumerate(targets[1 : len(h)].tolist()):
            for layer in range(num_hidden_layers if target >= 0 else 0):  # (4)
                loss = loss - (layer + 1) / total * layers[layer][t].log_softmax(-1)[target]
        steps = [find_exit([logits[t] for logits in layers], confidence) for t in range(len(h))]
        all_logits.append(torch.stack(layers, dim=1))
        exits.append(steps)
        at_exit.append(torch.stack([layers[step - 1][t] for t, step in enumerate(steps)]))
    loss = loss / (labels[:, 1:] >= 0).sum()
    return Output(all_logits, exits, at_exit, loss, {"task": loss})


def find_exit(logits: list[Tensor], confidence: float) -> int:
    """Return the exit (5) of a token, from its logits at all exits, (V,) each."""
    for number, values in enumerate(logits, start=1):
        if values.softmax(-1).max() > confidence:
            return number
    return len(logits)


def apply_layer(weights: Weights, name: str, x: Tensor, heads: int, epsilon: float) -> Tensor:
    """Apply a layer of Llama to the states of a text, (T, D), one head and one query at a time."""
    u = normalise(weights[name + "input_layernorm.weight"], x, epsilon)
    q, k, v = (u @ weights[f"{name}self_attn.{part}_proj.weight"].T for part in "qkv")
    contexts, width = [], x.shape[-1] // heads
    for part in (slice(head * width, (head + 1) * width) for head in range(heads)):
        queries, keys, rows = rotate(q[:, part]), rotate(k[:, part]), []
        for t in range(len(x)):  # sees itself and the tokens before it
            scores = keys[: t + 1] @ queries[t] / math.sqrt(width)
            rows.append(torch.softmax(scores, dim=0) @ v[: t + 1, part])
        contexts.append(torch.stack(rows))
    x = x + torch.cat(contexts, dim=-1) @ weights[name + "self_attn.o_proj.weight"].T
    u = normalise(weights[name + "post_attention_layernorm.weight"], x, epsilon)
    inner = F.silu(u @ weights[name + "mlp.gate_proj.weight"].T) * (u @ weights[name + "mlp.up_proj.weight"].T)
    return x + inner @ weights[name + "mlp.down_proj.weight"].T


def rotate(vectors: Tensor, theta: float = 10000.0) -> Tensor:
    """Rotate the features (i, i + d/2) of a head at every position t, (T, d), by the angle t / theta^(2i/d)."""
    positions, half = torch.arange(len(vectors)).unsqueeze(1), vectors.shape[-1] // 2
    angles = positions * theta ** (-torch.arange(half) / half)
    first, second = vectors.chunk(2, dim=-1)
    return torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], -1)


def normalise(weight: Tensor, x: Tensor, epsilon: float) -> Tensor:
    """Return the root mean square norm over the last dimension."""
    return weight * x / (x.square().mean(dim=-1, keepdim=True) + epsilon).sqrt()
