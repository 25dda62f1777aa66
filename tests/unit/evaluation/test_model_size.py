"""Size of models against counts of their matrices by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from adadepth import LoopedForSequenceClassification
from adadepth.evaluation.model_size import count_cached_numbers, count_other_parameters, measure_cached_bytes
from adadepth.models.looped.cache import bytes_per_token
from tests.unit.models.looped.looped_support import PIECES, WIDTH, build_looped

PLAIN: dict[str, Any] = {"core": 1, "num_loops": 2}
LAYER = 4 * WIDTH**2 + 3 * WIDTH * 48 + 2 * WIDTH  # attention, gated feed-forward of 48, two norms


@pytest.mark.parametrize("is_tied", [True, False])
def test_parameters_outside_of_embeddings_are_those_of_layers_and_norms(is_tied: bool) -> None:
    model = build_looped(**PLAIN, tie_word_embeddings=is_tied)
    assert sum(weight.numel() for weight in model.parameters()) == LAYER + WIDTH + (2 - is_tied) * PIECES * WIDTH
    assert count_other_parameters(model) == LAYER + WIDTH


@pytest.mark.parametrize(
    "fields", [PLAIN, {"core": 2, "num_loops": 3, "head_dim": 10}, {"core": 2, "num_loops": 3, "cache_policy": "last"}]
)
def test_cached_numbers_are_counted(fields: dict[str, Any]) -> None:
    model = build_looped(**fields)
    assert count_cached_numbers(model, [3, 1, 4, 1, 5]) == bytes_per_token(model.config, item=1)


def test_a_token_takes_keys_and_values_of_every_loop_in_16_bits() -> None:
    model = build_looped(**PLAIN, start="drawn").train()
    state = torch.get_rng_state()
    assert measure_cached_bytes(model, {"input_ids": torch.tensor([3, 1, 4])}) == 2 * 2 * WIDTH * 2
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert measure_cached_bytes(build_looped(LoopedForSequenceClassification, **PLAIN), {"input_ids": [3, 1]}) is None
