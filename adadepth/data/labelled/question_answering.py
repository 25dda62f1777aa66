"""Question answering: the span of a context that answers a question, with overlapping windows over long contexts."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

from adadepth.data.batches import (
    IGNORE,
    Columns,
    Examples,
    PaddingCollator,
    collect_numbers,
    get_sequence_columns,
    pad_columns,
)
from adadepth.data.cache import CACHE_FORMAT, digest, get_cache_root
from adadepth.data.labelled.splits import open_splits
from adadepth.data.labelled.table_loader import RowStores, load_table, load_table_tokenizer
from adadepth.data.randomness import split_item
from adadepth.data.run_data import RunData
from adadepth.data.stores.questions import NO_ANSWER, Question, QuestionStore, write_questions
from adadepth.data.text.special_tokens import Layout
from adadepth.data.text.table import DataTable, read_first_texts
from adadepth.data.text.tokenizer import get_tokenizer_key
from adadepth.errors import DataError

if TYPE_CHECKING:
    from adadepth.config import QuestionConfig, TokenizerConfig

_SPANS = "of whole characters"  # definition of token spans, in the name of a cache
SPECIAL, QUESTION, CONTEXT = 0, 1, 2  # values of token_kind
_NUMBERS = ("index", "question", "context_shift", "start_positions", "end_positions")


class QuestionExamples(Dataset[dict[str, Any]]):
    """Examples of question answering, each a window with a question and a part of its context.

    An example is a window, ``[CLS] question [SEP] part of its context [SEP]``, with ``token_kind`` (S,) uint8 and

    - ``start_positions``, ``end_positions``: positions of the answer, or the position of [CLS] if the answer is not
      completely in the window, or -100 if no token contains its text;
    - ``question``: the number of the question in this set, and ``index``, the number of the window;
    - ``context_shift``: the number of a context token in the context minus its position in the window.

    Args:
        store: Store of questions.
        rows: Rows of the questions of the set in the store, (questions,).
        layout: Special tokens and maximum length of a window.
        stride: Number of context tokens from the start of a window to the start of the next one.
        max_question_length: Maximum number of tokens of a question. Longer questions are truncated.
    """

    def __init__(
        self, store: QuestionStore, rows: np.ndarray, layout: Layout, stride: int, max_question_length: int
    ) -> None:
        self.store = store
        self.rows = rows
        self.layout = layout
        self.max_question_length = max_question_length
        questions, contexts = store.lengths()[rows].T
        self._question_lengths = np.minimum(questions, max_question_length)
        self.owners, self.starts, self.ends = cut_windows(contexts, layout.room(2) - self._question_lengths, stride)
        self._spans = store.context_starts()

    def __len__(self) -> int:
        return len(self.owners)

    def lengths(self) -> np.ndarray:
        """Return the number of tokens of each window, (windows,) int64."""
        return self.layout.lengths(self.ends - self.starts + self._question_lengths[self.owners], 2)

    def __getitem__(self, item: int | tuple[int, int]) -> dict[str, Any]:
        index = split_item(item)[1]
        number, start, end = (int(column[index]) for column in (self.owners, self.starts, self.ends))
        row = int(self.rows[number])
        question, context = self.store.pieces(row)
        question = question[: self.max_question_length]
        example = self.layout.build([question, context[start:end]])
        before = len(self.layout.pair.special[0])
        first = before + len(question) + len(self.layout.pair.special[1])
        kinds = np.full(len(example["input_ids"]), SPECIAL, dtype=np.uint8)
        kinds[before : before + len(question)] = QUESTION
        kinds[first : first + end - start] = CONTEXT
        answer = tuple(self.store.answers[row].tolist())
        is_inside = start <= answer[0] and answer[1] < end
        if answer[0] == IGNORE:
            positions = (IGNORE, IGNORE)
        else:
            positions = tuple(token - start + first for token in answer) if is_inside else (0, 0)
        window = {"token_kind": kinds, "index": index, "question": number, "context_shift": start - first}
        return {**example, **window, "start_positions": positions[0], "end_positions": positions[1]}

    def text(self, question: int) -> Question:
        """Return the text of a question by its row number."""
        return self.store.question(int(self.rows[question]))

    def span_text(self, question: int, first: int, last: int) -> str:
        """Return the part of a question's context from one token to another, both included, as text."""
        begin = int(self._spans[self.rows[question]])
        start, end = self.store.spans[begin + first, 0], self.store.spans[begin + last, 1]
        return self.text(question).context[start:end]


