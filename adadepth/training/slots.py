"""Training in slots: an example stays in one over several updates, until its model halts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from adadepth.data.randomness import Purpose, random_generator
from adadepth.system.processes import add_over_processes
from adadepth.training.extension import Batch, Extension, own_rows, read_pieces

_SUMS = "sums"  # how the sums for the log are called in a checkpoint


class TrainingSlots(Extension, TrainerCallback):
    """What the slots of every micro-batch of an update hold, on this process; see `DepthModel.trains_in_slots`.

    Row b of a batch goes into slot b where that is free, and is left out where it is not. What is drawn is a function
    of seed, update and slot, whatever number of processes shares the slots.

    Args:
        seed: Of what is drawn.
        args: Say how many processes and micro-batches share the slots of a step.
    """

    tells = ("halted", "exact_accuracy", "halting_steps")

    def __init__(self, seed: int, args: TrainingArguments) -> None:
        self._seed, self._args = seed, args
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
        return dict(zip(self.tells, (halted, *means), strict=False))

    def words(self, logs: Mapping[str, float]) -> Iterator[str]:
        """The same."""
        count, *means = self.tells
        if count in logs:
            told = ", ".join(f"{name} {logs[name]:.4f}" for name in means if name in logs)
            yield f"{logs[count]:,.0f} examples halted" + (f" ({told})" if told else "")

    def save(self, checkpoint: Path, process: int) -> None:
        """Write this process's slots."""
        held = {
            f"{micro}/{name}": values.contiguous()
            for micro, carry in self._carries.items()
            for name, values in carry.items()
        }
        save_file({**held, _SUMS: self._sums}, checkpoint / _slots_file(process))

    def load(self, checkpoint: Path, process: int, device: torch.device) -> None:
        """Read back the slots of this process's rows, whoever had these rows."""
        by_name: dict[str, dict[tuple[int, int], Tensor]] = {}
        sums = []
        for (key, owner), values in read_pieces(checkpoint, _slots_file).items():
            if key == _SUMS:
                sums.append(values)
                continue
            number, name = key.split("/")
            by_name.setdefault(name, {})[int(number), owner] = values
        same = len(sums) == self._args.world_size
        self._sums = (sums[process] if same else torch.stack(sums).sum(0) / self._args.world_size).to(device)
        self._carries = {}
        for name, pieces in by_name.items():
            for micro, values in own_rows(pieces, self._args, dim=0).items():
                self._carries.setdefault(micro, {})[name] = values.to(device)


def _slots_file(process: int) -> str:
    return f"slots_{process}.safetensors"
