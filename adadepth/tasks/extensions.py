"""Selection of the training extensions that data, model family and settings require."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import cast

from transformers import PreTrainedModel, TrainingArguments

from adadepth.config import ExperimentConfig, Mode
from adadepth.config.experiment import Optimizer
from adadepth.config.kinds import call_by_path, get_kind
from adadepth.data.run_data import RunData
from adadepth.models.contract import HoldsBudget
from adadepth.models.registry import budget_mode, family
from adadepth.training.depth_budget import TrainingBudget
from adadepth.training.ema import WeightAverageExtension
from adadepth.training.extension import Batch, Extension
from adadepth.training.lora import AdapterScale, add_adapters, trains_adapters
from adadepth.training.muon import require_hidden_matrices
from adadepth.training.skipped_steps import SkippedSteps


def prepare_model(config: ExperimentConfig, model: PreTrainedModel) -> None:
    """Add the low-rank adapters that the settings configure, and check the model for its optimiser.

    Raises:
        ConfigError: If the model has no matrices to adapt, or none that Muon updates.
    """
    if trains_adapters(config):
        add_adapters(model, config.trainer.lora)
    if config.trainer.optimizer is Optimizer.muon:
        require_hidden_matrices(model)


def build_extensions(
    config: ExperimentConfig, args: TrainingArguments, model: PreTrainedModel, data: RunData
) -> tuple[Extension, ...]:
    """Build the extensions that the dataset type, the model family and the settings add to the training loop."""
    builders = (*get_kind(config.dataset).extensions, *family(config.model.name).extensions)
    arguments = {"config": config, "args": args, "model": model, "data": data, "seed": config.seed}
    extensions: list[Extension] = [
        extension for builder in builders if (extension := call_by_path(builder, **arguments)) is not None
    ]
    return (*extensions, *_build_settings_extensions(config, args, model, extensions))


def _build_settings_extensions(
    config: ExperimentConfig, args: TrainingArguments, model: PreTrainedModel, extensions: Sequence[Extension]
) -> Iterator[Extension]:
    """Yield the extensions for a depth budget, adapters, an EMA of weights and fp16, if they are configured."""
    if config.mode is Mode.train and budget_mode(config) == "held":
        teaches_depth = partial(_is_depth_batch, extensions)
        yield TrainingBudget(config.budget, cast(HoldsBudget, model), args.device, teaches_depth)
    if trains_adapters(config):
        yield AdapterScale(config.trainer.lora)
    if config.trainer.ema_decay is not None:
        yield WeightAverageExtension(model, config.trainer.ema_decay)
    if args.fp16:
        yield SkippedSteps()


def _is_depth_batch(extensions: Sequence[Extension], batch: Batch) -> bool:
    return all(extension.teaches_depth(batch) for extension in extensions)
