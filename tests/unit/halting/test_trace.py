"""The depth trace as a container: traversal by torch, and fields that an output shares with its trace."""

from __future__ import annotations

import pytest
import torch
from torch.utils import _pytree as pytree

from adadepth.halting.trace import ComputedSteps, DepthTrace, Execution, Halting
from adadepth.models import AlbertActConfig, AlbertActModel

SHAPE = {
    "vocab_size": 30, "embedding_size": 8, "hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2,
    "intermediate_size": 24, "max_position_embeddings": 16,
}  # fmt: skip


def build_full_trace() -> DepthTrace:
    """Build a trace with every detail that several families share."""
    computed = ComputedSteps.from_counts([(4, 4, 16), (2, 2, torch.tensor(8))])
    return DepthTrace(
        "token",
        updates=torch.tensor([[2.0, 1.0]]),
        valid=torch.ones(1, 2, dtype=torch.bool),
        max_updates=3,
        ran=torch.tensor([[[True, True], [True, False]]]),
        execution=Execution(2, tokens=torch.tensor([2]), width=2, rows=torch.tensor([1, 1]), computed=computed),
        halting=Halting(torch.rand(1, 2, 2), torch.rand(1, 2)),
        layer_weights=torch.rand(4),
    )


def test_torch_traverses_a_trace():
    trace = build_full_trace()
    moved = pytree.tree_map(lambda leaf: leaf.double() if isinstance(leaf, torch.Tensor) else leaf, trace)
    assert isinstance(moved, DepthTrace)
    assert (moved.unit, moved.max_updates, moved.execution.steps, moved.execution.width) == ("token", 3, 2, 2)
    tensors = [leaf for leaf in pytree.tree_leaves(moved) if isinstance(leaf, torch.Tensor)]
    assert len(tensors) == 11
    assert {tensor.dtype for tensor in tensors} == {torch.float64}
    assert moved.execution.computed.pairs.tolist() == [16, 8]


def test_torch_traverses_an_output_and_its_trace():
    torch.manual_seed(0)
    outputs = AlbertActModel(AlbertActConfig(**SHAPE)).eval()(torch.randint(5, 30, (2, 6)))
    copied = pytree.tree_map(lambda leaf: leaf, outputs)
    assert isinstance(copied.trace, DepthTrace)
    assert torch.equal(copied.updates, outputs.updates)


def test_halting_fields_of_an_output_are_those_of_its_trace():
    torch.manual_seed(0)
    outputs = AlbertActModel(AlbertActConfig(**SHAPE)).train()(torch.randint(5, 30, (2, 6)))
    assert outputs.updates is outputs.trace.updates
    assert outputs.remainders is outputs.trace.halting.remainders
    assert outputs.halting_probabilities is outputs.trace.halting.probabilities
    assert outputs.halting_probabilities.requires_grad
    assert "updates" not in outputs, "a property, not a second field"


def test_a_trace_without_computed_steps_has_no_macs():
    trace = DepthTrace("token", torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool), 3)
    with pytest.raises(
        ValueError, match=r"the depth trace \(unit: token\) has no `execution`, so its compute cannot be counted"
    ):
        AlbertActModel(AlbertActConfig(**SHAPE)).price(trace)


def test_a_data_frame_has_a_row_for_each_real_unit():
    trace = DepthTrace(
        "token",
        updates=torch.tensor([[2.0, 1.0, 0.0], [3.0, 0.0, 0.0]]),
        valid=torch.tensor([[True, True, False], [True, False, False]]),
        max_updates=3,
        halting=Halting(torch.rand(2, 3, 3), torch.tensor([[0.25, 0.5, 0.0], [0.75, 0.0, 0.0]], requires_grad=True)),
    )
    frame = trace.to_pandas(torch.tensor([[7, 8, 0], [9, 0, 0]]))
    assert frame.to_dict("list") == {
        "row": [0, 0, 1], "position": [0, 1, 0], "token": [7, 8, 9],
        "updates": [2.0, 1.0, 3.0], "remainder": [0.25, 0.5, 0.75],
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"input_ids of shape \(2, 4\): the token units of this trace have shape"):
        trace.to_pandas(torch.zeros(2, 4, dtype=torch.int64))


def test_a_data_frame_of_sequences_has_no_positions():
    trace = DepthTrace("sequence", torch.tensor([4.0, 2.0]), torch.tensor([True, True]), max_updates=4)
    assert trace.to_pandas().to_dict("list") == {"row": [0, 1], "updates": [4.0, 2.0]}
