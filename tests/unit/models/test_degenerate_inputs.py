"""Inputs that no model accepts, and unusual but valid ones, for every kind of model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import adadepth
from tests.marks_support import keep_one_quick
from tests.models_support import make_small_config, make_small_multi_exit, make_small_ponder
from tests.unit.models.adalayers_support import HEAD, save_base
from tests.unit.models.par_xl_support import SMALL as PAR

ALBERT = {"vocab_size": 120, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
          "intermediate_size": 32, "embedding_size": 8}  # fmt: skip
ACT = [name for name in adadepth.__all__ if name.startswith("AlbertAct") and not name.endswith(("Config", "Settings"))]


def build_plain(folder: Path) -> Any:
    model_class = adadepth.PlainAlbertForSequenceClassification
    return model_class(model_class.config_class(**ALBERT))


def build_adalayers(folder: Path) -> Any:
    return adadepth.AdaLayersForSequenceClassification.from_base(save_base("bert", folder / "base"), **HEAD)


def build_stock(folder: Path) -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"vocab_size": 120, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    BertForSequenceClassification(BertConfig(**sizes, intermediate_size=16)).save_pretrained(folder)
    return adadepth.StockForSequenceClassification.from_pretrained(folder)


MODELS: dict[str, Callable[[Path], Any]] = {
    **{name: lambda _, name=name: getattr(adadepth, name)(make_small_config()) for name in ACT},
    "PonderAlbertForSequenceClassification": lambda _: make_small_ponder(),
    "PonderAlbertModel": lambda _: adadepth.PonderAlbertModel(make_small_ponder().config),
    "MultiExitAlbertForSequenceClassification": lambda _: make_small_multi_exit(),
    "ParXLForCausalLM": lambda _: adadepth.ParXLForCausalLM(adadepth.ParXLConfig(**PAR, architecture="sfsf")),
    "ParXLModel": lambda _: adadepth.ParXLModel(adadepth.ParXLConfig(**PAR, architecture="sfsf")),
    "ParXLSupernet": lambda _: adadepth.ParXLSupernet(adadepth.ParXLConfig(**PAR)),
    "PlainAlbertForSequenceClassification": build_plain,
    "AdaLayersForSequenceClassification": build_adalayers,
    "StockForSequenceClassification": build_stock,
}


@pytest.fixture(params=keep_one_quick(3, MODELS))
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return MODELS[request.param](tmp_path).eval()


def test_empty_inputs_and_invalid_ids_are_refused(model: Any) -> None:
    num_embeddings = model.get_input_embeddings().num_embeddings if not hasattr(model.config, "vocab_size") else None
    vocabulary = num_embeddings or model.config.vocab_size
    for ids, message in (
        (torch.zeros(2, 0, dtype=torch.long), "at least one sequence of at least one token"),
        (torch.zeros(0, 4, dtype=torch.long), "at least one sequence of at least one token"),
        (torch.full((2, 4), vocabulary), f"must be from 0 to {vocabulary - 1}"),
        (torch.full((2, 4), -1), f"must be from 0 to {vocabulary - 1}"),
    ):
        with pytest.raises(ValueError, match=message) as error, torch.no_grad():
            model(input_ids=ids.unsqueeze(1) if "MultipleChoice" in type(model).__name__ else ids)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("make", [make_small_ponder, make_small_multi_exit])
def test_a_batch_of_padding_is_refused_where_padding_is_not_computed(make: Callable[[], Any]) -> None:
    ids, mask = torch.ones(2, 4, dtype=torch.long), torch.zeros(2, 4, dtype=torch.long)
    with pytest.raises(ValueError, match="attention_mask: all sequences are empty"), torch.no_grad():
        make().eval()(input_ids=ids, attention_mask=mask)


def test_a_recurrent_model_needs_an_example() -> None:
    config = adadepth.PonderRnnConfig(input_size=4, hidden_size=8)
    with pytest.raises(ValueError, match=r"inputs of shape \(0, 4\)"):
        adadepth.PonderRnnForClassification(config)(torch.zeros(0, 4))
