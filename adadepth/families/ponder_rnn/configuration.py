"""Configuration of the recurrent PonderNet."""

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from adadepth.errors import ConfigError
from adadepth.families.shared.albert.configuration import check_choices
from adadepth.families.shared.ponder_objective import check_ponder_fields
from adadepth.halting.exit_rules import parse_rule

CHOICES = {"cell": ("tanh", "gru")}


@strict
class PonderRnnConfig(PreTrainedConfig):
    """A recurrent network that ponders over one vector (Banino et al. 2021, section 3.1).

    Attributes:
        input_size: Values S of an example.
        hidden_size: Units H.
        num_steps: Steps N at most.
        cell: `tanh`, the paper's plain cell, or `gru`.
        prior: What the halting distribution is drawn to: `geometric` (PonderNet), or `uniform` (Ouro).
        target_halt_probability: The geometric prior halts at every step with this probability; in (0, 1).
        kl_penalty_factor: Weight beta of the divergence from the prior, >= 0.
        kl_direction: `posterior_prior` (PonderNet) or `prior_posterior` (PALBERT).
        truncation: What becomes of the mass beyond the last step: `renormalise`, `leftover` or `none`.
        halt_bias_init: Initial bias of the halting head: 0 halts at every step with one half.
        exit_rule: The exit rule where a call names none, as `adadepth.halting.exit_rules.parse_rule` reads it.
    """

    model_type = "ponder_rnn"

    input_size: int = 64
    hidden_size: int = 128
    num_steps: int = 20
    cell: str = "tanh"
    prior: str = "geometric"
    target_halt_probability: int | float = 0.1
    kl_penalty_factor: int | float = 0.01
    kl_direction: str = "posterior_prior"
    truncation: str = "renormalise"
    halt_bias_init: int | float = 0.0
    exit_rule: str = "sample"

    def __post_init__(self, **kwargs: object) -> None:
        super().__post_init__(**kwargs)
        for name in ("input_size", "hidden_size", "num_steps"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1")
        check_choices(self, CHOICES)
        check_ponder_fields(self)
        parse_rule(self.exit_rule)

    @property
    def max_steps(self) -> int:
        """The last step."""
        return self.num_steps
