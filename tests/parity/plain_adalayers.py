"""The reference Adalayers written as plainly as possible, on the reference's parameter names, for given hidden states.

The independent truth for the model: all layers stacked as in the original, attention one head at a time, and the
original's defects where they change a number.
"""

import math

import torch
import torch.nn.functional as F


def reference_layout(kind, layers, width, k, classes, encoder_layers=1, ff=24):
    """Names and shapes of a reference head's parameters."""
    shapes = {f"projectors.{i}.weight": (k, width) for i in range(layers)} | {"distribution": (layers, 1)}
    if kind == "sequence":
        shapes |= attention_layout("self_attention.", k)
    for j in range(encoder_layers if kind == "tokens" else 0):
        e = f"encoder_layers.{j}."
        shapes |= attention_layout(e + "self_attn.", k)
        shapes |= {e + "linear1.weight": (ff, k), e + "linear1.bias": (ff,)}
        shapes |= {e + "linear2.weight": (k, ff), e + "linear2.bias": (k,)}
        shapes |= {e + f"norm{n}.{part}": (k,) for n in (1, 2) for part in ("weight", "bias")}
    return shapes | {"logits.weight": (classes, k), "logits.bias": (classes,)}


def attention_layout(prefix, k):
    return {
        prefix + "in_proj_weight": (3 * k, k),
        prefix + "in_proj_bias": (3 * k,),
        prefix + "out_proj.weight": (k, k),
        prefix + "out_proj.bias": (k,),
    }


def plain_distribution(weights, alpha, cutoff=0.0):
    """The weights of the layers, a list of floats."""
    powers = [math.exp(alpha * p) for p in weights["distribution"].flatten().tolist()]
    values = [power / sum(powers) for power in powers]
    values = [value if value > cutoff else 0.0 for value in values]
    return [value / sum(values) for value in values]


def plain_features(weights, hidden_states, alpha, cutoff=0.0, positions=False):
    """F, (B, T, k): the shorter of the hidden states and the projectors decides the number of layers."""
    projectors = [w for name, w in weights.items() if name.startswith("projectors.")]
    stacked = torch.stack(
        [
            F.layer_norm(F.gelu(state) @ projector.T, (projector.shape[0],))
            for state, projector in zip(hidden_states, projectors, strict=False)
        ],
        dim=-1,
    )
    features = F.gelu(stacked @ torch.tensor(plain_distribution(weights, alpha, cutoff)))
    if positions:
        features = features + torch.tensor(
            [[sinusoid(t, i, features.shape[-1]) for i in range(features.shape[-1])] for t in range(features.shape[1])]
        )
    return features


def sinusoid(position, index, width):
    angle = position / 10000 ** ((index - index % 2) / width)
    return math.cos(angle) if index % 2 else math.sin(angle)


def plain_sequence_logits(weights, features, mask, heads):
    rows = []
    for x, real in zip(features, mask.bool(), strict=True):
        attended = F.gelu(attention(weights, "self_attention.", x, real, heads))
        rows.append(linear(weights, "logits", attended[real].mean(dim=0)))
    return torch.stack(rows)


def plain_token_logits(weights, features, mask, heads, encoder_layers=1):
    rows = []
    for x, real in zip(features, mask.bool(), strict=True):
        for j in range(encoder_layers):
            e = f"encoder_layers.{j}."
            x = x + attention(weights, e + "self_attn.", norm(weights, e + "norm1", x), real, heads)
            x = x + linear(
                weights, e + "linear2", F.gelu(linear(weights, e + "linear1", norm(weights, e + "norm2", x)))
            )
        rows.append(linear(weights, "logits", x))
    return torch.stack(rows)


def attention(weights, prefix, x, real, heads):
    """Self-attention of one sequence (T, k) that looks at its real tokens only."""
    projected = x @ weights[prefix + "in_proj_weight"].T + weights[prefix + "in_proj_bias"]
    q, k, v = projected.chunk(3, dim=-1)
    width = x.shape[1] // heads
    outputs = []
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        scores = q[:, part] @ k[real, part].T / math.sqrt(width)
        outputs.append(torch.softmax(scores, dim=-1) @ v[real, part])
    return linear(weights, prefix + "out_proj", torch.cat(outputs, dim=-1))


def plain_entropy_penalty(distribution):
    """The original's: the mean over layers, not the sum."""
    return sum(-p * math.log(p + 1e-6) for p in distribution) / len(distribution)


def plain_cross_entropy(logits, labels, class_weights=None):
    """The mean over targets, weighted by their classes."""
    total = count = 0.0
    for row, label in zip(logits.flatten(0, -2), labels.flatten().tolist(), strict=True):
        if label >= 0:
            weight = 1.0 if class_weights is None else class_weights[label]
            total, count = total - weight * float(torch.log_softmax(row, -1)[label]), count + weight
    return total / count


def plain_focal(logits, labels, alpha, gamma, class_weights=None):
    """The original's: probabilities from the weighted cross-entropy, the mean over ignored tokens too."""
    total = 0.0
    for row, label in zip(logits.flatten(0, -2), labels.flatten().tolist(), strict=True):
        if label >= 0:
            weight = 1.0 if class_weights is None else class_weights[label]
            loss = -weight * float(torch.log_softmax(row, -1)[label])
            total += alpha * (1 - math.exp(-loss)) ** gamma * loss
    return total / labels.numel()


def linear(weights, name, x):
    return x @ weights[name + ".weight"].T + weights[name + ".bias"]


def norm(weights, name, x):
    return F.layer_norm(x, x.shape[-1:], weights[name + ".weight"], weights[name + ".bias"])
