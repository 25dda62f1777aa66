"""Constants and copies that need no wait of the host, on the meta device; devices without float64."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from adadepth.halting.layer_mixing import layer_weights
from adadepth.models.depth.runner import draw_skipped
from adadepth.models.looped.objectives import text_uniforms
from adadepth.models.par_xl.blocks import make_architecture_trace, make_path_mixes, one_hot
from adadepth.models.shared.losses import LossTerm, combine_terms, target_weights
from adadepth.runtime.devices import fill_values, upload
from adadepth.training.distributed_batches import sum_over_update
from tests.host_reads_support import ACCELERATOR, HostReads
from tests.unit.models.par_xl_support import build_supernet


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([0.1, -2.0, 3e38], torch.float32),
        ([2**62, -1], torch.long),
        ([True, False], torch.bool),
        ([0.1], torch.float64),
    ],
)
def test_filled_tensors_equal_those_of_torch(values: list[Any], dtype: torch.dtype) -> None:
    assert fill_values(values, torch.device("cpu"), dtype).equal(torch.tensor(values, dtype=dtype))


def weigh_labels() -> Any:
    config: Any = SimpleNamespace(classes_weights=[0.5, 2.0])
    return target_weights(config, torch.zeros(3, dtype=torch.long, device=ACCELERATOR))


def combine_with_a_number() -> Any:
    total = torch.ones((), device=ACCELERATOR)
    return combine_terms({"task": LossTerm(total, total)}, num_items=7)


def trace_a_path() -> Any:
    path, real = [0, 1, 2], torch.ones(2, 4, dtype=torch.bool, device=ACCELERATOR)
    return make_architecture_trace(one_hot(path, ACCELERATOR), make_path_mixes(path), real, 0)


def count_an_update() -> Any:
    counts = [{"task": torch.tensor(3)}, {"task": torch.tensor(4)}]
    return sum_over_update(counts, torch.tensor(9), ACCELERATOR, world_size=1)


@pytest.mark.parametrize(
    "compute",
    [
        weigh_labels,
        combine_with_a_number,
        trace_a_path,
        count_an_update,
        lambda: layer_weights(torch.zeros(4, device=ACCELERATOR), 1.0, active=[1, 3]),
        lambda: draw_skipped([0.0, 0.5, 1.0], 4, ACCELERATOR),
        lambda: text_uniforms(torch.zeros(2, 5, dtype=torch.long, device=ACCELERATOR), None, seed=1, step=2),
        lambda: upload(torch.zeros(3), ACCELERATOR),
    ],
)
def test_nothing_waits_for_the_device(compute: Callable[[], Any]) -> None:
    host_reads = HostReads()
    with host_reads:
        compute()
    assert not host_reads.reads + host_reads.moves, host_reads.reads + host_reads.moves


def test_a_latency_is_computed_without_waiting() -> None:
    supernet = build_supernet(latency_weight=0.1, operation_costs=[3.0, 1.0, 0.0]).to(ACCELERATOR)
    host_reads = HostReads()
    with host_reads:
        supernet.penalties(torch.ones((), device=ACCELERATOR))
        supernet.latency()
    assert not host_reads.reads + host_reads.moves, host_reads.reads + host_reads.moves
