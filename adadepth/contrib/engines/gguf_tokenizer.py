"""Tokenizers in GGUF files: keys `tokenizer.ggml.*` with which llama.cpp divides texts as a tokenizer does.

llama.cpp has no general tokenizer but one algorithm for each kind of file. The parts of tokenizer.json decide which one
is equal to a tokenizer: byte-level BPE, SentencePiece BPE, or SentencePiece's unigram model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from itertools import groupby, starmap
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unicodedata import decomposition, normalize

import gguf
from sentencepiece import SentencePieceNormalizer, set_min_log_level
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

from adadepth.data.text.special_tokens import read_template
from adadepth.data.text.tokenizer import TOKENIZER_FILE, load_tokenizer
from adadepth.errors import DataError

_SPACE = "▁"
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# How a byte-level BPE divides texts before its merges, and whether a word of the vocabulary needs none -> the name of
# this division in llama.cpp.
_DIVISIONS = {
    (("gpt2",), False): "gpt-2",
    (("digits", "gpt2"), False): "smollm",
    ((rf"{_WORDS}\p{{N}}{_REST}",), False): "qwen2",
    ((rf"{_WORDS}\p{{N}}{{1,3}}{_REST}",), False): "dbrx",
    ((rf"{_WORDS}\p{{N}}{{1,3}}{_REST}",), True): "llama-bpe",
}
# Normalizers that convert character by character, but for what the first ones of kind `Replace` say.
_NORMALIZERS = frozenset({"Replace", "NFC", "NFD", "NFKC", "NFKD", "StripAccents", "Lowercase"})
_WHITE_SPACE = (
    *range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000,
)  # fmt: skip
# Code points among which are all that have another form, in Unicode's planes 0 to 2 and 14.
_CODES = (*range(0x1, 0xD800), *range(0xF900, 0x30000), *range(0xE0000, 0xE0200))
_TOKEN_TYPES = gguf.TokenType


class _UnequalTokenizerError(Exception):
    """Error about a part of a tokenizer that llama.cpp does not have."""


def add_tokenizer(writer: gguf.GGUFWriter, source: Path, vocab_size: int) -> str | None:
    """Add the tokenizer of a folder to a GGUF file, or an empty one if llama.cpp has no equal.

    Args:
        writer: Writer of the file.
        source: Folder with the tokenizer.
        vocab_size: Number of rows of the embeddings. Ids without a token are filled up.

    Returns:
        Reason why the file has no tokenizer, or None if it has one.
    """
    try:
        tokenizer = _load(source)
        _check_special_tokens(tokenizer, vocab_size)
        keys = _convert(tokenizer, json.loads(tokenizer.backend_tokenizer.to_str()))
    except _UnequalTokenizerError as error:
        writer.add_tokenizer_model("none")
        return str(error)
    _add_vocabulary(writer, tokenizer, keys, vocab_size)
    _add_special_tokens(writer, tokenizer)
    return None


def _load(source: Path) -> PreTrainedTokenizerFast:
    try:
        return load_tokenizer(str(source), needed=())
    except DataError as error:
        raise _UnequalTokenizerError(f"the checkpoint has no {TOKENIZER_FILE} that can be read") from error


def _convert(tokenizer: PreTrainedTokenizerFast, parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a tokenizer's algorithm, without the prefix `tokenizer.ggml.`, from its parts."""
    model = parts["model"]
    if model["type"] == "Unigram":
        return _convert_unigram(tokenizer, parts)
    if model["type"] != "BPE":
        raise _UnequalTokenizerError(f"llama.cpp has no equal of the tokenizer's model {model['type']}")
    if model.get("dropout") or model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        raise _UnequalTokenizerError("llama.cpp has no BPE with dropout, or with marks inside or at the end of words")
    merges = [merge if isinstance(merge, list) else merge.split(" ") for merge in model["merges"]]
    return _convert_sentencepiece(parts, merges) if model["byte_fallback"] else _convert_bytes(parts, merges)


