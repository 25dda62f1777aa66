"""Addition: the task of adding two numbers, in which a carry may come from a distant column.

A column of two digits is one token, with the most significant column first. The label of a column is its digit of the
sum. A column with digits that sum to 9 passes on the carry that it receives. Any other column determines its outgoing
carry alone. The carry into a column is therefore determined by the nearest lower column with digits that do not sum to
9. The distance to that column is the difficulty. It is 0 for the last column, which receives no carry. The columns are
placed at a random offset in a longer sequence, so that a model can read numbers longer than those of training.
Evaluation uses random offsets too, which are the same in every run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from adadepth.data.editable_grid import EditableGrid, GridRows
from adadepth.data.generated.base import DrawnTags, build_symbol_example, build_tagging_data, get_evaluation_size
from adadepth.data.randomness import EVALUATION_SEED, Purpose
from adadepth.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from adadepth.config.data import AdditionConfig
    from adadepth.data.run_data import RunData

LABELS = tuple(str(digit) for digit in range(10))
SYMBOLS = tuple(f"{first}+{second}" for first in range(10) for second in range(10))


class AdditionExamples(DrawnTags):
    """Examples of the addition task: two numbers of ``digits`` digits, with a column of zeros for the last carry."""

    purpose = Purpose.ADDITION

    def __init__(self, dataset: AdditionConfig, digits: int, length: int, seed: int) -> None:
        super().__init__(length, seed)
        self.digits = digits
        self.nines = dataset.nines
        self.offset_count = dataset.field - digits

    def draw(self, rows: int, epoch: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw the numbers (rows, 2, digits + 1), sums and difficulties of additions, int8, and offsets, int16."""
        numbers = draw_numbers(rows, self.digits, self.nines, generator)
        sums, difficulties = add_columns(numbers)
        offsets = generator.integers(0, self.offset_count, rows, dtype=np.int16)
        return {"numbers": numbers, "sums": sums, "difficulties": difficulties, "place": offsets}

    def example(self, columns: dict[str, np.ndarray]) -> dict[str, Any]:
        """Return an addition as an example. A token is a column of two digits; its label is the digit of the sum."""
        first, second = columns["numbers"].astype(np.int64)
        positions = int(columns["place"]) + np.arange(len(first))
        return {
            **build_symbol_example(10 * first + second, columns["sums"], columns["difficulties"]),
            "position_ids": positions,
        }


def draw_numbers(rows: int, digits: int, nines: float, generator: np.random.Generator) -> np.ndarray:
    """Draw pairs of numbers, (rows, 2, digits + 1) int8. A 0 comes first, then the most significant digit.

    The digits of a column sum to 9 with probability ``nines``. All other pairs of digits are equally likely.
    """
    first = generator.integers(0, 10, (rows, digits), dtype=np.int8)
    other = (9 - first + generator.integers(1, 10, first.shape, dtype=np.int8)) % 10
    second = np.where(generator.random(first.shape, dtype=np.float32) < nines, 9 - first, other)
    numbers = np.zeros((rows, 2, digits + 1), dtype=np.int8)
    numbers[:, 0, 1:], numbers[:, 1, 1:] = first, second
    return numbers


def add_columns(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the digits of the sums, and for each column the distance to the column in which its carry arises.

    Args:
        numbers: Digits of both numbers, (rows, 2, columns), the most significant digit first.

    Returns:
        Two int8 arrays, each (rows, columns).
    """
    totals = numbers.sum(axis=1, dtype=np.int8)
    digits, distance = np.empty_like(totals), np.empty_like(totals)
    carry = np.zeros(len(totals), dtype=np.int8)
    away = np.zeros_like(carry)
    for column in reversed(range(totals.shape[1])):
        total = totals[:, column]
        digits[:, column], distance[:, column] = (total + carry) % 10, away
        # No carry comes from below the last column: a run of nines at the end is decided where the number ends.
        away = np.where(total == 9, away + 1, 1).astype(np.int8)
        carry = (total + carry) // 10
    return digits, distance


def load_addition(dataset: AdditionConfig, seed: int) -> RunData:
    """Generate addition data. The evaluation set ``inside`` has the trained number of digits, ``beyond_N`` N digits.

    The evaluation sets depend on neither the seed nor the number of training examples.
    """
    train = AdditionExamples(dataset, dataset.digits, dataset.train_examples, seed)
    digits = {"inside": dataset.digits, **{f"beyond_{number}": number for number in dataset.beyond_digits}}
    evaluation = {
        name: AdditionExamples(dataset, number, get_evaluation_size(dataset), EVALUATION_SEED)
        for name, number in digits.items()
    }
    facts = {"digits": digits, "nines": dataset.nines, "field": dataset.field}
    return build_tagging_data(dataset, train, evaluation, SYMBOLS, LABELS, facts)


def read_addition(dataset: AdditionConfig, rows: GridRows, before: Mapping[str, Any]) -> dict[str, Any]:
    """Build an example from an addition that a user edited in the demo. It keeps its offset in the sequence."""
    digits = [[int(digit) for digit in column.split("+")] for column in rows[0]]
    numbers = np.array(digits, dtype=np.int8).T[None]
    if numbers[0, :, 0].any():
        raise DataError("the first column must be 0+0, because it only holds the carry")
    sums, difficulties = add_columns(numbers)
    examples = AdditionExamples(dataset, numbers.shape[2] - 1, 1, EVALUATION_SEED)
    columns = {"numbers": numbers[0], "sums": sums[0], "difficulties": difficulties[0]}
    return examples.example({**columns, "place": before["position_ids"].min()})


ADDITION_GRID = EditableGrid(lambda dataset: SYMBOLS, read_addition)
