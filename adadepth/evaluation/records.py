"""Records of all examples of a set, for metrics that need them together and for studies of exit rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from adadepth.analysis.exits.records import StepRecorder, StepRecords, merge
from adadepth.evaluation.processes import of_all_processes
from adadepth.families.contract import PredictsEveryStep


class ForwardPasses(Protocol):
    """Runs a set through a model; see `DepthTrainer.forward_passes`."""

    def __call__(
        self, dataset: Any, options: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    ) -> Iterable[tuple[dict[str, Tensor], Any]]:
        """This process's batches with the model's outputs."""


def seeded_exits(model: Any) -> dict[str, Any]:
    """Arguments of the forward pass with which rules that draw do so alike in every evaluation."""
    return {"generator": torch.Generator().manual_seed(0)} if isinstance(model, PredictsEveryStep) else {}


def collect_records(passes: ForwardPasses, model: Any, dataset: Any, **options: Any) -> StepRecords:
    """Run a set through a model and keep what every example got; `options` go to its forward."""
    recorder = StepRecorder()
    options = seeded_exits(model) | options
    for batch, outputs in passes(dataset, lambda _: options):
        recorder.add(batch, outputs)
    return merge_processes(recorder)


def merge_processes(recorder: StepRecorder) -> StepRecords:
    """The records of all processes, on each of them."""
    return merge(of_all_processes(recorder.parts()))
