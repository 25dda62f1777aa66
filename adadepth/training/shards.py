"""Weights and optimizer of a checkpoint in shards, a file a process, by torch's distributed checkpointing (DCP).

The files are safetensors with the place of every piece in its whole tensor, so that any number of processes can read
what another number has written, sharded or not, and nothing is unpickled. What is no tensor of at least one dimension
lies beside them, see `_SETTINGS`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from adadepth.families.shared.layers import whole
from adadepth.training.stored_states import check_completeness, check_optimizer_state

SHARDS = "shards"  # the folder of a checkpoint
_SETTINGS = "optimizer_settings.pt"  # groups, counters: the same on all processes
_WEIGHTS, _STATE = "model.", "optimizer."  # how the names of tensors begin
_WHOLE_WEIGHTS, _WHOLE_OPTIMIZER = "model.safetensors", "optimizer.pt"  # of a checkpoint without shards


def is_sharded(checkpoint: Path) -> bool:
    """Whether a checkpoint's weights and optimizer are in shards."""
    return (checkpoint / SHARDS).is_dir()


# ---- tensors


def kept_weights(model: nn.Module) -> dict[str, Tensor]:
    """What a checkpoint keeps of a model by name: parameters, once each, and buffers; no base that lies elsewhere."""
    left_out: set[str] = set(getattr(model, "_keys_to_ignore_on_save", None) or ())
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    stored = model.state_dict()
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in stored}
    return {name: value for name, value in {**parameters, **buffers}.items() if name not in left_out}


def shared_like(value: Tensor, other: Tensor) -> Tensor:
    """This process's part of a whole tensor, where the other one of the same shape is shared out; else the whole."""
    if not isinstance(other, DTensor) or value.shape != other.shape:
        return value
    return distribute_tensor(value.to(other.device), other.device_mesh, other.placements, src_data_rank=None)


def whole_weights(model: nn.Module, *, is_main: bool) -> dict[str, Tensor]:
    """The weights as `save_pretrained` takes them, on the CPU; every process calls it, the main one keeps them."""
    named = dict(model.named_parameters(remove_duplicate=False))
    found: dict[int, Tensor] = {}
    weights: dict[str, Tensor] = {}
    for name, value in model.state_dict().items():
        key = id(named.get(name, value))  # tied ones stay one tensor
        if key not in found:
            gathered = whole(value)
            found[key] = gathered.cpu() if is_main else gathered.new_empty(0)
        weights[name] = found[key]
    return weights


def _pieces(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of an optimizer's state that have dimensions, by the number of their parameter and their name."""
    return {
        f"{_STATE}{number}.{name}": value
        for number, values in state["state"].items()
        for name, value in values.items()
        if isinstance(value, Tensor) and value.ndim
    }


def _settings(state: Mapping[str, Any]) -> dict[str, Any]:
    """What an optimizer's state holds besides."""
    small = {
        number: {name: value for name, value in values.items() if not (isinstance(value, Tensor) and value.ndim)}
        for number, values in state["state"].items()
    }
    return {"state": small, "param_groups": state["param_groups"]}


# ---- writing


@cache
def _group() -> Any:
    """The processes once more, for what a thread says beside the training's own messages."""
    return dist.new_group(backend="gloo")


def save_settings(optimizer: torch.optim.Optimizer, checkpoint: Path) -> None:
    """Write what of an optimizer is the same on all processes; the main one does it."""
    torch.save(_settings(optimizer.state_dict()), checkpoint / _SETTINGS)


def begin_writing(model: nn.Module, optimizer: torch.optim.Optimizer, checkpoint: Path) -> Future[Any]:
    """Copy this process's shards, and write them while the training goes on; every process calls it.

    Returns:
        What is done when the shards of all processes are on the disk, or says why they are not.
    """
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

    tensors = {f"{_WEIGHTS}{name}": value for name, value in kept_weights(model).items()}
    tensors |= _pieces(optimizer.state_dict())
    writer = HuggingFaceStorageWriter(str(checkpoint / SHARDS), save_distributed=True, enable_consolidation=False)
    written: Any = dcp.async_save(tensors, storage_writer=writer, process_group=_group())
    return written


@cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="checkpoint")


