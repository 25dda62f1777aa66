"""Sequences of a second family whose tokens halt: nothing that evaluates it asks for its name."""

from __future__ import annotations

import torch

from adadepth import AlbertActConfig, AlbertActForSequenceClassification
from adadepth.data import load_labelled_data
from adadepth.tasks import exit_study
from adadepth.tasks.finetune import finetuning_parts
from adadepth.training.arguments import training_arguments
from adadepth.training.trainer import DepthTrainer
from tests.configs.support import configured
from tests.training.finetune_support import SMALL


class OtherConfig(AlbertActConfig):
    """Nobody knows it."""

    model_type = "other_tokens"


class OtherClassifier(AlbertActForSequenceClassification):
    """Likewise."""

    config_class = OtherConfig


SIZES = {"embedding_size": 16, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
         "intermediate_size": 32, "type_vocab_size": 64}  # fmt: skip


def evaluated(tmp_path, model_class, root, *overrides):
    """Evaluate a fresh model on the data of a configuration; the trainer and its metrics."""
    config = configured(root, "debug=default", f"output_dir={tmp_path}", "trainer.disable_tqdm=true", *overrides)
    args = training_arguments(config, tmp_path / "trainer")
    torch.manual_seed(0)
    data = load_labelled_data(config.dataset, config.tokenizer, config.seed)
    model = model_class(OtherConfig(**SIZES, vocab_size=len(data.tokenizer), num_labels=len(data.labels)))
    parts = finetuning_parts(config, args, data, model)
    trainer = DepthTrainer(model, args, data, parts.evaluation_sets, parts.start_evaluation, config.trainer)
    return trainer, trainer.evaluate()


def test_its_tokens_are_told_apart_when_sequences_are_classified(tmp_path):
    trainer, metrics = evaluated(tmp_path, OtherClassifier, "ponder_tiny", "model=albert_act_mini", *SMALL)
    assert 0 <= metrics["eval_accuracy"] <= 1
    report = next(iter(trainer.last_reports.values()))
    assert {"plain", "cls", "sep"} <= report.statistics["classes"].keys()
    assert report.statistics["classes"]["cls"]["n"] > 0
    rules = exit_study.parse(["fixed:2"], trainer.model)
    assert [rule.label for rule in rules] == ["fixed:2", "fixed:4"]
