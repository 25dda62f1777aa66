"""Sharding of parameters, gradients and optimizer state over processes: torch's FSDP2, as accelerate applies it.

accelerate shards where there is an accelerator, and silently runs DDP where there is none. Its code shards on CPUs,
too, once its state says so. `enable_sharding` sets that state, so that tests on CPUs run the code of a GPU.
See docs/decisions/0044.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from accelerate import Accelerator
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard


def enable_sharding(accelerator: Accelerator, model: Any, settings: dict[str, Any]) -> None:
    """Configure an accelerator of data parallelism to shard the model that it prepares, on any device.

    Weights stay in float32, and only autocast lowers the precision of products, as without sharding. The policy of
    accelerate would round every input of a model, among them the counts that divide losses.

    Args:
        accelerator: Accelerator of a distributed run.
        model: Model that it will prepare.
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
            return prepare(*parts, **options)

    accelerator.prepare = prepare_by_blocks


@contextmanager
def _group_by_blocks(model: Any) -> Iterator[None]:
    """Let accelerate shard a model by the blocks that it names, with one group of everything else, within the context.

    Frozen parts are separate groups: a base with cached states is then never gathered. accelerate would also make
    groups of the embeddings and of the output layer. But a parameter must not be in two groups, and heads tie biases
    and matrices, or read the matrix of the embeddings without calling them.
    """
    for part in model.children():
        if (parameters := list(part.parameters())) and not any(parameter.requires_grad for parameter in parameters):
            fully_shard(part)
    names = ("get_input_embeddings", "get_output_embeddings")
    for name in names:
        setattr(model, name, lambda: None)
    try:
        yield
    finally:
        for name in names:
            delattr(model, name)


def reshard_model(model: nn.Module) -> None:
    """Reshard the parameters after a forward pass without a backward pass."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
