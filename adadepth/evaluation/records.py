"""Records of all examples of a set, for metrics that need them together and for studies of exit rules."""

from __future__ import annotations

from typing import Any

import torch

from adadepth.analysis.exits.records import StepRecorder, StepRecords, merge
from adadepth.evaluation.processes import of_all_processes
from adadepth.families.contract import PredictsEveryStep


def seeded_exits(model: Any) -> dict[str, Any]:
    """Arguments of the forward pass with which rules that draw do so alike in every evaluation."""
    return {"generator": torch.Generator().manual_seed(0)} if isinstance(model, PredictsEveryStep) else {}


def merge_processes(recorder: StepRecorder) -> StepRecords:
    """The records of all processes, on each of them."""
    return merge(of_all_processes(recorder.parts()))
