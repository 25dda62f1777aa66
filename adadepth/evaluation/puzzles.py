"""Evaluation of puzzles: accuracy for whole puzzles, depth by puzzle attribute, and example answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from adadepth.data import RunData
from adadepth.data.puzzles.dataset import PuzzleExamples
from adadepth.evaluation.scorer import EvaluationReport, Units
from adadepth.evaluation.sequences import SequenceScorer
from adadepth.halting.trace import DepthTrace
from adadepth.metrics.grid_examples import NO_SYMBOL, PuzzleSampler
from adadepth.metrics.scoring import is_right
from adadepth.metrics.unit_classes import SequenceClasses, describe_attributes
from adadepth.models.contract import DepthModel


class PuzzleScorer(SequenceScorer):
    """Scorer of puzzles that also records the answer after every step for a few example puzzles.

    Args:
        model: Evaluated model.
        data: Data of the task.
        groups: Classes of the set; see `sequence_classes`.
        examples: Puzzles of the set, with their attributes.
    """

    def __init__(
        self,
        model: DepthModel,
        data: RunData,
        groups: SequenceClasses,
        examples: PuzzleExamples,
    ) -> None:
        super().__init__(model, data, groups)
        self._attributes, self._numbers = examples.attributes, examples.numbers
        self._puzzles = PuzzleSampler((NO_SYMBOL, *data.labels[1:]), examples.attributes)

    def _compute_rightness(self, trace: DepthTrace, logits: Tensor, labels: Tensor | None) -> Tensor | None:
        return None if labels is None else is_right(logits, labels).float()

    def add_examples(self, batch: Mapping[str, Tensor], outputs: Any, units: Units) -> None:
        """Add puzzles of a batch to the examples of the report."""
        self._puzzles.update(batch, outputs)

    def report(self, statistics: dict[str, Any]) -> EvaluationReport:
        """Return a report with depth by class and puzzle attribute, exit statistics, and example puzzles."""
        records = self._records
        assert records is not None
        assert records.labels is not None
        attributes = {name: values[records.index.numpy()] for name, values in self._attributes.items()}
        right = is_right(records.logits, records.labels).numpy()
        described = describe_attributes(attributes, records.depth.round().long().numpy(), right)
        return replace(super().report(statistics | {"attributes": described}), grids=self._puzzles.grids())

    def rows(self) -> list[dict[str, Any]]:
        """Return one row of results for each puzzle.

        Its fields are `id` (the number of the row in the data), `label` and `prediction` (the symbols of all cells),
        and `updates` and `exit_step`, which are equal.
        """
        assert self._records is not None
        assert self._records.labels is not None
        assert self._records.exit_steps is not None
        columns = (self._records.index, self._records.labels, self._records.logits.argmax(-1), self._records.exit_steps)
        return [
            {
                "id": int(self._numbers[number]),
                "label": self._decode(label),
                "prediction": self._decode(answer),
                "updates": step,
                "exit_step": step,
            }
            for number, label, answer, step in zip(*(column.tolist() for column in columns), strict=True)
        ]

    def _decode(self, cells: list[int]) -> list[str | None]:
        return [None if cell < 0 else self.data.labels[cell] for cell in cells]
