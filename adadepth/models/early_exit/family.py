"""Descriptor of early-exit models."""

from collections.abc import Callable
from typing import Any

from adadepth.config import BudgetUnit
from adadepth.models.early_exit.settings import (
    EarlyExitSettings,
    check_early_exit,
    fix_last_exit,
    list_movable_exit_metrics,
)
from adadepth.models.registry import Adopt, Budgeting, ConfigClass, Family, ModelClass, ToLayout
from adadepth.models.shared.network_settings import DECODERS, add_no_tokens
from adadepth.models.shared.tokenizer_classes import import_fast_tokenizer


def _import_config() -> ConfigClass:
    from adadepth.models.early_exit.configuration import EarlyExitConfig

    return EarlyExitConfig


def _import_masked_lm() -> ModelClass:
    from adadepth.models.early_exit.masked_lm import EarlyExitForMaskedLM

    return EarlyExitForMaskedLM


def _import_causal_lm() -> ModelClass:
    from adadepth.models.early_exit.causal_lm import EarlyExitForCausalLM

    return EarlyExitForCausalLM


def _import_classifier() -> ModelClass:
    from adadepth.models.early_exit.classifiers import EarlyExitForSequenceClassification

    return EarlyExitForSequenceClassification


def _import_tagger() -> ModelClass:
    from adadepth.models.early_exit.classifiers import EarlyExitForTokenClassification

    return EarlyExitForTokenClassification


def _import_add_exits() -> Callable[..., Any]:
    from adadepth.models.early_exit.pretrained import add_exits

    return add_exits


def _import_layout() -> ToLayout:
    from adadepth.models.early_exit.layouts import to_network

    return to_network


def _import_adoption() -> Adopt:
    from adadepth.models.early_exit.pretrained import build_from_base

    return build_from_base


FAMILY = Family(
    settings=EarlyExitSettings,
    title="Early exit",
    option="early_exit_mini",
    config=_import_config,
    heads={
        "pretraining": _import_masked_lm,
        "language_model": _import_causal_lm,
        "classification": _import_classifier,
        "tagging": _import_tagger,
    },
    public={"add_exits": _import_add_exits},
    auto={"AutoModelForMaskedLM": _import_masked_lm},
    tokenizer=import_fast_tokenizer,
    loss_parts={"distillation_loss": "distillation", "gate_loss": "exit_gate"},
    movable_metrics=list_movable_exit_metrics,
    budget=Budgeting(fitted=(BudgetUnit.updates, BudgetUnit.macs), fits_target=True),
    fixed_depth=fix_last_exit,
    networks=DECODERS,
    layouts=dict.fromkeys(DECODERS, _import_layout),
    adopts=_import_adoption,
    text="blocks",
    first_tokens=add_no_tokens,
    checks=(check_early_exit,),
)
