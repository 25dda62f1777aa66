"""Configurations of PonderALBERT and of the recurrent network of PonderNet."""

from __future__ import annotations

from huggingface_hub.dataclasses import strict

from adadepth.config.declaration import at_least, setting
from adadepth.errors import ConfigError
from adadepth.models.ponder.settings import PonderAlbertSettings, PonderRnnSettings, PonderSettings
from adadepth.models.shared.albert.configuration import StepwiseAlbertShape
from adadepth.models.shared.configuration import BESIDE_LOGITS, FamilyConfig


@strict
class PonderConfig(FamilyConfig, settings=PonderSettings):
    """Base configuration of models that halt by PonderNet's distribution over steps."""

    # The settings of `PonderSettings`, which documents them, with the values of a file that lacks them.
    prior: str = "geometric"
    target_halt_probability: int | float = 0.1
    kl_penalty_factor: int | float = 0.01
    kl_direction: str = "posterior_prior"
    truncation: str = "renormalise"
    halt_bias_init: int | float = 0.0
    exit_rule: str = "sample"


@strict
class PonderAlbertConfig(PonderConfig, StepwiseAlbertShape, settings=PonderAlbertSettings):
    """Configuration of PonderALBERT, an ALBERT whose sequences halt by PonderNet's method (Banino et al. 2021).

    The fields of transformers' ALBERT keep their names. The defaults are those of PonderALBERT. PALBERT (Balagansky &
    Gavrilov 2022) is `readout=pooler`, `halting_head=linear_cat`, `halting_head_layers=3`,
    `kl_direction=prior_posterior`, `truncation=leftover`, `kl_penalty_factor=0.5`, `exit_rule=quantile:0.5`.
    """

    # The settings of `PonderAlbertSettings`, which documents them, with the values of a file that lacks them.
    ce_normalisation: str = "sum"
    readout: str = "tokens"
    halting_head: str = "mlp"
    halting_head_layers: int = 1
    head_size: int = 128
    double_cls_pairs: str = "first"

    def __post_init__(self, **kwargs: object) -> None:
        super().__post_init__(**kwargs)
        if self.halting_head == "mlp" and self.halting_head_layers > 1:
            raise ConfigError(
                f"halting_head_layers={self.halting_head_layers}: the mlp head supports no further layers"
            )

    @property
    def cls_tokens(self) -> int:
        """Number of [CLS] tokens at the start of a text, read by the classifier and the halting head."""
        return 2 if self.readout == "tokens" else 1


@strict
class PonderRnnConfig(PonderConfig, settings=PonderRnnSettings):
    """Configuration of PonderNet's recurrent network, which reads one vector at each step (Banino et al. 2021, 3.1)."""

    keys_to_ignore_at_inference = BESIDE_LOGITS

    # The settings of `PonderRnnSettings`, which documents them, with the values of a file that lacks them.
    hidden_size: int = 128
    num_steps: int = 20
    cell: str = "tanh"

    input_size: int = setting(64, "S, number of values of an example", at_least(1), shape=True)

    @property
    def max_updates(self) -> int:
        """Maximum number of steps."""
        return self.num_steps
