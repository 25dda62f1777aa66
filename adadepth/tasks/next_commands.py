"""Next commands that a run suggests to the user after training."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from adadepth.config import BudgetUnit, ExperimentConfig, Mode, Task
from adadepth.config.kinds import PREDICTED, get_kind, get_problem, list_input_columns
from adadepth.errors import CheckpointError
from adadepth.models.registry import Family, family, find_unfixable_depth
from adadepth.report.run_files import RIVALS, RunFiles
from adadepth.runs.commands import build_checkpoint_command, build_training_command, is_given
from adadepth.runs.directory import MODEL, resolve_run

_MAX_COMMANDS = 3
_TEXT = "Not worth the popcorn, let alone two hours."

Command = list[str]


def list_next_commands(
    config: ExperimentConfig, files: RunFiles, model: Any = None, summary: Path | None = None
) -> list[Command]:
    """Return up to three suggested commands after training, each as a list of words.

    Commands that answer open questions about the run come first.

    Args:
        config: Experiment that was trained.
        files: Files of the run, or of the first one of several seeds. If its directory contains no model, no commands
            are returned.
        model: Trained model. If it is None, no evaluation of exit rules is suggested.
        summary: Directory of the summary of all seeds, if several were trained.
    """
    if not (files.directory / MODEL).is_dir():
        return []
    descriptor, run = family(config.model.name), _name_run(config, files.directory)

    def candidates() -> Iterator[Command | None]:
        yield _follow_advice(config, files)
        yield _train_fixed_depth(config, files, summary or files.directory)
        if _has_exit_rules(config, model):
            yield build_checkpoint_command(config, run, Mode.evaluate, "exit_rules=[all]")
        if targets := _set_depths(config, descriptor, files):
            yield build_checkpoint_command(config, run, Mode.evaluate, *targets)
        if _reads_one_text(config):
            yield build_checkpoint_command(config, run, Mode.predict, f"text={_TEXT}")
        yield build_checkpoint_command(config, run, Mode.evaluate)
        if config.seeds <= 1:
            yield build_training_command("seeds=3")

    return list(islice((command for command in candidates() if command is not None), _MAX_COMMANDS))


def _name_run(config: ExperimentConfig, directory: Path) -> str:
    """Return `latest` if the run is the latest one, otherwise its directory."""
    try:
        is_latest = not is_given("name") and resolve_run("latest", config, needs=MODEL) == directory
    except CheckpointError:
        is_latest = False
    return "latest" if is_latest else str(directory)


def _follow_advice(config: ExperimentConfig, files: RunFiles) -> Command | None:
    """Return the training command that the report recommends for a run whose depth does not adapt."""
    if config.seeds > 1 or config.budget.target is not None:  # with a budget the advice is more updates
        return None
    advice = str(files.halting.get("adaptation", {}).get("advice", ""))
    overrides = [word for word in advice.partition("; ")[0].split() if "=" in word]
    return build_training_command(*overrides) if overrides else None


def _train_fixed_depth(config: ExperimentConfig, files: RunFiles, adaptive: Path) -> Command | None:
    """Return the command that trains matched baselines of an adaptive run or summary, if the run has none yet.

    A network whose units all have full depth has nothing to match.
    """
    has_one = bool(files.of(RIVALS).get("rows")) or config.rival_of is not None
    everyone = files.halting.get("classes", {}).get("all", {})
    is_full = everyone.get("std") == 0 and everyone.get("mean") == files.halting.get("max_depth")
    if has_one or is_full or "adaptive_macs" not in (files.halting.get("cost") or {}):
        return None
    if find_unfixable_depth(config) is not None:
        return None
    return build_training_command(f"rival_of={adaptive}")


def _has_exit_rules(config: ExperimentConfig, model: Any) -> bool:
    kind, problem = get_kind(config.dataset), get_problem(config.dataset)
    is_studied = config.task in (Task.finetune, Task.pretrain) or kind.reading == "blocks"
    is_predicted = problem is None or PREDICTED[problem].studies_exits
    return is_studied and is_predicted and bool(getattr(model, "exit_signals", None))


def _set_depths(config: ExperimentConfig, descriptor: Family, files: RunFiles) -> list[str]:
    """Return overrides that evaluate the trained model at two other target depths.

    The list is empty if the depth of the model cannot be set.
    """
    layers = files.halting.get("layers")
    most = len(layers["weights"]) - 1 if layers else files.halting.get("max_depth")
    if BudgetUnit.updates not in descriptor.budget.fitted or not most:
        return []
    depths = sorted({max(descriptor.budget.least, math.ceil(most * share)) for share in (1 / 3, 2 / 3)})
    unit = [] if config.budget.unit is BudgetUnit.updates else [f"budget.unit={BudgetUnit.updates}"]
    return [f"budget.targets=[{','.join(map(str, depths))}]", *unit]


def _reads_one_text(config: ExperimentConfig) -> bool:
    """Return whether each example consists of a single natural-language text."""
    if get_kind(config.dataset).columns == "text_columns":
        return len(list_input_columns(config.dataset) or ("sentence",)) == 1
    return get_problem(config.dataset) is None  # running text
