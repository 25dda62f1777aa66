"""What a saved model needs beside its weights: the tokenizer that fits it."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NotRequired, TypedDict

from transformers import PreTrainedTokenizerFast, TrainerCallback, set_seed

from adadepth.data.randomness import Purpose, random_generator
from adadepth.data.text.tokenizer import for_model
from adadepth.errors import CheckpointError
from adadepth.runs.checkpoints import read_trainer_state
from adadepth.runs.data_identity import DataIdentity
from adadepth.system.files import write_atomic
from adadepth.system.json_files import Count, JsonNumber, read_json


def tokenizer_of(model: Any, tokenizer: PreTrainedTokenizerFast | None) -> PreTrainedTokenizerFast | None:
    """The tokenizer to save with a model: it tells segments where the model reads them, and knows its length.

    Args:
        model: Any `DepthModel`.
        tokenizer: The tokenizer of the data; None where there is no text.
    """
    return None if tokenizer is None else for_model(tokenizer, _longest_text(model), reads_types=_reads_types(model))


def _longest_text(model: Any) -> int | None:
    """The most tokens that a tokenizer cuts texts to: as many as in training, or as the model has positions for.

    A language model that writes is not cut: its prompts may be longer than its training sequences.
    """
    identity = DataIdentity.from_config("model", str(model.name_or_path), model.config)
    trained = None if identity is None or model.can_generate() else identity.sequence_length
    return min((length for length in (trained, model.longest_sequence) if length is not None), default=None)


def _reads_types(model: Any) -> bool:
    """Whether the model takes segments. One of transformers is saved as that, without what this package adds to it."""
    base = model.base_model
    is_foreign = type(base).__module__.partition(".")[0] == "transformers"
    names = inspect.signature(base.forward if is_foreign else model.forward).parameters
    return "token_type_ids" in names and getattr(base.config, "type_vocab_size", 2) > 1


_PROGRESS = "progress_{}.json"  # of a checkpoint, by process


class _Progress(TypedDict):
    """What a process has counted since the last line of the log."""

    updates: Count
    tokens: float
    seconds: float
    parts: dict[str, tuple[JsonNumber, Literal["float64", "float32", "bfloat16", "float16"]]]
    explosion: tuple[JsonNumber, JsonNumber] | None
    loss: JsonNumber
    logged: Count
    stateless: NotRequired[list[Count]]


def save_progress(checkpoint: str, process: int, progress: Mapping[str, Any]) -> None:
    """Write what a process has counted."""
    write_atomic(Path(checkpoint, _PROGRESS.format(process)), json.dumps(progress))


def processes_of(checkpoint: Path) -> int:
    """By how many processes a checkpoint was written."""
    return max(1, *(len(list(checkpoint.glob(name))) for name in (_PROGRESS.format("*"), "rng_state_*.pth")))


def read_progress(checkpoint: Path, process: int, processes: int) -> dict[str, Any] | None:
    """What a process had counted; None: an older version wrote the checkpoint.

    Of another number of processes than now each has the mean of what they had counted, since losses are logged as means
    over processes.
    """
    written = processes_of(checkpoint)
    paths = [checkpoint / _PROGRESS.format(number) for number in range(written)]
    if not all(path.is_file() for path in paths):
        return None
    states = [read_json(path, _Progress) for path in paths]
    return states[process] if written == processes else _mean_progress(states)


def read_stateless(checkpoint: Path) -> list[int] | None:
    """Read which parameters had no state of the optimizer yet; None: an older version wrote the checkpoint."""
    path = checkpoint / _PROGRESS.format(0)
    found: list[int] | None = read_json(path, _Progress).get("stateless") if path.is_file() else None
    return found


def _mean_progress(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
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


def draw_anew(seed: int, step: int, process: int) -> None:
    """Set the random numbers of a run that goes on with another number of processes: a function of seed and step."""
    set_seed(int(random_generator(seed, Purpose.RESUMING, step, process).integers(2**31)))


def moved_best(checkpoint: Path, folder: Path) -> Path | None:
    """The best checkpoint so far, where it is in this folder: the run may lie elsewhere now."""
    best = read_trainer_state(checkpoint)["best_model_checkpoint"]
    moved = None if best is None else folder / Path(best).name
    return moved if moved is not None and moved.is_dir() else None


def refuse_missing_weights(model: Any, missing: list[str]) -> None:
    """Refuse weights that are not all there; tied ones are saved once, and a frozen base may lie elsewhere.

    Args:
        model: What is loaded.
        missing: Names that the checkpoint lacks, of which those that may be missing are taken out.

    Raises:
        KeyError: If one is left.
    """
    elsewhere = set(model.all_tied_weights_keys) | set(model._keys_to_ignore_on_save or ())
    missing[:] = [name for name in missing if name not in elsewhere]
    if missing:
        raise KeyError(f"{missing[0]} is missing")


@contextmanager
def reading(checkpoint: Path | str | None, part: str) -> Iterator[None]:
    """Say in one line that a part of a checkpoint does not fit, in the first words of whoever noticed it.

    Libraries raise errors of many kinds over files that are not what they should be.
    """
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        reason = f"{type(error).__name__}: {reason}" if isinstance(error, LookupError) else reason
        raise CheckpointError(f"{checkpoint}: {part} cannot be read: {reason}") from error


class Beginning(TrainerCallback):
    """Calls a function when training begins: all is loaded, and no update is made yet."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        """Call the function when a training begins."""
        self._function()
