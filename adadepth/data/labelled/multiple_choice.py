"""Multiple choice: which of several endings fits a text? Every choice is a separate sequence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from adadepth.data.batches import Columns, Examples, PaddingCollator, get_sequence_columns, pad_columns
from adadepth.data.cache import CACHE_FORMAT, digest, get_cache_root
from adadepth.data.labelled.classes import build_class_readers
from adadepth.data.labelled.collators import StoredExamples, collect_example_columns
from adadepth.data.labelled.splits import open_splits
from adadepth.data.labelled.table_loader import RowStores, describe_labels, load_table, load_table_tokenizer
from adadepth.data.randomness import split_item
from adadepth.data.run_data import RunData
from adadepth.data.stores.rows import LabelledStore, read_labels, write_rows
from adadepth.data.text.special_tokens import Layout, cut_longest
from adadepth.data.text.table import ROW_LOCATIONS, DataTable, Rows, read_first_texts, require_text
from adadepth.data.text.tokenizer import get_tokenizer_key

if TYPE_CHECKING:
    from adadepth.config import ChoiceConfig, TokenizerConfig

_SPECIAL, BEGINNING, ENDING = 0, 1, 2  # values of token_text


class ChoiceExamples(StoredExamples[LabelledStore]):
    """Examples of multiple choice, each a list of token sequences with one sequence per choice.

    An example has ``choices``, a list of sequences from `Layout.build`. Each has ``token_text`` (S,) uint8, the number
    of the text that each token belongs to. An example also has ``label``, and ``index``, the number of its row in the
    data.
    """

    def lengths(self) -> np.ndarray:
        """Return the number of tokens of the longest choice of each example, (examples,) int64."""
        return self.layout.lengths(self.tokens().max(axis=1), 2)

    def tokens(self) -> np.ndarray:
        """Return the number of ordinary tokens of each choice before truncation, (examples, choices) int64."""
        texts = np.diff(self.store.offsets).reshape(-1, self.store.texts)[self.rows]
        uncut: np.ndarray = texts[:, :1] + texts[:, 1:]
        return uncut

    def __getitem__(self, item: int | tuple[int, int]) -> dict[str, Any]:
        row = int(self.rows[split_item(item)[1]])
        context, *endings = self.store.row(row)
        choices = [self._build_choice(context, ending) for ending in endings]
        return {"choices": choices, "index": row, "label": int(self.store.classes()[row])}

    def _build_choice(self, context: np.ndarray, ending: np.ndarray) -> dict[str, Any]:
        example = self.layout.build([context, ending])
        ordinary = np.flatnonzero(example["special_tokens_mask"] == 0)
        lengths = cut_longest([len(context), len(ending)], self.layout.room(2))
        texts = np.full(len(example["input_ids"]), _SPECIAL, dtype=np.uint8)
        texts[ordinary] = np.repeat([BEGINNING, ENDING], lengths)
        return {**example, "token_text": texts}


class ChoiceCollator(PaddingCollator):
    """Collator of examples with several choices, which are all padded to the longest one."""

    def __call__(self, examples: Examples) -> dict[str, Tensor]:
        """Return token columns (B, choices, S), including ``token_text``, and ``index`` and ``labels`` (B,) int64."""
        choices = [choice for example in examples for choice in example["choices"]]
        width = self.width(choices)
        columns: Columns = {**get_sequence_columns(self.pad_id), "token_text": (_SPECIAL, np.uint8)}
        tokens = pad_columns(choices, width, columns)
        grouped = {name: values.view(len(examples), -1, width) for name, values in tokens.items()}
        return {**grouped, **collect_example_columns(examples)}


def load_choices(dataset: ChoiceConfig, tokenizer: TokenizerConfig, cls_tokens: int = 1) -> RunData:
    """Read and tokenise texts with several endings each, or load them from the cache.

    Raises:
        DataError: If the data or the tokenizer lack something. The message is one line.
    """
    columns = {key: getattr(dataset, key) for key in ("context_columns", "ending_columns")}
    tables = open_splits(dataset, columns | {"label_column": [dataset.label_column]})
    names = tuple(dataset.labels or map(str, range(len(dataset.ending_columns))))
    # Without class names, a label is the index of the right ending.
    labelled = tables if dataset.labels else {split: replace(table, class_names={}) for split, table in tables.items()}
    root = get_cache_root(dataset.cache_dir)
    readers = build_class_readers(names, "label_column", dataset.label_column, labelled, root, has_order=True)
    parts = [dataset.context_columns[0], *dataset.ending_columns]

    def format_name(split: str, table: DataTable, words: PreTrainedTokenizerFast) -> str:
        columns_read = (dataset.context_columns, dataset.ending_columns, dataset.label_column)
        key = digest(CACHE_FORMAT, *columns_read, names, get_tokenizer_key(words))
        return f"choices-{digest(key, *readers[split].key, table.fingerprint())}"

    def write(split: str, words: PreTrainedTokenizerFast, folder: Path, table: DataTable) -> None:
        write_rows(folder, build_choice_table(table, dataset), parts, words, dataset.label_column, readers[split])

    texts = [*dataset.context_columns, *dataset.ending_columns]
    row_stores = RowStores(
        format_name=format_name,
        write=write,
        open=LabelledStore.open,
        blanks=dict.fromkeys(texts),
        class_readers={
            split: partial(read_labels, column=dataset.label_column, read_label=reader)
            for split, reader in readers.items()
        },
    )
    train = build_choice_table(tables[dataset.train_split], dataset)
    read = partial(read_first_texts, train, dict.fromkeys(parts, "ending_columns"), tokenizer.train_documents)
    return load_table(
        dataset,
        tokenizer,
        tables,
        load_tokenizer=partial(load_table_tokenizer, tokenizer, root, train, texts, read, cls_tokens),
        row_stores=row_stores,
        build_layout=lambda words: Layout.from_tokenizer(words, dataset.sequence_length, cls_tokens),
        build_examples=ChoiceExamples,
        describe=partial(_describe, names=names),
        collator=ChoiceCollator,
        problem="multiple_choice",
        labels=names,
        strata=LabelledStore.classes,
    )


def build_choice_table(table: DataTable, dataset: ChoiceConfig) -> DataTable:
    """Return a table with a column for the context, one for each complete ending, and one for the label.

    Raises:
        DataError: If a cell that must be text is not text. The error is raised while the table is read, and the message
            names the row.
    """
    context, *start_columns = dataset.context_columns

    def batches() -> Iterator[Rows]:
        for batch in table.read_batches():
            read = partial(_read_column, batch)
            starts = read("context_columns", start_columns[0]) if start_columns else None
            endings = {name: read("ending_columns", name) for name in dataset.ending_columns}
            if starts is not None:
                endings = {
                    name: list(map(" ".join, zip(starts, texts, strict=True))) for name, texts in endings.items()
                }
            unchanged = {name: batch[name] for name in (dataset.label_column, ROW_LOCATIONS)}
            yield {context: read("context_columns", context), **endings, **unchanged}

    return replace(table, columns=[context, *dataset.ending_columns, dataset.label_column], batches=batches)


def _read_column(batch: Rows, key: str, name: str) -> list[str]:
    """Return a column of texts, or empty texts if the table lacks the column."""
    cells = zip(batch[name], batch[ROW_LOCATIONS], strict=True)
    return [require_text(text, key, name, location) or "" for text, location in cells]


def _describe(examples: ChoiceExamples, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the counts of a split for the data summary: rows, examples, sequences, truncated sequences and labels."""
    tokens, labels = examples.tokens(), examples.store.classes()
    return {
        "rows": len(examples.store),
        "examples": len(examples),
        "choices": tokens.size,
        **examples.layout.count_tokens(tokens, 2),
        **describe_labels(np.asarray(labels[examples.rows]), names),
    }
