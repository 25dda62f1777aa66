"""Compute of PAR-XL's blocks: the table of the reference, executed multiplications, and sums made by hand."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from adadepth.halting.trace import DepthTrace, Execution, Operations
from adadepth.models.par_xl.configuration import ParXLConfig, architecture_macs, operation_macs, price_par_xl
from adadepth.models.par_xl.modeling import ParXLForCausalLM, ParXLSupernet
from tests.marks_support import keep_one_quick

# T, M, B, d, F: the original's size, and NVIDIA's base in training and in evaluation.
ORIGINAL, TRAINING, EVALUATION = (32, 16, 32, 128, 512), (192, 192, 32, 512, 2048), (64, 640, 16, 512, 2048)
SIZES = {"vocab_size": 11, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 20}


@pytest.mark.parametrize(
    ("shape", "attention", "feed_forward", "change"),
    [(ORIGINAL, 3.24e6, 4.19e6, 0.081), (TRAINING, 418e6, 403e6, -0.012), (EVALUATION, 483e6, 134e6, -0.353)],
)
def test_macs_equal_the_table_of_the_reference(shape, attention, feed_forward, change):
    """Check both blocks of section 2, and the savings of 6 attention and 26 feed-forward blocks over 16 and 16."""
    s, f = operation_macs("s", *shape), operation_macs("f", *shape)
    assert s == pytest.approx(attention, rel=2e-3)
    assert f == pytest.approx(feed_forward, rel=2e-3)
    assert (6 * s + 26 * f) / (16 * (s + f)) - 1 == pytest.approx(change, abs=6e-4)
    assert operation_macs("-", *shape) == 0


@pytest.mark.parametrize("architecture", ["s", "f", "-", "sf-s"])
@pytest.mark.parametrize(("length", "memory", "batch"), keep_one_quick(3, [(5, 0, 3), (4, 7, 2), (1, 31, 1)]))
def test_macs_equal_the_executed_multiplications(architecture, length, memory, batch):
    """Compare up to one more distance than there are, which the alignment of scores needs."""
    config = ParXLConfig(**SIZES, architecture=architecture)
    model = ParXLForCausalLM._from_config(config, attn_implementation="eager").eval()
    states = torch.zeros(architecture.count("s"), batch, memory, 8)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.model(torch.zeros(batch, length, dtype=torch.int64), memory=states)
    macs = architecture_macs(config, architecture, length, memory, batch)
    one_distance = architecture.count("s") * (8 * 8 + batch * length * 8)
    assert counter.get_total_flops() == pytest.approx(2 * (batch * macs + one_distance))


def test_macs_of_a_trace_count_its_branches():
    """Count three blocks, of which the second ran attention and feed-forward; T 4, M 2, two rows."""
    config = ParXLConfig(**SIZES, num_hidden_layers=3)
    trace = DepthTrace(
        unit="architecture", updates=torch.tensor([2.0]), valid=torch.tensor([True]), max_updates=3,
        execution=Execution(3, tokens=torch.tensor([4, 4]), width=4, memory_length=2),
        operations=Operations(
            weights=torch.tensor([[0.5, 0.5, 0.0], [0.25, 0.25, 0.5], [0.0, 0.0, 1.0]]),
            executed=torch.tensor([[True, False, True], [True, True, False], [False, False, True]]),
        ),
    )  # fmt: skip
    # projections of 4 queries and outputs, 6 keys and values, 6 distances for two rows; three products
    attention = 2 * 4 * 64 + 2 * 6 * 64 + 6 * 64 / 2 + 3 * 4 * 6 * 8
    feed_forward = 2 * 4 * 8 * 20
    work = price_par_xl(config, trace)
    assert all(value.dtype == torch.float64 and value.shape == () for value in work)
    assert work.executed.item() == work.dense.item() == 2 * (2 * attention + feed_forward)
    assert work.adaptive.item() == 2 * (0.75 * attention + 0.75 * feed_forward)
    assert work.full.item() == 2 * (2 * attention + feed_forward)


def test_models_compute_the_macs_of_their_traces():
    """Compare a soft supernet, which runs all branches, and a derived network, which runs its architecture."""
    torch.manual_seed(0)
    ids = torch.zeros(2, 4, dtype=torch.int64)
    supernet = ParXLSupernet(ParXLConfig(**SIZES, num_hidden_layers=4)).eval()
    derived = ParXLForCausalLM(ParXLConfig(**SIZES, architecture="sff-")).eval()
    s, f = (operation_macs(operation, 4, 3, 2, 8, 20) for operation in "sf")
    soft = supernet.price(supernet(ids, memory=torch.zeros(4, 2, 3, 8), targets=ids).trace)
    assert soft.executed.item() == pytest.approx(2 * 4 * (s + f))
    assert soft.adaptive.item() == pytest.approx(2 * 4 * (s + f) / 3)
    assert soft.full.item() == pytest.approx(2 * 2 * (s + f))
    fixed = derived.price(derived(ids, memory=torch.zeros(1, 2, 3, 8), targets=ids).trace)
    assert fixed.executed.item() == fixed.adaptive.item() == pytest.approx(2 * (s + 2 * f))
    assert fixed.full.item() == soft.full.item()
