"""A step that is rehearsed without memory: torch's fake tensors, numbers where code reads them, and bytes counted.

Fake tensors have a shape, a type and a storage of so many bytes, and no numbers, so that the real code of a step runs
in seconds whatever the model's size. What it reads of numbers on the way is answered: small tensors that follow from
the batch alone are computed beside it; of truths that follow from weights the answer is the one that costs most:
everybody goes on, every place is chosen, and no share that is read one by one is 0.
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
# Whole numbers, and others, of a tensor whose numbers are computed, too.
_MOST_NUMBERS, _MOST_VALUES = 2**22, 2**12
_ATTENTION = _aten._scaled_dot_product_flash_attention_for_cpu
_ATTENTION_BACKWARD = _aten._scaled_dot_product_flash_attention_for_cpu_backward
_INDEXED = {_aten.index, _aten.index_put, _aten.index_put_, _aten._index_put_impl_, _aten._unsafe_index}


class Ledger(TorchDispatchMode):
    """Bytes of all tensors made while it is entered, real or fake, as long as they live, and operations.

    What a kernel allocates for itself while it runs is not seen.

    Attributes:
        now: Bytes that live now.
        peak: The most at once.
        gradients: Of these, those that `watch` was told to tell apart and that are whole.
        gradients_at_peak: How many they were when the most lived.
        operations: Multiplications and additions of matrix products, convolutions and attention.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = self.operations = self.gradients = self.gradients_at_peak = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def add(self, tensor: Tensor) -> None:
        """Count a tensor's storage, which may have been there before; no storage counts twice."""
        storage = tensor.untyped_storage()
        if storage in self._known:
            return
        self._known.add(storage)
        size = storage.nbytes()
        self.now += size
        if self.now > self.peak:
            self.peak, self.gradients_at_peak = self.now, self.gradients
        weakref.finalize(storage, self._remove, size)

    def _remove(self, size: int) -> None:
        self.now -= size

    def watch(self, parameter: nn.Parameter) -> None:
        """Tell the gradient of a parameter apart from when it is whole."""
        parameter.register_post_accumulate_grad_hook(self._has_gradient)

    def _has_gradient(self, parameter: Tensor) -> None:
        self.gradients += parameter.nbytes

    def begin(self) -> None:
        """Forget the peak and the operations of what came before."""
        self.peak, self.gradients_at_peak, self.operations = self.now, self.gradients, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation, and count it and what it made."""
        given = kwargs or {}
        result = func(*args, **given)
        for tensor in _tensors(result):
            self.add(tensor)
        self.operations += _operations(func, args, given, result)
        return result


def _operations(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> int:
    """As torch counts them; of attention on a CPU, which it leaves out, as of attention elsewhere."""
    packet = func._overloadpacket
    if packet is _ATTENTION:
        return int(sdpa_flop_count(*(tensor.shape for tensor in args[:3])))
    if packet is _ATTENTION_BACKWARD:
        return int(sdpa_backward_flop_count(*(tensor.shape for tensor in args[:4])))
    count = flop_registry.get(packet)
    return 0 if count is None else int(count(*args, **kwargs, out_val=result))


class KnownNumbers(TorchDispatchMode):
    """Answers what is read of fake tensors; see the module."""

    def __init__(self) -> None:
        super().__init__()
        self._real = WeakIdKeyDictionary()

    def fake(self, real: Tensor) -> Tensor:
        """A fake tensor whose numbers are known; `FakeTensorMode` must be entered."""
        made = torch.empty_strided(real.shape, real.stride(), dtype=real.dtype)
        self._real[made] = real
        return made

    def real(self, tensor: Tensor) -> Tensor | None:
        """The numbers of a fake tensor; None: they follow from weights."""
        found: Tensor | None = self._real.get(tensor)
        return found

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation on fake tensors and, where all its numbers are known, on these, too."""
        given = kwargs or {}
        if func is _aten._local_scalar_dense.default:
            return self._number(args[0])
        if func is _aten.nonzero.default:
            return self._places(args[0])
        if func._overloadpacket in _INDEXED:
            args = (args[0], self._whole(args[1]), *args[2:])
        known = all(self._is_known(each) for each in args if isinstance(each, Tensor))
        known = known and all(self._is_known(each) for each in _tensors((args, given)))
        result = func(*args, **given)
        made = _tensors(result)
        if known and made and all(_is_small(tensor) for tensor in made):
            with _disable_current_modes():
                computed = func(*self._numbers(args), **self._numbers(given))
            for tensor, numbers in zip(made, _tensors(computed), strict=True):
                self._real[tensor] = numbers
        else:
            for tensor in made:  # written in place
                self._real.pop(tensor, None)
        return result

    def _is_known(self, tensor: Tensor) -> bool:
        return tensor in self._real or (not isinstance(tensor, FakeTensor) and _is_small(tensor))

    def _numbers(self, given: Any) -> Any:
        """Arguments with numbers in place of fake tensors; a constant that code wrote is no fake tensor yet."""
        return tree_map_only(Tensor, lambda tensor: self._real.get(tensor, tensor), given)

    def _number(self, tensor: Tensor) -> Any:
        if self._is_known(tensor):
            with _disable_current_modes():
                return self._numbers(tensor).item()
        if tensor.dtype is torch.bool:
            return True
        if tensor.is_floating_point():
            return 1.0
        raise ConfigError(
            "mode=estimate: the model reads a number that follows from its weights, in the middle of a step"
        )

    def _whole(self, indices: Any) -> list[Tensor | None]:
        """Indices with numbers of places instead of truths about them."""
        found: list[Tensor | None] = []
        for index in indices:
            is_truth = index is not None and index.dtype in (torch.bool, torch.uint8)
            found += self._places(index).unbind(dim=1) if is_truth else [index]
        return found

    def _places(self, tensor: Tensor) -> Tensor:
        numbers = self.real(tensor)
        with _disable_current_modes():
            everywhere = torch.ones(tensor.shape, dtype=torch.bool)
            found = (everywhere if numbers is None else numbers).nonzero()
        return self.fake(found)


def _tensors(tree: Any) -> list[Tensor]:
    if isinstance(tree, Tensor):
        return [tree]
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _is_small(tensor: Tensor) -> bool:
    most = _MOST_VALUES if tensor.is_floating_point() else _MOST_NUMBERS
    return not tensor.is_complex() and tensor.numel() <= most
