"""Sharded checkpoints of weights and optimizer, a file per process, by torch's distributed checkpointing (DCP).

The files are safetensors with the position of every piece in its whole tensor. Any number of processes can read the
files of any other number, sharded or not, and nothing is unpickled. `_SETTINGS` holds scalars and
options of the optimizer.
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
_WEIGHTS, _STATE = "model.", "optimizer."  # prefixes of the names of tensors


def is_sharded(checkpoint: Path) -> bool:
    """Return whether weights and optimizer of a checkpoint are in shards."""
    return (checkpoint / SHARDS).is_dir()


# ---- tensors


def _name_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the stored tensors of a model: parameters, once each, and buffers; no base that is stored elsewhere."""
    ignored: set[str] = set(getattr(model, "_keys_to_ignore_on_save", None) or ())
    stored = model.state_dict()
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in stored}
    tensors = {**dict(model.named_parameters()), **buffers}
    return {_WEIGHTS + name: value.detach() for name, value in tensors.items() if name not in ignored}


def copy_same_shape(name: str, stored: Tensor, weight: Tensor) -> None:
    """Copy a whole tensor into a weight, which may be sharded, without broadcasting.

    Raises:
        ValueError: Naming the weight, if the shapes differ.
    """
    if stored.shape != weight.shape:
        raise ValueError(f"{name} has the shape {tuple(stored.shape)}, needed is {tuple(weight.shape)}")
    weight.copy_(_shard_like(weight, stored))


def _shard_like(weight: Tensor, value: Tensor) -> Tensor:
    """Return the part of this process of a whole tensor if the weight of its shape is sharded; else the whole."""
    if not isinstance(weight, DTensor) or value.shape != weight.shape:
        return value
    return distribute_tensor(value.to(weight.device), weight.device_mesh, weight.placements, src_data_rank=None)


def gather_weights(model: Any) -> dict[str, Tensor]:
    """Return the whole weights as `save_pretrained` takes them, on the CPU of the main process; every process calls it.

    Tied weights occur once.
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
    """Write the part of an optimizer that is the same on all processes; the main process calls it."""
    state = optimizer.state_dict()
    small = {
        number: {name: value for name, value in values.items() if not _is_sharded_state(value)}
        for number, values in state["state"].items()
    }
    torch.save({"state": small, "param_groups": state["param_groups"]}, checkpoint / _SETTINGS)


@cache
def _make_writing_group() -> Any:
    """Make a second group of all processes, for messages of the writing thread beside those of training."""
    return dist.new_group(backend="gloo")


def begin_writing(
    model: nn.Module, optimizer: torch.optim.Optimizer, checkpoint: Path, finish: Callable[[Path], None]
) -> Future[Any]:
    """Copy the shards of this process, and write them while training continues; every process calls it.

    Args:
        model: Model whose weights are written.
        optimizer: Optimizer whose moments are written.
        checkpoint: Folder of the checkpoint.
        finish: Function of the folder that the main process calls once all shards are on the disk.

    Returns:
        Future that is done when `finish` is, or holds the error.
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
        {**_name_weights(model), **moments}, storage_writer=writer, process_group=_make_writing_group()
    )
    return written


# ---- reading


def _fill_tensors(checkpoint: Path, tensors: dict[str, Tensor]) -> None:
    """Fill tensors, or this process's parts of them, from the shards of any number of processes."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # every process reads independently
        dcp.load(tensors, storage_reader=HuggingFaceStorageReader(str(checkpoint / SHARDS)), no_dist=True)


def load_weights(model: nn.Module, checkpoint: Path) -> None:
    """Load the weights of a model; both model and checkpoint may be sharded.

    Raises:
        RuntimeError: If a weight has another shape.
    """
    if is_sharded(checkpoint):
        _fill_tensors(checkpoint, _name_weights(model))
        return
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    options = StateDictOptions(full_state_dict=True, strict=False)  # tied weights are stored once
    stored: Any = load_file(checkpoint / SAFE_WEIGHTS_NAME)
    set_model_state_dict(model, stored, options=options)


def load_optimizer(
    optimizer: torch.optim.Optimizer, checkpoint: Path, names: Sequence[str], stateless: Sequence[int] | None
) -> None:
    """Load the state of an optimizer with the same groups; both optimizer and checkpoint may be sharded.

    Args:
        optimizer: Optimizer to fill.
        checkpoint: Folder of the checkpoint.
        names: Names of the parameters, in the order of the groups.
        stateless: Numbers of the parameters that had no state when the checkpoint was written; None: unknown.

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
    """Yield number of the parameter, name and value of each tensor of the optimizer."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    metadata: Any = HuggingFaceStorageReader(str(checkpoint / SHARDS)).read_metadata().state_dict_metadata
    tensors: dict[str, Tensor] = {}
    for key, description in metadata.items():
        if key.startswith(_STATE):
            empty = torch.zeros(description.size, dtype=description.properties.dtype)
            tensors[key] = _shard_like(weights[int(key.split(".")[1])].detach(), empty)
    _fill_tensors(checkpoint, tensors)
    for key, value in tensors.items():
        _, number, name = key.split(".", 2)
        yield int(number), name, value
