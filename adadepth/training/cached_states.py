"""Training on hidden states of a frozen base model that are computed once and cached."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import TrainingArguments

from adadepth.config import ExperimentConfig, Mode
from adadepth.data import RunData
from adadepth.data.cache import get_cache_root
from adadepth.data.features.states import FeatureReader, RowNumbers, ensure_features
from adadepth.data.features.store import FeatureStore
from adadepth.models.contract import ReadsCachedStates
from adadepth.training.arguments import choose_precision
from adadepth.training.extension import Extension


def cached_states(config: ExperimentConfig, args: TrainingArguments, model: Any, data: RunData) -> Extension | None:
    """Build the cache of a frozen base model's hidden states; return None without a frozen base or with caching off."""
    if config.mode is not Mode.train or not config.features.cache or not isinstance(model, ReadsCachedStates):
        return None
    return CachedStates(config, args, model, data)


class CachedStates(Extension):
    """Extension that caches the hidden states of a frozen base model and adds them to each batch.

    The data loader does not read the states, because the model decides only at the start of a step which layers it
    needs.
    """

    def __init__(self, config: ExperimentConfig, args: TrainingArguments, model: Any, data: RunData) -> None:
        self._config, self._args, self._model, self._data = config, args, model, data
        self._stores: list[FeatureStore] = []
        self._reader = FeatureReader(self._stores)

    def examples(self, examples: Any) -> Any:
        """Compute and cache the hidden states of all examples, and add each example's row number in the cache."""
        first = sum(map(len, self._stores))
        self._stores.append(self._open_store(examples))
        return RowNumbers(examples, first)

    def prepare(self, batch: dict[str, Any], model: Any) -> dict[str, Any]:
        """Add the cached hidden states that the model reads to a batch."""
        return self._reader(batch, model.states_to_read())

    def _open_store(self, examples: Any) -> FeatureStore:
        args, model, settings = self._args, self._model, self._config.features
        precision = choose_precision(self._config.trainer)

        def compute(batch: dict[str, Tensor], states: Sequence[int]) -> dict[int, Tensor]:
            inputs = {name: value.to(args.device) for name, value in batch.items()}
            low = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
            with torch.autocast(args.device.type, dtype=low, enabled=low is not None):
                by_number: dict[int, Tensor] = model.to(args.device).base_states(states, **inputs)
                return by_number

        return ensure_features(
            get_cache_root(self._config.dataset.cache_dir), examples,
            states=model.layer_states, width=model.state_width, precision=str(settings.precision),
            base_key=f"{model.states_key} {precision}", compute=compute, collate=self._data.collate,
            limit_gib=settings.limit_gib, batch_tokens=settings.batch_tokens,
            processes=(args.process_index, args.world_size),
            barrier=dist.barrier if args.world_size > 1 else lambda: None,
        )  # fmt: skip
