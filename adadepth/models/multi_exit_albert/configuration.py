"""Configuration of the multi-exit ALBERT."""

from __future__ import annotations

from huggingface_hub.dataclasses import strict

from adadepth.halting.step_losses import prepare_step_loss
from adadepth.models.multi_exit_albert.settings import MultiExitAlbertSettings
from adadepth.models.shared.albert.configuration import StepwiseAlbertShape


@strict
class MultiExitAlbertConfig(StepwiseAlbertShape, settings=MultiExitAlbertSettings):
    """Configuration of ALBERT with a classifier after every step (PABEE, Zhou et al. 2020, arXiv 2006.04152)."""

    # The settings of `MultiExitAlbertSettings`, which documents them, with the values of a file that lacks them.
    exit_weights: str = "linear"
    exit_rule: str = "patience"

    def __post_init__(self, **kwargs: object) -> None:
        super().__post_init__(**kwargs)
        prepare_step_loss(self.exit_weights)
