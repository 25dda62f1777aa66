"""The settings of the multi-exit ALBERT."""

from dataclasses import dataclass
from enum import StrEnum

from adadepth.config import BudgetUnit, family_name
from adadepth.config.declaration import setting
from adadepth.models.registry import Budgeting, Family
from adadepth.models.shared.albert.settings import AlbertSettings

ExitWeights = StrEnum("ExitWeights", ["linear", "uniform"])


@dataclass
class MultiExitAlbertSettings(AlbertSettings):
    """ALBERT with a classifier at every iteration, trained jointly (PABEE, Zhou et al. 2020): a baseline."""

    name: str = family_name("multi_exit_albert")
    exit_weights: ExitWeights = setting(
        ExitWeights.linear,
        "of the steps' losses: their number (PABEE), or equal",
        more="`linear`: that of step j is j, over the sum of all; `uniform`: ElasticBERT's sum, as a mean.",
    )
    exit_rule: str = setting(
        "patience:3",
        "which step's prediction counts; docs/exit_rules.md lists the rules",
        hub="patience",
        more="The rule where a call names none, as `adadepth.halting.exit_rules.parse_rule` reads it.",
    )


FAMILY = Family(
    settings=MultiExitAlbertSettings,
    option="pabee_mini",
    config="adadepth.models.multi_exit_albert.configuration:MultiExitAlbertConfig",
    heads={"classification": "adadepth.models.multi_exit_albert.modeling:MultiExitAlbertForSequenceClassification"},
    auto={"AutoModel": "adadepth.models.multi_exit_albert.modeling:MultiExitAlbertModel"},
    tokenizer="transformers.models.albert:AlbertTokenizer",
    budget=Budgeting(fitted=(BudgetUnit.updates, BudgetUnit.macs)),
    depth="num_hidden_layers",
    starts_from={"albert": None, "albert_act": None},
    checks=("adadepth.models.shared.albert.settings:check_sizes",),
)
