"""Interface of extensions to the training loop, such as recurrent memory, cached states, or a depth budget.

A model family and a dataset type list their extensions in the field `extensions` of their descriptors. The trainer
calls every hook of every extension. In an optimiser step it first calls `counts` for all micro-batches. Then it calls,
for each micro-batch, `prepare`, `forward_options`, the forward pass, `after_forward`, `loss_parts`, the backward pass
and `after_backward`.
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

from adadepth.config import TrainerConfig

Batch = Mapping[str, Any]


class Extension:
    """Base class of extensions to the training loop, whose hooks do nothing unless a subclass overrides them.

    A subclass that also inherits from `TrainerCallback` receives every event of the trainer.
    """

    described_logs: tuple[str, ...] = ()  # logs that `format_logs` describes, which the console does not print by name

    def examples(self, examples: Any) -> Any:
        """Wrap a data set so that its examples contain what `prepare` needs, e.g. row numbers.

        The trainer calls it for the training set first.
        """
        return examples

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Return the divisor of this extension's loss parts for a batch; see `DepthModel.count_targets`."""
        return {}

    def prepare(self, batch: dict[str, Any], model: Any) -> dict[str, Any]:
        """Add this extension's inputs to a batch before it moves to the device, in training and evaluation."""
        return batch

    def forward_options(self, batch: Batch) -> dict[str, Any]:
        """Return additional arguments for the model's forward pass in a training step."""
        return {}

    def after_forward(self, batch: Batch, outputs: Any) -> None:
        """Process the outputs of the forward pass of a training step."""

    def loss_parts(self, outputs: Any, counts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return this extension's weighted loss terms, divided by the `counts` of the optimiser step."""
        return {}

    def after_backward(self, batch: Batch, model: nn.Module) -> None:
        """Modify the gradients after the backward pass of a micro-batch."""

    def parameter_groups(self, model: nn.Module, settings: TrainerConfig) -> Sequence[dict[str, Any]]:
        """Return optimiser parameter groups with options of this extension; other parameters keep the defaults."""
        return ()

    def use_evaluated_weights(self) -> AbstractContextManager[None]:
        """Load the weights to evaluate and save within the `with` block."""
        return nullcontext()

    def logs(self) -> dict[str, float]:
        """Return values to add to an entry of the training log.

        A name of the form `group/name` is kept; other names are prefixed with `train/`.
        """
        return {}

    def format_logs(self, logs: Mapping[str, float]) -> Iterator[str]:
        """Yield texts that summarise an entry of the training log on the console."""
        yield from ()

    def teaches_depth(self, batch: Batch) -> bool:
        """Return whether training on this batch can change the depth that a depth budget controls."""
        return True

    def allows_best(self) -> bool:
        """Return whether the current model may become the best checkpoint."""
        return True

    def keeps_full_depth(self) -> bool:
        """Return whether all units should have full depth at present, so that one depth is no fault."""
        return False

    def save(self, checkpoint: Path, process: int) -> None:
        """Write the state of this extension to a checkpoint. Every process must call it."""

    def load(self, checkpoint: Path, process: int, device: torch.device) -> None:
        """Restore the state of this extension from a checkpoint of any world size. Every process must call it."""


class RecurrentMemory(Extension):
    """Extension that passes a language model's recurrent memory from one batch of a stream to the next.

    Different streams, and the micro-batches of one optimiser step, hold different rows of text and have separate
    memories. The first batch of a stream has no memory.

    Args:
        args: Training arguments with the number of processes and of micro-batches per step.
    """

    def __init__(self, args: TrainingArguments) -> None:
        self._args = args
        self._memories: dict[str, Tensor] = {}

    def forward_options(self, batch: Batch) -> dict[str, Any]:
        """Return the recurrent memory for the rows of a batch, or None at the beginning of a stream."""
        return {"memory": None if batch["is_start"] else self._memories.get(_memory_key(batch))}

    def after_forward(self, batch: Batch, outputs: Any) -> None:
        """Store the recurrent memory of a batch's rows for the next batch of these rows."""
        self._memories[_memory_key(batch)] = outputs.memory

    def save(self, checkpoint: Path, process: int) -> None:
        """Write the recurrent memory of this process's rows into a checkpoint."""
        save_file(
            {key: memory.contiguous() for key, memory in self._memories.items()}, checkpoint / _memory_file(process)
        )

    def load(self, checkpoint: Path, process: int, device: torch.device) -> None:
        """Read the recurrent memory of this process's rows from a checkpoint of any world size."""
        by_stream: dict[str, dict[tuple[int, int], Tensor]] = {}
        for (key, owner), memory in read_process_files(checkpoint, _memory_file).items():
            stream, _, slot = key.rpartition("/")
            by_stream.setdefault(stream, {})[int(slot), owner] = memory
        self._memories = {
            f"{stream}/{slot}": memory.to(device)
            for stream, pieces in by_stream.items()
            for slot, memory in select_process_rows(pieces, self._args, dim=1).items()
        }


def _memory_key(batch: Batch) -> str:
    return f"{batch['stream']}/{batch['slot']}"


def _memory_file(process: int) -> str:
    return f"memory_{process}.safetensors"


# ---- rows of a step


def read_process_files(checkpoint: Path, file: Callable[[int], str]) -> dict[tuple[str, int], Tensor]:
    """Read the tensors that each process wrote to a checkpoint, by (name, rank).

    Args:
        checkpoint: Folder of the checkpoint.
        file: Function that returns the name of the safetensors file of a rank.
    """
    pieces: dict[tuple[str, int], Tensor] = {}
    process = 0
    while (path := checkpoint / file(process)).is_file():
        pieces |= {(name, process): value for name, value in load_file(path).items()}
        process += 1
    return pieces


def select_process_rows(
    pieces: Mapping[tuple[int, int], Tensor], args: TrainingArguments, dim: int
) -> dict[int, Tensor]:
    """Select the rows of this process for each micro-batch from the rows of all processes.

    The input may come from any number of processes and micro-batches.

    Rows are ordered by micro-batch, and within a micro-batch by process, as in `ProcessBatches` and `RowShare`.

    Args:
        pieces: Rows by (number of the micro-batch, rank).
        args: Training arguments with the number of processes and micro-batches that share the rows now.
        dim: Dimension along which the rows are concatenated and split.
    """
    rows = torch.cat([pieces[numbers] for numbers in sorted(pieces)], dim=dim)
    shares = rows.chunk(args.gradient_accumulation_steps * args.world_size, dim=dim)
    numbers = range(args.process_index, len(shares), args.world_size)
    return {number // args.world_size: shares[number].contiguous() for number in numbers}
