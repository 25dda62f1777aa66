"""Tokenizers: loading a fast tokenizer, training a unigram model, encoding, and adaptation to a layout and a model."""

from __future__ import annotations

import atexit
import copy
import io
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unicodedata import normalize

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from adadepth.data.cache import CheckedSource, digest, ensure_folder
from adadepth.data.text.characters import extend_spans
from adadepth.data.text.local_files import to_path
from adadepth.data.text.special_tokens import Layout, Template, read_template
from adadepth.errors import DataError, UnreachableError, nearest, refuse_panics
from adadepth.runtime.console import say
from adadepth.runtime.hub_access import check_hub, get_first_line, load_with_code_policy, resolve_path

if TYPE_CHECKING:
    from adadepth.config import TokenizerConfig


logger = logging.getLogger(__name__)

# ALBERT's special tokens; the position is the id, as in the published vocabularies.
SPECIAL_TOKENS = {
    "pad_token": "<pad>",
    "unk_token": "<unk>",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
PRETRAINING_TOKENS = tuple(name for name in SPECIAL_TOKENS if name != "unk_token")
TOKENIZER_FILE = "tokenizer.json"
# Options of a call for ids alone, without special tokens.
_ALONE = {"return_attention_mask": False, "return_token_type_ids": False}
PLAIN_IDS: dict[str, Any] = {"add_special_tokens": False, "truncation": False, "verbose": False, **_ALONE}
# Key of a warning of transformers about texts that are cut afterwards; True: it was given.
LENGTH_WARNING = "sequence-length-is-longer-than-the-specified-maximum"
_FILES = ("tokenizer.json", "vocab*", "*.model", "*.tiktoken")  # with the pieces of tokenizers of any age
_NEVER_TEXT = -1e4  # score of a special token, far below that of its characters: text never becomes one
_LONGEST_PART = 10_000  # characters; a cut may split one piece of thousands
_LIMITS: dict[str, Any] = {"max_sentence_length": 10**9, "minloglevel": 2}  # no limit, and a log of errors only
_SECONDS_IN_SILENCE = 3.0
_LONG_TRAINING = (
    "training a tokenizer on the training text, once for all runs with this text; tokenizer.train_documents=N reads "
    "only the first N documents, and tokenizer.path=FOLDER uses an existing tokenizer"
)
_TRAINING_THREADS = 16  # fixed, because sums over another number of threads round differently


def list_needed_tokens(cls_tokens: int) -> tuple[str, ...]:
    """Return the special tokens that labelled data need, for a model with the given number of [CLS] tokens."""
    return ("pad_token", "cls_token", "sep_token") if cls_tokens else ("pad_token",)


def load_tokenizer(path: str, needed: Sequence[str] = PRETRAINING_TOKENS) -> PreTrainedTokenizerFast:
    """Return the tokenizer of a folder, a hub id or ``package:NAME/FOLDER``. It must have the ``needed`` tokens.

    Raises:
        CheckpointError: If the package does not exist.
        DataError: If the tokenizer does not exist or is not fast, if the hub cannot be reached, or if a token is
            missing.
    """
    tokenizer: PreTrainedTokenizerFast = _load(resolve_path("tokenizer.path", path))
    if not getattr(tokenizer, "is_fast", False):
        raise DataError(f"tokenizer.path={path}: not a fast tokenizer (it has no {TOKENIZER_FILE})")
    if len(tokenizer) <= len(tokenizer.all_special_ids):  # transformers invents one where it finds no pieces
        raise DataError(f"tokenizer.path={path}: it has {len(tokenizer)} special tokens and no other pieces")
    missing = [name for name in needed if getattr(tokenizer, name) is None]
    if missing:
        raise DataError(f"tokenizer.path={path}: the model needs {', '.join(missing)}, which this tokenizer lacks")
    return tokenizer


def _load(path: str) -> Any:
    folder = to_path("tokenizer.path", path)
    alternative = (
        "give a local folder with tokenizer.path=... or, for a model without pretrained weights, tokenizer.path=null "
        "to train one"
    )
    if folder.exists() or path.startswith((".", "/", "~")):
        siblings = [entry.name for entry in folder.parent.iterdir()] if folder.parent.is_dir() else []
        if not folder.is_dir():
            raise DataError(f"tokenizer.path={path}: no such folder{nearest(folder.name, siblings)}")
        if not any(match for pattern in _FILES for match in folder.glob(pattern)):
            raise DataError(f"tokenizer.path={path}: no tokenizer in this folder; give one with tokenizer.path=...")
        attempts: list[dict[str, Any]] = [{"local_files_only": True}]
    else:
        attempts = [{"local_files_only": True}, {}]  # earlier downloads need no network
    for number, options in enumerate(attempts):
        if not options:
            check_hub(f"tokenizer.path={path}", alternative, UnreachableError)
        try:
            source = str(folder) if folder.exists() else path
            return load_with_code_policy(source, partial(_load_pretrained, source, options))
        except Exception as error:  # the library has no class for the errors of a damaged file
            if number == len(attempts) - 1:
                reason = get_first_line(error)
                kind = DataError if folder.exists() else UnreachableError
                raise kind(f"tokenizer.path={path}: cannot load a tokenizer ({reason}); {alternative}") from error
    raise AssertionError("unreachable")


def _load_pretrained(source: str, options: dict[str, Any], trust_remote_code: bool) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code, **options)
    tokenizer.deprecation_warnings[LENGTH_WARNING] = True
    return tokenizer


