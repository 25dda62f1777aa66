"""Descriptor of routed models."""

from adadepth.config import BudgetUnit
from adadepth.models.registry import (
    Adopt,
    Budgeting,
    ConfigClass,
    Family,
    LoadSource,
    ModelClass,
    ReportSection,
)
from adadepth.models.routed.settings import RoutedSettings, check_routed, fix_routed_parts
from adadepth.models.shared.network_settings import add_no_tokens
from adadepth.models.shared.tokenizer_classes import import_fast_tokenizer


def _import_config() -> ConfigClass:
    from adadepth.models.routed.configuration import RoutedConfig

    return RoutedConfig


def _import_causal_lm() -> ModelClass:
    from adadepth.models.routed.heads import RoutedForCausalLM

    return RoutedForCausalLM


def _import_tagger() -> ModelClass:
    from adadepth.models.routed.heads import RoutedForTokenClassification

    return RoutedForTokenClassification


def _import_routing_section() -> ReportSection:
    from adadepth.models.routed.report import ROUTING_SECTION

    return ROUTING_SECTION


def _import_source_loader() -> LoadSource:
    from adadepth.models.routed.pretrained import load_network_and_head

    return load_network_and_head


def _import_adoption() -> Adopt:
    from adadepth.models.routed.pretrained import adopt_network

    return adopt_network


FAMILY = Family(
    settings=RoutedSettings,
    title="Routed transformer",
    option="mor_mini",
    config=_import_config,
    heads={
        "language_model": _import_causal_lm,
        "tagging": _import_tagger,
    },
    tokenizer=import_fast_tokenizer,
    loss_parts={"routing_loss": None},
    sections=(_import_routing_section,),
    budget=Budgeting(fitted=(BudgetUnit.updates, BudgetUnit.macs), fits_target=True, least=0),
    fixed_depth=fix_routed_parts,
    starts_from={"early_exit": _import_source_loader},
    adopts=_import_adoption,
    text="blocks",
    first_tokens=add_no_tokens,
    checks=(check_routed,),
)
