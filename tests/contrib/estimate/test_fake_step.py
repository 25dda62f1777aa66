"""Training steps without memory: bytes as autograd stores them, operations as torch counts them, known numbers."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from adadepth.contrib.estimate.fake_step import KnownValues, MemoryTracker
from adadepth.errors import ConfigError


def build_small_model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 4))


def test_bytes_after_a_forward_pass_are_those_that_autograd_saves() -> None:
    model, inputs = build_small_model(), torch.randn(10, 8)
    own_storages = {stored.untyped_storage().data_ptr() for stored in (*model.parameters(), inputs)}
    saved: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own_storages:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs = model(inputs)
    with MemoryTracker() as tracker:
        for stored in (*model.parameters(), inputs):
            tracker.add(stored)
        before = tracker.now
        counted = model(inputs)
    assert tracker.now - before == sum(saved.values()) + counted.nbytes
    assert tracker.now - before == 4 * 10 * (32 + 32 + 16 + 4)  # before and after GELU, after tanh, the result
    del counted, outputs
    assert tracker.now == before


def test_a_fake_step_has_the_figures_of_a_real_one() -> None:
    def step() -> tuple[int, int, int]:
        model, inputs = build_small_model(), torch.ones(10, 8)
        with MemoryTracker() as tracker:
            for parameter in model.parameters():
                tracker.watch_gradient(parameter)
            model(inputs).square().mean().backward()
            return tracker.peak, tracker.gradients, tracker.operations

    real = step()
    with FakeTensorMode():
        assert step() == real
    model = build_small_model()
    assert real[1] == sum(parameter.nbytes for parameter in model.parameters())
    with FlopCounterMode(display=False) as counter:
        model(torch.ones(10, 8)).square().mean().backward()
    assert real[2] == counter.get_total_flops()


def test_attention_on_a_cpu_counts_as_its_two_products() -> None:
    query = torch.randn(2, 3, 16, 8, requires_grad=True)
    with MemoryTracker() as tracker:
        nn.functional.scaled_dot_product_attention(query, query, query).sum().backward()
    product = 2 * 2 * 3 * 16 * 16 * 8
    assert tracker.operations == 2 * product + 5 * product  # the backward pass computes the scores again


def test_numbers_that_follow_from_the_batch_are_read() -> None:
    real = torch.tensor([3, 5, 2])
    with FakeTensorMode() as mode:
        unknown = torch.ones(3, dtype=torch.long)
    with mode, KnownValues() as known_values:
        lengths = known_values.add_fake(real)
        assert int(lengths.max()) == 5
        assert (lengths > 2).nonzero().flatten().tolist() == [0, 1]
        assert lengths[lengths > 2].shape == (2,)
        lengths += unknown
        assert known_values.get_real(lengths) is None


def test_conditions_on_weights_take_the_most_expensive_branch() -> None:
    with FakeTensorMode() as mode:
        weights = torch.empty(6)
    with mode, KnownValues():
        assert bool((weights > 0).any())
        assert weights[weights > 0].shape == (6,)
        assert float(weights.sum()) == 1.0
        with pytest.raises(
            ConfigError, match=r"^mode=estimate: not supported, because the model reads a value of its weights"
        ):
            int(weights.argmax())
