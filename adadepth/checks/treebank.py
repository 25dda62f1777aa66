"""What a treebank needs of the rest of a configuration."""

from collections.abc import Iterator

from adadepth.config import ExperimentConfig, Mode, Task
from adadepth.config.tables import TreebankConfig


def check_treebank(config: ExperimentConfig) -> Iterator[str]:
    """A treebank is read by evaluations of models of tokens, and by nothing else."""
    dataset = config.dataset
    if not isinstance(dataset, TreebankConfig):
        return
    if config.mode is Mode.train:
        yield f"dataset={dataset.name}: read with mode=evaluate only; to train on CoNLL-U files take dataset=ud_pos"
    if config.task not in (Task.pretrain, Task.finetune):
        yield f"dataset={dataset.name}: read with task=pretrain or finetune only, not with task={config.task}"
    if dataset.path is None and not dataset.hub.path:
        yield "dataset.path: needs a folder or files of CoNLL-U, or dataset.hub.path"
    if dataset.evaluation_splits is not None and not dataset.evaluation_splits:
        yield "dataset.evaluation_splits=[]: at least one is needed; null takes validation and test"
    for key, value in (("exit_rules", config.exit_rules), ("budget.targets", config.budget.targets)):
        if value:
            yield f"{key}={list(value)}: not read with dataset={dataset.name}"
