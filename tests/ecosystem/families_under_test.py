"""The public model classes of every family, and what transformers' tests ask of them that they cannot have."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedConfig

import adadepth
from adadepth.families import public_names
from adadepth.families.par_xl.settings import ParXLFields
from tests.ecosystem.model_tests import BATCH, LENGTH, ModelCase, token_inputs
from tests.models_support import SMALL

TINY = SMALL | {"num_hidden_layers": 2, "hidden_dropout_prob": 0.1}

PAR_XL = {name: value for name, value in TINY.items() if name in ParXLFields.__dataclass_fields__}


def _words_and_mask(config: PreTrainedConfig) -> dict[str, Tensor]:
    return {name: value for name, value in token_inputs(config).items() if name != "token_type_ids"}


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
    ModelCase(
        "ParXL",
        config=lambda: adadepth.ParXLConfig(**PAR_XL, architecture="ss"),
        models=_own("ParXLForCausalLM", "ParXLModel"),
        inputs=_words_and_mask,
        skipped={
            "test_generation_tester_mixin_inheritance": "the source distribution has no tests of generation; "
            "tests/unit/families/test_par_xl_generation.py has some",
        },
    ),
    ModelCase(
        "ParXLSupernet",
        config=lambda: adadepth.ParXLConfig(**PAR_XL),
        models=_own("ParXLSupernet"),
        inputs=_words_and_mask,
        labels={"ParXLSupernet": lambda: {"labels": torch.zeros(BATCH, LENGTH, dtype=torch.long)}},
    ),
]
