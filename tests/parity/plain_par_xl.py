"""The PAR Transformer-XL written as plainly as possible: one row, one head, one query and one key at a time.

The independent truth for the model, in float64. Distances are counted, not shifted; what a query may not see is left
out, not masked.
"""

import math

import torch
import torch.nn.functional as F


def plain_supernet(weights, ids, mixes, memory, *, heads, scale, relu, norm, epsilon, clamp=None, window=None):
    """Final states (B, T, d) and the input of every block (N, B, M + T, d).

    Args:
        weights: Parameters by name, float64.
        ids: (B, T).
        mixes: The weight of attention, feed-forward and identity in every block, N x 3.
        memory: (N, B, M, d).
        heads: Their number.
        scale: What scores are divided by.
        relu: Whether a ReLU follows the attention's output projection.
        norm: `per_branch` or `paper`.
        epsilon: Of the norms.
        clamp: Larger distances look like this one.
        window: How many positions a query sees, itself included.
    """
    table = weights["model.embedding.tables.0.weight"]
    outputs, inputs = [], []
    for row, words in enumerate(ids.tolist()):
        states = [table[word] * math.sqrt(table.shape[1]) for word in words]
        seen = []
        for block, mix in enumerate(mixes):
            past = [*memory[block, row], *states]
            seen.append(torch.stack(past))
            prefix = f"model.blocks.{block}."
            attended = [
                attend(weights, prefix + "attention.", past, len(past) - len(states) + i, heads, scale, clamp, window)
                for i in range(len(states))
            ]
            attended = [state.clamp(min=0) for state in attended] if relu else attended
            transformed = [feed_forward(weights, prefix + "feed_forward.", state) for state in states]
            states = [
                mixed(weights, prefix, mix, x, a, f, norm, epsilon)
                for x, a, f in zip(states, attended, transformed, strict=True)
            ]
        outputs.append(torch.stack(states))
        inputs.append(torch.stack(seen))
    return torch.stack(outputs), torch.stack(inputs, dim=1)


def attend(weights, prefix, past, here, heads, scale, clamp, window):
    """What the query at position `here` of the past finds, all heads side by side and projected."""
    width = len(past[0]) // heads
    shared = "model." if "model.position_bias_u" in weights else prefix
    query = linear(weights, prefix + "query", past[here])
    found = []
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        u, v = (weights[f"{shared}position_bias_{letter}"][head] for letter in "uv")
        scores, values = [], []
        for there in range(here + 1):
            distance = here - there
            if window is not None and distance >= window:
                continue
            both = linear(weights, prefix + "key_value", past[there])
            key, value = both[: len(both) // 2][part], both[len(both) // 2 :][part]
            code = sinusoid(distance if clamp is None else min(distance, clamp), len(past[0]))
            place = linear(weights, prefix + "position", code)[part]
            scores.append(((query[part] + u) @ key + (query[part] + v) @ place) / scale)
            values.append(value)
        powers = [math.exp(score) for score in scores]
        found.append(sum(p * value for p, value in zip(powers, values, strict=True)) / sum(powers))
    return linear(weights, prefix + "output", torch.cat(found))


def sinusoid(distance, width):
    """Sine and cosine in turn, of frequencies 10000^(-2k/d)."""
    code = []
    for pair in range(width // 2):
        angle = distance / 10000.0 ** (2 * pair / width)
        code += [math.sin(angle), math.cos(angle)]
    return torch.tensor(code, dtype=torch.float64)


def feed_forward(weights, prefix, x):
    return linear(weights, prefix + "output", linear(weights, prefix + "inner", x).clamp(min=0))


def mixed(weights, prefix, mix, x, attended, transformed, kind, epsilon):
    """One position's next state."""
    if kind == "paper":
        return norm(weights, prefix + "norm", x + mix[0] * attended + mix[1] * transformed, epsilon)
    first = norm(weights, prefix + "attention.norm", x + attended, epsilon)
    second = norm(weights, prefix + "feed_forward.norm", x + transformed, epsilon)
    return mix[0] * first + mix[1] * second + mix[2] * x


def plain_log_probs(weights, state, cutoffs):
    """Log-probabilities of all words for one state (d,): a softmax over head and tails, and one inside each tail."""
    head = linear(weights, "head.tables.0", state)
    if not cutoffs:
        return head.log_softmax(-1)
    head = torch.cat([head, linear(weights, "head.tail_entries", state)]).log_softmax(-1)
    parts = [head[: cutoffs[0]]]
    for tail in range(1, len(cutoffs) + 1):
        narrow = linear(weights, f"head.projections.{tail}", state)
        parts.append(head[cutoffs[0] + tail - 1] + linear(weights, f"head.tables.{tail}", narrow).log_softmax(-1))
    return torch.cat(parts)


def linear(weights, name, x):
    product = weights[name + ".weight"] @ x
    return product + weights[name + ".bias"] if name + ".bias" in weights else product


def norm(weights, name, x, epsilon):
    return F.layer_norm(x, x.shape, weights[name + ".weight"], weights[name + ".bias"], epsilon)
