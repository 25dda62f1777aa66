"""Configuration of the multi-exit ALBERT."""

from huggingface_hub.dataclasses import strict

from adadepth.families.multi_exit_albert.settings import MultiExitAlbertSettings
from adadepth.families.shared.albert.configuration import StepwiseAlbertShape


@strict
class MultiExitAlbertConfig(StepwiseAlbertShape, settings=MultiExitAlbertSettings):
    """ALBERT with a linear classifier of its own after every step (Zhou et al. 2020, PABEE, arXiv 2006.04152)."""
