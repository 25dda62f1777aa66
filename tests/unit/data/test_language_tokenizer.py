"""Tokenizers of running text: pieces, words and bytes."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from adadepth.config import TokenizerConfig
from adadepth.config.experiment import TokenizerKind
from adadepth.data.streams.tokenizer import load_stream_tokenizer
from adadepth.data.text.corpora import read_embedded_documents
from adadepth.data.text.tokenizer import encode_sentences, load_tokenizer
from adadepth.errors import DataError

LINES = [line for document in list(read_embedded_documents())[:30] for line in document.split("\n") if line.isascii()]
KINDS = list(TokenizerKind)


def make_tokenizer(folder: Path, kind: str, lines: list[str] | None = None, **settings: Any) -> PreTrainedTokenizerFast:
    lines = LINES if lines is None else lines
    config = TokenizerConfig(**{"kind": TokenizerKind(kind), "vocab_size": 400, **settings})
    return load_stream_tokenizer(config, folder, lambda: str(hash(tuple(lines))), lambda: lines)


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_survive_saving(tmp_path: Path, kind: str) -> None:
    tokenizer = make_tokenizer(tmp_path / "cache", kind)
    assert tokenizer.convert_ids_to_tokens([0, 1, 2]) == ["<pad>", "<unk>", "<eos>"]
    assert (tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.eos_token_id) == (0, 1, 2)
    assert (tokenizer.cls_token, tokenizer.sep_token) == (None, None)
    text = "The object <unk> of it <eos>"
    ids = tokenizer(text)["input_ids"]
    assert ids == tokenizer(text, add_special_tokens=False)["input_ids"]
    tokenizer.save_pretrained(tmp_path / "saved")
    path = str(tmp_path / "saved")
    from_path = load_stream_tokenizer(TokenizerConfig(path=path), tmp_path, str, list)
    for loaded in (AutoTokenizer.from_pretrained(path), load_tokenizer(path, ("eos_token",)), from_path):
        assert loaded.get_vocab() == tokenizer.get_vocab()
        assert loaded(text)["input_ids"] == ids
        assert encode_sentences(loaded, LINES[:50]) == encode_sentences(tokenizer, LINES[:50])
        assert list(loaded("a b")) == ["input_ids"]


def test_words_are_ordered_by_frequency_and_then_text(tmp_path: Path) -> None:
    lines = ["b B a <unk>s", "", " c  b\t<unk> <unk> <pad>"]
    tokenizer = make_tokenizer(tmp_path, "word", lines, vocab_size=None, lowercase=False)
    assert tokenizer.convert_ids_to_tokens(list(range(3, len(tokenizer)))) == ["b", "<unk>s", "B", "a", "c"]
    assert encode_sentences(tokenizer, [" c <unk> zebra  b", "", "<unk>s B"]) == [[7, 1, 1, 3], [], [4, 5]]
    assert tokenizer.decode([7, 1, 3]) == "c <unk> b"
    lowered = make_tokenizer(tmp_path, "word", lines, vocab_size=5)
    assert lowered.convert_ids_to_tokens([3, 4]) == ["b", "<unk>s"]
    assert encode_sentences(lowered, ["B a <UNK>S"]) == [[3, 1, 4]]


def test_bytes_equal_those_of_utf8(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path, "byte", lowercase=False, vocab_size=None)
    assert len(tokenizer) == 3 + 256
    text = " Größe  <eos>\u2009日本 \t. A\x00é"
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids) == text
    characters = [chr(code) for code in (*range(128), *range(128, 0x2000, 64))]
    encoded = encode_sentences(tokenizer, characters)
    pairs = {
        pair for text, ids in zip(characters, encoded, strict=True) for pair in zip(text.encode(), ids, strict=True)
    }
    assert len(dict(pairs)) == len({id for _, id in pairs}) == len(pairs)  # one id a byte
    assert min(ids) >= 3
    assert tokenizer.decode(make_tokenizer(tmp_path, "byte")("Aé")["input_ids"]) == "aé"


def test_pieces_equal_those_of_the_sentencepiece_library(tmp_path: Path) -> None:
    """Train the library on the words themselves, each as often as it occurs, and compare its pieces."""
    from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

    lines = [line.lower().replace("self", "a @-@ b <unk>") for line in LINES]
    counts = Counter(word for line in lines for word in line.split())
    proto = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=(f"{word}\t{count}" for word, count in counts.items()), model_writer=proto, vocab_size=400,
        input_format="tsv", pad_id=0, unk_id=1, eos_id=2, bos_id=-1, pad_piece="[P]", unk_piece="[U]", eos_piece="[E]",
        user_defined_symbols=["@-@"], normalization_rule_name="identity", minloglevel=2, num_threads=16,
        required_chars="<>adeknopsu",
    )  # fmt: skip
    reference = SentencePieceProcessor(model_proto=proto.getvalue())
    tokenizer = make_tokenizer(tmp_path, "unigram", lines, symbols=["@-@"])
    assert tokenizer.convert_ids_to_tokens(list(range(3, 400))) == [reference.id_to_piece(i) for i in range(3, 400)]
    assert encode_sentences(tokenizer, lines) == [reference.encode(line) for line in lines]
    assert tokenizer.tokenize("b 10@-@a")[-2:] == ["@-@", "a"]
    ids = tokenizer("a @-@ b")["input_ids"]
    assert tokenizer.decode(ids) == "a @-@ b"


def test_names_of_special_tokens_in_a_text_are_text(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path, "unigram", ["there is one cat", "there are two cats"] * 3, vocab_size=40)
    ids = tokenizer("one <unk> and <eos> <pad>")["input_ids"]
    assert not {0, 1, 2} & set(tokenizer("<eos> <pad> <unk>")["input_ids"])
    assert tokenizer.decode(ids) == "one <unk> and <eos> <pad>"
    assert tokenizer("é")["input_ids"][-1] == 1


def test_frequent_pieces_have_small_ids(tmp_path: Path) -> None:
    counts = Counter(id for ids in encode_sentences(make_tokenizer(tmp_path, "unigram"), LINES) for id in ids)
    by_frequency = sum(count for _, count in counts.most_common(100))
    assert sum(count for id, count in counts.items() if id < 103) > 0.9 * by_frequency


def test_a_tokenizer_is_trained_once_for_the_same_text_and_settings(tmp_path: Path) -> None:
    for settings in ({}, {}, {"lowercase": False}, {"symbols": ["the"]}, {"vocab_size": 300}, {"train_documents": 3}):
        make_tokenizer(tmp_path, "unigram", **settings)
    assert len(list(tmp_path.glob("tokenizer-*/"))) == 5
    cased = make_tokenizer(tmp_path, "unigram", lowercase=False)
    assert cased.tokenize("The") != cased.tokenize("the")


def test_bad_settings_are_one_line_errors(tmp_path: Path) -> None:
    for kind in ("unigram", "word"):
        with pytest.raises(DataError, match=r"^tokenizer: the training \w+ contains? no (text|word)"):
            make_tokenizer(tmp_path, kind, ["", " "])
    with pytest.raises(DataError, match=r"^tokenizer.vocab_size=8: "):
        make_tokenizer(tmp_path, "unigram", vocab_size=8)
    without = PreTrainedTokenizerFast(
        tokenizer_object=make_tokenizer(tmp_path, "word").backend_tokenizer, pad_token="<pad>"
    )
    without.save_pretrained(tmp_path / "without")
    with pytest.raises(DataError, match=r"the model needs eos_token, "):
        make_tokenizer(tmp_path, "word", path=str(tmp_path / "without"))


@pytest.mark.slow
@pytest.mark.data
def test_the_published_recipe_gives_nearly_the_published_counts(data_root: Path, tmp_path: Path) -> None:
    """Train 12,000 lower-cased pieces on WikiText-2 like Jmkernes/PAR-Transformer-XL (2021), without ends of lines.

    The published vocabulary has one special token more, and its normalisation folds cases instead of
    lower-casing.
    """
    published = {"train": 2_982_265, "valid": 314_913, "test": 357_981}
    texts = {
        name: (data_root / "wikitext-2" / f"wiki.{name}.tokens").read_text(encoding="utf-8").split("\n")
        for name in published
    }
    tokenizer = make_tokenizer(tmp_path, "unigram", texts["train"], vocab_size=12000, symbols=["@-@"])
    ids = {name: [id for line in encode_sentences(tokenizer, lines) for id in line] for name, lines in texts.items()}
    for name, count in published.items():
        assert len(ids[name]) == pytest.approx(count, rel=1e-3)
    train = ids["train"]
    for limit, share in ((250, 0.685), (2500, 0.903)):
        assert sum(id < limit for id in train) / len(train) == pytest.approx(share, abs=2e-3)
    assert tokenizer.tokenize("<unk> @-@") == ["▁<", "unk", ">", "▁", "@-@"]
