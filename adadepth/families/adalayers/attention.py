"""Self-attention of the head, on a CPU without what costs torch's own more than its products.

torch draws a number for each of the T^2 dropped weights there, and looks through all scores for rows without a key.
Shape legend: B batch, T tokens, k width, A heads, d = k / A.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from adadepth.families.shared.products import product


def attend(attention: nn.MultiheadAttention, dropout: nn.Module, features: Tensor, mask: Tensor | None) -> Tensor:
    """Every token attends to the real ones, (B, T, k) to (B, T, k).

    Args:
        attention: The weights; tokens first, because its fast path for batches first would keep the scores of all
            pairs of tokens, more than a long text's base needs.
        dropout: On the attention's weights, with the attention's own probability.
        features: (B, T, k).
        mask: (B, T), 0 at padding; None if all tokens are real.
    """
    if features.device.type == "cpu":
        return _attend_on_cpu(attention, dropout, features, mask)
    tokens, padding = features.transpose(0, 1), None if mask is None else mask.eq(0)
    attended, _ = attention(tokens, tokens, tokens, padding, need_weights=False)
    result: Tensor = attended.transpose(0, 1)
    return result


def _attend_on_cpu(
    attention: nn.MultiheadAttention, dropout: nn.Module, features: Tensor, mask: Tensor | None
) -> Tensor:
    projected = product(features, attention.in_proj_weight) + attention.in_proj_bias
    query, key, value = projected.unflatten(-1, (3, attention.num_heads, -1)).permute(2, 0, 3, 1, 4)  # (B, A, T, d)
    bias = None
    if mask is not None:  # finite, so that a text without tokens has no NaN
        bias = mask.eq(0)[:, None, None].to(query.dtype) * torch.finfo(query.dtype).min
    if attention.training and attention.dropout > 0:
        scores = attention.head_dim**-0.5 * query @ key.transpose(-1, -2)
        context = dropout((scores if bias is None else scores + bias).softmax(dim=-1)) @ value
    else:
        context = nn.functional.scaled_dot_product_attention(query, key, value, bias)
    # Tokens first, as torch's module lays them out: small masks that follow are drawn in the order of memory.
    attended = product(context.permute(2, 0, 1, 3).flatten(2), attention.out_proj.weight) + attention.out_proj.bias
    return attended.transpose(0, 1)
