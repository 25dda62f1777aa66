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

    Attributes:
        prior: What the halting distribution is drawn to: `geometric` (PonderNet), or `uniform`, which pays for entropy
            and prefers no step (Ouro, arXiv 2510.25741).
        target_halt_probability: The geometric prior halts at every step with this probability; in (0, 1). Its mean,
            before truncation, is the inverse.
        kl_penalty_factor: Weight beta of the divergence from the prior, >= 0.
        ce_normalisation: `sum`: the task loss is its expectation; `mean_over_steps`: divided by the number of steps
            besides, as the reference code does.
        kl_direction: `posterior_prior`: KL(p || prior) (PonderNet); `prior_posterior`: KL(prior || p) (PALBERT).
        truncation: What becomes of the mass beyond the last step, in posterior and prior: `renormalise` spreads it
            (PonderNet, the reference code), `leftover` gives it to the last step, `none` drops it from the posterior,
            which then sums to less than one (PALBERT's code).
        readout: What the heads read. `tokens`: the classifier reads the first token and the halting head the second,
            so texts begin with two [CLS]; no pooler, no dropout. `pooler`: both read the pooled first token, after
            dropout (PALBERT).
        halting_head: `mlp`: two layers, GELU between; `linear`; `linear_cat`: on this step's features next to the
            previous step's; `linear_diff`: on their difference. The first step's predecessor is zero.
        halting_head_layers: k of PALBERT: more than 1 puts k blocks of linear map and tanh before the linear head.
        head_size: Hidden width of the classifier (`tokens`) and of the halting head (`mlp`).
        halt_bias_init: Initial bias of the halting head: 0 halts at every step with one half.
        double_cls_pairs: Whether in a pair the `first` text alone begins with an extra [CLS], or `both`.
    """

    model_type = "ponder_albert"

    def __post_init__(self, **kwargs: object) -> None:
        super().__post_init__(**kwargs)
        if self.halting_head == "mlp" and self.halting_head_layers > 1:
            raise ConfigError(f"halting_head_layers={self.halting_head_layers}: the mlp head has no further layers")

    @property
    def cls_tokens(self) -> int:
        """How many [CLS] a text begins with."""
        return 2 if self.readout == "tokens" else 1
