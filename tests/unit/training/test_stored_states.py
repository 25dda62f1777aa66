"""Stored states of a checkpoint that do not fit the objects they replace, refused before anything is loaded."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from adadepth.config import TrainerConfig
from adadepth.config.experiment import Optimizer
from adadepth.training.optimization import build_optimizer, build_schedule
from adadepth.training.stored_states import (
    check_completeness,
    check_optimizer_state,
    check_random_state,
    check_schedule,
    difference,
    parameter_names,
    stateless_parameters,
)


class _Model(nn.Module):
    """A matrix, a vector, and a matrix that nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.unread = nn.Linear(3, 2), nn.Linear(2, 2, bias=False)

    def no_weight_decay(self) -> set[str]:
        return set()

    def list_heads(self) -> set[str]:
        return set()

    def learning_rate_multipliers(self) -> dict[str, float]:
        return {}

    def descending_by_sign(self) -> set[str]:
        return set()


def make_updated_optimizer(kind: Optimizer, updates: int = 2) -> tuple[_Model, torch.optim.Optimizer]:
    model = _Model()
    optimizer = build_optimizer(model, TrainerConfig(optimizer=kind))
    for _ in range(updates):
        model.layer(torch.ones(4, 3)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


Damage = Callable[[dict[str, Any]], object]
_MATRIX, _UNREAD, _BIAS = 0, 1, 2
DAMAGES: dict[str, tuple[Damage, str]] = {
    "longer moment": (lambda s: s["state"][_MATRIX].update(exp_avg=torch.zeros(200, 300)), "layer.weight.*shape"),
    "shorter moment": (lambda s: s["state"][_MATRIX].update(exp_avg_sq=torch.zeros(1)), "layer.weight.*shape"),
    "whole numbers": (
        lambda s: s["state"][_MATRIX].update(exp_avg=torch.zeros(2, 3, dtype=torch.int64)),
        "layer.weight.*int64",
    ),
    "sparse": (lambda s: s["state"][_MATRIX].update(exp_avg=torch.zeros(2, 3).to_sparse()), "layer.weight.*exp_avg"),
    "NaN": (lambda s: s["state"][_BIAS]["exp_avg"].fill_(math.nan), "layer.bias.*number"),
    "a text": (lambda s: s["state"][_BIAS].update(exp_avg="x"), "layer.bias.*'x'"),
    "a moment is missing": (lambda s: s["state"][_BIAS].pop("exp_avg"), "layer.bias.*needed is"),
    "a moment too many": (lambda s: s["state"][_BIAS].update(other=torch.zeros(2)), "layer.bias.*other"),
    "a state that is none": (lambda s: s["state"].update({_BIAS: [1]}), "layer.bias"),
    "a state missing": (lambda s: s["state"].pop(_MATRIX), "layer.weight' is missing"),
    "a state too many": (lambda s: s["state"].update({7: s["state"][_BIAS]}), "parameter 7"),
    "a parameter by text": (lambda s: s["state"].update(x=s["state"][_BIAS]), "parameter 'x'"),
    "rate is a text": (lambda s: s["param_groups"][0].update(lr="high"), "group 0: lr .*'high'"),
    "rate is infinite": (lambda s: s["param_groups"][0].update(lr=math.inf), "group 0: lr .*inf"),
    "rate below 0": (lambda s: s["param_groups"][1].update(lr=-1.0), "group 1: lr .*-1"),
    "other betas": (lambda s: s["param_groups"][0].update(betas=(0.1, 0.2)), "group 0: betas .*0.1"),
    "other decay": (lambda s: s["param_groups"][0].update(weight_decay=9.0), "group 0: weight_decay is 9"),
    "decay is a text": (lambda s: s["param_groups"][0].update(weight_decay="x"), "group 0: weight_decay"),
    "parameters twice": (lambda s: s["param_groups"][0].update(params=[0, 0]), "group 0 must have the parameters"),
    "a group less": (lambda s: s["param_groups"].pop(), "the stored state has 1 parameter groups, but 2 are needed"),
    "no groups": (lambda s: s.update(param_groups=None), "no optimizer state"),
    "no states": (lambda s: s.update(state=[]), "no optimizer state"),
}


@pytest.mark.parametrize("kind", list(Optimizer))
def test_an_unchanged_state_is_accepted(kind: Optimizer) -> None:
    """Check an optimizer without any update, as in a resumed run, and the one that wrote the state."""
    model, optimizer = make_updated_optimizer(kind)
    stored, stateless = copy.deepcopy(optimizer.state_dict()), stateless_parameters(optimizer)
    for updates in (0, 1):
        fresh, other = make_updated_optimizer(kind, updates)
        names = parameter_names(fresh, other)
        assert set(names) == dict(model.named_parameters()).keys()
        check_optimizer_state(other, stored, names)
        check_completeness(stored, stateless, names)
        assert [names[number] for number in stateless] == ["unread.weight"]


# Muon stores one momentum of a matrix, and its first group has no betas.
_OF_MUON: dict[str, tuple[Damage, str]] = {
    "longer moment": (
        lambda s: s["state"][_MATRIX].update(momentum_buffer=torch.zeros(200, 300)),
        "layer.weight.*shape",
    ),
    "shorter moment": (lambda s: s["state"][_MATRIX].update(momentum_buffer=torch.zeros(1)), "layer.weight.*shape"),
    "whole numbers": (
        lambda s: s["state"][_MATRIX].update(momentum_buffer=torch.zeros(2, 3, dtype=torch.int64)),
        "layer.weight.*int64",
    ),
    "other betas": (lambda s: s["param_groups"][0].update(momentum=0.1), "group 0: momentum .*0.1"),
}


@pytest.mark.parametrize(
    ("kind", "name"), [*((Optimizer.adamw, name) for name in DAMAGES), *((Optimizer.muon, name) for name in _OF_MUON)]
)
def test_a_state_that_does_not_fit_names_the_parameter(kind: Optimizer, name: str) -> None:
    model, optimizer = make_updated_optimizer(kind)
    stored, stateless = copy.deepcopy(optimizer.state_dict()), stateless_parameters(optimizer)
    damage, words = (_OF_MUON if kind is Optimizer.muon else {}).get(name, DAMAGES[name])
    damage(stored)
    names = parameter_names(model, optimizer)

    def check() -> None:
        check_optimizer_state(optimizer, stored, names)
        check_completeness(stored, stateless, names)

    with pytest.raises(ValueError, match=words) as caught:
        check()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda s: s.update(last_epoch=10**9), "last_epoch is 1000000000"),
        (lambda s: s.update(base_lrs=[1.0, 1.0]), "base_lrs"),
        (lambda s: s.update(base_lrs=["x", "x"]), "base_lrs.0"),
        (lambda s: s.update(_last_lr=[0.1]), "_last_lr"),
        (lambda s: s.update(_last_lr=[math.nan, math.nan]), "_last_lr.0"),
        (lambda s: s.update(step=5), "step"),
        (lambda s: s.update(lr_lambdas=[{"func": 1}, {}]), "lr_lambdas.0"),
        (lambda s: s.update(_step_count=True), "_step_count"),
    ],
)
def test_the_schedule_of_another_run_is_refused(damage: Damage, words: str) -> None:
    _, optimizer = make_updated_optimizer(Optimizer.adamw)
    schedule = build_schedule(optimizer, TrainerConfig(), 10)
    for _ in range(3):
        optimizer.step()
        schedule.step()
    stored = copy.deepcopy(schedule.state_dict())
    live = build_schedule(make_updated_optimizer(Optimizer.adamw)[1], TrainerConfig(), 10)
    check_schedule(live, stored, 3, may_skip=False)
    damage(stored)
    with pytest.raises(ValueError, match=words):
        check_schedule(live, stored, 3, may_skip=False)