def train_tokenizer(texts: Iterable[str], vocab_size: int, lowercase: bool, symbols: Sequence[str] = ()) -> Tokenizer:
    """Train a vocabulary in the way of ALBERT: a SentencePiece unigram model of at most ``vocab_size`` pieces.

    If the text has fewer distinct pieces, the vocabulary is smaller and a warning is logged.

    Args:
        texts: Sentences to train on.
        vocab_size: Maximum number of pieces, special tokens included.
        lowercase: Whether to lower-case text and strip accents, as ALBERT does.
        symbols: Texts that are always one piece each.

    Raises:
        DataError: If there is no text, or if it has too many different characters for ``vocab_size``.
    """
    normalizer = _build_normalizer(lowercase)
    special = re.compile("|".join(map(re.escape, SPECIAL_TOKENS.values())))
    parts = (part for text in texts for part in split_long_text(special.sub(" ", text)))
    sentences = (normalizer.normalize_str(part) for part in parts)
    tokenizer = train_unigram(sentences, vocab_size, list(SPECIAL_TOKENS.values()), normalizer, symbols)
    wrap_texts(tokenizer)
    return tokenizer


def split_long_text(text: str) -> Iterator[str]:
    """Cut text that is far longer than a sentence, because training time grows with the square of the length."""
    return (text[first : first + _LONGEST_PART] for first in range(0, len(text), _LONGEST_PART))


def wrap_texts(tokenizer: Tokenizer) -> None:
    """Configure a tokenizer to put [CLS] and [SEP] around texts and pairs of texts, as ALBERT does."""
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )


