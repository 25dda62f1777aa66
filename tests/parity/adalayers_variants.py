"""Layout of the original Adalayers heads, its position embeddings, and its defects where they change a number."""

import math

import torch


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


def add_positions(features):
    """F plus sinusoids of the positions, (B, T, k)."""
    length, width = features.shape[1:]
    return features + torch.tensor([[sinusoid(t, i, width) for i in range(width)] for t in range(length)])


def sinusoid(position, index, width):
    angle = position / 10000 ** ((index - index % 2) / width)
    return math.cos(angle) if index % 2 else math.sin(angle)


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
