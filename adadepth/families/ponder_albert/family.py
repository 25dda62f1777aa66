"""What is known of PonderALBERT."""

from adadepth.families.ponder_albert.settings import PonderAlbertSettings
from adadepth.families.registry import Family
from adadepth.families.shared import ponder_family

FAMILY = Family(
    settings=PonderAlbertSettings,
    config="adadepth.families.ponder_albert.configuration:PonderAlbertConfig",
    heads={"classification": "adadepth.families.ponder_albert.modeling:PonderAlbertForSequenceClassification"},
    auto={"AutoModel": "adadepth.families.ponder_albert.modeling:PonderAlbertModel"},
    tokenizer="transformers.models.albert:AlbertTokenizer",
    public={
        "PonderAlbertClassifier": "adadepth.families.ponder_albert.modeling:PonderAlbertClassifier",
        "PonderClassificationLoss": "adadepth.families.ponder_albert.criterion:PonderClassificationLoss",
    },
    loss_parts={"kl_loss": None},
    budget=ponder_family.BUDGET,
    depth="num_hidden_layers",
    reads=frozenset({"halting"}),
    starts_from={"albert": None, "albert_act": None},
    first_tokens="adadepth.families.ponder_albert.checks:first_tokens",
    checks=(
        "adadepth.families.shared.albert.checks:check_sizes",
        "adadepth.families.shared.ponder_checks:check_prior",
        "adadepth.families.ponder_albert.checks:check_halting_head",
    ),
    advice=ponder_family.ADVICE,
    weights_from="adadepth.families.ponder_albert.convert:rename_weights",
)
