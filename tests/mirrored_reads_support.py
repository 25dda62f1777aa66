"""Host reads of whole evaluations and decoding steps, in which the host goes on with the numbers it reads.

`HostReads` answers every read with a made-up number, so a model never sees a text exit. `MirroredReads` computes: a
tensor of the meta device has a mirror on the CPU with its numbers, and a read gets the number of the mirror.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from tests.host_reads_support import _INDEXED, ACCELERATOR, HostReads, find_line

_aten = torch.ops.aten
_NEEDS_NUMBERS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class MirroredReads(HostReads):
    """Mode that counts reads and copies as `HostReads` does, and answers reads with numbers computed on the CPU.

    A storage of the meta device has a storage of the CPU as its mirror, so views and writes need no care. Tensors get
    their mirror when they move to the device or are computed there, so a model moves within the context.
    """

    def __init__(self) -> None:
        super().__init__()
        self._mirrors: dict[int, tuple[Any, Any]] = {}  # by storage, which is stored so that its number stays its own
        self._make_tensor = torch.tensor

    def __enter__(self) -> MirroredReads:
        self._patch = mock.patch.object(torch, "tensor", self._upload)  # it creates tensors without a dispatch
        self._patch.start()
        super().__enter__()
        return self

    def __exit__(self, *args: Any) -> None:
        super().__exit__(*args)
        self._patch.stop()

    def _upload(self, values: Any, *, device: Any = None, **options: Any) -> Tensor:
        tensor = self._make_tensor(values, **options)
        return tensor if device is None else tensor.to(device)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        tensors = [leaf for leaf in tree_leaves((args, options)) if isinstance(leaf, Tensor)]
        on_device = [tensor for tensor in tensors if tensor.device == ACCELERATOR]
        if func is _aten._to_copy.default and on_device and options.get("device", ACCELERATOR) != ACCELERATOR:
            self.reads[find_line()] += 1
            return func(self._mirror(args[0]), *args[1:], **options)
        if not on_device and torch.device(options.get("device") or "cpu") != ACCELERATOR:
            return func(*args, **options)
        if any(tensor.device != ACCELERATOR and tensor.dim() for tensor in tensors) and not options.get("non_blocking"):
            self.moves[find_line()] += 1
        expected = self._compute(func, args, options)
        if func is _aten._local_scalar_dense.default:
            self.reads[find_line()] += 1
            return expected
        if func._overloadpacket in _INDEXED:
            waits = any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
        else:
            waits = bool(_NEEDS_NUMBERS & set(func.tags))
        if waits:
            self.reads[find_line()] += 1
            if not func._schema.is_mutable:
                return tree_map(self._make_counterpart, expected)
            return args[0]
        result = func(*args, **options)
        for result_leaf, mirror in zip(tree_leaves(result), tree_leaves(expected), strict=True):
            if isinstance(result_leaf, Tensor) and result_leaf.untyped_storage()._cdata not in self._mirrors:
                self._add_mirror(result_leaf, mirror)
        return result

    def _compute(self, func: Any, args: Any, options: dict[str, Any]) -> Any:
        """Run an operation on the mirrors."""
        if options.get("device") is not None:
            options = {**options, "device": torch.device("cpu")}
        return func(*tree_map(self._mirror, args), **tree_map(self._mirror, options))

    def _mirror(self, value: Any) -> Any:
        """Return the numbers of a tensor of the device, which shares them with its views; others stay."""
        if not isinstance(value, Tensor) or value.device != ACCELERATOR:
            return value
        entry = self._mirrors.get(value.untyped_storage()._cdata)
        assert entry is not None, f"{find_line()}: a tensor of shape {tuple(value.shape)} has no numbers"
        mirror = torch.empty(0, dtype=value.dtype)
        return mirror.set_(entry[1], value.storage_offset(), value.shape, value.stride())

    def _add_mirror(self, tensor: Tensor, mirror: Tensor) -> None:
        storage = tensor.untyped_storage()
        self._mirrors[storage._cdata] = storage, torch.UntypedStorage(storage.nbytes())
        self._mirror(tensor).copy_(mirror)

    def _make_counterpart(self, mirror: Any) -> Any:
        """Return a tensor of the device with these numbers."""
        if not isinstance(mirror, Tensor):
            return mirror
        tensor = torch.empty_like(mirror, device=ACCELERATOR)
        self._add_mirror(tensor, mirror)
        return tensor
