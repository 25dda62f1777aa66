"""Every model is a `DepthModel`, its traces are what it declares, and it has the capabilities of its family."""

from __future__ import annotations

import pytest
import torch
from transformers import AlbertConfig, BertConfig

from adadepth import (
    AlbertActForMultipleChoice,
    AlbertActForPreTraining,
    AlbertActForQuestionAnswering,
    AlbertActForSequenceClassification,
    AlbertActForTokenClassification,
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
from tests.models_support import SMALL, padded_batch, small_config, small_multi_exit, small_ponder
from tests.unit.families.adalayers_support import small_mixture
from tests.unit.families.par_xl_support import small_network, small_supernet, words


def small_stock(head):
    """A BERT of transformers."""
    config = BertConfig(**{name: value for name, value in SMALL.items() if name != "embedding_size"})
    return head.for_type(config)(config)


ACT = {
    "HasExecutions", "HasOneDepth", "HasDepthKnob", "CountsDepth", "HasSoftDepth", "ForcesDepth", "ShowsStates",
    "KnowsActivations",
}  # fmt: skip
PONDER = {"PredictsEveryStep", "HasHaltingPrior", "HasDepthKnob", "CountsDepth", "HasSoftDepth", "TrainsHaltingAlone"}
TINY_PUZZLES = {
    "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "cells": 9, "prefix_length": 1, "cycles": 1,
    "reasoning_updates": 1, "num_steps": 3,
}  # fmt: skip
READS = {"PredictsEveryStep", "PricesReadouts"}
# Model -> what it can do besides.
MODELS = {
    "act pretraining": (lambda: AlbertActForPreTraining(small_config()), ACT),
    "act classification": (lambda: AlbertActForSequenceClassification(small_config()), ACT | READS),
    "act tagging": (lambda: AlbertActForTokenClassification(small_config()), ACT | READS),
    "act spans": (lambda: AlbertActForQuestionAnswering(small_config()), ACT),
    "act choices": (lambda: AlbertActForMultipleChoice(small_config()), ACT),
    "albert": (lambda: PlainAlbertForSequenceClassification(AlbertConfig(**SMALL)), {"KnowsActivations"}),
    "stock classification": (lambda: small_stock(StockForSequenceClassification), {"HasOwnClasses", "HasOneDepth"}),
    "stock tagging": (lambda: small_stock(StockForTokenClassification), {"HasOwnClasses", "HasOneDepth"}),
    "ponder": (small_ponder, PONDER | {"KnowsActivations"}),
    "exits": (small_multi_exit, {"PredictsEveryStep", "HasDepthKnob", "KnowsActivations"}),
    "mixture": (
        small_mixture,
        {
            "FollowsSchedule", "SpeedsUpParameters", "ReadsCachedStates", "MixesLayers", "HasDepthKnob", "CountsDepth",
            "HasSoftDepth", "HasExpectedDepth", "LimitsDepth", "SparesParameters",
        },
    ),
    "recurrent": (
        lambda: PonderRnnForClassification(PonderRnnConfig(input_size=6, hidden_size=8, num_steps=4)),
        PONDER | {"Refills"},
    ),
    "puzzles": (
        lambda: TrmForPuzzles(TrmConfig(**TINY_PUZZLES)),
        {"PredictsEveryStep", "HasDepthKnob", "TrainsInSlots", "Refills", "DescendsBySign", "KnowsActivations"},
    ),
    "network": (small_network, {"Remembers", "KnowsActivations"}),
    "supernet": (
        small_supernet,
        {
            "Remembers", "LearnsGates", "SearchesArchitecture", "FollowsSchedule", "CountsDepth", "HasExpectedDepth",
            "KnowsActivations",
        },
    ),
}  # fmt: skip
CAPABILITIES = {
    name: kind
    for name, kind in vars(contract).items()
    if getattr(kind, "_is_runtime_protocol", False) and kind.__module__ == contract.__name__ and kind is not DepthModel
}


def inputs_of(name):
    """A batch without targets."""
    if name == "recurrent":
        return {"inputs": torch.randn(3, 6)}
    if name == "puzzles":
        return {"input_ids": torch.ones(2, 9, dtype=torch.long)}
    if name in ("network", "supernet"):
        return {"input_ids": words()}
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
    assert (trace.unit, trace.max_depth) == (model.depth_unit, model.max_updates)
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
    assert {capability for capability, kind in CAPABILITIES.items() if isinstance(model, kind)} == expected


def test_every_capability_is_one_of_some_model():
    assert set().union(*(expected for _, expected in MODELS.values())) == set(CAPABILITIES)


def test_one_depth_is_the_fixed_or_the_forced_one():
    model = AlbertActForSequenceClassification(small_config())
    assert model.one_depth is None
    model.force_depth(3)
    assert model.one_depth == 3
    model.force_depth(None)
    assert model.one_depth is None
    assert AlbertActForSequenceClassification(small_config(fixed_depth=2)).one_depth == 2
