"""The matrix products of an execution alone, at the numbers of rows that occur: what no bookkeeping can undercut."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from adadepth.halting.trace import ComputedSteps


def rows_of(computed: ComputedSteps) -> list[tuple[int, int]]:
    """Rows of queries and rows of keys that each iteration computed."""
    return list(zip(computed.queries.tolist(), computed.keys.tolist(), strict=True))


def make_products(block: Any, steps: Sequence[tuple[int, int]], training: bool) -> Callable[[], None]:
    """Return a function that runs only the matrix products of a block, and with `training` their gradients.

    Args:
        block: Of either ALBERT; they name their layers alike.
        steps: Rows of queries and of keys, iteration by iteration.
        training: Whether gradients are computed.
    """
    attention, most = block.attention, max(map(max, steps))
    layers = [attention.query, attention.key, attention.value, attention.dense, block.ffn, block.ffn_output]
    inputs = [torch.randn(most, layer.in_features).to(layer.weight) for layer in layers]
    gradients = [torch.randn(most, layer.out_features).to(layer.weight) for layer in layers]

    def multiply(layer: nn.Linear, state: Tensor, gradient: Tensor) -> None:
        if training:
            state = state.detach().requires_grad_()
            torch.autograd.grad(layer(state), (state, layer.weight, layer.bias), gradient)
        else:
            layer(state)

    def run() -> None:
        with torch.set_grad_enabled(training):
            for queries, keys in steps:
                rows = (queries, keys, keys, queries, queries, queries)
                for layer, state, gradient, count in zip(layers, inputs, gradients, rows, strict=True):
                    multiply(layer, state[:count], gradient[:count])

    return run
