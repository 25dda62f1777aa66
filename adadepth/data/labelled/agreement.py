"""Agreement of subject and verb in sentences of Wikipedia (Linzen, Dupoux and Goldberg 2016, TACL 4, pp. 521-535).

The task is theirs: is the verb to come singular (VBZ) or plural (VBP)? The file has a line a sentence and a header. Its
columns `n_intervening` and `n_diff_intervening` count the nouns between the subject and the verb, and those of them of
the other number; `distance` is that of the verb from its subject in words.
"""

from __future__ import annotations

from collections.abc import Iterator

from adadepth.data.labelled.table import Rows, Table
from adadepth.errors import DataError

PREFIX = "prefix"  # the column that is added: the words before the verb
# Of every hundred rows, by their number: the shares of the paper, which drew them.
_SPLITS = {"train": range(9), "validation": range(9, 10), "test": range(10, 100)}


def agreement_tables(table: Table) -> dict[str, Table]:
    """Return the splits train, validation and test of what the file holds, with the column `prefix` beside its own.

    Raises:
        DataError: A column is missing; while reading, a verb that is not in its sentence.
    """
    for name in ("orig_sentence", "verb_index"):
        if name not in table.columns:
            raise DataError(f"{table.label}: lacks the column {name}; it has {', '.join(table.columns)}")
    return {split: _split(table, split) for split in _SPLITS}


def _split(table: Table, split: str) -> Table:
    def batches() -> Iterator[Rows]:
        first = 0
        for batch in table.batches():
            numbers = range(first, first + len(batch["verb_index"]))
            first = numbers.stop
            places = [place for place, number in enumerate(numbers) if number % 100 in _SPLITS[split]]
            rows = {name: [values[place] for place in places] for name, values in batch.items()}
            yield {**rows, PREFIX: [_before_verb(table, numbers[place], batch, place) for place in places]}

    def fingerprint() -> list[str]:
        return [*table.fingerprint(), split]

    return Table(table.label, [*table.columns, PREFIX], {}, batches, fingerprint)


def _before_verb(table: Table, number: int, batch: Rows, place: int) -> str:
    """The words before the verb, which are counted from 1."""
    words, verb = str(batch["orig_sentence"][place]).split(), str(batch["verb_index"][place])
    if not verb.isdigit() or not 1 < int(verb) <= len(words):
        raise DataError(
            f"{table.label}: row {number} has the verb_index {verb!r}; from 2 to {len(words)}, which is how many "
            "words its orig_sentence has, is needed"
        )
    return " ".join(words[: int(verb) - 1])
