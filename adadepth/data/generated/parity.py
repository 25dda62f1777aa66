"""Parity: the task of deciding whether the number of ones is odd, as in ACT and PonderNet.

The task is from ACT (Graves 2016) and PonderNet (Banino et al. 2021, section 3.1). A vector of ``size`` values has +1
or -1, at random, at k random positions, and zeros elsewhere. The number k is uniform. Examples are drawn on access and
not stored on disk.
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
from adadepth.data.randomness import EVALUATION_SEED, Purpose
from adadepth.data.run_data import RunData, summarise_data
from adadepth.data.text.special_tokens import Layout
from adadepth.data.text.tokenizer import SPECIAL_TOKENS, with_data_layout

if TYPE_CHECKING:
    from adadepth.config.data import ParityConfig

LABELS = ("even", "odd")
SYMBOLS = ("-1", "0", "1")  # the value v is symbol v + 1


class ParityExamples(DrawnExamples):
    """Sequences of values with a ``label`` (1 for odd) and a ``difficulty`` (the number of counted ones).

    The ``inputs`` are (size,) float32 or, with a layout, a token sequence. Each example takes ``size`` bytes of memory.
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
        """Draw the vectors of the parity task, (rows, size) int8."""
        return {"values": draw_values(rows, self.size, self._select_ones(epoch), generator)}

    def example(self, columns: dict[str, np.ndarray]) -> dict[str, Any]:
        """Return a vector with the parity of its ones as the label and their number as the difficulty."""
        values = columns["values"]
        counted = int(np.count_nonzero(values) if self.counts_negative else (values > 0).sum())
        target = {"label": counted % 2, "difficulty": counted}
        if self.layout is None:
            return {"inputs": values.astype(np.float32), **target}
        return {**self.layout.build([values + (1 + len(SPECIAL_TOKENS))]), **target}

    def _select_ones(self, epoch: int) -> tuple[int, int]:
        """Return the range of the number of ones that examples may have in an epoch, (lowest, highest).

        Evaluation, which is epoch -1, always uses the whole range.
        """
        if self.easy_ones is None or not 0 <= epoch < self.easy_epochs:
            return self.ones
        return self.ones[0], self.easy_ones


def draw_values(rows: int, size: int, ones: tuple[int, int], generator: np.random.Generator) -> np.ndarray:
    """Draw vectors with k values of +1 or -1 and zeros elsewhere, (rows, size) int8.

    The number k is uniform from ``ones[0]`` to ``ones[1]``.
    """
    counts = generator.integers(ones[0], ones[1] + 1, (rows, 1))
    ranks = generator.random((rows, size), dtype=np.float32).argsort(axis=1)  # a random permutation a row
    signs = 2 * generator.integers(0, 2, (rows, size), dtype=np.int8) - 1
    values: np.ndarray = np.where(ranks < counts, signs, np.int8(0))
    return values


def load_parity(dataset: ParityConfig, seed: int, cls_tokens: int = 1) -> RunData:
    """Generate the parity data, either as vectors or as tokens after leading [CLS] tokens.

    The evaluation sets depend on neither the seed nor the number of training examples. Each has
    ``max_evaluation_examples`` examples, by default as many as a training epoch.

    Raises:
        ConfigError: If ``dataset.sequence_length`` is too small for all tokens.
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
    counts = {
        "train": {"examples": len(train), "ones": list(train.ones)},
        "evaluation": {
            name: {"examples": len(examples), "ones": list(examples.ones)} for name, examples in evaluation.items()
        },
    }
    source, facts = f"drawn, {dataset.representation}", {"size": dataset.size, "counted": str(dataset.counted)}
    collate: Any = collate_vectors
    if words is not None:
        collate = SequenceCollator(words.pad_token_id, dataset.sequence_length, dataset.pad_to_length)
    return RunData(
        train=train,
        evaluation=evaluation,
        tokenizer=words,
        collate=collate,
        summary=summarise_data(dataset, counts, source=source, facts=facts),
        problem="classification",
        labels=LABELS,
        metrics=("accuracy",),
        has_difficulty=True,
        model_fields={"input_size": dataset.size} if words is None else {},
    )
