"""Linear maps that train at the full width of a CPU's vectors.

torch gives float32 products to MKL, which uses AVX-512 on processors of its own maker alone; oneDNN, which comes with
torch too, uses it wherever there is any. On one core of an AMD EPYC 9005 that is 240 instead of 105 GFLOP/s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import FunctionCtx

# What oneDNN prepares for a new shape takes 0.3 ms, and every call some microseconds: below, MKL is as fast.
LEAST_MACS = 2**21
_LEAST_INNER = 16  # sums of fewer products are left to MKL
_IS_WIDE = (
    torch.backends.cpu.get_cpu_capability() == "AVX512"
    and torch.backends.mkldnn.is_available()
    and hasattr(torch.ops.mkldnn, "_linear_pointwise")
)


class Linear(nn.Linear):
    """x W' + b, (..., in) to (..., out), as `nn.Linear` up to rounding; with oneDNN where gradients are wanted.

    Shapes recur in training; in inference, where every length may be new, each would first be prepared.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Map the last dimension."""
        if not _is_faster(input, self.weight):
            return super().forward(input)
        product: Tensor = _Product.apply(input, self.weight, self.bias)
        return product


def _is_faster(state: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN has this product, and is worth its preparation."""
    return (
        _IS_WIDE
        and torch.is_grad_enabled()
        and state.device.type == weight.device.type == "cpu"
        and state.dtype == weight.dtype == torch.float32
        and state.numel() * len(weight) >= LEAST_MACS
        and not (torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling() or torch.jit.is_tracing())
    )


class _Product(Function):
    """x W' + b. The gradients are products of the same kind, so they have gradients, too."""

    generate_vmap_rule = True

    @staticmethod
    def forward(state: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return _multiply(state, weight, bias)

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        state, weight = ctx.saved_tensors
        of_state, of_weight, of_bias = ctx.needs_input_grad
        # oneDNN knows matrices and transposed ones; of a part of a larger matrix it makes a thousand times the work.
        gradient = gradient.contiguous()
        product = _Product.apply if torch.is_grad_enabled() else _multiply  # gradients of gradients are seldom wanted
        rows = gradient.flatten(0, -2)
        return (
            product(gradient, weight.t(), None) if of_state else None,
            _transposed_product(product, rows, state.contiguous().flatten(0, -2)) if of_weight else None,
            rows.sum(dim=0) if of_bias else None,
        )


def _multiply(state: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if state.shape[-1] < _LEAST_INNER:
        return nn.functional.linear(state, weight, bias)
    product: Tensor = torch.ops.mkldnn._linear_pointwise(state, weight, bias, "none", [], "")
    return product


def _transposed_product(product: Callable[..., Tensor], left: Tensor, right: Tensor) -> Tensor:
    """A' B of (n, a) and (n, b), (a, b). oneDNN is faster with the narrower one first."""
    if left.shape[1] > right.shape[1]:
        return product(right.t(), left.t(), None).t()
    return product(left.t(), right.t(), None)
