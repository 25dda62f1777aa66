"""The product of many rows with a weight, by the fastest kernel that a CPU has.

torch's own products in float32 are MKL's, which on some makers' processors reach less than half of what oneDNN does,
which torch carries too; decision 0031 has the figures. Shape legend: K and k widths of input and output.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

# Multiply-accumulates below which a call of oneDNN costs more than its kernel saves.
_WORTH_A_CALL = 2**20


def product(values: Tensor, weight: Tensor) -> Tensor:
    """Rows times a weight, V W': (..., K) and (k, K) to (..., k)."""
    if _suits_onednn(values, weight):
        result: Tensor = _Product.apply(values, weight)
        return result
    return nn.functional.linear(values, weight)


def _suits_onednn(values: Tensor, weight: Tensor) -> bool:
    return (
        values.device.type == "cpu"
        and values.dtype == weight.dtype == torch.float32
        and values.numel() * len(weight) >= _WORTH_A_CALL
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and torch.backends.mkldnn.is_available()
    )


def _onednn(values: Tensor, weight: Tensor) -> Tensor:
    # What torch's compiler calls; there is no public name for float32 at full precision.
    result: Tensor = torch.ops.mkldnn._linear_pointwise(values, weight, None, "none", [], "")
    return result


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(values, weight)
        return _onednn(values, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        (values, weight), (gradient,) = ctx.saved_tensors, gradients
        of_values, of_weight = ctx.needs_input_grad
        return (
            _onednn(gradient, weight.t()) if of_values else None,
            _onednn(gradient.flatten(0, -2).t(), values.flatten(0, -2).t()) if of_weight else None,
        )
