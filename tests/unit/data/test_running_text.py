"""Text with its newlines: pieces against whole documents in several kinds of tokenizers, and the bounds of documents."""

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
from adadepth.data.streams.blocks import TextBlocks, load_text_blocks
from adadepth.data.streams.running_text import build_piece_encoding, mark_first_pieces, split_pieces
from adadepth.data.text.local_files import mark_lines
from tests.unit.data.tokenizers_support import tokenizer

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
# The divisions of Llama 3 and of o200k, as their tokenizer.json files have them.
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = LLAMA3.replace(r"[\r\n]*|", r"[\r\n/]*|")


def draw_text(generator: random.Random, pieces: int) -> str:
    return "".join(generator.choices(PIECES, k=pieces))


def train(pre_tokenizer: Any, normalizer: Any = None) -> PreTrainedTokenizerFast:
    """A tokenizer with merges of white space, newlines and letters, as far as its division allows them."""
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


def as_llama2() -> PreTrainedTokenizerFast:
    """Blanks are letters, one stands before every text, and newlines are no part of other tokens."""
    split = pre_tokenizers.Split(Regex(r"\n"), "isolated")
    blanks = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return train(split, blanks)


KINDS: dict[str, Any] = {
    "gpt2": lambda: train(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "a blank before every text": lambda: train(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "llama3": lambda: train(divide(LLAMA3)),
    "o200k": lambda: train(divide(O200K)),
    "llama2": as_llama2,
    "newlines are blanks": lambda: tokenizer("t5"),
    "bert": lambda: tokenizer("bert"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_have_the_tokens_of_whole_documents(kind: str) -> None:
    """The tokenizer itself over documents of drawn text, in which every line and every run of blanks may be a bound."""
    words, generator = KINDS[kind](), random.Random(5)
    documents = [draw_text(generator, generator.randint(1, 40)).strip("\n") for _ in range(150)]
    documents = [document for document in documents if document]
    lines = [(line, number == 0) for text in documents for number, line in enumerate(text.split("\n"))]
    pieces = list(split_pieces(lines))
    assert len(pieces) > 1.5 * len(documents)
    for append_eos in (True, False):
        arrays = build_piece_encoding(words, append_eos).encode(pieces)
        offsets = np.concatenate([[0], np.cumsum(arrays["lines"][:, 0])])[:-1][list(mark_first_pieces(pieces))]
        found = [part.tolist() for part in np.split(arrays["tokens"], offsets)[1:]]
        end = [words.eos_token_id] * append_eos if words.eos_token_id is not None else []
        assert found == [words(text, add_special_tokens=False)["input_ids"] + end for text in documents]
        assert arrays["lines"][:, 2].sum() == sum(len(text) + append_eos for text in documents)
        assert arrays["lines"][:, 1].sum() == sum(len(text.split()) + append_eos for text in documents)
