"""Layers shared by several families: fast dropout, linear layers with oneDNN, positions, new halting units."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.utils.flop_counter import register_flop_formula
from transformers import initialization as init
from transformers.activations import GELUTanh

from adadepth.halting.units import HaltingProjection, HaltingUnit

_LEVELS = 2**16
_MIN_BIT_MASK_SIZE = 2**12  # values from which on the cheaper draw saves more than its extra calls cost


class Dropout(nn.Dropout):
    """`nn.Dropout` that draws large CPU masks from 16 random bits per value, six times faster than torch's dropout.

    For such masks, p is rounded to a multiple of 2^-16. Kept values are divided by the rounded 1 - p, so that the mean
    is exact.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Set values to 0 with probability p, and divide all others by 1 - p."""
        if not self._uses_bit_mask(input):
            return super().forward(input)
        mask, scale = _draw_mask(input, self.p)
        return input * mask.mul_(scale)

    def added(self, state: Tensor, change: Tensor) -> Tensor:
        """Apply dropout to a change, and add it to a state of the same shape (residual connection)."""
        if not self._uses_bit_mask(change):
            return state + super().forward(change)
        mask, scale = _draw_mask(change, self.p)
        return torch.addcmul(state, change, mask, value=scale)

    def _uses_bit_mask(self, state: Tensor) -> bool:
        is_active = self.training and 0 < self.p < 1 and not torch.compiler.is_compiling()
        return is_active and state.device.type == "cpu" and state.numel() >= _MIN_BIT_MASK_SIZE


def _draw_mask(like: Tensor, probability: float) -> tuple[Tensor, float]:
    """Draw a dropout mask, 1 for kept and 0 for dropped values, and return it with the factor of kept values.

    Args:
        like: Tensor on the CPU with the shape and dtype of the mask.
        probability: Probability that a value is dropped, in (0, 1).
    """
    dropped = min(round(probability * _LEVELS), _LEVELS - 1)
    words = torch.empty(-(-like.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    bits = words.view(torch.int16)[: like.numel()].view(like.shape)
    mask = torch.ge(bits, dropped - _LEVELS // 2, out=torch.empty(like.shape, dtype=like.dtype))
    return mask, _LEVELS / (_LEVELS - dropped)


def sinusoidal_positions(length: int, like: Tensor) -> Tensor:
    """Return the sinusoidal position encodings of Vaswani et al. 2017 (arXiv 1706.03762), section 3.5, (T, k).

    Columns alternate between sines and cosines.

    Args:
        length: Number of positions T, without an upper limit.
        like: Tensor with the width k as its last dimension, and the dtype and device of the result, (..., k).
    """
    width = like.shape[-1]
    positions = torch.arange(length, device=like.device, dtype=torch.float32).unsqueeze(1)
    steps = torch.arange(0, width, 2, device=like.device, dtype=torch.float32)
    angles = positions * 10000.0 ** (-steps / width)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :width].to(like.dtype)


# Multiply-accumulates below which oneDNN's preparations take longer than its products save.
_LEAST_WORK = 1e6
_LEAST_INNER = 16  # width below which MKL multiplies
_PLAIN_TYPES = (Tensor, nn.Parameter)


def whole(parameter: Tensor) -> Tensor:
    """Return a parameter without gradient tracking; a sharded parameter is first gathered from all processes."""
    values = parameter.detach()
    gather: Callable[[], Tensor] = getattr(values, "full_tensor", lambda: values)
    return gather()


@torch.no_grad()
def init_halting_unit(module: nn.Module) -> None:
    """Initialise a halting unit after the general initialisation of transformers; other modules stay as they are.

    A linear layer gets its bias. Another unit gets the weights of a new one, so that its `__init__` alone determines
    them. Weights that were loaded stay.
    """
    if isinstance(module, HaltingProjection):
        init.constant_(module.bias, module.bias_init)
    elif isinstance(module, HaltingUnit):
        new = module.rebuild()
        pairs = zip((*module.parameters(), *module.buffers()), (*new.parameters(), *new.buffers()), strict=True)
        for weight, value in pairs:
            init.copy_(weight, value)


class Product(nn.Linear):
    """Drop-in replacement for `nn.Linear` that uses oneDNN where that is faster.

    The results equal those of `nn.Linear` up to rounding.
    """

    def forward(self, state: Tensor) -> Tensor:
        """Return x W' + b, (..., O), for inputs x, (..., I)."""
        return product(state, self.weight, self.bias)


