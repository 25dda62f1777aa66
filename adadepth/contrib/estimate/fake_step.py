"""Memory and operation counts of a training step on torch's fake tensors.

Fake tensors have a shape, a dtype and a storage size, but no values. The real code of a step therefore runs in seconds
at any model size. If the code needs the value of a tensor that depends only on the batch, the value is computed along
with the fake tensor. Conditions that depend on weights get the most expensive result: every unit continues, every
position is selected, and no share that is read as a single number is 0.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count
from torch.utils.weak import WeakIdKeyDictionary

from adadepth.errors import ConfigError

_aten = torch.ops.aten
# Maximum size of a tensor with computed values: of integers, and of floating-point numbers.
_MAX_INTEGERS, _MAX_FLOATS = 2**22, 2**12
_ATTENTION = _aten._scaled_dot_product_flash_attention_for_cpu
_ATTENTION_BACKWARD = _aten._scaled_dot_product_flash_attention_for_cpu_backward
_INDEXED = {_aten.index, _aten.index_put, _aten.index_put_, _aten._index_put_impl_, _aten._unsafe_index}


class MemoryTracker(TorchDispatchMode):
    """Counter of operations, and of the bytes of tensors alive within the `with` block.

    It does not count the temporary memory of a running kernel.

    Attributes:
        now: Live bytes.
        peak: Peak of the live bytes.
        gradients: Bytes of the complete gradients of all parameters registered with `watch_gradient`.
        gradients_at_peak: Bytes of those gradients at the peak.
        operations: Multiplications and additions of matrix products, convolutions and attention.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = self.operations = self.gradients = self.gradients_at_peak = 0
        self._counted: weakref.WeakSet[Any] = weakref.WeakSet()

    def add(self, tensor: Tensor) -> None:
        """Count the storage of an existing tensor once."""
        storage = tensor.untyped_storage()
        if storage in self._counted:
            return
        self._counted.add(storage)
        size = storage.nbytes()
        self.now += size
        if self.now > self.peak:
            self.peak, self.gradients_at_peak = self.now, self.gradients
        weakref.finalize(storage, self._remove, size)

    def _remove(self, size: int) -> None:
        self.now -= size

    def watch_gradient(self, parameter: nn.Parameter) -> None:
        """Count a parameter's gradient separately, as soon as it is complete."""
        parameter.register_post_accumulate_grad_hook(self._count_gradient)

    def _count_gradient(self, parameter: Tensor) -> None:
        self.gradients += parameter.nbytes

    def reset_peak(self) -> None:
        """Reset the peak and the number of operations."""
        self.peak, self.gradients_at_peak, self.operations = self.now, self.gradients, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run a torch operation, and count it and its results."""
        keywords = kwargs or {}
        result = func(*args, **keywords)
        for tensor in _list_tensors(result):
            self.add(tensor)
        self.operations += _count_operations(func, args, keywords, result)
        return result


def _count_operations(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> int:
    """Return torch's count of operations, including attention on a CPU, which torch omits."""
    packet = func._overloadpacket
    if packet is _ATTENTION:
        return int(sdpa_flop_count(*(tensor.shape for tensor in args[:3])))
    if packet is _ATTENTION_BACKWARD:
        return int(sdpa_backward_flop_count(*(tensor.shape for tensor in args[:4])))
    count = flop_registry.get(packet)
    return 0 if count is None else int(count(*args, **kwargs, out_val=result))


class KnownValues(TorchDispatchMode):
    """Values of fake tensors that depend on the batch only, so that data-dependent code can run."""

    def __init__(self) -> None:
        super().__init__()
        self._real = WeakIdKeyDictionary()

    def add_fake(self, real: Tensor) -> Tensor:
        """Create a fake tensor with known values, within `FakeTensorMode`."""
        fake = torch.empty_strided(real.shape, real.stride(), dtype=real.dtype)
        self._real[fake] = real
        return fake

    def get_real(self, tensor: Tensor) -> Tensor | None:
        """Return the known values of a fake tensor, or None if they depend on weights."""
        values: Tensor | None = self._real.get(tensor)
        return values

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run a torch operation on fake tensors and, if all inputs are known, on their values too."""
        keywords = kwargs or {}
        if func is _aten._local_scalar_dense.default:
            return self._read_scalar(args[0])
        if func is _aten.nonzero.default:
            return self._find_positions(args[0])
        if func._overloadpacket in _INDEXED:
            args = (args[0], self._convert_masks(args[1]), *args[2:])
        is_known = all(self._is_known(tensor) for tensor in args if isinstance(tensor, Tensor))
        is_known = is_known and all(self._is_known(tensor) for tensor in _list_tensors((args, keywords)))
        result = func(*args, **keywords)
        results = _list_tensors(result)
        if is_known and results and all(_is_small(tensor) for tensor in results):
            with _disable_current_modes():
                computed = func(*self._replace_fakes(args), **self._replace_fakes(keywords))
            for tensor, values in zip(results, _list_tensors(computed), strict=True):
                self._real[tensor] = values
        else:
            for tensor in results:  # in-place results have lost their values
                self._real.pop(tensor, None)
        return result

    def _is_known(self, tensor: Tensor) -> bool:
        return tensor in self._real or (not isinstance(tensor, FakeTensor) and _is_small(tensor))

    def _replace_fakes(self, tree: Any) -> Any:
        """Return arguments in which known values replace fake tensors.

        Constants in the code are not fake and stay the same.
        """
        return tree_map_only(Tensor, lambda tensor: self._real.get(tensor, tensor), tree)

    def _read_scalar(self, tensor: Tensor) -> Any:
        if self._is_known(tensor):
            with _disable_current_modes():
                return self._replace_fakes(tensor).item()
        if tensor.dtype is torch.bool:
            return True
        if tensor.is_floating_point():
            return 1.0
        raise ConfigError("mode=estimate: not supported, because the model reads a value of its weights within a step")

    def _convert_masks(self, indices: Any) -> list[Tensor | None]:
        """Return indices in which positions replace boolean masks."""
        integer_indices: list[Tensor | None] = []
        for index in indices:
            is_mask = index is not None and index.dtype in (torch.bool, torch.uint8)
            integer_indices += self._find_positions(index).unbind(dim=1) if is_mask else [index]
        return integer_indices

    def _find_positions(self, tensor: Tensor) -> Tensor:
        values = self.get_real(tensor)
        with _disable_current_modes():
            all_true = torch.ones(tensor.shape, dtype=torch.bool)
            positions = (all_true if values is None else values).nonzero()
        return self.add_fake(positions)


def _list_tensors(tree: Any) -> list[Tensor]:
    if isinstance(tree, Tensor):
        return [tree]
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _is_small(tensor: Tensor) -> bool:
    limit = _MAX_FLOATS if tensor.is_floating_point() else _MAX_INTEGERS
    return not tensor.is_complex() and tensor.numel() <= limit
