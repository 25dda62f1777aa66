"""Module run by several processes: one step of every model, with sharded parameters and without."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from adadepth import LoopedForSequenceClassification
from adadepth.training.sharding import keep_repeated_blocks_gathered
from tests.unit.models.every_model_support import BUILD, FURTHER, build_training_batch
from tests.unit.models.looped.looped_support import build_looped


def run_step(model: nn.Module, name: str) -> float:
    torch.manual_seed(1)
    model.set_step(1, 10)
    loss = model(**build_training_batch(name)).loss
    loss.backward()
    return float(loss.detach())


def list_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the modules that are sharded separately: members of the innermost lists of layers that are no single
    matrices.

    FSDP gathers the weights of a module when it is called, so those of a mere holder of weights belong to the model.
    """
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    members = [block for layers in lists for block in layers if not isinstance(block, nn.Linear | nn.Embedding)]
    members = [block for block in members if type(block).forward is not nn.Module.forward]
    return [block for block in members if not any(isinstance(inner, nn.ModuleList) for inner in block.modules())]


def compare_sharded(name: str, by_block: bool) -> dict[str, float]:
    """Return the number of sharded parameters, and the largest differences of loss and gradients to the unsharded
    model.
    """
    torch.manual_seed(0)
    model = (BUILD | FURTHER)[name]().train()
    alone = copy.deepcopy(model)
    expected = run_step(alone, name)
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for block in list_blocks(model) if by_block else ():
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    sharded = sum(isinstance(parameter, DTensor) for parameter in model.parameters())
    loss = run_step(model, name)
    gradients = {key: parameter.grad for key, parameter in alone.named_parameters()}
    worst = 0.0
    for key, parameter in model.named_parameters():
        reference, gradient = gradients[key], parameter.grad
        assert (reference is None) == (gradient is None), key
        if gradient is not None:
            worst = max(worst, float((gradient.full_tensor() - reference).abs().max()))
    return {"sharded": sharded, "loss": abs(loss - expected), "gradients": worst}


class GatherCounter(TorchDispatchMode):
    """Mode that counts the gathers of parameters while it is entered."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += "allgather" in str(func)
        return func(*args, **(kwargs or {}))


def count_gathers(loops: int) -> list[int]:
    """Return how often a looped model gathers parameters in the forward pass of each of three steps."""
    torch.manual_seed(0)
    model = build_looped(LoopedForSequenceClassification, num_labels=2, num_loops=loops).train()
    for module in model.modules():
        if type(module).__name__ in model._no_split_modules:  # as accelerate does
            fully_shard(module)
    fully_shard(model)
    keep_repeated_blocks_gathered(model)
    counts = []
    for _ in range(3):
        model.set_step(1, 10)
        with GatherCounter() as gathers:
            loss = model(**build_training_batch("looped")).loss
        loss.backward()
        counts.append(gathers.count)
    return counts


def main(folder: Path) -> None:
    torch.distributed.init_process_group("gloo")
    gathers = {loops: count_gathers(loops) for loops in (2, 6)}
    if torch.distributed.get_rank() == 0:
        torch.save(gathers, folder / "gathers.pt")
    differences = {
        (name, by_block): compare_sharded(name, by_block) for name in BUILD | FURTHER for by_block in (False, True)
    }
    if torch.distributed.get_rank() == 0:
        torch.save(differences, folder / "sharded.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
