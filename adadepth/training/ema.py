"""Exponential moving average (EMA) of the weights, which is evaluated and saved in their place.

average <- d average + (1 - d) weights        after every optimiser step, from the initial weights
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from adadepth.errors import CheckpointError
from adadepth.models.shared.layers import whole
from adadepth.training.extension import Extension
from adadepth.training.sharded_checkpoints import copy_same_shape

_WEIGHTS = "weights_in_training.safetensors"


class WeightAverageExtension(Extension, TrainerCallback):
    """Extension that maintains an exponential moving average (EMA) of the model's weights.

    In a checkpoint, the model file holds the averaged weights, which were evaluated. A separate file holds the weights
    in training, from which a resumed run continues.

    Args:
        model: Model in training.
        decay: Decay rate d of the average.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._model = model
        self._update = get_ema_multi_avg_fn(decay)
        self._average: list[Tensor] | None = None

    @property
    def _weights(self) -> dict[str, Tensor]:
        return {name: weight.detach() for name, weight in self._model.named_parameters()}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Initialise the EMA with the model's weights, unless a checkpoint has provided one."""
        if self._average is None:
            self._average = [weight.clone() for weight in self._weights.values()]

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Update the EMA with the weights after an optimiser step."""
        assert self._average is not None
        self._update(self._average, list(self._weights.values()), None)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Copy the EMA into the model, unless the best checkpoint was loaded, which stores an EMA already."""
        if not (args.load_best_model_at_end and state.best_model_checkpoint):
            self._exchange()
        self._average = None

    @contextmanager
    def use_evaluated_weights(self) -> Iterator[None]:
        """Load the EMA into the model within the `with` block."""
        if self._average is None:
            yield
            return
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _exchange(self) -> None:
        assert self._average is not None
        for weight, average in zip(self._weights.values(), self._average, strict=True):
            previous = weight.clone()
            weight.copy_(average)
            average.copy_(previous)

    def save(self, checkpoint: Path, process: int) -> None:
        """Write the trained (not averaged) weights to a checkpoint, whose model weights are the EMA."""
        weights = {name: whole(weight).contiguous() for name, weight in self._weights.items()}
        if process == 0:
            save_file(weights, checkpoint / _WEIGHTS)

    def load(self, checkpoint: Path, process: int, device: torch.device) -> None:
        """Restore the EMA from the loaded model, and the trained weights from a separate file of the checkpoint."""
        weights = self._weights
        self._average = [weight.clone() for weight in weights.values()]
        stored = load_file(checkpoint / _WEIGHTS)
        if odd := sorted(stored.keys() ^ weights.keys()):
            raise CheckpointError(
                f"{checkpoint / _WEIGHTS}: {odd[0]} is {'unknown' if odd[0] in stored else 'missing'}"
            )
        for name, weight in stored.items():
            copy_same_shape(name, weight, weights[name])
