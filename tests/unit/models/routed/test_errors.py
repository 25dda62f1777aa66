"""Settings and calls that routed models refuse, each with a one-line error."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import DynamicCache

from adadepth.errors import ConfigError, DataError
from adadepth.models.routed.configuration import RoutedConfig
from adadepth.models.routed.settings import RoutedSettings, check_routing
from tests.unit.models.routed.routed_support import IDS, RECURSIONS, ROUTERS, SIZES, build_routed

MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"prelude": 1}, "prelude=1, coda=0: read only with recursions"),
    ({"coda": 2}, "prelude=0, coda=2: read only with recursions"),
    ({"recursions": 2, "routed_layers": [2]}, "routed_layers=[2]: read only without recursions"),
    ({"recursions": 2, "prelude": 2, "coda": 2}, "prelude + coda = 4: must be less than num_hidden_layers=4"),
    ({"recursions": 3, "sharing": "none"},
     "recursions=3: must divide the 4 layers between prelude and coda with sharing=none"),
    ({"routed_layers": [0, 2]}, "routed_layers=[0, 2]: layers are counted from 1 to 4"),
    ({"routed_layers": [2, 5]}, "routed_layers=[2, 5]: layers are counted from 1 to 4"),
    ({"routed_layers": [3, 2]}, "routed_layers=[3, 2]: must be ascending"),
    ({"routed_layers": [2, 2]}, "routed_layers=[2, 2]: must be ascending"),
    ({"routed_layers": []}, "routed_layers=[]: must have at least one layer"),
    ({"capacities": [0.0]}, "capacities=[0.0]: must be numbers above 0 and at most 1"),
    ({"capacities": [1.5]}, "capacities=[1.5]: must be numbers above 0 and at most 1"),
    ({"capacities": []}, "capacities=[]: must be numbers above 0 and at most 1"),
    ({"recursions": 3, "capacities": [1.0, 0.5]}, "capacities=[1.0, 0.5]: must be 1 number or 3"),
    ({"routed_layers": [2], "capacities": [1.0, 0.5]}, "capacities=[1.0, 0.5]: must be 1 number or 1"),
    ({"capacities": [1.0, 0.5, 0.2]}, "capacities=[1.0, 0.5, 0.2]: must be 1 number or 2"),
    ({"router": "threshold", "keys_and_values": "all", "capacities": [1.0, 0.5]},
     "capacities=[1.0, 0.5]: must be 1 number or 3"),
    ({"num_hidden_layers": 1}, "num_hidden_layers=1: no layer has a router; set routed_layers or recursions"),
    ({"recursions": 2, "capacities": [0.5, 1.0]}, "capacities=[0.5, 1.0]: must not grow from recursion to recursion"),
    ({"router": "token"}, "router=token: needs recursions"),
    ({"router": "threshold", "keys_and_values": "all", "recursions": 2},
     "recursions=2: must be null with router=threshold, which routes single layers"),
    ({"router": "threshold"}, "keys_and_values=selected: must be all with router=threshold"),
    ({"adapter_size": 3}, "adapter_size=3: read only with router=threshold"),
    ({"keys_and_values": "first"}, "keys_and_values=first: needs recursions with shared weights"),
    ({"keys_and_values": "first", "recursions": 2, "sharing": "none"},
     "keys_and_values=first: needs recursions with shared weights"),
    ({"causal_choice": "predictor", "router": "token", "recursions": 2},
     "causal_choice=predictor: read only with router=expert, not token"),
    ({"trains": "routers", "router": "random"}, "trains=routers: router=random has no routers"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "message"), MISTAKES, ids=[message[:50] for _, message in MISTAKES])
def test_contradictory_settings_are_refused(fields: dict[str, Any], message: str) -> None:
    sizes = {name: size for name, size in SIZES.items() if name != "pad_token_id"}
    assert message in list(check_routing(RoutedSettings(**{**sizes, **fields})))
    with pytest.raises(ConfigError) as refused:
        RoutedConfig(**{**SIZES, **fields})
    assert str(refused.value) == message


@pytest.mark.parametrize("name", ROUTERS)
def test_consistent_settings_are_accepted(name: str) -> None:
    assert list(check_routing(RoutedConfig(**{**SIZES, **ROUTERS[name]}))) == []


def test_integers_are_accepted_as_capacities() -> None:
    assert RoutedConfig(**SIZES, capacities=[1]).routed_capacities == [1, 1]


def test_invalid_calls_are_refused() -> None:
    model, documents = build_routed(**RECURSIONS), torch.zeros_like(IDS)
    with pytest.raises(ConfigError, match="routing=best: must be one of causal, topk"):
        model(IDS, routing="best")
    with pytest.raises(ConfigError, match="routing=topk: needs whole rows, and no cache"):
        model(IDS, routing="topk", use_cache=True)
    with pytest.raises(ConfigError, match="cache: a routed model needs a RoutedCache, not a DynamicCache"):
        model(IDS, past_key_values=DynamicCache())
    with pytest.raises(ConfigError, match="cache: has 3 rows, but the call has 1"):
        model(IDS[:1], past_key_values=model(IDS, use_cache=True).past_key_values)
    with pytest.raises(ConfigError, match="cache_implementation=static: routed models have a cache of their own"):
        model.generate(IDS, max_new_tokens=2, cache_implementation="static")
    with pytest.raises(DataError, match="documents: cannot be combined with a cache or position_ids"):
        model(IDS, documents=documents, use_cache=True)
    with pytest.raises(DataError, match="input_ids, inputs_embeds: give exactly one of them"):
        model()
    with pytest.raises(TypeError, match="RoutedForCausalLM got unexpected arguments: labls"):
        model(IDS, labls=IDS)


def test_ids_outside_of_the_vocabulary_are_refused() -> None:
    with pytest.raises(ValueError, match="must be from 0 to 52"):
        build_routed(**RECURSIONS)(IDS + 1000, use_cache=True)
