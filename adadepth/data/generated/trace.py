"""Assignments: what does a name stand for? Lines ``b = a`` give names a value, directly or by another name.

    a = red     b = a     c = blue     print b     print c

Each line gives a name of its own one of a few values, or what an earlier name stands for. Then names are asked for.
Labels, values, are at the source of every line and at every name that is asked for. Its difficulty is how many earlier
lines must be read, one after the other: 0 at ``red``, 1 at the ``a`` of the second line, 2 at ``print b``. Unlike in
`hops`, a line must be found by its name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from adadepth.data.batches import IGNORE
from adadepth.data.generated.chains import draw_chains
from adadepth.data.generated.hops import COLOURS
from adadepth.data.generated.shared import DrawnTags, evaluation_size, range_of, symbol_example, tagging_data
from adadepth.data.labelled.collate import NO_DIFFICULTY
from adadepth.data.randomness import EVALUATION_SEED, Purpose

if TYPE_CHECKING:
    from adadepth.data.labelled.contract import LabelledData
    from adadepth.settings.data import TraceConfig

_MARKS = ("=", "print")
_LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")
_EQUALS, _PRINT = range(2)


class TraceExamples(DrawnTags):
    """Lines and questions of one range of links; five bytes a line are kept.

    Args:
        dataset: Lines, values and questions.
        links: Fewest and most names between a labelled name and its value.
        length: How many examples there are.
        seed: Of the draws.
    """

    purpose = Purpose.TRACE

    def __init__(self, dataset: TraceConfig, links: tuple[int, int], length: int, seed: int) -> None:
        super().__init__(length, seed)
        self.lines, self.values, self.reach = dataset.lines, dataset.values, dataset.reach
        self.questions, self.links = dataset.questions, links

    def draw(self, rows: int, epoch: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw where each line's source was defined, ``targets``, how many ``links`` and which ``values`` follow.

        Besides, ``names`` says which name each line defines, and ``asked`` which lines are asked for. All are int8
        (rows, lines), ``asked`` (rows, questions).
        """
        shape = (rows, self.lines)
        targets, links, values = draw_chains(*shape, self.links, self.values, self.reach, generator)
        names, asked = (generator.random(shape, dtype=np.float32).argsort(axis=1) for _ in range(2))
        asked = asked[:, : self.questions]
        found = {"targets": targets, "links": links, "values": values, "names": names, "asked": asked}
        return {name: column.astype(np.int8) for name, column in found.items()}

    def example(self, drawn: dict[str, np.ndarray]) -> dict[str, Any]:
        """Write lines and questions down; what lies outside the range of links has a difficulty and no label."""
        targets, links, values, names, asked = (
            drawn[name].astype(np.int64) for name in ("targets", "links", "values", "names", "asked")
        )
        first_value = len(_MARKS) + self.lines
        said = len(_MARKS) + names
        sources = np.where(targets == np.arange(self.lines), first_value + values, said[targets])
        lines = np.stack([said, np.full_like(said, _EQUALS), sources], axis=1).ravel()
        questions = np.stack([np.full_like(asked, _PRINT), said[asked]], axis=1).ravel()
        symbols = np.concatenate([lines, questions])
        about = np.concatenate([np.arange(self.lines), asked])  # the line of every labelled token
        places = np.concatenate([3 * np.arange(self.lines) + 2, len(lines) + 2 * np.arange(len(asked)) + 1])
        is_asked = np.arange(len(about)) >= self.lines
        labels, difficulties = np.full(len(symbols), IGNORE), np.full(len(symbols), NO_DIFFICULTY)
        in_range = (self.links[0] <= links) & (links <= self.links[1])
        labels[places] = np.where(in_range, values, IGNORE)[about]
        difficulties[places] = links[about] + is_asked
        return symbol_example(symbols, labels, difficulties)


def load_trace(dataset: TraceConfig, seed: int) -> LabelledData:
    """Return assignments: the set ``inside`` has the trained range of links, ``beyond`` another.

    The evaluation sets depend on neither the seed nor the number of training examples.
    """
    labels = COLOURS[: dataset.values]
    ranges = {"inside": range_of(dataset.train_links)}
    if dataset.beyond_links is not None:
        ranges["beyond"] = range_of(dataset.beyond_links)
    train = TraceExamples(dataset, ranges["inside"], dataset.train_examples, seed)
    evaluation = {
        name: TraceExamples(dataset, links, evaluation_size(dataset), EVALUATION_SEED) for name, links in ranges.items()
    }
    facts = {"lines": dataset.lines, "links": {name: list(links) for name, links in ranges.items()}}
    symbols = (*_MARKS, *_LETTERS[: dataset.lines], *labels)
    return tagging_data(dataset, train, evaluation, symbols, labels, facts)
