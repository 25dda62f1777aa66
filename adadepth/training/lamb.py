"""LAMB (You et al. 2020, arXiv 1904.00962) of `pytorch_optimizer`, on whole or sharded parameters.

The trust ratio is a quotient of norms of whole matrices. torch represents the norm of a sharded tensor as a pending
sum, which the library would change in place; so norms are reduced before the library uses them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from pytorch_optimizer import Lamb
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

_NORMS = (torch.linalg.norm, torch._foreach_norm)


class WholeNorms(TorchFunctionMode):
    """Mode in which norms of sharded tensors are reduced over all processes."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call the function, and reduce its result if it is a norm."""
        result = function(*args, **(kwargs or {}))
        return tree_map(_reduce, result) if function in _NORMS else result


def _reduce(value: Any) -> Any:
    return value.full_tensor() if isinstance(value, DTensor) else value


class ShardableLamb(Lamb):
    """LAMB of the library, with norms of whole parameters also where these are sharded."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make an optimiser step; `closure` recomputes the loss, which is returned."""
        with WholeNorms():
            return super().step(closure)
