"""Where tokens come from."""

from dataclasses import dataclass
from enum import StrEnum

from adadepth.declaration import at_least, between, setting

TokenizerKind = StrEnum("TokenizerKind", ["unigram", "word", "byte"])


@dataclass
class TokenizerConfig:
    """An existing tokenizer, or one trained on the corpus."""

    path: str | None = setting(None, "folder or hub id; None: train one")
    kind: TokenizerKind = setting(
        TokenizerKind.unigram, "pieces of words; streams of text also take whole words, or bytes"
    )
    vocab_size: int | None = setting(
        8000, "of a trained tokenizer; of words, None: all", between(32, 1_000_000), shape=True, debug=300
    )
    lowercase: bool = setting(True, "of a trained tokenizer")
    symbols: list[str] = setting([], "of a trained tokenizer: what is never taken apart")
    train_documents: int | None = setting(None, "train on the first documents only", at_least(1))
