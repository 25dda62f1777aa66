"""Conversations for language models, one or several per example, and a loss on the assistant's answers alone.

A tokenizer's chat template writes a conversation as text. Tokens that overlap an answer of the assistant are targets,
with the end of the answer that the template writes, as in transformers' mask of the assistant. All other tokens, and
answers of weight 0, are read but never predicted.
"""

from __future__ import annotations

import bisect
import functools
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import signature
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

from adadepth.data.batches import IGNORE
from adadepth.data.cache import digest
from adadepth.data.held_out import count_held_out
from adadepth.data.randomness import split_item
from adadepth.data.run_data import RunData, describe_tokenizer, summarise_data
from adadepth.data.streams.blocks import CausalExamples, build_block_data
from adadepth.data.text.json_rows import read_json_rows
from adadepth.data.text.local_files import find_files_by_use
from adadepth.data.text.sources import SourceFile, digest_sources
from adadepth.data.text.table import RowLocation
from adadepth.data.text.tokenizer import load_tokenizer
from adadepth.errors import DataError
from adadepth.runtime.hub_access import get_first_line
from adadepth.runtime.limits import limit_memory, limit_seconds

if TYPE_CHECKING:
    from adadepth.config import TokenizerConfig
    from adadepth.config.data import ChatConfig

logger = logging.getLogger(__name__)

Messages = list[dict[str, Any]]
ROLES = ("system", "user", "assistant")
# Time and memory of a chat template for a conversation, and characters that it writes beside the messages.
_MAX_SECONDS, _MAX_BYTES, _MAX_CHARACTERS = 10.0, 2**30, 2**20
_MARK = "\ue000"  # a private character, which templates do not strip, in place of an answer
_WITH_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")  # blocks around answers
# Words of keys by which training programs choose what is learned, and keys that change what is read.
_LOSS_WORDS = {
    "train", "trained", "training", "trainable", "loss", "mask", "masks", "masked", "weight", "weights", "labels",
}  # fmt: skip
_INPUT_KEYS = {"functions", "function_call", "documents", "images", "videos", "audios", "system", "chat_template"}


class Conversation(NamedTuple):
    """Conversation of a file.

    Attributes:
        messages: Messages with their `role`, `content`, `weight`, and what else the chat template reads.
        location: Location of the conversation in its file.
        options: Arguments of the chat template: `tools`, and those of `chat_template_kwargs`.
    """

    messages: Messages
    location: RowLocation
    options: dict[str, Any]


class Conversations(CausalExamples):
    """Examples of one or several conversations, each a document of its own.

    An item has ``input_ids``, ``labels`` (-100 outside of answers) and ``documents``, the number of each token's
    conversation in the example. All are (T,) int64. An item also has its ``index``.

    Args:
        conversations: Token ids and labels of every conversation, each (T,) int64.
        counts: See `CausalExamples`. Words, characters and bytes are those of the answers.
        examples: Numbers of the conversations of every example; None: one conversation per example.
    """

    def __init__(
        self,
        conversations: Sequence[tuple[np.ndarray, np.ndarray]],
        counts: Mapping[str, int],
        examples: Sequence[Sequence[int]] | None = None,
    ) -> None:
        super().__init__(counts, documents=len(conversations))
        self._conversations = conversations
        self._examples = [[number] for number in range(len(conversations))] if examples is None else examples

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


