"""Columns by their usual names: which of a table hold the texts and the label where nobody says it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from adadepth.data.text.data_table import DataTable
from adadepth.errors import DataError, nearest

if TYPE_CHECKING:
    from adadepth.settings import LabelledConfig, TaggingConfig

logger = logging.getLogger(__name__)

# The first name of each is taken wherever it is there, whatever else is.
USUAL_TEXTS = (
    "sentence",
    "text",
    "review",
    "content",
    "comment",
    "tweet",
    "message",
    "document",
    "passage",
    "question",
)
USUAL_LABELS = (
    "label", "labels", "class", "target", "category", "sentiment", "stars", "rating", "score", "topic", "intent",
)  # fmt: skip
USUAL_TAGS = ("ner_tags", "tags", "labels", "pos_tags", "upos", "pos", "tag", "label")
USUAL_PAIRS = (
    ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"), ("text1", "text2"),
    ("question", "passage"), ("question", "sentence"), ("question", "context"), ("query", "passage"),
)  # fmt: skip


class TextColumns(NamedTuple):
    """The columns of a table that hold the text, or the two of a pair, and the label."""

    texts: list[str]
    label: str


def choose_columns(dataset: LabelledConfig, table: DataTable) -> TextColumns:
    """Return the configured columns, and by their usual names those of a table that are not configured.

    Raises:
        DataError: The columns' names do not say which they are.
    """
    configured = list(filter(None, [dataset.label_column, dataset.difficulty_column]))
    texts = dataset.text_columns or usual_texts(table.columns, configured)
    if not texts:
        raise _undecided("text_columns", USUAL_TEXTS[0], table, "name the one or two that hold texts")
    label = dataset.label_column or _usual_label(table.columns, [*texts, *configured])
    if label is None:
        raise _undecided("label_column", USUAL_LABELS[0], table, "name the one with the labels")
    _say_choice(dataset, table, TextColumns(texts, label))
    return TextColumns(texts, label)


def choose_tag_column(dataset: TaggingConfig, table: DataTable) -> str:
    """Return the configured column of tags or, where a table lacks it, the first with a usual name."""
    if dataset.tag_column in table.columns:
        return dataset.tag_column
    return next((name for name in USUAL_TAGS if name in table.columns), dataset.tag_column)


def _say_choice(dataset: LabelledConfig, table: DataTable, columns: TextColumns) -> None:
    """Say which columns were chosen, unless they are the first of the usual names and no other could be meant."""
    others = [name for name in table.columns if name.casefold() in USUAL_TEXTS and name not in columns.texts]
    said = []
    if not dataset.text_columns and (others or columns.texts != [USUAL_TEXTS[0]]):
        said.append(f"dataset.text_columns=[{','.join(columns.texts)}]")
    if not dataset.label_column and columns.label != USUAL_LABELS[0]:
        said.append(f"dataset.label_column={columns.label}")
    if said:
        logger.info("%s: chosen by name among the columns %s of %s", " ".join(said), _listed(table), table.label)


def usual_texts(columns: Sequence[str], others: Sequence[str] = ()) -> list[str] | None:
    """Return the column of texts, or the two of a pair; None: names do not say which.

    Args:
        columns: Of a table.
        others: Those that hold something else.
    """
    rest = [name for name in columns if name not in others]
    if USUAL_TEXTS[0] in rest:
        return [USUAL_TEXTS[0]]
    pairs = [[first, second] for names in USUAL_PAIRS for first, second in [_called(rest, names)] if first and second]
    singles = [[name] for name in rest if name.casefold() in USUAL_TEXTS and not any(name in pair for pair in pairs)]
    if len(candidates := [*pairs, *singles]) == 1:
        return candidates[0]
    rest = [name for name in rest if name.casefold() not in USUAL_LABELS]
    return rest if not candidates and len(rest) == 1 else None


def _called(columns: Sequence[str], names: Sequence[str]) -> list[str | None]:
    """Return the one column of each name, in any case; None: there is none, or there are several."""
    matches = [[column for column in columns if column.casefold() == name] for name in names]
    return [columns[0] if len(columns) == 1 else None for columns in matches]


def _usual_label(columns: Sequence[str], others: Sequence[str]) -> str | None:
    rest = [name for name in columns if name not in others]
    if USUAL_LABELS[0] in rest:
        return USUAL_LABELS[0]
    candidates = [name for name in rest if name.casefold() in USUAL_LABELS] or rest
    return candidates[0] if len(candidates) == 1 else None


def _undecided(key: str, name: str, table: DataTable, advice: str) -> DataError:
    hint = nearest(name, table.columns)
    return DataError(f"dataset.{key}={name}: {table.label} has the columns {_listed(table)}{hint}; {advice}")


def _listed(table: DataTable) -> str:
    return ", ".join(table.columns)
