"""Checkpoints of a run: writing, verification, and deletion of old ones. Incomplete checkpoints are ignored.

The manifest of a checkpoint lists its files and is written last; see `adadepth.runtime.files`. While a checkpoint is
being written, its manifest lists no files. A folder without a manifest was written by an older version. The newest
complete checkpoint is never deleted.
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
from adadepth.runtime.files import (
    DiskFullError,
    Record,
    convert_full_disk_errors,
    describe_files,
    find_damaged_file,
    write_atomic,
)
from adadepth.runtime.json_files import Count, parse_json, read_json, read_regular_file

MANIFEST, TRAINER_STATE = "manifest.json", "trainer_state.json"
_NAME = re.compile(r"checkpoint-(\d+)")
# Files of a checkpoint without a manifest, as glob patterns: one of every row; messages name the first of a row.
_PARTS = (
    ("model.safetensors", "model.safetensors.index.json", "pytorch_model*", "global_step*"),
    ("optimizer.pt", "optimizer*", "global_step*"),
    ("scheduler.pt",),
    ("rng_state.pth", "rng_state_*.pth"),
)


class _File(TypedDict):
    """Size and checksum of a file in a checkpoint, as its manifest records them."""

    bytes: Count
    crc32: NotRequired[Count]
    sha256: NotRequired[str]


class _Manifest(TypedDict):
    """Manifest of a checkpoint: its files with checksums, or None while it is being written."""

    files: dict[str, _File] | None


class _CallbackState(TypedDict):
    """Stored state of a callback of transformers' trainer in a checkpoint."""

    args: dict[str, Any]
    attributes: dict[str, Any]


class _TrainerState(TypedDict, total=False):
    """Checked fields of transformers' `TrainerState`."""

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
    """Read the trainer state of a checkpoint.

    Raises:
        CheckpointError: If it is damaged; the message names the file and the field.
    """
    state: dict[str, Any] = read_json(checkpoint / TRAINER_STATE, _TrainerState, allow_nan=True)
    return state