def load_conversations(dataset: ChatConfig, tokenizer: TokenizerConfig) -> RunData:
    """Read conversations from JSON files, and tokenise them with the chat template of the tokenizer.

    Raises:
        DataError: If a file or a conversation is damaged, if the tokenizer has no chat template, or if no conversation
            has an answer. The message is one line.
    """
    path = str(tokenizer.path)
    words = load_tokenizer(path, ("eos_token",))
    if not words.chat_template:
        raise DataError(f"tokenizer.path={path}: it has no chat template; add a file chat_template.jinja to its folder")
    files: Mapping[str, list[SourceFile]] = find_files_by_use(dataset)  # type: ignore[arg-type]
    rows = {use: list(_read_conversations(group, words)) for use, group in files.items()}
    if "evaluation" not in rows:
        held_out = count_held_out(
            len(rows["train"]),
            dataset.evaluation_fraction,
            subject=f"dataset.path={dataset.path}",
            unit="conversation",
            advice="give dataset.evaluation_path=...",
        )
        rows["train"], rows["evaluation"] = rows["train"][:-held_out], rows["train"][-held_out:]
    sets = {use: _encode_all(use, rows[use], words, path, dataset) for use in rows}
    digests = {use: digest_sources(group) for use, group in files.items()}
    counts = {
        use: {
            "documents": len(rows[use]), "blocks": len(examples), "tokens": examples.tokens,
            "tokens_used": examples.tokens, "words": examples.words, "characters": examples.characters,
            "bytes": examples.bytes, "tokens_per_word": examples.tokens / max(examples.words, 1),
        }
        for use, examples in sets.items()
    }  # fmt: skip
    summary = summarise_data(
        dataset,
        counts,
        source="local",
        facts={
            "sequence_length": dataset.sequence_length,
            "sources": {use: digest(sources) for use, sources in digests.items()},
            "cache_key": digest(words.chat_template, [*digests.values()]),
        },
        tokenizer=describe_tokenizer(tokenizer, words, has_kind=True),
    )
    return build_block_data(sets, words, dataset.sequence_length, summary, pad_to_length=False)


def _read_conversations(files: list[SourceFile], tokenizer: PreTrainedTokenizerFast) -> Iterator[Conversation]:
    """Yield the conversations of files. The log names the keys without effect, such as the number of a row."""
    unread: dict[str, None] = {}
    for file in files:
        for location, cells in read_json_rows(file.key, file.path):
            if problem := _find_problem(cells) or _find_unread(cells, tokenizer, unread):
                raise DataError(f"{location} {problem}")
            options = {"tools": cells.get("tools"), **(cells.get("chat_template_kwargs") or {})}
            yield Conversation(cells["messages"], location, options)
    if unread:
        logger.info("%s: keys that are not read: %s", files[0].key, ", ".join(unread))


def _find_unread(cells: Mapping[str, Any], tokenizer: PreTrainedTokenizerFast, unread: dict[str, None]) -> str | None:
    """Return which key of a conversation would be ignored although it changes what is read or learned, or None.

    Args:
        cells: Row without other problems.
        tokenizer: Tokenizer with the chat template.
        unread: All other keys that the chat template does not read, which are added.
    """
    tools, options = cells.get("tools"), cells.get("chat_template_kwargs") or {}
    if not (tools is None or (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools))):
        return "has tools that are not a list of objects"
    if not isinstance(options, dict):
        return "has chat_template_kwargs that are not an object"
    template = str(tokenizer.get_chat_template(tools=tools))
    reserved = signature(tokenizer.apply_chat_template).parameters
    for name in [*(["tools"] if tools else []), *options]:
        if (name in options and name in reserved) or not re.search(rf"\b{re.escape(name)}\b", template):
            return f"has {name}, which the chat template of the tokenizer does not read"
    messages = {key for message in cells["messages"] for key, value in message.items() if value is not None}
    keys = messages - {"role", "content", "weight"} | {key for key, value in cells.items() if value is not None}
    for key in sorted(keys - {"messages", "tools", "chat_template_kwargs"}):
        if key in messages and re.search(rf"[.'\"]{re.escape(key)}\b", template):
            continue
        if key in _INPUT_KEYS or not _LOSS_WORDS.isdisjoint(map(str.lower, re.findall("[A-Z]?[a-z]+|[A-Z]+", key))):
            return f"has {key!r}, which is not read; weight of a message (0 or 1), tools and chat_template_kwargs are"
        unread[key] = None
    return None


