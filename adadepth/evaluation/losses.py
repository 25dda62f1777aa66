"""The loss of a whole set: its parts as sums over targets, divided once at the end."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from adadepth.evaluation.processes import of_all_processes


class LossSums:
    """Means over targets, never means of batch means, so batch size and number of processes cannot change them."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}  # (2,) float64: a part's sum, its targets

    def add(self, parts: Mapping[str, Tensor], counts: Mapping[str, Tensor]) -> None:
        """Add a batch: its loss parts, and the counts that normalised them."""
        for name, part in parts.items():
            added = torch.stack([part.double() * counts[name], counts[name].double()])
            self._sums[name] = self._sums.get(name, torch.zeros_like(added)) + added

    def merge(self) -> None:
        """Add the sums of all processes, of which some may have had no example; every process calls it."""
        total: dict[str, Tensor] = {}
        for found in of_all_processes({name: sums.cpu() for name, sums in self._sums.items()}):
            for name, sums in found.items():
                total[name] = total.get(name, torch.zeros_like(sums)) + sums
        self._sums = total

    def means(self) -> dict[str, float]:
        """`<part>_loss` of every part that has a target."""
        found = {name: sums.tolist() for name, sums in self._sums.items()}
        return {f"{name}_loss": total / count for name, (total, count) in found.items() if count}
