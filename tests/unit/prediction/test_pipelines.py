"""transformers' own pipelines on saved models: their predictions equal those of `adadepth.Pipeline` to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModel

from adadepth import (
    AdaLayersForSequenceClassification,
    AdaLayersForTokenClassification,
    AlbertActForMaskedLM,
    AlbertActForPreTraining,
    AlbertActForSequenceClassification,
    AlbertActForTokenClassification,
    Pipeline,
    PlainAlbertForSequenceClassification,
)
from adadepth.data.text.special_tokens import Layout
from adadepth.data.text.tokenizer import with_data_layout
from adadepth.prediction.models import get_first_tokens
from adadepth.training.trainer import fit_tokenizer
from tests.marks_support import keep_one_quick, mark_mostly_slow
from tests.models_support import SMALL, make_small_act, make_small_multi_exit, make_small_ponder
from tests.unit.data.tokenizers_support import get_tokenizer
from tests.unit.models.adalayers_support import BASES, HEAD

TEXTS = ["a cat", "they said: stop that now!", "don't stop the naive cat"]
PAIRS = [("a cat", "they said: stop that now!"), ("stop that now", "a")]
MASKED = ["a [MASK] cat", "they [MASK] stop", "[MASK] cat"]
SIZE = 310  # of every tokenizer here, or more
act = partial(make_small_act, vocab_size=SIZE)


def build_plain() -> Any:
    torch.manual_seed(0)
    config = PlainAlbertForSequenceClassification.config_class
    return PlainAlbertForSequenceClassification(config(**SMALL | {"vocab_size": SIZE}, initializer_range=0.3)).eval()


def save_base(kind: str, folder: Path) -> Path:
    """Save a base with its tokenizer, as it would lie on the hub."""
    torch.manual_seed(0)
    fields = BASES[kind].to_dict() | {"vocab_size": SIZE}
    AutoModel.from_config(type(BASES[kind]).from_dict(fields)).save_pretrained(folder / kind)
    return folder / kind


def build_layers(model_class: Any, kind: str) -> Callable[[Path], Any]:
    return lambda folder: model_class.from_base(str(save_base(kind, folder)), **HEAD, num_labels=3).eval()


def build_stock(name: str, kind: str) -> Callable[[Path], Any]:
    """Return a classifier of transformers, as a family of this package holds it."""

    def make(folder: Path) -> Any:
        from adadepth.models.registry import families

        config = type(BASES[kind]).from_dict(BASES[kind].to_dict() | {"vocab_size": SIZE, "num_labels": 3})
        torch.manual_seed(0)
        head = families()["stock_classifier"].head(name)
        return head.select_class(config)(config).eval()

    return make


# Saved models: kind of tokenizer, model, task of transformers.
SENTENCES: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "act": ("trained", lambda _: act(AlbertActForSequenceClassification, num_labels=3)),
    "act, sentencepiece": ("albert", lambda _: act(AlbertActForSequenceClassification, num_labels=3)),
    "act, byte-level": ("own roberta", lambda _: act(AlbertActForSequenceClassification)),
    "regression": ("bert", lambda _: act(AlbertActForSequenceClassification, num_labels=1, problem_type="regression")),
    "several labels": (
        "bert", lambda _: act(AlbertActForSequenceClassification, problem_type="multi_label_classification"),
    ),
    "ponder": ("trained", lambda _: make_small_ponder(vocab_size=SIZE, exit_rule="quantile:0.5")),
    "ponder, sentencepiece": ("albert", lambda _: make_small_ponder(vocab_size=SIZE, exit_rule="quantile:0.5")),
    "ponder, byte-level": ("own roberta", lambda _: make_small_ponder(vocab_size=SIZE, exit_rule="quantile:0.5")),
    "ponder, both": (
        "bert", lambda _: make_small_ponder(vocab_size=SIZE, exit_rule="quantile:0.5", double_cls_pairs="both"),
    ),
    "palbert": ("trained", lambda _: make_small_ponder(vocab_size=SIZE, exit_rule="quantile:0.5", readout="pooler")),
    "multi exit": ("trained", lambda _: make_small_multi_exit(vocab_size=SIZE, exit_rule="patience:1")),
    "plain": ("albert", lambda _: build_plain()),
    "adalayers on bert": ("bert", build_layers(AdaLayersForSequenceClassification, "bert")),
    "adalayers on albert": ("albert", build_layers(AdaLayersForSequenceClassification, "albert")),
    "adalayers on roberta": ("own roberta", build_layers(AdaLayersForSequenceClassification, "roberta")),
    "adalayers on distilbert": ("bert", build_layers(AdaLayersForSequenceClassification, "distilbert")),
    "stock bert": ("bert", build_stock("classification", "bert")),
    "stock roberta": ("own roberta", build_stock("classification", "roberta")),
    "stock distilbert": ("bert", build_stock("classification", "distilbert")),
}  # fmt: skip
TAGGERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "act": ("trained", lambda _: act(AlbertActForTokenClassification, num_labels=3)),
    "act, sentencepiece": ("albert", lambda _: act(AlbertActForTokenClassification, num_labels=3)),
    "adalayers on bert": ("bert", build_layers(AdaLayersForTokenClassification, "bert")),
    "adalayers on roberta": ("own roberta", build_layers(AdaLayersForTokenClassification, "roberta")),
    "stock bert": ("bert", build_stock("tagging", "bert")),
    "stock roberta": ("own roberta", build_stock("tagging", "roberta")),
}  # fmt: skip
FILLERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    f"{model_class.__name__}, {kind}": (kind, lambda _, model_class=model_class, kind=kind:
                                        act(model_class, vocab_size=len(get_tokenizer(kind))))
    for model_class in (AlbertActForMaskedLM, AlbertActForPreTraining) for kind in ("trained", "bert")
}  # fmt: skip

# One model of each family, tokenizer and kind of problem.
QUICK = {
    "act, sentencepiece", "regression", "several labels", "ponder, byte-level", "adalayers on bert",
}  # fmt: skip


def save(entry: tuple[str, Callable[[Path], Any]], folder: Path, **options: Any) -> tuple[str, Any]:
    """Save a model with its tokenizer as a run does; return the folder and the model."""
    kind, make = entry
    model = make(folder)
    if not isinstance(model, AlbertActForPreTraining):
        layout = Layout.from_tokenizer(get_tokenizer(kind), 32, **get_first_tokens(model))
    else:
        layout = Layout.bert(get_tokenizer(kind), 32)
    model.save_pretrained(folder / "model")
    fit_tokenizer(model, with_data_layout(get_tokenizer(kind), layout, **options)).save_pretrained(folder / "model")
    return str(folder / "model"), model


@pytest.mark.parametrize("name", mark_mostly_slow(SENTENCES, QUICK.__contains__))
def test_classes_and_values_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    folder, _ = save(SENTENCES[name], tmp_path)
    ours, theirs = Pipeline.from_pretrained(folder), transformers.pipeline("text-classification", model=folder)
    for text in (*TEXTS, *PAIRS):
        (prediction,) = ours(text)
        inputs = text if isinstance(text, str) else {"text": text[0], "text_pair": text[1]}
        expected = theirs(inputs, top_k=None)
        expected = {entry["label"]: entry["score"] for entry in expected}
        assert (prediction.scores or {"LABEL_0": prediction.value}) == expected, text


@pytest.mark.parametrize("name", mark_mostly_slow(TAGGERS, QUICK.__contains__))
def test_tags_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    folder, _ = save(TAGGERS[name], tmp_path, splits_words=True)
    ours = Pipeline.from_pretrained(folder)
    theirs = transformers.pipeline("token-classification", model=folder, ignore_labels=[])
    for text in TEXTS:
        (prediction,) = ours(text)
        tags = [(token.label, token.score, *token.span) for token in prediction.tokens if token.span is not None]
        assert tags == [
            (entity["entity"], entity["score"], entity["start"], entity["end"]) for entity in theirs(text)
        ], text


@pytest.mark.parametrize("name", keep_one_quick(4, FILLERS))
def test_fillings_of_masks_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    folder, _ = save(FILLERS[name], tmp_path)
    ours, theirs = Pipeline.from_pretrained(folder), transformers.pipeline("fill-mask", model=folder, top_k=1)
    for text in MASKED:
        (prediction,) = ours(text)
        (token,) = [token for token in prediction.tokens if token.label is not None]
        (expected,) = theirs(text)
        assert (token.label, token.score) == (expected["token_str"].strip(), expected["score"]), text
