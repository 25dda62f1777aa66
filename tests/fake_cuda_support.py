"""A CUDA device without hardware: torch's fake tensors, which have shapes, types and a device, but no numbers.

`FakeTensorMode` stops at the first number that the host reads and at the first operation with tensors of two devices.
`FakeCuda` records the line and goes on with the numbers that the CPU computes. It needs a build of torch with CUDA, and
no driver.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from tests.host_reads_support import find_line

# torch 2.11 has no error of its own for it.
_MIXED_DEVICES = getattr(fake_tensor, "FakeTensorDeviceMismatchError", RuntimeError)
_aten = torch.ops.aten
_READ, _COPY = _aten._local_scalar_dense.default, _aten._to_copy.default
_SOFTMAX = (_aten._softmax.default, _aten._log_softmax.default)
_PIN = _aten._pin_memory.default
_PINNING = (_PIN, _aten.is_pinned.default)


class FakeCuda(TorchDispatchMode):
    """Mode in which tensors on `cuda` are fake. Every operation also runs on the CPU, which knows the numbers.

    Attributes:
        reads: Lines of the package that wait for a number, or for the number of chosen elements.
        moves: Lines that copy a tensor from the host to the device.
        mixed: Lines that compute with tensors of both devices.
    """

    def __init__(self) -> None:
        super().__init__()
        self.forget()
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        self._values = WeakTensorKeyDictionary()  # fake tensor -> tensor on the CPU

    def forget(self) -> None:
        """Begin with empty counts."""
        self.reads: Counter[str] = Counter()
        self.moves: Counter[str] = Counter()
        self.mixed: Counter[str] = Counter()

    def __enter__(self) -> FakeCuda:
        self._fake.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._fake.__exit__(*error)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        tensors = [leaf for leaf in tree_leaves((args, options)) if isinstance(leaf, Tensor)]
        target = torch.device(options.get("device") or "cpu")
        on_device = any(isinstance(tensor, FakeTensor) for tensor in tensors)
        values = self._compute_on_cpu(func, args, options)
        if not on_device and target.type == "cpu":
            return values
        if not on_device:
            self.moves.update([find_line()] * bool(tensors))
        elif func is _READ or (func is _COPY and options.get("device") and target.type == "cpu"):
            self.reads[find_line()] += 1
            return values
        return self._remember(self._run_fake(func, args, options, values), values)

    def _compute_on_cpu(self, func: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        args, options = tree_map_only(FakeTensor, self._values.__getitem__, (args, options))
        with unset_fake_temporarily():
            if func in _SOFTMAX and args[2]:  # from half precision to float32, which only CUDA has
                args = (args[0].float(), args[1], False)
            if func in _PINNING:  # which needs a driver
                return args[0].clone() if func is _PIN else False
            return func(*args, **options | {"device": "cpu"} if "device" in options else options)

    def _run_fake(self, func: Any, args: tuple[Any, ...], options: dict[str, Any], values: Any) -> Any:
        try:
            return func(*args, **options)
        except (DataDependentOutputException, DynamicOutputShapeException):
            self.reads[find_line()] += 1
        except _MIXED_DEVICES:
            self.mixed[find_line()] += 1
        return tree_map_only(Tensor, lambda value: torch.empty_like(value, device="cuda"), values)

    def _remember(self, fakes: Any, values: Any) -> Any:
        for fake, value in zip(tree_leaves(fakes), tree_leaves(values), strict=True):
            if isinstance(fake, FakeTensor) and fake not in self._values:  # not changed in place
                is_buffer = fake.shape != value.shape  # of a CPU kernel, for its backward pass
                assert not (is_buffer and fake.numel()), (fake.shape, value.shape)
                self._values[fake] = fake.new_empty(0, device="cpu") if is_buffer else value
        return fakes


@contextmanager
def autocast_cuda(dtype: torch.dtype) -> Iterator[None]:
    """Enable autocast on `cuda`, which `torch.autocast` refuses to do without a device. float32 leaves it disabled."""
    torch.set_autocast_enabled("cuda", dtype != torch.float32)
    torch.set_autocast_dtype("cuda", dtype)
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        torch.set_autocast_enabled("cuda", False)
        torch.set_autocast_dtype("cuda", torch.float16)
