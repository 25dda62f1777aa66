"""Store of tokenised questions with their contexts and answers, as flat arrays.

The arrays do not depend on windows, so windows of any length and stride are cut from the same files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerFast

from adadepth.data.batches import IGNORE
from adadepth.data.stores.mmap_arrays import ArrayWriter, StoredArrays, choose_token_type
from adadepth.data.text.table import ROW_LOCATIONS, DataTable, Rows, require_text
from adadepth.data.text.tokenizer import encode_sentences, encode_with_spans
from adadepth.errors import DataError

if TYPE_CHECKING:
    from adadepth.config import QuestionConfig

_LONGEST_CONTEXT = 1_000_000  # characters; the tokenizer's time grows faster than they do
NO_ANSWER = -1  # first and last token of a question without an answer; IGNORE: no token holds the answer's text


class Question(NamedTuple):
    """Text of a question: its id, its context, and its answers. It may have no answer."""

    id: str
    context: str
    answers: list[str]


@dataclass(frozen=True)
class QuestionStore(StoredArrays):
    """Store of questions: token ids of questions and contexts, and the character spans of tokens and answers.

    Attributes:
        tokens: Ids without special tokens, (tokens,) uint16 or uint32. Each row has the question, then the context.
        offsets: Offset of each question and each context in ``tokens``, followed by the number of tokens, (2 · rows +
            1,) int64.
        spans: First character of each context token and the index after its last one, (context tokens, 2) int32.
        answers: First and last context token of the first answer, `NO_ANSWER` or `IGNORE`, (rows, 2) int64.
        records: Text of each row, a `Question` as JSON, (bytes,) uint8.
        record_offsets: Offset of each row in ``records``, followed by the size of ``records``, (rows + 1,) int64.
    """

    tokens: np.ndarray
    offsets: np.ndarray
    spans: np.ndarray
    answers: np.ndarray
    records: np.ndarray
    record_offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.answers)

    def pieces(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the token ids of a question and of its context."""
        start, middle, end = self.offsets[2 * row : 2 * row + 3]
        return self.tokens[start:middle], self.tokens[middle:end]

    def lengths(self) -> np.ndarray:
        """Return the number of tokens of each question and of its context, (rows, 2) int64."""
        lengths: np.ndarray = np.diff(self.offsets).reshape(-1, 2)
        return lengths

    def context_starts(self) -> np.ndarray:
        """Return the offset of each context's tokens in ``spans``, (rows,) int64."""
        lengths = self.lengths()[:, 1]
        starts: np.ndarray = lengths.cumsum() - lengths
        return starts

    def question(self, row: int) -> Question:
        """Return the texts of the question in a row."""
        first, last = self.record_offsets[row : row + 2]
        return Question(*json.loads(self.records[first:last].tobytes()))


def write_questions(
    folder: Path, table: DataTable, dataset: QuestionConfig, tokenizer: PreTrainedTokenizerFast
) -> None:
    """Tokenise a table's questions and contexts into files in ``folder``, which must exist and be empty.

    Raises:
        DataError: If a cell that must be text is not text, if an answer is not in its context, or if a required answer
            is missing. The message names the row.
    """
    seen_ids: set[str] = set()
    pairs = {"spans": (np.int32, 2), "answers": (np.int64, 2)}
    flat = {
        "tokens": choose_token_type(tokenizer),
        "records": np.uint8,
        "offsets": np.int64,
        "record_offsets": np.int64,
    }
    with ArrayWriter(folder, {**pairs, **flat}, totals=("offsets", "record_offsets")) as writer:
        for batch in table.read_batches():
            rows = list(read_rows(batch, dataset, len(seen_ids)))
            questions = encode_sentences(tokenizer, [question for question, _, _ in rows])
            contexts = encode_with_spans(tokenizer, [row.context for _, row, _ in rows])
            for question, (context, spans), (_, row, starts) in zip(questions, contexts, rows, strict=True):
                answer = find_answer_tokens(spans, starts[0], row.answers[0]) if starts else (NO_ANSWER, NO_ANSWER)
                record = np.frombuffer(json.dumps(row).encode(), np.uint8)
                writer.append(tokens=[*question, *context], offsets=[len(question), len(context)], spans=spans)
                writer.append(answers=answer, records=record, record_offsets=len(record))
                if row.id in seen_ids:
                    raise DataError(f"dataset.id_column={dataset.id_column}: {table.label} has {row.id!r} twice")
                seen_ids.add(row.id)


