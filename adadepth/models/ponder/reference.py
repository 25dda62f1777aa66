"""PonderALBERT as its papers define it: one sequence, one step and one head at a time, with torch alone.

PonderNet (Banino, Balaguer & Blundell 2021, arXiv 2107.05407) on ALBERT, with two [CLS] tokens: the first predicts, the
second ponders. For every sequence, n = 1..N, and prior g_n of a geometric distribution with parameter lambda_p:

    x_0      = W LN(word + segment + position)                                                    (1)
    x_n      = block(x_{n-1})                                  all steps share the block          (2)
    logits_n = classifier(x_n[0])                                                                 (3)
    lambda_n = sigmoid(halting head(x_n[1]))                   stop now, if not stopped before    (4)
    p_n      = lambda_n prod_{j<n} (1 - lambda_j) / (1 - prod_{j<=N} (1 - lambda_j))              (5)
    L        = mean over sequences of  sum_n p_n CE(logits_n, y) + beta sum_n p_n log(p_n / g_n)  (6)
    exit     = smallest n with 1 - prod_{j<=n} (1 - lambda_j) > u                                 (7)

PonderNet draws u in (7) from U(0, 1); the Q-exit of PALBERT (arXiv 2204.03276) has u = 1/2. `modeling.py` computes
(1) to (4) for a batch, `adadepth/halting/distribution.py` (5) and (6) in log space, and exit rules (7) online.
Shape legend: B sequences, T tokens, H hidden width, C classes, N steps.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

Weights = Mapping[str, Tensor]  # parameters by their names in the state dict


class Output(NamedTuple):
    """Results of a batch."""

    step_logits: Tensor  # of every step, (B, N, C)
    halting_probabilities: Tensor  # lambda_n, (B, N)
    pmf: Tensor  # p_n, (B, N)
    exit_steps: list[int]  # step of every sequence, from 1
    logits: Tensor  # of the step at which each sequence exits, (B, C)
    loss: Tensor
    loss_parts: dict[str, Tensor]  # task and kl, which sum to the loss


def forward(
    weights: Weights, input_ids: Tensor, token_type_ids: Tensor,  # (B, T), beginning with two [CLS]
    attention_mask: Tensor,  # 1 at real tokens, (B, T)
    labels: Tensor,  # classes, (B,)
    levels: Tensor,  # u of every sequence, (B,)
    *,
    num_hidden_layers: int,  # N
    num_attention_heads: int, layer_norm_eps: float,
    target_halt_probability: float,  # lambda_p
    kl_penalty_factor: float,  # beta
) -> Output:  # fmt: skip
    """Compute all steps, the halting distribution, the exits and the loss of a batch of labelled sequences."""
    geometric = [torch.tensor(target_halt_probability, dtype=torch.float64)] * num_hidden_layers
    prior = normalise_masses(*compute_masses(geometric))
    all_logits, lambdas, pmfs, exits = [], [], [], []
    task, divergence = torch.zeros(()), torch.zeros(())
    for b in range(len(input_ids)):
        real = attention_mask[b].nonzero().squeeze(1)
        x = embed(weights, input_ids[b, real], token_type_ids[b, real], real, layer_norm_eps)  # (1), (T, H)
        row_logits, row_lambdas = [], []
        for _ in range(num_hidden_layers):
            x = apply_block(weights, x, num_attention_heads, layer_norm_eps)  # (2)
            row_logits.append(apply_head(weights, "classifier", x[0]))  # (3), (C,)
            row_lambdas.append(torch.sigmoid(apply_head(weights, "ponder", x[1]).double())[0])  # (4)
        masses, remaining = compute_masses(row_lambdas)
        pmf = normalise_masses(masses, remaining)  # (5)
        for n in range(num_hidden_layers):  # (6)
            task = task - pmf[n] * row_logits[n].log_softmax(-1)[labels[b]]
            divergence = divergence + pmf[n] * (pmf[n] / prior[n]).log()
        exits.append(find_exit(row_lambdas, float(levels[b])))
        all_logits.append(torch.stack(row_logits))
        lambdas.append(torch.stack(row_lambdas))
        pmfs.append(torch.stack(pmf))
    parts = {"task": task / len(labels), "kl": kl_penalty_factor * divergence / len(labels)}
    logits = torch.stack([rows[step - 1] for rows, step in zip(all_logits, exits, strict=True)])
    steps = (torch.stack(all_logits), torch.stack(lambdas), torch.stack(pmfs))
    return Output(*steps, exits, logits, parts["task"] + parts["kl"], parts)


def compute_masses(lambdas: Sequence[Tensor]) -> tuple[list[Tensor], Tensor | float]:
    """Return the probability of each step before the division in (5), and that of none of the N steps."""
    masses: list[Tensor] = []
    remaining: Tensor | float = 1.0
    for probability in lambdas:
        masses.append(remaining * probability)
        remaining = remaining * (1.0 - probability)
    return masses, remaining


def normalise_masses(masses: Sequence[Tensor], remaining: Tensor | float) -> list[Tensor]:
    """Return the distribution (5) over the N steps."""
    return [mass / (1.0 - remaining) for mass in masses]


def find_exit(lambdas: Sequence[Tensor], level: float) -> int:
    """Return the step (7) at which a sequence exits, the last one if no step reaches the level."""
    remaining = 1.0
    for n, probability in enumerate(lambdas, start=1):
        remaining *= 1.0 - probability.item()
        if 1.0 - remaining > level:
            return n
    return len(lambdas)


def embed(weights: Weights, ids: Tensor, segments: Tensor, positions: Tensor, epsilon: float) -> Tensor:
    """Return x_0 of equation (1), (T, H), from three numbers of each token, (T,)."""
    e = "albert.embeddings."
    x = weights[e + "word_embeddings.weight"][ids] + weights[e + "token_type_embeddings.weight"][segments]
    x = normalise_states(weights, e + "LayerNorm", x + weights[e + "position_embeddings.weight"][positions], epsilon)
    return apply_linear(weights, "albert.encoder.embedding_hidden_mapping_in", x)


def apply_block(weights: Weights, x: Tensor, heads: int, epsilon: float) -> Tensor:
    """Apply the shared post-norm block of ALBERT to the states of a sequence, (T, H), head by head."""
    name = "albert.encoder.albert_layer."
    q, k, v = (apply_linear(weights, f"{name}attention.{part}", x) for part in ("query", "key", "value"))
    contexts, width = [], x.shape[-1] // heads
    for part in (slice(head * width, (head + 1) * width) for head in range(heads)):
        scores = q[:, part] @ k[:, part].T / math.sqrt(width)
        contexts.append(torch.softmax(scores, dim=-1) @ v[:, part])
    attended = apply_linear(weights, name + "attention.dense", torch.cat(contexts, dim=-1))
    a = normalise_states(weights, name + "LayerNorm", attended + x, epsilon)
    inner = F.gelu(apply_linear(weights, name + "ffn", a), approximate="tanh")
    output = apply_linear(weights, name + "ffn_output", inner)
    return normalise_states(weights, name + "full_layer_layer_norm", output + a, epsilon)


def apply_head(weights: Weights, name: str, x: Tensor) -> Tensor:
    """Apply a head of two linear layers to the state of a [CLS] token, (H,)."""
    return apply_linear(weights, name + ".2", F.gelu(apply_linear(weights, name + ".0", x)))


def apply_linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    """Return W x + b of the module with this name."""
    return x @ weights[name + ".weight"].T + weights[name + ".bias"]


def normalise_states(weights: Weights, name: str, x: Tensor, epsilon: float) -> Tensor:
    """Return the layer norm of this name over the last dimension."""
    return F.layer_norm(x, x.shape[-1:], weights[name + ".weight"], weights[name + ".bias"], epsilon)
