"""Configuration of PonderALBERT."""

from huggingface_hub.dataclasses import strict

from adadepth.errors import ConfigError
from adadepth.families.ponder_albert.settings import PonderAlbertSettings
from adadepth.families.shared.albert.configuration import StepwiseAlbertShape


@strict
class PonderAlbertConfig(StepwiseAlbertShape, settings=PonderAlbertSettings):
    """ALBERT whose sequences halt by PonderNet's distribution (Banino et al. 2021), on the first two tokens.

    The fields of transformers' ALBERT keep their names. The defaults are PonderALBERT's; PALBERT (Balagansky & Gavrilov
    2022) is `readout=pooler`, `halting_head=linear_cat`, `halting_head_layers=3`, `kl_direction=prior_posterior`,
    `truncation=leftover`, `kl_penalty_factor=0.5`, `exit_rule=quantile:0.5`.
    """

    def __post_init__(self, **kwargs: object) -> None:
        super().__post_init__(**kwargs)
        if self.halting_head == "mlp" and self.halting_head_layers > 1:
            raise ConfigError(f"halting_head_layers={self.halting_head_layers}: the mlp head has no further layers")

    @property
    def cls_tokens(self) -> int:
        """How many [CLS] a text begins with."""
        return 2 if self.readout == "tokens" else 1