def use_plain_linear_layers(module: nn.Module) -> None:
    """Turn every `Product` in a module into an `nn.Linear`, because quantizers replace only layers of that class."""
    for layer in module.modules():
        if type(layer) is Product:
            layer.__class__ = nn.Linear  # type: ignore[assignment]


def product(state: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x W' + b, (..., O), for x, (..., I), and W, (O, I), equal to `nn.functional.linear` up to rounding."""
    if not _should_use_onednn(state, weight):
        return nn.functional.linear(state, weight, bias)
    if not torch.is_grad_enabled():
        return _multiply(state, weight, bias)
    result: Tensor = _OneDnn.apply(state, weight, bias)
    return result


def apply_linear_and_activation(layer: nn.Module, activation: nn.Module, state: Tensor) -> Tensor:
    """Return activation(layer(x)), (..., O), computed by one kernel in inference without hooks."""
    if (
        not torch.is_grad_enabled()
        and type(layer) is Product
        and type(activation) is GELUTanh
        and _should_use_onednn(state, layer.weight)
        and not (_has_hooks(layer) or _has_hooks(activation))
    ):
        return _multiply(state, layer.weight, layer.bias, "gelu")
    result: Tensor = activation(layer(state))
    return result


def _has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


@cache
def onednn_is_faster() -> bool:
    """Return whether the processor is an AMD processor with AVX-512, on which oneDNN was measured to be faster."""
    if not hasattr(torch.cpu, "get_capabilities") or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    processor = torch.cpu.get_capabilities()
    return "AMD" in str(processor.get("cpu_name")) and bool(processor.get("avx512_f"))


def _should_use_onednn(state: Tensor, weight: Tensor) -> bool:
    """Return whether oneDNN should compute the product of two tensors.

    They must be plain float32 tensors on a CPU, outside of compiled graphs.
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return False
    # The size comes first: for a small product the checks below take as long as the product.
    if state.numel() * weight.shape[0] < _LEAST_WORK or torch.is_autocast_enabled("cpu"):
        return False
    is_plain = type(state) in _PLAIN_TYPES and type(weight) in _PLAIN_TYPES
    if not is_plain or state.device.type != "cpu" or state.dtype != torch.float32 or weight.dtype != torch.float32:
        return False
    return onednn_is_faster()


class _OneDnn(torch.autograd.Function):
    """Autograd function for x W' + b with oneDNN, whose gradients also use oneDNN and are differentiable."""

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
        needs_state, needs_weight, needs_bias = ctx.needs_input_grad
        # oneDNN multiplies contiguous and transposed matrices; a part of a larger matrix takes a thousand times longer.
        gradient = gradient.contiguous()
        multiply = _OneDnn.apply if torch.is_grad_enabled() else _multiply  # second derivatives are rare
        rows = gradient.flatten(0, -2)
        return (
            multiply(gradient, weight.t(), None) if needs_state else None,
            _multiply_transposed(multiply, rows, state.contiguous().flatten(0, -2)) if needs_weight else None,
            rows.sum(dim=0) if needs_bias else None,
        )


def _multiply_transposed(multiply: Callable[..., Tensor], a: Tensor, b: Tensor) -> Tensor:
    """Return A' B, (O, I), for A, (P, O), and B, (P, I). oneDNN is faster with the narrower matrix first."""
    if a.shape[1] > b.shape[1]:
        return multiply(b.t(), a.t(), None).t()
    return multiply(a.t(), b.t(), None)


def _multiply(state: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str = "none") -> Tensor:
    """Return activation(x W' + b), (..., O). The activation is `none`, or `gelu` in its tanh form."""
    if state.shape[-1] < _LEAST_INNER and activation == "none":
        return nn.functional.linear(state, weight, bias)
    result: Tensor = torch.ops.mkldnn._linear_pointwise(state, weight, bias, activation, [], "tanh")
    return result


def _count_flops(state: torch.Size, weight: torch.Size, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """Return the floating-point operations of x W', which torch's FLOP counter does not know for oneDNN."""
    return 2 * state.numel() * weight[0]


if hasattr(torch.ops.mkldnn, "_linear_pointwise"):
    register_flop_formula(torch.ops.mkldnn._linear_pointwise)(_count_flops)
