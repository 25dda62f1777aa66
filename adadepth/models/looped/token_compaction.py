"""Token compaction: each loop computes only the tokens that have not exited. It needs a cache policy other than `all`.

Before each loop, the tokens that still run are gathered from the batch. After the loop, their states are scattered
back. Tokens that have exited keep their state. Other tokens attend to them as the cache policy defines (see
`adadepth.models.looped.cache`). The result of a token does not depend on which other tokens are selected, because each
is only another row or column of the same matrix products.

Shape legend: B rows, T new tokens, M tokens in the cache, R rows that still run and r columns of the fullest of them, K
tokens that exit, D width, C layers of the core, h heads of keys and values, d their width.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from adadepth.errors import ConfigError
from adadepth.models.depth.subset import TokenSubset
from adadepth.models.looped.cache import LoopedCache
from adadepth.models.shared.encoders import find_real_tokens
from adadepth.models.shared.token_cache import compute_keys_and_values

_ATTENTION = ("eager", "sdpa")


def begin_running(cache: LoopedCache, shape: torch.Size, loops: int, mask: Any, attention: str | None) -> Tensor:
    """Prepare the cache for a forward pass, and return a mask of the tokens that are not padding, boolean (B, T).

    The mask is on the CPU: the host plans every loop from it, and no layer waits for the device.

    Raises:
        ConfigError: If the attention implementation does not support masks for selected tokens.
    """
    if attention not in _ATTENTION:
        raise ConfigError(
            f"attn_implementation={attention}: cache_policy={cache.policy} needs one of {', '.join(_ATTENTION)}"
        )
    cache.open(shape[0], shape[1], loops)
    return find_real_tokens(mask, shape, torch.device("cpu")).cpu()


def set_running(run: Any, running: Tensor) -> None:
    """Set the tokens that run the next loop, by their mask on the CPU, (B, T)."""
    run.running, run.picked = running, TokenSubset.from_mask(running, run.state.device)


def loop_running(model: Any, run: Any) -> Tensor:
    """Run one more loop of the running tokens, and return the normed states of all tokens, (B, T, D)."""
    run.cache.set_loop(run.done + 1, run.picked)
    cells = run.running.numel() if run.picked is None else run.picked.cell_count
    seen = 2 * run.cache.target.before + run.running.shape[1] + 1  # twice what a token sees: half of T, and all of M
    run.computed.append((cells, cells, cells * seen // 2))
    if run.picked is None:
        return model.loop_once(run)
    part = select_tokens(run, run.picked)
    if part.embedded.numel():
        model.loop_once(part)
        run.state = run.picked.put(run.state, part.state)
        before = run.state.new_zeros(run.embedded.shape) if run.normed is None else run.normed
        run.normed = run.picked.put(before, part.normed)
    run.done += 1
    return run.normed


def read_running(model: Any, run: Any) -> Tensor:
    """Return the hidden states for the head, (B, T, D): new ones for running tokens, the last ones for the others."""
    if run.picked is None:
        run.readings = model.read_once(run)
        return run.readings
    run.readings = run.state.new_zeros(run.embedded.shape) if run.readings is None else run.readings
    if run.picked.cell_count:
        run.readings = run.picked.put(run.readings, model.read_once(select_tokens(run, run.picked)))
    return run.readings


def remove_exited(model: Any, run: Any, exits: Tensor) -> None:
    """Remove the tokens that exit after the last loop, (B, T), on the CPU, and store their final cache entries."""
    exits = exits & run.running
    if not bool(exits.any()):
        return
    set_running(run, run.running & ~exits)
    rows, tokens = exits.nonzero().T.to(run.state.device, non_blocking=True)
    cache = run.cache
    frozen: list[Any] = [None] * len(cache.core)
    if cache.policy.name == "frozen" and run.done < cache.loops:
        frozen = compute_frozen_keys(model, run, rows, tokens)
        queries, keys, pairs = run.computed[-1]
        run.computed[-1] = queries, keys + len(rows), pairs
    for layer, both in zip(cache.core, frozen, strict=True):
        layer.finalize_exited(rows, tokens, run.done, both)
    for layer in cache.coda:
        layer.finalize_exited(rows, tokens, run.done)


def close(model: Any, run: Any) -> None:
    """End the loops: the tokens that are still running exit, and the cache stores all tokens."""
    remove_exited(model, run, run.running)
    run.cache.close()


def compute_frozen_keys(model: Any, run: Any, rows: Tensor, tokens: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Compute the keys and values, (K, h, d) each, of every layer of a loop, for the loops that exited tokens skip."""
    states = model.loop_input(run.state[rows, tokens], run.embedded[rows, tokens]).unsqueeze(1)
    rotation = tuple(table[rows, tokens].unsqueeze(1) for table in run.rotation)
    positions = run.positions[rows, tokens].unsqueeze(1)
    both = compute_keys_and_values(model.layers_of_loop(), states, rotation, positions)
    return [(keys.squeeze(2), values.squeeze(2)) for keys, values in both]


def select_tokens(run: Any, picked: TokenSubset) -> Any:
    """Return the loop state restricted to the selected tokens, (R, r)."""
    batch, before = run.embedded.shape[:2], run.cache.target.before
    names = ("embedded", "state", "normed", "positions", "rotation")
    tables = picked.select_inputs({name: getattr(run, name) for name in names}, batch, {})
    if isinstance(run.masks, dict):
        masks: Any = {kind: picked.select_mask(mask, before, batch[1]) for kind, mask in run.masks.items()}
    else:
        masks = picked.select_mask(run.masks, before, batch[1])
    return replace(run, **tables, masks=masks)
