"""Settings of the dataset type `harness`, and their validation."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec

from adadepth.cli.checks.modes import format_mode
from adadepth.config import ExperimentConfig, Mode, Task
from adadepth.config.data import DatasetConfig
from adadepth.config.declaration import at_least, setting
from adadepth.errors import missing_package


@dataclass
class HarnessConfig(DatasetConfig):
    """Tasks of lm-evaluation-harness, on which `mode=evaluate` scores a causal language model."""

    name: str = setting("harness", "name of the data set in reports")
    tasks: list[str] = setting([], "names of tasks, groups or tags of the harness")
    include_path: str | None = setting(None, "folder of further tasks as YAML files; None: those of the harness only")
    limit: int | None = setting(
        None, "number of documents of a task that are read, from its start; None: all", at_least(1), debug=8
    )
    num_fewshot: int | None = setting(
        None, "number of solved examples before a document; None: as the task says", at_least(0)
    )
    max_length: int | None = setting(
        None, "maximum number of tokens that the model reads at once; None: as the harness chooses it", at_least(8)
    )


def check_harness(dataset: HarnessConfig, config: ExperimentConfig) -> Iterator[str]:
    """Yield an error line for every problem of a configuration with tasks of the harness."""
    if config.mode is not Mode.evaluate:
        yield f"dataset={dataset.name}: read with {format_mode(Mode.evaluate, config)} only"
    if config.task is not Task.language_model:
        causal = "read by causal language models only, e.g. --config-name loop_tiny"
        yield f"dataset={dataset.name}: {causal}, not with task={config.task}"
    if find_spec("lm_eval") is None:
        yield f"dataset={dataset.name}: {missing_package('lm_eval', 'adadepth[companions]')}"
    if not dataset.tasks:
        yield f"dataset.tasks=[]: required by dataset={dataset.name}, e.g. 'dataset.tasks=[wikitext,arc_easy]'"
    if repeated := sorted({name for name in dataset.tasks if dataset.tasks.count(name) > 1}):
        yield f"dataset.tasks={dataset.tasks}: {repeated[0]} is named twice"
    if dataset.include_path is not None and not os.path.isdir(os.path.expanduser(dataset.include_path)):
        yield f"dataset.include_path={dataset.include_path}: no such folder"
    elif dataset.include_path is not None and not config.runtime.trust_remote_code:  # also of templates, unsandboxed
        yield (
            f"dataset.include_path={dataset.include_path}: the harness runs code of its tasks; to allow it, set "
            "runtime.trust_remote_code=true"
        )
    if dataset.sequence_length != DatasetConfig.sequence_length:
        unused = f"dataset.sequence_length={dataset.sequence_length}: not used with dataset={dataset.name}"
        yield f"{unused}; set dataset.max_length"
    if config.adopt_rule:
        yield f"adopt_rule=true: not used with dataset={dataset.name}"
    if config.budget.targets:
        yield f"budget.targets={list(config.budget.targets)}: not used with dataset={dataset.name}"
