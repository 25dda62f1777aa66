"""Detection of the text and label columns of a table by their usual names."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from adadepth.data.text.table import DataTable
from adadepth.errors import DataError, nearest

if TYPE_CHECKING:
    from adadepth.config import LabelledConfig, TaggingConfig

logger = logging.getLogger(__name__)

# The first name of each list is taken wherever it is present.
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
    """Names of the column of texts, or of the two columns of a pair, and of the column of labels."""

    texts: list[str]
    label: str


def choose_columns(dataset: LabelledConfig, table: DataTable) -> TextColumns:
    """Return the configured text and label columns. Columns that are not configured are found by their usual names.

    Raises:
        DataError: If the names of the columns are ambiguous.
    """
    configured = list(filter(None, [dataset.label_column, dataset.difficulty_column]))
    texts = dataset.text_columns or find_text_columns(table.columns, configured)
    if not texts:
        raise _make_undecided_error("text_columns", USUAL_TEXTS[0], table, "name the one or two text columns")
    label = dataset.label_column or _find_label_column(table.columns, [*texts, *configured])
    if label is None:
        raise _make_undecided_error("label_column", USUAL_LABELS[0], table, "name the label column")
    _log_choice(dataset, table, TextColumns(texts, label))
    return TextColumns(texts, label)


def choose_tag_column(dataset: TaggingConfig, table: DataTable) -> str:
    """Return the configured column of tags or, if the table lacks it, the first column with a usual name."""
    if dataset.tag_column in table.columns:
        return dataset.tag_column
    return next((name for name in USUAL_TAGS if name in table.columns), dataset.tag_column)


def _log_choice(dataset: LabelledConfig, table: DataTable, columns: TextColumns) -> None:
    """Log which table columns were detected as text and label, unless their names left no doubt."""
    alternatives = [name for name in table.columns if name.casefold() in USUAL_TEXTS and name not in columns.texts]
    choices = []
    if not dataset.text_columns and (alternatives or columns.texts != [USUAL_TEXTS[0]]):
        choices.append(f"dataset.text_columns=[{','.join(columns.texts)}]")
    if not dataset.label_column and columns.label != USUAL_LABELS[0]:
        choices.append(f"dataset.label_column={columns.label}")
    if choices:
        logger.info(
            "%s: chosen by name among the columns %s of %s", " ".join(choices), _join_columns(table), table.label
        )


def find_text_columns(columns: Sequence[str], excluded: Sequence[str] = ()) -> list[str] | None:
    """Return the column of texts, or the two columns of a pair, or None if the names are ambiguous.

    Args:
        columns: Names of the columns of a table.
        excluded: Names of columns with other content.
    """
    rest = [name for name in columns if name not in excluded]
    if USUAL_TEXTS[0] in rest:
        return [USUAL_TEXTS[0]]
    pairs = [
        [first, second] for names in USUAL_PAIRS for first, second in [_match_columns(rest, names)] if first and second
    ]
    singles = [[name] for name in rest if name.casefold() in USUAL_TEXTS and not any(name in pair for pair in pairs)]
    if len(candidates := [*pairs, *singles]) == 1:
        return candidates[0]
    rest = [name for name in rest if name.casefold() not in USUAL_LABELS]
    return rest if not candidates and len(rest) == 1 else None


def _match_columns(columns: Sequence[str], names: Sequence[str]) -> list[str | None]:
    """Return for each name the one table column that equals it, ignoring case; None if no or several columns do."""
    matches = [[column for column in columns if column.casefold() == name] for name in names]
    return [columns[0] if len(columns) == 1 else None for columns in matches]


def _find_label_column(columns: Sequence[str], excluded: Sequence[str]) -> str | None:
    rest = [name for name in columns if name not in excluded]
    if USUAL_LABELS[0] in rest:
        return USUAL_LABELS[0]
    candidates = [name for name in rest if name.casefold() in USUAL_LABELS] or rest
    return candidates[0] if len(candidates) == 1 else None


def _make_undecided_error(key: str, name: str, table: DataTable, advice: str) -> DataError:
    hint = nearest(name, table.columns)
    return DataError(f"dataset.{key}={name}: {table.label} has the columns {_join_columns(table)}{hint}; {advice}")


def _join_columns(table: DataTable) -> str:
    return ", ".join(table.columns)
