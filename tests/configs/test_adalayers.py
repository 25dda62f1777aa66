"""Shipped configurations of Adalayers: baselines that work on every root."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from omegaconf import OmegaConf

from tests.configs.support import BASELINES, CONFIGS, NEEDS, ROOTS, configured
from tests.marks_support import keep_one_quick, mark_mostly_slow

ADALAYERS = [root for root in ROOTS if root.startswith("adalayers") and not root.endswith("single_pick")]
NO_TABLE = {"adalayers": NEEDS["dataset", "table"]}


@pytest.mark.parametrize(
    ("root", "baseline"),
    mark_mostly_slow(
        itertools.product(ADALAYERS, BASELINES), lambda case: case[0] == ADALAYERS[0] and case[1] in BASELINES[::3]
    ),
)
def test_the_settings_of_a_baseline_apply_on_every_root(root: str, baseline: str) -> None:
    config = configured(root, f"baseline={baseline}", *NO_TABLE.get(root, []))
    written: Any = OmegaConf.load(CONFIGS / "baseline" / f"{baseline}.yaml")
    assert config.matched_baseline is written.get("matched_baseline", True)
    is_global = not {"features", "matched_baseline"}.isdisjoint(written)
    model = written.get("model", {} if is_global else written)
    for name, value in model.items():
        assert getattr(config.model, str(name)) == value
    for name, value in written.get("trainer", {}).items():
        assert getattr(config.trainer, name) == value


@pytest.mark.parametrize("root", keep_one_quick(9, ADALAYERS))
def test_every_root_takes_the_small_base_and_the_short_training(root: str) -> None:
    config = configured(root, "model=adalayers_minilm", "trainer=head", *NO_TABLE.get(root, []))
    assert config.trainer.num_train_epochs == configured("adalayers_tiny").trainer.num_train_epochs
    assert config.trainer.plateau_patience is None