def afterwards(written: Future[Any], do: Callable[[], None]) -> Future[Any]:
    """Do something in a thread when shards are written; the result says whether both went well."""

    def follow() -> None:
        written.result()
        do()

    return _thread().submit(follow)


# ---- reading


@contextmanager
def _alone() -> Iterator[None]:
    """Without DCP's remark that a process reads by itself, which is meant."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _read(checkpoint: Path, tensors: dict[str, Tensor]) -> None:
    """Fill tensors, or this process's parts of them, from the shards of any number of processes."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    with _alone():
        dcp.load(tensors, storage_reader=HuggingFaceStorageReader(str(checkpoint / SHARDS)), no_dist=True)


def load_weights(model: nn.Module, checkpoint: Path) -> None:
    """Load a model's weights from a checkpoint, whichever of the two is sharded.

    Raises:
        ValueError: If a weight is missing or of another shape.
    """
    weights = kept_weights(model)
    if is_sharded(checkpoint):
        _read(checkpoint, {f"{_WEIGHTS}{name}": value for name, value in weights.items()})
        return
    found = load_file(checkpoint / _WHOLE_WEIGHTS)
    for name, other_names in _names(model, weights).items():
        stored = next((found[other] for other in other_names if other in found), None)
        if stored is None:
            raise ValueError(f"{name} is missing")
        copy_same_shape(name, stored, weights[name])


def copy_same_shape(name: str, stored: Tensor, weight: Tensor) -> None:
    """Copy a stored tensor into a weight, which may be shared out; torch by itself would repeat a smaller one.

    Raises:
        ValueError: Naming the weight, if the shapes differ.
    """
    if stored.shape != weight.shape:
        raise ValueError(f"{name} has the shape {tuple(stored.shape)}, needed is {tuple(weight.shape)}")
    weight.copy_(shared_like(stored, weight))


def _names(model: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, list[str]]:
    """All names that each of the weights has: of tied ones a file holds one."""
    first = {id(parameter): name for name, parameter in model.named_parameters()}
    names = {name: [name] for name in weights}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if first[id(parameter)] in names:
            names[first[id(parameter)]].append(name)
    return names


def load_optimizer(
    optimizer: torch.optim.Optimizer, checkpoint: Path, names: Sequence[str], stateless: Sequence[int] | None
) -> None:
    """Load an optimizer's state, of the same groups of parameters, whichever of the two is sharded.

    Args:
        optimizer: It.
        checkpoint: The folder.
        names: Of the parameters, in the order of the groups.
        stateless: Numbers of those that had no state when it was written; None: nobody knows which had.

    Raises:
        ValueError: Naming the parameter whose state does not fit it or is missing.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if is_sharded(checkpoint):
        state = torch.load(checkpoint / _SETTINGS, map_location="cpu", weights_only=True)
        for number, name, value in _stored(checkpoint, parameters):
            state["state"].setdefault(number, {})[name] = value
    else:
        state = torch.load(checkpoint / _WHOLE_OPTIMIZER, map_location="cpu", weights_only=True)
    check_optimizer_state(optimizer, state, names)
    if stateless is not None:
        check_completeness(state, stateless, names)
    for number, values in state["state"].items():
        for name, value in values.items():
            if isinstance(value, Tensor) and not isinstance(value, DTensor):
                values[name] = shared_like(value, parameters[number])
    optimizer.load_state_dict(state)


def _stored(checkpoint: Path, parameters: list[nn.Parameter]) -> Iterator[tuple[int, str, Tensor]]:
    """The tensors of the optimizer that shards hold, each with the number of its parameter and its name."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    stored: Any = HuggingFaceStorageReader(str(checkpoint / SHARDS)).read_metadata().state_dict_metadata
    tensors = {}
    for key, about in stored.items():
        if key.startswith(_STATE):
            number = int(key.split(".")[1])
            empty = torch.zeros(about.size, dtype=about.properties.dtype)
            tensors[key] = shared_like(empty, parameters[number].detach())
    _read(checkpoint, tensors)
    for key, value in tensors.items():
        _, number, name = key.split(".", 2)
        yield int(number), name, value