def find_answer_tokens(spans: np.ndarray, start: int, text: str) -> tuple[int, int]:
    """Return the first and the last token that share a character with an answer, or `IGNORE` if no token does.

    Args:
        spans: First character of each token and the index after its last one, (tokens, 2), in the order of the text.
        start: Index of the first character of the answer in the context.
        text: Text of the answer.
    """
    touching = np.flatnonzero((spans[:, 1] > start) & (spans[:, 0] < start + len(text)))
    return (int(touching[0]), int(touching[-1])) if len(touching) else (IGNORE, IGNORE)


def read_rows(batch: Rows, dataset: QuestionConfig, first: int) -> Iterator[tuple[str, Question, Sequence[int]]]:
    """Yield the question of each row, its `Question`, and the index of each answer's first character in the context.

    A missing text is read as an empty one.

    Args:
        batch: Batch of consecutive rows of a table.
        dataset: Settings of the columns.
        first: Number of the first row of the batch in the table.
    """
    columns = [dataset.question_column, dataset.context_column, dataset.answers_column, ROW_LOCATIONS]
    ids = batch[dataset.id_column] if dataset.id_column else None
    cells = zip(*(batch[column] for column in columns), strict=True)
    for number, (question, context, answers, location) in enumerate(cells):
        question = require_text(question, "question_column", dataset.question_column, location) or ""
        context = require_text(context, "context_column", dataset.context_column, location) or ""
        if len(context) > _LONGEST_CONTEXT:
            column = f"dataset.context_column={dataset.context_column}"
            raise DataError(
                f"{column}: {location} has {len(context):,} characters, more than {_LONGEST_CONTEXT:,}; shorten it"
            )
        if ids is not None and ids[number] is None:
            raise DataError(
                f"dataset.id_column={dataset.id_column}: {location} has no id; null uses row numbers as ids"
            )
        texts, starts = _read_answers(answers, f"dataset.answers_column={dataset.answers_column}: {location}")
        if not texts and not dataset.unanswerable:
            raise DataError(
                f"dataset.unanswerable=false: {location} has no answer; if questions may have no answer, set it to true"
            )
        if texts and context[starts[0] : starts[0] + len(texts[0])] != texts[0]:
            excerpt = context[starts[0] : starts[0] + len(texts[0])]
            raise DataError(
                f"dataset.answers_column={dataset.answers_column}: {location} has the answer {texts[0]!r}, but at "
                f"character {starts[0]} of its context there is {excerpt!r}"
            )
        yield question, Question(str(first + number if ids is None else ids[number]), context, texts), starts


def _read_answers(value: Any, where: str) -> tuple[list[str], list[int]]:
    """Return the texts of a row's answers, and the index of each answer's first character."""
    answers = value if isinstance(value, dict) else {}
    texts, starts = answers.get("text"), answers.get("answer_start")
    if not isinstance(texts, list) or not isinstance(starts, list):
        raise DataError(f"{where} holds {type(value).__name__}, not {{text: [...], answer_start: [...]}}")
    if len(texts) != len(starts):
        raise DataError(f"{where} has {len(texts)} answers but {len(starts)} positions")
    for text, start in zip(texts, starts, strict=True):
        if not isinstance(text, str) or not isinstance(start, int) or not text or start < 0:
            raise DataError(
                f"{where} has the answer {text!r} at {start!r}; a text and the position of its first character are "
                "needed"
            )
    return texts, starts