def train_unigram(
    sentences: Iterable[str],
    vocab_size: int,
    special_tokens: Sequence[str],
    normalizer: normalizers.Normalizer,
    symbols: Sequence[str] = (),
    **options: Any,
) -> Tokenizer:
    """Train a SentencePiece unigram model.

    The ids are first those of the special tokens, then those of the symbols, then the other pieces in order of falling
    score. Training uses the SentencePiece library, because its result is reproducible and that of ``tokenizers`` is
    not.

    Args:
        sentences: Normalised text to train on.
        vocab_size: Maximum number of pieces, special tokens and symbols included.
        special_tokens: Special tokens in the order of their ids. The second one is the unknown token. Training treats
            their names as ordinary text.
        normalizer: Normalizer of the tokenizer and of the symbols.
        symbols: Texts that are always one piece each.
        options: Additional options of SentencePiece.

    Raises:
        DataError: If there is no text, or if it has too many different characters for ``vocab_size``.
    """
    from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

    unreadable: list[DataError] = []

    def relay_sentences() -> Iterator[str]:
        try:
            yield from sentences
        except DataError as error:  # the trainer would hide it
            unreadable.append(error)
            raise

    symbols = [normalizer.normalize_str(symbol) for symbol in symbols]
    hidden = [f"special token {number}" for number in range(len(special_tokens))]  # no text, which has ▁ for spaces
    proto = io.BytesIO()
    ids: dict[str, Any] = {
        "unk_id": 0,
        "bos_id": -1,
        "eos_id": -1,
        "unk_piece": hidden[0],
        "control_symbols": hidden[1:],
    }
    size: dict[str, Any] = {"vocab_size": vocab_size, "hard_vocab_limit": False, "user_defined_symbols": symbols}
    text: dict[str, Any] = {"sentence_iterator": relay_sentences(), "normalization_rule_name": "identity"}
    work: dict[str, Any] = {"model_writer": proto, "model_type": "unigram", "num_threads": _TRAINING_THREADS}
    train = partial(SentencePieceTrainer.train, **text, **size, **ids, **work, **_LIMITS, **options)
    try:
        _run_interruptible(train)
    except (RuntimeError, ValueError) as error:
        raise unreadable[0] if unreadable else DataError(_explain_training_error(vocab_size, str(error))) from error
    trained = SentencePieceProcessor(model_proto=proto.getvalue())
    pieces = [(trained.id_to_piece(i), trained.get_score(i)) for i in range(trained.vocab_size())]
    pieces[: len(hidden)] = [(token, _NEVER_TEXT) for token in special_tokens]
    if len(pieces) < vocab_size:
        logger.warning(
            "the text supports only %d pieces, so the vocabulary is smaller than tokenizer.vocab_size=%d",
            len(pieces),
            vocab_size,
        )
    return _build_unigram(pieces, special_tokens, normalizer, symbols)


def _run_interruptible(work: Callable[[], object]) -> None:
    """Run slow native code in a thread, so that the main thread can handle Ctrl-C and SIGTERM.

    A signal does not stop the thread. At exit, Python would stop it while the library has threads of its own, which
    aborts the process. The process therefore exits before that.
    """
    failed: list[BaseException] = []
    ended = threading.Event()  # after a signal interrupts `join`, the thread counts as ended

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)
        finally:
            ended.set()

    threading.Thread(target=run, daemon=True).start()
    try:
        ended.wait()
    except BaseException as error:
        status = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 130
        atexit.register(_exit_process, ended, status)
        raise
    if failed:
        raise failed[0]


def _exit_process(ended: threading.Event, status: int) -> None:
    if not ended.is_set():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _explain_training_error(vocab_size: int, message: str) -> str:
    """Rewrite an error of the tokenizer trainer so that it names our configuration keys."""
    if "sentences_.empty()" in message or "all_chars_count" in message:
        return "tokenizer: the training documents contain no text"
    needed = re.search(r"required_chars\. \d+ vs (\d+)", message)
    reason = f"the characters of the text already need {needed[1]}" if needed else " ".join(message.split())
    return f"tokenizer.vocab_size={vocab_size}: {reason}"


def load_or_train(
    config: TokenizerConfig,
    root: Path,
    text_key: Callable[[], str],
    sentences: Callable[[], Iterable[str]],
    needed: Sequence[str] = PRETRAINING_TOKENS,
    sources: Sequence[CheckedSource] = (),
) -> PreTrainedTokenizerFast:
    """Return the tokenizer of ``config.path``, or a cached one that is trained on ``sentences``.

    Args:
        config: Settings with the path of the tokenizer or with its training.
        root: Cache folder.
        text_key: Function that returns values which identify the text. Like ``sentences``, it is called only to train a
            tokenizer.
        sentences: Function that yields the text of the first ``config.train_documents`` documents.
        needed: Special tokens that an existing tokenizer must have.
        sources: Sources of the text; see `ensure_folder`.
    """
    if config.path is not None:
        return load_tokenizer(config.path, needed)

    def train() -> Tokenizer:
        assert config.vocab_size is not None, "checked with the configuration"
        return train_tokenizer(sentences(), config.vocab_size, config.lowercase, config.symbols)

    key = digest(text_key(), config.vocab_size, config.lowercase, list(config.symbols), config.train_documents)
    file = ensure_tokenizer_file(root, key, train, sources)
    return wrap_tokenizer(Tokenizer.from_str(file.read_text(encoding="utf-8")))


