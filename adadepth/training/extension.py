"""What some runs add to training: recurrent memory, states from disk, gates, a budget.

A family and a kind of data name theirs in `extensions` of their descriptors. The trainer calls every hook of every
extension and knows none of them. In an update the order is: `counts` of all its micro-batches; then for each of these
`prepare`, `forward_options`, the forward pass, `after_forward`, `loss_parts`, the backward pass, `after_backward`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import TrainingArguments

from adadepth.settings import TrainerConfig

Batch = Mapping[str, Any]


class Extension:
    """Adds nothing; a subclass overrides what it needs. One that is a `TrainerCallback`, too, sees every event."""

    tells: tuple[str, ...] = ()  # names of its logs that `words` say, and the console's line does not show beside them

    def examples(self, examples: Any) -> Any:
        """A set of examples with what `prepare` has to know of them; asked of the training set, then of the others."""
        return examples

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """What its own loss parts of a micro-batch are divided by; see `DepthModel.count_targets`."""
        return {}

    def prepare(self, batch: dict[str, Any], model: Any) -> dict[str, Any]:
        """The batch with what it needs besides, before it moves to the device; in evaluation, too."""
        return batch

    def forward_options(self, batch: Batch) -> dict[str, Any]:
        """Further arguments of a training step's forward pass."""
        return {}

    def after_forward(self, batch: Batch, outputs: Any) -> None:
        """Keep what the forward pass of a training step left."""

    def loss_parts(self, outputs: Any, counts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Its own parts of the loss, weighted, and divided by the update's `counts`."""
        return {}

    def after_backward(self, batch: Batch, model: nn.Module) -> None:
        """Change the gradients of a micro-batch."""

    def parameter_groups(self, model: nn.Module, settings: TrainerConfig) -> Sequence[dict[str, Any]]:
        """Groups of the optimiser for parameters that it takes care of; the others are in the usual ones."""
        return ()

    def showing(self) -> AbstractContextManager[None]:
        """While it lasts the model has the weights that are evaluated and saved."""
        return nullcontext()

    def logs(self) -> dict[str, float]:
        """What it adds to a line of the training log; `group/name` keeps its name, others go under `train/`."""
        return {}

    def words(self, logs: Mapping[str, float]) -> Iterator[str]:
        """What the console says of a line of the training log."""
        yield from ()

    def teaches_depth(self, batch: Batch) -> bool:
        """Whether what is learned from a batch can change the depth that a budget holds."""
        return True

    def allows_best(self) -> bool:
        """Whether the model as it is now may become the best one."""
        return True

    def save(self, checkpoint: Path, process: int) -> None:
        """Write its state into a checkpoint; every process calls it."""

    def load(self, checkpoint: Path, process: int, device: torch.device) -> None:
        """Go on from a checkpoint, which other processes may have written; every process calls it."""


class RecurrentMemory(Extension):
    """The memory of every stream and row group of this process.

    Batches of different streams, and the micro-batches of one update, hold different rows of text: each has a memory of
    its own, and a batch that begins a stream has none.
    """

    def __init__(self, args: TrainingArguments) -> None:
        self._args = args
        self._kept: dict[str, Tensor] = {}

    def forward_options(self, batch: Batch) -> dict[str, Any]:
        """What the model remembers of a batch's rows; None where they begin."""
        return {"memory": None if batch["is_start"] else self._kept.get(_key(batch))}

    def after_forward(self, batch: Batch, outputs: Any) -> None:
        """Remember a batch's rows until their next batch."""
        self._kept[_key(batch)] = outputs.memory

    def save(self, checkpoint: Path, process: int) -> None:
        """Write the memories of this process into a checkpoint."""
        save_file({key: memory.contiguous() for key, memory in self._kept.items()}, checkpoint / _memory_file(process))

    def load(self, checkpoint: Path, process: int, device: torch.device) -> None:
        """Read the memories of this process's rows from a checkpoint, whoever had these rows."""
        read = read_pieces(checkpoint, _memory_file)
        by_stream: dict[str, dict[tuple[int, int], Tensor]] = {}
        for (key, owner), memory in read.items():
            stream, _, slot = key.rpartition("/")
            by_stream.setdefault(stream, {})[int(slot), owner] = memory
        self._kept = {
            f"{stream}/{slot}": memory.to(device)
            for stream, pieces in by_stream.items()
            for slot, memory in own_rows(pieces, self._args, dim=1).items()
        }


def _key(batch: Batch) -> str:
    return f"{batch['stream']}/{batch['slot']}"


def _memory_file(process: int) -> str:
    return f"memory_{process}.safetensors"


# ---- rows of a step


def read_pieces(checkpoint: Path, file: Callable[[int], str]) -> dict[tuple[str, int], Tensor]:
    """What all processes wrote into files of their own, by name and process."""
    read: dict[tuple[str, int], Tensor] = {}
    process = 0
    while (path := checkpoint / file(process)).is_file():
        read |= {(name, process): value for name, value in load_file(path).items()}
        process += 1
    return read


def own_rows(pieces: Mapping[tuple[int, int], Tensor], args: TrainingArguments, dim: int) -> dict[int, Tensor]:
    """The rows of this process by micro-batch, from those of any number of processes and micro-batches.

    The rows of a step lie one after the other, as `ProcessBatches` and `RowShare` share them out: micro-batch by
    micro-batch, in each process by process.

    Args:
        pieces: The rows of every micro-batch of every process, by these two numbers.
        args: Say how many processes and micro-batches share the rows now.
        dim: Of the rows.
    """
    rows = torch.cat([pieces[place] for place in sorted(pieces)], dim=dim)
    shares = rows.chunk(args.gradient_accumulation_steps * args.world_size, dim=dim)
    own = range(args.process_index, len(shares), args.world_size)
    return {number // args.world_size: shares[number].contiguous() for number in own}
