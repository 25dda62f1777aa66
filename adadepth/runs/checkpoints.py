"""A run's checkpoints: each is whole or passed over, and the newest whole one is never deleted.

What a checkpoint consists of says its manifest, which is written last, see `adadepth.system.files`. While one is
being written the manifest names no files, so a folder without one is of a version that had none.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NotRequired, Required, TypedDict

from transformers import TrainerState

from adadepth.errors import CheckpointError
from adadepth.system.files import DiskFullError, Record, damage, describe_files, write_atomic, writing
from adadepth.system.json_files import Count, parse_json, read_json, read_regular

MANIFEST, TRAINER_STATE = "manifest.json", "trainer_state.json"
_NAME = re.compile(r"checkpoint-(\d+)")
# What one without a manifest must have, as glob patterns: one of each row, of which the first is what it is called.
_PARTS = (
    ("model.safetensors", "model.safetensors.index.json", "pytorch_model*", "global_step*"),
    ("optimizer.pt", "optimizer*", "global_step*"),
    ("scheduler.pt",),
    ("rng_state.pth", "rng_state_*.pth"),
)


class _File(TypedDict):
    """A file as it was written; older manifests have a SHA-256."""

    bytes: Count
    crc32: NotRequired[Count]
    sha256: NotRequired[str]


class _Manifest(TypedDict):
    """What a checkpoint consists of; None: it is being written."""

    files: dict[str, _File] | None


class _CallbackState(TypedDict):
    """What a callback of transformers keeps."""

    args: dict[str, Any]
    attributes: dict[str, Any]


class _TrainerState(TypedDict, total=False):
    """The fields of transformers' `TrainerState`."""

    epoch: Required[float | None]
    global_step: Required[Count]
    max_steps: Required[int]
    best_model_checkpoint: Required[str | None]
    best_metric: float | None
    best_global_step: Count | None
    eval_steps: float | None
    logging_steps: float | None
    save_steps: float | None
    train_batch_size: Count | None
    num_train_epochs: Count
    num_input_tokens_seen: Count
    total_flos: float
    log_history: Required[list[dict[str, object]]]
    is_hyper_param_search: bool
    is_local_process_zero: bool
    is_world_process_zero: bool
    trial_name: str | None
    trial_params: dict[str, Any] | None
    stateful_callbacks: dict[str, _CallbackState | list[_CallbackState]]


def read_trainer_state(checkpoint: Path) -> dict[str, Any]:
    """Read the trainer's state of a checkpoint.

    Raises:
        CheckpointError: Naming the file and the field that is damaged.
    """
    state: dict[str, Any] = read_json(checkpoint / TRAINER_STATE, _TrainerState, allow_nan=True)
    return state


def checkpoints(directory: Path) -> list[Path]:
    """The folders called `checkpoint-<step>`, oldest first, whole or not; `checkpoint-60.bak` is somebody's own."""
    found = [path for path in directory.glob("checkpoint-*") if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=checkpoint_step)


def checkpoint_step(checkpoint: Path) -> int:
    """The optimiser step after which a checkpoint was written, from its name `checkpoint-<step>`."""
    return int(checkpoint.name.rpartition("-")[2])


def complete_checkpoints(directory: Path) -> list[Path]:
    """The whole checkpoints in a folder, oldest first."""
    return [path for path in checkpoints(directory) if flaw(path) is None]


def last_good(directory: Path) -> str:
    """Say which checkpoint is left when training has diverged."""
    newest = next((path for path in reversed(checkpoints(directory)) if flaw(path) is None), None)
    return "there is no checkpoint yet" if newest is None else f"the last good checkpoint is {newest}"


# ---- writing


@contextmanager
def nothing_if_full(checkpoint: Path, is_main: bool = True) -> Iterator[None]:
    """Write a part of a checkpoint in the block: nothing of the checkpoint stays where the disk is full.

    Args:
        checkpoint: The folder, made by `begin_checkpoint` and whole after `seal_checkpoint`.
        is_main: Whether this process makes, describes and removes it.

    Raises:
        DiskFullError: Naming it.
    """
    try:
        with writing(checkpoint):
            yield
    except DiskFullError:
        if is_main:
            shutil.rmtree(checkpoint, ignore_errors=True)
        raise


