"""The public model classes of every family, and the tests of transformers that each of them skips, with reasons."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedConfig

import adadepth
from adadepth.models.albert.modeling import PlainAlbertModel
from adadepth.models.par_xl.settings import ParXLFields
from adadepth.models.stock_classifier.modeling import StockForSequenceClassification, StockForTokenClassification
from tests.ecosystem.model_tests import BATCH, LENGTH, ModelCase, draw_token_inputs
from tests.models_support import SMALL

TINY = SMALL | {"num_hidden_layers": 2}
# No example exits before the last step, as these tests expect of a model's depth, and nothing is random.
LATE_EXIT = {"exit_rule": "quantile:0.9"}

_STEPS = {
    "test_problem_types": "predictions of a step are one class or one value, never several classes: exit rules read "
    "a softmax; tests/unit/models has the two",
}
_NO_GENERATION = "the source distribution has no tests of generation; below tests/unit/models, "
_NO_BARE_MODEL = {"test_load_with_mismatched_shapes": "it has no model without a head, which that test loads"}

PAR_XL = {name: value for name, value in TINY.items() if name in ParXLFields.__dataclass_fields__}


def _draw_ids_and_mask(config: PreTrainedConfig) -> dict[str, Tensor]:
    return {name: value for name, value in draw_token_inputs(config).items() if name != "token_type_ids"}


def _select_models(*names: str) -> Callable[[], Iterable[type]]:
    return lambda: [getattr(adadepth, name) for name in names]


def _list_stock_models() -> Iterable[type]:
    config = _build_stock_config()
    return [head.select_class(config) for head in (StockForSequenceClassification, StockForTokenClassification)]


def _build_stock_config() -> transformers.PreTrainedConfig:
    sizes = {name: size for name, size in TINY.items() if name != "embedding_size"}
    return transformers.BertConfig(**sizes)


def _build_adalayers_config() -> adadepth.AdaLayersConfig:
    base = _build_stock_config()
    head = {"project_dim": 16, "attention_heads_num": 2, "dim_feedforward": 16}
    return adadepth.AdaLayersConfig(base_config=base, base_saved=True, freeze_base_model=False, **head)


def build_targets(model: type) -> dict[str, Tensor]:
    """Return labels of a batch for a head; empty for a model without one."""
    sequences, tokens = torch.tensor([0, 1, 1]), torch.ones(BATCH, LENGTH, dtype=torch.long)
    return {
        "ForSequenceClassification": {"labels": sequences},
        "ForClassification": {"labels": sequences},
        "ForMultipleChoice": {"labels": sequences},
        "ForTokenClassification": {"labels": tokens},
        "ForMaskedLM": {"labels": tokens},
        "ForCausalLM": {"labels": tokens},
        "ForPuzzles": {"labels": tokens},
        "ForPreTraining": {"labels": tokens, "sentence_order_label": sequences},
        "ForQuestionAnswering": {"start_positions": sequences, "end_positions": sequences + 1},
    }.get(model.__name__[model.__name__.find("For") :], {})


def _draw_vectors(config: transformers.PreTrainedConfig) -> dict[str, Tensor]:
    return {"inputs": torch.randn(BATCH, config.input_size)}


def _build_trm_config() -> adadepth.TrmConfig:
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 32, "cells": LENGTH, "prefix_length": 1}
    steps = {"cycles": 1, "reasoning_updates": 1, "num_steps": 2, "exit_rule": "fixed:2"}
    return adadepth.TrmConfig(vocab_size=TINY["vocab_size"], **sizes, **steps)


def _draw_cells(config: PreTrainedConfig) -> dict[str, Tensor]:
    return {"input_ids": draw_token_inputs(config)["input_ids"]}


def _build_looped_config() -> adadepth.LoopedConfig:
    sizes = {name: TINY[name] for name in ("vocab_size", "hidden_size", "num_attention_heads", "intermediate_size")}
    return adadepth.LoopedConfig(**sizes, core=1, num_loops=2)


def _build_early_exit_config(base: str = "llama") -> adadepth.EarlyExitConfig:
    sizes = {name: TINY[name] for name in ("vocab_size", "hidden_size", "num_attention_heads", "intermediate_size")}
    return adadepth.EarlyExitConfig(base=base, **sizes, num_hidden_layers=2, exit_heads="own", pad_token_id=0)


_EARLY_EXIT = _NO_BARE_MODEL | {
    "test_capture_outputs_decorator": "it asks for attentions, which the layers do not return",
    "test_correct_missing_keys": "the network without its head and norm is no checkpoint of the family",
}


def _build_routed_config() -> adadepth.RoutedConfig:
    sizes = {name: TINY[name] for name in ("vocab_size", "hidden_size", "num_attention_heads", "intermediate_size")}
    return adadepth.RoutedConfig(**sizes, num_hidden_layers=2, recursions=2, prelude=1, pad_token_id=0)


def _get_routed_shape(config: adadepth.RoutedConfig) -> PreTrainedConfig:
    """Return the configuration of the network, with one hidden state before and after every span."""
    shape = copy.deepcopy(config.base_config)
    shape.expected_num_hidden_layers = 1 + len(config.spans)
    return shape


CASES = [
    ModelCase(
        "AlbertAct",
        config=lambda: adadepth.AlbertActConfig(**TINY),
        models=_select_models(
            "AlbertActModel",
            "AlbertActForPreTraining",
            "AlbertActForMaskedLM",
            "AlbertActForSequenceClassification",
            "AlbertActForTokenClassification",
            "AlbertActForQuestionAnswering",
            "AlbertActForMultipleChoice",
        ),
        inputs=draw_token_inputs,
        labels={"AlbertActForPreTraining": lambda: build_targets(adadepth.AlbertActForPreTraining)},
    ),
    ModelCase(
        "PonderAlbert",
        config=lambda: adadepth.PonderAlbertConfig(**TINY, **LATE_EXIT),
        models=_select_models("PonderAlbertModel", "PonderAlbertForSequenceClassification"),
        inputs=draw_token_inputs,
        skipped=_STEPS,
    ),
    ModelCase(
        "MultiExitAlbert",
        config=lambda: adadepth.MultiExitAlbertConfig(**TINY, exit_rule="confidence:0.99"),
        models=_select_models("MultiExitAlbertModel", "MultiExitAlbertForSequenceClassification"),
        inputs=draw_token_inputs,
        skipped=_STEPS,
    ),
    ModelCase(
        "PlainAlbert",
        config=lambda: transformers.AlbertConfig(**TINY),
        models=lambda: [PlainAlbertModel, adadepth.PlainAlbertForSequenceClassification],
        inputs=draw_token_inputs,
    ),
    ModelCase(
        "StockClassifier",
        config=_build_stock_config,
        models=_list_stock_models,
        inputs=draw_token_inputs,
        skipped=dict.fromkeys(
            (
                "test_base_model_prefix_loads_base_weights",
                "test_correct_missing_keys",
            ),
            "a checkpoint without a head is refused: drawn at random, it would pass for trained",
        ),
    ),
    ModelCase(
        "AdaLayers",
        config=_build_adalayers_config,
        models=_select_models("AdaLayersForSequenceClassification", "AdaLayersForTokenClassification"),
        inputs=draw_token_inputs,
        skipped={
            **_NO_BARE_MODEL,
            "test_correct_missing_keys": "a bare base is no checkpoint of Adalayers: `from_base` makes a head on it",
        },
        shape=lambda config: config.base_config,
    ),
    ModelCase(
        "PonderRnn",
        config=lambda: adadepth.PonderRnnConfig(hidden_size=32, input_size=8, num_steps=2, **LATE_EXIT),
        models=_select_models("PonderRnnForClassification"),
        inputs=_draw_vectors,
        skipped=_STEPS
        | _NO_BARE_MODEL
        | {
            "test_model_get_set_embeddings": "its inputs are vectors",
            "test_hidden_states_output": "one state an example, and no tokens",
            "test_retain_grad_hidden_states_attentions": "one state an example, and no tokens",
        },
        attributes={"has_attentions": False, "test_resize_embeddings": False},
    ),
    ModelCase(
        "Trm",
        config=_build_trm_config,
        models=_select_models("TrmForPuzzles"),
        inputs=_draw_cells,
        labels={"TrmForPuzzles": lambda: build_targets(adadepth.TrmForPuzzles)},
        skipped=_NO_BARE_MODEL
        | {
            "test_init_weights_can_init_buffers": "the states before the first step are drawn buffers, as published",
            **dict.fromkeys(
                ("test_hidden_states_output", "test_retain_grad_hidden_states_attentions"),
                "a step has two states, answer and reasoning, and no attentions to show",
            ),
        },
        attributes={"has_attentions": False},
    ),
    ModelCase(
        "Looped",
        config=_build_looped_config,
        models=_select_models(
            "LoopedModel", "LoopedForCausalLM", "LoopedForSequenceClassification", "LoopedForTokenClassification"
        ),
        inputs=_draw_ids_and_mask,
        skipped={"test_generation_tester_mixin_inheritance": _NO_GENERATION + "looped/test_looped.py has some"},
        attributes={"has_attentions": False},
    ),
    ModelCase(
        "EarlyExit",
        config=_build_early_exit_config,
        models=_select_models(
            "EarlyExitForCausalLM", "EarlyExitForSequenceClassification", "EarlyExitForTokenClassification"
        ),
        inputs=_draw_ids_and_mask,
        skipped=_EARLY_EXIT
        | {"test_generation_tester_mixin_inheritance": _NO_GENERATION + "early_exit/test_early_exit.py has some"},
        attributes={"has_attentions": False},
        shape=lambda config: config.base_config,
    ),
    ModelCase(
        "Routed",
        config=_build_routed_config,
        models=_select_models("RoutedForCausalLM", "RoutedForTokenClassification"),
        inputs=_draw_ids_and_mask,
        skipped=_EARLY_EXIT
        | {"test_generation_tester_mixin_inheritance": _NO_GENERATION + "routed/test_generation.py has some"},
        attributes={"has_attentions": False},
        shape=_get_routed_shape,
    ),
    ModelCase(
        "EarlyExitMasked",
        config=lambda: _build_early_exit_config("bert"),
        models=_select_models("EarlyExitForMaskedLM"),
        inputs=draw_token_inputs,
        skipped=_EARLY_EXIT,
        attributes={"has_attentions": False},
        shape=lambda config: config.base_config,
    ),
    ModelCase(
        "ParXL",
        config=lambda: adadepth.ParXLConfig(**PAR_XL, architecture="ss"),
        models=_select_models("ParXLForCausalLM", "ParXLModel"),
        inputs=_draw_ids_and_mask,
        skipped={
            "test_generation_tester_mixin_inheritance": _NO_GENERATION + "test_par_xl_generation.py has some",
        },
    ),
    ModelCase(
        "ParXLSupernet",
        config=lambda: adadepth.ParXLConfig(**PAR_XL),
        models=_select_models("ParXLSupernet"),
        inputs=_draw_ids_and_mask,
        labels={"ParXLSupernet": lambda: build_targets(adadepth.ParXLForCausalLM)},
    ),
]
