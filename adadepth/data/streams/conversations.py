"""Conversations for language models: one conversation per example, and a loss on the assistant's answers alone.

A tokenizer's chat template writes a conversation as text. Tokens that begin in an answer of the assistant are targets,
with the end of the answer that the template writes. All other tokens are read but never predicted.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers import PreTrainedTokenizerFast

from adadepth.data.batches import IGNORE
from adadepth.data.cache import digest
from adadepth.data.randomness import split_item
from adadepth.data.streams.blocks import BlockCollator, BlockData, TextBlocks
from adadepth.data.text.json_rows import JsonRow, read_json_rows
from adadepth.data.text.local_files import Files, find_files_by_use
from adadepth.data.text.sources import digest_sources, open_sources
from adadepth.data.text.tokenizer import load_tokenizer
from adadepth.errors import DataError

if TYPE_CHECKING:
    from adadepth.config import TokenizerConfig
    from adadepth.config.data import ChatConfig

Messages = list[dict[str, str]]
ROLES = ("system", "user", "assistant")


class Conversations(TextBlocks):
    """Examples that are conversations, each a document of its own.

    An item has ``input_ids``, ``labels`` (-100 outside of answers) and ``documents`` (0), all (T,) int64, and its
    ``index``.

    Args:
        rows: Token ids and labels of every conversation, each (T,) int64.
        counts: Number of ``tokens`` to predict, and of ``words`` and ``characters`` of the answers.
    """

    def __init__(self, rows: Sequence[tuple[np.ndarray, np.ndarray]], counts: Mapping[str, int]) -> None:
        self._rows = rows
        self.tokens, self.words, self.characters = (counts[name] for name in ("tokens", "words", "characters"))
        self.documents = len(rows)

    def __len__(self) -> int:
        return len(self._rows)

    def lengths(self) -> np.ndarray:
        """Return the number of tokens of each conversation, (conversations,) int64."""
        return np.array([len(ids) for ids, _ in self._rows], dtype=np.int64)

    def __getitem__(self, item: int | tuple[int, int]) -> dict[str, Any]:
        _, index = split_item(item)
        ids, labels = self._rows[index]
        return {"input_ids": ids, "labels": labels, "documents": np.zeros_like(ids), "index": index}


def load_conversations(dataset: ChatConfig, tokenizer: TokenizerConfig) -> BlockData:
    """Read conversations from JSON files, and tokenise them with the chat template of the tokenizer.

    Raises:
        DataError: If a file or a conversation is damaged, if the tokenizer has no chat template, or if no conversation
            has an answer. The message is one line.
    """
    path = str(tokenizer.path)
    words = load_tokenizer(path, ("eos_token",))
    if not words.chat_template:
        raise DataError(f"tokenizer.path={path}: it has no chat template; add a file chat_template.jinja to its folder")
    files: Mapping[str, Files] = find_files_by_use(dataset)  # type: ignore[arg-type]
    rows = {use: list(_read_conversations(group)) for use, group in files.items()}
    if "evaluation" not in rows:
        held_out = max(1, round(dataset.evaluation_fraction * len(rows["train"])))
        rows["train"], rows["evaluation"] = rows["train"][:-held_out], rows["train"][-held_out:]
    sets = {use: _encode_all(use, rows[use], words, path, dataset.sequence_length) for use in rows}
    digests = {use: digest_sources(open_sources(*group)) for use, group in files.items()}
    summary: dict[str, Any] = {
        "name": dataset.name,
        "source": "local",
        "sequence_length": dataset.sequence_length,
        "sources": {use: digest(sources) for use, sources in digests.items()},
        "cache_key": digest(words.chat_template, [*digests.values()]),
        **{
            use: {
                "documents": len(rows[use]), "blocks": len(examples), "tokens": examples.tokens,
                "tokens_used": examples.tokens, "words": examples.words, "characters": examples.characters,
                "tokens_per_word": examples.tokens / max(examples.words, 1),
            }
            for use, examples in sets.items()
        },
        "tokenizer": {"path": tokenizer.path, "kind": None, "vocab_size": len(words)},
    }  # fmt: skip
    pad = words.eos_token_id if words.pad_token_id is None else words.pad_token_id
    collate = BlockCollator(pad, dataset.sequence_length, False)
    return BlockData(sets["train"], sets["evaluation"], sets.get("test"), words, collate, summary)


def _read_conversations(files: Files) -> Iterator[Messages]:
    for file in files.files:
        for row in read_json_rows(files.key, file):
            if problem := _find_problem(row):
                raise DataError(f"{files.key}={file}: {row.unit} {row.number} {problem}")
            yield row.cells["messages"]


def _find_problem(row: JsonRow) -> str | None:
    """Return what is wrong with a conversation, or None."""
    messages = row.cells.get("messages")
    if not isinstance(messages, list) or not messages:
        return "needs messages, a list of {role, content}"
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            return "has a message without content, a text"
        if message.get("role") not in ROLES:
            return f"has the role {message.get('role')!r}; it must be one of {', '.join(ROLES)}"
    return None


def _encode_all(
    use: str, conversations: list[Messages], tokenizer: PreTrainedTokenizerFast, path: str, length: int
) -> Conversations:
    encoded = [encode_conversation(messages, tokenizer, path, length) for messages in conversations]
    rows = [row for row in encoded if (row[1] != IGNORE).any()]
    if not rows:
        raise DataError(f"dataset.path: no conversation of the {use} data has an answer within {length} tokens")
    answers = [message["content"] for messages in conversations for message in messages if message["role"] == ROLES[2]]
    counts = {
        "tokens": int(sum((labels != IGNORE).sum() for _, labels in rows)),
        "words": sum(len(answer.split()) for answer in answers),
        "characters": sum(map(len, answers)),
    }
    return Conversations(rows, counts)


def encode_conversation(
    messages: Messages, tokenizer: PreTrainedTokenizerFast, path: str, length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return token ids and labels of a conversation, each (T,) int64 with T of at most `length`.

    Raises:
        DataError: If the chat template rewrites earlier messages when one is added, so that answers have no place.
    """
    write = functools.partial(tokenizer.apply_chat_template, tokenize=False)
    text = str(write(messages))
    spans = []
    for number, message in enumerate(messages):
        if message["role"] == ROLES[2]:
            before = str(write(messages[:number], add_generation_prompt=True))
            after = str(write(messages[: number + 1]))
            if not (after.startswith(before) and text.startswith(after)):
                raise DataError(f"tokenizer.path={path}: its chat template rewrites earlier messages of a conversation")
            spans.append((len(before), len(after)))
    encoded = tokenizer(
        text, add_special_tokens=False, return_offsets_mapping=True, truncation=True, max_length=length,
        split_special_tokens=False,
    )  # fmt: skip
    ids = np.array(encoded["input_ids"], dtype=np.int64)
    firsts = np.array([first for first, _ in encoded["offset_mapping"]], dtype=np.int64)
    is_answer = np.zeros(len(ids), dtype=bool)
    for begin, end in spans:
        is_answer |= (begin <= firsts) & (firsts < end)
    is_answer[:1] = False
    return ids, np.where(is_answer, ids, IGNORE)
