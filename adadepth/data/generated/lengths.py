"""Tasks whose texts have a length n and need about n loops: parity, copy and addition (Fan et al., arXiv 2409.15647).

    parity      < 1 0 1 1                       after every bit, the parity of the bits so far
    copy        b d a = _ _                     from `=` on, the symbols before it: b d a
    addition    < 0+1 1+1 1+0 0+0               the binary digits of the sum; the lowest digit comes first

All texts are for causal models. The number of loops T(n) of a text, ``text_loops``, is n for every task, and the
difficulty of its labelled tokens, too. In addition, a column passes on the carry that it receives with probability
`PROPAGATED`, so that some carries come from far.
"""

from __future__ import annotations

from functools import partial
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
from adadepth.data.labelled.collators import NO_DIFFICULTY
from adadepth.data.randomness import EVALUATION_SEED, Purpose

if TYPE_CHECKING:
    from adadepth.config.data import LengthsConfig
    from adadepth.data.run_data import RunData

PROPAGATED = 0.75
SYMBOLS = {
    "parity": ("0", "1", "<"),
    "copy": ("a", "b", "c", "d", "=", "_"),
    "addition": ("0+0", "0+1", "1+0", "1+1", "<"),
}
LABELS = {"parity": ("even", "odd"), "copy": ("a", "b", "c", "d"), "addition": ("0", "1")}


class LengthExamples(DrawnTags):
    """Examples of a task with lengths.

    Args:
        algorithm: `parity`, `copy` or `addition`.
        length_range: Lowest and highest length n; all are equally frequent.
        length: Number of examples.
        seed: Seed of the examples.
    """

    purpose = Purpose.LENGTHS

    def __init__(self, algorithm: str, length_range: tuple[int, int], length: int, seed: int) -> None:
        super().__init__(length, seed)
        self.algorithm, self.length_range = algorithm, length_range

    def draw(self, rows: int, epoch: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw lengths, int16 (rows,), and bits of the longest length, int8 (rows, 2, n)."""
        low, high = self.length_range
        lengths = generator.integers(low, high + 1, rows, dtype=np.int16)
        return {"lengths": lengths, "bits": draw_bits(self.algorithm, rows, high, generator)}

    def example(self, columns: dict[str, np.ndarray]) -> dict[str, Any]:
        """Return a text as an example, with the number of its loops."""
        length = int(columns["lengths"])
        symbols, labels = (row[0] for row in arrange_bits(self.algorithm, columns["bits"][None, :, :length]))
        difficulties = np.where(labels == IGNORE, NO_DIFFICULTY, length)
        return {**build_symbol_example(symbols, labels, difficulties), "text_loops": length}


def draw_bits(algorithm: str, rows: int, length: int, generator: np.random.Generator) -> np.ndarray:
    """Draw two bits for every position of a text, int8 (rows, 2, n). Those of an addition differ often."""
    bits = generator.integers(0, 2, (rows, 2, length), dtype=np.int8)
    if algorithm == "addition":
        differs = generator.random((rows, length), dtype=np.float32) < PROPAGATED
        bits[:, 1] = np.where(differs, 1 - bits[:, 0], bits[:, 0])
    return bits


def arrange_bits(algorithm: str, bits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the symbols and the labels of texts of the same length, int64 (rows, S) each.

    A text has 1 + n tokens for parity, 2 n for copy and 2 + n for addition.

    Args:
        algorithm: `parity`, which reads the first bit of every position, `copy` or `addition`, which read both.
        bits: Bits, (rows, 2, n).
    """
    first, second = bits.astype(np.int64).transpose(1, 0, 2)
    column = (len(first), 1)
    if algorithm == "parity":
        return np.hstack([np.full(column, 2), first]), np.hstack([np.full(column, IGNORE), first.cumsum(axis=1) % 2])
    if algorithm == "copy":
        copied, blanks = 2 * first + second, np.full_like(first, 5)[:, 1:]
        return np.hstack([copied, np.full(column, 4), blanks]), np.hstack([np.full_like(copied, IGNORE), copied])
    first, second = (np.hstack([digits, np.zeros(column, dtype=np.int64)]) for digits in (first, second))
    return np.hstack([np.full(column, 4), 2 * first + second]), np.hstack([np.full(column, IGNORE), add(first, second)])


def add(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the binary digits of sums, (rows, n), from those of the numbers, with the lowest digit first."""
    digits, carry = np.empty_like(first), np.zeros(len(first), dtype=np.int64)
    for position in range(first.shape[1]):
        carry, digits[:, position] = np.divmod(first[:, position] + second[:, position] + carry, 2)
    return digits


def load_lengths(dataset: LengthsConfig, seed: int) -> RunData:
    """Generate the data. The evaluation set ``inside`` has the trained lengths, ``beyond_N`` texts of length N alone.

    The evaluation sets depend on neither the seed nor the number of training examples.
    """
    algorithm, trained = str(dataset.algorithm), to_range(dataset.train_lengths)
    lengths = {"inside": trained, **{f"beyond_{length}": (length, length) for length in dataset.beyond_lengths}}
    draw = partial(LengthExamples, algorithm)
    train = draw(trained, dataset.train_examples, seed)
    size = get_evaluation_size(dataset)
    evaluation = {name: draw(ends, size, EVALUATION_SEED) for name, ends in lengths.items()}
    facts = {"algorithm": algorithm, "lengths": {name: list(ends) for name, ends in lengths.items()}}
    return build_tagging_data(dataset, train, evaluation, SYMBOLS[algorithm], LABELS[algorithm], facts)
