"""Tokenizer saved with a model: it gives the ids that the data set used in training."""

from __future__ import annotations

import copy
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from adadepth.config import ChoiceConfig, LabelledConfig, QuestionConfig, Source, TaggingConfig, TokenizerConfig
from adadepth.config.experiment import TokenizerKind
from adadepth.data import load_labelled_data, load_language_data, load_pretraining_data
from adadepth.data.text.special_tokens import Layout
from adadepth.data.text.tokenizer import for_model, with_data_layout
from adadepth.runs.data_identity import digest_tokenizer
from tests.marks_support import keep_one_quick

from .labelled_support import write_table
from .streams_support import LINES, ROWS, make_stream_config
from .support import make_corpus_config, make_tokenizer_config, write_corpus
from .tokenizers_support import get_tokenizer, tokenizer

KINDS = ("bert", "roberta", "trained", "albert", "own roberta", "t5")
TEXTS = ["a cat and a lot of lots", "they said: stop that now!", "don't"]


def save_and_load(words: PreTrainedTokenizerFast, folder: Path) -> Any:
    """Return the tokenizer that is read back from the folder of a model."""
    for_model(words, 64, reads_types=True).save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "albert"}), encoding="utf-8")
    return AutoTokenizer.from_pretrained(folder)


def get_inputs(example: dict[str, Any]) -> dict[str, list[int]]:
    """Return ids and types of an example."""
    return {name: example[name].tolist() for name in ("input_ids", "token_type_ids")}


def tokenize(words: Any, *texts: Any, **options: Any) -> dict[str, list[int]]:
    """Return the output of the tokenizer itself; missing types are 0 to every model."""
    tokens = words(*texts, **options)
    ids = tokens["input_ids"]
    return {"input_ids": ids, "token_type_ids": tokens.get("token_type_ids", [0] * len(ids))}


