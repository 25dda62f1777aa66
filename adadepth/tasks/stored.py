"""What is checked and read of stored models and runs: vocabulary, checkpoints, weights, and the depth of training."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from transformers import TrainingArguments

from adadepth.errors import CheckpointError
from adadepth.families.folder import read_config
from adadepth.families.registry import families
from adadepth.runs.checkpoints import MANIFEST, checkpoints, flaw, read_trainer_state
from adadepth.runs.directory import CHECKPOINTS, begun_before, model_path, read_record, run_of_checkpoint
from adadepth.runs.lock import forget_elsewhere
from adadepth.runs.model_card import CARD
from adadepth.runs.program import overridden_keys
from adadepth.settings import ExperimentConfig, TokenizerConfig
from adadepth.system.console import say
from adadepth.system.files import Record, damage
from adadepth.system.processes import decide
from adadepth.training.progress import first_not_finite
from adadepth.training.resuming import written_world_size
from adadepth.training.shards import is_sharded
from adadepth.training.tracking import METRICS_FILE, read_metrics


def check_vocabulary(config: ExperimentConfig, model: Any, tokenizer: Any) -> None:
    """Refuse a tokenizer with more pieces than a model has embeddings; vectors have no tokenizer.

    Args:
        config: Names the tokenizer in the message.
        model: Any `DepthModel`, also one without a head.
        tokenizer: That of the data; None: there is none.

    Raises:
        CheckpointError: With both numbers.
    """
    known = model.vocabulary_size
    if tokenizer is None or known is None or len(tokenizer) <= known:
        return
    place = config.tokenizer.path or config.checkpoint
    raise CheckpointError(f"tokenizer.path={place}: it has {len(tokenizer)} pieces, the model {known}; give its own")


def taken_up(config: ExperimentConfig, args: TrainingArguments) -> ExperimentConfig:
    """The settings with `resume` set, where the launcher of this training has started it before.

    torchrun starts all processes anew when one has died, Slurm a job that it has requeued. A run that is not finished
    goes on; one that has no checkpoint yet begins anew.
    """
    found = decide(args, lambda: _begun_before(config))
    return config if found is None else dataclasses.replace(config, resume=str(found))


def _begun_before(config: ExperimentConfig) -> Path | None:
    run = begun_before(config)
    if run is None or is_finished(run):
        return None
    if not any(flaw(checkpoint) is None for checkpoint in reversed(checkpoints(run / CHECKPOINTS))):
        say(f"started again; {run} has no checkpoint yet, so it begins anew")
        return None
    say(f"started again; goes on with {run}")
    forget_elsewhere(run)
    return run


def finished_before(config: ExperimentConfig, args: TrainingArguments) -> Path | None:
    """The run of these settings that an earlier start of this launch has brought to its end; None: there is none."""

    def finished() -> Path | None:
        run = begun_before(config)
        return run if run is not None and is_finished(run) else None

    return decide(args, finished)


def is_finished(run: Path) -> bool:
    """Whether a run has come to its end."""
    return read_record(run).get("status") == "finished"


def resumed_checkpoint(directory: Path, args: TrainingArguments) -> Path:
    """The newest whole checkpoint of a run; that another number of processes wrote it is said.

    Raises:
        CheckpointError: If there is none, or the log cannot be gone on with.
    """
    found = resumable_checkpoint(directory, args)
    if found is None:
        raise CheckpointError(f"resume={directory}: it has no complete checkpoint yet")
    processes = written_world_size(found)
    if processes != args.world_size and args.process_index == 0:
        say(
            f"{found.name} was written by another number of processes, {processes} then, {args.world_size} now: "
            "a step has the same examples, and losses are the same to rounding, but not what is drawn, as dropout is"
        )
    return found


def resumable_checkpoint(directory: Path, args: TrainingArguments) -> Path | None:
    """The newest whole checkpoint of a run, if there is one; those that are newer and damaged are named.

    Raises:
        CheckpointError: If all there are are damaged, or the log is.
    """
    return decide(args, lambda: _newest_whole(directory, needs_best=args.load_best_model_at_end))


def _newest_whole(directory: Path, needs_best: bool) -> Path | None:
    read_metrics(directory / METRICS_FILE)
    damaged: list[str] = []
    for checkpoint in reversed(checkpoints(directory / CHECKPOINTS)):
        problem = flaw(checkpoint) or (_flaw_of_best(checkpoint) if needs_best else None)
        if problem is None:
            for line in damaged:
                say(f"passed over {line}; going on from {checkpoint.name}")
            return checkpoint
        damaged.append(f"{checkpoint}: {problem}")
    if damaged:
        raise CheckpointError(f"resume={directory}: it has no complete checkpoint: {'; '.join(damaged)}")
    return None


def _flaw_of_best(checkpoint: Path) -> str | None:
    """What is wrong with the best checkpoint at that time, which the end of training loads."""
    best = read_trainer_state(checkpoint)["best_model_checkpoint"]
    if best is None or (place := checkpoint.with_name(Path(best).name)) == checkpoint:
        return None
    if not place.is_dir() and not (checkpoint / MANIFEST).is_file():
        return None  # an older version wrote it, which went on without
    problem = flaw(place) if place.is_dir() else "it is missing"
    return None if problem is None else f"of its best one, {place.name}, {problem}"


def checked_model_path(config: ExperimentConfig) -> str:
    """What `checkpoint` names, as its files were written: a run's model, or one of its checkpoints.

    Any other folder says nothing about that: a model that was copied out of its run is its owner's.

    Raises:
        CheckpointError: Naming the file that is missing or was changed.
    """
    path = model_path(config)
    folder = Path(path)
    problem = None
    if is_sharded(folder):
        raise CheckpointError(
            f"checkpoint={path}: its weights are in shards, which resume= reads; the run's model is whole"
        )
    if (folder / MANIFEST).is_file():
        problem = flaw(folder)
    elif (run := run_of_checkpoint(config)) is not None and folder.parent.samefile(run):
        problem = damage(folder, _needed(folder, read_record(run).get("saved", {}).get(folder.name, {})))
    if problem is not None:
        raise CheckpointError(f"checkpoint={path}: {problem}")
    return path


def _needed(folder: Path, written: Record) -> Record:
    """The files that have to be as they were written.

    Not the card, which is for people to edit, and which older runs noted before a longer training wrote it anew. A
    tokenizer may be named instead, and whoever reads it tells that it is gone.
    """
    return {
        name: file
        for name, file in written.items()
        if name != CARD and ("tokenizer" not in name or (folder / name).is_file())
    }


def check_weights(model: Any, path: str) -> None:
    """Whether the weights of a model that came from `path` are all finite."""
    if (name := first_not_finite(model)) is not None:
        raise CheckpointError(f"checkpoint={path}: its weights {name!r} are not finite")


def checkpoint_tokenizer(config: ExperimentConfig, path: str) -> TokenizerConfig:
    """Return the tokenizer of the checkpoint at a path, unless another one is asked for."""
    sources = (None, config.model.pretrained, getattr(config.model, "base_model", None))
    return TokenizerConfig(path=path) if config.tokenizer.path in sources else config.tokenizer


def overridden_model_settings() -> list[str]:
    """Return the `model.*` settings given on the command line, which are laid over a checkpoint's own."""
    return [key.removeprefix("model.") for key in overridden_keys() if key.startswith("model.")]


def other_depth(model: Any, path: str) -> dict[str, int]:
    """`trained_steps`, the most steps of the model as it lies at `path`, where it is evaluated with another number."""
    about = families().get(model.config.model_type)
    trained = getattr(read_config("checkpoint", path), about.depth, None) if about and about.depth else None
    return {} if trained is None or trained == model.max_updates else {"trained_steps": int(trained)}
