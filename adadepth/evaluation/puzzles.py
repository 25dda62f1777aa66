"""The scorer of puzzles: right where all cells are, by what is known of them, with a few's answers of every step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from adadepth.data import LabelledData
from adadepth.data.puzzles.examples import PuzzleExamples
from adadepth.evaluation.scorer import EvaluationReport, Units
from adadepth.evaluation.sequences import SequenceScorer
from adadepth.families.contract import DepthModel
from adadepth.halting.trace import DepthTrace
from adadepth.measure.classes import SequenceClasses, describe_attributes
from adadepth.measure.pictures import NO_SYMBOL, PuzzleSampler
from adadepth.measure.scoring import is_right

_STEPS = ("updates", "exit_step")  # of a puzzle the same


class PuzzleScorer(SequenceScorer):
    """Keeps the answers after every step.

    Args:
        model: What is evaluated.
        data: The puzzles.
        groups: The classes of the set; see `sequence_classes`.
        examples: All puzzles of the set, with their attributes.
    """

    def __init__(
        self,
        model: DepthModel,
        data: LabelledData,
        groups: SequenceClasses,
        examples: PuzzleExamples,
    ) -> None:
        super().__init__(model, data, groups)
        self._attributes, self._numbers = examples.attributes, examples.numbers
        self._puzzles = PuzzleSampler((NO_SYMBOL, *data.labels[1:]), examples.attributes)

    def _rightness(self, trace: DepthTrace, logits: Tensor, labels: Tensor | None) -> Tensor | None:
        return None if labels is None else is_right(logits, labels).float()

    def show(self, batch: Mapping[str, Tensor], outputs: Any, units: Units) -> None:
        """Offer a batch to the examples."""
        self._puzzles.update(batch, outputs)

    def report(self, statistics: dict[str, Any]) -> EvaluationReport:
        """Depth by class and attribute, what the exits are worth, and the examples."""
        records = self._records
        assert records is not None
        assert records.labels is not None
        chosen = {name: values[records.index.numpy()] for name, values in self._attributes.items()}
        right = is_right(records.logits, records.labels).numpy()
        told = describe_attributes(chosen, records.depth.round().long().numpy(), right)
        return replace(super().report(statistics | {"attributes": told}), grids=self._puzzles.grids())

    def rows(self) -> list[dict[str, Any]]:
        """Return a row a puzzle.

        `id`, the number of its row in the data, the symbols of `label` and `prediction` cell by cell, `updates` and
        `exit_step`.
        """
        assert self._records is not None
        assert self._records.labels is not None
        assert self._records.exit_steps is not None
        columns = (self._records.index, self._records.labels, self._records.logits.argmax(-1), self._records.exit_steps)
        return [
            {
                "id": int(self._numbers[number]),
                "label": self._symbols(label),
                "prediction": self._symbols(answer),
                **dict.fromkeys(_STEPS, step),
            }
            for number, label, answer, step in zip(*(column.tolist() for column in columns), strict=True)
        ]

    def _symbols(self, cells: list[int]) -> list[str | None]:
        return [None if cell < 0 else self.data.labels[cell] for cell in cells]
