"""The settings of every model with PonderNet's halting distribution."""

from collections.abc import Iterator
from dataclasses import dataclass

from adadepth.families.registry import Budgeting
from adadepth.settings import BudgetUnit, ExperimentConfig
from adadepth.settings.choices import KLDirection, Prior, Truncation
from adadepth.settings.declaration import FINITE, OPEN_SHARE, at_least, setting


@dataclass
class PonderSettings:
    """The halting distribution of PonderNet (Banino et al. 2021), whatever computes the steps."""

    prior: Prior = setting(
        Prior.geometric,
        "what the distribution is drawn to; uniform keeps all steps in training (Ouro)",
        more="`geometric`: PonderNet's. `uniform` pays for entropy and prefers no step (Ouro, arXiv 2510.25741).",
    )
    target_halt_probability: float | None = setting(
        None, "of the geometric prior, with a mean of about its inverse; None: 0.1", OPEN_SHARE, hub=0.1,
        more="The prior halts at every step with this probability; its mean before truncation is exactly the inverse.",
    )  # fmt: skip
    kl_penalty_factor: float = setting(0.01, "beta, weight of the divergence from the prior", at_least(0))
    kl_direction: KLDirection = setting(
        KLDirection.posterior_prior,
        "KL(p || prior), PonderNet's; the other is PALBERT's",
        more="`prior_posterior`: KL(prior || p).",
    )
    truncation: Truncation = setting(
        Truncation.leftover, "what becomes of the mass beyond the last step", hub="renormalise",
        more="In posterior and prior: `renormalise` spreads it (PonderNet, the reference code), `leftover` gives it to "
        "the last step, `none` drops it from the posterior, which then sums to less than one (PALBERT's code).",
    )  # fmt: skip
    halt_bias_init: float = setting(
        0.0, "initial halting bias; negative starts deep, positive starts shallow", FINITE,
        more="At 0 every step halts with one half.",
    )  # fmt: skip
    exit_rule: str = setting(
        "quantile:0.5", "which step's prediction counts; docs/exit_rules.md lists the rules", hub="sample",
        more="The rule where a call names none, as `adadepth.halting.exit_rules.parse_rule` reads it.",
    )  # fmt: skip


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


BUDGET = Budgeting(
    trained=(BudgetUnit.updates, BudgetUnit.macs),
    fitted=(BudgetUnit.updates, BudgetUnit.macs),
    checks=("adadepth.families.shared.ponder:check_budget",),
)
ADVICE = (
    "model.prior=uniform keeps later steps trained; budget=depth holds a mean depth; a second stage trains the halting "
    "head alone"
)
