"""Configuration of the recurrent PonderNet."""

from huggingface_hub.dataclasses import strict

from adadepth.declaration import at_least, setting
from adadepth.families.ponder_rnn.settings import PonderRnnSettings
from adadepth.families.shared.configuration import BESIDE_LOGITS, FamilyConfig
from adadepth.halting.exit_rules import parse_rule


@strict
class PonderRnnConfig(FamilyConfig, settings=PonderRnnSettings):
    """A recurrent network that ponders over one vector (Banino et al. 2021, section 3.1)."""

    keys_to_ignore_at_inference = BESIDE_LOGITS
    input_size: int = setting(64, "S, values of an example", at_least(1), shape=True)

    def __post_init__(self, **kwargs: object) -> None:
        super().__post_init__(**kwargs)
        parse_rule(self.exit_rule)

    @property
    def max_steps(self) -> int:
        """The last step."""
        return self.num_steps
