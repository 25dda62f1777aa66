"""The configuration of the multi-exit ALBERT."""

from __future__ import annotations

from huggingface_hub.dataclasses import strict

from adadepth.families.multi_exit_albert.family import MultiExitAlbertSettings
from adadepth.families.shared.albert.configuration import StepwiseAlbertShape


@strict
class MultiExitAlbertConfig(StepwiseAlbertShape, settings=MultiExitAlbertSettings):
    """ALBERT with a linear classifier of its own after every step (Zhou et al. 2020, PABEE, arXiv 2006.04152)."""

    # The settings of `MultiExitAlbertSettings`, which say what they mean; with what a file without them means.
    exit_weights: str = "linear"
    exit_rule: str = "patience"
