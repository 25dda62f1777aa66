"""The tokenizer that is saved with a model, called with texts, gives what the data set fed to training."""

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
from tests.marks_support import quick_one_in

from .labelled_support import write_table
from .streams_support import LINES, ROWS, stream_config
from .support import local_config, small_tokenizer, write_corpus
from .tokenizers_support import made, tokenizer

KINDS = ("bert", "roberta", "trained", "albert", "own roberta", "t5")
TEXTS = ["a cat and a lot of lots", "they said: stop that now!", "don't"]


def saved(words: PreTrainedTokenizerFast, folder: Path) -> Any:
    """What is read back from the folder of a model."""
    for_model(words, 64, reads_types=True).save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "albert"}), encoding="utf-8")
    return AutoTokenizer.from_pretrained(folder)


def fed(example: dict[str, Any]) -> dict[str, list[int]]:
    """Ids and types of an example."""
    return {name: example[name].tolist() for name in ("input_ids", "token_type_ids")}


def written(words: Any, *texts: Any, **options: Any) -> dict[str, list[int]]:
    """What the tokenizer itself returns; types that it does not tell are 0 to every model."""
    found = words(*texts, **options)
    ids = found["input_ids"]
    return {"input_ids": ids, "token_type_ids": found.get("token_type_ids", [0] * len(ids))}


def test_a_long_text_is_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """transformers warns of a text beyond `model_max_length`, though adadepth cuts it; a plain call does warn."""
    logging.getLogger("transformers").addHandler(caplog.handler)
    try:
        words = copy.deepcopy(made("bert"))
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


@pytest.mark.parametrize("double", quick_one_in(2, ["first", "both"]))
@pytest.mark.parametrize("cls_tokens", quick_one_in(2, [0, 1, 2]))
@pytest.mark.parametrize("kind", KINDS)
def test_every_layout_survives_the_folder(kind: str, cls_tokens: int, double: Any, tmp_path: Path) -> None:
    words = made(kind)
    if cls_tokens and words.cls_token_id is None:
        pytest.skip("no [CLS]")
    layout = Layout.from_tokenizer(words, 12, cls_tokens, double)
    again = saved(with_data_layout(words, layout), tmp_path)
    pieces = {text: np.array(words(text, add_special_tokens=False)["input_ids"]) for text in TEXTS}
    for text in TEXTS:
        expected = fed(layout.build([pieces[text]]))
        assert written(again, text, truncation=True, max_length=12) == expected
        for other in TEXTS:
            expected = fed(layout.build([pieces[text], pieces[other]]))
            assert written(again, text, other, truncation=True, max_length=12) == expected
    assert Layout.from_tokenizer(again, 12, cls_tokens, double) == layout
    assert with_data_layout(again, layout) is again
    assert again.model_max_length == 64


def test_a_model_without_segments_is_told_none() -> None:
    words = made("bert")
    assert "token_type_ids" not in for_model(words, None, reads_types=False).model_input_names
    assert "token_type_ids" in for_model(words, None, reads_types=True).model_input_names
    assert "token_type_ids" not in for_model(made("roberta"), None, reads_types=True).model_input_names
    assert "token_type_ids" not in words.model_input_names


def test_one_cls_is_left_of_two() -> None:
    words = tokenizer("bert")
    two, one = Layout.from_tokenizer(words, 12, 2, "both"), Layout.from_tokenizer(words, 12)
    assert two != one
    assert Layout.from_tokenizer(with_data_layout(words, two), 12) == one


def test_nothing_is_changed_that_need_not_be() -> None:
    for kind in KINDS:
        words = made(kind)
        assert with_data_layout(words, Layout.from_tokenizer(words, 12, 0)) is words


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_padded_behind_texts_as_in_training(kind: str, tmp_path: Path) -> None:
    """huggingface/transformers#24265, #29419: padding before a text moves it to places that training never saw."""
    words = made(kind)
    words.padding_side = words.truncation_side = "left"
    words.init_kwargs |= {"padding_side": "left", "truncation_side": "left"}
    layout = Layout.from_tokenizer(words, 12, 0)
    again = saved(with_data_layout(words, layout), tmp_path)
    assert (again.padding_side, again.truncation_side, words.padding_side) == ("right", "left", "left")
    assert with_data_layout(again, layout) is again
    tags = saved(with_data_layout(words, layout.cut_at_end()), tmp_path / "tags")
    assert (tags.padding_side, tags.truncation_side) == ("right", "right")
    rows = again(TEXTS, padding=True)
    for text, ids, mask in zip(TEXTS, rows["input_ids"], rows["attention_mask"], strict=True):
        own = again(text)["input_ids"]
        assert ids[: len(own)] == own
        assert mask == [1] * len(own) + [0] * (len(ids) - len(own))


def test_spans_leave_the_space_out(tmp_path: Path) -> None:
    words = made("own roberta")
    again = saved(with_data_layout(words, Layout.from_tokenizer(words, 12, 2)), tmp_path)
    spans = again("a cat", return_offsets_mapping=True, return_special_tokens_mask=True)
    texts = ["a cat"[slice(*span)] for span in spans["offset_mapping"]]
    assert "".join(texts) == "acat"
    assert spans["special_tokens_mask"][:2] == [1, 1]


# ---- data sets: examples of training are what the saved tokenizer writes


