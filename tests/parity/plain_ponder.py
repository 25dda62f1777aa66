"""The PonderALBERT classifier written as plainly as possible, on the parameters' names of the reference classifier.

The independent truth for the model: additive mask of -10000, one head at a time, halting in Python floats.
"""

import math

import torch
import torch.nn.functional as F


def reference_layout(vocab, positions, embedding, hidden, inner, classes, head=128):
    """Names and shapes of the reference classifier's parameters."""
    shapes = {
        "embeddings.word_embeddings.weight": (vocab, embedding),
        "embeddings.position_embeddings.weight": (positions, embedding),
        "embeddings.token_type_embeddings.weight": (2, embedding),
        "embeddings.LayerNorm.weight": (embedding,),
        "embeddings.LayerNorm.bias": (embedding,),
        "embedding_hidden_mapping_in.weight": (hidden, embedding),
        "embedding_hidden_mapping_in.bias": (hidden,),
        "albert_layer.attention.LayerNorm.weight": (hidden,),
        "albert_layer.attention.LayerNorm.bias": (hidden,),
        "albert_layer.ffn.weight": (inner, hidden),
        "albert_layer.ffn.bias": (inner,),
        "albert_layer.ffn_output.weight": (hidden, inner),
        "albert_layer.ffn_output.bias": (hidden,),
        "albert_layer.full_layer_layer_norm.weight": (hidden,),
        "albert_layer.full_layer_layer_norm.bias": (hidden,),
        "classifier.0.weight": (head, hidden),
        "classifier.0.bias": (head,),
        "classifier.2.weight": (classes, head),
        "classifier.2.bias": (classes,),
        "ponder.0.weight": (head, hidden),
        "ponder.0.bias": (head,),
        "ponder.2.weight": (1, head),
        "ponder.2.bias": (1,),
    }
    for part in ("query", "key", "value", "dense"):
        shapes[f"albert_layer.attention.{part}.weight"] = (hidden, hidden)
        shapes[f"albert_layer.attention.{part}.bias"] = (hidden,)
    return shapes


def plain_ponder(weights, ids, mask, segments, steps, heads, epsilon):
    """Step logits (N, B, C) and halting probabilities, a list of N floats for every example."""
    e = "embeddings."
    x = weights[e + "word_embeddings.weight"][ids] + weights[e + "token_type_embeddings.weight"][segments]
    x = x + weights[e + "position_embeddings.weight"][torch.arange(ids.shape[1])]
    x = linear(weights, "embedding_hidden_mapping_in", norm(weights, e + "LayerNorm", x, epsilon))
    additive = (1.0 - mask.float()) * -10000.0
    logits, probabilities = [], [[] for _ in ids]
    for _ in range(steps):
        x = torch.stack([layer(weights, row, bias, heads, epsilon) for row, bias in zip(x, additive, strict=True)])
        logits.append(linear(weights, "classifier.2", F.gelu(linear(weights, "classifier.0", x[:, 0]))))
        halting = linear(weights, "ponder.2", F.gelu(linear(weights, "ponder.0", x[:, 1])))
        for example, value in enumerate(halting[:, 0].tolist()):
            probabilities[example].append(1.0 / (1.0 + math.exp(-value)))
    return torch.stack(logits), probabilities


def layer(weights, x, bias, heads, epsilon):
    """One application of the shared layer to one sequence (T, H)."""
    a = "albert_layer.attention."
    q, k, v = (linear(weights, a + part, x) for part in ("query", "key", "value"))
    width = x.shape[1] // heads
    contexts = []
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        contexts.append(torch.softmax(q[:, part] @ k[:, part].T / math.sqrt(width) + bias, dim=-1) @ v[:, part])
    attended = norm(weights, a + "LayerNorm", linear(weights, a + "dense", torch.cat(contexts, -1)) + x, epsilon)
    inner = F.gelu(linear(weights, "albert_layer.ffn", attended), approximate="tanh")
    output = linear(weights, "albert_layer.ffn_output", inner)
    return norm(weights, "albert_layer.full_layer_layer_norm", output + attended, epsilon)


def plain_losses(logits, pmfs, labels, prior_probability, factor):
    """The reference's two loss parts: both means over steps and examples of p CE, and factor KL(p || prior)."""
    prior = plain_pmf([prior_probability] * len(pmfs[0]), "renormalise")
    task = divergence = 0.0
    for example, (pmf, label) in enumerate(zip(pmfs, labels, strict=True)):
        for step, p in enumerate(pmf):
            task += p * -float(torch.log_softmax(logits[step, example], dim=-1)[label])
            divergence += p * math.log(p / prior[step])
    return task / (len(pmfs) * len(prior)), factor * divergence / len(pmfs)


def linear(weights, name, x):
    return x @ weights[name + ".weight"].T + weights[name + ".bias"]


def norm(weights, name, x, epsilon):
    return F.layer_norm(x, x.shape[-1:], weights[name + ".weight"], weights[name + ".bias"], epsilon)


def plain_pmf(lambdas, truncation):
    """p_n of one row, by the definition, in double precision."""
    pmf, reached = [], 1.0
    for probability in lambdas:
        is_replaced = truncation == "palbert" and sum(pmf) > 0.95  # `current_cdf` of palbert_fast.py
        pmf.append(0.05 / len(lambdas) if is_replaced else reached * probability)
        reached *= 1.0 - probability
    if truncation == "leftover":
        pmf[-1] += reached
    if truncation == "renormalise":
        pmf = [p / (1.0 - reached) for p in pmf]
    return pmf
