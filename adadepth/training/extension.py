"""What some runs add to training: recurrent memory, states from disk, gates, a budget.

The trainer calls every hook of every extension and knows none of them. In an update the order is: `counts` of all its
micro-batches; then for each of these `prepare`, `forward_options`, the forward pass, `after_forward`, `loss_parts`,
the backward pass, `after_backward`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from adadepth.data.features.states import FeatureReader
from adadepth.data.randomness import Purpose, random_generator
from adadepth.families.contract import ReadsCachedStates
from adadepth.settings import TrainerConfig
from adadepth.system.processes import add_over_processes

Batch = Mapping[str, Any]


class Extension:
    """Adds nothing; a subclass overrides what it needs. One that is a `TrainerCallback`, too, sees every event."""

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

    def allows_best(self) -> bool:
        """Whether the model as it is now may become the best one."""
        return True

    def has_ended(self) -> bool:
        """Whether it had ended training before the checkpoint that it was loaded from."""
        return False

    def save(self, checkpoint: Path, process: int) -> None:
        """Write its state into a checkpoint; every process calls it."""

    def load(self, checkpoint: Path, process: int, device: torch.device) -> None:
        """Go on from a checkpoint; every process calls it."""


class RecurrentMemory(Extension):
    """The memory of every stream and row group of this process.

    Batches of different streams, and the micro-batches of one update, hold different rows of text: each has a memory of
    its own, and a batch that begins a stream has none.
    """

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def forward_options(self, batch: Batch) -> dict[str, Any]:
        """What the model remembers of a batch's rows; None where they begin."""
        return {"memory": None if batch["is_start"] else self._kept.get(_key(batch))}

    def after_forward(self, batch: Batch, outputs: Any) -> None:
        """Remember a batch's rows until their next batch."""
        self._kept[_key(batch)] = outputs.memory

    def save(self, checkpoint: Path, process: int) -> None:
        """Write this process's memories."""
        save_file({key: memory.contiguous() for key, memory in self._kept.items()}, checkpoint / _memory_file(process))

    def load(self, checkpoint: Path, process: int, device: torch.device) -> None:
        """Read them back."""
        read = load_file(checkpoint / _memory_file(process))
        self._kept = {key: memory.to(device) for key, memory in read.items()}


def _key(batch: Batch) -> str:
    return f"{batch['stream']}/{batch['slot']}"


def _memory_file(process: int) -> str:
    return f"memory_{process}.safetensors"


class CachedStates(Extension):
    """Adds to a batch the states that its forward pass will read.

    They are read here, and not by the loader, because which of them have weight is known only when a step begins.
    """

    def __init__(self, reader: FeatureReader) -> None:
        self._reader = reader

    def prepare(self, batch: dict[str, Any], model: Any) -> dict[str, Any]:
        """The batch with its states."""
        assert isinstance(model, ReadsCachedStates)
        return self._reader(batch, model.states_to_read())


HALTED = ("halted", "exact_accuracy", "halting_steps")  # what the log says of examples that have halted
_SUMS = "sums"  # how the sums for the log are called in a checkpoint


class TrainingSlots(Extension, TrainerCallback):
    """What the slots of every micro-batch of an update hold, on this process; see `DepthModel.trains_in_slots`.

    Row b of a batch goes into slot b where that is free, and is left out where it is not. What is drawn is a function
    of seed, update and slot, whatever number of processes shares the slots.

    Args:
        seed: Of what is drawn.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._carries: dict[int, dict[str, Tensor]] = {}
        self._update = self._micro = self._process = 0
        self._processes = 1
        self._sums = torch.zeros(3, dtype=torch.float64)  # halted, right of these, their steps

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Take the number of an update."""
        self._update, self._micro = state.global_step, 0
        self._process, self._processes = args.process_index, args.world_size

    def forward_options(self, batch: Batch) -> dict[str, Any]:
        """What the slots of a micro-batch hold, and two uniform numbers for each."""
        rows = len(batch["input_ids"])
        generator = random_generator(self._seed, Purpose.EXPLORATION, self._update, self._micro)
        draws = generator.random((self._processes * rows, 2), dtype="float32")[self._process * rows :][:rows]
        carry = self._carries.get(self._micro, {})
        return {"carry": carry, "draws": torch.from_numpy(draws).to(batch["input_ids"].device)}

    def after_forward(self, batch: Batch, outputs: Any) -> None:
        """Keep the slots for the next update, and count what has halted."""
        self._carries[self._micro] = carry = outputs.carry
        self._micro += 1
        right = ((outputs.logits.detach().argmax(dim=-1) == carry["labels"]) | (carry["labels"] < 0)).all(dim=1)
        halted = carry["halted"]
        found = torch.stack([halted.sum(), (halted & right).sum(), (halted * carry["steps"]).sum()])
        self._sums = self._sums.to(found.device) + found

    def logs(self) -> dict[str, float]:
        """Of the examples that have halted since the last line: how many, how many of them right, in how many steps."""
        add_over_processes([self._sums])
        halted, right, steps = self._sums.tolist()
        self._sums = torch.zeros_like(self._sums)
        means = (right / halted, steps / halted) if halted else ()
        return dict(zip(HALTED, (halted, *means), strict=False))

    def save(self, checkpoint: Path, process: int) -> None:
        """Write this process's slots."""
        held = {
            f"{micro}/{name}": values.contiguous()
            for micro, carry in self._carries.items()
            for name, values in carry.items()
        }
        save_file({**held, _SUMS: self._sums}, checkpoint / _slots_file(process))

    def load(self, checkpoint: Path, process: int, device: torch.device) -> None:
        """Read them back."""
        read = {name: values.to(device) for name, values in load_file(checkpoint / _slots_file(process)).items()}
        self._sums = read.pop(_SUMS)
        self._carries = {}
        for key, values in read.items():
            micro, name = key.split("/")
            self._carries.setdefault(int(micro), {})[name] = values


def of_halted(logs: Mapping[str, float]) -> Iterator[str]:
    """The same in words."""
    count, *means = HALTED
    if count in logs:
        told = ", ".join(f"{name} {logs[name]:.4f}" for name in means if name in logs)
        yield f"{logs[count]:,.0f} examples halted" + (f" ({told})" if told else "")


def _slots_file(process: int) -> str:
    return f"slots_{process}.safetensors"
