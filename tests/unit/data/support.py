"""Small corpus and helpers shared by the tests of the data package."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from adadepth.config import CorpusConfig, Source, TokenizerConfig
from adadepth.config.data import MaskingConfig, Separator
from adadepth.data.pretraining.masking import Vocabulary

SUBJECTS = ["cat", "dog", "bird", "fox", "horse", "lion", "tiger", "wolf", "bear", "owl", "mouse", "snake", "whale"]
VERBS = ["sees", "hears", "follows", "likes", "meets", "helps", "finds", "knows"]


def write_corpus(folder: Path, documents: int = 40, name: str = "corpus.txt") -> Path:
    """Write documents of 4 to 11 short sentences, a sentence a line, no two documents alike."""
    generator = np.random.default_rng(7)
    texts = []
    for number in range(documents):
        lines = [
            f"The {generator.choice(SUBJECTS)} {generator.choice(VERBS)} the {generator.choice(SUBJECTS)} "
            f"{'very ' * int(generator.integers(0, 4))}often in story {number}."
            for _ in range(4 + number % 8)
        ]
        texts.append("\n".join(lines))
    file = folder / name
    file.write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    return file


def flatten(lists: Iterable[Iterable[Any]]) -> list[Any]:
    return list(chain.from_iterable(lists))


def make_corpus_config(path: Any, cache: Path, **changes: Any) -> CorpusConfig:
    settings = {"name": "test", "source": Source.local, "path": str(path), "cache_dir": str(cache),
                "sequence_length": 32, "evaluation_fraction": 0.2}  # fmt: skip
    return CorpusConfig(**{**settings, **changes})


def make_tokenizer_config() -> TokenizerConfig:
    return TokenizerConfig(vocab_size=60)


def make_vocabulary(size: int = 1000, word_every: int = 1) -> Vocabulary:
    """Return ids of which 0..4 are pad, unk, cls, sep and mask; of the others every ``word_every``-th begins a word."""
    ordinary = np.arange(5, size)
    rank = np.full(size, -1)
    rank[ordinary] = np.arange(len(ordinary))
    return Vocabulary(0, 2, 3, 4, ordinary, rank, np.arange(size) % word_every == 0)


__all__ = ["CorpusConfig", "MaskingConfig", "Separator", "Source", "TokenizerConfig"]


def is_same_example(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """Return whether two examples have the same fields with the same values."""
    return first.keys() == second.keys() and all(np.array_equal(first[key], second[key]) for key in first)
