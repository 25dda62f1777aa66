"""Every model is a `DepthModel`, its traces are what it declares, and it has the capabilities of its family."""

from __future__ import annotations

import inspect

import pytest
import torch
from transformers import AlbertConfig, BertConfig

from adadepth import (
    AlbertActForMultipleChoice,
    AlbertActForPreTraining,
    AlbertActForQuestionAnswering,
    AlbertActForSequenceClassification,
    AlbertActForTokenClassification,
    LoopedForSequenceClassification,
    PlainAlbertForSequenceClassification,
    PonderRnnConfig,
    PonderRnnForClassification,
    StockForSequenceClassification,
    StockForTokenClassification,
    TrmConfig,
    TrmForPuzzles,
)
from adadepth.families import contract
from adadepth.families.contract import DepthModel
from adadepth.families.members import check_family, check_model
from adadepth.families.registry import families, family
from tests.models_support import SMALL, padded_batch, small_config, small_multi_exit, small_ponder
from tests.unit.families.adalayers_support import small_mixture
from tests.unit.families.looped.looped_support import small as small_looped
from tests.unit.families.par_xl_support import small_network, small_supernet, words


def small_stock(head):
    """A BERT of transformers."""
    config = BertConfig(**{name: value for name, value in SMALL.items() if name != "embedding_size"})
    return head.for_type(config)(config)


ACT = {
    "DepthKnob", "HoldsBudget", "executions", "one_depth", "soft_depth", "force_depth", "shows_states",
    "least_activations",
}  # fmt: skip
PONDER = {"DepthKnob", "HoldsBudget", "exit_signals", "prior_facts", "soft_depth", "train_halting_alone"}
TINY_PUZZLES = {
    "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "cells": 9, "prefix_length": 1, "cycles": 1,
    "reasoning_updates": 1, "num_steps": 3,
}  # fmt: skip
READS = {"exit_signals", "readout_work"}
# Model -> its mixins, and which members with a default it has of its own.
MODELS = {
    "act pretraining": (lambda: AlbertActForPreTraining(small_config()), ACT),
    "act classification": (lambda: AlbertActForSequenceClassification(small_config()), ACT | READS),
    "act tagging": (lambda: AlbertActForTokenClassification(small_config()), ACT | READS),
    "act spans": (lambda: AlbertActForQuestionAnswering(small_config()), ACT),
    "act choices": (lambda: AlbertActForMultipleChoice(small_config()), ACT),
    "albert": (lambda: PlainAlbertForSequenceClassification(AlbertConfig(**SMALL)), {"least_activations"}),
    "stock classification": (lambda: small_stock(StockForSequenceClassification), {"take_classes", "one_depth"}),
    "stock tagging": (lambda: small_stock(StockForTokenClassification), {"take_classes", "one_depth"}),
    "ponder": (small_ponder, PONDER | {"least_activations"}),
    "exits": (small_multi_exit, {"exit_signals", "DepthKnob", "least_activations"}),
    "mixture": (
        small_mixture,
        {
            "ReadsCachedStates", "MixesLayers", "DepthKnob", "HoldsBudget", "set_step", "learning_rate_multipliers",
            "soft_depth", "expected_depth", "limit_depth", "no_weight_decay",
        },
    ),
    "recurrent": (
        lambda: PonderRnnForClassification(PonderRnnConfig(input_size=6, hidden_size=8, num_steps=4)),
        PONDER | {"refills"},
    ),
    "puzzles": (
        lambda: TrmForPuzzles(TrmConfig(**TINY_PUZZLES)),
        {"DepthKnob", "exit_signals", "trains_in_slots", "refills", "descending_by_sign", "least_activations"},
    ),
    "looped": (
        lambda: small_looped(LoopedForSequenceClassification, num_labels=2),
        {"DepthKnob", "exit_signals", "readout_work", "reading_work", "set_step", "least_activations"},
    ),
    "network": (small_network, {"Remembers", "least_activations"}),
    "supernet": (
        small_supernet,
        {
            "Remembers", "LearnsGates", "HoldsBudget", "set_step", "expected_depth", "latency", "least_activations",
        },
    ),
}  # fmt: skip
MIXINS = {
    name: kind
    for name, kind in vars(contract).items()
    if isinstance(kind, type) and issubclass(kind, DepthModel) and kind is not DepthModel
}
DEFAULTS = {
    name: member
    for base in (DepthModel, contract.HoldsBudget)
    for name, member in vars(base).items()
    if not name.startswith("_") and not getattr(getattr(member, "fget", member), "is_required", False)
}


def own_of(model):
    """The mixins of a model, and the members with a default that it has of its own."""
    mixins = {name for name, kind in MIXINS.items() if isinstance(model, kind)}
    members = {name for name in DEFAULTS if hasattr(model, name)}
    return mixins | {name for name in members if inspect.getattr_static(type(model), name) is not DEFAULTS[name]}


def inputs_of(name):
    """A batch without targets."""
    if name == "recurrent":
        return {"inputs": torch.randn(3, 6)}
    if name == "puzzles":
        return {"input_ids": torch.ones(2, 9, dtype=torch.long)}
    if name in ("network", "supernet"):
        return {"input_ids": words()}
    if name == "looped":
        return {"input_ids": padded_batch()["input_ids"] % 53}
    if name == "mixture":
        return {"input_ids": words() % 20}
    batch = padded_batch()
    return {key: values.unsqueeze(1) for key, values in batch.items()} if name == "act choices" else batch


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_what_it_declares(name):
    model = MODELS[name][0]().eval()
    assert isinstance(model, DepthModel)
    with torch.no_grad():
        trace = model(**inputs_of(name)).trace
    assert (trace.unit, trace.max_updates) == (model.depth_unit, model.max_updates)
    assert trace.updates.max() <= model.max_updates
    assert model.longest_sequence is None or model.longest_sequence >= inputs_of(name)["input_ids"].shape[-1]
    table = None if model.vocabulary_size is None else model.get_input_embeddings()
    assert isinstance(table, torch.nn.Embedding | None)
    assert table is None or table.num_embeddings == model.vocabulary_size
    assert 0 < model.price(trace).adaptive <= model.price(trace).full


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_the_capabilities_of_its_family_and_no_other(name):
    make, expected = MODELS[name]
    model = make()
    assert own_of(model) == expected
    check_model(model, name)


def test_every_mixin_and_every_default_is_needed():
    assert set().union(*(expected for _, expected in MODELS.values())) == set(MIXINS) | set(DEFAULTS)
    assert len(MIXINS) <= 7


@pytest.mark.parametrize("name", families())
def test_a_family_is_what_the_contract_asks_for(name):
    check_family(family(name))


def test_one_depth_is_the_fixed_or_the_forced_one():
    model = AlbertActForSequenceClassification(small_config())
    assert model.one_depth is None
    model.force_depth(3)
    assert model.one_depth == 3
    model.force_depth(None)
    assert model.one_depth is None
    assert AlbertActForSequenceClassification(small_config(fixed_depth=2)).one_depth == 2
