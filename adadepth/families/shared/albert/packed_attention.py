"""Attention of packed queries over keys and values that are kept from iteration to iteration.

Three kernels compute the same: queries padded row by row and any dense attention (the CPU, and whatever has no other);
torch's variable-length attention on an accelerator in half precision; flash attention where it is chosen. Shape legend:
B rows, T positions of a row, P packed queries, Q the most queries of a row, C refreshed positions, M kept positions,
H width, A heads, D width of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from adadepth.families.shared.albert.configuration import AlbertShape
from adadepth.halting.active_set import ActiveSet, take

Kernel = Literal["padded", "varlen", "flash"]
Attend = Callable[..., tuple[Tensor, Any]]

_HALF = (torch.float16, torch.bfloat16)


class Memory(NamedTuple):
    """Keys and values of every position a query may see, (M, H) each."""

    keys: Tensor
    values: Tensor


class Refresh(NamedTuple):
    """One iteration of packed attention.

    Attributes:
        kernel: What computes it; see `choose_kernel`.
        queries: The positions that ask.
        visible: The positions that can be seen: all that are not padding.
        refreshed: The positions whose keys and values are out of date; in the first iteration all that are visible.
    """

    kernel: Kernel
    queries: ActiveSet
    visible: ActiveSet
    refreshed: ActiveSet


def choose_kernel(config: AlbertShape, device: torch.device, dtype: torch.dtype, *, training: bool) -> Kernel | None:
    """The kernel for a model's attention implementation; None where packed queries have none, or in a compiled graph.

    Args:
        config: Of the model.
        device: Of the states.
        dtype: Of the weights.
        training: Whether attention weights are dropped, which the variable-length kernel cannot.
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
    """The memory with new keys and values (C, H) in their places.

    The padded kernel keeps one place a slot, the others pack the visible positions without the padding.

    Args:
        refresh: Says which places.
        memory: What the last iteration left; None in the first one.
        keys: Of the refreshed positions.
        values: Of the same.
        overwrites: Whether nobody needs the last iteration's memory any more.
    """
    visible = refresh.visible
    size = visible.capacity if refresh.kernel == "padded" else len(visible.slots)
    if len(keys) == size:
        return Memory(keys, values)
    places = refresh.refreshed.slots
    if refresh.kernel != "padded":
        places = torch.searchsorted(visible.slots, places)
    if memory is None:
        memory = Memory(keys.new_zeros(size, keys.shape[1]), values.new_zeros(size, values.shape[1]))
    elif not overwrites:
        return Memory(memory.keys.index_copy(0, places, keys), memory.values.index_copy(0, places, values))
    return Memory(memory.keys.index_copy_(0, places, keys), memory.values.index_copy_(0, places, values))


def count_pairs(kernel: Kernel, queries: ActiveSet, visible: ActiveSet) -> Tensor | int:
    """Query-key pairs of one iteration, those of its padding included, int64, ()."""
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
    """Attention of packed queries: (P, H) to (P, H).

    Args:
        attend: A function of transformers' attention interface.
        module: The attention module, for that function.
        query: Projected queries, (P, H).
        memory: From `remember`.
        refresh: What the queries are and what they see.
        attention_mask: In the form the dense execution gives it, (B, 1, T, T) or None; every query of a row must see
            the same keys. Read by the padded kernel only.
        size: D.
        **options: For `attend`: `scaling`, `dropout` and what the caller passed.
    """
    if refresh.kernel == "padded":
        return _padded(attend, module, query, memory, refresh.queries, attention_mask, size, options)
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
    """The variable-length attention of torch, (P, A, D) over (M, A, D); rows begin at `starts`, `visible`."""
    from torch.nn.attention.varlen import varlen_attn

    found = varlen_attn(query, keys, values, starts, visible, longest, longest, scale=scale)
    assert isinstance(found, Tensor)
    return found


def _padded(
    attend: Attend,
    module: nn.Module,
    query: Tensor,
    memory: Memory,
    queries: ActiveSet,
    attention_mask: Tensor | None,
    size: int,
    options: dict[str, Any],
) -> Tensor:
    rows, width = queries.shape[0], queries.widest
    grid = None if len(query) == rows * width else queries.grid
    padded = query if grid is None else query.new_zeros(rows * width, query.shape[1]).index_copy_(0, grid, query)
    heads = (rows, -1, query.shape[1] // size, size)
    projected = (tensor.view(heads).transpose(1, 2) for tensor in (padded, *memory))
    if attention_mask is not None:
        attention_mask = attention_mask[:, :, :1].expand(-1, -1, width, -1)
    context = attend(module, *projected, attention_mask, **options)[0].flatten(0, 1).flatten(1)
    return context if grid is None else take(context, grid)
