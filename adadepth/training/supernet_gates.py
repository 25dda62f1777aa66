"""Training of a supernet's gates together with its weights or alternately, and early stopping of the search."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import torch
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from adadepth.config import ExperimentConfig, SearchConfig, TrainerConfig
from adadepth.config.experiment import SearchMethod
from adadepth.errors import CheckpointError
from adadepth.models.contract import LearnsGates
from adadepth.models.registry import family
from adadepth.runtime.console import say
from adadepth.runtime.files import write_atomic
from adadepth.runtime.json_files import read_json
from adadepth.training.extension import Batch, Extension

GATES = "gates"
STOP = "search_stop.json"


def build_gate_learning(config: ExperimentConfig, model: Any) -> Extension | None:
    """Build the extension that trains supernet gates, or return None if the architecture is fixed."""
    return GateTraining(config.search) if family(config.model.name).searches(model.config) else None


def stop_unchanged(config: ExperimentConfig, model: Any) -> Extension | None:
    """Build the early-stopping callback of an architecture search, or return None if it is not configured."""
    share = config.search.stop_unchanged
    return None if share is None or not family(config.model.name).searches(model.config) else StopUnchanged(share)


class GateTraining(Extension):
    """Training extension for a supernet's gates: own learning rate, and optionally alternation with the weights.

    Args:
        search: Settings of the search.
    """

    def __init__(self, search: SearchConfig) -> None:
        self._search = search

    def parameter_groups(self, model: nn.Module, settings: TrainerConfig) -> Sequence[dict[str, Any]]:
        """Return the optimiser's parameter group of the gates.

        Their learning rate is constant if `search.gate_learning_rate` sets it.
        """
        gates = [parameter for name, parameter in model.named_parameters() if name == GATES]
        rate = self._search.gate_learning_rate
        group = {
            "params": gates,
            "lr": settings.learning_rate if rate is None else rate,
            "constant": rate is not None,
            "weight_decay": self._search.gate_weight_decay,
            "betas": (self._search.gate_beta1, settings.adam_beta2),
            "decays": False,
        }
        return [group] if gates else []

    def teaches_depth(self, batch: Batch) -> bool:
        """Return whether training on this batch updates the gates."""
        return self._search.method is not SearchMethod.two_phase or batch["stream"] == "architecture"

    def after_backward(self, batch: Batch, model: nn.Module) -> None:
        """Drop the gradients of parameters that are not trained in the current phase."""
        if self._search.method is not SearchMethod.two_phase:
            return
        for name, parameter in model.named_parameters():
            is_gate = name.removeprefix("module.") == GATES
            if is_gate != (batch["stream"] == "architecture"):
                parameter.grad = None


class _StopState(TypedDict):
    """Early stopping's state in a checkpoint: the last evaluated architecture, and whether the search has ended."""

    architecture: str | None
    ended: NotRequired[bool]


class StopUnchanged(Extension, TrainerCallback):
    """Early stopping of a search when enough blocks keep the same most probable operation between evaluations.

    Untrained gates, which are all zero, are not compared.

    Args:
        share: Share of the blocks that must be unchanged (0.75 in PAR).
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._architecture: str | None = None
        self._has_ended = False

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Stop the search if enough blocks have the same operation as at the previous evaluation."""
        if not kwargs["model"].get_parameter(GATES).any():
            return
        model = kwargs["model"]
        assert isinstance(model, LearnsGates)
        before, self._architecture = self._architecture, model.architecture()
        if before is None or control.should_training_stop:
            return
        if len(before) != len(self._architecture):
            raise CheckpointError(
                f"{STOP}: architecture={before!r} differs in its number of blocks from {self._architecture!r}"
            )
        unchanged = sum(old == new for old, new in zip(before, self._architecture, strict=True))
        if unchanged < self._share * len(before):
            return
        control.should_training_stop = self._has_ended = True
        if state.is_world_process_zero:
            say(
                f"search ends at step {state.global_step}: {unchanged} of {len(before)} blocks are unchanged since "
                f"the previous evaluation, from {before} to {self._architecture} "
                f"(search.stop_unchanged={self._share:g})",
                wraps=True,
            )

    def save(self, checkpoint: Path, process: int) -> None:
        """Write the architecture at the last evaluation, and whether the search has ended, to a checkpoint."""
        if process == 0:
            state = {"architecture": self._architecture, "ended": self._has_ended}
            write_atomic(checkpoint / STOP, json.dumps(state))

    def load(self, checkpoint: Path, process: int, device: torch.device) -> None:
        """Read the architecture at the last evaluation, and whether the search has ended, from a checkpoint."""
        state = read_json(checkpoint / STOP, _StopState)
        self._architecture, self._has_ended = state["architecture"], state.get("ended", False)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Stop at once if the search had ended before its checkpoint was written."""
        control.should_training_stop |= self._has_ended
