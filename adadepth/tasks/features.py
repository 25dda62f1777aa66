"""The states of a frozen base, computed once before training and read from disk afterwards."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import TrainingArguments

from adadepth.config import ExperimentConfig
from adadepth.data import LabelledData
from adadepth.data.cache import cache_root
from adadepth.data.features.states import FeatureReader, RowNumbers, cached_features
from adadepth.data.features.store import FeatureStore
from adadepth.families.contract import ReadsCachedStates
from adadepth.tasks.session import Parts
from adadepth.training.arguments import choose_precision
from adadepth.training.cached_states import CachedStates


def with_features(config: ExperimentConfig, args: TrainingArguments, parts: Parts) -> Parts:
    """Compute the base's states of all training and evaluation examples, or find them in the cache.

    Returns:
        The parts with examples that say where their states lie, and with what reads them; unchanged where no base is
        frozen, or the states are not to be kept.
    """
    data, model = parts.data, parts.model
    if not isinstance(model, ReadsCachedStates) or not config.features.cache:
        return parts
    stores: list[FeatureStore] = []

    def numbered(examples: Any) -> Any:
        first = sum(len(store) for store in stores)
        stores.append(_store(config, args, data, model, examples))
        return RowNumbers(examples, first)

    train = numbered(data.train)
    evaluation = {name: numbered(examples) for name, examples in parts.evaluation_sets.items()}
    data = dataclasses.replace(data, train=train, evaluation=evaluation)
    return dataclasses.replace(
        parts,
        data=data,
        evaluation_sets=evaluation,
        extensions=(*parts.extensions, CachedStates(FeatureReader(stores))),
    )


def _store(
    config: ExperimentConfig, args: TrainingArguments, data: LabelledData, model: Any, examples: Any
) -> FeatureStore:
    precision = choose_precision(config.trainer)
    settings = config.features

    def compute(batch: dict[str, Tensor], states: Sequence[int]) -> dict[int, Tensor]:
        inputs = {name: value.to(args.device) for name, value in batch.items()}
        low = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
        with torch.autocast(args.device.type, dtype=low, enabled=low is not None):
            return model.to(args.device).base_states(states, **inputs)

    return cached_features(
        cache_root(config.dataset.cache_dir), examples,
        states=model.layer_states, width=model.state_width, precision=str(settings.precision),
        base_key=f"{model.states_key} {precision}", compute=compute, collate=data.collate,
        limit_gib=settings.limit_gib, batch_tokens=settings.batch_tokens,
        processes=(args.process_index, args.world_size), barrier=dist.barrier if args.world_size > 1 else lambda: None,
    )  # fmt: skip
