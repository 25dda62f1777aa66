"""Training in slots: a slot is a batch row that holds one example over several steps until the model halts on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from adadepth.data.randomness import Purpose, random_generator
from adadepth.runtime.devices import upload
from adadepth.runtime.distributed import all_reduce_sum
from adadepth.training.extension import Batch, Extension, read_process_files, select_process_rows

_SUMS = "sums"  # name in a checkpoint of the sums for the log


class TrainingSlots(Extension, TrainerCallback):
    """Training extension that stores the carried state of each slot between steps; see `DepthModel.trains_in_slots`.

    Row b of a batch enters slot b if that slot is free, and is skipped otherwise. Random numbers depend only on seed,
    step and slot, not on the number of processes.

    Args:
        seed: Seed of the random numbers.
        args: Training arguments with the number of processes and micro-batches that share the slots of a step.
    """

    described_logs = ("halted", "exact_accuracy", "halting_steps")

    def __init__(self, seed: int, args: TrainingArguments) -> None:
        self._seed, self._args = seed, args
        self._carries: dict[int, dict[str, Tensor]] = {}
        self._update = self._micro = self._process = 0
        self._processes = 1
        self._sums = torch.zeros(3, dtype=torch.float64)  # halted examples, correct ones among them, their steps

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Record the number of the optimiser step, and restart the count of micro-batches."""
        self._update, self._micro = state.global_step, 0
        self._process, self._processes = args.process_index, args.world_size

    def forward_options(self, batch: Batch) -> dict[str, Any]:
        """Return the carried state of a micro-batch's slots, and two uniform random numbers per slot."""
        rows = len(batch["input_ids"])
        generator = random_generator(self._seed, Purpose.EXPLORATION, self._update, self._micro)
        draws = generator.random((self._processes * rows, 2), dtype="float32")[self._process * rows :][:rows]
        carry = self._carries.get(self._micro, {})
        return {"carry": carry, "draws": upload(torch.from_numpy(draws), batch["input_ids"].device)}

    def after_forward(self, batch: Batch, outputs: Any) -> None:
        """Store the states of the running examples for the next optimiser step, and count examples that have halted."""
        self._carries[self._micro] = carry = outputs.carry
        self._micro += 1
        right = ((outputs.logits.detach().argmax(dim=-1) == carry["labels"]) | (carry["labels"] < 0)).all(dim=1)
        halted = carry["halted"]
        sums = torch.stack([halted.sum(), (halted & right).sum(), (halted * carry["steps"]).sum()])
        self._sums = self._sums.to(sums.device) + sums

    def logs(self) -> dict[str, float]:
        """Return number, accuracy and mean steps of the examples that halted since the last log entry."""
        all_reduce_sum([self._sums])
        halted, right, steps = self._sums.tolist()
        self._sums = torch.zeros_like(self._sums)
        means = (right / halted, steps / halted) if halted else ()
        return dict(zip(self.described_logs, (halted, *means), strict=False))

    def format_logs(self, logs: Mapping[str, float]) -> Iterator[str]:
        """Yield the accuracy and the mean number of steps of halted examples as text for the console."""
        count, *means = self.described_logs
        if count in logs:
            details = ", ".join(f"{name} {logs[name]:.4f}" for name in means if name in logs)
            yield f"{logs[count]:,.0f} examples halted" + (f" ({details})" if details else "")

    def save(self, checkpoint: Path, process: int) -> None:
        """Write the state of this process's slots to a checkpoint."""
        tensors = {
            f"{micro}/{name}": values.contiguous()
            for micro, carry in self._carries.items()
            for name, values in carry.items()
        }
        save_file({**tensors, _SUMS: self._sums}, checkpoint / _slots_file(process))

    def load(self, checkpoint: Path, process: int, device: torch.device) -> None:
        """Read the states of this process's running examples from a checkpoint of any world size."""
        by_name: dict[str, dict[tuple[int, int], Tensor]] = {}
        sums = []
        for (key, owner), values in read_process_files(checkpoint, _slots_file).items():
            if key == _SUMS:
                sums.append(values)
                continue
            number, name = key.split("/")
            by_name.setdefault(name, {})[int(number), owner] = values
        same = len(sums) == self._args.world_size
        self._sums = (sums[process] if same else torch.stack(sums).sum(0) / self._args.world_size).to(device)
        self._carries = {}
        for name, pieces in by_name.items():
            for micro, values in select_process_rows(pieces, self._args, dim=0).items():
                self._carries.setdefault(micro, {})[name] = values.to(device)


def _slots_file(process: int) -> str:
    return f"slots_{process}.safetensors"
