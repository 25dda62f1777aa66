"""What the settings of a halting distribution need of each other and of a budget."""

from collections.abc import Iterator

from adadepth.choices import Prior
from adadepth.config import ExperimentConfig
from adadepth.families.shared.ponder_settings import PonderSettings


def check_prior(config: ExperimentConfig) -> Iterator[str]:
    """A uniform prior has no probability."""
    model = config.model
    assert isinstance(model, PonderSettings)
    probability = model.target_halt_probability
    if model.prior is Prior.uniform and probability is not None:
        yield (
            f"model.target_halt_probability={probability}: read only with model.prior=geometric; with "
            "model.prior=uniform set it to null"
        )


def check_budget(config: ExperimentConfig) -> Iterator[str]:
    """A prior that prefers some depth is a price beside the target."""
    model = config.model
    assert isinstance(model, PonderSettings)
    if model.prior is Prior.geometric and model.kl_penalty_factor > 0:
        yield (
            f"budget.target={config.budget.target:g}: model.prior=geometric is a price beside it; set "
            "model.prior=uniform and model.target_halt_probability=null, or model.kl_penalty_factor=0"
        )