@pytest.mark.parametrize("position", [-1, 625, 10**9, "x", True])
def test_a_position_beyond_the_random_numbers_is_refused(position: object) -> None:
    """Check the position, since NumPy reads at any and crashes the process."""
    kind, numbers, _, has_gauss, gauss = np.random.get_state()  # type: ignore[misc]
    rng = {"python": (), "cpu": torch.get_rng_state(), "numpy": (kind, numbers, 624, has_gauss, gauss)}
    check_random_state(rng)
    with pytest.raises(ValueError, match="position must be 0 to 624"):
        check_random_state({**rng, "numpy": (kind, numbers, position, has_gauss, gauss)})


def test_a_difference_is_named_with_its_key() -> None:
    live = {"a": [1, 2.0], "b": {"c": True, "d": "x", "e": torch.zeros(2)}, "best": math.inf, "none": None}
    assert difference(copy.deepcopy(live), live) is None
    assert difference({"best": 3, "none": 7}, live) is None
    assert difference({"a": [1, "x"]}, live) == "a.1 must be a number, not 'x'"
    assert difference({"b": {"c": 1}}, live) == "b.c must be true or false, not 1"
    assert difference({"b": {"e": torch.zeros(3)}}, live, "s") == (
        "s.b.e must be a tensor of shape (2,) and torch.float32, not a tensor of shape (3,) and torch.float32"
    )
    assert difference({"f": 1}, live) == "it has 'f', which is unknown"
