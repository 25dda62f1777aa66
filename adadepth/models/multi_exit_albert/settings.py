"""Settings of the multi-exit ALBERT family."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from adadepth.config import ExperimentConfig, Mode, family_name
from adadepth.config.declaration import setting
from adadepth.models.shared.albert.settings import AlbertSettings
from adadepth.models.shared.halting_settings import find_loss_problems


@dataclass
class MultiExitAlbertSettings(AlbertSettings):
    """Baseline: ALBERT with a classifier after every iteration, all trained jointly (PABEE, Zhou et al. 2020)."""

    name: str = family_name("multi_exit_albert")
    exit_weights: str = setting(
        "linear",
        "weights of the losses of steps: linear (PABEE), uniform, last, sqrt, inverse, inverse_sqrt, sum, layerskip, "
        "or NAME[:PARAMETER] of an installed package",
        more="`linear`: step j has weight j, divided by the sum of all weights; `uniform`: ElasticBERT's sum, as a "
        "mean. The other equations are those of `adadepth.halting.step_losses`, with depths d_j = j.",
    )
    exit_rule: str = setting(
        "patience:3",
        "exit rule that selects the step of the prediction; see docs/exit_rules.md",
        hub="patience",
        more="It is the default rule of calls, in the syntax of `adadepth.halting.exit_rules.parse_rule`.",
    )


def fix_last_step(model: MultiExitAlbertSettings, depth: int) -> dict[str, Any]:
    """Return the settings of the ALBERT of `depth` steps that learns from its last step alone."""
    return {"num_hidden_layers": depth, "exit_rule": f"fixed:{depth}", "exit_weights": "last"}


def check_exit_weights(config: ExperimentConfig) -> Iterator[str]:
    """Check that the weights of the losses of steps are a loss over exits; other modes than training need none."""
    assert isinstance(config.model, MultiExitAlbertSettings)
    if config.mode is Mode.train:
        yield from find_loss_problems("model.exit_weights", config.model.exit_weights)
