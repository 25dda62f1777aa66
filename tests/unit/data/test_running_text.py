"""Text with its newlines: pieces compared with whole documents in several tokenizers, and bounds of documents."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from adadepth.config import Source, TokenizerConfig
from adadepth.config.data import CausalConfig, Separator
from adadepth.config.experiment import TokenizerKind
from adadepth.data.streams.blocks import TextBlocks, load_text_blocks
from adadepth.data.streams.running_text import build_piece_encoding, mark_first_pieces, split_pieces
from adadepth.data.text.local_files import mark_lines
from tests.unit.data.tokenizers_support import tokenizer

BYTES = TokenizerConfig(path=None, kind=TokenizerKind.byte, vocab_size=None, lowercase=False)
PIECES = [
    "The",
    "a",
    "cat",
    "12",
    ".",
    ",",
    " ",
    "  ",
    "\t",
    "\n",
    "\n\n",
    "\n ",
    " \n",
    "/",
    "=",
    "é",
    "\x1f",
    "don't",
]
# Pre-tokenisation patterns of Llama 3 and of o200k, as in their tokenizer.json files.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = LLAMA3.replace(r"[\r\n]*|", r"[\r\n/]*|")


def draw_text(generator: random.Random, pieces: int) -> str:
    return "".join(generator.choices(PIECES, k=pieces))


def train(pre_tokenizer: Any, normalizer: Any = None) -> PreTrainedTokenizerFast:
    """Return a tokenizer with merges of white space, newlines and letters, as far as its division allows them."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        core.normalizer = normalizer
    texts = [draw_text(random.Random(seed), 60) for seed in range(60)]
    settings: Any = {"vocab_size": 500, "special_tokens": ["<e>"], "show_progress": False}
    core.train_from_iterator(
        texts, trainers.BpeTrainer(**settings, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    )
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<e>")


def divide(pattern: str) -> Any:
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def build_single_token(character: str) -> Any:
    return pre_tokenizers.Split(character, "isolated")


def build_llama2() -> PreTrainedTokenizerFast:
    """Return a tokenizer whose blanks are letters; one stands before every text, and newlines are single tokens."""
    blanks = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return train(build_single_token("\n"), blanks)


KINDS: dict[str, Any] = {
    "gpt2": lambda: train(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "a blank before every text": lambda: train(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "llama3": lambda: train(divide(LLAMA3)),
    "o200k": lambda: train(divide(O200K)),
    "llama2": build_llama2,
    "newlines are blanks": lambda: tokenizer("t5"),
    "a blank before the first word": lambda: train(
        pre_tokenizers.Sequence([pre_tokenizers.Metaspace(prepend_scheme="first"), build_single_token("\n")])
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_have_the_tokens_of_whole_documents(kind: str) -> None:
    """Compare with whole drawn documents, in which every line and every run of blanks may be a bound."""
    words, generator = KINDS[kind](), random.Random(5)
    documents = [draw_text(generator, generator.randint(1, 40)).strip("\n") for _ in range(150)]
    documents = [document for document in documents if document]
    lines = [(line, number == 0) for text in documents for number, line in enumerate(text.split("\n"))]
    pieces = list(split_pieces(lines))
    assert len(pieces) > 1.5 * len(documents)
    for append_eos in (True, False):
        arrays = build_piece_encoding(words, append_eos).encode(pieces)
        offsets = np.concatenate([[0], np.cumsum(arrays["lines"][:, 0])])[:-1][list(mark_first_pieces(pieces))]
        documents_tokens = [part.tolist() for part in np.split(arrays["tokens"], offsets)[1:]]
        end = [words.eos_token_id] * append_eos
        assert documents_tokens == [words(text, add_special_tokens=False)["input_ids"] + end for text in documents]
        assert arrays["lines"][:, 2].sum() == sum(len(text) + append_eos for text in documents)
        assert arrays["lines"][:, 1].sum() == sum(len(text.split()) + append_eos for text in documents)


def make_config(tmp_path: Path, path: Any, **changes: Any) -> CausalConfig:
    settings: dict[str, Any] = {
        "name": "text", "source": Source.local, "path": path, "evaluation_fraction": 0.2, "sequence_length": 8,
        "cache_dir": str(tmp_path / "cache"), "prepare_workers": 1, "keep_newlines": True,
    }  # fmt: skip
    return CausalConfig(**{**settings, **changes})


def decode_documents(blocks: TextBlocks, words: PreTrainedTokenizerFast) -> list[str]:
    parts = zip(blocks.offsets, blocks.offsets[1:], strict=False)
    return [words.decode(blocks.store.tokens[first:last].tolist()) for first, last in parts]


def test_documents_are_files_and_rows_of_tables(tmp_path: Path) -> None:
    """Keep newlines except those around documents; a file that is divided ends where it is cut."""
    (tmp_path / "1.txt").write_text("\n\nab\r\n\n  cd\n\n")
    (tmp_path / "2.txt").write_text("ef\ngh")
    (tmp_path / "3.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in ("i\n\nj\n", "k", "\n")))
    (tmp_path / "4.txt").write_text("l\nm\nn\n")
    files = [str(tmp_path / name) for name in ("1.txt", "2.txt", "3.jsonl", "4.txt")]
    data = load_text_blocks(make_config(tmp_path, files), BYTES)
    assert decode_documents(data.train, data.tokenizer) == ["ab\n\n  cd<eos>", "ef\ngh<eos>", "i\n\nj<eos>", "k<eos>"]
    assert decode_documents(data.evaluation["held_out"], data.tokenizer) == ["l\nm\nn<eos>"]
    without = load_text_blocks(make_config(tmp_path, files, append_eos=False), BYTES)
    assert decode_documents(without.train, data.tokenizer) == ["ab\n\n  cd", "ef\ngh", "i\n\nj", "k"]
    assert data.summary["keep_newlines"]
    assert "lines" not in data.summary["train"]
    dropped = load_text_blocks(make_config(tmp_path, files, keep_newlines=None), BYTES)
    assert decode_documents(dropped.evaluation["held_out"], data.tokenizer)[-1].endswith("m<eos>n<eos>")


@pytest.mark.parametrize("separator", [Separator.blank_line, Separator.line, Separator.heading])
def test_separators_divide_a_file(tmp_path: Path, separator: Separator) -> None:
    """Compare with the lines that `mark_lines` marks, which another test compares with a plain reading."""
    text = " = A = \n\n ab\n\n\n = B = \n\n cd\n  ef\n"
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "held.txt").write_text("x\n")
    config = make_config(tmp_path, str(tmp_path / "a.txt"), evaluation_path=str(tmp_path / "held.txt"))
    config.document_separator, config.append_eos = separator, False
    data = load_text_blocks(config, BYTES)
    expected: list[str] = []
    for line, begins in mark_lines(text.removesuffix("\n").split("\n"), str(separator)):
        expected = [*expected, line] if begins else [*expected[:-1], f"{expected[-1]}\n{line}"]
    assert decode_documents(data.train, data.tokenizer) == [document.strip("\n") for document in expected]


def test_files_can_be_documents_of_lines(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text("c\n\nd\n")
    config = make_config(tmp_path, str(tmp_path), document_separator=Separator.file, keep_newlines=False)
    (tmp_path / "held").mkdir()
    (tmp_path / "held" / "x.txt").write_text("e\nf\n")
    config.path = [str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]
    config.evaluation_path = str(tmp_path / "held")
    data = load_text_blocks(config, BYTES)
    assert decode_documents(data.train, data.tokenizer) == ["c<eos><eos>d<eos>"] * 2
    assert decode_documents(data.evaluation["held_out"], data.tokenizer) == ["e<eos>f<eos>"]
