"""The extensions of a run's trainer: those of its kind of data, of its family, and of its settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, cast

from transformers import PreTrainedModel, TrainingArguments

from adadepth.families.contract import HoldsBudget
from adadepth.families.registry import family, met
from adadepth.settings import ExperimentConfig, Mode
from adadepth.settings.kinds import called, kind_of
from adadepth.training.averaging import WeightAverage
from adadepth.training.extension import Batch, Extension
from adadepth.training.held_depth import TrainingBudget


def build_extensions(
    config: ExperimentConfig, args: TrainingArguments, model: PreTrainedModel, data: Any
) -> tuple[Extension, ...]:
    """Return what the kind of data, the family and the settings add to the loop of training, the budget among it."""
    places = (*kind_of(config.dataset).extensions, *family(config.model.name).extensions)
    known = {"config": config, "args": args, "model": model, "data": data, "seed": config.seed}
    named: list[Extension] = [built for place in places if (built := called(place, **known)) is not None]
    return (*named, *_settings_extensions(config, args, model, named))


def _settings_extensions(
    config: ExperimentConfig, args: TrainingArguments, model: PreTrainedModel, others: Sequence[Extension]
) -> Iterator[Extension]:
    """What holds the depth of training, and what averages its weights, where the user set that."""
    if config.mode is Mode.train and met(config) == "held":
        teaches = partial(_teaches_depth, others)
        yield TrainingBudget(config.budget, cast(HoldsBudget, model), args.device, teaches)
    if config.trainer.ema_decay is not None:
        yield WeightAverage(model, config.trainer.ema_decay)


def _teaches_depth(extensions: Sequence[Extension], batch: Batch) -> bool:
    return all(extension.teaches_depth(batch) for extension in extensions)
