"""ACT-ALBERT as its paper defines it: one sequence, one update and one token at a time, with torch alone.

Simoulin & Crabbé 2021, "How Many Layers and Why?" (ACL-IJCNLP SRW), whose halting is that of Graves 2016 (arXiv
1603.08983, equations 5 to 8). For every token, with h_0 = 0:

    x_0 = W LN(word + segment + position)                                                                       (1)
    y_n = block(x_{n-1})                               attends to all tokens, halted or not                     (2)
    p_n = sigmoid(w . y_n + b)                                                                                  (3)
    w_n = p_n  and  h_n = h_{n-1} + p_n,               or, if h_{n-1} + p_n > 1 - epsilon,
    w_n = R = 1 - h_{n-1}  and  h_n = 1                the token halts, and keeps its state from then on        (4)
    x_n = w_n y_n + (1 - w_n) x_{n-1}                                                                           (5)
    L   = MLM + SOP + tau mean over sequences of sum over tokens (N + R),  N updates of the token               (6)

`recurrence.py` computes the same for all tokens of a batch at once, and `ragged.py` for those that have not halted.
Shape legend: B sequences, T tokens, H hidden width, V vocabulary.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

Weights = Mapping[str, Tensor]  # parameters by their names in the state dict


class Halting(NamedTuple):
    """Results of the encoder for one sequence."""

    states: Tensor  # final states x_N, (T, H)
    updates: list[int]  # N of every token
    remainders: list[Tensor]  # R of every token, 0 if it never halted
    probabilities: list[list[Tensor]]  # p_1 to p_N of every token
    trails: list[list[Tensor]]  # x_1 to x_N of every token, (H,) each


class Output(NamedTuple):
    """Results of a batch."""

    logits: list[Tensor]  # of words, (T, V) for every sequence without its padding
    order_logits: Tensor  # of the original and the swapped order of sentences, (B, 2)
    halting: list[Halting]
    loss: Tensor
    loss_parts: dict[str, Tensor]  # mlm, sop and ponder, which sum to the loss


def forward(
    weights: Weights, input_ids: Tensor, token_type_ids: Tensor,  # (B, T)
    attention_mask: Tensor,  # 1 at real tokens, (B, T)
    labels: Tensor,  # the original words at masked positions, negative elsewhere, (B, T)
    sentence_order_label: Tensor,  # 0 for the original order, 1 for the swapped one, (B,)
    *,
    num_hidden_layers: int,  # the largest number of updates
    num_attention_heads: int, act_epsilon: float, layer_norm_eps: float,
    act_penalty: float,  # tau
) -> Output:  # fmt: skip
    """Compute predictions, halting and the loss (6) of pretraining, with the weights of `AlbertActForPreTraining`."""
    encoder = {name.removeprefix("albert."): weight for name, weight in weights.items()}
    logits, order_logits, halting, mlm, ponder = [], [], [], torch.zeros(()), torch.zeros(())
    for ids, segments, mask, targets in zip(input_ids, token_type_ids, attention_mask, labels, strict=True):
        real = mask.nonzero().squeeze(1)
        row = encode(
            encoder, ids[real], segments[real], real, num_hidden_layers=num_hidden_layers,
            num_attention_heads=num_attention_heads, act_epsilon=act_epsilon, layer_norm_eps=layer_norm_eps,
        )  # fmt: skip
        hidden = F.gelu(apply_linear(weights, "predictions.dense", row.states), approximate="tanh")
        hidden = normalise(weights, "predictions.LayerNorm", hidden, layer_norm_eps)
        words = apply_linear(weights, "predictions.decoder", hidden)  # (T, V)
        pooled = torch.tanh(apply_linear(weights, "albert.pooler", row.states[0]))
        order_logits.append(apply_linear(weights, "sop_classifier.classifier", pooled))
        for t, target in enumerate(targets[real].tolist()):
            mlm = mlm - words[t].log_softmax(-1)[target] if target >= 0 else mlm
            ponder = ponder + row.updates[t] + row.remainders[t]
        logits.append(words)
        halting.append(row)
    order = torch.stack(order_logits)
    parts = {
        "mlm": mlm / (labels >= 0).sum(),
        "sop": F.cross_entropy(order, sentence_order_label),
        "ponder": act_penalty * ponder / len(input_ids),
    }
    return Output(logits, order, halting, parts["mlm"] + parts["sop"] + parts["ponder"], parts)


def encode(
    weights: Weights, ids: Tensor, segments: Tensor, positions: Tensor,  # (T,) each, without padding
    *, num_hidden_layers: int, num_attention_heads: int, act_epsilon: float, layer_norm_eps: float,
) -> Halting:  # fmt: skip
    """Run the encoder on one sequence, equations (1) to (5), with the weights of `AlbertActModel`."""
    e = "embeddings."
    x = weights[e + "word_embeddings.weight"][ids] + weights[e + "token_type_embeddings.weight"][segments]
    x = normalise(weights, e + "LayerNorm", x + weights[e + "position_embeddings.weight"][positions], layer_norm_eps)
    states = list(apply_linear(weights, "encoder.embedding_hidden_mapping_in", x))  # x_0 of every token, (1)
    tokens = range(len(ids))
    h, remainders = [torch.zeros(()) for _ in tokens], [torch.zeros(()) for _ in tokens]
    probabilities: list[list[Tensor]] = [[] for _ in tokens]
    trails: list[list[Tensor]] = [[] for _ in tokens]
    for _ in range(num_hidden_layers):
        y = apply_block(weights, torch.stack(states), num_attention_heads, layer_norm_eps)  # (2), (T, H)
        p = compute_halting_probabilities(weights, y)  # (3), (T,)
        for t in tokens:
            if h[t] == 1.0:
                continue
            if h[t] + p[t] > 1.0 - act_epsilon:  # (4)
                w = remainders[t] = 1.0 - h[t]
            else:
                w = p[t]
            h[t] = h[t] + w
            states[t] = interpolate(w, y[t], states[t])  # (5)
            probabilities[t].append(p[t])
            trails[t].append(states[t])
    return Halting(torch.stack(states), [len(trail) for trail in trails], remainders, probabilities, trails)


def compute_halting_probabilities(weights: Weights, y: Tensor) -> Tensor:
    """Return the probability (3) with which each token halts, (T,), from the outputs of the block, (T, H)."""
    return torch.sigmoid(apply_linear(weights, "encoder.albert_layer.act.dense", y)).squeeze(-1)


def interpolate(w: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Return the next state (5) of a token, (H,), from its weight, the output of the block and its state."""
    return w * y + (1.0 - w) * x


