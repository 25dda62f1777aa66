"""The settings of every model with PonderNet's halting distribution."""

from dataclasses import dataclass

from adadepth.choices import KLDirection, Prior, Truncation
from adadepth.declaration import FINITE, OPEN_SHARE, at_least, setting


@dataclass
class PonderSettings:
    """The halting distribution of PonderNet (Banino et al. 2021), whatever computes the steps."""

    prior: Prior = setting(
        Prior.geometric, "what the distribution is drawn to; uniform keeps all steps in training (Ouro)"
    )
    target_halt_probability: float | None = setting(
        None, "of the geometric prior, with a mean of about its inverse; None: 0.1", OPEN_SHARE, hub=0.1
    )
    kl_penalty_factor: float = setting(0.01, "beta, weight of the divergence from the prior", at_least(0))
    kl_direction: KLDirection = setting(
        KLDirection.posterior_prior, "KL(p || prior), PonderNet's; the other is PALBERT's"
    )
    truncation: Truncation = setting(
        Truncation.leftover, "what becomes of the mass beyond the last step", hub="renormalise"
    )
    halt_bias_init: float = setting(0.0, "initial halting bias; negative starts deep, positive starts shallow", FINITE)
    exit_rule: str = setting(
        "quantile:0.5", "which step's prediction counts; docs/exit_rules.md lists the rules", hub="sample"
    )
