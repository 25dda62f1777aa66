"""The settings of PonderALBERT."""

from dataclasses import dataclass
from enum import StrEnum

from adadepth.declaration import at_least, setting
from adadepth.families.shared.albert.settings import AlbertSettings
from adadepth.families.shared.ponder_settings import PonderSettings

Normalisation = StrEnum("Normalisation", ["sum", "mean_over_steps"])
Readout = StrEnum("Readout", ["tokens", "pooler"])
HaltingHead = StrEnum("HaltingHead", ["mlp", "linear", "linear_cat", "linear_diff"])
DoubleCls = StrEnum("DoubleCls", ["first", "both"])


@dataclass
class PonderAlbertSettings(PonderSettings, AlbertSettings):
    """PonderALBERT: a halting distribution over the iterations of ALBERT's block, one a sequence."""

    name: str = setting("ponder_albert", "the family")
    ce_normalisation: Normalisation = setting(
        Normalisation.sum, "mean_over_steps divides the expected loss by the steps too"
    )
    readout: Readout = setting(
        Readout.tokens, "heads read the two [CLS] (PonderALBERT), or the pooled first one (PALBERT)", shape=True
    )
    halting_head: HaltingHead = setting(
        HaltingHead.mlp, "linear_cat, linear_diff: PALBERT's, on consecutive states", shape=True
    )
    halting_head_layers: int = setting(
        1, "PALBERT's k: k > 1 puts k tanh layers before linear_cat", at_least(1), shape=True
    )
    head_size: int = setting(128, "inner width of the MLP heads", at_least(1), shape=True)
    double_cls_pairs: DoubleCls = setting(DoubleCls.first, "where a pair gets the second [CLS]")
