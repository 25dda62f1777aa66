"""The public model classes of every family, and what transformers' tests ask of them that they cannot have."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import transformers
from torch import Tensor

import adadepth
from adadepth.families import public_names
from tests.ecosystem.model_tests import BATCH, LENGTH, ModelCase, token_inputs
from tests.models_support import SMALL

TINY = SMALL | {"num_hidden_layers": 2, "hidden_dropout_prob": 0.1}


def _own(*names: str) -> Callable[[], Iterable[type]]:
    return lambda: [getattr(adadepth, name) for name in names]


def _pretraining_labels() -> dict[str, Tensor]:
    return {
        "labels": torch.zeros(BATCH, LENGTH, dtype=torch.long),
        "sentence_order_label": torch.zeros(BATCH, dtype=torch.long),
    }


CASES = [
    ModelCase(
        "AlbertAct",
        config=lambda: adadepth.AlbertActConfig(**TINY),
        models=_own(
            *(name for name in sorted(public_names()) if name.startswith("AlbertAct") and "Config" not in name)
        ),
        inputs=token_inputs,
        labels={"AlbertActForPreTraining": _pretraining_labels},
    ),
    ModelCase(
        "PonderAlbert",
        config=lambda: adadepth.PonderAlbertConfig(**TINY),
        models=_own("PonderAlbertForSequenceClassification"),
        inputs=token_inputs,
    ),
    ModelCase(
        "MultiExitAlbert",
        config=lambda: adadepth.MultiExitAlbertConfig(**TINY),
        models=_own("MultiExitAlbertForSequenceClassification"),
        inputs=token_inputs,
    ),
    ModelCase(
        "PlainAlbert",
        config=lambda: transformers.AlbertConfig(**TINY),
        models=_own("PlainAlbertForSequenceClassification"),
        inputs=token_inputs,
    ),
]
