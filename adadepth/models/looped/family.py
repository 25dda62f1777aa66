"""Descriptor of looped language models."""

from collections.abc import Callable
from typing import Any

from adadepth.config import BudgetUnit
from adadepth.models.looped.settings import (
    LoopedSettings,
    check_looped,
    fix_loops,
    list_movable_gate_metrics,
    warn_of_untrained_gate,
)
from adadepth.models.registry import Adopt, Budgeting, ConfigClass, Family, ModelClass, ToLayout
from adadepth.models.shared.network_settings import DECODERS
from adadepth.models.shared.tokenizer_classes import import_fast_tokenizer


def _import_config() -> ConfigClass:
    from adadepth.models.looped.configuration import LoopedConfig

    return LoopedConfig


def _import_causal_lm() -> ModelClass:
    from adadepth.models.looped.heads import LoopedForCausalLM

    return LoopedForCausalLM


def _import_classifier() -> ModelClass:
    from adadepth.models.looped.heads import LoopedForSequenceClassification

    return LoopedForSequenceClassification


def _import_tagger() -> ModelClass:
    from adadepth.models.looped.heads import LoopedForTokenClassification

    return LoopedForTokenClassification


def _import_model() -> ModelClass:
    from adadepth.models.looped.modeling import LoopedModel

    return LoopedModel


def _import_retrofit() -> Callable[..., Any]:
    from adadepth.models.looped.retrofit import retrofit

    return retrofit


def _import_ouro_layout() -> ToLayout:
    from adadepth.models.looped.layouts import to_ouro

    return to_ouro


def _import_huginn_layout() -> ToLayout:
    from adadepth.models.looped.layouts import to_huginn

    return to_huginn


def _import_hrm_text_layout() -> ToLayout:
    from adadepth.models.looped.layouts import to_hrm_text

    return to_hrm_text


def _import_nanbeige_layout() -> ToLayout:
    from adadepth.models.looped.layouts import to_nanbeige

    return to_nanbeige


def _import_decoder_layout() -> ToLayout:
    from adadepth.models.looped.layouts import to_decoder

    return to_decoder


def _import_adoption() -> Adopt:
    from adadepth.models.looped.retrofit import build_from_decoder

    return build_from_decoder


FAMILY = Family(
    settings=LoopedSettings,
    title="Looped transformer",
    option="looped_mini",
    config=_import_config,
    heads={
        "language_model": _import_causal_lm,
        "classification": _import_classifier,
        "tagging": _import_tagger,
    },
    auto={"AutoModel": _import_model},
    encoder=_import_model,
    public={"retrofit": _import_retrofit},
    tokenizer=import_fast_tokenizer,
    movable_metrics=list_movable_gate_metrics,
    budget=Budgeting(
        fitted=(BudgetUnit.updates, BudgetUnit.macs),
        fits_target=True,
    ),
    depth="num_loops",
    fixed_depth=fix_loops,
    published=("ouro", "huginn_raven", "hrm_text", "nanbeige"),
    layouts={
        "ouro": _import_ouro_layout,
        "huginn": _import_huginn_layout,
        "hrm_text": _import_hrm_text_layout,
        "nanbeige": _import_nanbeige_layout,
        **dict.fromkeys(DECODERS, _import_decoder_layout),
    },
    adopts=_import_adoption,
    text="blocks",
    checks=(check_looped,),
    warnings=(warn_of_untrained_gate,),
)
