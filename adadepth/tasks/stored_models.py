"""Finding and checking of stored models and runs, and restarts by a launcher."""

from __future__ import annotations

import dataclasses
import logging
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf
from transformers import TrainingArguments

from adadepth.config import ExperimentConfig, ModelConfig, TokenizerConfig
from adadepth.config.declaration import get_field_specs
from adadepth.errors import CheckpointError
from adadepth.halting.exit_rules import parse_rule
from adadepth.models.folder import read_config
from adadepth.models.registry import families
from adadepth.runs.checkpoints import (
    MANIFEST,
    TRAINER_STATE,
    checkpoints,
    find_checkpoint_error,
    read_trainer_state,
)
from adadepth.runs.commands import list_overridden_keys
from adadepth.runs.directory import (
    CHECKPOINTS,
    FINISHED,
    MODEL,
    RECORD,
    find_run_of_launch,
    model_path,
    read_record,
    run_of_checkpoint,
    write_jsonable,
)
from adadepth.runs.lock import lock_directory, release_remote_lock
from adadepth.runs.model_card import CARD
from adadepth.runtime.console import say
from adadepth.runtime.distributed import decide
from adadepth.runtime.files import Record, find_damaged_file
from adadepth.runtime.threads import limit_threads
from adadepth.tasks.report import finish_report
from adadepth.training.loss_tracking import find_nonfinite_parameter
from adadepth.training.resume_state import read_world_size
from adadepth.training.sharded_checkpoints import is_sharded
from adadepth.training.tracking import METRICS_FILE, read_metrics


def check_vocabulary(config: ExperimentConfig, model: Any, tokenizer: Any) -> None:
    """Raise an error if a tokenizer has more vocabulary entries than the model has embeddings.

    Args:
        config: Experiment, which names the tokenizer.
        model: A `DepthModel`, with or without a head.
        tokenizer: Tokenizer of the data, or None if inputs are vectors.

    Raises:
        CheckpointError: If the tokenizer has more entries; the message has both numbers.
    """
    size = model.vocabulary_size
    if tokenizer is None or size is None or len(tokenizer) <= size:
        return
    path = config.tokenizer.path or config.checkpoint
    raise CheckpointError(
        f"tokenizer.path={path}: it has {len(tokenizer)} tokens, the model {size}; use the tokenizer of the model"
    )


def resume_after_restart(config: ExperimentConfig, args: TrainingArguments) -> ExperimentConfig:
    """Set `resume` in the configuration, if a launcher (such as Slurm) has restarted an unfinished training run.

    A run without a checkpoint starts again from the beginning.
    """
    run = decide(args, lambda: _find_unfinished_run(config))
    return config if run is None else dataclasses.replace(config, resume=str(run))


def _find_unfinished_run(config: ExperimentConfig) -> Path | None:
    run = find_run_of_launch(config)
    if run is None or is_finished(run):
        return None
    if not any(find_checkpoint_error(checkpoint) is None for checkpoint in reversed(checkpoints(run / CHECKPOINTS))):
        say(f"restarted by the launcher; {run} has no checkpoint yet, so training starts from the beginning")
        release_remote_lock(run)
        record_abandoned_run(run)
        return None
    say(f"restarted by the launcher; resuming {run}")
    release_remote_lock(run)
    return run


def record_abandoned_run(run: Path) -> None:
    """Record a killed run that cannot be resumed as interrupted, unless a live process uses it."""
    record = read_record(run)
    if record.get("status") == "running":
        with suppress(CheckpointError), lock_directory(run):
            error = "killed before its first checkpoint"
            write_jsonable(run / RECORD, record | {"status": "interrupted", "error": error})


def find_earlier_run(config: ExperimentConfig, args: TrainingArguments) -> Path | None:
    """Return the run that finished before the launcher restarted this command, or None."""

    def find_run() -> Path | None:
        if (run := find_run_of_launch(config)) is None:
            return None
        finish_report(run)
        return run if is_finished(run) else None

    return decide(args, find_run)


def is_finished(run: Path) -> bool:
    """Return whether a run is finished."""
    return read_record(run).get("status") == FINISHED


def require_checkpoint(directory: Path, args: TrainingArguments) -> Path:
    """Return the newest complete checkpoint of a run; warn if it was written with another world size.

    Raises:
        CheckpointError: If there is no complete checkpoint, or if the log is damaged.
    """
    checkpoint = find_resumable_checkpoint(directory, args)
    if checkpoint is None:
        raise CheckpointError(f"resume={directory}: it has no complete checkpoint yet")
    processes = read_world_size(checkpoint)
    if processes != args.world_size and args.process_index == 0:
        say(
            f"{checkpoint.name} was written with world size {processes}, and the world size now is "
            f"{args.world_size}: a step has the same examples, and losses agree up to rounding, but random "
            "numbers, such as dropout, differ",
            logging.WARNING,
        )
    return checkpoint


def restore_threads(config: ExperimentConfig, directory: Path) -> None:
    """Limit the CPU threads of a resumed run to the number of its record, unless `runtime.threads` is set."""
    limit_threads(config.runtime.threads, read_record(directory).get("hardware", {}).get("threads"))


def find_resumable_checkpoint(directory: Path, args: TrainingArguments) -> Path | None:
    """Return the newest complete checkpoint of a run, or None; print newer checkpoints that are damaged.

    Raises:
        CheckpointError: If all checkpoints are damaged, or if the log is damaged.
    """
    return decide(args, lambda: _find_newest_complete(directory, needs_best=args.load_best_model_at_end))


