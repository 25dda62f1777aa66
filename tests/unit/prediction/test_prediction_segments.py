"""A text in segments, each behind what the model remembers: the figures of an evaluation, at any length."""

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
from tests.marks_support import quick_one_in
from tests.models_support import small_config
from tests.unit.data.tokenizers_support import streaming, tokenizer
from tests.unit.models.par_xl_support import small_network

BERT = tokenizer("bert")
REMEMBERED = 8


WORDS = streaming()


def network(memory_length: int = REMEMBERED) -> Any:
    return small_network("sfsf", vocab_size=len(WORDS), memory_length=memory_length)


def text_of(words: int) -> str:
    drawn = random.Random(0)
    return " ".join(drawn.choice(["a", "cat", "stop", "the", "naive", "lot", "of"]) for _ in range(words))


def evaluated(model: Any, ids: list[int], segment: int) -> tuple[float, list[float]]:
    """The loss of a text as the evaluation of a stream finds it, and that of every token."""
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
    quick_one_in(3, [(90, None, REMEMBERED), (64, 16, REMEMBERED), (50, 7, 3), (30, 1000, 3), (30, 9, 0)]),
)
def test_every_word_is_as_likely_as_in_an_evaluation(words: int, segment: int | None, memory: int) -> None:
    model, text = network(memory), text_of(words)
    ids = WORDS(text)["input_ids"]
    loss, losses = evaluated(model, ids, segment or memory)
    (found,) = Pipeline(model, WORDS, segment_length=segment)([text])
    assert found.tokens is not None
    own = [-math.log(token.own_score) for token in found.tokens]  # type: ignore[arg-type]
    assert own == pytest.approx(losses, abs=1e-4)
    assert math.fsum(own) / len(own) == pytest.approx(loss, abs=1e-5)


@pytest.mark.slow
def test_a_long_text_is_read_in_segments() -> None:
    model, text = network(), text_of(3000)
    widths: list[int] = []
    model.register_forward_pre_hook(lambda _, args, given: widths.append(given["input_ids"].shape[1]), with_kwargs=True)
    (found,), work = Pipeline(model, WORDS, segment_length=512).examine([text])
    length = len(WORDS(text)["input_ids"])
    assert found.tokens is not None
    assert len(found.tokens) == length >= 3000
    assert max(widths) == 512
    assert sum(widths) == length + 1  # what texts begin with, too
    assert work == pytest.approx(1.0)  # the alternating architecture is what is counted as full


def test_a_model_without_memory_reads_a_text_at_once() -> None:
    model = network(memory_length=0)
    widths: list[int] = []
    model.register_forward_pre_hook(lambda _, args, given: widths.append(given["input_ids"].shape[1]), with_kwargs=True)
    Pipeline(model, WORDS)([text_of(40)])
    assert widths == [len(WORDS(text_of(40))["input_ids"]) + 1]


@pytest.mark.parametrize("length", [0, -1, 1.5, True, "x"])
def test_lengths_that_are_none(length: Any) -> None:
    with pytest.raises(ConfigError, match=r"^segment_length="):
        Pipeline(network(), WORDS, segment_length=length)


def test_a_model_that_remembers_nothing_has_no_segments() -> None:
    classifier = AlbertActForSequenceClassification(small_config())
    with pytest.raises(ConfigError, match=r"^segment_length=4: AlbertAct.* has no memory between segments$"):
        Pipeline(classifier, BERT, segment_length=4)
