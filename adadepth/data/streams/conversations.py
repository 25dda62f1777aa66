"""Conversations for language models, one or several per example, and a loss on the assistant's answers alone.

A tokenizer's chat template writes a conversation as text. Tokens that begin in an answer of the assistant are targets,
with the end of the answer that the template writes. All other tokens are read but never predicted.
"""

from __future__ import annotations

import bisect
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
    """Examples of one or several conversations, each a document of its own.

    An item has ``input_ids``, ``labels`` (-100 outside of answers) and ``documents``, the number of each token's
    conversation in the example. All are (T,) int64. An item also has its ``index``.

    Args:
        conversations: Token ids and labels of every conversation, each (T,) int64.
        counts: Number of ``tokens`` to predict, and of ``words`` and ``characters`` of the answers.
        examples: Numbers of the conversations of every example; None: one conversation per example.
    """

    def __init__(
        self,
        conversations: Sequence[tuple[np.ndarray, np.ndarray]],
        counts: Mapping[str, int],
        examples: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self._conversations = conversations
        self._examples = [[number] for number in range(len(conversations))] if examples is None else examples
        self.tokens, self.words, self.characters = (counts[name] for name in ("tokens", "words", "characters"))
        self.documents = len(conversations)

    def __len__(self) -> int:
        return len(self._examples)

    def lengths(self) -> np.ndarray:
        """Return the number of tokens of each example, (examples,) int64."""
        lengths = [sum(len(self._conversations[number][0]) for number in example) for example in self._examples]
        return np.array(lengths, dtype=np.int64)

    def __getitem__(self, item: int | tuple[int, int]) -> dict[str, Any]:
        _, index = split_item(item)
        ids, labels = zip(*(self._conversations[number] for number in self._examples[index]), strict=True)
        documents = np.repeat(np.arange(len(ids)), [len(tokens) for tokens in ids])
        return {
            "input_ids": np.concatenate(ids), "labels": np.concatenate(labels), "documents": documents, "index": index,
        }  # fmt: skip


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
        if (count := len(rows["train"])) < 2:
            raise DataError(
                f"dataset.path={dataset.path}: {count} conversation found, but a held-out text needs at least 2; "
                "give dataset.evaluation_path=..."
            )
        held_out = min(max(1, round(dataset.evaluation_fraction * count)), count - 1)
        rows["train"], rows["evaluation"] = rows["train"][:-held_out], rows["train"][-held_out:]
    sets = {use: _encode_all(use, rows[use], words, path, dataset) for use in rows}
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
    use: str, conversations: list[Messages], tokenizer: PreTrainedTokenizerFast, path: str, dataset: ChatConfig
) -> Conversations:
    length = dataset.sequence_length
    encoded = [encode_conversation(messages, tokenizer, path, length) for messages in conversations]
    rows = [(ids, labels) for ids, labels, _ in encoded if (labels != IGNORE).any()]
    if not rows:
        raise DataError(f"dataset.path: no conversation of the {use} data has an answer within {length} tokens")
    answers = [answer for _, _, answers in encoded for answer in answers]
    counts = {
        "tokens": int(sum((labels != IGNORE).sum() for _, labels in rows)),
        "words": sum(len(answer.split()) for answer in answers),
        "characters": sum(map(len, answers)),
    }
    examples = pack_lengths([len(ids) for ids, _ in rows], length) if dataset.packing else None
    return Conversations(rows, counts, examples)


def pack_lengths(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Pack sequences into few rows by best-fit decreasing bin packing (Johnson 1974).

    From the longest to the shortest, each sequence goes to the row that has the least room left of those that can
    take it, or to a new row. No sequence is divided.

    Args:
        lengths: Lengths of the sequences, each at most `capacity`.
        capacity: Length of a row.

    Returns:
        Numbers of the sequences in each row, ascending; rows are in the order of their first sequences.
    """
    rows_by_room: dict[int, list[list[int]]] = {}
    rooms: list[int] = []  # ascending, without those that no row has
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        length = lengths[number]
        position = bisect.bisect_left(rooms, length)
        if position == len(rooms):
            room, row = capacity, []
        else:
            room, row = rooms[position], rows_by_room[rooms[position]].pop()
            if not rows_by_room[room]:
                del rooms[position]
        row.append(number)
        remaining = room - length
        if not rows_by_room.setdefault(remaining, []):
            bisect.insort(rooms, remaining)
        rows_by_room[remaining].append(row)
    return sorted(sorted(row) for rows in rows_by_room.values() for row in rows)


def encode_conversation(
    messages: Messages, tokenizer: PreTrainedTokenizerFast, path: str, length: int
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Encode a conversation with its chat template.

    Returns:
        Token ids and labels, each (T,) int64 with T of at most `length`, and what these tokens have of every answer.

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
    end_of_tokens = max((end for _, end in encoded["offset_mapping"]), default=0)
    is_answer = np.zeros(len(ids), dtype=bool)
    for begin, end in spans:
        is_answer |= (begin <= firsts) & (firsts < end)
    is_answer[:1] = False
    contents = [message["content"] for message in messages if message["role"] == ROLES[2]]
    answers = [
        content if end <= end_of_tokens else content[: max(end_of_tokens - begin, 0)]
        for content, (begin, end) in zip(contents, spans, strict=True)
    ]
    return ids, np.where(is_answer, ids, IGNORE), answers
