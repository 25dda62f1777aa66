"""Host reads of whole training updates, counted without an accelerator: a run whose device is the meta device.

The trainer, its extensions and transformers' loop are the real ones, from the first batch to the last update. See
`tests.host_reads_support`. Numbers that are read are made up: checks for non-finite losses run, and their answer is
ignored.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from accelerate.state import AcceleratorState, PartialState
from transformers import TrainerCallback

from adadepth import tasks
from adadepth.tasks.session import Session
from adadepth.training.loss_tracking import TrainingProgress
from adadepth.training.trainer import DepthTrainer
from tests.configs.support import configured
from tests.host_reads_support import ACCELERATOR, HostReads, accelerator_autocast

WITHOUT_ENDS = (
    "trainer.eval_strategy=no", "trainer.save_strategy=no", "trainer.load_best_model_at_end=false",
    "trainer.eval_on_start=false",
)  # fmt: skip


class Update(NamedTuple):
    """Reads and moves from the start of an update to that of the next one, its log included.

    Attributes:
        reads: Lines that wait for a number.
        moves: Lines that bring something to the device, and wait for it.
    """

    reads: Counter[str]
    moves: Counter[str]


class _DoneError(Exception):
    """Stop training when its updates are counted, because what follows needs real numbers."""


def _read_problem_values(progress: TrainingProgress) -> None:
    """Read the values that show whether there is a problem, and report none."""
    progress._describe_nonfinite()
    progress._describe_explosion()


class _Updates(TrainerCallback):
    """Callback that records the counts before each update."""

    def __init__(self, host_reads: HostReads) -> None:
        self._host_reads = host_reads
        self.before: list[Update] = []

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self.before.append(Update(self._host_reads.reads.copy(), self._host_reads.moves.copy()))


def count_update_reads(
    name: str, *overrides: str, folder: Path, patch: pytest.MonkeyPatch, updates: int = 6, logged_every: int = 3
) -> list[Update]:
    """Return what all updates but the last one read and move.

    Args:
        name: Name of a configuration, which is run with `debug=default`.
        overrides: Overrides of the configuration.
        folder: Folder of the outputs.
        patch: Patch that the caller's test undoes.
        updates: Number of updates.
        logged_every: Number of updates between two lines of the log.
    """
    host_reads = HostReads()
    counts = _Updates(host_reads)
    extend, train = Session.with_extensions, DepthTrainer.train

    def with_extensions(self: Session) -> Session:
        args = self.args
        assert args.device.type == "cpu"  # made by now
        patch.setitem(PartialState._shared_state, "device", ACCELERATOR)
        patch.setattr(type(args), "device", ACCELERATOR)
        return extend(self)

    def train_and_stop(self: DepthTrainer, *args: Any, **kwargs: Any) -> None:
        self.add_callback(counts)
        with accelerator_autocast(), host_reads:
            train(self, *args, **kwargs)
        raise _DoneError

    patch.setattr(Session, "with_extensions", with_extensions)
    patch.setattr(DepthTrainer, "train", train_and_stop)
    patch.setattr(TrainingProgress, "problem", _read_problem_values)
    lengths = (f"trainer.max_steps={updates}", f"trainer.logging_steps={logged_every}", f"output_dir={folder}")
    config = configured(name, "debug=default", "trainer.precision=fp32", *overrides, *WITHOUT_ENDS, *lengths)
    try:
        with pytest.raises(_DoneError):
            tasks.run(config)
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)  # later tests train on a real device
    pairs = zip(counts.before, counts.before[1:], strict=False)
    return [Update(*(after - before for before, after in zip(*pair, strict=True))) for pair in pairs]
