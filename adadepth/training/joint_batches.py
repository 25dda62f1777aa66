"""Batches of several processes, each of which has to take part in every step of the others.

Where a process has no examples left, it goes on with ones that nobody counts.
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

STAND_IN = "stand_in"  # in a batch: its examples do not count


def shared_loader(
    train: Any, collate: Callable[[list[Any]], dict[str, Any]], sampler: EpochSampler, args: TrainingArguments
) -> DataLoader:
    """Return the loader of this process's micro-batches of an epoch; one without examples is a `stand_in`."""
    shares = ProcessBatches(
        sampler, args.train_batch_size, args.process_index, args.world_size, drop_last=args.dataloader_drop_last
    )
    return DataLoader(
        train,
        batch_sampler=shares,
        collate_fn=partial(stand_in, collate, train[0]),
        num_workers=args.dataloader_num_workers,
        pin_memory=args.dataloader_pin_memory,
        persistent_workers=args.dataloader_persistent_workers,
        prefetch_factor=args.dataloader_prefetch_factor,
    )


def stand_in(collate: Callable[[list[Any]], dict[str, Any]], example: Any, examples: list[Any]) -> dict[str, Any]:
    """The batch of some examples; of none, the one of an example that is not read.

    At the end of an epoch a process may have no examples left, but has to take part in the update of the others.
    """
    return collate(examples) if examples else {**collate([example]), STAND_IN: True}


def is_read(batch: Mapping[str, Any]) -> bool:
    """Whether a batch's examples count."""
    return STAND_IN not in batch


def in_step(batches: Iterable[Any], count: int, spare: Callable[[], Any]) -> Iterator[tuple[Any, bool]]:
    """As many batches as the process with the most has, and whether each is this process's own.

    Processes may have one batch more or less than others, yet sharded models need all of them in every forward pass: a
    process that has run out repeats its last batch, or where it never had one takes the spare one; nobody counts it.
    """
    remaining, batch = iter(batches), None
    for _ in range(count):
        following = next(remaining, None)
        batch = batch if following is None else following
        if batch is None:
            batch = spare()
        yield batch, following is not None


def first_item(items: list[Any]) -> Any:
    """The batch of a data set whose items are whole batches."""
    return items[0]


def sum_over_update(
    counts: list[dict[str, Tensor]], tokens: Tensor, device: torch.device, world_size: int
) -> tuple[dict[str, Tensor], Tensor]:
    """Return what normalises each loss part over an update, and the tokens that all processes read in it.

    Args:
        counts: Targets of each loss part, a mapping a micro-batch of this process.
        tokens: How many tokens this process reads in the update.
        device: Of the results.
        world_size: Processes; the counts are over all of them, divided by their number because gradients are averaged.
    """
    sums = [torch.stack([count[name] for count in counts]).sum() for name in counts[0]]
    totals = torch.stack([*sums, tokens]).float().to(device)
    if world_size > 1:
        dist.all_reduce(totals)
    return dict(zip(counts[0], (totals[:-1] / world_size).unbind(), strict=True)), totals[-1]
