"""What whole updates of a training read back, without an accelerator: a run whose device is the meta device.

The trainer, its extensions and transformers' loop are the real ones, from the first batch to the last update. See
`tests.host_reads_support`; numbers that are read are made up, so losses that are no numbers are looked for, and nothing
is made of the answer.
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
    """An update from its beginning to that of the next one, its log included.

    Attributes:
        reads: Lines that wait for a number.
        moves: Lines that bring something to the device, and wait for it.
    """

    reads: Counter[str]
    moves: Counter[str]


class _DoneError(Exception):
    """Training is at its end; what follows needs numbers."""


def _looks_for_problems(progress: TrainingProgress) -> None:
    """Read what says whether there is a problem, and find none."""
    progress._describe_nonfinite()
    progress._describe_explosion()


class _Updates(TrainerCallback):
    """Keeps what was noted before each update."""

    def __init__(self, found: HostReads) -> None:
        self._found = found
        self.before: list[Update] = []

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self.before.append(Update(self._found.reads.copy(), self._found.moves.copy()))


def updates_on_an_accelerator(
    name: str, *overrides: str, folder: Path, patch: pytest.MonkeyPatch, updates: int = 6, logged_every: int = 3
) -> list[Update]:
    """What all updates but the last one read and move.

    Args:
        name: Of a configuration, which is run with `debug=default`.
        overrides: Of it.
        folder: For its outputs.
        patch: Undone by the caller's test.
        updates: How many are made.
        logged_every: Updates from log to log.
    """
    found = HostReads()
    told = _Updates(found)
    extend, train = Session.with_extensions, DepthTrainer.train

    def with_extensions(self: Session) -> Session:
        args = self.args
        assert args.device.type == "cpu"  # made by now
        patch.setitem(PartialState._shared_state, "device", ACCELERATOR)
        patch.setattr(type(args), "device", ACCELERATOR)
        return extend(self)

    def train_and_stop(self: DepthTrainer, *args: Any, **kwargs: Any) -> None:
        self.add_callback(told)
        with accelerator_autocast(), found:
            train(self, *args, **kwargs)
        raise _DoneError

    patch.setattr(Session, "with_extensions", with_extensions)
    patch.setattr(DepthTrainer, "train", train_and_stop)
    patch.setattr(TrainingProgress, "problem", _looks_for_problems)
    given = (f"trainer.max_steps={updates}", f"trainer.logging_steps={logged_every}", f"output_dir={folder}")
    config = configured(name, "debug=default", "trainer.precision=fp32", *overrides, *WITHOUT_ENDS, *given)
    try:
        with pytest.raises(_DoneError):
            tasks.run(config)
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)  # later tests train on a real device
    pairs = zip(told.before, told.before[1:], strict=False)
    return [Update(*(after - before for before, after in zip(*pair, strict=True))) for pair in pairs]
