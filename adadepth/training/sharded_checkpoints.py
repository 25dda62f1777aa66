"""Sharded checkpoints of weights and optimizer, one file per process, with torch's distributed checkpoints (DCP).

The files are safetensors, with the position of every shard in its whole tensor. A run of any world size, sharded or
not, can read the files of a run of any other world size. Nothing is unpickled. The file `_SETTINGS` holds scalars and
options of the optimizer.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
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

from adadepth.training.stored_states import check_completeness, check_optimizer_state, check_structure, find_frozen

SHARDS = "shards"  # the folder of a checkpoint
_SETTINGS = "optimizer_settings.pt"  # groups, counters: the same on all processes
_WEIGHTS, _STATE = "model.", "optimizer."  # prefixes of the names of tensors


def is_sharded(checkpoint: Path) -> bool:
    """Return whether the weights and the optimizer state of a checkpoint are sharded."""
    return (checkpoint / SHARDS).is_dir()


# ---- tensors


def _name_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors to store in a checkpoint by name: the model's parameters and buffers.

    Each parameter occurs once. A frozen base that is stored elsewhere is excluded.
    """
    ignored: set[str] = set(getattr(model, "_keys_to_ignore_on_save", None) or ())
    stored = model.state_dict()
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in stored}
    tensors = {**dict(model.named_parameters()), **buffers}
    return {_WEIGHTS + name: value.detach() for name, value in tensors.items() if name not in ignored}


def copy_same_shape(name: str, stored: Tensor, weight: Tensor) -> None:
    """Copy a full tensor into a weight of the same shape, which may be sharded.

    Raises:
        ValueError: If the shapes differ; the message names the weight.
    """
    if stored.shape != weight.shape:
        raise ValueError(f"{name} has the shape {tuple(stored.shape)}, needed is {tuple(weight.shape)}")
    weight.copy_(_shard_like(weight, stored))


def _shard_like(weight: Tensor, value: Tensor) -> Tensor:
    """Return this process's shard of a full tensor, or the full tensor if the weight is not sharded."""
    if not isinstance(weight, DTensor) or value.shape != weight.shape:
        return value
    return distribute_tensor(value.to(weight.device), weight.device_mesh, weight.placements, src_data_rank=None)


def gather_weights(model: Any) -> dict[str, Tensor]:
    """Gather the full weights of a sharded model on the CPU of the main process, for `save_pretrained`.

    Tied weights occur only once.
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
    """Write the optimizer state that is equal on all processes, on the main process only."""
    state = optimizer.state_dict()
    small = {
        number: {name: value for name, value in values.items() if not _is_sharded_state(value)}
        for number, values in state["state"].items()
    }
    torch.save({"state": small, "param_groups": state["param_groups"]}, checkpoint / _SETTINGS)


@cache
def _make_writing_group() -> Any:
    """Create a second process group for background writing, separate from the communication of training."""
    return dist.new_group(backend="gloo")


def begin_writing(
    model: nn.Module, optimizer: torch.optim.Optimizer, checkpoint: Path, finish: Callable[[Path], None]
) -> Future[Any]:
    """Copy this process's shards of weights and optimizer state, and write the copy to disk in the background.

    Every process calls it.

    Args:
        model: Model whose weights are written.
        optimizer: Optimizer whose moments are written.
        checkpoint: Folder of the checkpoint.
        finish: Function that the main process calls with the folder once all shards are on disk.

    Returns:
        Future that completes when `finish` has returned, or that holds the error.
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
    """Fill full or sharded tensors from the shards that any number of processes wrote."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # every process reads independently
        dcp.load(tensors, storage_reader=HuggingFaceStorageReader(str(checkpoint / SHARDS)), no_dist=True)


def load_weights(model: nn.Module, checkpoint: Path) -> None:
    """Load the weights of a model from a checkpoint. Model and checkpoint may each be sharded or not.

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
    """Load an optimizer state with the same parameter groups. Optimizer and checkpoint may each be sharded or not.

    Args:
        optimizer: Optimizer to fill.
        checkpoint: Folder of the checkpoint.
        names: Names of the parameters, in the order of the groups.
        stateless: Numbers of the parameters that had no state when the checkpoint was written, or None if unknown.

    Raises:
        ValueError: If the state of a parameter does not fit or is missing; the message names the parameter.
    """
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    file = _SETTINGS if is_sharded(checkpoint) else "optimizer.pt"
    state = torch.load(checkpoint / file, map_location="cpu", weights_only=True)
    check_structure(state)
    frozen = find_frozen(optimizer, state, stateless)
    numbers = [number for group in state["param_groups"] for number in group["params"] if number not in frozen]
    if is_sharded(checkpoint):
        for number, name, value in _read_moments(checkpoint, dict(zip(numbers, weights, strict=False))):
            state["state"].setdefault(number, {})[name] = value
    if frozen:
        state, stateless = _renumber(state, numbers), []
    check_optimizer_state(optimizer, state, names)
    if stateless is not None:
        check_completeness(state, stateless, names)
    for number, values in state["state"].items():
        for name, value in values.items():
            if isinstance(value, Tensor) and not isinstance(value, DTensor):
                values[name] = _shard_like(weights[number], value)
    optimizer.load_state_dict(state)


def _renumber(state: Mapping[str, Any], numbers: Sequence[int]) -> dict[str, Any]:
    """Return an optimizer state with only the parameters of these numbers, in this order, counted from 0."""
    positions = {number: position for position, number in enumerate(numbers)}
    return {
        "state": {positions[number]: values for number, values in state["state"].items() if number in positions},
        "param_groups": [
            {**group, "params": [positions[number] for number in group["params"] if number in positions]}
            for group in state["param_groups"]
        ],
    }


def _read_moments(checkpoint: Path, weights: Mapping[int, Tensor]) -> Iterator[tuple[int, str, Tensor]]:
    """Yield the parameter number, the name and the value of each tensor of the optimizer state."""
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
