"""Variable assignment: the task of finding the value of a name that is assigned directly or through other names.

    a = red     b = a     c = blue     print b     print c

Each line ``b = a`` defines a new name as one of a few values or as an earlier name. Then questions ask for the values
of names. The labels are these values. They are placed at the right-hand side of every line and at every name in a
question. The difficulty is the number of earlier lines that must be read one after the other: 0 at ``red``, 1 at the
``a`` of the second line, 2 at ``print b``. Unlike in `hops`, a line must be found by its name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from adadepth.data.batches import IGNORE
from adadepth.data.generated.base import (
    DrawnTags,
    build_symbol_example,
    build_tagging_data,
    get_evaluation_size,
    to_range,
)
from adadepth.data.generated.hops import COLOURS
from adadepth.data.generated.pointer_chains import draw_pointer_chains
from adadepth.data.labelled.collators import NO_DIFFICULTY
from adadepth.data.randomness import EVALUATION_SEED, Purpose

if TYPE_CHECKING:
    from adadepth.config.data import TraceConfig
    from adadepth.data.run_data import RunData

_MARKS = ("=", "print")
_LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")
_EQUALS, _PRINT = range(2)


class TraceExamples(DrawnTags):
    """Examples of variable assignment: lines of a program and questions about the values of their names.

    Args:
        dataset: Settings of the lines, values and questions.
        links: Lowest and highest number of links between a labelled name and its value.
        length: Number of examples.
        seed: Seed of the examples.
    """

    purpose = Purpose.TRACE

    def __init__(self, dataset: TraceConfig, links: tuple[int, int], length: int, seed: int) -> None:
        super().__init__(length, seed)
        self.lines, self.values, self.reach = dataset.lines, dataset.values, dataset.reach
        self.questions, self.links = dataset.questions, links

    def draw(self, rows: int, epoch: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw programs: for each line, the line it refers to, the number of links to its value, and the value.

        The other columns are ``names``, the name that each line defines, and ``queries``, the line that each question
        asks about. All are int8. ``queries`` is (rows, questions), and the others are (rows, lines).
        """
        shape = (rows, self.lines)
        targets, links, values = draw_pointer_chains(*shape, self.links, self.values, self.reach, generator)
        names, queries = (generator.random(shape, dtype=np.float32).argsort(axis=1) for _ in range(2))
        queries = queries[:, : self.questions]
        columns = {"targets": targets, "links": links, "values": values, "names": names, "queries": queries}
        return {name: column.astype(np.int8) for name, column in columns.items()}

    def example(self, columns: dict[str, np.ndarray]) -> dict[str, Any]:
        """Return a program and its questions as an example. Names with links outside the range have no label."""
        targets, links, values, names, queries = (
            columns[name].astype(np.int64) for name in ("targets", "links", "values", "names", "queries")
        )
        first_value = len(_MARKS) + self.lines
        name_symbols = len(_MARKS) + names
        sources = np.where(targets == np.arange(self.lines), first_value + values, name_symbols[targets])
        lines = np.stack([name_symbols, np.full_like(name_symbols, _EQUALS), sources], axis=1).ravel()
        questions = np.stack([np.full_like(queries, _PRINT), name_symbols[queries]], axis=1).ravel()
        symbols = np.concatenate([lines, questions])
        line_numbers = np.concatenate([np.arange(self.lines), queries])  # of every labelled token
        positions = np.concatenate([3 * np.arange(self.lines) + 2, len(lines) + 2 * np.arange(len(queries)) + 1])
        is_query = np.arange(len(line_numbers)) >= self.lines
        labels, difficulties = np.full(len(symbols), IGNORE), np.full(len(symbols), NO_DIFFICULTY)
        in_range = (self.links[0] <= links) & (links <= self.links[1])
        labels[positions] = np.where(in_range, values, IGNORE)[line_numbers]
        difficulties[positions] = links[line_numbers] + is_query
        return build_symbol_example(symbols, labels, difficulties)


def load_trace(dataset: TraceConfig, seed: int) -> RunData:
    """Generate the variable-assignment data. Set ``inside`` has the trained range of links, set ``beyond`` another one.

    The evaluation sets depend on neither the seed nor the number of training examples.
    """
    labels = COLOURS[: dataset.values]
    ranges = {"inside": to_range(dataset.train_links)}
    if dataset.beyond_links is not None:
        ranges["beyond"] = to_range(dataset.beyond_links)
    train = TraceExamples(dataset, ranges["inside"], dataset.train_examples, seed)
    evaluation = {
        name: TraceExamples(dataset, links, get_evaluation_size(dataset), EVALUATION_SEED)
        for name, links in ranges.items()
    }
    facts = {"lines": dataset.lines, "links": {name: list(links) for name, links in ranges.items()}}
    symbols = (*_MARKS, *_LETTERS[: dataset.lines], *labels)
    return build_tagging_data(dataset, train, evaluation, symbols, labels, facts)