def _find_newest_complete(directory: Path, needs_best: bool) -> Path | None:
    read_metrics(directory / METRICS_FILE)
    damaged: list[str] = []
    for checkpoint in reversed(checkpoints(directory / CHECKPOINTS)):
        problem = find_checkpoint_error(checkpoint) or (_find_flaw_of_best(checkpoint) if needs_best else None)
        if problem is None:
            for line in damaged:
                say(f"skipped {line}; resuming from {checkpoint.name}", logging.WARNING)
            return checkpoint
        damaged.append(f"{checkpoint}: {problem}")
    if damaged:
        raise CheckpointError(f"resume={directory}: it has no complete checkpoint: {'; '.join(damaged)}")
    return None


def _find_flaw_of_best(checkpoint: Path) -> str | None:
    """Return what is wrong with the best checkpoint so far, or None if it is complete.

    It is loaded at the end of training.
    """
    best = read_trainer_state(checkpoint)["best_model_checkpoint"]
    if best is None or (path := checkpoint.with_name(Path(best).name)) == checkpoint:
        return None
    if not path.is_dir() and not (checkpoint / MANIFEST).is_file():
        return None  # of an older version, which resumes without it
    problem = find_checkpoint_error(path) if path.is_dir() else "the checkpoint is missing"
    return None if problem is None else f"its best checkpoint {path.name} is damaged: {problem}"


def resolve_model_path(config: ExperimentConfig) -> str:
    """Return the path of the model that `checkpoint` names.

    The files of a run's model or checkpoint are checked against their record.

    Other folders have no record and are not checked.

    Raises:
        CheckpointError: If a file is missing or changed; the message names it.
    """
    path = model_path(config)
    folder = Path(path)
    problem = None
    if is_sharded(folder):
        raise CheckpointError(
            f"checkpoint={path}: its weights are sharded, and only resume= can read them; use the model folder of "
            "the run"
        )
    if (folder / MANIFEST).is_file():
        problem = find_checkpoint_error(folder)
    elif (run := run_of_checkpoint(config)) is not None and folder.parent.samefile(run):
        problem = find_damaged_file(
            folder, _select_checked_files(folder, read_record(run).get("saved", {}).get(folder.name, {}))
        )
    if problem is not None:
        raise CheckpointError(f"checkpoint={path}: {problem}")
    return path


def _select_checked_files(folder: Path, written: Record) -> Record:
    """Return the model files whose checksums must match their record.

    The model card is excluded, because users may edit it and older versions rewrote it on resume. A missing tokenizer
    is also excluded, because the configuration may name another one. If it does not, loading the tokenizer reports the
    error.
    """
    return {
        name: file
        for name, file in written.items()
        if name != CARD and ("tokenizer" not in name or (folder / name).is_file())
    }


def check_weights(model: Any, path: str) -> None:
    """Raise an error if a weight of the model loaded from `path` is not finite.

    Raises:
        CheckpointError: If a weight is not finite; the message names it.
    """
    if (name := find_nonfinite_parameter(model)) is not None:
        raise CheckpointError(f"checkpoint={path}: its weights {name!r} are not finite")


def choose_checkpoint_tokenizer(config: ExperimentConfig, path: str) -> TokenizerConfig:
    """Return the tokenizer settings of the checkpoint at `path`, unless the configuration sets a tokenizer."""
    sources = (None, config.model.pretrained, getattr(config.model, "base_model", None))
    return TokenizerConfig(path=path) if config.tokenizer.path in sources else config.tokenizer


def list_overridden_model_settings() -> list[str]:
    """Return the `model.*` settings on the command line, which override those of a checkpoint."""
    return [key.removeprefix("model.") for key in list_overridden_keys() if key.startswith("model.")]


def record_loaded_settings(config: ExperimentConfig, model: Any) -> ExperimentConfig:
    """Return a configuration whose model settings are those with which a checkpoint was loaded.

    A checkpoint without a run has them in its own configuration alone. With a run, they are inherited from it, except
    for an exit rule that the run adopted after its evaluation.

    Args:
        config: Configuration of an evaluation or a prediction.
        model: Loaded model.
    """
    settings, has_run = config.model, run_of_checkpoint(config) is not None
    loaded = {
        name: getattr(model.config, name)
        for name, spec in get_field_specs(type(settings)).items()
        if spec.in_model and (not has_run or name == "exit_rule") and hasattr(model.config, name)
    }
    recorded = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(settings), loaded))
    return dataclasses.replace(config, model=cast(ModelConfig, recorded))


def describe_evaluated_model(model: Any, path: str) -> dict[str, Any]:
    """Return fields of a run's record: the model's exit rule, and its stored depth if it is evaluated at another one.

    The exit rule is None for a model without one.
    """
    rule = getattr(model.config, "exit_rule", None)
    description: dict[str, Any] = {"exit_rule": None if rule is None else parse_rule(rule).label}
    family = families().get(model.config.model_type)
    trained = getattr(read_config("checkpoint", path), family.depth, None) if family and family.depth else None
    if trained is not None and trained != model.max_updates:
        description["trained_steps"] = int(trained)
    return description


def find_trained_step(path: str) -> int | None:
    """Return the optimiser step of stored weights, from their checkpoint or the record of their run, or None.

    Args:
        path: Folder or hub id of the weights.
    """
    folder = Path(path)
    if (folder / TRAINER_STATE).is_file():
        return int(read_trainer_state(folder)["global_step"])
    if folder.name != MODEL or not (folder.parent / RECORD).is_file():
        return None
    record = read_record(folder.parent)
    step = (record.get("selected") or {}).get("step") or (record.get("steps") or {}).get("done")
    return None if step is None else int(step)
