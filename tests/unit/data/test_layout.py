"""Special tokens and truncation, compared with the tokenizers' own."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from adadepth.config import TokenizerConfig
from adadepth.data.text.passages import encode_texts
from adadepth.data.text.special_tokens import Layout
from adadepth.data.text.tokenizer import encode_sentences, list_needed_tokens, load_tokenizer
from adadepth.errors import CheckpointError, DataError

from .labelled_support import load, make_labelled_config, make_pair_rows, write_splits
from .tokenizers_support import KINDS, tokenizer

TOKENIZERS = {kind: tokenizer(kind) for kind in KINDS}
TEXTS = st.lists(st.sampled_from(["cat", "don't", "lots", "stop", "345"]), min_size=1, max_size=15).map(" ".join)


def strip_special_tokens(words: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """Return a copy that adds no special tokens."""
    copy = PreTrainedTokenizerFast(
        tokenizer_object=type(words.backend_tokenizer).from_str(words.backend_tokenizer.to_str()),
        cls_token=words.cls_token, sep_token=words.sep_token, pad_token=words.pad_token, unk_token=words.unk_token,
    )  # fmt: skip
    copy.backend_tokenizer.post_processor = None
    return copy


@settings(deadline=None)
@given(st.sampled_from(KINDS), st.lists(TEXTS, min_size=1, max_size=2), st.integers(8, 40))
def test_sequences_equal_those_of_the_tokenizer(kind: str, texts: list[str], length: int) -> None:
    words = TOKENIZERS[kind]
    expected = words(
        *texts, truncation="longest_first", max_length=length, return_token_type_ids=True,
        return_special_tokens_mask=True,
    )  # fmt: skip
    layout = Layout.from_tokenizer(words, length, cls_tokens=0 if words.cls_token_id is None else 1)
    sequence = layout.build(encode_sentences(words, texts))
    for name in ("input_ids", "token_type_ids", "special_tokens_mask"):
        assert sequence[name].tolist() == expected[name]
    assert layout.room(len(texts)) == length - words.num_special_tokens_to_add(pair=len(texts) == 2)


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=2), st.integers(8, 20))
def test_texts_are_truncated_like_the_tokenizer_does(kind: str, texts: list[str], length: int) -> None:
    """Read `truncation_side`, for dialogues whose last words matter (huggingface/transformers#12909)."""
    words = tokenizer(kind)
    words.truncation_side = "left"
    expected = words(*texts, truncation="longest_first", max_length=length)["input_ids"]
    layout = Layout.from_tokenizer(words, length, cls_tokens=0 if words.cls_token_id is None else 1)
    assert layout.build(encode_sentences(words, texts))["input_ids"].tolist() == expected
    (encoded,) = encode_texts(words, layout, [tuple(texts)])
    assert encoded.example["input_ids"].tolist() == expected
    spans = words(*texts, truncation="longest_first", max_length=length, return_offsets_mapping=True)["offset_mapping"]
    assert [location.span for location in encoded.places if location is not None] == [
        span for span in spans if span != (0, 0)
    ]


def test_additional_cls_follow_the_first_one() -> None:
    words = TOKENIZERS["roberta"]
    sequence = Layout.from_tokenizer(words, 40, cls_tokens=2, double_cls_pairs="both").build([[7, 8], [9]])
    assert sequence["input_ids"].tolist() == [0, 0, 7, 8, 2, 2, 0, 9, 2]
    assert sequence["special_tokens_mask"].tolist() == [1, 1, 0, 0, 1, 1, 1, 0, 1]


def test_a_model_that_reads_cls_gets_one_from_any_tokenizer() -> None:
    words = strip_special_tokens(TOKENIZERS["bert"])
    cls, sep = words.cls_token_id, words.sep_token_id
    without_cls, with_cls = Layout.from_tokenizer(words, 40, cls_tokens=0), Layout.from_tokenizer(words, 40)
    assert without_cls.build([[7], [9]])["input_ids"].tolist() == [7, 9]
    sequence = with_cls.build([[7], [9]])
    assert sequence["input_ids"].tolist() == [cls, 7, sep, 9, sep]
    assert sequence["token_type_ids"].tolist() == [0, 0, 0, 1, 1]


# --- which tokenizers are accepted


def test_a_tokenizer_without_required_tokens_is_refused(tmp_path: Path) -> None:
    TOKENIZERS["t5"].save_pretrained(tmp_path)
    assert load_tokenizer(str(tmp_path), list_needed_tokens(0)).get_vocab() == TOKENIZERS["t5"].get_vocab()
    with pytest.raises(DataError, match=r"the model needs cls_token, sep_token, "):
        load_tokenizer(str(tmp_path), list_needed_tokens(1))
    with pytest.raises(DataError, match=r"the model needs cls_token, sep_token, mask_token, which"):
        load_tokenizer(str(tmp_path))


def test_a_tokenizer_is_loaded_from_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    TOKENIZERS["bert"].save_pretrained(tmp_path / "weights_in_wheels" / "base")
    (tmp_path / "weights_in_wheels" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    loaded = load_tokenizer("package:weights_in_wheels/base")
    assert loaded("a cat")["input_ids"] == TOKENIZERS["bert"]("a cat")["input_ids"]
    with pytest.raises(CheckpointError, match=r"^tokenizer.path=package:weights_in_wheels/other: .* no folder other$"):
        load_tokenizer("package:weights_in_wheels/other")


@pytest.mark.parametrize("kind", KINDS)
def test_labelled_data_equal_those_of_any_tokenizer(tmp_path: Path, kind: str) -> None:
    TOKENIZERS[kind].save_pretrained(tmp_path / "tokenizer")
    words = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    rows = make_pair_rows(8)
    path = write_splits(tmp_path / "in", train=rows, validation=rows[:2])
    loaded = load(
        make_labelled_config(path, tmp_path / "cache"), TokenizerConfig(path=str(tmp_path / "tokenizer")), cls_tokens=0
    )
    for index, row in enumerate(rows):
        expected = words(row["premise"], row["hypothesis"], truncation="longest_first", max_length=64)
        assert loaded.train[(0, index)]["input_ids"].tolist() == expected["input_ids"]
    batch = loaded.collate([loaded.train[(0, index)] for index in range(8)])
    assert (batch["input_ids"][batch["attention_mask"] == 0] == words.pad_token_id).all()
