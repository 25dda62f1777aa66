"""Selection of the training extensions that data, model family and settings require."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, cast

from transformers import PreTrainedModel, TrainingArguments

from adadepth.config import ExperimentConfig, Mode
from adadepth.config.experiment import Optimizer
from adadepth.config.kinds import get_kind
from adadepth.config.plugins import call_accepting
from adadepth.data.run_data import RunData
from adadepth.models.contract import HoldsBudget
from adadepth.models.registry import budget_mode, family
from adadepth.training.cached_states import cached_states
from adadepth.training.depth_budget import TrainingBudget
from adadepth.training.ema import WeightAverageExtension
from adadepth.training.extension import Batch, Extension, RecurrentMemory
from adadepth.training.lora import AdapterScale, add_adapters, trains_adapters
from adadepth.training.muon import require_hidden_matrices
from adadepth.training.skipped_steps import SkippedSteps
from adadepth.training.slot_training import TrainingSlots
from adadepth.training.supernet_gates import build_gate_learning, stop_unchanged


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
    importers = (*get_kind(config.dataset).extensions, *family(config.model.name).extensions)
    arguments = {"config": config, "args": args, "model": model, "data": data, "seed": config.seed}
    declared = [
        extension for importer in importers if (extension := call_accepting(importer(), **arguments)) is not None
    ]
    types = {type(extension) for extension in declared}  # a package may name those that follow from its model, too
    built = [extension for extension in _build_model_extensions(config, args, model, data) if extension is not None]
    extensions = [*(extension for extension in built if type(extension) not in types), *declared]
    return (*extensions, *_build_settings_extensions(config, args, model, extensions))


def _build_model_extensions(
    config: ExperimentConfig, args: TrainingArguments, model: Any, data: RunData
) -> Iterator[Extension | None]:
    """Yield the extensions that follow from how the data are read and what the model can do."""
    if get_kind(config.dataset).reading == "streams":
        yield RecurrentMemory(args)
    yield cached_states(config, args, model, data)
    if model.trains_in_slots:
        yield TrainingSlots(config.seed, args)
    yield build_gate_learning(config, model)
    yield stop_unchanged(config, model)


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