def cut_windows(lengths: np.ndarray, rooms: np.ndarray, stride: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cut contexts into overlapping windows, each as large as the sequence length allows.

    The last window of a context is the first one that reaches its end.

    Args:
        lengths: Number of tokens of each context, (questions,).
        rooms: Number of context tokens that fit into a window of each question, at least ``stride``, (questions,).
        stride: Number of tokens from the start of a window to the start of the next one.

    Returns:
        The question of each window, the index of its first context token, and the index after its last one, each
        (windows,) int64. A context without tokens has one window.
    """
    counts = 1 + np.maximum(-(-(lengths - rooms) // stride), 0)
    owners = np.repeat(np.arange(len(lengths)), counts)
    ordinals = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
    starts = ordinals * stride
    return owners, starts, np.minimum(starts + rooms[owners], lengths[owners])


class QuestionCollator(PaddingCollator):
    """Collator of windows with questions and parts of their contexts."""

    def __call__(self, examples: Examples) -> dict[str, Tensor]:
        """Return token columns (B, S), including ``token_kind``, and the numbers of each window, (B,) int64."""
        width = self.width(examples)
        columns: Columns = {**get_sequence_columns(self.pad_id), "token_kind": (SPECIAL, np.uint8)}
        return {**pad_columns(examples, width, columns), **collect_numbers(examples, _NUMBERS)}


def load_questions(dataset: QuestionConfig, tokenizer: TokenizerConfig, cls_tokens: int = 1) -> RunData:
    """Read and tokenise questions with their contexts, or load them from the cache.

    Raises:
        DataError: If the data or the tokenizer lack something. The message is one line.
    """
    needed = ("question_column", "context_column", "answers_column", "id_column")
    tables = open_splits(dataset, {key: [getattr(dataset, key)] for key in needed if getattr(dataset, key) is not None})
    texts = {dataset.question_column: "question_column", dataset.context_column: "context_column"}
    columns = [*texts, dataset.answers_column, dataset.id_column]

    def format_name(split: str, table: DataTable, words: PreTrainedTokenizerFast) -> str:
        key = digest(CACHE_FORMAT, _SPANS, columns, dataset.unanswerable, get_tokenizer_key(words))
        return f"questions-{digest(key, table.fingerprint())}"

    def write(split: str, words: PreTrainedTokenizerFast, folder: Path, table: DataTable) -> None:
        write_questions(folder, table, dataset, words)

    answers = {"text": ["-"], "answer_start": [0]}  # every question needs one
    row_stores = RowStores(
        format_name=format_name,
        write=write,
        open=QuestionStore.open,
        blanks={dataset.question_column: "", dataset.context_column: "-", dataset.answers_column: answers},
        class_readers={},
    )
    root, train = get_cache_root(dataset.cache_dir), tables[dataset.train_split]
    read = partial(read_first_texts, train, texts, tokenizer.train_documents)
    return load_table(
        dataset,
        tokenizer,
        tables,
        load_tokenizer=partial(load_table_tokenizer, tokenizer, root, train, list(texts), read, cls_tokens),
        row_stores=row_stores,
        build_layout=partial(_build_layout, dataset, cls_tokens),
        build_examples=partial(
            QuestionExamples, stride=dataset.stride, max_question_length=dataset.max_question_length
        ),
        describe=_describe,
        collator=QuestionCollator,
        problem="question_answering",
    )


def _build_layout(dataset: QuestionConfig, cls_tokens: int, tokenizer: PreTrainedTokenizerFast) -> Layout:
    """Return the layout of a window.

    Raises:
        DataError: If the stride between windows is so large that tokens between them would be skipped.
    """
    layout = Layout.from_tokenizer(tokenizer, dataset.sequence_length, cls_tokens).cut_at_end()
    room = layout.room(2) - dataset.max_question_length
    if dataset.stride > room:
        raise DataError(
            f"dataset.stride={dataset.stride}: windows of dataset.sequence_length={dataset.sequence_length} hold "
            f"{room} context tokens after dataset.max_question_length={dataset.max_question_length} and special tokens"
        )
    return layout


def _describe(examples: QuestionExamples) -> dict[str, Any]:
    """Return the counts of a split for the data summary: rows, questions, windows, tokens and missing answers."""
    store, rows = examples.store, examples.rows
    first = np.asarray(store.answers[rows, 0])
    tokens, windows = int(store.lengths()[rows].sum()), len(examples)
    counts = {"rows": len(store), "examples": len(rows), "windows": windows, "tokens": tokens}
    without, lost = int((first == NO_ANSWER).sum()), int((first == IGNORE).sum())
    return {**counts, "unanswerable": without, "answers_lost": lost}
