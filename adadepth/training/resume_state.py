"""State of a checkpoint besides weights and optimizer: progress counters, random numbers, the best checkpoint.

Libraries raise many types of errors on damaged files; `convert_read_errors` converts them to an error of one line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NotRequired, TypedDict

from safetensors import safe_open
from transformers import set_seed
from transformers.utils import SAFE_WEIGHTS_NAME

from adadepth.data.randomness import Purpose, random_generator
from adadepth.errors import CheckpointError
from adadepth.runs.checkpoints import read_trainer_state
from adadepth.runtime.files import write_atomic
from adadepth.runtime.json_files import Count, JsonNumber, read_json

_PROGRESS = "progress_{}.json"  # of a checkpoint, by process


class _Progress(TypedDict):
    """Sums and counts of a process since the last log entry, as stored in a checkpoint."""

    updates: Count
    tokens: float
    seconds: float
    parts: dict[str, tuple[JsonNumber, Literal["float64", "float32", "bfloat16", "float16"]]]
    explosion: tuple[JsonNumber, JsonNumber] | None
    loss: JsonNumber
    logged: Count
    stateless: NotRequired[list[Count]]


def save_progress(checkpoint: Path, process: int, progress: Mapping[str, Any]) -> None:
    """Write the log sums and counts of a process to a checkpoint."""
    write_atomic(checkpoint / _PROGRESS.format(process), json.dumps(progress))


def read_world_size(checkpoint: Path) -> int:
    """Return the world size with which a checkpoint was written."""
    return max(1, *(len(list(checkpoint.glob(name))) for name in (_PROGRESS.format("*"), "rng_state_*.pth")))


def read_progress(checkpoint: Path, process: int, world_size: int) -> dict[str, Any] | None:
    """Read the log sums and counts of a process, or return None for a checkpoint of an older version.

    If the world size has changed, each process gets the mean over the processes that wrote the checkpoint, because
    losses are logged as means over processes.
    """
    written = read_world_size(checkpoint)
    paths = [checkpoint / _PROGRESS.format(number) for number in range(written)]
    if not all(path.is_file() for path in paths):
        return None
    states = [read_json(path, _Progress) for path in paths]
    return states[process] if written == world_size else _average_progress(states)


def read_stateless(checkpoint: Path) -> list[int] | None:
    """Read from a checkpoint which parameters had no optimizer state, by number.

    The result is None if an older version wrote the checkpoint.
    """
    path = checkpoint / _PROGRESS.format(0)
    numbers: list[int] | None = read_json(path, _Progress).get("stateless") if path.is_file() else None
    return numbers


def _average_progress(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    first = states[0]
    mean = dict(first)
    mean["loss"] = fmean(state["loss"] for state in states)
    mean["parts"] = {
        name: [fmean(state["parts"][name][0] for state in states), dtype] for name, (_, dtype) in first["parts"].items()
    }
    if first["explosion"] is not None:
        losses, counts = zip(*(state["explosion"] for state in states), strict=True)
        mean["explosion"] = [fmean(losses), max(counts)]
    return mean


def reseed_for_world_size(seed: int, step: int, process: int) -> None:
    """Set new random seeds, derived from seed, step and rank, for a resume with another world size."""
    set_seed(int(random_generator(seed, Purpose.RESUMING, step, process).integers(2**31)))


def relocate_best_checkpoint(checkpoint: Path, folder: Path) -> Path | None:
    """Return the current path of the best checkpoint, because the run directory may have been moved.

    The result is None if the folder does not contain it.
    """
    best = read_trainer_state(checkpoint)["best_model_checkpoint"]
    if best is None or not (moved := folder / Path(best).name).is_dir():
        return None
    return moved


def refuse_missing_weights(model: Any, checkpoint: Path) -> None:
    """Raise an error if an unsharded checkpoint lacks some of the model's weights.

    Tied weights are saved only once, and a frozen base may be stored elsewhere.

    Args:
        model: Model whose weights are loaded.
        checkpoint: Folder of the checkpoint. A checkpoint without `model.safetensors` is not checked.

    Raises:
        KeyError: If a weight is missing; the message names the first one.
    """
    path = checkpoint / SAFE_WEIGHTS_NAME
    if not path.is_file():
        return
    with safe_open(path, framework="pt") as stored:
        present = {*stored.keys(), *model.all_tied_weights_keys, *(model._keys_to_ignore_on_save or ())}
    if missing := [name for name in model.state_dict() if name not in present]:
        raise KeyError(f"{missing[0]} is missing")


@contextmanager
def convert_read_errors(checkpoint: Path, part: str) -> Iterator[None]:
    """Convert errors in reading a checkpoint within the `with` block to a one-line `CheckpointError`."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        reason = f"{type(error).__name__}: {reason}" if isinstance(error, LookupError) else reason
        raise CheckpointError(f"{checkpoint}: {part} cannot be read: {reason}") from error
