"""Tokenizer of pretraining: pieces, special tokens, and its training."""

from __future__ import annotations

import logging
import random
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from adadepth.data import RunData
from adadepth.data.text import tokenizer as module
from adadepth.data.text.corpora import read_embedded_documents
from adadepth.data.text.passages import split_sentences
from adadepth.data.text.tokenizer import ensure_tokenizer_file, load_tokenizer, train_tokenizer, wrap_tokenizer
from adadepth.errors import DataError


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    return [sentence for document in list(read_embedded_documents())[:40] for sentence in split_sentences(document)]


@pytest.fixture(scope="module")
def tokenizer(sentences: list[str]) -> PreTrainedTokenizerFast:
    return wrap_tokenizer(Tokenizer.from_str(train_tokenizer(sentences, 500, lowercase=True).to_str()))


def test_special_tokens_have_albert_ids(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer.convert_ids_to_tokens([0, 1, 2, 3, 4]) == ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    assert len(tokenizer) == 500
    encoded = tokenizer("The name", "of it")
    ids, types = encoded["input_ids"], encoded["token_type_ids"]
    first = len(tokenizer.tokenize("The name")) + 2
    assert (ids[0], ids[first - 1], ids[-1]) == (2, 3, 3)
    assert types == [0] * first + [1] * (len(ids) - first)
    assert tokenizer("a [MASK] b <unk>")["input_ids"].count(4) == 1
    assert set(tokenizer.all_special_ids) == {0, 1, 2, 3, 4}


def test_text_is_lowercased_and_stripped_of_accents(tokenizer: PreTrainedTokenizerFast, sentences: list[str]) -> None:
    assert tokenizer.tokenize("Ｎaïve ÉLAN") == tokenizer.tokenize("naive elan")
    assert tokenizer.tokenize("the")[0] == "▁the"
    assert (
        tokenizer.decode(tokenizer("The value is here.")["input_ids"], skip_special_tokens=True) == "the value is here."
    )
    cased = train_tokenizer(sentences, 500, lowercase=False)
    assert cased.encode("The").tokens != cased.encode("the").tokens


def test_ids_equal_those_of_the_sentencepiece_model(sentences: list[str]) -> None:
    """Compare with an independent implementation, trained and run by the SentencePiece library."""
    import io

    from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

    proto = io.BytesIO()
    lowered = [sentence.lower() for sentence in sentences if sentence.isascii() and "''" not in sentence]
    SentencePieceTrainer.train(
        sentence_iterator=iter(lowered), model_writer=proto, vocab_size=400, pad_id=0, unk_id=1, bos_id=-1, eos_id=-1,
        pad_piece="<pad>", normalization_rule_name="identity", control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        minloglevel=2,
    )  # fmt: skip
    reference = SentencePieceProcessor(model_proto=proto.getvalue())
    ours = train_tokenizer(lowered, 400, lowercase=True)
    for sentence in lowered[:200]:
        assert ours.encode(sentence, add_special_tokens=False).tokens == reference.encode(sentence, out_type=str)


def test_training_is_deterministic(sentences: list[str]) -> None:
    assert train_tokenizer(sentences, 300, True).to_str() == train_tokenizer(iter(sentences), 300, True).to_str()


@pytest.mark.parametrize("with_model_config", [False, True])
def test_auto_tokenizer_loads_a_saved_tokenizer(
    tokenizer: PreTrainedTokenizerFast, sentences: list[str], tmp_path: Path, with_model_config: bool
) -> None:
    tokenizer.save_pretrained(tmp_path)
    if with_model_config:
        (tmp_path / "config.json").write_text('{"model_type": "albert"}')
    for loaded in (AutoTokenizer.from_pretrained(tmp_path), load_tokenizer(str(tmp_path))):
        assert loaded.get_vocab() == tokenizer.get_vocab()
        assert loaded.special_tokens_map == tokenizer.special_tokens_map
        assert loaded(sentences[:50])["input_ids"] == tokenizer(sentences[:50])["input_ids"]
        assert loaded("Ein", "Paar")["token_type_ids"] == tokenizer("Ein", "Paar")["token_type_ids"]


def test_a_vocabulary_that_the_text_cannot_fill_is_smaller_with_a_message(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        small = train_tokenizer(["some words of some text"] * 3, 5000, True)
    assert small.get_vocab_size() < 100
    assert f"the text supports only {small.get_vocab_size()} pieces" in caplog.text
    assert "tokenizer.vocab_size=5000:" not in caplog.text, "it may be the default"


def test_bad_texts_and_settings_are_one_line_errors(
    data: RunData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match=r"tokenizer.vocab_size=8: the characters of the text already need \d+"):
        train_tokenizer(["the quick brown fox jumps over the lazy dog"], 8, True)
    with pytest.raises(DataError, match="the training documents contain no text"):
        train_tokenizer(["", "<unk> [MASK]"], 100, True)

    def yield_broken_text() -> Iterator[str]:
        yield "some text"
        raise DataError("the file is not UTF-8")

    with pytest.raises(DataError, match=r"^the file is not UTF-8$"):
        train_tokenizer(yield_broken_text(), 100, True)
    (tmp_path / "albert").mkdir()
    with pytest.raises(DataError, match=r"no such folder \(did you mean 'albert'\?\)"):
        load_tokenizer(str(tmp_path / "albertt"))
    with pytest.raises(DataError, match=r"tokenizer.path=.*albert: no tokenizer in this folder"):
        load_tokenizer(str(tmp_path / "albert"))
    with pytest.raises(DataError, match=r"tokenizer.path=some/name: .*tokenizer.path=null to train one"):
        load_tokenizer("some/name")
    data.tokenizer.save_pretrained(tmp_path / "maskless")
    maskless = AutoTokenizer.from_pretrained(tmp_path / "maskless")
    maskless.mask_token = None
    monkeypatch.setattr("adadepth.data.text.tokenizer.AutoTokenizer.from_pretrained", lambda *_, **__: maskless)
    with pytest.raises(DataError, match="the model needs mask_token, which this tokenizer lacks"):
        load_tokenizer(str(tmp_path / "maskless"))


@pytest.mark.slow
def test_a_word_of_megabytes_is_divided(sentences: list[str]) -> None:
    """Train on a word at which SentencePiece fails as a whole, with a score that is not finite."""
    long = "".join(random.Random(0).choices("abcdefghij", k=20_000)) + "a" * 200_000
    tokenizer = train_tokenizer([*sentences[:50], long], 200, lowercase=True)
    assert tokenizer.encode(long[:50]).tokens


@pytest.mark.slow
def test_a_signal_ends_the_training_of_a_vocabulary() -> None:
    """End the process at once, with the status of the signal."""
    program = textwrap.dedent("""
        import os, random, signal, sys, threading
        from adadepth.data.text.tokenizer import train_tokenizer
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        words = ["".join(random.choices("abcdefghij", k=random.randint(2, 9))) for _ in range(30_000)]
        texts = [" ".join(random.choices(words, k=12)) for _ in range(60_000)]
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
        train_tokenizer(texts, 100_000, True)
    """)
    ended = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (143, "")


def test_a_long_training_has_a_hint_to_shorten_it(
    sentences: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Print a line after a few seconds, none for a shorter training, and none for a tokenizer in the cache."""

    def train() -> Tokenizer:
        time.sleep(0.2)
        return train_tokenizer(sentences, 200, lowercase=True)

    ensure_tokenizer_file(tmp_path, "short", train)
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(module, "_SECONDS_IN_SILENCE", 0.01)
    for expected in (1, 0):
        ensure_tokenizer_file(tmp_path, "long", train)
        assert capsys.readouterr().out.count("tokenizer.train_documents=N reads only the first N documents") == expected
