"""Nested brackets, drawn afresh in every epoch."""

from __future__ import annotations

from typing import Any

import numpy as np

from adadepth.data import RunData
from adadepth.data.generated.base import DrawnTags, build_tagging_data, encode_symbols, get_evaluation_size
from adadepth.data.randomness import EVALUATION_SEED
from adadepth_brackets.kind import BracketsConfig

SYMBOLS = ("(", ")")


class BracketsExamples(DrawnTags):
    """Balanced brackets, each labelled with the number of those that are open after it."""

    purpose = 1001  # of random numbers; numbers below 1000 are adadepth's own

    def __init__(self, dataset: BracketsConfig, length: int, seed: int) -> None:
        super().__init__(length, seed)
        self.pairs, self.deepest = dataset.pairs, dataset.deepest

    def draw(self, rows: int, epoch: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw the `open` brackets after each, (rows, 2 pairs) int8."""
        after = np.zeros((rows, 2 * self.pairs), dtype=np.int8)
        depth = np.zeros(rows, dtype=np.int8)
        for place in range(2 * self.pairs):
            left = 2 * self.pairs - place
            must_open, must_close = depth == 0, (depth == self.deepest) | (depth == left)
            opens = must_open | (~must_close & (generator.random(rows) < 0.5))
            depth = depth + np.where(opens, 1, -1).astype(np.int8)
            after[:, place] = depth
        return {"open": after}

    def example(self, drawn: dict[str, np.ndarray]) -> dict[str, Any]:
        """Write the brackets of one."""
        depth = drawn["open"].astype(np.int64)
        closes = np.diff(depth, prepend=0) < 0
        return {
            "input_ids": encode_symbols(closes),
            "position_ids": np.arange(len(depth)),
            "token_type_ids": np.zeros(len(depth), dtype=np.int64),
            "special_tokens_mask": np.zeros(len(depth), dtype=np.uint8),
            "labels": depth,
            "difficulties": depth,
        }


def load_brackets(dataset: BracketsConfig, seed: int) -> RunData:
    """Return the data of a run; the evaluation set depends on neither the seed nor the number of training examples."""
    train = BracketsExamples(dataset, dataset.train_examples, seed)
    evaluation = {"nested": BracketsExamples(dataset, get_evaluation_size(dataset), EVALUATION_SEED)}
    labels = tuple(str(depth) for depth in range(dataset.deepest + 1))
    facts = {"pairs": dataset.pairs, "deepest": dataset.deepest}
    return build_tagging_data(dataset, train, evaluation, SYMBOLS, labels, facts)
