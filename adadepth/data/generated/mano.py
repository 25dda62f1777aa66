"""Mano: prefix expressions of +, - and * modulo a number (Allen-Zhu 2025, Physics of Language Models 4.1).

    <bos> <len_2> + 3 * 5 6 =    7      modulo 23

An expression of l operations consists of an operator, an expression of l' operations and an expression of l - 1 - l'
operations, where l' is uniform in 0..l-1. An expression without operations is an operand below the modulus. In
training, l is uniform in 1..L. In the evaluation set ``longest``, which the publication tests, it is L. The label at
``=`` is the value of the expression, and its difficulty is l. The published code also draws one of several tokens for
each operator, which is not done here. The token that names l tells a model how much compute to spend (arXiv
2607.20519). ``dataset.length_token=false`` removes this token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from adadepth.data.batches import IGNORE
from adadepth.data.generated.base import DrawnTags, build_symbol_example, build_tagging_data, get_evaluation_size
from adadepth.data.labelled.collators import NO_DIFFICULTY
from adadepth.data.randomness import EVALUATION_SEED, Purpose

if TYPE_CHECKING:
    from adadepth.config.data import ManoConfig
    from adadepth.data.run_data import RunData

OPERATORS = ("+", "-", "*")
_BOS, END = "<bos>", "="


class ManoExamples(DrawnTags):
    """Examples of the Mano task, which are random arithmetic expressions.

    Args:
        dataset: Settings of the modulus and of the length token.
        operations: Lowest and highest number of operations in an expression.
        answers_only: Whether only the value has a label. Otherwise the label of each token is the next token.
        length: Number of examples.
        seed: Seed of the examples.
    """

    purpose = Purpose.MANO

    def __init__(
        self, dataset: ManoConfig, operations: tuple[int, int], answers_only: bool, length: int, seed: int
    ) -> None:
        super().__init__(length, seed)
        self.modulus, self.length_token = dataset.modulus, dataset.length_token
        self.operations, self.answers_only = operations, answers_only

    def draw(self, rows: int, epoch: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw random expressions as indices into `list_symbols`, (rows, 2 L + 1) int16, padded with -1.

        The other columns are ``operations``, int8, and ``values``, int16, each (rows,).
        """
        operations = generator.integers(self.operations[0], self.operations[1] + 1, rows)
        symbols = np.full((rows, 2 * self.operations[1] + 1), -1, dtype=np.int16)
        values = np.empty(rows, dtype=np.int16)
        for row, count in enumerate(operations.tolist()):
            expression, values[row] = draw_expression(count, self.modulus, generator)
            symbols[row, : len(expression)] = expression
        return {"symbols": symbols, "operations": operations.astype(np.int8), "values": values}

    def example(self, columns: dict[str, np.ndarray]) -> dict[str, Any]:
        """Return an expression between `<bos>` and `=` as an example. The label of `=` is its value."""
        operations, value = int(columns["operations"]), int(columns["values"])
        bos = self.modulus + len(OPERATORS)
        length_tokens = [bos + 1 + operations] if self.length_token else []
        expression = columns["symbols"][: 2 * operations + 1].tolist()
        symbols = np.array([bos, *length_tokens, *expression, bos + 1])
        labels = np.full(len(symbols), IGNORE) if self.answers_only else np.append(symbols[1:], IGNORE)
        difficulties = np.full(len(symbols), NO_DIFFICULTY)
        labels[-1], difficulties[-1] = value, operations
        return build_symbol_example(symbols, labels, difficulties)


def draw_expression(operations: int, modulus: int, generator: np.random.Generator) -> tuple[list[int], int]:
    """Draw an expression with a given number of operations; return its symbols as indices, and its value."""
    if operations == 0:
        operand = int(generator.integers(modulus))
        return [operand], operand
    operator, left_operations = int(generator.integers(len(OPERATORS))), int(generator.integers(operations))
    first, a = draw_expression(left_operations, modulus, generator)
    second, b = draw_expression(operations - 1 - left_operations, modulus, generator)
    value = (a + b, a - b, a * b)[operator] % modulus
    return [modulus + operator, *first, *second], value


def list_symbols(dataset: ManoConfig) -> tuple[str, ...]:
    """Return the vocabulary: operands, operators, `<bos>`, `=` and, if configured, tokens for the expression length."""
    operands = (str(number) for number in range(dataset.modulus))
    lengths = [f"<len_{count}>" for count in range(1, dataset.operations + 1)] if dataset.length_token else []
    return (*operands, *OPERATORS, _BOS, END, *lengths)


def load_mano(dataset: ManoConfig, seed: int) -> RunData:
    """Generate the Mano data. Set ``inside`` has the trained numbers of operations, set ``longest`` only the highest.

    The evaluation sets depend on neither the seed nor the number of training examples. They have labels at values only.
    """
    most, size = dataset.operations, get_evaluation_size(dataset)
    train = ManoExamples(dataset, (1, most), dataset.answers_only, dataset.train_examples, seed)
    evaluation = {
        name: ManoExamples(dataset, (fewest, most), True, size, EVALUATION_SEED)
        for name, fewest in (("inside", 1), ("longest", most))
    }
    symbols = list_symbols(dataset)
    labels = symbols[: dataset.modulus] if dataset.answers_only else symbols
    facts = {"modulus": dataset.modulus, "operations": most, "length_token": dataset.length_token}
    return build_tagging_data(dataset, train, evaluation, symbols, labels, facts)