def apply_block(weights: Weights, x: Tensor, heads: int, epsilon: float) -> Tensor:
    """Apply the shared post-norm block of ALBERT to the states of a sequence, (T, H), head by head."""
    name = "encoder.albert_layer."
    q, k, v = (apply_linear(weights, f"{name}attention.{part}", x) for part in ("query", "key", "value"))
    contexts, width = [], x.shape[-1] // heads
    for part in (slice(head * width, (head + 1) * width) for head in range(heads)):
        scores = q[:, part] @ k[:, part].T / math.sqrt(width)
        contexts.append(torch.softmax(scores, dim=-1) @ v[:, part])
    attended = apply_linear(weights, name + "attention.dense", torch.cat(contexts, dim=-1))
    a = normalise(weights, name + "LayerNorm", attended + x, epsilon)
    inner = F.gelu(apply_linear(weights, name + "ffn", a), approximate="tanh")
    output = apply_linear(weights, name + "ffn_output", inner)
    return normalise(weights, name + "full_layer_layer_norm", output + a, epsilon)


def apply_linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    """Return W x + b of the module with this name."""
    return x @ weights[name + ".weight"].T + weights[name + ".bias"]


def normalise(weights: Weights, name: str, x: Tensor, epsilon: float) -> Tensor:
    """Return the layer norm of this name over the last dimension."""
    return F.layer_norm(x, x.shape[-1:], weights[name + ".weight"], weights[name + ".bias"], epsilon)
