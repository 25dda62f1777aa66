"""States of a frozen base that were computed before training, read from disk batch by batch."""

from __future__ import annotations

from typing import Any

from adadepth.data.features.states import FeatureReader
from adadepth.families.contract import ReadsCachedStates
from adadepth.training.extension import Extension


class CachedStates(Extension):
    """Adds to a batch the states that its forward pass will read.

    They are read here, and not by the loader, because which of them have weight is known only when a step begins.
    """

    def __init__(self, reader: FeatureReader) -> None:
        self._reader = reader

    def prepare(self, batch: dict[str, Any], model: Any) -> dict[str, Any]:
        """The batch with its states."""
        assert isinstance(model, ReadsCachedStates)
        return self._reader(batch, model.states_to_read())
