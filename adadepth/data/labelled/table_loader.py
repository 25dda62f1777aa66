"""Loading of labelled tables: from the tables of the splits to the data of a run, for every kind of prediction."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from transformers import PreTrainedTokenizerFast

from adadepth.config.kinds import Problem
from adadepth.data.batches import PaddingCollator
from adadepth.data.cache import CACHE_FORMAT, digest, get_cache_root
from adadepth.data.held_out import HELD_OUT
from adadepth.data.labelled.splits import group_rows_by_split, split_examples, spread_rows
from adadepth.data.run_data import RunData, describe_tokenizer, summarise_data
from adadepth.data.stores.mmap_arrays import ensure_arrays, format_store_name
from adadepth.data.text.special_tokens import Layout
from adadepth.data.text.table import DataTable, Rows, count_rows
from adadepth.data.text.tokenizer import list_needed_tokens, load_or_train, parallel_encoding, with_data_layout
from adadepth.errors import DataError, nearest

if TYPE_CHECKING:
    from adadepth.config import TableConfig, TokenizerConfig

logger = logging.getLogger(__name__)

_Store = TypeVar("_Store", bound=Any)
_Examples = TypeVar("_Examples")


@dataclass(frozen=True, kw_only=True)
class RowStores(Generic[_Store]):
    """Stores of the tokenised rows of every split, which differ by kind of prediction.

    Attributes:
        format_name: Function from a split, its table and the tokenizer to the name of the cache folder for all rows.
        write: Function that tokenises a table of a split into the files of an empty folder.
        open: Function that opens such a folder.
        blanks: Mapping from columns to the content that replaces a cell in an unused row.
        class_readers: Mapping from splits to functions from a table to the class of each row. Every class then gets the
            same share of held-out rows.
    """

    format_name: Callable[[str, DataTable, PreTrainedTokenizerFast], str]
    write: Callable[[str, PreTrainedTokenizerFast, Path, DataTable], None]
    open: Callable[[Path], _Store]
    blanks: Mapping[str, Any]
    class_readers: Mapping[str, Callable[[DataTable], np.ndarray]]


def load_table(
    dataset: TableConfig,
    tokenizer: TokenizerConfig,
    tables: Mapping[str, DataTable],
    *,
    load_tokenizer: Callable[[], PreTrainedTokenizerFast],
    row_stores: RowStores[_Store],
    build_layout: Callable[[PreTrainedTokenizerFast], Layout],
    build_examples: Callable[..., _Examples],
    describe: Callable[[_Examples], dict[str, Any]],
    collator: type[PaddingCollator],
    problem: Problem,
    labels: tuple[str, ...] = (),
    strata: Callable[[_Store], np.ndarray] | None = None,
    test_splits: Iterable[str] = (),
    has_difficulty: bool = False,
    splits_words: bool = False,
    columns: Mapping[str, Any] | None = None,
) -> RunData:
    """Return the data of a run on a table: tokenise the rows of its splits, or load them from the cache.

    Args:
        dataset: Settings of the table.
        tokenizer: Settings of the tokenizer.
        tables: Mapping from splits to their tables.
        load_tokenizer: Function that returns the tokenizer; see `load_table_tokenizer`.
        row_stores: Stores of the tokenised rows.
        build_layout: Function from the tokenizer to the layout of a sequence.
        build_examples: Function from a store, row numbers and ``layout`` to examples.
        describe: Function from the examples of a split to their counts.
        collator: Class of the collator.
        problem: Kind of prediction.
        labels: Names of the classes, in the order of their numbers.
        strata: Function from the training store to the class of each row; see `split_examples`.
        test_splits: Names of the splits without labels.
        has_difficulty: Whether the rows have a difficulty.
        splits_words: Whether the model reads the words of a text one by one.
        columns: Columns that were chosen by their names, for the summary.

    Raises:
        DataError: If the data or the tokenizer lack something. The message is one line.
    """
    root = get_cache_root(dataset.cache_dir)
    with parallel_encoding():
        words = load_tokenizer()
        stores = {
            split: row_stores.open(_ensure_rows(root, dataset, split, table, row_stores, words))
            for split, table in tables.items()
        }
    layout = build_layout(words)
    make = partial(build_examples, layout=layout)
    train, evaluation, test = split_examples(dataset, tables, stores, make, strata, test_splits)
    words = with_data_layout(words, layout, splits_words=splits_words)
    counts = {
        "train": describe(train),
        "evaluation": {split: describe(examples) for split, examples in evaluation.items()},
        "test": {split: describe(examples) for split, examples in test.items()},
    }
    sources = {split: digest(table.fingerprint()) for split, table in tables.items()}
    weighting = getattr(dataset, "class_weights", None)
    collate: Any = collator(words.pad_token_id, dataset.sequence_length, dataset.pad_to_length)
    return RunData(
        train=train,
        evaluation=evaluation,
        test=test,
        tokenizer=words,
        collate=collate,
        summary=summarise_data(
            dataset,
            counts,
            facts={"sequence_length": dataset.sequence_length},
            tokenizer=describe_tokenizer(tokenizer, words),
            identity={"sources": sources, **(columns or {})},
        ),
        problem=problem,
        labels=labels,
        metrics=tuple(dataset.metrics),
        has_difficulty=has_difficulty,
        class_weights=None if weighting is None else compute_class_weights(weighting, counts["train"]["labels"]),
    )


def load_table_tokenizer(
    tokenizer: TokenizerConfig,
    root: Path,
    train: DataTable,
    columns: str | list[str],
    texts: Callable[[], Iterable[str]],
    cls_tokens: int,
) -> PreTrainedTokenizerFast:
    """Return the tokenizer for a table: an existing one, or a cached one that is trained on the training rows.

    Args:
        tokenizer: Settings of the tokenizer.
        root: Cache folder.
        train: Training rows.
        columns: Columns of texts.
        texts: Function that yields the texts of the first ``tokenizer.train_documents`` rows.
        cls_tokens: Number of leading [CLS] tokens.
    """

    def key() -> str:
        return digest(CACHE_FORMAT, train.fingerprint(), columns)

    return load_or_train(tokenizer, root, key, texts, list_needed_tokens(cls_tokens), train.sources)


def compute_class_weights(weighting: Any, counts: Mapping[str, int]) -> tuple[float, ...]:
    """Return the weight of every class in the loss.

    Args:
        weighting: Either `balanced` or a mapping of names to weights. `balanced` is examples / (classes · examples of
            the class), as in scikit-learn, and 1 for a class without examples. In a mapping, classes that are not named
            have weight 1.
        counts: Mapping from classes, in order, to the number of their training examples.

    Raises:
        DataError: If a name is not a class.
    """
    if weighting == "balanced":
        return tuple(sum(counts.values()) / (len(counts) * count) if count else 1.0 for count in counts.values())
    for name in map(str, weighting):
        if name not in counts:
            classes = ", ".join(counts)
            raise DataError(
                f"dataset.class_weights.{name}: not a class{nearest(name, counts)}; the classes are {classes}"
            )
    weights = {str(name): float(weight) for name, weight in weighting.items()}
    return tuple(weights.get(name, 1.0) for name in counts)


def describe_labels(values: np.ndarray, labels: tuple[str, ...]) -> dict[str, Any]:
    """Return a summary of labels: the count of each class, or the mean and standard deviation of values."""
    if values.ndim == 2:
        return {"labels": dict(zip(labels, values.sum(axis=0).astype(int).tolist(), strict=True))}
    if labels:
        counts = np.bincount(values.astype(np.int64), minlength=len(labels))
        return {"labels": dict(zip(labels, counts.tolist(), strict=True))}
    return {"mean": float(values.mean()), "std": float(values.std())} if len(values) else {}


# ---- stored rows


def _ensure_rows(
    root: Path,
    dataset: TableConfig,
    split: str,
    table: DataTable,
    row_stores: RowStores[Any],
    tokenizer: PreTrainedTokenizerFast,
) -> Path:
    """Return the cache folder with the tokenised rows of a split, and build it first if it is missing.

    It holds all rows, or only the used rows if that is less work.
    """
    name = row_stores.format_name(split, table, tokenizer)
    write, blank = partial(row_stores.write, split, tokenizer), partial(_blank_unused, table, row_stores.blanks)
    limits = _list_limits(dataset, split)
    if limits is None or (root / format_store_name(name)).exists():
        return ensure_arrays(root, name, lambda folder: write(folder, blank()), table.sources)

    def write_used(folder: Path) -> None:
        write(folder, blank(_mark_used(dataset, split, table, row_stores.class_readers.get(split))))

    # The table, which the name identifies, and the limits decide which rows these are.
    return ensure_arrays(root, f"{name}-{digest(limits, dataset.held_out)}", write_used, table.sources)


def _list_limits(dataset: TableConfig, split: str) -> dict[str, list[int | None]] | None:
    """Return the limits on the number of training and evaluation rows of a table, or None if all rows are used."""
    limits = {split: _list_uses(dataset, split)}
    if split == dataset.train_split and dataset.held_out is not None:
        limits[HELD_OUT] = _list_uses(dataset, HELD_OUT)
    return None if None in limits[split] else limits


def _list_uses(dataset: TableConfig, split: str) -> list[int | None]:
    uses = [dataset.max_train_examples] if split == dataset.train_split else []
    uses += [dataset.max_evaluation_examples] if split in dataset.evaluation_splits else []
    return uses + (
        [getattr(dataset, "max_test_examples", None)] if split in getattr(dataset, "test_splits", ()) else []
    )


def _mark_used(
    dataset: TableConfig, split: str, table: DataTable, classes: Callable[[DataTable], np.ndarray] | None
) -> np.ndarray:
    """Return a mask of the table rows that become examples, (rows,) bool; see `split_examples`."""
    rows = table.count()
    is_split = split == dataset.train_split and dataset.held_out is not None
    row_classes = classes(table) if classes is not None and is_split else None
    used = np.zeros(rows, dtype=bool)
    for part, numbers in group_rows_by_split(dataset, split, rows, row_classes).items():
        for limit in _list_uses(dataset, part):
            used[numbers[spread_rows(len(numbers), limit)]] = True
    return used


def _blank_unused(table: DataTable, blanks: Mapping[str, Any], used: np.ndarray | None = None) -> DataTable:
    """Return a copy of a table in which the cells of unused rows are blank, which saves their tokenisation.

    Args:
        table: Table to copy.
        blanks: Mapping from columns to the content of an unused row. In a column of texts, the content is a text or
            None.
        used: Mask of the used rows, (rows,) bool, or None if all rows are used.
    """
    texts = [name for name, blank in blanks.items() if blank is None or isinstance(blank, str)]

    def batches() -> Iterator[Rows]:
        first = missing = 0
        for batch in table.read_batches():
            rows = count_rows(batch)
            mask = [True] * rows if used is None else used[first : first + rows].tolist()
            missing += sum(
                is_used and _is_missing(text) for name in texts for text, is_used in _pair(batch[name], mask)
            )
            cells = {
                name: [cell if is_used else blank for cell, is_used in _pair(batch[name], mask)]
                for name, blank in blanks.items()
            }
            yield {**batch, **cells}
            first += rows
        if missing:
            logger.warning(
                "columns %s: %s lacks %d texts, which are read as empty texts", ", ".join(texts), table.label, missing
            )

    return replace(table, batches=batches)


def _pair(cells: list[Any], mask: list[bool]) -> Iterator[tuple[Any, bool]]:
    return zip(cells, mask, strict=True)


def _is_missing(text: Any) -> bool:
    return text is None or (isinstance(text, str) and not text.strip())