def _find_problem(cells: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a conversation, or None."""
    messages = cells.get("messages")
    if not isinstance(messages, list) or not messages:
        return "needs messages, a list of {role, content}"
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            return "has a message without content, a text"
        if message.get("role") not in ROLES:
            return f"has the role {message.get('role')!r}; it must be one of {', '.join(ROLES)}"
        allowed = (None, 0, 1) if message["role"] == ROLES[2] else (None, 0)
        if (weight := message.get("weight")) not in allowed:
            return f"has a message of {message['role']} of weight {weight!r}; answers have 0 or 1, other messages 0"
    return None


def _encode_all(
    use: str, conversations: list[Conversation], tokenizer: PreTrainedTokenizerFast, path: str, dataset: ChatConfig
) -> Conversations:
    length, encoded = dataset.sequence_length, []
    for messages, location, options in conversations:
        try:
            encoded.append(encode_conversation(messages, tokenizer, path, length, options))
        except DataError as error:
            raise DataError(f"{location}: {error}") from error
    rows = [(ids, labels) for ids, labels, _ in encoded if (labels != IGNORE).any()]
    if not rows:
        raise DataError(f"dataset.path: no conversation of the {use} data has an answer within {length} tokens")
    answers = [answer for _, _, answers in encoded for answer in answers]
    counts = {
        "tokens": int(sum((labels != IGNORE).sum() for _, labels in rows)),
        "words": sum(len(answer.split()) for answer in answers),
        "characters": sum(map(len, answers)),
        "bytes": sum(len(answer.encode()) for answer in answers),
    }
    if not counts["words"]:
        contents = (
            message["content"] for row in conversations for message in row.messages if message["role"] == ROLES[2]
        )
        problem = f"the chat template of tokenizer.path={path} writes no word of an answer within {length} tokens"
        raise DataError(
            f"dataset.path: {use} data: {problem if any(map(str.strip, contents)) else 'all answers are empty'}"
        )
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
    messages: Messages,
    tokenizer: PreTrainedTokenizerFast,
    path: str,
    length: int,
    options: Mapping[str, Any] | None = None,
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Encode a conversation with its chat template.

    Args:
        messages: Messages with `role` and `content`. Answers of `weight` 0 are not predicted.
        tokenizer: Tokenizer with the chat template.
        path: Folder or hub id of the tokenizer, for messages to the user.
        length: Maximum number of tokens.
        options: Arguments of the chat template, such as `tools`.

    Returns:
        Token ids and labels, each (T,) int64 with T of at most `length`, and what these tokens have of every answer.

    Raises:
        DataError: If the chat template raises an error, if it rewrites earlier messages when one is added, so that
            answers have no place, or if it marks another number of answers and some of them have weight 0.
    """
    weights = [message.get("weight") != 0 for message in messages if message["role"] == ROLES[2]]
    contents = [message["content"] for message in messages if message["role"] == ROLES[2]]
    plain = [
        {key: value for key, value in message.items() if key != "weight" and value is not None} for message in messages
    ]
    options = options or {}
    with _limit_template(path):
        text, spans = _write_conversation(plain, tokenizer, options)
        if len(text) > _MAX_CHARACTERS + 100 * (len(str(plain)) + len(str(options))):
            raise DataError(f"writes {len(text):,} characters for {len(messages)} messages")
    encoded = tokenizer(
        text, add_special_tokens=False, return_offsets_mapping=True, truncation=True, max_length=length,
        split_special_tokens=False,
    )  # fmt: skip
    ids = np.array(encoded["input_ids"], dtype=np.int64)
    offsets = np.array(encoded["offset_mapping"], dtype=np.int64).reshape(-1, 2)
    end_of_tokens = max(offsets[:, 1], default=0)
    if spans is None:
        with _limit_template(path):
            spans = _find_answers(text if len(ids) < length else text[:end_of_tokens], plain, tokenizer, options)
        weights, contents = weights[: len(spans)], contents[: len(spans)]  # of those that are read
    if len(spans) != len(weights):
        if not all(weights):
            raise DataError(
                f"tokenizer.path={path}: its chat template marks {len(spans)} answers of {len(weights)}, so weights "
                "have no place"
            )
        weights, contents = [True] * len(spans), [text[begin:end] for begin, end in spans]
    is_answer = np.zeros(len(ids), dtype=bool)
    answers = []
    for content, (begin, end), is_learned in zip(contents, spans, weights, strict=True):
        if is_learned:
            is_answer |= (begin < offsets[:, 1]) & (offsets[:, 0] < end)
            is_written = any(word in text[begin:end] for word in content.split())
            read = content if end <= end_of_tokens else content[: max(end_of_tokens - begin, 0)]
            answers.append(read if is_written else "")
    is_answer[:1] = False
    return ids, np.where(is_answer, ids, IGNORE), answers


@contextmanager
def _limit_template(path: str) -> Iterator[None]:
    """Limit the time and memory of a chat template in the `with` block, and convert its errors to one line.

    Raises:
        DataError: If the template fails or exceeds a limit.
    """
    try:
        with limit_seconds(_MAX_SECONDS), limit_memory(_MAX_BYTES):
            yield
    except DataError as error:
        raise DataError(f"tokenizer.path={path}: its chat template {error}") from error
    except Exception as error:  # whatever a template raises
        full = f"it takes more than {_MAX_BYTES >> 30} GiB" if isinstance(error, MemoryError) else None
        raise DataError(f"tokenizer.path={path}: its chat template fails ({full or get_first_line(error)})") from error


def _write_conversation(
    messages: Messages, tokenizer: PreTrainedTokenizerFast, options: Mapping[str, Any]
) -> tuple[str, list[tuple[int, int]] | None]:
    """Write a conversation with its chat template.

    Returns:
        The text, and the begin and end of every answer in it, or None if the template marks no generated text.
    """
    template = str(tokenizer.get_chat_template(tools=options.get("tools")))
    if not _WITH_GENERATION.search(template):
        return str(tokenizer.apply_chat_template(messages, tokenize=False, **options)), None
    written: Any = render_jinja_template(
        conversations=[messages], chat_template=template, return_assistant_tokens_mask=True,
        **{**tokenizer.special_tokens_map, **options},
    )  # fmt: skip
    return written[0][0], written[1][0]


def _find_answers(
    text: str, messages: Messages, tokenizer: PreTrainedTokenizerFast, options: Mapping[str, Any]
) -> list[tuple[int, int]]:
    """Return the begin and end of the answers in a text that a chat template without marks has written.

    An answer begins after the prompt for it. Where the template has no prompt, it begins with its content. Answers
    after the end of the text are omitted, because each answer takes the time of the whole conversation before it.

    Args:
        text: Text of the conversation, or its beginning.
        messages: All messages of the conversation.
        tokenizer: Tokenizer with the chat template.
        options: Arguments of the chat template, such as `tools`.

    Raises:
        DataError: If earlier messages are rewritten when one is added, or the content of an answer is not written. The
            message has no subject.
    """
    template = str(tokenizer.get_chat_template(tools=options.get("tools")))
    write: Any = functools.partial(tokenizer.apply_chat_template, tokenize=False, **options)
    spans: list[tuple[int, int]] = []
    for number, message in enumerate(messages):
        if message["role"] == ROLES[2]:
            if number and "add_generation_prompt" in template:
                before = str(write(messages[:number], add_generation_prompt=True))
            else:
                before, mark, _ = str(write([*messages[:number], {**message, "content": _MARK}])).partition(_MARK)
                if not mark:
                    raise DataError("does not write the content of an answer")
            after = str(write(messages[: number + 1]))
            if not (after.startswith(before) and text.startswith(after[: len(text)])):
                raise DataError("rewrites earlier messages of a conversation")
            if len(before) >= len(text):
                break
            spans.append((len(before), len(after)))
    return spans
