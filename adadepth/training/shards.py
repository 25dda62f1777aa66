"""Weights and optimizer of a checkpoint in shards, a file a process, by torch's distributed checkpointing (DCP).

The files are safetensors with the place of every piece in its whole tensor, so that any number of processes can read
what another number has written, sharded or not, and nothing is unpickled. What is no tensor of at least one dimension
lies beside them, see `_SETTINGS`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers.utils import SAFE_WEIGHTS_NAME

from adadepth.training.stored_states import check_completeness, check_optimizer_state

SHARDS = "shards"  # the folder of a checkpoint
_SETTINGS = "optimizer_settings.pt"  # groups, counters: the same on all processes
_WEIGHTS, _STATE = "model.", "optimizer."  # how the names of tensors begin


def is_sharded(checkpoint: Path) -> bool:
    """Tell whether a checkpoint's weights and optimizer are in shards."""
    return (checkpoint / SHARDS).is_dir()


# ---- tensors


def _name_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return what a checkpoint keeps of a model: parameters, once each, and buffers; no base that lies elsewhere."""
    left_out: set[str] = set(getattr(model, "_keys_to_ignore_on_save", None) or ())
    stored = model.state_dict()
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in stored}
    tensors = {**dict(model.named_parameters()), **buffers}
    return {_WEIGHTS + name: value.detach() for name, value in tensors.items() if name not in left_out}


def copy_same_shape(name: str, stored: Tensor, weight: Tensor) -> None:
    """Copy a whole tensor into a weight, which may be sharded; torch by itself would repeat a smaller one.

    Raises:
        ValueError: Naming the weight, if the shapes differ.
    """
    if stored.shape != weight.shape:
        raise ValueError(f"{name} has the shape {tuple(stored.shape)}, needed is {tuple(weight.shape)}")
    weight.copy_(_shard_like(weight, stored))


def _shard_like(weight: Tensor, value: Tensor) -> Tensor:
    """Return this process's part of a whole tensor where a weight of its shape is sharded; else the whole."""
    if not isinstance(weight, DTensor) or value.shape != weight.shape:
        return value
    return distribute_tensor(value.to(weight.device), weight.device_mesh, weight.placements, src_data_rank=None)


def gather_weights(model: Any) -> dict[str, Tensor]:
    """Return the whole weights as `save_pretrained` takes them, on the CPU of the main process; every process calls it.

    Tied ones are there once.
    """
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    weights: dict[str, Any] = get_model_state_dict(
        model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
    return {name: weight for name, weight in weights.items() if name not in model.all_tied_weights_keys}


def _is_sharded_state(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0


# ---- writing


def save_settings(optimizer: torch.optim.Optimizer, checkpoint: Path) -> None:
    """Write what of an optimizer is the same on all processes; the main one does it."""
    state = optimizer.state_dict()
    small = {
        number: {name: value for name, value in values.items() if not _is_sharded_state(value)}
        for number, values in state["state"].items()
    }
    torch.save({"state": small, "param_groups": state["param_groups"]}, checkpoint / _SETTINGS)


@cache
def _writing_group() -> Any:
    """Return the processes once more, for what a thread says beside the training's own messages."""
    return dist.new_group(backend="gloo")


def begin_writing(
    model: nn.Module, optimizer: torch.optim.Optimizer, checkpoint: Path, finish: Callable[[Path], None]
) -> Future[Any]:
    """Copy this process's shards, and write them while the training goes on; every process calls it.

    Args:
        model: Its weights are written.
        optimizer: Its moments are written.
        checkpoint: The folder.
        finish: Called by the main process with the folder, when the shards of all are on the disk.

    Returns:
        Done when `finish` is, or says why not.
    """
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

    class Writer(HuggingFaceStorageWriter):
        def finish(self, metadata: Any, results: Any) -> None:
            super().finish(metadata, results)
            finish(checkpoint)

    moments = {
        f"{_STATE}{number}.{name}": value
        for number, values in optimizer.state_dict()["state"].items()
        for name, value in values.items()
        if _is_sharded_state(value)
    }
    writer = Writer(str(checkpoint / SHARDS), save_distributed=True)
    written: Any = dcp.async_save(
        {**_name_weights(model), **moments}, storage_writer=writer, process_group=_writing_group()
    )
    return written


# ---- reading


def _read(checkpoint: Path, tensors: dict[str, Tensor]) -> None:
    """Fill tensors, or this process's parts of them, from the shards of any number of processes."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # a process reads by itself
        dcp.load(tensors, storage_reader=HuggingFaceStorageReader(str(checkpoint / SHARDS)), no_dist=True)


def load_weights(model: nn.Module, checkpoint: Path) -> None:
    """Load a model's weights from a checkpoint, whichever of the two is sharded.

    Raises:
        RuntimeError: If a weight has another shape.
    """
    if is_sharded(checkpoint):
        _read(checkpoint, _name_weights(model))
        return
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    options = StateDictOptions(full_state_dict=True, strict=False)  # tied weights are stored once
    stored: Any = load_file(checkpoint / SAFE_WEIGHTS_NAME)
    set_model_state_dict(model, stored, options=options)


def load_optimizer(
    optimizer: torch.optim.Optimizer, checkpoint: Path, names: Sequence[str], stateless: Sequence[int] | None
) -> None:
    """Load an optimizer's state, of the same groups of parameters, whichever of the two is sharded.

    Args:
        optimizer: The live one.
        checkpoint: The folder.
        names: Names of the parameters, in the order of the groups.
        stateless: Numbers of those that had no state when it was written; None: nobody knows which had.

    Raises:
        ValueError: Naming the parameter whose state does not fit it or is missing.
    """
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    file = _SETTINGS if is_sharded(checkpoint) else "optimizer.pt"
    state = torch.load(checkpoint / file, map_location="cpu", weights_only=True)
    if is_sharded(checkpoint):
        for number, name, value in _read_moments(checkpoint, weights):
            state["state"].setdefault(number, {})[name] = value
    check_optimizer_state(optimizer, state, names)
    if stateless is not None:
        check_completeness(state, stateless, names)
    for number, values in state["state"].items():
        for name, value in values.items():
            if isinstance(value, Tensor) and not isinstance(value, DTensor):
                values[name] = _shard_like(weights[number], value)
    optimizer.load_state_dict(state)


def _read_moments(checkpoint: Path, weights: Sequence[Tensor]) -> Iterator[tuple[int, str, Tensor]]:
    """Read the optimizer's tensors, each with the number of its parameter and its name."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    metadata: Any = HuggingFaceStorageReader(str(checkpoint / SHARDS)).read_metadata().state_dict_metadata
    tensors: dict[str, Tensor] = {}
    for key, about in metadata.items():
        if key.startswith(_STATE):
            empty = torch.zeros(about.size, dtype=about.properties.dtype)
            tensors[key] = _shard_like(weights[int(key.split(".")[1])].detach(), empty)
    _read(checkpoint, tensors)
    for key, value in tensors.items():
        _, number, name = key.split(".", 2)
        yield int(number), name, value
