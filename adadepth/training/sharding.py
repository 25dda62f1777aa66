"""Sharding of parameters, gradients and optimizer state over processes with torch's FSDP2 through accelerate.

accelerate shards a model if there is an accelerator, and silently runs DDP on a CPU. `enable_sharding` sets its state
so that it shards on CPUs, too; tests on CPUs therefore run the same code as a GPU. See docs/decisions/0044.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from accelerate import Accelerator
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard

from adadepth.models.contract import ReadsCachedStates


def enable_sharding(accelerator: Accelerator, model: Any, settings: dict[str, Any]) -> None:
    """Configure accelerate to shard the model with FSDP2, on any device.

    Weights stay in float32, and only autocast lowers the precision of matrix products, as without sharding. The
    mixed-precision policy of accelerate would round every input of the model, including the counts that divide losses.

    Args:
        accelerator: Accelerator of a distributed run.
        model: Model that the accelerator will prepare.
        settings: Settings of the plugin, as transformers derives them from `trainer.fsdp_config`.
    """
    state: Any = accelerator.state
    if getattr(state, "fsdp_plugin", None) is None:
        state.fsdp_plugin = FullyShardedDataParallelPlugin(**settings)
        state.distributed_type = DistributedType.FSDP
    state.fsdp_plugin.mixed_precision_policy = None
    prepare = accelerator.prepare

    def prepare_by_blocks(*parts: Any, **options: Any) -> Any:
        with _group_by_blocks(model):
            prepared = prepare(*parts, **options)
        keep_repeated_blocks_gathered(model)
        return prepared

    accelerator.prepare = prepare_by_blocks


@contextmanager
def _group_by_blocks(model: Any) -> Iterator[None]:
    """Configure accelerate, within the `with` block, to shard a model block by block, plus one group for the rest.

    A frozen base whose states can be cached forms a separate group, so that it is never gathered. Other frozen parts do
    not: a model may run the modules inside a part without calling the part, and heads may share its parameters. By
    default accelerate would also make groups of the embeddings and of the output layer, and transformers lists the
    embeddings of encoders as a block. This would fail, because a parameter must not be in two groups. Heads share
    biases and matrices with the embeddings, or read the embedding matrix without calling the embedding module.
    """
    base = model.base_model
    if isinstance(model, ReadsCachedStates) and not any(parameter.requires_grad for parameter in base.parameters()):
        fully_shard(base)
    names = ("get_input_embeddings", "get_output_embeddings")
    for name in names:
        setattr(model, name, lambda: None)
    blocks = model._no_split_modules
    model._no_split_modules = set(blocks or ()) - _list_sharing_classes(model)
    try:
        yield
    finally:
        model._no_split_modules = blocks
        for name in names:
            delattr(model, name)


def _list_sharing_classes(model: nn.Module) -> set[str]:
    """Return the names of the classes of modules that share a parameter with a module outside."""
    holders = _count_holders(model)
    return {
        type(module).__name__
        for module in model.modules()
        if any(count < holders[parameter] for parameter, count in _count_holders(module).items())
    }


def _count_holders(model: nn.Module) -> Counter[nn.Parameter]:
    """Return how many modules hold each parameter of a model under a name."""
    return Counter(
        parameter
        for module in model.modules()
        for _, parameter in module.named_parameters(recurse=False, remove_duplicate=False)
    )


def keep_repeated_blocks_gathered(model: nn.Module) -> None:
    """Let a block that a forward pass applies several times gather its parameters once in each forward pass.

    A block whose parameters are sharded frees them after every application. Once it has been applied twice in a forward
    pass, it keeps them until the backward pass, or until `reshard_model`. The backward pass still gathers them for
    every application.
    """
    applications: Counter[nn.Module] = Counter()

    def count(block: Any, *_: Any) -> None:
        applications[block] += 1
        if applications[block] == 2:
            block.set_reshard_after_forward(False, recurse=False)

    def begin_or_end(*_: Any) -> None:  # recomputed blocks are applied once more, between two forward passes
        applications.clear()

    model.register_forward_pre_hook(begin_or_end)
    model.register_forward_hook(begin_or_end)
    for block in model.modules():
        if block is not model and isinstance(block, FSDPModule):
            block.register_forward_pre_hook(count)


def reshard_model(model: nn.Module) -> None:
    """Free the gathered parameters of a sharded model after a forward pass that no backward pass follows."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