def begin_checkpoint(checkpoint: Path) -> None:
    """Make an empty folder that says of itself that it is not whole."""
    _discard(checkpoint)
    checkpoint.mkdir(parents=True)
    _write_manifest(checkpoint, None)


def seal_checkpoint(checkpoint: Path) -> None:
    """Say what the checkpoint consists of: it is whole now."""
    _write_manifest(checkpoint, describe_files(checkpoint, but=MANIFEST))


def rotate(directory: Path, limit: int | None, keep: set[Path]) -> None:
    """Delete the oldest checkpoints beyond `limit`, but never those to keep: the newest and the best.

    Args:
        directory: Of the checkpoints.
        limit: None: all are kept.
        keep: They count towards the limit, and stay where they are more than that.
    """
    if limit is None:
        return
    found = checkpoints(directory)
    others = [path for path in found if path not in keep]
    for path in others[: max(len(found) - max(limit, len(keep)), 0)]:
        _discard(path)


def remove_incomplete(directory: Path) -> None:
    """Remove what a kill left of checkpoints that were being written or deleted."""
    for path in checkpoints(directory):
        if (path / MANIFEST).is_file() and _is_unfinished(path):
            shutil.rmtree(path)


def _discard(checkpoint: Path) -> None:
    """Delete a checkpoint; what a kill leaves of it is not whole."""
    if checkpoint.is_symlink():
        checkpoint.unlink()
    elif checkpoint.is_dir():
        with suppress(OSError):  # on a full disk deleting helps
            _write_manifest(checkpoint, None)
        shutil.rmtree(checkpoint)


def _write_manifest(checkpoint: Path, files: Record | None) -> None:
    write_atomic(checkpoint / MANIFEST, json.dumps({"files": files}, indent=1) + "\n")


# ---- checking


def flaw(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, for a sentence that names it; None: it is whole."""
    if checkpoint.is_symlink():
        return "it is a link; put the folder itself there"
    if not (checkpoint / MANIFEST).is_file():
        return _flaw_of_older(checkpoint)
    try:
        files = read_json(checkpoint / MANIFEST, _Manifest)["files"]
        if files is None:
            return "it was not written to its end"
        return damage(checkpoint, files) or _flaw_of_state(checkpoint)
    except (CheckpointError, LookupError):
        return f"its {MANIFEST} is damaged"


def _flaw_of_older(checkpoint: Path) -> str | None:
    """What is missing in a checkpoint without a manifest, whose last file is the trainer's state."""
    for patterns in _PARTS:
        if not any(any(checkpoint.glob(pattern)) for pattern in patterns):
            return f"its {patterns[0]} is missing"
    if not (checkpoint / TRAINER_STATE).exists():
        return "it was not written to its end"
    return _flaw_of_state(checkpoint)


def _flaw_of_state(checkpoint: Path) -> str | None:
    """What is wrong with the trainer's state of a checkpoint, whose step is that of the folder's name."""
    try:
        state = parse_json(read_regular(checkpoint / TRAINER_STATE).decode("utf-8"), _TrainerState, allow_nan=True)
    except ValueError as error:
        return f"its {TRAINER_STATE} is damaged ({error})"
    if unknown := set(state) - {field.name for field in dataclasses.fields(TrainerState)}:
        return f"its {TRAINER_STATE} has unknown keys: {', '.join(sorted(unknown))}"
    step, planned = state["global_step"], state["max_steps"]
    if _NAME.fullmatch(checkpoint.name) and step != checkpoint_step(checkpoint):
        return f"its {TRAINER_STATE} has global_step={step}, its name {checkpoint_step(checkpoint)}"
    return f"its {TRAINER_STATE} has global_step={step}, beyond max_steps={planned}" if 0 < planned < step else None


def _is_unfinished(checkpoint: Path) -> bool:
    try:
        return read_json(checkpoint / MANIFEST, _Manifest)["files"] is None
    except CheckpointError:
        return False  # damaged: it is told, and kept for whoever wants to look
