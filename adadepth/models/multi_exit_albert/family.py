"""Descriptor of multi-exit ALBERT."""

from adadepth.config import BudgetUnit
from adadepth.models.multi_exit_albert.settings import MultiExitAlbertSettings, check_exit_weights, fix_last_step
from adadepth.models.registry import Budgeting, ConfigClass, Family, ModelClass
from adadepth.models.shared.albert.settings import check_sizes
from adadepth.models.shared.tokenizer_classes import import_albert_tokenizer


def _import_config() -> ConfigClass:
    from adadepth.models.multi_exit_albert.configuration import MultiExitAlbertConfig

    return MultiExitAlbertConfig


def _import_classifier() -> ModelClass:
    from adadepth.models.multi_exit_albert.modeling import MultiExitAlbertForSequenceClassification

    return MultiExitAlbertForSequenceClassification


def _import_model() -> ModelClass:
    from adadepth.models.multi_exit_albert.modeling import MultiExitAlbertModel

    return MultiExitAlbertModel


FAMILY = Family(
    settings=MultiExitAlbertSettings,
    title="Multi-exit ALBERT",
    option="pabee_mini",
    config=_import_config,
    heads={"classification": _import_classifier},
    auto={"AutoModel": _import_model},
    tokenizer=import_albert_tokenizer,
    budget=Budgeting(fitted=(BudgetUnit.updates, BudgetUnit.macs)),
    depth="num_hidden_layers",
    fixed_depth=fix_last_step,
    starts_from={"albert": None, "albert_act": None},
    checks=(check_sizes, check_exit_weights),
)
