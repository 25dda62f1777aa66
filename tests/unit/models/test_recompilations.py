"""Recompilations of a compiled model: once when its depth is fitted, not for every threshold."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from adadepth import LoopedConfig
from adadepth.errors import ConfigError
from adadepth.halting.exit_rules import Margin, Patience
from tests.unit.models.every_model_support import BUILD, build_training_batch
from tests.unit.models.routed.routed_support import IDS, ROUTERS, build_routed

# The levels of `fit_level`, which tries at most 14; at one half, a bias of choices is 0.
LEVELS = [step / 14 for step in range(1, 14)] + [1 - 1e-6]
KNOBS: dict[str, Any] = {
    name: BUILD[name] for name in ("act classification", "act tagging", "ponder", "exits", "recurrent", "early exit")
} | {f"routed {name}": lambda name=name: build_routed(**ROUTERS[name]) for name in ("expert all", "token all")}


@pytest.mark.slow
@pytest.mark.parametrize("name", KNOBS)
def test_a_fit_compiles_a_model_at_most_twice(name: str) -> None:
    torch.compiler.reset()
    torch.manual_seed(0)
    model, graphs, depths = KNOBS[name]().eval(), 0, set()
    batch = {"input_ids": IDS} if name.startswith("routed") else build_training_batch(name)

    def count(graph: Any, _: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return graph.forward

    compiled = torch.compile(lambda: model(**batch), fullgraph=True, backend=count)
    with torch.no_grad():
        for level in LEVELS:
            model.set_depth_level(level)
            expected, output = model(**batch), compiled()
            torch.testing.assert_close(output.logits, expected.logits)
            assert output.trace.updates.equal(expected.trace.updates)
            depths.add(float(expected.trace.updates.sum()))
    assert len(depths) > 1, "the levels change nothing"
    assert graphs <= 2


def test_a_configuration_parses_its_exit_rule_and_stores_the_text() -> None:
    config = LoopedConfig(exit_rule="margin:0.25")
    assert config.parsed_exit_rule == Margin(0.25)
    config.exit_rule = "patience:3"
    assert config.parsed_exit_rule == Patience(3)
    with pytest.raises(ConfigError, match="'patienc'"):
        config.exit_rule = "patienc"
    stored = LoopedConfig(exit_rule="margin:0.25").to_dict()
    assert stored["exit_rule"] == "margin:0.25"
    assert "parsed_exit_rule" not in stored
    assert LoopedConfig.from_dict(stored).parsed_exit_rule == Margin(0.25)
    config.exit_rule = None
    assert config.parsed_exit_rule is None
