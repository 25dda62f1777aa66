"""Batches of distributed training, in which every process must take part in every step, if need be with a placeholder.

A process that has no examples left continues with placeholder examples, which do not count in losses or metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import TrainingArguments

from adadepth.data.batches import EpochSampler, ProcessBatches
from adadepth.runtime.devices import upload

STAND_IN = "collate_or_stand_in"  # key of a batch whose examples are not counted


def shared_loader(
    train: Any, collate: Callable[[list[Any]], dict[str, Any]], sampler: EpochSampler, args: TrainingArguments
) -> DataLoader:
    """Build a loader of the micro-batches of this process in an epoch; see `collate_with_placeholder`."""
    shares = ProcessBatches(
        sampler, args.train_batch_size, args.process_index, args.world_size, drop_last=args.dataloader_drop_last
    )
    return DataLoader(
        train,
        batch_sampler=shares,
        collate_fn=partial(collate_with_placeholder, collate, train[0]),
        num_workers=args.dataloader_num_workers,
        pin_memory=args.dataloader_pin_memory,
        persistent_workers=args.dataloader_persistent_workers,
        prefetch_factor=args.dataloader_prefetch_factor,
    )


def collate_with_placeholder(
    collate: Callable[[list[Any]], dict[str, Any]], example: Any, examples: list[Any]
) -> dict[str, Any]:
    """Collate examples to a batch; without examples, return a placeholder batch that does not count.

    At the end of an epoch a process may have no examples left, but must still take part in the optimiser step.
    """
    return collate(examples) if examples else {**collate([example]), STAND_IN: True}


def is_counted_batch(batch: Mapping[str, Any]) -> bool:
    """Return whether a batch holds real examples instead of a placeholder."""
    return STAND_IN not in batch


def pad_batches_across_processes(
    batches: Iterable[Any], count: int, spare: Callable[[], Any]
) -> Iterator[tuple[Any, bool]]:
    """Yield equally many batches on every process, each with a flag that is False for padding batches.

    Processes may differ by one batch, but sharded models need all processes in every forward pass. A process that runs
    out of batches repeats its last batch, or uses the spare batch if it had none. These batches do not count.

    Args:
        batches: Batches of this process.
        count: Largest number of batches of any process.
        spare: Function that makes a batch for a process that has none.
    """
    remaining, batch = iter(batches), None
    for _ in range(count):
        following = next(remaining, None)
        batch = batch if following is None else following
        if batch is None:
            batch = spare()
        yield batch, following is not None


def sum_over_update(
    counts: list[dict[str, Tensor]], tokens: Tensor, device: torch.device, world_size: int
) -> tuple[dict[str, Tensor], Tensor]:
    """Sum the divisors of all loss parts, and the tokens, over the micro-batches and processes of an optimiser step.

    Args:
        counts: Number of targets of each loss part, one mapping per micro-batch of this process.
        tokens: Number of tokens that this process reads in the step.
        device: Device of the results.
        world_size: Number of processes. The summed counts are divided by it, because gradients are averaged over
            processes.
    """
    sums = [torch.stack([count[name] for count in counts]).sum() for name in counts[0]]
    totals = upload(torch.stack([*sums, tokens]).float(), device)
    if world_size > 1:
        dist.all_reduce(totals)
    return dict(zip(counts[0], (totals[:-1] / world_size).unbind(), strict=True)), totals[-1]
