"""Where all units of a task have one depth, none of them is another's class, and the report is about layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from adadepth.evaluation.scorer import EvaluationReport, Scorer
from adadepth.families.contract import DepthModel, MixesLayers


class OneDepth(Scorer):
    """Another scorer's metrics, with nothing told of single units."""

    def __init__(self, scorer: Scorer, model: DepthModel) -> None:
        self._scorer = scorer
        self._model = model
        self._reads_cached_states = False

    def options(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        """The scorer's."""
        return self._scorer.options(batch)

    def record(self, batch: Mapping[str, Tensor], outputs: Any) -> None:
        """As the scorer does, and whether the base's states came from disk."""
        self._reads_cached_states |= "states" in batch
        self._scorer.record(batch, outputs)

    def merge(self) -> None:
        """As the scorer does."""
        self._scorer.merge()

    def metrics(self, losses: Mapping[str, float]) -> dict[str, float]:
        """The scorer's."""
        return self._scorer.metrics(losses)

    def rows(self) -> list[dict[str, Any]]:
        """The scorer's."""
        return self._scorer.rows()

    def report(self, statistics: dict[str, Any]) -> EvaluationReport:
        """The distribution over layers, what the head adds to the base, and where the states came from."""
        if "layers" in statistics and isinstance(self._model, MixesLayers):
            statistics["layers"] |= {
                "added_parameters": self._model.added_parameters(),
                "base_parameters": self._model.base_parameters(),
                "from_cache": self._reads_cached_states,
            }
        return EvaluationReport(statistics)
