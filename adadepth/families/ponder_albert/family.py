"""What is known of PonderALBERT."""

from adadepth.config import BudgetUnit
from adadepth.families.ponder_albert.settings import PonderAlbertSettings
from adadepth.families.registry import Budgeting, Family

FAMILY = Family(
    name="ponder_albert",
    settings=PonderAlbertSettings,
    config="adadepth.families.ponder_albert.configuration:PonderAlbertConfig",
    heads={"classification": "adadepth.families.ponder_albert.modeling:PonderAlbertForSequenceClassification"},
    tokenizer="transformers.models.albert:AlbertTokenizer",
    public={
        "PonderAlbertClassifier": "adadepth.families.ponder_albert.modeling:PonderAlbertClassifier",
        "PonderClassificationLoss": "adadepth.families.ponder_albert.criterion:PonderClassificationLoss",
    },
    loss_parts={"kl_loss": None},
    budget=Budgeting(
        trained=(BudgetUnit.updates, BudgetUnit.macs),
        fitted=(BudgetUnit.updates, BudgetUnit.macs),
        checks=("adadepth.families.shared.ponder_checks:check_budget",),
    ),
    depth="num_hidden_layers",
    reads=frozenset({"halting"}),
    starts_from={"albert": None, "albert_act": None},
    first_tokens="adadepth.families.ponder_albert.checks:first_tokens",
    checks=(
        "adadepth.families.shared.albert.checks:check_sizes",
        "adadepth.families.shared.ponder_checks:check_prior",
        "adadepth.families.ponder_albert.checks:check_halting_head",
    ),
    advice="model.prior=uniform keeps later steps trained; budget=depth holds a mean depth; a second stage trains the "
    "halting head alone",
    weights_from="adadepth.families.ponder_albert.convert:rename_weights",
)
