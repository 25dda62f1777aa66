"""The settings of PonderALBERT."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from adadepth.families.registry import Family
from adadepth.families.shared.albert.settings import AlbertSettings
from adadepth.families.shared.ponder import ADVICE, BUDGET, PonderSettings
from adadepth.settings import ExperimentConfig, family_name
from adadepth.settings.declaration import at_least, setting

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


def check_halting_head(config: ExperimentConfig) -> Iterator[str]:
    """Only one of the heads has further layers."""
    model = config.model
    assert isinstance(model, PonderAlbertSettings)
    layers = model.halting_head_layers
    if layers > 1 and model.halting_head is not HaltingHead.linear_cat:
        yield f"model.halting_head_layers={layers}: read only with model.halting_head=linear_cat"


def first_tokens(model: Any) -> dict[str, Any]:
    """How many [CLS] a text begins with, from the settings or from the model's configuration."""
    return {
        "cls_tokens": 2 if model.readout == Readout.tokens else 1,
        "double_cls_pairs": str(model.double_cls_pairs),
    }


FAMILY = Family(
    settings=PonderAlbertSettings,
    config="adadepth.families.ponder_albert.modeling:PonderAlbertConfig",
    heads={"classification": "adadepth.families.ponder_albert.modeling:PonderAlbertForSequenceClassification"},
    auto={"AutoModel": "adadepth.families.ponder_albert.modeling:PonderAlbertModel"},
    tokenizer="transformers.models.albert:AlbertTokenizer",
    public={
        "PonderAlbertClassifier": "adadepth.families.ponder_albert.modeling:PonderAlbertClassifier",
        "PonderClassificationLoss": "adadepth.families.ponder_albert.modeling:PonderClassificationLoss",
    },
    loss_parts={"kl_loss": None},
    budget=BUDGET,
    depth="num_hidden_layers",
    reads=frozenset({"halting"}),
    starts_from={"albert": None, "albert_act": None},
    first_tokens="adadepth.families.ponder_albert.family:first_tokens",
    checks=(
        "adadepth.families.shared.albert.settings:check_sizes",
        "adadepth.families.shared.ponder:check_prior",
        "adadepth.families.ponder_albert.family:check_halting_head",
    ),
    advice=ADVICE,
    weights_from="adadepth.families.ponder_albert.convert:rename_weights",
)
