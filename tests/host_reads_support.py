"""What a step makes the host wait for, seen without an accelerator: on the meta device, whose tensors have no numbers.

A tensor of the meta device has a shape, a type and a device that is not the CPU, so models take the way that they take
on an accelerator. What would read a number back is answered and noted, and so is what goes from one device to another.
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
    """Notes reads and copies while it is entered, by the line of the package that caused them.

    Attributes:
        reads: Lines that wait for a number, or for how many places are chosen.
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
        given = dict(kwargs or {})
        tensors = [leaf for leaf in tree_leaves((args, given)) if isinstance(leaf, Tensor)]
        if not any(tensor.device == ACCELERATOR for tensor in tensors):
            return self._from_the_host(func, args, given)
        if func is _aten._local_scalar_dense.default:
            self.reads[find_line()] += 1
            return {torch.bool: True}.get(args[0].dtype, 1.0 if args[0].is_floating_point() else 1)
        if func is _aten.nonzero.default:
            return self._places(args[0])
        if func._overloadpacket in _INDEXED:
            args = (args[0], self._without_truths(args[1]), *args[2:])
        if func is _aten._to_copy.default and given.get("device", ACCELERATOR) != ACCELERATOR:
            self.reads[find_line()] += 1
            return torch.ones(args[0].shape, dtype=given.get("dtype") or args[0].dtype)
        if any(tensor.device != ACCELERATOR and tensor.dim() for tensor in tensors):
            self.moves[find_line()] += 1
        return func(*args, **given)

    def _from_the_host(self, func: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> Any:
        is_copy = func is _aten._to_copy.default and given.get("device") == ACCELERATOR
        if is_copy and not given.get("non_blocking"):
            self.moves[find_line()] += 1
        return func(*args, **given)

    def _places(self, chosen: Tensor) -> Tensor:
        """As many as there can be."""
        self.reads[find_line()] += 1
        return torch.zeros(chosen.numel(), chosen.dim(), dtype=torch.long, device=ACCELERATOR)

    def _without_truths(self, indices: Any) -> list[Tensor | None]:
        found: list[Tensor | None] = []
        for index in indices:
            is_truth = index is not None and index.dtype in (torch.bool, torch.uint8)
            found += self._places(index).unbind(1) if is_truth else [index]
        return found


class Float64Uses(HostReads):
    """Notes tensors in float64 on the device, too, which an MPS device refuses.

    Attributes:
        doubles: Lines that make them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.doubles: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        made = super().__torch_dispatch__(func, types, args, kwargs)
        tensors = [leaf for leaf in tree_leaves(made) if isinstance(leaf, Tensor)]
        if any(tensor.device == ACCELERATOR and tensor.dtype == torch.float64 for tensor in tensors):
            self.doubles[find_line()] += 1
        return made


class _Constructors(TorchFunctionMode):
    """Notes tensors that are made on the device of numbers of the host, which dispatches nothing on the meta device."""

    def __init__(self, moves: Counter[str]) -> None:
        super().__init__()
        self._moves = moves

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        of_numbers = func in (torch.tensor, torch.as_tensor) and not isinstance(args[0], Tensor)
        if (of_numbers or func is Tensor.new_tensor) and made.device == ACCELERATOR and made.numel():
            self._moves[find_line()] += 1
        return made


def find_line() -> str:
    """Return the innermost line of the package on the stack, with its file and function; a backward pass has none."""
    for frame in reversed(traceback.extract_stack()):
        if frame.filename.startswith(str(PACKAGE)):
            return f"{frame.filename.removeprefix(f'{PACKAGE}/')} {frame.name}: {frame.line}"
    return "outside of the package"


@contextmanager
def accelerator_autocast() -> Iterator[None]:
    """Let models ask whether autocast is enabled, and disable it, which the meta device does not know."""
    asked, autocast = torch.is_autocast_enabled, torch.autocast
    torch.is_autocast_enabled = lambda device="cpu": device != ACCELERATOR.type and asked(device)  # type: ignore
    torch.autocast = lambda device, *args, **options: (  # type: ignore
        nullcontext() if device == ACCELERATOR.type else autocast(device, *args, **options)
    )
    try:
        yield
    finally:
        torch.is_autocast_enabled, torch.autocast = asked, autocast  # type: ignore
