"""Advice on a depth that does not adapt, without settings that a run has already."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from adadepth.models.registry import family
from adadepth.training.advice import drop_budgets, drop_current_settings, drop_deeper_starts
from tests.configs.support import configured

ACT = (
    "budget.target=3 model.act_penalty=0 trains to a mean depth",
    "model.halt_bias_init=-2 starts deeper",
    "model.state_rule=graves model.recall=true helps tasks that need depth",
)
TARGET = "budget.target=3 model.prior=uniform model.target_halt_probability=null trains to a mean depth"
UNIFORM = ("model.prior=uniform", "model.target_halt_probability=null")


def select_advice(root: str, *overrides: str) -> list[str]:
    config = configured(root, *overrides)
    advice = family(config.model.name).advice
    assert advice is not None
    return drop_current_settings(advice.replace("DEPTH", "3"), config).split("; ")


def test_a_run_without_any_advised_setting_gets_all_advice() -> None:
    overrides = ("budget=none", "budget.target=null", "model.act_penalty=0.1", "model.halt_bias_init=-1")
    overrides += ("model.state_rule=single", "model.recall=false")
    assert select_advice("act_tiny", *overrides) == list(ACT)


def test_values_that_a_run_has_and_shallower_biases_are_left_out() -> None:
    overrides = ("model.act_penalty=0", "model.halt_bias_init=-3", "model.state_rule=graves", "model.recall=true")
    assert select_advice("act_tiny", *overrides) == ["budget.target=3 trains to a mean depth"]
    deep = select_advice("act_tiny", *overrides[:2], "model.state_rule=graves", "model.recall=false")
    assert deep[-1] == "model.recall=true helps tasks that need depth"
    assert select_advice("act_tiny", "model.halt_bias_init=-2.0")[1] != ACT[1], "the same bias"


def test_a_uniform_prior_is_not_advised_again() -> None:
    alone = "halting.alone=true model.pretrained=RUN/model trains only the halting head of this run"
    assert select_advice("ponder_tiny", *UNIFORM) == ["budget.target=3 trains to a mean depth", alone]
    first, second, _ = select_advice("ponder_tiny")
    assert first == "model.prior=uniform model.target_halt_probability=null keeps later steps trained"
    assert second == TARGET


def test_a_stored_model_has_the_default_where_its_run_had_null() -> None:
    settings = SimpleNamespace(model=SimpleNamespace(prior="uniform", target_halt_probability=0.1))
    advice = "model.prior=uniform model.target_halt_probability=null keeps later steps trained"
    assert drop_current_settings(advice, settings) == ""
    settings.model.prior = "geometric"
    assert drop_current_settings(advice, settings) == advice


@pytest.mark.parametrize("settings", [None, SimpleNamespace(model=None)])
def test_advice_without_overrides_is_kept(settings: SimpleNamespace | None) -> None:
    assert drop_current_settings("train longer, or with fewer cycles", settings) == "train longer, or with fewer cycles"


def test_a_budget_is_not_advised_to_a_run_with_one() -> None:
    assert drop_budgets("; ".join(ACT)) == "; ".join(ACT[1:])


def test_a_deeper_start_is_not_advised_at_full_depth() -> None:
    assert drop_deeper_starts("; ".join(ACT)) == "; ".join([ACT[0], ACT[2]])
