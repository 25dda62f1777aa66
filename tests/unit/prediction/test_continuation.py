"""Continuations of texts by a language model: what `generate` writes, and the depth of every token."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from adadepth import Pipeline
from adadepth.errors import ConfigError
from adadepth.prediction.models import list_end_tokens
from adadepth.prediction.texts_file import describe_texts
from adadepth.report.predictions import render_tokens
from tests.models_support import make_small_ponder
from tests.unit.data.tokenizers_support import tokenizer
from tests.unit.models.looped.looped_support import OURO, build_looped

TEXTS = ["a cat", "they said: stop the"]
RULE = "margin:0.02"


@pytest.fixture
def parts() -> tuple[Any, Any]:
    words = tokenizer("roberta")
    return build_looped(**OURO | {"vocab_size": len(words)}), words


def generate_ids(model: Any, words: Any, text: str, **options: Any) -> torch.Tensor:
    """Return the end-of-text token, a text, and what `generate` writes behind it."""
    ids = torch.tensor([[words.eos_token_id, *words(text, add_special_tokens=False)["input_ids"]]])
    return model.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=words.eos_token_id, **options)


@pytest.mark.slow
def test_continuations_equal_generate_with_the_loops_of_every_token(parts: Any) -> None:
    model, words = parts
    pipeline = Pipeline(model, words, exit_rule=RULE, new_tokens=5)
    for text, prediction in zip(TEXTS, pipeline(TEXTS), strict=True):
        ids = generate_ids(model, words, text, exit_rule=RULE, max_new_tokens=5)
        tokens, exits = prediction.tokens or [], model(ids, exit_rule=RULE).exit_steps[0, : ids.shape[1] - 1]
        assert [token.piece for token in tokens] == words.convert_ids_to_tokens(ids[0, 1:].tolist())
        assert [token.updates for token in tokens] == exits.tolist()
        whole = text + (prediction.continuation or "")
        assert words.decode(ids[0, 1:]) == whole
        spans = [token.span for token in tokens[-5:] if token.span]
        assert spans[0][0] == len(text)
        assert [start for start, _ in spans[1:]] == [end for _, end in spans[:-1]]
        assert spans[-1][1] == len(whole)
    assert len({token.updates for prediction in pipeline(TEXTS) for token in prediction.tokens or []}) > 1


def test_a_rule_of_the_call_equals_that_of_the_configuration(parts: Any) -> None:
    model, words = parts
    by_call = Pipeline(model, words, exit_rule=RULE)(TEXTS)
    model.config.exit_rule = RULE
    assert Pipeline(model, words)(TEXTS) == by_call


def test_a_text_ends_where_the_model_ends_it(parts: Any) -> None:
    model, words = parts
    model.lm_head.weight.data[words.eos_token_id] = 0
    first = int(generate_ids(model, words, TEXTS[0], max_new_tokens=1)[0, -1])
    model.lm_head.weight.data[words.eos_token_id] = 2 * model.lm_head.weight.data[first]
    assert Pipeline(model, words, new_tokens=9)(TEXTS[0])[0].continuation == ""


def test_a_text_ends_at_every_token_that_the_generation_configuration_names(parts: Any) -> None:
    """Stop at each of several ends of a dialogue model (huggingface/transformers#31362); the tokenizer names one."""
    model, words = parts
    words.add_special_tokens({"additional_special_tokens": ["<turn>"]})
    turn = words.convert_tokens_to_ids("<turn>")
    model.resize_token_embeddings(len(words))
    first = int(generate_ids(model, words, TEXTS[0], max_new_tokens=1)[0, -1])
    model.lm_head.weight.data[turn] = 2 * model.lm_head.weight.data[first]
    model.generation_config.eos_token_id = [words.eos_token_id, turn]
    assert generate_ids(model, words, TEXTS[0], max_new_tokens=9)[0, -1] == turn
    assert Pipeline(model, words, new_tokens=9)(TEXTS[0])[0].continuation == ""
    model.generation_config.eos_token_id = [words.eos_token_id, words.convert_tokens_to_ids("a")]
    assert list_end_tokens(model, words) == [words.eos_token_id], "a word of the vocabulary ends nothing"


def test_a_stored_prediction_has_the_whole_text(parts: Any) -> None:
    pipeline = Pipeline(*parts, exit_rule=RULE, new_tokens=3)
    row = describe_texts(pipeline, TEXTS[:1])["texts"][0]
    assert row["text"] == [TEXTS[0] + row["continuation"]]
    assert len(row["continuation"]) > 0


def test_only_language_models_continue_texts(parts: Any) -> None:
    with pytest.raises(
        ConfigError,
        match=r"new_tokens=3: "
        r"PonderAlbertForSequenceClassification does not generate text",
    ):
        Pipeline(make_small_ponder(), tokenizer("bert"), new_tokens=3)
    with pytest.raises(ConfigError, match="new_tokens"):
        Pipeline(*parts, new_tokens=0)


def test_more_new_tokens_than_positions_are_refused(parts: Any) -> None:
    """Check that positions are counted before anything is written; without an end it would run for ever."""
    model, words = parts
    longest = model.longest_sequence
    for count in (longest, 10**9):
        with pytest.raises(
            ConfigError,
            match=rf"^new_tokens={count}: must be at most {longest - 1}, the number of positions after one token",
        ):
            Pipeline(model, words, new_tokens=count)
    room = longest - 1 - len(words(TEXTS[1], add_special_tokens=False)["input_ids"])
    with pytest.raises(ConfigError, match=rf"^new_tokens={room + 1}: a text of \d+ tokens leaves {room} of {longest}"):
        Pipeline(model, words, new_tokens=room + 1)(TEXTS[1])


@pytest.mark.parametrize("name", ["num_beams", "num_return_sequences"])
def test_too_many_beams_or_sequences_are_refused(parts: Any, name: str) -> None:
    model, words = parts
    with pytest.raises(ConfigError, match=rf"^{name}=1000000: must be from 1 to 1024"):
        Pipeline(model, words, new_tokens=2, generation={name: 10**6})
    setattr(model.generation_config, name, 10**6)  # as somebody's generation_config.json has it
    with pytest.raises(ConfigError, match=rf"^{name}=1000000: must be from 1 to 1024"):
        Pipeline(model, words, new_tokens=2)


def test_an_empty_text_has_the_updates_of_the_start_token(parts: Any) -> None:
    """Predict the first word from the start token."""
    model, words = parts
    (prediction,) = Pipeline(model, words, exit_rule=RULE)([""])
    start = torch.tensor([[words.eos_token_id]])
    assert prediction.updates == float(model(start, exit_rule=RULE).exit_steps[0, 0])
    assert prediction.tokens == []


def test_bytes_of_a_character_and_white_space_are_readable(parts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Include bytes that never become a character, as a model of bytes writes after a few steps of training."""
    model, words = parts
    letters = ("Ĭ", "e", "Ċ", "Ġ", "Ã", "¼")  # the byte 0x8A, e, a line end, a space, and the two bytes of ü
    ids = words.convert_tokens_to_ids(list(letters))
    assert words.unk_token_id not in ids
    monkeypatch.setattr(model, "generate", lambda inputs, **_: torch.cat([inputs, torch.tensor([ids])], dim=1))
    (prediction,) = Pipeline(model, words, new_tokens=len(ids))(["a"])
    assert prediction.continuation == "\N{REPLACEMENT CHARACTER}e\n ü"
    row = {
        "text": ["a" + prediction.continuation],
        "tokens": [dataclasses.asdict(token) for token in prediction.tokens or []],
    }
    rendered = [token.text for token in render_tokens(row)]
    assert rendered == ["a", "\N{REPLACEMENT CHARACTER}", "e", r"\n", "␣", "<0xC3>", "ü"]
