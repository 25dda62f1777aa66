"""ACT-ALBERT written as plainly as possible: one sequence at a time, one token at a time, no batching and no masks.

The independent truth for the model: it shares nothing with the package but the parameters' names.
"""

import math

import torch
import torch.nn.functional as F


def plain_forward(weights, config, ids, segments, positions=None, prescribed=None, trails=None):
    """Run one unpadded sequence; returns the states (T, H), and lists of updates, remainders and probabilities.

    Gradients flow through everything. `prescribed` replaces the probabilities of halting, one a token. The list
    `trails` gets the states of every token after each of its updates. Under `graves` the states returned are the sums
    of the weighted outputs.
    """
    e = "embeddings."
    positions = torch.arange(len(ids)) if positions is None else positions
    x = weights[e + "word_embeddings.weight"][ids] + weights[e + "token_type_embeddings.weight"][segments]
    x = x + weights[e + "position_embeddings.weight"][positions]
    x = norm(weights, config, e + "LayerNorm", x)
    states = list(linear(weights, "encoder.embedding_hidden_mapping_in", x))

    n_tokens, threshold = len(ids), 1.0 - config.act_epsilon
    graves, results = config.state_rule == "graves", [torch.zeros_like(state) for state in states]
    if trails is not None:
        trails += [[] for _ in range(n_tokens)]
    h, remainders, updates = [0.0] * n_tokens, [0.0] * n_tokens, [0] * n_tokens
    probabilities = [[] for _ in range(n_tokens)]
    while any(updates[t] < config.num_hidden_layers and is_below(h[t], threshold) for t in range(n_tokens)):
        outputs = block(weights, config, torch.stack(states))
        for t in range(n_tokens):
            if not is_below(h[t], 1.0):
                continue
            y = outputs[t]
            logit = (weights["encoder.albert_layer.act.dense.weight"][0] * y).sum()
            p = 1.0 / (1.0 + torch.exp(-(logit + weights["encoder.albert_layer.act.dense.bias"][0])))
            if prescribed is not None:
                p = prescribed[t] + (p - p.detach())
            probabilities[t].append(p)
            updates[t] += 1
            if not is_below(h[t] + p, threshold, or_equal=True):
                remainders[t] = 1.0 - h[t]
                weight, h[t] = remainders[t], 1.0
            else:
                weight, h[t] = p, h[t] + p
            results[t] = results[t] + weight * y
            states[t] = y if graves else weight * y + (1.0 - weight) * states[t]
            if trails is not None:
                trails[t].append(states[t])
    return torch.stack(results if graves else states), updates, remainders, probabilities


def is_below(value, limit, or_equal=False):
    value = float(torch.as_tensor(value).detach())
    return value <= limit if or_equal else value < limit


def block(weights, config, x):
    """The shared post-norm block, head by head."""
    name = "encoder.albert_layer."
    q, k, v = (linear(weights, f"{name}attention.{part}", x) for part in ("query", "key", "value"))
    width = config.hidden_size // config.num_attention_heads
    heads = []
    for head in range(config.num_attention_heads):
        part = slice(head * width, (head + 1) * width)
        scores = q[:, part] @ k[:, part].T / math.sqrt(width)
        heads.append(torch.softmax(scores, dim=-1) @ v[:, part])
    attended = linear(weights, name + "attention.dense", torch.cat(heads, dim=-1))
    a = norm(weights, config, name + "LayerNorm", attended + x)
    inner = linear(weights, name + "ffn", a)
    inner = 0.5 * inner * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (inner + 0.044715 * inner**3)))
    return norm(weights, config, name + "full_layer_layer_norm", linear(weights, name + "ffn_output", inner) + a)


def linear(weights, name, x):
    return x @ weights[name + ".weight"].T + weights[name + ".bias"]


def norm(weights, config, name, x):
    return F.layer_norm(x, x.shape[-1:], weights[name + ".weight"], weights[name + ".bias"], config.layer_norm_eps)
