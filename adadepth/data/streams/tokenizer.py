"""Tokenizers of running text into subwords, whole words or bytes, without tokens such as [CLS] and [SEP]."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from adadepth.data.cache import CheckedSource, digest
from adadepth.data.text.tokenizer import ensure_tokenizer_file, load_tokenizer, split_long_text, train_unigram
from adadepth.errors import DataError

if TYPE_CHECKING:
    from adadepth.config import TokenizerConfig

# The position is the id.
_SPECIAL_TOKENS = {"pad_token": "<pad>", "unk_token": "<unk>", "eos_token": "<eos>"}
_SPECIAL = list(_SPECIAL_TOKENS.values())


def load_stream_tokenizer(
    config: TokenizerConfig,
    root: Path,
    text_key: Callable[[], str],
    lines: Callable[[], Iterable[str]],
    sources: Sequence[CheckedSource] = (),
) -> PreTrainedTokenizerFast:
    """Return the tokenizer of ``config.path``, or a cached one that is trained on ``lines``.

    The ids of a trained tokenizer are in order of falling frequency, as far as its kind allows:

    * ``unigram``: a SentencePiece model of the counts of words; a token with white space before it begins with ▁;
    * ``word``: the words between white space, in which a literal ``<unk>`` is the unknown token;
    * ``byte``: the 256 bytes of UTF-8, for every text.

    In ``unigram`` and ``byte``, a literal ``<unk>`` is ordinary text.

    Args:
        config: Settings with the path or the kind, and the size of the vocabulary, special tokens included.
        root: Cache folder.
        text_key: Function that returns values which identify the text. Like ``lines``, it is called only to train a
            tokenizer.
        lines: Function that yields the training text.
        sources: Sources of the text; see `ensure_folder`.

    Raises:
        DataError: If the tokenizer is missing or has no end-of-sequence token, or if the training text is empty.
    """
    if config.path is not None:
        return load_tokenizer(config.path, ("eos_token",))
    kind, symbols = str(config.kind), list(config.symbols)
    key = digest(text_key(), kind, config.vocab_size, config.lowercase, symbols, config.train_documents)
    train = {"unigram": _train_unigram, "word": _train_words, "byte": _build_bytes}[kind]
    file = ensure_tokenizer_file(root, key, lambda: train(config, lines), sources)
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(file.read_text(encoding="utf-8")),
        model_input_names=["input_ids"],
        split_special_tokens=True,
        **_SPECIAL_TOKENS,
    )


def _train_unigram(config: TokenizerConfig, lines: Callable[[], Iterable[str]]) -> Tokenizer:
    """Train a unigram tokenizer on the distinct words and their counts.

    This follows the SentencePiece version of 2021, which made the vocabulary of PAR-Transformer-XL. Pieces are
    substrings that several words share. A word that no other word contains is never a piece, however frequent it is.
    """
    assert config.vocab_size is not None, "checked with the configuration"
    normalizer = normalizers.Sequence([normalizers.NFKC(), *_build_lowercase(config)])
    counts = _count_words(lines(), normalizer)
    counted = (f"{part}\t{count}" for word, count in counts.items() for part in split_long_text(word))
    options = {"input_format": "tsv", "required_chars": "".join(sorted(set("".join(_SPECIAL))))}  # see _NEVER_TEXT
    return train_unigram(counted, config.vocab_size, _SPECIAL, normalizer, config.symbols, **options)


def _train_words(config: TokenizerConfig, lines: Callable[[], Iterable[str]]) -> Tokenizer:
    normalizer = normalizers.Sequence(_build_lowercase(config))
    counts = _count_words(lines(), normalizer)
    for token in _SPECIAL:
        counts.pop(token, None)
    if not counts:
        raise DataError("tokenizer: the training text contains no words")
    by_frequency = sorted(counts, key=lambda word: (-counts[word], word))
    room = None if config.vocab_size is None else max(config.vocab_size - len(_SPECIAL), 0)
    words = [*_SPECIAL, *by_frequency[:room]]
    unknown = _SPECIAL_TOKENS["unk_token"]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=unknown))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _add_special_tokens(tokenizer)


def _build_bytes(config: TokenizerConfig, lines: Callable[[], Iterable[str]]) -> Tokenizer:
    characters = sorted(pre_tokenizers.ByteLevel.alphabet())  # one for each byte
    vocabulary = {token: number for number, token in enumerate([*_SPECIAL, *characters])}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges=[]))
    tokenizer.normalizer = normalizers.Sequence(_build_lowercase(config))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _add_special_tokens(tokenizer)


def _build_lowercase(config: TokenizerConfig) -> list[normalizers.Normalizer]:
    return [normalizers.Lowercase()] if config.lowercase else []


def _count_words(lines: Iterable[str], normalizer: normalizers.Normalizer) -> Counter[str]:
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(normalizer.normalize_str(line).split())
    return counts


def _add_special_tokens(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_special_tokens(_SPECIAL)
    return tokenizer
