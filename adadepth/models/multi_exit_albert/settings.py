"""Settings of the multi-exit ALBERT family."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from adadepth.config import family_name
from adadepth.config.declaration import setting
from adadepth.models.shared.albert.settings import AlbertSettings

ExitWeights = StrEnum("ExitWeights", ["linear", "uniform", "last"])


@dataclass
class MultiExitAlbertSettings(AlbertSettings):
    """Baseline: ALBERT with a classifier after every iteration, all trained jointly (PABEE, Zhou et al. 2020)."""

    name: str = family_name("multi_exit_albert")
    exit_weights: ExitWeights = setting(
        ExitWeights.linear,
        "weights of the losses of steps: proportional to the step number (PABEE), equal, or the last step only",
        more="`linear`: step j has weight j, divided by the sum of all weights; `uniform`: ElasticBERT's sum, as a "
        "mean.",
    )
    exit_rule: str = setting(
        "patience:3",
        "exit rule that selects the step of the prediction; see docs/exit_rules.md",
        hub="patience",
        more="It is the default rule of calls, in the syntax of `adadepth.halting.exit_rules.parse_rule`.",
    )


def fix_last_step(model: MultiExitAlbertSettings, depth: int) -> dict[str, Any]:
    """Return the settings of the ALBERT of `depth` steps that learns from its last step alone."""
    return {"num_hidden_layers": depth, "exit_rule": f"fixed:{depth}", "exit_weights": ExitWeights.last}