def test_a_long_text_is_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Cut a text beyond `model_max_length`, of which a plain call of transformers warns."""
    logging.getLogger("transformers").addHandler(caplog.handler)
    try:
        words = copy.deepcopy(get_tokenizer("bert"))
        words.model_max_length = 3
        digest = digest_tokenizer(words)
        with_data_layout(words, Layout.from_tokenizer(words, 12, 2))(TEXTS[0])
        assert not caplog.records
        words(TEXTS[0])
        assert "sequence length is longer" in caplog.text
    finally:
        logging.getLogger("transformers").removeHandler(caplog.handler)
    words.model_max_length = 1000
    assert digest_tokenizer(words) == digest


@pytest.mark.parametrize("double", keep_one_quick(2, ["first", "both"]))
@pytest.mark.parametrize("cls_tokens", keep_one_quick(2, [0, 1, 2]))
@pytest.mark.parametrize("kind", KINDS)
def test_every_layout_survives_saving(kind: str, cls_tokens: int, double: Any, tmp_path: Path) -> None:
    words = get_tokenizer(kind)
    if cls_tokens and words.cls_token_id is None:
        pytest.skip("no [CLS]")
    layout = Layout.from_tokenizer(words, 12, cls_tokens, double)
    again = save_and_load(with_data_layout(words, layout), tmp_path)
    pieces = {text: np.array(words(text, add_special_tokens=False)["input_ids"]) for text in TEXTS}
    for text in TEXTS:
        expected = get_inputs(layout.build([pieces[text]]))
        assert tokenize(again, text, truncation=True, max_length=12) == expected
        for other in TEXTS:
            expected = get_inputs(layout.build([pieces[text], pieces[other]]))
            assert tokenize(again, text, other, truncation=True, max_length=12) == expected
    assert Layout.from_tokenizer(again, 12, cls_tokens, double) == layout
    assert with_data_layout(again, layout) is again
    assert again.model_max_length == 64


def test_a_model_without_segments_gets_no_token_types() -> None:
    words = get_tokenizer("bert")
    assert "token_type_ids" not in for_model(words, None, reads_types=False).model_input_names
    assert "token_type_ids" in for_model(words, None, reads_types=True).model_input_names
    assert "token_type_ids" not in for_model(get_tokenizer("roberta"), None, reads_types=True).model_input_names
    assert "token_type_ids" not in words.model_input_names


def test_a_saved_tokenizer_writes_one_cls() -> None:
    words = tokenizer("bert")
    two, one = Layout.from_tokenizer(words, 12, 2, "both"), Layout.from_tokenizer(words, 12)
    assert two != one
    assert Layout.from_tokenizer(with_data_layout(words, two), 12) == one


def test_a_suitable_tokenizer_is_not_changed() -> None:
    for kind in KINDS:
        words = get_tokenizer(kind)
        assert with_data_layout(words, Layout.from_tokenizer(words, 12, 0)) is words


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_padded_after_texts_as_in_training(kind: str, tmp_path: Path) -> None:
    """Pad after texts: before, it moves them to unseen positions (huggingface/transformers#24265, #29419)."""
    words = get_tokenizer(kind)
    words.padding_side = words.truncation_side = "left"
    words.init_kwargs |= {"padding_side": "left", "truncation_side": "left"}
    layout = Layout.from_tokenizer(words, 12, 0)
    again = save_and_load(with_data_layout(words, layout), tmp_path)
    assert (again.padding_side, again.truncation_side, words.padding_side) == ("right", "left", "left")
    assert with_data_layout(again, layout) is again
    tags = save_and_load(with_data_layout(words, layout.cut_at_end()), tmp_path / "tags")
    assert (tags.padding_side, tags.truncation_side) == ("right", "right")
    rows = again(TEXTS, padding=True)
    for text, ids, mask in zip(TEXTS, rows["input_ids"], rows["attention_mask"], strict=True):
        ids_of_text = again(text)["input_ids"]
        assert ids[: len(ids_of_text)] == ids_of_text
        assert mask == [1] * len(ids_of_text) + [0] * (len(ids) - len(ids_of_text))


def test_spans_exclude_the_leading_space(tmp_path: Path) -> None:
    words = get_tokenizer("own roberta")
    again = save_and_load(with_data_layout(words, Layout.from_tokenizer(words, 12, 2)), tmp_path)
    spans = again("a cat", return_offsets_mapping=True, return_special_tokens_mask=True)
    texts = ["a cat"[slice(*span)] for span in spans["offset_mapping"]]
    assert "".join(texts) == "acat"
    assert spans["special_tokens_mask"][:2] == [1, 1]


# ---- data sets: training examples equal the output of the saved tokenizer


def write_tables(folder: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    for split in ("train", "validation"):
        write_table(folder / "table" / f"{split}.jsonl", rows)
    return {
        "name": "x", "source": Source.local, "path": str(folder / "table"), "cache_dir": str(folder / "cache"),
        "sequence_length": 64,
    }  # fmt: skip


def save_tokenizer(kind: str, folder: Path) -> TokenizerConfig:
    get_tokenizer(kind).save_pretrained(folder / "words")
    return TokenizerConfig(path=str(folder / "words"))


@pytest.mark.parametrize("cls_tokens", keep_one_quick(2, [0, 1, 2]))
@pytest.mark.parametrize("kind", keep_one_quick(2, ["bert", "own roberta", "albert"]))
@pytest.mark.parametrize("columns", [["a"], ["a", "b"]], ids=["texts", "pairs"])
def test_sentences_and_pairs_equal_the_training_data(
    kind: str, cls_tokens: int, columns: list[str], tmp_path: Path
) -> None:
    rows = [{"a": text, "b": other, "label": number % 2}
            for number, (text, other) in enumerate(zip(TEXTS, reversed(TEXTS), strict=True))]  # fmt: skip
    dataset = LabelledConfig(**write_tables(tmp_path, rows), text_columns=columns)
    data = load_labelled_data(dataset, save_tokenizer(kind, tmp_path), 0, cls_tokens=cls_tokens)
    again = save_and_load(data.tokenizer, tmp_path / "model")
    for number, row in enumerate(rows):
        assert tokenize(again, *(row[column] for column in columns)) == get_inputs(data.train[(0, number)])
    assert get_inputs(data.train[(0, 0)])["input_ids"].count(again.cls_token_id) >= cls_tokens


@pytest.mark.parametrize("kind", ["bert", "roberta", "own roberta", "albert", "t5"])
def test_tagged_words_are_read_as_a_sentence(kind: str, tmp_path: Path) -> None:
    rows = [{"tokens": text.split(), "ner_tags": ["O"] * len(text.split())} for text in TEXTS]
    data = load_labelled_data(
        TaggingConfig(**write_tables(tmp_path, rows), labels=["O", "B-X"]),
        save_tokenizer(kind, tmp_path),
        0,
        cls_tokens=0,
    )
    again = save_and_load(data.tokenizer, tmp_path / "model")
    for number, text in enumerate(TEXTS):
        assert tokenize(again, text) == get_inputs(data.train[(0, number)])


@pytest.mark.parametrize("kind", ["bert", "own roberta", "albert"])
def test_questions_equal_the_training_data(kind: str, tmp_path: Path) -> None:
    context = "they said stop that now"
    answers = {"text": ["stop"], "answer_start": [10]}
    rows = [{"id": text, "question": text, "context": context, "answers": answers} for text in TEXTS]
    dataset = QuestionConfig(**write_tables(tmp_path, rows), stride=5, max_question_length=24)
    data = load_labelled_data(dataset, save_tokenizer(kind, tmp_path), 0)
    again = save_and_load(data.tokenizer, tmp_path / "model")
    for number, text in enumerate(TEXTS):
        assert tokenize(again, text, context) == get_inputs(data.train[(0, number)])


@pytest.mark.parametrize("kind", ["bert", "own roberta", "albert"])
def test_choices_equal_the_training_data(kind: str, tmp_path: Path) -> None:
    rows = [{"sent1": text, "sent2": "a", "ending0": "cat", "ending1": "lot", "label": 0} for text in TEXTS]
    dataset = ChoiceConfig(**write_tables(tmp_path, rows), ending_columns=["ending0", "ending1"])
    data = load_labelled_data(dataset, save_tokenizer(kind, tmp_path), 0)
    again = save_and_load(data.tokenizer, tmp_path / "model")
    for number, text in enumerate(TEXTS):
        for choice, ending in enumerate(("a cat", "a lot")):
            assert tokenize(again, text, ending) == get_inputs(data.train[(0, number)]["choices"][choice])


@pytest.mark.parametrize("sentence_order", [True, False])
def test_pretraining_uses_the_layout_of_bert_with_any_tokenizer(sentence_order: bool, tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path)
    get_tokenizer("own roberta").save_pretrained(tmp_path / "words")
    for words in (make_tokenizer_config(), TokenizerConfig(path=str(tmp_path / "words"))):
        dataset = make_corpus_config(corpus, tmp_path / "cache", sentence_order=sentence_order)
        data = load_pretraining_data(dataset, words, seed=0)
        again = save_and_load(data.tokenizer, tmp_path / "model")
        example = data.train[(0, 0)]
        marks = example["special_tokens_mask"] == 1
        expected = list(zip(example["input_ids"][marks], example["token_type_ids"][marks], strict=True))
        encoded = again(*["a cat", "a dog"][: 2 if sentence_order else 1], return_special_tokens_mask=True)
        types = encoded.get("token_type_ids") or [0] * len(encoded["input_ids"])
        rows = zip(encoded["special_tokens_mask"], encoded["input_ids"], types, strict=True)
        assert [(token, kind) for is_special, token, kind in rows if is_special] == expected


@pytest.mark.parametrize("kind", ["unigram", "word", "byte"])
def test_streams_equal_the_training_data(kind: str, tmp_path: Path) -> None:
    size = {"unigram": 40, "word": None, "byte": None}[kind]
    words = TokenizerConfig(kind=TokenizerKind(kind), vocab_size=size, lowercase=False)
    data = load_language_data(make_stream_config(tmp_path), words, **ROWS)
    again = save_and_load(data.tokenizer, tmp_path / "model")
    expected = [token for line in LINES[:4] for token in (*again(line)["input_ids"], again.eos_token_id)]
    store = next(iter(data.train.streams.values())).store
    assert store.tokens[: len(expected)].tolist() == expected
    assert kind == "word" or again("<eos>")["input_ids"] != [again.eos_token_id]  # text is no special token
