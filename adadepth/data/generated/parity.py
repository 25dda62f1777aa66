"""Parity: is the number of ones odd? The task of ACT (Graves 2016) and PonderNet (Banino et al. 2021, section 3.1).

A vector of ``size`` values has k of them, at random positions, set to +1 or -1 at random, and zeros elsewhere; k is
uniform. Nothing is stored on disk: examples are drawn on access.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from adadepth.data.generated.base import (
    DrawnExamples,
    build_symbol_tokenizer,
    check_room,
    get_evaluation_size,
    to_range,
)
from adadepth.data.labelled.collators import SequenceCollator, collate_vectors
from adadepth.data.labelled.types import LabelledData
from adadepth.data.randomness import EVALUATION_SEED, Purpose
from adadepth.data.text.special_tokens import Layout
from adadepth.data.text.tokenizer import SPECIAL_TOKENS, with_data_layout

if TYPE_CHECKING:
    from adadepth.config.data import ParityConfig

LABELS = ("even", "odd")
SYMBOLS = ("-1", "0", "1")  # the value v is symbol v + 1


class ParityExamples(DrawnExamples):
    """Sequences of values with ``label`` (1 odd) and ``difficulty`` (the number of counted ones).

    ``inputs`` are (size,) float32 or, with a layout, a token sequence. ``size`` bytes an example are held in memory.
    """

    purpose = Purpose.PARITY

    def __init__(
        self, dataset: ParityConfig, ones: tuple[int, int], length: int, seed: int, layout: Layout | None
    ) -> None:
        super().__init__(length, seed)
        self.size = dataset.size
        self.easy_epochs, self.easy_ones = dataset.easy_epochs, dataset.easy_ones
        self.counts_negative = dataset.counted == "nonzero"
        self.ones = ones
        self.layout = layout

    def draw(self, rows: int, epoch: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw the values, (rows, size) int8."""
        return {"values": draw_values(rows, self.size, self._select_ones(epoch), generator)}

    def example(self, columns: dict[str, np.ndarray]) -> dict[str, Any]:
        """Return a vector with the parity of its ones as label and their number as difficulty."""
        values = columns["values"]
        counted = int(np.count_nonzero(values) if self.counts_negative else (values > 0).sum())
        target = {"label": counted % 2, "difficulty": counted}
        if self.layout is None:
            return {"inputs": values.astype(np.float32), **target}
        return {**self.layout.build([values + (1 + len(SPECIAL_TOKENS))]), **target}

    def _select_ones(self, epoch: int) -> tuple[int, int]:
        """Return the range of ones in an epoch; evaluation, epoch -1, always has the whole range."""
        if self.easy_ones is None or not 0 <= epoch < self.easy_epochs:
            return self.ones
        return self.ones[0], self.easy_ones


def draw_values(rows: int, size: int, ones: tuple[int, int], generator: np.random.Generator) -> np.ndarray:
    """Draw rows with k values of +1 or -1 and zeros, k uniform from ``ones[0]`` to ``ones[1]``; (rows, size) int8."""
    counts = generator.integers(ones[0], ones[1] + 1, (rows, 1))
    ranks = generator.random((rows, size), dtype=np.float32).argsort(axis=1)  # a random permutation a row
    signs = 2 * generator.integers(0, 2, (rows, size), dtype=np.int8) - 1
    values: np.ndarray = np.where(ranks < counts, signs, np.int8(0))
    return values


def load_parity(dataset: ParityConfig, seed: int, cls_tokens: int = 1) -> LabelledData:
    """Return parity data, as vectors or as tokens with leading [CLS].

    The evaluation sets depend on neither the seed nor the number of training examples; ``max_evaluation_examples`` is
    the size of each, by default that of a training epoch.

    Raises:
        ConfigError: ``dataset.sequence_length`` does not hold all tokens.
    """
    words = build_symbol_tokenizer(SYMBOLS) if dataset.representation == "tokens" else None
    layout = None
    if words is not None:
        layout = Layout.from_tokenizer(words, dataset.sequence_length, cls_tokens)
        words = with_data_layout(words, layout)
        check_room(layout, dataset.size, "values")
    draw = partial(ParityExamples, dataset, layout=layout)
    train = draw(ones=to_range(dataset.train_ones), length=dataset.train_examples, seed=seed)
    size = get_evaluation_size(dataset)
    ranges = {"interpolation": dataset.train_ones, "extrapolation": dataset.extrapolation_ones}
    evaluation = {
        name: draw(ones=to_range(ones), length=size, seed=EVALUATION_SEED)
        for name, ones in ranges.items()
        if ones is not None
    }
    summary = {
        "name": dataset.name,
        "source": f"drawn, {dataset.representation}",
        "size": dataset.size,
        "counted": str(dataset.counted),
        "train": {"examples": len(train), "ones": list(train.ones)},
        "evaluation": {
            name: {"examples": len(examples), "ones": list(examples.ones)} for name, examples in evaluation.items()
        },
    }
    collate: Any = collate_vectors
    if words is not None:
        collate = SequenceCollator(words.pad_token_id, dataset.sequence_length, dataset.pad_to_length)
    return LabelledData(
        train, dict(evaluation), {}, words, collate, summary, "classification", LABELS, ("accuracy",), True,
        model_fields={"input_size": dataset.size} if words is None else {},
    )  # fmt: skip
