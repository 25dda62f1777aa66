"""Reads of the host in an optimiser step, counted without an accelerator: on the meta device, whose tensors have no
numbers.

A tensor of the meta device has a shape, a type and a device that is not the CPU, so models take the code path of an
accelerator. A read of a number is answered and recorded, and so is a copy from one device to another.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

PACKAGE = Path(__file__).resolve().parents[1] / "adadepth"
ACCELERATOR = torch.device("meta")
_aten = torch.ops.aten
_INDEXED = (_aten.index, _aten.index_put, _aten.index_put_, _aten._index_put_impl_, _aten._unsafe_index)


class HostReads(TorchDispatchMode):
    """Mode that records reads and copies by the line of the package that caused them.

    Attributes:
        reads: Lines that wait for a number, or for the number of chosen positions.
        moves: Lines that bring values to the device and wait for it, or compute with tensors of two devices.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()
        self.moves: Counter[str] = Counter()
        self._constructors = _Constructors(self.moves)

    def __enter__(self) -> HostReads:
        self._constructors.__enter__()
        return super().__enter__()

    def __exit__(self, *failure: Any) -> None:
        super().__exit__(*failure)
        self._constructors.__exit__(*failure)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        tensors = [leaf for leaf in tree_leaves((args, options)) if isinstance(leaf, Tensor)]
        if not any(tensor.device == ACCELERATOR for tensor in tensors):
            return self._run_on_host(func, args, options)
        if func is _aten._local_scalar_dense.default:
            self.reads[find_line()] += 1
            return {torch.bool: True}.get(args[0].dtype, 1.0 if args[0].is_floating_point() else 1)
        if func is _aten.nonzero.default:
            return self._choose_all(args[0])
        if func._overloadpacket in _INDEXED:
            args = (args[0], self._replace_masks(args[1]), *args[2:])
        if func is _aten._to_copy.default and options.get("device", ACCELERATOR) != ACCELERATOR:
            self.reads[find_line()] += 1
            return torch.ones(args[0].shape, dtype=options.get("dtype") or args[0].dtype)
        if any(tensor.device != ACCELERATOR and tensor.dim() for tensor in tensors):
            self.moves[find_line()] += 1
        return func(*args, **options)

    def _run_on_host(self, func: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        is_copy = func is _aten._to_copy.default and options.get("device") == ACCELERATOR
        if is_copy and not options.get("non_blocking"):
            self.moves[find_line()] += 1
        return func(*args, **options)

    def _choose_all(self, mask: Tensor) -> Tensor:
        """Return as many positions as there can be."""
        self.reads[find_line()] += 1
        return torch.zeros(mask.numel(), mask.dim(), dtype=torch.long, device=ACCELERATOR)

    def _replace_masks(self, indices: Any) -> list[Tensor | None]:
        resolved: list[Tensor | None] = []
        for index in indices:
            is_truth = index is not None and index.dtype in (torch.bool, torch.uint8)
            resolved += self._choose_all(index).unbind(1) if is_truth else [index]
        return resolved


class Float64Uses(HostReads):
    """Mode that also records tensors in float64 on the device, which an MPS device refuses.

    Attributes:
        doubles: Lines that make them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.doubles: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        if any(tensor.device == ACCELERATOR and tensor.dtype == torch.float64 for tensor in tensors):
            self.doubles[find_line()] += 1
        return result


class _Constructors(TorchFunctionMode):
    """Mode that records tensors created on the device from numbers of the host, which the meta device does not
    dispatch.
    """

    def __init__(self, moves: Counter[str]) -> None:
        super().__init__()
        self._moves = moves

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        tensor = func(*args, **(kwargs or {}))
        is_from_numbers = func in (torch.tensor, torch.as_tensor) and not isinstance(args[0], Tensor)
        if (is_from_numbers or func is Tensor.new_tensor) and tensor.device == ACCELERATOR and tensor.numel():
            self._moves[find_line()] += 1
        return tensor


def find_line() -> str:
    """Return the innermost line of the package on the stack, with its file and function; a backward pass has none."""
    for frame in reversed(traceback.extract_stack()):
        if frame.filename.startswith(str(PACKAGE)):
            return f"{frame.filename.removeprefix(f'{PACKAGE}/')} {frame.name}: {frame.line}"
    return "outside of the package"


@contextmanager
def accelerator_autocast() -> Iterator[None]:
    """Let models query and disable autocast on the meta device, which torch does not support."""
    is_enabled, autocast = torch.is_autocast_enabled, torch.autocast
    torch.is_autocast_enabled = lambda device="cpu": device != ACCELERATOR.type and is_enabled(device)  # type: ignore
    torch.autocast = lambda device, *args, **options: (  # type: ignore
        nullcontext() if device == ACCELERATOR.type else autocast(device, *args, **options)
    )
    try:
        yield
    finally:
        torch.is_autocast_enabled, torch.autocast = is_enabled, autocast  # type: ignore
