"""What an evaluation of brackets measures beside the accuracy of single ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from adadepth.evaluation.tagging import TaggingScorer
from adadepth.runtime.distributed import gather_from_processes


class BracketsScorer(TaggingScorer):
    """Also `whole_accuracy`: the share of examples in which every bracket is right; told what its arguments name."""

    def __init__(self, model: Any, data: Any, groups: Any, examples: Any, wants_rows: bool) -> None:
        super().__init__(model, data, groups, examples, wants_rows=wants_rows)
        self._whole: dict[int, bool] = {}

    def record(self, batch: Mapping[str, Tensor], outputs: Any) -> None:
        """Also keep which examples are right throughout."""
        super().record(batch, outputs)
        labels = batch["labels"]
        right = ((outputs.logits.argmax(dim=-1) == labels) | (labels < 0)).all(dim=1)
        self._whole |= dict(zip(batch["index"].tolist(), right.tolist(), strict=True))

    def merge(self) -> None:
        """Bring together the examples of all processes."""
        super().merge()
        self._whole = {index: right for part in gather_from_processes(self._whole) for index, right in part.items()}

    def quality(self) -> dict[str, float]:
        """Return the task's metrics and `whole_accuracy`."""
        whole = torch.tensor(list(self._whole.values()), dtype=torch.float64).mean().item()
        return {**super().quality(), "whole_accuracy": whole}
