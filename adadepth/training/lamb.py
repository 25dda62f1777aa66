"""LAMB optimizer (You et al. 2020, arXiv 1904.00962) from `pytorch_optimizer`, for whole or sharded parameters.

The trust ratio is a quotient of norms of whole matrices. torch represents the norm of a sharded tensor as a pending
sum, which the library would change in place. Norms are therefore reduced over processes before the library uses them.
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
    """Torch function mode in which `norm` of a sharded tensor returns the norm of the whole tensor."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a torch function, and all-reduce its result if the function is a norm."""
        result = function(*args, **(kwargs or {}))
        return tree_map(_reduce, result) if function in _NORMS else result


def _reduce(value: Any) -> Any:
    return value.full_tensor() if isinstance(value, DTensor) else value


class ShardableLamb(Lamb):
    """LAMB optimizer that computes the norm of a whole parameter even if the parameter is sharded."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make an optimiser step; if `closure` is given, call it to recompute the loss, and return the loss."""
        with WholeNorms():
            return super().step(closure)
