"""LAMB (You et al. 2020, arXiv 1904.00962) of `pytorch_optimizer`, on whole or sharded parameters.

Its trust ratio is a quotient of norms of whole matrices. torch has the norm of a shared-out tensor as a sum that is not
made yet, which the library then changes in place; so norms are made before the library sees them.
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
    """Within, norms of shared-out tensors are plain numbers, over the parts of all processes."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call the function, and make what is a norm whole."""
        found = function(*args, **(kwargs or {}))
        return tree_map(_whole, found) if function in _NORMS else found


def _whole(value: Any) -> Any:
    return value.full_tensor() if isinstance(value, DTensor) else value


class ShardableLamb(Lamb):
    """The library's, whose norms are of whole parameters wherever their parts lie."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make an update; `closure` computes the loss anew, which is returned."""
        with WholeNorms():
            return super().step(closure)