def _convert_bytes(parts: Mapping[str, Any], merges: list[list[str]]) -> dict[str, Any]:
    """Return the keys of a byte-level BPE, `gpt2` in llama.cpp."""
    if any(kind != "NFC" for kind, _ in _list_parts(parts["normalizer"], "normalizers")):
        raise _UnequalTokenizerError("llama.cpp has no normalizer for byte-level BPE")
    if missing := set(ByteLevel.alphabet()) - parts["model"]["vocab"].keys():
        raise _UnequalTokenizerError(f"{len(missing)} of the 256 bytes are no tokens, and llama.cpp needs all")
    division = tuple(filter(None, starmap(_describe_division, _list_parts(parts["pre_tokenizer"], "pretokenizers"))))
    name = _DIVISIONS.get((division, bool(parts["model"].get("ignore_merges")))) if merges else "gpt-2"
    if name is None:
        raise _UnequalTokenizerError("llama.cpp has no equal of the tokenizer's pre_tokenizer")
    # A file needs a merge, and these two tokens are more than one character each.
    written = [" ".join(merge) for merge in merges] or ["no merges"]
    return {"model": "gpt2", "pre": name, "merges": written}


def _convert_sentencepiece(parts: Mapping[str, Any], merges: list[list[str]]) -> dict[str, Any]:
    """Return the keys of a SentencePiece BPE, `llama` in llama.cpp, which merges the pair whose token scores highest.

    tokenizer.json has a rank for every pair instead. The scores are equal to them if all pairs of a token have
    consecutive ranks, and if every pair whose text is a token is a merge.
    """
    vocabulary = parts["model"]["vocab"]
    tokens = ["".join(merge) for merge in merges]
    order = [token for token, _ in groupby(tokens)]
    pairs = {tuple(merge) for merge in merges}
    added = {token["content"] for token in parts["added_tokens"]}
    ordinary = [token for token in vocabulary if len(token) > 1 and token not in added and not _is_byte(token)]
    divisions = ((token[:cut], token[cut:]) for token in ordinary for cut in range(1, len(token)))
    if len(order) != len(set(order)) or any(
        pair not in pairs and pair[0] in vocabulary and pair[1] in vocabulary for pair in divisions
    ):
        raise _UnequalTokenizerError(
            "llama.cpp has no equal of a SentencePiece BPE whose merges are not in order of score"
        )
    prefixed = {
        ((), ()): False,
        (("Replace",), ()): False,
        (("Replace",), ("Split",)): False,  # Gemma divides at spaces, which its normalizer has replaced
        (("Prepend", "Replace"), ()): True,
    }
    kinds = tuple(
        tuple(kind for kind, _ in _list_parts(parts[name], f"{name.replace('_', '')}s"))
        for name in ("normalizer", "pre_tokenizer")
    )
    if kinds not in prefixed:
        raise _UnequalTokenizerError("llama.cpp has no equal of the tokenizer's normalizer and pre_tokenizer")
    scores = {token: -float(rank) for rank, token in enumerate(order)}
    return {"model": "llama", "pre": "default", "scores": scores, "add_space_prefix": prefixed[kinds]}


