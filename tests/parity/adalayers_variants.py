"""Parameter shapes of the original Adalayers heads, their position embeddings and their defective losses."""

import math

import torch


def build_reference_layout(kind, layers, width, k, classes, encoder_layers=1, ff=24):
    """Return names and shapes of a reference head's parameters."""
    shapes = {f"projectors.{i}.weight": (k, width) for i in range(layers)} | {"distribution": (layers, 1)}
    if kind == "sequence":
        shapes |= build_attention_layout("self_attention.", k)
    for j in range(encoder_layers if kind == "tokens" else 0):
        e = f"encoder_layers.{j}."
        shapes |= build_attention_layout(e + "self_attn.", k)
        shapes |= {e + "linear1.weight": (ff, k), e + "linear1.bias": (ff,)}
        shapes |= {e + "linear2.weight": (k, ff), e + "linear2.bias": (k,)}
        shapes |= {e + f"norm{n}.{part}": (k,) for n in (1, 2) for part in ("weight", "bias")}
    return shapes | {"logits.weight": (classes, k), "logits.bias": (classes,)}


def build_attention_layout(prefix, k):
    return {
        prefix + "in_proj_weight": (3 * k, k),
        prefix + "in_proj_bias": (3 * k,),
        prefix + "out_proj.weight": (k, k),
        prefix + "out_proj.bias": (k,),
    }


def add_positions(features):
    """Return F plus sinusoids of the positions, (B, T, k)."""
    length, width = features.shape[1:]
    return features + torch.tensor([[compute_sinusoid(t, i, width) for i in range(width)] for t in range(length)])


def compute_sinusoid(position, index, width):
    angle = position / 10000 ** ((index - index % 2) / width)
    return math.cos(angle) if index % 2 else math.sin(angle)


def compute_plain_entropy_penalty(distribution):
    """Compute the penalty of the original: the mean over layers instead of the sum."""
    return sum(-p * math.log(p + 1e-6) for p in distribution) / len(distribution)


def compute_plain_cross_entropy(logits, labels, class_weights=None):
    """Compute the mean over targets, weighted by their classes."""
    total = count = 0.0
    for row, label in zip(logits.flatten(0, -2), labels.flatten().tolist(), strict=True):
        if label >= 0:
            weight = 1.0 if class_weights is None else class_weights[label]
            total, count = total - weight * float(torch.log_softmax(row, -1)[label]), count + weight
    return total / count


def compute_plain_focal(logits, labels, alpha, gamma, class_weights=None):
    """Compute the original's loss: weighted cross-entropy gives the probabilities, ignored tokens count in the mean."""
    total = 0.0
    for row, label in zip(logits.flatten(0, -2), labels.flatten().tolist(), strict=True):
        if label >= 0:
            weight = 1.0 if class_weights is None else class_weights[label]
            loss = -weight * float(torch.log_softmax(row, -1)[label])
            total += alpha * (1 - math.exp(-loss)) ** gamma * loss
    return total / labels.numel()
