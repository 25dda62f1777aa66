"""Loops that only those tokens run that have not exited: what a cache with a policy other than `all` is for.

Before each loop the tokens that still run are picked out of the batch, and put back behind it; those that have exited
keep their state, and are read as the cache's policy says (`cache`). Nothing that a token gets depends on which others
are picked: they are as many rows and columns of the same products.

Shape legend: B rows, T new tokens, M tokens in the cache, R rows that still run and r columns of the fullest of them, K
tokens that exit, D width, C layers of the core, h heads of keys and values, d their width.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from adadepth.errors import ConfigError
from adadepth.families.looped.cache import LoopedCache, Picked

_ATTENTION = ("eager", "sdpa")


def begin_running(
    cache: LoopedCache, shape: torch.Size, loops: int, mask: Any, attention: str | None, device: torch.device
) -> Tensor:
    """Open a call of (B, T) tokens; returns who runs, boolean (B, T): all that are no padding.

    Raises:
        ConfigError: If the attention takes no masks of some tokens of a batch.
    """
    if attention not in _ATTENTION:
        raise ConfigError(
            f"attn_implementation={attention}: cache_policy={cache.policy} needs one of {', '.join(_ATTENTION)}"
        )
    cache.open(shape[0], shape[1], loops)
    if isinstance(mask, Tensor) and mask.dim() == 2:
        return mask[:, -shape[1] :].bool()
    return torch.ones(shape, dtype=torch.bool, device=device)


def loop_running(model: Any, run: Any) -> Tensor:
    """One more loop of the tokens that run; returns the final norm of all states, (B, T, D)."""
    run.picked = Picked.of(run.running)
    run.cache.at(run.done + 1, run.picked)
    cells = run.running.numel() if run.picked is None else run.picked.tokens.numel()
    seen = 2 * run.cache.aim.before + run.running.shape[1] + 1  # a token sees half of the others, and what was before
    run.computed.append((cells, cells, cells * seen // 2))
    if run.picked is None:
        return model.loop_once(run)
    part = part_of(run, run.picked)
    if part.embedded.numel():
        model.loop_once(part)
        run.state = run.picked.put(run.state, part.state)
        before = torch.zeros_like(run.state) if run.normed is None else run.normed
        run.normed = run.picked.put(before, part.normed)
    run.done += 1
    return run.normed


def read_running(model: Any, run: Any) -> Tensor:
    """r_n of the tokens that ran the last loop, and of the others what was last read, (B, T, D)."""
    if run.picked is None:
        run.readings = model.read_once(run)
        return run.readings
    before = torch.zeros_like(run.state) if run.readings is None else run.readings
    if run.picked.tokens.numel():
        before = run.picked.put(before, model.read_once(part_of(run, run.picked)))
    run.readings = before
    return before


def leave(model: Any, run: Any, exits: Tensor) -> None:
    """Tokens (B, T) exit after the loop that has run: they run no further, and are kept as the policy says."""
    rows, tokens = (exits & run.running).nonzero().unbind(1)
    run.running = run.running & ~exits
    if not len(rows):
        return
    cache = run.cache
    frozen: list[Any] = [None] * len(cache.core)
    if cache.policy.name == "frozen" and run.done < cache.loops:
        frozen = frozen_keys(model, run, rows, tokens)
        queries, keys, pairs = run.computed[-1]
        run.computed[-1] = queries, keys + len(rows), pairs
    for layer, said in zip(cache.core, frozen, strict=True):
        layer.settle(rows, tokens, run.done, said)
    for layer in cache.coda:
        layer.settle(rows, tokens, run.done)


def close(model: Any, run: Any) -> None:
    """The loops are over: whoever still runs exits, and the cache has its tokens."""
    leave(model, run, run.running)
    run.cache.close()


def frozen_keys(model: Any, run: Any, rows: Tensor, tokens: Tensor) -> list[tuple[Tensor, Tensor]]:
    """What each layer of the core makes of that with which a loop would begin at the states of tokens, (K, h, d)."""
    states = model.injected(run.state[rows, tokens], run.embedded[rows, tokens]).unsqueeze(1)
    rotation = tuple(each[rows, tokens].unsqueeze(1) for each in run.rotation)
    positions = run.positions[rows, tokens].unsqueeze(1)
    said = keys_and_values(model.core, states, rotation, positions)
    return [(keys.squeeze(2), values.squeeze(2)) for keys, values in said]


class _Enough(Exception):
    """A layer has said its keys and values."""


class _Listener:
    """A cache that takes a layer's keys and values and stops it there."""

    def update(self, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> Any:
        self.found = keys, values
        raise _Enough

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0


def keys_and_values(layers: nn.ModuleList, states: Tensor, rotation: Any, positions: Tensor) -> list[Any]:
    """What every layer makes of the same states (B, T, D), without the layers before it: (B, h, T, d) each."""
    said = []
    for layer in layers:
        alone: Any = getattr(layer, "keys_and_values", None)
        if alone is not None:
            said.append(alone(states, rotation))
            continue
        listener = _Listener()
        try:
            layer(states, position_embeddings=rotation, position_ids=positions, past_key_values=listener)
        except _Enough:
            said.append(listener.found)
    assert len(said) == len(layers), "a layer kept no keys and values"
    return said


def part_of(run: Any, picked: Picked) -> Any:
    """Some tokens of a batch in the middle of its loops, (R, r) of them."""
    before, new = run.cache.aim.before, run.embedded.shape[1]
    masks = run.masks
    if isinstance(masks, dict):
        masks = {kind: mask_of(mask, picked, before, new) for kind, mask in masks.items()}
    else:
        masks = mask_of(masks, picked, before, new)
    return replace(
        run,
        embedded=picked.take(run.embedded),
        state=picked.take(run.state),
        normed=None if run.normed is None else picked.take(run.normed),
        positions=picked.take(run.positions),
        rotation=tuple(picked.take(each) for each in run.rotation),
        masks=masks,
    )


def mask_of(mask: Tensor | None, picked: Picked, before: int, new: int) -> Tensor | None:
    """Of the queries of some tokens, (R, 1, r, M + T), from that of all, (B or 1, 1, T, M + T); None: all before it.

    A mask that attention can do without is none, for a single token.
    """
    if mask is not None:
        rows = picked.rows if mask.shape[0] > 1 else torch.zeros_like(picked.rows)
        return mask[rows.unsqueeze(1), :, picked.tokens].transpose(1, 2)
    if new == 1:
        return None
    seen = torch.arange(before + new, device=picked.tokens.device)
    return (seen <= before + picked.tokens.unsqueeze(2)).unsqueeze(1)
