"""Budgets: which units a family has, and what is refused beside one, in one line."""

from __future__ import annotations

import pytest

from adadepth.errors import ConfigError
from tests.configs.support import configured

LAYERS = "adalayers_tiny"
SEARCH = "par_tiny"
MISTAKES = [
    (LAYERS, ["budget=depth"], "budget.unit=updates: of model=adalayers, training can hold deepest_layer,"),
    ("act_tiny", ["budget=blocks"], "budget.unit=deepest_layer: of model=albert_act, training can hold updates, macs"),
    (LAYERS, ["budget=blocks", "budget.target=2.5"], "budget.target=2.5: must be a whole number of blocks"),
    (LAYERS, ["budget=blocks", "budget.target=0.5"], "budget.target=0.5: must be from 1, in deepest_layer"),
    (LAYERS, ["budget=blocks", "model.distribution_cutoff=0"], "budget.unit=deepest_layer: no weight of a softmax"),
    (LAYERS, ["budget=blocks", "baseline=last_layer"], "model.pick_one_layer_only and model.freeze_distribution leave"),
    (LAYERS, ["budget=blocks", "baseline=uniform"], "model.pick_one_layer_only and model.freeze_distribution leave"),
    (LAYERS, ["budget=blocks", "baseline=depth_penalty"], "model.lambda_distribution_depth=0.02 is a price beside it"),
    (SEARCH, ["budget=latency", "search.latency_weight=1"], "budget.target=4: search.latency_weight=1 is a price"),
    ("par_network", ["budget=latency"], "budget.target=4: of par_xl only a search holds it"),
    (SEARCH, ["budget=depth"], "budget.unit=updates: of model=par_xl, training can hold milliseconds"),
    (
        LAYERS,
        ["mode=evaluate", "checkpoint=a", "budget.targets=[2.5]"],
        "budget.targets=2.5: must be a whole number of blocks",
    ),
    (
        LAYERS,
        ["mode=evaluate", "checkpoint=a", "budget.targets=[2]", "budget.unit=expected_layer"],
        "budget.unit=expected_layer: a trained model=adalayers is set in updates, deepest_layer",
    ),
]


@pytest.mark.parametrize(("root", "overrides", "message"), MISTAKES, ids=str)
def test_a_mistake_is_refused_in_one_line(root: str, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configured(root, *overrides)
    assert [line for line in str(caught.value).splitlines() if message in line], caught.value


@pytest.mark.parametrize(
    ("root", "overrides"),
    [
        (LAYERS, ["budget=blocks"]),
        (LAYERS, ["budget=layers"]),
        (LAYERS, ["budget=layers", "model.distribution_cutoff=0"]),
        (LAYERS, ["budget=blocks", "model.distribution_cutoff=0", "model.topk_distribution=2"]),
        (LAYERS, ["budget=work"]),
        (LAYERS, ["mode=evaluate", "checkpoint=a", "budget.targets=[2,3,4]"]),
        (SEARCH, ["budget=latency", "budget.target=2.5"]),
    ],
    ids=str,
)
def test_what_a_family_can_hold(root: str, overrides: list[str]) -> None:
    configured(root, *overrides)
