"""Configuration of the recurrent PonderNet."""

from huggingface_hub.dataclasses import strict

from adadepth.errors import ConfigError
from adadepth.families.ponder_rnn.settings import PonderRnnSettings
from adadepth.families.shared.configuration import FamilyConfig, shape_field
from adadepth.halting.exit_rules import parse_rule


@strict
class PonderRnnConfig(FamilyConfig, settings=PonderRnnSettings):
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

    input_size: int = shape_field(64)

    def __post_init__(self, **kwargs: object) -> None:
        super().__post_init__(**kwargs)
        if self.input_size < 1:
            raise ConfigError(f"input_size={self.input_size} must be at least 1")
        parse_rule(self.exit_rule)

    @property
    def max_steps(self) -> int:
        """The last step."""
        return self.num_steps