def tables(folder: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    for split in ("train", "validation"):
        write_table(folder / "table" / f"{split}.jsonl", rows)
    return {
        "name": "x", "source": Source.local, "path": str(folder / "table"), "cache_dir": str(folder / "cache"),
        "sequence_length": 64,
    }  # fmt: skip


def tokenizer_folder(kind: str, folder: Path) -> TokenizerConfig:
    made(kind).save_pretrained(folder / "words")
    return TokenizerConfig(path=str(folder / "words"))


@pytest.mark.parametrize("cls_tokens", quick_one_in(2, [0, 1, 2]))
@pytest.mark.parametrize("kind", quick_one_in(2, ["bert", "own roberta", "albert"]))
@pytest.mark.parametrize("columns", [["a"], ["a", "b"]], ids=["texts", "pairs"])
def test_sentences_and_pairs(kind: str, cls_tokens: int, columns: list[str], tmp_path: Path) -> None:
    rows = [{"a": text, "b": other, "label": number % 2}
            for number, (text, other) in enumerate(zip(TEXTS, reversed(TEXTS), strict=True))]  # fmt: skip
    dataset = LabelledConfig(**tables(tmp_path, rows), text_columns=columns)
    data = load_labelled_data(dataset, tokenizer_folder(kind, tmp_path), 0, cls_tokens=cls_tokens)
    again = saved(data.tokenizer, tmp_path / "model")
    for number, row in enumerate(rows):
        assert written(again, *(row[column] for column in columns)) == fed(data.train[(0, number)])
    assert fed(data.train[(0, 0)])["input_ids"].count(again.cls_token_id) >= cls_tokens


@pytest.mark.parametrize("kind", ["bert", "roberta", "own roberta", "albert", "t5"])
def test_tagged_words_are_read_as_a_sentence(kind: str, tmp_path: Path) -> None:
    rows = [{"tokens": text.split(), "ner_tags": ["O"] * len(text.split())} for text in TEXTS]
    data = load_labelled_data(
        TaggingConfig(**tables(tmp_path, rows), labels=["O", "B-X"]), tokenizer_folder(kind, tmp_path), 0, cls_tokens=0
    )
    again = saved(data.tokenizer, tmp_path / "model")
    for number, text in enumerate(TEXTS):
        assert written(again, text) == fed(data.train[(0, number)])


@pytest.mark.parametrize("kind", ["bert", "own roberta", "albert"])
def test_questions(kind: str, tmp_path: Path) -> None:
    context = "they said stop that now"
    answers = {"text": ["stop"], "answer_start": [10]}
    rows = [{"id": text, "question": text, "context": context, "answers": answers} for text in TEXTS]
    dataset = QuestionConfig(**tables(tmp_path, rows), stride=5, max_question_length=24)
    data = load_labelled_data(dataset, tokenizer_folder(kind, tmp_path), 0)
    again = saved(data.tokenizer, tmp_path / "model")
    for number, text in enumerate(TEXTS):
        assert written(again, text, context) == fed(data.train[(0, number)])


@pytest.mark.parametrize("kind", ["bert", "own roberta", "albert"])
def test_choices(kind: str, tmp_path: Path) -> None:
    rows = [{"sent1": text, "sent2": "a", "ending0": "cat", "ending1": "lot", "label": 0} for text in TEXTS]
    dataset = ChoiceConfig(**tables(tmp_path, rows), ending_columns=["ending0", "ending1"])
    data = load_labelled_data(dataset, tokenizer_folder(kind, tmp_path), 0)
    again = saved(data.tokenizer, tmp_path / "model")
    for number, text in enumerate(TEXTS):
        for choice, ending in enumerate(("a cat", "a lot")):
            assert written(again, text, ending) == fed(data.train[(0, number)]["choices"][choice])


@pytest.mark.parametrize("sentence_order", [True, False])
def test_pretraining_reads_as_bert_does_whatever_the_tokenizer_does(sentence_order: bool, tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path)
    made("own roberta").save_pretrained(tmp_path / "words")
    for words in (small_tokenizer(), TokenizerConfig(path=str(tmp_path / "words"))):
        dataset = local_config(corpus, tmp_path / "cache", sentence_order=sentence_order)
        data = load_pretraining_data(dataset, words, seed=0)
        again = saved(data.tokenizer, tmp_path / "model")
        example = data.train[(0, 0)]
        marks = example["special_tokens_mask"] == 1
        expected = list(zip(example["input_ids"][marks], example["token_type_ids"][marks], strict=True))
        found = again(*["a cat", "a dog"][: 2 if sentence_order else 1], return_special_tokens_mask=True)
        types = found.get("token_type_ids") or [0] * len(found["input_ids"])
        rows = zip(found["special_tokens_mask"], found["input_ids"], types, strict=True)
        assert [(token, kind) for is_special, token, kind in rows if is_special] == expected


@pytest.mark.parametrize("kind", ["unigram", "word", "byte"])
def test_streams(kind: str, tmp_path: Path) -> None:
    size = {"unigram": 40, "word": None, "byte": None}[kind]
    words = TokenizerConfig(kind=TokenizerKind(kind), vocab_size=size, lowercase=False)
    data = load_language_data(stream_config(tmp_path), words, **ROWS)
    again = saved(data.tokenizer, tmp_path / "model")
    expected = [token for line in LINES[:4] for token in (*again(line)["input_ids"], again.eos_token_id)]
    store = next(iter(data.train.streams.values())).store
    assert store.tokens[: len(expected)].tolist() == expected
    assert kind == "word" or again("<eos>")["input_ids"] != [again.eos_token_id]  # text is no special token