def ensure_tokenizer_file(
    root: Path, key: str, train: Callable[[], Tokenizer], sources: Sequence[CheckedSource] = ()
) -> Path:
    """Return the file of a tokenizer. If the cache does not hold it, the tokenizer is trained first.

    If this takes more than a few seconds, a line names the settings that shorten it.
    """

    def build(folder: Path) -> None:
        message = threading.Timer(_SECONDS_IN_SILENCE, say, [_LONG_TRAINING])
        message.daemon = True
        message.start()
        try:
            (folder / TOKENIZER_FILE).write_text(train().to_str(), encoding="utf-8")
        finally:
            message.cancel()

    return ensure_folder(root, f"tokenizer-{key}", build, sources=sources) / TOKENIZER_FILE


def wrap_tokenizer(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """Return a tokenizer as the transformers class that ``AutoTokenizer`` loads from a saved folder."""
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        bos_token=SPECIAL_TOKENS["cls_token"],
        eos_token=SPECIAL_TOKENS["sep_token"],
        **SPECIAL_TOKENS,
    )


def _build_normalizer(lowercase: bool) -> normalizers.Normalizer:
    quotes = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not lowercase:
        return normalizers.Sequence([*quotes, normalizers.NFKC()])
    return normalizers.Sequence(
        [*quotes, normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase(), normalizers.NFC()]
    )


