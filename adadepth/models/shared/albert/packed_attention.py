"""Attention for packed tokens (without padding), whose keys and values are reused from one iteration to the next.

Three kernels compute the same result. `padded`, the default, pads the queries of every row and works with any dense
attention. `varlen` is torch's variable-length attention on an accelerator in half precision. `flash` is flash
attention, used if the model is configured with it. Shape legend: B rows, T positions of a row, P packed queries, Q the
most queries of a row, C refreshed positions, M stored positions, H width, A heads, D width of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from adadepth.halting.active_set import ActiveSet, take
from adadepth.models.shared.albert.configuration import AlbertShape

Kernel = Literal["padded", "varlen", "flash"]
Attend = Callable[..., tuple[Tensor, Any]]

_HALF = (torch.float16, torch.bfloat16)


class Memory(NamedTuple):
    """Cached keys and values of all positions to which queries may attend, (M, H) each."""

    keys: Tensor
    values: Tensor


class Refresh(NamedTuple):
    """Attention kernel of one iteration, and the positions whose queries, keys and values it computes.

    Attributes:
        kernel: Attention kernel; see `choose_kernel`.
        queries: Positions of the queries, (P,).
        visible: Positions to which queries may attend: all positions that are not padding.
        refreshed: Positions with keys and values to recompute, (C,). In the first iteration these are all visible
            positions.
    """

    kernel: Kernel
    queries: ActiveSet
    visible: ActiveSet
    refreshed: ActiveSet


def choose_kernel(config: AlbertShape, device: torch.device, dtype: torch.dtype, *, training: bool) -> Kernel | None:
    """Choose the kernel for packed attention, or return None if there is none or the graph is compiled.

    Args:
        config: Configuration of the model.
        device: Device of the states.
        dtype: Dtype of the weights.
        training: Whether the model is in training mode. The variable-length kernel has no attention dropout.
    """
    if torch.compiler.is_compiling():
        return None
    if torch.is_autocast_enabled(device.type):
        dtype = torch.get_autocast_dtype(device.type)
    implementation = str(config._attn_implementation)
    if implementation.startswith("flash_attention"):
        return "flash"
    drops = training and config.attention_probs_dropout_prob > 0
    if implementation == "sdpa" and device.type == "cuda" and dtype in _HALF and not drops:
        return "varlen"
    return "padded" if implementation in ("eager", "sdpa") else None


def remember(refresh: Refresh, memory: Memory | None, keys: Tensor, values: Tensor, *, overwrites: bool) -> Memory:
    """Update the cached keys and values with those recomputed in this iteration, and return the cache.

    The padded kernel stores one entry per position of the batch, M = B T. The other kernels store only visible
    positions.

    Args:
        refresh: Kernel and positions of the iteration.
        memory: Keys and values stored in the previous iteration, or None in the first iteration.
        keys: Keys of the refreshed positions, (C, H).
        values: Values of the refreshed positions, (C, H).
        overwrites: Whether to overwrite `memory` in place. This must be False if gradients or recomputation need it.
    """
    visible = refresh.visible
    size = visible.capacity if refresh.kernel == "padded" else len(visible.slots)
    if len(keys) == size:
        return Memory(keys, values)
    indices = refresh.refreshed.slots
    if refresh.kernel != "padded":
        indices = torch.searchsorted(visible.slots, indices)
    if memory is None:
        memory = Memory(keys.new_zeros(size, keys.shape[1]), values.new_zeros(size, values.shape[1]))
    elif not overwrites:
        return Memory(memory.keys.index_copy(0, indices, keys), memory.values.index_copy(0, indices, values))
    return Memory(memory.keys.index_copy_(0, indices, keys), memory.values.index_copy_(0, indices, values))


def count_pairs(kernel: Kernel, queries: ActiveSet, visible: ActiveSet) -> Tensor | int:
    """Return the number of query-key pairs computed in one iteration, including padding of the kernel, int64, ()."""
    if kernel == "padded":
        return queries.widest * queries.capacity
    return (queries.counts * visible.counts).sum()


def attend_packed(
    attend: Attend,
    module: nn.Module,
    query: Tensor,
    memory: Memory,
    refresh: Refresh,
    attention_mask: Tensor | None,
    *,
    size: int,
    **options: Any,
) -> Tensor:
    """Compute the attention output of packed queries, (P, H).

    Args:
        attend: Function of transformers' attention interface.
        module: Attention module, an argument of `attend`.
        query: Projected queries, (P, H).
        memory: Keys and values returned by `remember`.
        refresh: Kernel and positions of the iteration.
        attention_mask: Mask of the dense execution, (B, 1, T, T) or None. Every query of a row must attend to the same
            keys. Only the padded kernel reads the mask.
        size: Width of a head, D.
        **options: Options of `attend`: `scaling`, `dropout` and those of the caller.
    """
    if refresh.kernel == "padded":
        return _attend_padded(attend, module, query, memory, refresh.queries, attention_mask, size, options)
    query, keys, values = (tensor.unflatten(1, (-1, size)) for tensor in (query, *memory))
    starts, visible = refresh.queries.starts, refresh.visible.starts
    longest = refresh.queries.shape[1]
    if refresh.kernel == "varlen":
        return varlen_attention(query, keys, values, starts, visible, longest, options["scaling"]).flatten(1)
    bounds = {"cu_seq_lens_q": starts, "cu_seq_lens_k": visible, "max_length_q": longest, "max_length_k": longest}
    shaped = (tensor.unsqueeze(0).transpose(1, 2) for tensor in (query, keys, values))
    return attend(module, *shaped, None, **options, **bounds)[0].squeeze(0).flatten(1)


def varlen_attention(
    query: Tensor, keys: Tensor, values: Tensor, starts: Tensor, visible: Tensor, longest: int, scale: float
) -> Tensor:
    """Compute attention with torch's variable-length kernel, (P, A, D).

    Args:
        query: Queries, (P, A, D).
        keys: Keys, (M, A, D).
        values: Values, (M, A, D).
        starts: Index of the first query of every row, and the total number of queries, (B + 1,).
        visible: Index of the first key of every row, and the total number of keys, (B + 1,).
        longest: Upper bound on the number of positions of a row.
        scale: Factor of the scores, 1 / sqrt(D).
    """
    from torch.nn.attention.varlen import varlen_attn

    context = varlen_attn(query, keys, values, starts, visible, longest, longest, scale=scale)
    assert isinstance(context, Tensor)
    return context


def _attend_padded(
    attend: Attend,
    module: nn.Module,
    query: Tensor,
    memory: Memory,
    queries: ActiveSet,
    attention_mask: Tensor | None,
    size: int,
    options: dict[str, Any],
) -> Tensor:
    """Compute the attention output of packed queries, (P, H), by padding them to (B, Q)."""
    rows, width = queries.shape[0], queries.widest
    grid = None if len(query) == rows * width else queries.grid
    padded = query if grid is None else query.new_zeros(rows * width, query.shape[1]).index_copy_(0, grid, query)
    heads = (rows, -1, query.shape[1] // size, size)
    projected = (tensor.view(heads).transpose(1, 2) for tensor in (padded, *memory))
    if attention_mask is not None:
        attention_mask = attention_mask[:, :, :1].expand(-1, -1, width, -1)
    context = attend(module, *projected, attention_mask, **options)[0].flatten(0, 1).flatten(1)
    return context if grid is None else take(context, grid)
