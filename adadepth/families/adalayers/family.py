"""What is known of Adalayers."""

from adadepth.config import BudgetUnit
from adadepth.families.adalayers.settings import AdaLayersSettings
from adadepth.families.registry import Budgeting, Family

_HEADS = "adadepth.families.adalayers.heads"

FAMILY = Family(
    settings=AdaLayersSettings,
    config="adadepth.families.adalayers.configuration:AdaLayersConfig",
    heads={
        "classification": f"{_HEADS}:AdaLayersForSequenceClassification",
        "tagging": f"{_HEADS}:AdaLayersForTokenClassification",
    },
    loss_parts={"entropy_loss": None, "depth_loss": None},
    budget=Budgeting(
        trained=(BudgetUnit.deepest_layer, BudgetUnit.expected_layer, BudgetUnit.macs),
        fitted=(BudgetUnit.updates, BudgetUnit.deepest_layer),
        prices=("lambda_distribution_depth",),
        whole=True,
        checks=("adadepth.families.adalayers.checks:check_budget",),
    ),
    reads=frozenset({"features"}),
    build="adadepth.families.adalayers.build:build_on_base",
    first_tokens="adadepth.families.adalayers.checks:first_tokens",
    own_symbols=False,
    checks=("adadepth.families.adalayers.checks:check_settings",),
    offline="model=adalayers_minilm needs no network: the weights of its base are a package's",
    weights_from="adadepth.families.adalayers.convert:rename_weights",
    config_from="adadepth.families.adalayers.convert:read_config",
)
