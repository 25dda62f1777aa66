"""Predictions of a text in segments with memory, compared with the figures of an evaluation."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from adadepth import AlbertActForSequenceClassification, Pipeline
from adadepth.data.streams.contiguous import RowShare, StreamBatches, TokenStream
from adadepth.errors import ConfigError
from adadepth.evaluation.language_model import LanguageScorer
from tests.marks_support import keep_one_quick
from tests.models_support import make_small_config
from tests.unit.data.tokenizers_support import build_streaming_tokenizer, tokenizer
from tests.unit.models.par_xl_support import build_network

BERT = tokenizer("bert")
REMEMBERED = 8


WORDS = build_streaming_tokenizer()


def build_memory_network(memory_length: int = REMEMBERED) -> Any:
    return build_network("sfsf", vocab_size=len(WORDS), memory_length=memory_length)


def make_text(words: int) -> str:
    generator = random.Random(0)
    return " ".join(generator.choice(["a", "cat", "stop", "the", "naive", "lot", "of"]) for _ in range(words))


def evaluate_text(model: Any, ids: list[int], segment: int) -> tuple[float, list[float]]:
    """Return the loss of a text as the evaluation of a stream computes it, and that of every token."""
    store: Any = SimpleNamespace(tokens=np.array(ids))
    stream = TokenStream(store, 0, len(ids), 1, segment, WORDS.eos_token_id, WORDS.pad_token_id)
    streams = StreamBatches(
        {"text": stream}, RowShare(1), {"tokens": len(ids), "words": 1, "characters": 1, "bytes": 1}
    )
    scorer = LanguageScorer(model, streams, model.context(None, None, False), torch.device("cpu"), "text", {})
    losses: list[float] = []
    with torch.no_grad():
        for batch in map(streams.__getitem__, range(len(streams))):
            inputs = {name: batch[name] for name in ("input_ids", "targets")}
            outputs = model(**inputs, **scorer.options(batch))
            scorer.record(batch, outputs)
            losses += outputs.token_losses.tolist()
    return scorer.metrics({})["loss"], losses


@pytest.mark.parametrize(
    ("words", "segment", "memory"),
    keep_one_quick(3, [(90, None, REMEMBERED), (64, 16, REMEMBERED), (50, 7, 3), (30, 1000, 3), (30, 9, 0)]),
)
def test_token_losses_equal_those_of_an_evaluation(words: int, segment: int | None, memory: int) -> None:
    model, text = build_memory_network(memory), make_text(words)
    ids = WORDS(text)["input_ids"]
    loss, losses = evaluate_text(model, ids, segment or memory)
    (prediction,) = Pipeline(model, WORDS, segment_length=segment)([text])
    assert prediction.tokens is not None
    token_losses = [-math.log(token.own_score) for token in prediction.tokens]  # type: ignore[arg-type]
    assert token_losses == pytest.approx(losses, abs=1e-4)
    assert math.fsum(token_losses) / len(token_losses) == pytest.approx(loss, abs=1e-5)


@pytest.mark.slow
def test_a_long_text_is_read_in_segments() -> None:
    model, text = build_memory_network(), make_text(3000)
    widths: list[int] = []
    model.register_forward_pre_hook(
        lambda _, args, arguments: widths.append(arguments["input_ids"].shape[1]), with_kwargs=True
    )
    (prediction,), work = Pipeline(model, WORDS, segment_length=512).examine([text])
    length = len(WORDS(text)["input_ids"])
    assert prediction.tokens is not None
    assert len(prediction.tokens) == length >= 3000
    assert max(widths) == 512
    assert sum(widths) == length + 1  # what texts begin with, too
    assert work == pytest.approx(1.0)  # the alternating architecture is what is counted as full


def test_a_model_without_memory_reads_a_text_at_once() -> None:
    model = build_memory_network(memory_length=0)
    widths: list[int] = []
    model.register_forward_pre_hook(
        lambda _, args, arguments: widths.append(arguments["input_ids"].shape[1]), with_kwargs=True
    )
    Pipeline(model, WORDS)([make_text(40)])
    assert widths == [len(WORDS(make_text(40))["input_ids"]) + 1]


@pytest.mark.parametrize("length", [0, -1, 1.5, True, "x"])
def test_invalid_segment_lengths_are_refused(length: Any) -> None:
    with pytest.raises(ConfigError, match=r"^segment_length="):
        Pipeline(build_memory_network(), WORDS, segment_length=length)


def test_a_segment_length_without_memory_is_refused() -> None:
    classifier = AlbertActForSequenceClassification(make_small_config())
    with pytest.raises(ConfigError, match=r"^segment_length=4: AlbertAct.* has no memory between segments$"):
        Pipeline(classifier, BERT, segment_length=4)
