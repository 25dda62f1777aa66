"""Support for tests of served models: a tagger of pointers, and other untrained models."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch

from adadepth.contrib.serve.checkpoint import ServedCheckpoint
from adadepth.contrib.serve.knobs import list_knobs
from adadepth.contrib.serve.serve import load_served_checkpoint
from adadepth.data import load_labelled_data
from adadepth.models.build import build_classifier
from adadepth.prediction import Pipeline
from adadepth.tasks.model_fields import head_fields
from tests.configs.support import configured
from tests.models_support import spread_depths

FEW = ("dataset.train_examples=64", "dataset.max_evaluation_examples=8", "trainer.use_cpu=true")


def save_untrained(folder: Path, root: str, *overrides: str, spreads: bool = False) -> Any:
    """Save an untrained model of drawn data, and return a configuration that serves it."""
    config = configured(root, *FEW, *overrides)
    data = load_labelled_data(config.dataset, config.tokenizer, config.seed)
    torch.manual_seed(0)
    model: Any = build_classifier(config.model, len(data.tokenizer), head_fields(data), data.problem)
    if spreads:
        spread_depths(model)
    model.save_pretrained(folder / "model")
    data.tokenizer.save_pretrained(folder / "model")
    return dataclasses.replace(config, checkpoint=str(folder / "model"))


def serve_untrained(folder: Path, root: str, *overrides: str, spreads: bool = False) -> ServedCheckpoint:
    """Save an untrained model of drawn data, and load it to be served."""
    return load_served_checkpoint(save_untrained(folder, root, *overrides, spreads=spreads))


def serve_text_model(model: Any, words: Any, **more: Any) -> ServedCheckpoint:
    """Return a served model of texts that is in memory."""
    return ServedCheckpoint(
        "mine", Pipeline(model, words), list_knobs(model), ["adadepth", "--config-name", "mine"], **more
    )
