"""The shipped configurations of Adalayers: the original's settings, and baselines that hold on every root."""

from __future__ import annotations

from typing import Any

import pytest
from omegaconf import OmegaConf

from adadepth.errors import ConfigError
from tests.configs.support import BASELINES, CONFIGS, NEEDS, ROOTS, configured

ADALAYERS = [root for root in ROOTS if root.startswith("adalayers") and not root.endswith("single_pick")]
NO_TABLE = {"adalayers": NEEDS["dataset", "table"]}

# k, heads, dropout, alpha, cutoff, positions, weight decay, batch, epochs, patience of the rate and of stopping.
PUBLISHED: dict[str, tuple[Any, ...]] = {
    "adalayers_imdb": (64, 16, 0.3, 70, 0.005, False, 1e-3, 400, 128, 5, 10),
    "adalayers_imdb_bart": (64, 16, 0.005, 70, 0.005, False, 1e-3, 196, 128, 5, 10),
    "adalayers_cola": (64, 8, 0.3, 64, 0.01, True, 0, 600, 256, 25, 30),
    "adalayers_cola_bart": (64, 8, 0.1, 64, 0.01, True, 0, 900, 256, 16, 32),
    "adalayers_cola_single_pick": (128, 8, 0.1, 64, 0.01, True, 0, 600, 256, 32, 64),
    "adalayers_conll": (128, 8, 0.2, 128, 0.01, True, 1e-3, 356, 256, 16, 40),
    "adalayers_conll_bart": (128, 8, 0.2, 128, 0.01, True, 1e-3, 356, 256, 16, 40),
    "adalayers_rte": (64, 8, 0.3, 256, 0, False, 0, 256, 128, 10, 10),
}


@pytest.mark.parametrize("root", PUBLISHED)
def test_a_root_has_the_originals_settings(root: str) -> None:
    config = configured(root)
    model: Any = config.model
    trainer = config.trainer
    assert PUBLISHED[root] == (
        model.project_dim, model.attention_heads_num, model.attention_dropout_prob, model.alpha_distribution,
        model.distribution_cutoff, model.add_pos_embeddings, trainer.weight_decay, trainer.per_device_train_batch_size,
        trainer.num_train_epochs, trainer.plateau_patience, trainer.early_stopping_patience,
    )  # fmt: skip
    assert (trainer.learning_rate, trainer.schedule, trainer.warmup_steps) == (1e-4, "plateau", 0)
    assert model.base_model == ("facebook/bart-large-cnn" if root.endswith("bart") else "FacebookAI/roberta-large")


def test_entropies_carry_what_the_original_effectively_used() -> None:
    for root, layers in (("adalayers_conll", 24), ("adalayers_conll_bart", 13), ("adalayers_rte", 24)):
        model: Any = configured(root).model
        assert model.lambda_distribution_entropy == pytest.approx(1e-3 / layers, rel=0.05)


@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize("root", ADALAYERS)
def test_what_a_baseline_sets_holds_on_every_root(root: str, baseline: str) -> None:
    found = configured(root, f"baseline={baseline}", *NO_TABLE.get(root, []))
    written: Any = OmegaConf.load(CONFIGS / "baseline" / f"{baseline}.yaml")
    model = written.get("model", {} if "features" in written else written)
    for name, value in model.items():
        assert getattr(found.model, str(name)) == value
    for name, value in written.get("trainer", {}).items():
        assert getattr(found.trainer, name) == value


def test_the_sets_that_select_are_not_the_tests() -> None:
    for root in ("adalayers_imdb", "adalayers_cola", "adalayers_rte"):
        dataset: Any = configured(root).dataset
        assert dataset.held_out == 0.1
        assert dataset.evaluation_splits[0] == "held_out"
        assert len(dataset.evaluation_splits) == 2


@pytest.mark.parametrize(("overrides", "message"), [
    (["model.alpha_distribution=0"], "model.alpha_distribution=0.0: must be above 0"),
    (["model.distribution_cutoff=1"], "model.distribution_cutoff=1.0: must be at least 0 and below 1"),
    (["model.lambda_distribution_depth=-1"], "model.lambda_distribution_depth=-1.0: must be at least 0"),
    (["model.attention_heads_num=7"], "model.attention_heads_num=7: must divide model.project_dim=64"),
    (["model.freeze_base_model=false"], "set features.cache=false"),
    (["features.limit_gib=0"], "features.limit_gib=0.0: must be above 0"),
    (["trainer.schedule=plateau"], "trainer.plateau_patience: trainer.schedule=plateau needs it"),
    (["trainer.plateau_patience=3"], "trainer.plateau_patience=3: read only with trainer.schedule=plateau"),
    (["trainer.early_stopping_threshold=0.1"], "read only with trainer.early_stopping_patience"),
    (["model=ponder_albert_mini", "dataset=wikiann", "tokenizer=trained"], "dataset=wikiann tags words"),
    (["exit_rules=[all]"], "exit_rules=['all']: read only with task=finetune mode=evaluate"),
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