def checkpoints(directory: Path) -> list[Path]:
    """Return the checkpoint folders `checkpoint-<step>` of a run, complete or not, oldest first.

    Folders with other names, such as `checkpoint-60.bak`, belong to the user and are skipped.
    """
    paths = [path for path in directory.glob("checkpoint-*") if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(paths, key=get_checkpoint_step)


def get_checkpoint_step(checkpoint: Path) -> int:
    """Return the optimiser step of a checkpoint, parsed from its name `checkpoint-<step>`."""
    return int(checkpoint.name.rpartition("-")[2])


def list_complete_checkpoints(directory: Path) -> list[Path]:
    """Return the complete checkpoints in a folder, oldest first."""
    return [path for path in checkpoints(directory) if find_checkpoint_error(path) is None]


def describe_last_checkpoint(directory: Path) -> str:
    """Name the newest complete checkpoint in a phrase, for the error message of a diverged run."""
    newest = next((path for path in reversed(checkpoints(directory)) if find_checkpoint_error(path) is None), None)
    return "no checkpoint has been saved yet" if newest is None else f"the last complete checkpoint is {newest}"


# ---- writing


@contextmanager
def remove_if_disk_full(checkpoint: Path, is_main: bool = True) -> Iterator[None]:
    """Delete the checkpoint that is written in the `with` block if the disk becomes full.

    Args:
        checkpoint: Folder of a checkpoint that is begun but not yet sealed.
        is_main: Whether this process creates, describes and removes the folder.

    Raises:
        DiskFullError: If the disk is full; the message names the checkpoint.
    """
    try:
        with convert_full_disk_errors(checkpoint):
            yield
    except DiskFullError:
        if is_main:
            shutil.rmtree(checkpoint, ignore_errors=True)
        raise


def begin_checkpoint(checkpoint: Path) -> None:
    """Create an empty checkpoint folder with a manifest that marks it as incomplete."""
    _delete(checkpoint)
    checkpoint.mkdir(parents=True)
    _write_manifest(checkpoint, None)


def seal_checkpoint(checkpoint: Path) -> None:
    """Write the manifest of a checkpoint, which marks it as complete."""
    _write_manifest(checkpoint, describe_files(checkpoint, but=MANIFEST))


def rotate(directory: Path, limit: int | None, keep: set[Path]) -> None:
    """Delete the oldest checkpoints of a run beyond the configured number.

    Args:
        directory: Folder of the checkpoints.
        limit: Maximum number of checkpoints that remain, or None for no limit.
        keep: Checkpoints that are never deleted (the newest and the best), even beyond the limit.
    """
    if limit is None:
        return
    paths = checkpoints(directory)
    deletable = [path for path in paths if path not in keep]
    for path in deletable[: max(len(paths) - max(limit, len(keep)), 0)]:
        _delete(path)


def remove_incomplete(directory: Path) -> None:
    """Delete the checkpoints that a killed process was writing or deleting."""
    for path in checkpoints(directory):
        if (path / MANIFEST).is_file() and _is_incomplete(path):
            shutil.rmtree(path)


def _delete(checkpoint: Path) -> None:
    """Mark a checkpoint as incomplete, then delete it, so that a kill in between leaves no damaged checkpoint."""
    if checkpoint.is_symlink():
        checkpoint.unlink()
    elif checkpoint.is_dir():
        with suppress(OSError):  # on a full disk deleting helps
            _write_manifest(checkpoint, None)
        shutil.rmtree(checkpoint)


def _write_manifest(checkpoint: Path, files: Record | None) -> None:
    write_atomic(checkpoint / MANIFEST, json.dumps({"files": files}, indent=1) + "\n")


# ---- checking


def find_checkpoint_error(checkpoint: Path) -> str | None:
    """Return what is wrong with a checkpoint, or None if it is complete and its checksums match.

    The text continues a sentence that names the checkpoint.
    """
    if checkpoint.is_symlink():
        return "it is a link; replace the link by the folder"
    if not (checkpoint / MANIFEST).is_file():
        return _find_missing_part(checkpoint)
    try:
        files = read_json(checkpoint / MANIFEST, _Manifest)["files"]
        if files is None:
            return "it is incomplete"
        return find_damaged_file(checkpoint, files) or _find_state_error(checkpoint)
    except (CheckpointError, LookupError):
        return f"its {MANIFEST} is damaged"


def _find_missing_part(checkpoint: Path) -> str | None:
    """Return which file a checkpoint without manifest lacks, or None if it is complete.

    The trainer state is the last file of such a checkpoint.
    """
    for patterns in _PARTS:
        if not any(any(checkpoint.glob(pattern)) for pattern in patterns):
            return f"its {patterns[0]} is missing"
    if not (checkpoint / TRAINER_STATE).exists():
        return "it is incomplete"
    return _find_state_error(checkpoint)


def _find_state_error(checkpoint: Path) -> str | None:
    """Return what is wrong with a checkpoint's trainer state, or None.

    Its step must be the one in the name of the folder.
    """
    try:
        state = parse_json(read_regular_file(checkpoint / TRAINER_STATE).decode("utf-8"), _TrainerState, allow_nan=True)
    except ValueError as error:
        return f"its {TRAINER_STATE} is damaged ({error})"
    if unknown := set(state) - {field.name for field in dataclasses.fields(TrainerState)}:
        return f"its {TRAINER_STATE} has unknown keys: {', '.join(sorted(unknown))}"
    step, planned = state["global_step"], state["max_steps"]
    if _NAME.fullmatch(checkpoint.name) and step != get_checkpoint_step(checkpoint):
        return f"its {TRAINER_STATE} has global_step={step}, its name {get_checkpoint_step(checkpoint)}"
    return f"its {TRAINER_STATE} has global_step={step}, beyond max_steps={planned}" if 0 < planned < step else None


def _is_incomplete(checkpoint: Path) -> bool:
    try:
        return read_json(checkpoint / MANIFEST, _Manifest)["files"] is None
    except CheckpointError:
        return False  # damaged: `flaw` reports it, and it is kept for inspection
