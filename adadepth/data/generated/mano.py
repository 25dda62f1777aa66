"""Mano: expressions of +, - and * in prefix form, modulo a number (Allen-Zhu 2025, Physics of Language Models 4.1).

    <bos> <len_2> + 3 * 5 6 =    7      modulo 23

An expression of l operations is an operator, an expression of l' operations, l' any of 0..l-1 as likely, and one of
l - 1 - l'; that of none is an operand below the modulus. l is any of 1..L as likely in training, L in the set
``longest``, which the publication tests. The label at ``=`` is the value; its difficulty is l. The published code draws
one of several tokens for each operator besides, which is not done here. ``dataset.length_token=false`` leaves out the
token that says l: it tells a model how much computing to spend (arXiv 2607.20519).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from adadepth.data.batches import IGNORE
from adadepth.data.generated.shared import DrawnTags, evaluation_size, symbol_example, tagging_data
from adadepth.data.labelled.collate import NO_DIFFICULTY
from adadepth.data.randomness import EVALUATION_SEED, Purpose

if TYPE_CHECKING:
    from adadepth.data.labelled.contract import LabelledData
    from adadepth.settings.data import ManoConfig

OPERATORS = ("+", "-", "*")
_BEGINNING, END = "<bos>", "="


class ManoExamples(DrawnTags):
    """Expressions; two bytes a token are kept.

    Args:
        dataset: The modulus, and whether lengths are told.
        operations: Fewest and most operations of an expression.
        answers_only: Whether nothing but the value has a label; else each token has the next one as label.
        length: How many examples there are.
        seed: Of the draws.
    """

    purpose = Purpose.MANO

    def __init__(
        self, dataset: ManoConfig, operations: tuple[int, int], answers_only: bool, length: int, seed: int
    ) -> None:
        super().__init__(length, seed)
        self.modulus, self.length_token = dataset.modulus, dataset.length_token
        self.operations, self.answers_only = operations, answers_only

    def draw(self, rows: int, epoch: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw ``symbols`` (rows, 2 L + 1) int16, numbers of `symbols_of` and -1 behind an expression's end.

        Besides its ``operations``, int8, and ``values``, int16, (rows,).
        """
        operations = generator.integers(self.operations[0], self.operations[1] + 1, rows)
        symbols = np.full((rows, 2 * self.operations[1] + 1), -1, dtype=np.int16)
        values = np.empty(rows, dtype=np.int16)
        for row, count in enumerate(operations.tolist()):
            drawn, values[row] = draw_expression(count, self.modulus, generator)
            symbols[row, : len(drawn)] = drawn
        return {"symbols": symbols, "operations": operations.astype(np.int8), "values": values}

    def example(self, drawn: dict[str, np.ndarray]) -> dict[str, Any]:
        """Put the expression between its beginning and its end, where its value is asked for."""
        operations, value = int(drawn["operations"]), int(drawn["values"])
        beginning = self.modulus + len(OPERATORS)
        told = [beginning + 1 + operations] if self.length_token else []
        expression = drawn["symbols"][: 2 * operations + 1].tolist()
        symbols = np.array([beginning, *told, *expression, beginning + 1])
        labels = np.full(len(symbols), IGNORE) if self.answers_only else np.append(symbols[1:], IGNORE)
        difficulties = np.full(len(symbols), NO_DIFFICULTY)
        labels[-1], difficulties[-1] = value, operations
        return symbol_example(symbols, labels, difficulties)


def draw_expression(operations: int, modulus: int, generator: np.random.Generator) -> tuple[list[int], int]:
    """Return an expression of so many operations, as numbers of `symbols_of`, and its value."""
    if operations == 0:
        operand = int(generator.integers(modulus))
        return [operand], operand
    operator, left = int(generator.integers(len(OPERATORS))), int(generator.integers(operations))
    first, a = draw_expression(left, modulus, generator)
    second, b = draw_expression(operations - 1 - left, modulus, generator)
    value = (a + b, a - b, a * b)[operator] % modulus
    return [modulus + operator, *first, *second], value


def symbols_of(dataset: ManoConfig) -> tuple[str, ...]:
    """Every symbol: operands, operators, beginning and end, and, where they are told, lengths."""
    operands = (str(number) for number in range(dataset.modulus))
    lengths = [f"<len_{count}>" for count in range(1, dataset.operations + 1)] if dataset.length_token else []
    return (*operands, *OPERATORS, _BEGINNING, END, *lengths)


def load_mano(dataset: ManoConfig, seed: int) -> LabelledData:
    """Return expressions: the set ``inside`` has as many operations as training, ``longest`` the most.

    The evaluation sets depend on neither the seed nor the number of training examples, and have labels at values only.
    """
    most, size = dataset.operations, evaluation_size(dataset)
    train = ManoExamples(dataset, (1, most), dataset.answers_only, dataset.train_examples, seed)
    evaluation = {
        name: ManoExamples(dataset, (fewest, most), True, size, EVALUATION_SEED)
        for name, fewest in (("inside", 1), ("longest", most))
    }
    symbols = symbols_of(dataset)
    labels = symbols[: dataset.modulus] if dataset.answers_only else symbols
    facts = {"modulus": dataset.modulus, "operations": most, "length_token": dataset.length_token}
    return tagging_data(dataset, train, evaluation, symbols, labels, facts)
