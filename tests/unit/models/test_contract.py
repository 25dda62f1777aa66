"""The contract of `DepthModel`: declared traces and capabilities of every model."""

from __future__ import annotations

import inspect

import pytest
import torch
from transformers import PreTrainedModel

from adadepth import (
    AlbertActForSequenceClassification,
)
from adadepth.models import contract
from adadepth.models.contract import DepthModel
from adadepth.models.registry import families, family
from adadepth.models.validation import check_family, check_model
from tests.marks_support import keep_one_quick
from tests.models_support import make_small_config
from tests.unit.models.every_model_support import BUILD, build_inputs

ACT = {
    "DepthKnob", "HoldsBudget", "ReplaysHalting", "executions", "one_depth", "soft_depth", "force_depth",
    "build_state_maps", "shows_states", "least_activations", "halting_bias", "list_heads", "freeze_untrained",
}  # fmt: skip
PONDER = {
    "DepthKnob",
    "HoldsBudget",
    "halting_bias",
    "exit_signals",
    "prior_facts",
    "soft_depth",
    "train_halting_alone",
}
READS = {"exit_signals", "readout_work"}
# Model -> its mixins, and the members whose default it overrides.
OWN = {
    "act pretraining": ACT,
    "act classification": ACT | READS | {"exit_rule_problem"},
    "act tagging": ACT | READS | {"exit_rule_problem"},
    "act spans": ACT,
    "act choices": ACT,
    "albert": {"least_activations", "one_depth"},
    "stock classification": {"take_classes", "take_padding", "one_depth"},
    "stock tagging": {"take_classes", "take_padding", "one_depth"},
    "ponder": PONDER | {"least_activations"},
    "exits": {"exit_signals", "step_loss_problem", "DepthKnob", "least_activations"},
    "mixture": {
        "ReadsCachedStates", "MixesLayers", "DepthKnob", "HoldsBudget", "set_step", "learning_rate_multipliers",
        "soft_depth", "expected_depth", "limit_depth", "no_weight_decay",
    },
    "recurrent": PONDER | {"refills", "list_heads"},
    "puzzles": {
        "DepthKnob", "build_state_maps", "exit_signals", "trains_in_slots", "refills", "descending_by_sign",
        "least_activations", "list_heads",
    },
    "looped": {
        "DepthKnob", "build_state_maps", "exit_signals", "readout_work", "reading_work", "set_step",
        "least_activations", "list_heads", "freeze_untrained", "prior_facts", "step_loss_problem",
    },
    "early exit": {
        "DepthKnob", "exit_signals", "readout_work", "reading_work", "set_step", "take_padding", "freeze_untrained",
        "drop_exits", "list_copied_layers", "step_loss_problem",
    },
    "network": {"Remembers", "least_activations"},
    "supernet": {
        "Remembers", "LearnsGates", "HoldsBudget", "set_step", "expected_depth", "latency", "least_activations",
    },
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
    if not name.startswith("_")
    and not hasattr(PreTrainedModel, name)
    and not getattr(getattr(member, "fget", member), "is_required", False)
}


def list_capabilities(model):
    """Return the mixins of a model and the members whose default it overrides."""
    mixins = {name for name, kind in MIXINS.items() if isinstance(model, kind)}
    members = {name for name in DEFAULTS if hasattr(model, name)}
    return mixins | {name for name in members if inspect.getattr_static(type(model), name) is not DEFAULTS[name]}


@pytest.mark.parametrize("name", keep_one_quick(2, OWN))
def test_a_model_matches_its_declaration(name):
    model = BUILD[name]().eval()
    assert isinstance(model, DepthModel)
    with torch.no_grad():
        trace = model(**build_inputs(name)).trace
    assert (trace.unit, trace.max_updates) == (model.depth_unit, model.max_updates)
    assert trace.updates.max() <= model.max_updates
    assert model.longest_sequence is None or model.longest_sequence >= build_inputs(name)["input_ids"].shape[-1]
    table = None if model.vocabulary_size is None else model.get_input_embeddings()
    assert isinstance(table, torch.nn.Embedding | None)
    assert table is None or table.num_embeddings == model.vocabulary_size
    assert 0 < model.price(trace).adaptive <= model.price(trace).full


@pytest.mark.parametrize("name", OWN)
def test_a_model_has_exactly_the_capabilities_of_its_family(name):
    make, expected = BUILD[name], OWN[name]
    model = make()
    assert list_capabilities(model) == expected
    check_model(model, name)


def test_every_mixin_and_every_default_is_used():
    assert set().union(*OWN.values()) == set(MIXINS) | set(DEFAULTS)
    assert len(MIXINS) <= 7


@pytest.mark.parametrize("name", families())
def test_a_family_satisfies_the_contract(name):
    check_family(family(name))


def test_one_depth_is_the_fixed_or_forced_depth():
    model = AlbertActForSequenceClassification(make_small_config())
    assert model.one_depth is None
    model.force_depth(3)
    assert model.one_depth == 3
    model.force_depth(None)
    assert model.one_depth is None
    assert AlbertActForSequenceClassification(make_small_config(fixed_depth=2)).one_depth == 2
