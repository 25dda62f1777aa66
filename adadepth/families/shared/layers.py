"""Small layers that several families use."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.utils.flop_counter import register_flop_formula
from transformers.activations import GELUTanh

_LEVELS = 2**16
_WORTH_FOUR_CALLS = 2**12  # values from which on the cheaper draw saves more than its further calls cost


class Dropout(nn.Dropout):
    """`nn.Dropout`; on a CPU a large mask takes 16 random bits a value, drawn six times faster than torch's own.

    There p is rounded to a multiple of 2^-16, and what is kept divided by the rounded 1 - p, so that the mean is exact.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Set values to 0 with probability p, and divide the others by 1 - p."""
        if not self._draws_bits(input):
            return super().forward(input)
        kept, scale = _drawn(input, self.p)
        return input * kept.mul_(scale)

    def added(self, state: Tensor, change: Tensor) -> Tensor:
        """Add what dropout leaves of a change to a state of its shape."""
        if not self._draws_bits(change):
            return state + super().forward(change)
        kept, scale = _drawn(change, self.p)
        return torch.addcmul(state, change, kept, value=scale)

    def _draws_bits(self, state: Tensor) -> bool:
        acts = self.training and 0 < self.p < 1 and not torch.compiler.is_compiling()
        return acts and state.device.type == "cpu" and state.numel() >= _WORTH_FOUR_CALLS


def _drawn(like: Tensor, probability: float) -> tuple[Tensor, float]:
    """1 at what is kept and 0 elsewhere, in a tensor's shape and type; and the factor of what is kept."""
    dropped = min(round(probability * _LEVELS), _LEVELS - 1)
    words = torch.empty(-(-like.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    bits = words.view(torch.int16)[: like.numel()].view(like.shape)
    kept = torch.ge(bits, dropped - _LEVELS // 2, out=torch.empty(like.shape, dtype=like.dtype))
    return kept, _LEVELS / (_LEVELS - dropped)


def sinusoidal_positions(length: int, like: Tensor) -> Tensor:
    """Vaswani et al. 2017 (arXiv 1706.03762), section 3.5: sines and cosines in turn, (T, k), for any length."""
    width = like.shape[-1]
    positions = torch.arange(length, device=like.device, dtype=torch.float32).unsqueeze(1)
    steps = torch.arange(0, width, 2, device=like.device, dtype=torch.float32)
    angles = positions * 10000.0 ** (-steps / width)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :width].to(like.dtype)


# Multiply-accumulates below which its preparations take longer than what it saves.
_LEAST_WORK = 1e6
_LEAST_INNER = 16  # sums of fewer products are left to MKL
_PLAIN = (Tensor, nn.Parameter)


def whole(parameter: Tensor) -> Tensor:
    """A parameter without its gradient; all of it, where each process holds a shard."""
    found = parameter.detach()
    gather: Callable[[], Tensor] = getattr(found, "full_tensor", lambda: found)
    return gather()


def linear_in_float32(layer: nn.Linear, state: Tensor) -> Tensor:
    """W x + b in float32, whatever type the model, or autocast, computes in: (..., H) to (..., outputs)."""
    if torch.is_autocast_enabled(device := state.device.type):  # the context is not free either
        with torch.autocast(device, enabled=False):
            return linear_in_float32(layer, state)
    assert layer.bias is not None
    return nn.functional.linear(state.float(), layer.weight.float(), layer.bias.float())


class Product(nn.Linear):
    """The library's linear map, faster where oneDNN is; parameters, names and results to rounding are the same."""

    def forward(self, state: Tensor) -> Tensor:
        """(..., I) to (..., O)."""
        return product(state, self.weight, self.bias)


def product(state: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """X W' + b, (..., I) and (O, I) to (..., O), as `nn.functional.linear` to rounding."""
    if not _pays(state, weight):
        return nn.functional.linear(state, weight, bias)
    if not torch.is_grad_enabled():
        return _multiply(state, weight, bias)
    result: Tensor = _OneDnn.apply(state, weight, bias)
    return result


def activated(layer: nn.Module, activation: nn.Module, state: Tensor) -> Tensor:
    """activation(layer(x)), (..., I) to (..., O); in inference one kernel, where nothing could come between."""
    if (
        not torch.is_grad_enabled()
        and type(layer) is Product
        and type(activation) is GELUTanh
        and _pays(state, layer.weight)
        and not (_hooked(layer) or _hooked(activation))
    ):
        return _multiply(state, layer.weight, layer.bias, "gelu")
    result: Tensor = activation(layer(state))
    return result


def _hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


@cache
def onednn_is_faster() -> bool:
    """Whether the processor is AMD's with AVX-512; on none of the others has it been measured."""
    if not hasattr(torch.cpu, "get_capabilities") or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    processor = torch.cpu.get_capabilities()
    return "AMD" in str(processor.get("cpu_name")) and bool(processor.get("avx512_f"))


def _pays(state: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN multiplies these: float32 on a CPU, outside of graphs, no tensors with operators of their own."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return False
    # First of what remains: where little work is left, asking takes as long as working.
    if state.numel() * weight.shape[0] < _LEAST_WORK or torch.is_autocast_enabled("cpu"):
        return False
    plain = type(state) in _PLAIN and type(weight) in _PLAIN
    if not plain or state.device.type != "cpu" or state.dtype != torch.float32 or weight.dtype != torch.float32:
        return False
    return onednn_is_faster()


class _OneDnn(torch.autograd.Function):
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
        multiply = _OneDnn.apply if torch.is_grad_enabled() else _multiply  # gradients of gradients are seldom wanted
        rows = gradient.flatten(0, -2)
        return (
            multiply(gradient, weight.t(), None) if of_state else None,
            _transposed_product(multiply, rows, state.contiguous().flatten(0, -2)) if of_weight else None,
            rows.sum(dim=0) if of_bias else None,
        )


def _transposed_product(multiply: Callable[..., Tensor], left: Tensor, right: Tensor) -> Tensor:
    """A' B of (P, O) and (P, I), (O, I). oneDNN is faster with the narrower one first."""
    if left.shape[1] > right.shape[1]:
        return multiply(right.t(), left.t(), None).t()
    return multiply(left.t(), right.t(), None)


def _multiply(left: Tensor, right: Tensor, bias: Tensor | None = None, activation: str = "none") -> Tensor:
    """(P, I) and (O, I) to (P, O); the activation is `none`, or `gelu` in its tanh form."""
    if left.shape[-1] < _LEAST_INNER and activation == "none":
        return nn.functional.linear(left, right, bias)
    result: Tensor = torch.ops.mkldnn._linear_pointwise(left, right, bias, activation, [], "tanh")
    return result


def _count_flops(left: torch.Size, right: torch.Size, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """Of x W': for torch's counter, which knows the operators of MKL's products only."""
    return 2 * left.numel() * right[0]


if hasattr(torch.ops.mkldnn, "_linear_pointwise"):
    register_flop_formula(torch.ops.mkldnn._linear_pointwise)(_count_flops)
