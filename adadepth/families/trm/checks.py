"""What the settings of tiny recursive models need of the rest of a configuration."""

import re
from collections.abc import Iterator

from adadepth.config import ExperimentConfig, Mode


def check_slots(config: ExperimentConfig) -> Iterator[str]:
    """Every batch has a row for each slot, and puzzles are asked whether they are solved."""
    rule = str(getattr(config.model, "exit_rule", ""))
    if re.fullmatch(r"correct:0*\.?0*", rule) and rule != "correct:":
        yield f"model.exit_rule={rule}: every puzzle would exit after its first step; say fixed:1 if that is meant"
    trainer, examples = config.trainer, getattr(config.dataset, "train_examples", None)
    if config.mode is not Mode.train:
        return
    if not trainer.dataloader_drop_last:
        yield "trainer.dataloader_drop_last=false: puzzles keep their slots of the batch, so that none may be shorter"
    rows = trainer.per_device_train_batch_size
    if examples is not None and examples < rows:
        yield f"dataset.train_examples={examples}: fewer than trainer.per_device_train_batch_size={rows}"


def check_target(config: ExperimentConfig) -> Iterator[str]:
    """The rule whose threshold training fits to a target is that of the Q head."""
    rule = str(getattr(config.model, "exit_rule", ""))
    if config.mode is Mode.train and not rule.startswith("correct:"):
        yield f"model.exit_rule={rule}: budget.target={config.budget.target:g} fits the threshold P of correct:P"
