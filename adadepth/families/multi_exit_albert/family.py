"""What is known of the multi-exit ALBERT."""

from adadepth.config import BudgetUnit
from adadepth.families.multi_exit_albert.settings import MultiExitAlbertSettings
from adadepth.families.registry import Budgeting, Family

FAMILY = Family(
    settings=MultiExitAlbertSettings,
    config="adadepth.families.multi_exit_albert.configuration:MultiExitAlbertConfig",
    heads={"classification": "adadepth.families.multi_exit_albert.modeling:MultiExitAlbertForSequenceClassification"},
    auto={"AutoModel": "adadepth.families.multi_exit_albert.modeling:MultiExitAlbertModel"},
    tokenizer="transformers.models.albert:AlbertTokenizer",
    budget=Budgeting(fitted=(BudgetUnit.updates, BudgetUnit.macs)),
    depth="num_hidden_layers",
    starts_from={"albert": None, "albert_act": None},
    checks=("adadepth.families.shared.albert.checks:check_sizes",),
)