def _convert_unigram(tokenizer: PreTrainedTokenizerFast, parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a unigram model, `t5` in llama.cpp, with the normalizer as a table of characters.

    llama.cpp gives an unknown character another score than the library `tokenizers`. The scores make no difference if
    all characters of all pieces are pieces.
    """
    pieces = dict(parts["model"]["vocab"])
    special = {token["content"] for token in parts["added_tokens"]}
    divided = [
        (kind, part.get("prepend_scheme")) for kind, part in _list_parts(parts["pre_tokenizer"], "pretokenizers")
    ]
    if divided != [("WhitespaceSplit", None), ("Metaspace", "always")] or parts["model"]["byte_fallback"]:
        raise _UnequalTokenizerError("llama.cpp has no equal of the tokenizer's pre_tokenizer")
    ordinary = [piece for piece in pieces if piece not in special]
    if any(_SPACE in piece[1:] for piece in ordinary) or not pieces.keys() >= set("".join(ordinary)):
        raise _UnequalTokenizerError(
            "llama.cpp has no equal of pieces with spaces, or with characters that are no pieces"
        )
    keys = {"model": "t5", "pre": "default", "scores": pieces, "add_space_prefix": True}
    normalizer = tokenizer.backend_tokenizer.normalizer
    convert = str if normalizer is None else normalizer.normalize_str
    table = _list_replacements(convert, _list_parts(parts["normalizer"], "normalizers"))
    return {**keys, "remove_extra_whitespaces": True, "precompiled_charsmap": _compile_replacements(table)}


def _list_replacements(convert: Callable[[str], str], parts: list[tuple[str, Mapping[str, Any]]]) -> dict[str, str]:
    """Return the texts that a normalizer changes, with white space replaced by a space, and the changed texts.

    They are single characters, characters with marks that it composes, and the texts of `Replace`.
    """
    kinds = [kind for kind, _ in parts]
    replaced = [part["pattern"].get("String") for kind, part in parts if kind == "Replace"]
    if not _NORMALIZERS.issuperset(kinds) or kinds[: len(replaced)] != ["Replace"] * len(replaced) or None in replaced:
        raise _UnequalTokenizerError("llama.cpp has no equal of the tokenizer's normalizer")
    spaces = dict.fromkeys((*_WHITE_SPACE, ord(_SPACE)), " ")
    characters = list(map(chr, _CODES))
    table = {character: convert(character).translate(spaces) for character in characters}
    composed = {form for character in characters for form in _list_decompositions(character)}
    table |= {
        text: changed
        for text in (*composed, *replaced)
        if (changed := convert(text).translate(spaces)) != "".join(table[character] for character in text)
    }
    return {text: changed for text, changed in table.items() if text != changed}


def _list_decompositions(character: str) -> list[str]:
    """Return the texts of several characters that Unicode composes to a character."""
    codes = decomposition(character)
    if not codes or codes.startswith("<"):
        return [normalize("NFD", character)] if "\uac00" <= character <= "\ud7a3" else []
    forms = {"".join(chr(int(code, 16)) for code in codes.split()), normalize("NFD", character)}
    return [form for form in forms if len(form) > 1]


def _compile_replacements(table: Mapping[str, str]) -> bytes:
    """Return a table of replacements in the form of SentencePiece's `precompiled_charsmap`."""
    lines = ("\t".join(" ".join(f"{ord(letter):X}" for letter in text) for text in pair) for pair in table.items())
    set_min_log_level(2)  # errors only
    with TemporaryDirectory() as folder:
        file = Path(folder) / "rules.tsv"
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        specification = SentencePieceNormalizer(rule_tsv=str(file)).serialized_normalizer_spec()
    return _read_bytes_field(specification, 2)


def _read_bytes_field(message: bytes, number: int) -> bytes:
    """Return the content of a field of bytes in a protobuf message whose earlier fields are bytes, too."""
    position = 0
    while True:
        tag, position = message[position], position + 1
        size = shift = 0
        while True:
            size |= (message[position] & 0x7F) << shift
            position, shift, is_last = position + 1, shift + 7, message[position] < 0x80
            if is_last:
                break
        if tag >> 3 == number:
            return message[position : position + size]
        position += size


def _add_vocabulary(
    writer: gguf.GGUFWriter, tokenizer: PreTrainedTokenizerFast, keys: Mapping[str, Any], vocab_size: int
) -> None:
    """Add the algorithm of a tokenizer, and its tokens with their kinds and scores."""
    tokens = {number: token for token, number in tokenizer.get_vocab().items()}
    added = tokenizer.added_tokens_decoder
    names, kinds = [], []
    for number in range(vocab_size):
        names.append(tokens.get(number, f"[UNUSED {number}]"))
        kinds.append(_find_type(number, tokens, added, tokenizer.unk_token_id))
    writer.add_tokenizer_model(keys["model"])
    writer.add_tokenizer_pre(keys["pre"])
    writer.add_token_list(names)
    writer.add_token_types(kinds)
    if "merges" in keys:
        writer.add_token_merges(keys["merges"])
    if "scores" in keys:
        writer.add_token_scores([keys["scores"].get(name, 0.0) for name in names])
        writer.add_add_space_prefix(keys["add_space_prefix"])
    if "precompiled_charsmap" in keys:
        writer.add_remove_extra_whitespaces(keys["remove_extra_whitespaces"])
        writer.add_precompiled_charsmap(keys["precompiled_charsmap"])


def _find_type(number: int, tokens: Mapping[int, str], added: Mapping[int, Any], unknown: int | None) -> int:
    """Return the kind of a token in llama.cpp, which finds and shows tokens by their kinds."""
    if number not in tokens:
        return _TOKEN_TYPES.UNUSED
    if number == unknown:
        return _TOKEN_TYPES.UNKNOWN
    if number in added:
        return _TOKEN_TYPES.CONTROL if added[number].special else _TOKEN_TYPES.USER_DEFINED
    return _TOKEN_TYPES.BYTE if _is_byte(tokens[number]) else _TOKEN_TYPES.NORMAL


def _check_special_tokens(tokenizer: PreTrainedTokenizerFast, vocab_size: int) -> None:
    """Raise an error if llama.cpp cannot put the tokenizer's special tokens around and into texts."""
    if max(tokenizer.get_vocab().values()) >= vocab_size:
        raise _UnequalTokenizerError(f"the tokenizer has {len(tokenizer)} tokens, and the model {vocab_size}")
    if tokenizer.eos_token_id is None:
        raise _UnequalTokenizerError("the tokenizer has no token for the end of a text, and llama.cpp would choose one")
    before, after = ([token for token, _ in around] for around in read_template(tokenizer, 1).special)
    if len(before) > 1 or after not in ([], [tokenizer.eos_token_id]):
        raise _UnequalTokenizerError("the tokenizer puts more around a text than a first token and the one for its end")
    if any(token.lstrip or token.rstrip or token.single_word for token in tokenizer.added_tokens_decoder.values()):
        raise _UnequalTokenizerError("llama.cpp keeps the spaces beside special tokens, and the tokenizer does not")


def _add_special_tokens(writer: gguf.GGUFWriter, tokenizer: PreTrainedTokenizerFast) -> None:
    """Add the ids of special tokens, those around a text, and the template of chats."""
    before, after = read_template(tokenizer, 1).special
    first = before[0][0] if before else tokenizer.bos_token_id
    writer.add_bos_token_id(tokenizer.eos_token_id if first is None else first)
    writer.add_eos_token_id(tokenizer.eos_token_id)
    for name, add in (("unk", writer.add_unk_token_id), ("pad", writer.add_pad_token_id)):
        if (number := getattr(tokenizer, f"{name}_token_id")) is not None:
            add(number)
    writer.add_add_bos_token(bool(before))
    writer.add_add_eos_token(bool(after))
    if isinstance(tokenizer.chat_template, str):
        writer.add_chat_template(tokenizer.chat_template)


def _list_parts(part: Mapping[str, Any] | None, plural: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the kinds and settings of a normalizer or pre-tokenizer, which may be a sequence of others."""
    if part is None:
        return []
    if part["type"] == "Sequence":
        return [entry for member in part[plural] for entry in _list_parts(member, plural)]
    return [(part["type"], part)]


def _describe_division(kind: str, part: Mapping[str, Any]) -> str | None:
    """Return the name or regular expression of a pre-tokenizer of byte-level BPE, None if it divides nothing."""
    if kind == "ByteLevel" and not part["add_prefix_space"]:
        return "gpt2" if part["use_regex"] else None
    if kind == "Digits" and part["individual_digits"]:
        return "digits"
    if kind == "Split" and part["behavior"] == "Isolated" and not part["invert"]:
        return str(part["pattern"].get("Regex"))
    return kind


def _is_byte(token: str) -> bool:
    """Return whether a token is one byte of a character without a token, `<0x0A>`."""
    return re.fullmatch(r"<0x[0-9A-F]{2}>", token) is not None
