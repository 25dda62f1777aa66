"""Host reads of a training step on an accelerator: exactly those of a table; it is one graph for all lengths."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.host_reads_support import ACCELERATOR, HostReads, accelerator_autocast
from tests.marks_support import keep_one_quick
from tests.models_support import make_padded_batch
from tests.unit.models.every_model_support import (
    BUILD,
    FURTHER,
    NO_GRAPH,
    READS,
    build_float32_routed,
    build_training_batch,
)

ALL = BUILD | FURTHER
SILENT = {"act pretraining": {"predictions.bias"}}  # moving to this device breaks the tie with the decoder


@pytest.mark.parametrize("name", keep_one_quick(7, ALL))
def test_training_reads_equal_the_table_and_every_weight_has_a_gradient(name: str) -> None:
    torch.manual_seed(0)
    model = ALL[name]().train().to(ACCELERATOR)
    batch = {
        key: value.to(ACCELERATOR) if isinstance(value, Tensor) else value
        for key, value in build_training_batch(name).items()
    }
    reads = HostReads()
    with accelerator_autocast(), reads:
        model.set_step(1, 10)
        model(**batch).loss.backward()
    assert sum(reads.reads.values()) == READS.get(name, 0), dict(reads.reads)
    assert not reads.moves, dict(reads.moves)
    silent = {key for key, weight in model.named_parameters() if weight.requires_grad and weight.grad is None}
    is_drawn = name in ("sampled supernet", "early exit dropout")  # weights that were not sampled have no gradient
    assert silent == SILENT.get(name, set()) or is_drawn


@pytest.mark.parametrize("name", keep_one_quick(3, ["routed recursions", "routed depths", "routed layers"]))
def test_routed_training_reads_are_independent_of_layers(name: str) -> None:
    """Allow one read more for the lengths of padded rows."""
    batch = {**build_training_batch(name), "attention_mask": make_padded_batch()["attention_mask"]}
    del batch["documents"]
    reads = {count_reads(build_routed(name, layers), batch) for layers in (2, 6)}
    assert reads == {READS[name] + (name != "routed depths")}
    assert reads <= {3}


def build_routed(name: str, layers: int) -> Any:
    """Build a routed language model with a router in this many layers."""
    fields: dict[str, Any] = {
        "routed recursions": {"recursions": layers, "num_hidden_layers": layers, "sharing": "none"},
        "routed depths": {"recursions": layers, "num_hidden_layers": layers, "sharing": "none", "router": "token"},
        "routed layers": {"capacities": [0.4], "num_hidden_layers": layers, "routed_layers": [*range(1, layers + 1)]},
    }
    return build_float32_routed(**fields[name]).train()


def count_reads(model: Any, batch: dict[str, Any]) -> int:
    """Return how often a training step waits for the device."""
    model.to(ACCELERATOR)
    reads = HostReads()
    with accelerator_autocast(), reads:
        model.set_step(1, 10)
        model(**{key: value.to(ACCELERATOR, non_blocking=True) for key, value in batch.items()}).loss.backward()
    assert not reads.moves, dict(reads.moves)
    return reads.reads.total()


def test_a_read_is_detected() -> None:
    reads, values = HostReads(), torch.zeros(3, device=ACCELERATOR)
    with reads:
        float(values.sum())
        values[values > 0].sum()
        values.cpu()
        values + torch.zeros(3).to(ACCELERATOR)
        values + torch.zeros(3).to(ACCELERATOR, non_blocking=True)
        values + torch.tensor([1.0, 2.0, 3.0], device=ACCELERATOR) + torch.as_tensor(1.0, device=ACCELERATOR)
        values + values.new_tensor([1.0, 2.0, 3.0]) + torch.as_tensor(values) + torch.tensor(1.0)
    assert (sum(reads.reads.values()), sum(reads.moves.values())) == (3, 4)


def build_batches(name: str) -> list[dict[str, Any]]:
    """Build batches of two rows and ten lengths; puzzles and rows of numbers have one length."""
    whole = build_training_batch(name)
    if name in ("recurrent", "puzzles"):
        return [whole]
    longest = whole["input_ids"].shape[-1]

    def cut(value: Tensor, length: int) -> Tensor:
        part = value[:2, ..., :length] if value.shape[-1] == longest else value[:2]
        return part.clone(memory_format=torch.contiguous_format)  # views of larger tensors would be compiled separately

    return [{key: cut(value, length) for key, value in whole.items()} for length in range(longest, longest - 10, -1)]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(ALL) - NO_GRAPH))
def test_a_training_step_is_one_graph_for_all_lengths(name: str) -> None:
    torch.compiler.reset()
    torch.manual_seed(0)
    model, graphs = ALL[name]().train(), 0

    def count_graph(graph: Any, _: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return graph.forward

    model.set_step(1, 10)
    step = torch.compile(lambda batch: model(**batch).loss, fullgraph=True, dynamic=True, backend=count_graph)
    for batch in build_batches(name):
        step(batch).backward()
        model.zero_grad()
    assert graphs == 1
