"""Parameters, gradients and the optimizer's state shared out over processes: torch's FSDP2, as accelerate applies it.

accelerate shards where there is an accelerator and runs DDP where there is none, without a word. The same code shards
on CPUs, too, once its state says so, which is what `share_out` does: what a GPU will run is what tests run.
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


def share_out(accelerator: Accelerator, model: Any, settings: dict[str, Any]) -> None:
    """Let an accelerator that was made for plain data parallelism shard a model that it prepares, on any device.

    Weights stay in float32, and autocast alone lowers the precision of products, as without sharding: the policy that
    accelerate would set rounds every tensor that a model is given, among them the counts that losses are divided by.

    Args:
        accelerator: That of several processes.
        model: The model that it will prepare.
        settings: Those of the plugin, as transformers derives them from `trainer.fsdp_config`.
    """
    state: Any = accelerator.state
    if getattr(state, "fsdp_plugin", None) is None:
        state.fsdp_plugin = FullyShardedDataParallelPlugin(**settings)
        state.distributed_type = DistributedType.FSDP
    state.fsdp_plugin.mixed_precision_policy = None
    prepare = accelerator.prepare

    def prepare_by_blocks(*parts: Any, **options: Any) -> Any:
        with _by_blocks(model):
            return prepare(*parts, **options)

    accelerator.prepare = prepare_by_blocks


@contextmanager
def _by_blocks(model: Any) -> Iterator[None]:
    """While accelerate shards a model, its groups are the blocks that the model names, and one of all that is left.

    What is frozen is a group of its own: a base whose states are kept is then never gathered.
    accelerate would make groups of the embeddings and the output layer, too. A parameter must not be in two groups, and
    heads tie biases as well as matrices, or read the embeddings' matrix without calling them.
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


def let_go(model: nn.Module) -> None:
    """Free the whole parameters that a forward pass without a backward pass has left, so that shards are seen again."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
