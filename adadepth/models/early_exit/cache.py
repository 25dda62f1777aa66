"""Key-value caches of early-exit decoders: what later tokens read of a token that skipped layers.

A token that exits after layer e has keys and values in the layers 1..e. The cache policy defines those of the layers
above, which later tokens read:

    all        The token runs these layers, too. An exit then saves no computation. The cache is one of transformers.
    frozen     They are computed from the state h_e at the exit, and the token runs no further layer (CALM, arXiv
               2207.07061). An exit changes what later tokens predict.
    deferred   The token runs these layers once a later token of its text needs them, together with all other tokens
               that wait for the same layer. No prediction differs from that of `all`. FREE (arXiv 2310.05424) does so
               with two exits, and EE-LLM (arXiv 2312.04916) recomputes waiting tokens from the first layer on.

Every policy stores keys and values of all L layers. `deferred` also stores the states of the tokens that wait.

Shape legend: B texts, W waiting tokens, T new tokens, M tokens in the cache, D width, N exits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from adadepth.errors import ConfigError, nearest
from adadepth.models.depth.cache import Target, TokenCache, TokenLayer
from adadepth.models.early_exit.settings import ExitCachePolicy


def check_policy(policy: str) -> str:
    """Return the name of a cache policy.

    Raises:
        ConfigError: If there is no policy with this name.
    """
    if policy not in (names := [str(name) for name in ExitCachePolicy]):
        raise ConfigError(f"cache_policy={policy}: must be one of {', '.join(names)}{nearest(policy, names)}")
    return policy


@dataclass
class WaitingTokens:
    """The last tokens of a cache, from the first one on that has not run all layers.

    Attributes:
        states: State of each token after the last exit that it passed, (B, W, D).
        done: Number of exits that each token passed, int64 on the CPU, (B, W). It is N for padding.
        positions: Position of each token, int64, (B, W).
    """

    states: Tensor
    done: Tensor
    positions: Tensor

    def select(self, rows: Any, columns: Any = slice(None)) -> WaitingTokens:
        """Return the tokens with these indices of rows and columns."""
        of_host = rows.cpu() if isinstance(rows, Tensor) else rows
        states, positions = (values[rows][:, columns] for values in (self.states, self.positions))
        return WaitingTokens(states, self.done[of_host][:, columns], positions)


class ExitCache(TokenCache):
    """Cache with the policy `frozen` or `deferred`.

    Args:
        layers: Number L of layers.
        policy: Name of the policy.

    Attributes:
        waiting: Tokens that have not run all layers, if the policy is `deferred` and there are some.
        keeps_states: Whether `waiting` keeps the states of tokens that have run all layers, for a verification of
            drafted tokens.

    Raises:
        ConfigError: If there is no such policy, or the policy is `all`.
    """

    rows_name = "texts"

    def __init__(self, layers: int, policy: str) -> None:
        if check_policy(policy) == "all":
            raise ConfigError("cache_policy=all: use DynamicCache; ExitCache implements frozen and deferred")
        self.waiting: WaitingTokens | None = None
        self.keeps_states, target = False, Target()
        super().__init__([TokenLayer(target) for _ in range(layers)], target, policy)

    def open(self, rows: int, new: int) -> None:
        """Begin a forward pass of T new tokens in each of B texts, in which the waiting tokens run on."""
        waiting = 0 if self.waiting is None else self.waiting.done.shape[1]
        super().open(rows, waiting + new)
        self.target.before -= waiting

    def finish(self, running: WaitingTokens, exits: int) -> None:
        """End the forward pass.

        Args:
            running: State of all tokens that may have run, (B, W + T).
            exits: Number N of exits.
        """
        self.close()
        self.waiting = None
        if self.policy == "deferred":
            unfinished = (running.done < exits).any(dim=0)
            if self.keeps_states:
                self.waiting = running
            elif bool(unfinished.any()):
                self.waiting = running.select(slice(None), slice(int(unfinished.long().argmax()), None))

    def release(self) -> None:
        """Forget the states of the last tokens, which have run all layers."""
        self.waiting = None

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last tokens of every text; their number is given as a negative number, or 0."""
        super().crop(tokens_to_remove)
        if self.waiting is not None and tokens_to_remove:
            stays = self.waiting.done.shape[1] + tokens_to_remove
            self.waiting = self.waiting.select(slice(None), slice(0, stays)) if stays > 0 else None

    def reset(self) -> None:
        """Remove all tokens."""
        super().reset()
        self.waiting = None

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep only the texts with the given indices."""
        super().batch_select_indices(indices)
        if self.waiting is not None:
            self.waiting = self.waiting.select(indices.to(self.waiting.states.device))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every text `repeats` times."""
        super().batch_repeat_interleave(repeats)
        if self.waiting is not None:
            rows = torch.arange(len(self.waiting.done), device=self.waiting.states.device)
            self.waiting = self.waiting.select(rows.repeat_interleave(repeats))
