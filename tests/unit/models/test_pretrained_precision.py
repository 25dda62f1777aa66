"""Training in float32 of pretrained weights that are stored in half precision."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from transformers import AlbertConfig, AlbertModel, BertConfig, BertForSequenceClassification

from adadepth import (
    AlbertActForPreTraining,
    EarlyExitForCausalLM,
    PlainAlbertForSequenceClassification,
)
from adadepth.models.build import build_classifier, build_language_model, build_pretraining_model
from adadepth.models.looped.retrofit import retrofit
from tests.configs.support import configured
from tests.marks_support import keep_one_quick
from tests.models_support import SMALL, make_small_config, make_small_multi_exit, make_small_ponder
from tests.unit.models.early_exit.early_exit_support import build_early_exit
from tests.unit.models.looped.retrofit_support import PIECES, build_decoder

FIELDS: dict[str, Any] = {
    "id2label": {0: "a", 1: "b"}, "label2id": {"a": 0, "b": 1}, "problem_type": "single_label_classification",
}  # fmt: skip
BERT = BertConfig(**{name: value for name, value in SMALL.items() if name != "embedding_size"})
ROOTS = {"par_xl_mini": "par_tiny", "mor_mini": "mor_tiny", "router_tuning": "mor_tiny"}
LOOPED = ("model.prelude=1", "model.core=1", "model.coda=1")


class Load(NamedTuple):
    """A stored model, or None for one of the same settings, and the settings with which it is read for training."""

    stored: Callable[[], Any] | None
    option: str
    settings: tuple[str, ...] = ()
    task: str = "classifier"
    key: str = "pretrained"


LOADS = {
    "looped of a decoder": Load(build_decoder, "looped_retrofit", LOOPED, "language_model"),
    "looped classifier of a decoder": Load(build_decoder, "looped_retrofit", LOOPED),
    "looped": Load(None, "looped_mini", task="language_model"),
    "early exit of a decoder": Load(
        build_decoder, "early_exit_retrofit", ("trainer.metric_for_best_model=eval_loss",), task="language_model"
    ),
    "early exit of an encoder": Load(lambda: BertForSequenceClassification(BERT), "early_exit_pretrained"),
    "early exit": Load(None, "early_exit_mini"),
    "routed of a decoder": Load(build_decoder, "router_tuning", task="language_model"),
    "routed of early exits": Load(
        lambda: build_early_exit(EarlyExitForCausalLM), "router_tuning", task="language_model"
    ),
    "routed": Load(None, "mor_mini", task="language_model"),
    "ponder": Load(make_small_ponder, "ponder_albert_pretrained"),
    "ponder of albert": Load(lambda: AlbertModel(AlbertConfig(**SMALL)), "ponder_albert_pretrained"),
    "ponder of act": Load(lambda: AlbertActForPreTraining(make_small_config()), "ponder_albert_pretrained"),
    "multi-exit": Load(make_small_multi_exit, "pabee_pretrained"),
    "multi-exit of albert": Load(lambda: AlbertModel(AlbertConfig(**SMALL)), "pabee_pretrained"),
    "act": Load(
        lambda: AlbertActForPreTraining(make_small_config()), "albert_act_pretrained", task="pretraining_model"
    ),
    "act of albert": Load(lambda: AlbertModel(AlbertConfig(**SMALL)), "albert_act_pretrained"),
    "plain albert": Load(
        lambda: PlainAlbertForSequenceClassification(AlbertConfig(**SMALL)), "albert_pretrained"
    ),
    "stock": Load(lambda: BertForSequenceClassification(BERT), "stock"),
    "stock without a head": Load(lambda: BertForSequenceClassification(BERT).base_model, "stock"),
    "adalayers": Load(lambda: BertForSequenceClassification(BERT), "adalayers_minilm", key="base_model"),
    "network": Load(None, "par_xl_mini", ("model.cutoffs=[]",), task="language_model"),
}  # fmt: skip
BUILDERS = {
    "classifier": lambda settings, size: build_classifier(settings, size, FIELDS),
    "language_model": build_language_model,
    "pretraining_model": build_pretraining_model,
}


@pytest.mark.parametrize("name", keep_one_quick(5, LOADS))
def test_weights_in_half_precision_are_trained_in_float32(name: str, tmp_path: Path) -> None:
    load = LOADS[name]
    root, options = ROOTS.get(load.option, "ponder_tiny"), (f"model={load.option}", *load.settings)
    if load.stored is None:
        stored: Any = BUILDERS[load.task](configured(root, *options).model, PIECES)
    else:
        stored = load.stored()
    stored.config.dtype = torch.bfloat16
    stored.to(torch.bfloat16).save_pretrained(tmp_path)
    settings = configured(root, *options, f"model.{load.key}={tmp_path}").model
    model: Any = BUILDERS[load.task](settings, stored.config.vocab_size)
    assert {weight.dtype for weight in model.state_dict().values() if weight.is_floating_point()} == {torch.float32}
    assert model.config.dtype in (torch.float32, None)


def test_a_given_decoder_keeps_its_precision(tmp_path: Path) -> None:
    source = build_decoder().to(torch.float16)
    parts = {"prelude": 2, "core": 2, "coda": 2, "num_loops": 1}
    assert retrofit(source, **parts).dtype == torch.float16
    source.save_pretrained(tmp_path)
    looped = retrofit(str(tmp_path), **parts)
    assert torch.equal(looped.lm_head.weight, source.lm_head.weight.float())
