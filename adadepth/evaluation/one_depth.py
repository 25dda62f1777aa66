"""Where all units of a task have one depth, none of them is another's class, and the report is about layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from adadepth.evaluation.scorer import EvaluationReport, Scorer, Units
from adadepth.families.contract import DepthModel, MixesLayers


class OneDepth(Scorer):
    """The report beside another scorer's metrics, with nothing told of single units."""

    def __init__(self, model: DepthModel) -> None:
        self._model = model
        self._reads_cached_states = False

    def show(self, batch: Mapping[str, Tensor], outputs: Any, units: Units) -> None:
        """Nothing but whether the base's states came from disk."""
        self._reads_cached_states |= "states" in batch

    def report(self, statistics: dict[str, Any]) -> EvaluationReport:
        """The distribution over layers, what the head adds to the base, and where the states came from."""
        if "layers" in statistics and isinstance(self._model, MixesLayers):
            statistics["layers"] |= {
                "added_parameters": self._model.added_parameters(),
                "base_parameters": self._model.base_parameters(),
                "from_cache": self._reads_cached_states,
                "is_set": not self._model.learns_distribution,
            }
        return EvaluationReport(statistics)
