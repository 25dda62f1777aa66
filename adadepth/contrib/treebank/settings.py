"""Settings of the dataset type `trees`, and their validation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from adadepth.cli.checks.modes import format_mode
from adadepth.config import ExperimentConfig, Mode, Task
from adadepth.config.data import ExamplesConfig, HubTable, MaskingConfig
from adadepth.config.declaration import FILES, at_least, setting


@dataclass
class TreebankConfig(ExamplesConfig):
    """Treebank on which `mode=evaluate` measures depth by linguistic class."""

    name: str = setting("trees", "name of the data set in reports")
    path: Any = setting(
        None, "a folder of CoNLL-U files, a file, a glob, a list, or a mapping split: file; None: the hub", FILES
    )
    hub: HubTable = setting(HubTable, "entry of the hub, read without a path")
    evaluation_splits: list[str] | None = setting(None, "evaluated splits; None: validation and test, or all splits")
    max_evaluation_examples: int | None = setting(
        None, "maximum number of sentences per split; None: all", at_least(1), debug=8
    )
    masking: MaskingConfig = setting(MaskingConfig, "masking, for a model that predicts masked words")


def check_treebank(dataset: TreebankConfig, config: ExperimentConfig) -> Iterator[str]:
    """Yield an error line for every problem of a configuration with a treebank."""
    if config.mode is Mode.train:
        how = f"read with {format_mode(Mode.evaluate, config)} only"
        yield f"dataset={dataset.name}: {how}; to train on CoNLL-U files, use --config-name act_pos dataset=ud_pos"
    if config.task not in (Task.pretrain, Task.finetune):
        yield f"dataset={dataset.name}: read by masked language models and taggers only, not with task={config.task}"
    if dataset.path is None and not dataset.hub.path:
        yield "dataset.path: needs a folder or files of CoNLL-U, or dataset.hub.path"
    if dataset.evaluation_splits is not None and not dataset.evaluation_splits:
        yield "dataset.evaluation_splits=[]: at least one is needed; null means validation and test"
    for key, value in (("exit_rules", config.exit_rules), ("budget.targets", config.budget.targets)):
        if value:
            yield f"{key}={list(value)}: not read with dataset={dataset.name}"