def _build_unigram(
    pieces: list[tuple[str, float]],
    special_tokens: Sequence[str],
    normalizer: normalizers.Normalizer,
    symbols: Sequence[str],
) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=1))
    tokenizer.normalizer = normalizer
    splits = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    if symbols:
        by_length = sorted(symbols, key=len, reverse=True)
        splits.append(pre_tokenizers.Split(Regex("|".join(map(re.escape, by_length))), "isolated"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(list(special_tokens))
    return tokenizer


@refuse_panics("tokenizer")
def encode_sentences(tokenizer: PreTrainedTokenizerFast, sentences: list[str]) -> list[list[int]]:
    """Return the token ids of each sentence, without special tokens or truncation."""
    backend = tokenizer.backend_tokenizer  # a third faster than a call, which also finds the spans of tokens
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = tokenizer.split_special_tokens
    return [encoding.ids for encoding in backend.encode_batch_fast(sentences, add_special_tokens=False)]


def get_tokenizer_key(tokenizer: PreTrainedTokenizerFast) -> list[Any]:
    """Return JSON values that determine how a tokenizer encodes text, for the names of cache folders.

    The file of the tokenizer lacks two of these values. One is whether the names of special tokens in a text are
    ordinary text. The other is the token of a word without pieces.
    """
    return [tokenizer.backend_tokenizer.to_str(), tokenizer.split_special_tokens, tokenizer.unk_token_id]


@refuse_panics("tokenizer")
def _check_spans(tokenizer: PreTrainedTokenizerFast, texts: list[str], encodings: list[tuple[list[int], Any]]) -> None:
    """Raise an error if a fifth of the spans of the first tokens have other letters than their tokens.

    Some tokenizers divide texts twice and count the characters of the second division only. Single tokens may differ,
    such as parts of a character.

    Raises:
        DataError: Names a token and its span.
    """
    pairs = [
        (str(tokenizer.decode([token])), text[start:end])
        for text, (ids, spans) in zip(texts[:8], encodings[:8], strict=True)
        for token, (start, end) in zip(ids[:64], spans[:64], strict=True)
        if token != tokenizer.unk_token_id
    ]
    letters = [
        tuple("".join(filter(str.isalnum, normalize("NFKD", part).casefold())) for part in pair) for pair in pairs
    ]
    wrong = [pair for pair, (token, span) in zip(pairs, letters, strict=True) if token and token != span]
    if len(wrong) > 4 and 5 * len(wrong) > sum(bool(token) for token, _ in letters):
        raise DataError(
            f"tokenizer.path={tokenizer.name_or_path}: its offsets are wrong, so answers have no place: the token "
            f"{wrong[0][0]!r} would be {wrong[0][1]!r} in the text"
        )


def encode_with_spans(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> list[tuple[list[int], np.ndarray]]:
    """Return the token ids and token spans of each text, without special tokens and without truncation.

    Spans, (tokens, 2) int32, are the first character of each token and the index after its last one. They exclude the
    space before a word, which some tokenizers include. They end with whole characters; see `extend_spans`.
    """
    encoded = tokenizer(texts, add_special_tokens=False, truncation=False, verbose=False)
    encodings = []
    for text, encoding in zip(texts, encoded.encodings or [], strict=True):
        spans = np.array(extend_spans(text, encoding.offsets), dtype=np.int32).reshape(-1, 2)
        for number in np.flatnonzero([text[start:end].lstrip() != text[start:end] for start, end in spans]):
            start, end = spans[number]
            spans[number, 0] = end - len(text[start:end].lstrip())
        encodings.append((encoding.ids, spans))
    _check_spans(tokenizer, texts, encodings)
    return encodings


@refuse_panics("tokenizer")
def encode_words(tokenizer: PreTrainedTokenizerFast, sentences: list[list[str]]) -> list[list[list[int]]]:
    """Return the token ids of each word of sentences that are split into words, without special tokens.

    The ids equal those of ``tokenizer(words, is_split_into_words=True)``. For a byte-level tokenizer, they equal those
    with ``add_prefix_space``. A word without pieces becomes one unknown token, so that no word is lost.

    Raises:
        DataError: If a word has no pieces and the tokenizer has no unknown token.
    """
    encoded = tokenizer(
        [add_word_spaces(tokenizer, words) for words in sentences], is_split_into_words=True, **PLAIN_IDS
    )
    return [
        _group_by_word(tokenizer, words, encoding.ids, encoding.word_ids)
        for words, encoding in zip(sentences, encoded.encodings or [], strict=True)
    ]


def _group_by_word(
    tokenizer: PreTrainedTokenizerFast, words: list[str], ids: list[int], owners: list[int]
) -> list[list[int]]:
    groups: list[list[int]] = [[] for _ in words]
    for token, word in zip(ids, owners, strict=True):
        groups[word].append(token)
    unknown = tokenizer.unk_token_id
    if unknown is None and not all(groups):
        lost = words[groups.index([])]
        raise DataError(f"tokenizer: cannot encode the word {lost!r}, and has no unknown token for it")
    return [pieces or [unknown] for pieces in groups]


def add_word_spaces(tokenizer: PreTrainedTokenizerFast, words: list[str]) -> list[str]:
    """Prepend the space that a byte-level tokenizer needs to words that are encoded separately."""
    if not is_byte_level(tokenizer):
        return words
    return [f" {word}" if word and not word.startswith(" ") else word for word in words]


def is_byte_level(tokenizer: PreTrainedTokenizerFast) -> bool:
    """Return whether the pieces of a tokenizer consist of bytes, including the space before a word."""
    return "ByteLevel(" in str(tokenizer.backend_tokenizer.pre_tokenizer)


_USER_PARALLELISM = os.environ.get("TOKENIZERS_PARALLELISM")


@contextmanager
def parallel_encoding() -> Iterator[None]:
    """Allow the tokenizer to use all cores inside the `with` block.

    Afterwards it uses no threads, because loader workers are forked.
    """
    if _USER_PARALLELISM is None:
        os.environ["TOKENIZERS_PARALLELISM"] = "true"
    try:
        yield
    finally:
        if _USER_PARALLELISM is None:
            os.environ["TOKENIZERS_PARALLELISM"] = "false"


_TEXTS = ("$A", "$B")
_KEPT = ("model_max_length", "split_special_tokens", "clean_up_tokenization_spaces")


def with_data_layout(
    tokenizer: PreTrainedTokenizerFast, layout: Layout, *, splits_words: bool = False
) -> PreTrainedTokenizerFast:
    """Return a copy of a tokenizer that adds the same special tokens as the examples of a data set have.

    The given tokenizer is returned if it already does so. Padding is set to the right side, because left padding would
    shift a text for a model that counts positions from the first token. A new tokenizer has transformers' general
    class, which loads every part of its file. Classes for one kind of model would put their own special tokens around
    texts, whatever the file contains.

    Args:
        tokenizer: Fast tokenizer.
        layout: Layout of the examples.
        splits_words: Whether the words of examples were encoded one by one. The first word of a text then gets a space
            before it, which a byte-level tokenizer counts as part of a word.
    """
    templates = layout.single, layout.pair
    lacks_space = splits_words and is_byte_level(tokenizer) and not _has_prefix_space(tokenizer)
    sides = {"padding_side": "right", "truncation_side": layout.cut_side}
    if (read_template(tokenizer, 1), read_template(tokenizer, 2)) == templates and not lacks_space:
        return _with_sides(tokenizer, sides)
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_truncation()
    backend.no_padding()
    backend.post_processor = _build_processor(tokenizer, layout)
    if lacks_space:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    special = {name: getattr(tokenizer, name) for name in tokenizer.SPECIAL_TOKENS_ATTRIBUTES}
    rebuilt = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_input_names=list(tokenizer.model_input_names),
        **sides,
        **{name: getattr(tokenizer, name) for name in _KEPT if hasattr(tokenizer, name)},
        **{name: token for name, token in special.items() if token is not None},
    )
    rebuilt.deprecation_warnings[LENGTH_WARNING] = True
    return rebuilt


def _with_sides(tokenizer: PreTrainedTokenizerFast, sides: Mapping[str, str]) -> PreTrainedTokenizerFast:
    """Return the tokenizer with the given padding and truncation sides, which are also written when it is saved.

    The given tokenizer is returned if it already has these sides.
    """
    if all(getattr(tokenizer, name) == side for name, side in sides.items()):
        return tokenizer
    copied = copy.deepcopy(tokenizer)
    for name, side in sides.items():
        setattr(copied, name, side)
    copied.init_kwargs |= sides
    return copied


_SEGMENTS = "token_type_ids"


def for_model(tokenizer: PreTrainedTokenizerFast, longest: int | None, *, reads_types: bool) -> PreTrainedTokenizerFast:
    """Return a copy of a tokenizer with the token types and maximum length of a model.

    Args:
        tokenizer: Tokenizer that `with_data_layout` returned.
        longest: Maximum number of tokens that the positions of the model allow, or None for no limit.
        reads_types: Whether the model reads token types, which the tokenizers of many models do not return. Token types
            for a model that does not read them would break `model(**tokenizer(text))`.
    """
    adapted = copy.deepcopy(tokenizer)
    has_types = any(kind for texts in (1, 2) for kind in _list_types(read_template(adapted, texts)))
    names = [name for name in adapted.model_input_names if reads_types or name != _SEGMENTS]
    if reads_types and has_types and _SEGMENTS not in names:
        names.append(_SEGMENTS)
    adapted.model_input_names = adapted.init_kwargs["model_input_names"] = names
    if longest is not None:
        adapted.model_max_length = min(adapted.model_max_length, longest)
    return adapted


def _list_types(template: Template) -> list[int]:
    return [*template.types, *(kind for special in template.special for _, kind in special)]


def _has_prefix_space(tokenizer: PreTrainedTokenizerFast) -> bool:
    (first, _), *_ = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("a")
    return str(first) != "a"


def _build_processor(tokenizer: PreTrainedTokenizerFast, layout: Layout) -> processors.PostProcessor:
    """Build the post-processor that gives a tokenizer a layout of special tokens.

    For a byte-level tokenizer, it excludes the space before a word from the word's span.
    """
    texts = [_format_template(tokenizer, template) for template in (layout.single, layout.pair)]
    ids = {token for template in (layout.single, layout.pair) for special in template.special for token, _ in special}
    tokens = [(tokenizer.convert_ids_to_tokens(token), token) for token in sorted(ids)]
    template_processor = processors.TemplateProcessing(single=texts[0], pair=texts[1], special_tokens=tokens)
    if not is_byte_level(tokenizer):
        return template_processor
    return processors.Sequence([processors.ByteLevel(trim_offsets=True), template_processor])


def _format_template(tokenizer: PreTrainedTokenizerFast, template: Template) -> list[str]:
    """Format a layout of special tokens in the notation of the tokenizers library: `[CLS]:0`, `$A:0`, `[SEP]:0`."""
    special = [
        [f"{tokenizer.convert_ids_to_tokens(token)}:{kind}" for token, kind in around] for around in template.special
    ]
    texts = [f"{text}:{kind}" for text, kind in zip(_TEXTS, template.types, strict=False)]
    return [*special[0], *(item for text, around in zip(texts, special[1:], strict=True) for item in (text, *around))]
