"""The settings of PonderALBERT."""

from dataclasses import dataclass
from enum import StrEnum

from adadepth.config import family_name
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

    name: str = family_name("ponder_albert")
    ce_normalisation: Normalisation = setting(
        Normalisation.sum,
        "mean_over_steps divides the expected loss by the steps too",
        more="`sum`: the task loss is its expectation. The division is the reference code's.",
    )
    readout: Readout = setting(
        Readout.tokens, "heads read the two [CLS] (PonderALBERT), or the pooled first one (PALBERT)", shape=True,
        more="`tokens`: the classifier reads the first token and the halting head the second, so texts begin with two "
        "[CLS]; no pooler, no dropout. `pooler`: both read the pooled first token, after dropout.",
    )  # fmt: skip
    halting_head: HaltingHead = setting(
        HaltingHead.mlp, "linear_cat, linear_diff: PALBERT's, on consecutive states", shape=True,
        more="`mlp`: two layers, GELU between; `linear`; `linear_cat`: on this step's features next to the previous "
        "step's; `linear_diff`: on their difference. The first step's predecessor is zero.",
    )  # fmt: skip
    halting_head_layers: int = setting(
        1, "PALBERT's k: k > 1 puts k tanh layers before linear_cat", at_least(1), shape=True
    )
    head_size: int = setting(
        128, "inner width of the MLP heads", at_least(1), shape=True,
        more="Of the classifier (`readout=tokens`) and of the halting head (`halting_head=mlp`).",
    )  # fmt: skip
    double_cls_pairs: DoubleCls = setting(
        DoubleCls.first,
        "where a pair gets the second [CLS]",
        more="The `first` text alone begins with an extra [CLS], or `both`.",
    )
