"""Descriptor of the PAR Transformer-XL."""

from collections.abc import Callable
from typing import Any

from adadepth.config import BudgetUnit, ModelConfig
from adadepth.models.par_xl.settings import ParXLSettings, check_budget, check_settings
from adadepth.models.registry import Budgeting, ConfigClass, Family, ModelClass, Searching
from adadepth.models.shared.tokenizer_classes import import_fast_tokenizer


def _import_config() -> ConfigClass:
    from adadepth.models.par_xl.configuration import ParXLConfig

    return ParXLConfig


def _import_causal_lm() -> ModelClass:
    from adadepth.models.par_xl.modeling import ParXLForCausalLM

    return ParXLForCausalLM


def _import_supernet() -> ModelClass:
    from adadepth.models.par_xl.modeling import ParXLSupernet

    return ParXLSupernet


def _import_model() -> ModelClass:
    from adadepth.models.par_xl.blocks import ParXLModel

    return ParXLModel


def _import_derive() -> Callable[..., Any]:
    from adadepth.models.par_xl.latency import derive

    return derive


def _import_settle_cutoffs() -> Callable[[Any, Callable[[], Any]], ModelConfig]:
    from adadepth.models.par_xl.configuration import settle_cutoffs

    return settle_cutoffs


def _import_operation_costs() -> Callable[..., list[float]]:
    from adadepth.models.par_xl.latency import operation_costs

    return operation_costs


def _import_baseline_architectures() -> Callable[[str, Callable[[str], float], int, int], dict[str, str]]:
    from adadepth.models.par_xl.configuration import baseline_architectures

    return baseline_architectures


def _import_architecture_macs() -> Callable[..., float]:
    from adadepth.models.par_xl.configuration import architecture_macs

    return architecture_macs


def _import_model_latencies() -> Callable[..., dict[str, dict[str, float]]]:
    from adadepth.models.par_xl.latency import model_latencies

    return model_latencies


FAMILY = Family(
    settings=ParXLSettings,
    title="PAR-XL",
    option="par_xl_mini",
    config=_import_config,
    heads={"language_model": _import_causal_lm, "search": _import_supernet},
    auto={"AutoModel": _import_model},
    public={"derive_par_xl": _import_derive},
    tokenizer=import_fast_tokenizer,
    budget=Budgeting(trained=(BudgetUnit.milliseconds,), checks=(check_budget,)),
    depth="num_hidden_layers",
    fixed_depth="has its depth in model.architecture; its control is the stage compare of an architecture search, "
    "with fixed architectures of equal compute",
    settle=_import_settle_cutoffs,
    search=Searching(
        setting="architecture",
        memory="memory_length",
        costs=_import_operation_costs,
        derive=_import_derive,
        baselines=_import_baseline_architectures,
        macs=_import_architecture_macs,
        time=_import_model_latencies,
    ),
    reads=frozenset({"search", "context"}),
    checks=(check_settings,),
)
