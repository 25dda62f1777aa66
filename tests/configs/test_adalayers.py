"""The shipped configurations of Adalayers: baselines that hold on every root, and mistakes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from omegaconf import OmegaConf

from adadepth.errors import ConfigError
from tests.configs.support import BASELINES, CONFIGS, NEEDS, ROOTS, configured
from tests.marks_support import mostly_slow

ADALAYERS = [root for root in ROOTS if root.startswith("adalayers") and not root.endswith("single_pick")]
NO_TABLE = {"adalayers": NEEDS["dataset", "table"]}


@pytest.mark.parametrize(
    ("root", "baseline"),
    mostly_slow(
        itertools.product(ADALAYERS, BASELINES),
        lambda case: case[0] == ADALAYERS[0] or case[1] == BASELINES[0],
    ),
)
def test_what_a_baseline_sets_holds_on_every_root(root: str, baseline: str) -> None:
    found = configured(root, f"baseline={baseline}", *NO_TABLE.get(root, []))
    written: Any = OmegaConf.load(CONFIGS / "baseline" / f"{baseline}.yaml")
    assert found.matched_baseline is written.get("matched_baseline", True)
    is_global = not {"features", "matched_baseline"}.isdisjoint(written)
    model = written.get("model", {} if is_global else written)
    for name, value in model.items():
        assert getattr(found.model, str(name)) == value
    for name, value in written.get("trainer", {}).items():
        assert getattr(found.trainer, name) == value


@pytest.mark.parametrize(("overrides", "message"), [
    (["model.alpha_distribution=0"], "model.alpha_distribution=0.0: must be above 0"),
    (["model.distribution_cutoff=1"], "model.distribution_cutoff=1.0: must be at least 0 and below 1"),
    (["model.lambda_distribution_depth=-1"], "model.lambda_distribution_depth=-1.0: must be at least 0"),
    (["model.attention_heads_num=7"], "model.attention_heads_num=7: must divide model.project_dim=64"),
    (["model.freeze_base_model=false"], "set features.cache=false"),
    (["trainer.fsdp=true", "features.cache=false"], "trainer.fsdp=true: a frozen base stops in the middle of a pass"),
    (["features.limit_gib=0"], "features.limit_gib=0.0: must be above 0"),
    (["trainer.schedule=plateau"], "trainer.plateau_patience: trainer.schedule=plateau needs it"),
    (["trainer.plateau_patience=3"], "trainer.plateau_patience=3: read only with trainer.schedule=plateau"),
    (["trainer.early_stopping_threshold=0.1"], "read only with trainer.early_stopping_patience"),
    (["model=ponder_albert_mini", "dataset=wikiann", "tokenizer=trained"], "dataset=wikiann tags words"),
    (["exit_rules=[all]"], "exit_rules=['all']: read only"),
])  # fmt: skip
def test_a_mistake_is_told(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configured("adalayers_tiny", *overrides)
    assert message in str(caught.value)


@pytest.mark.parametrize("root", ADALAYERS)
def test_every_root_takes_the_small_base_and_the_short_training(root: str) -> None:
    config = configured(root, "model=adalayers_minilm", "trainer=head", *NO_TABLE.get(root, []))
    assert config.trainer.num_train_epochs == configured("adalayers_tiny").trainer.num_train_epochs
    assert config.trainer.plateau_patience is None
