"""Host reads of evaluations and decoding steps: as many as the guide states, for any number of layers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.host_reads_support import ACCELERATOR
from tests.marks_support import mark_mostly_slow
from tests.mirrored_reads_support import MirroredReads
from tests.unit.models.reads_table import CASES, COUNTS, measure, render_table

GUIDE = Path(__file__).parents[3] / "docs/guide.md"
MOST = 3


@pytest.mark.parametrize("name", mark_mostly_slow(CASES, lambda name: name == "ACT-ALBERT"))
def test_reads_do_not_grow_with_layers(name: str) -> None:
    assert measure(name, 2) == measure(name, 6) == COUNTS[name]


def test_no_step_and_no_exit_reads_more_than_three_times() -> None:
    assert COUNTS.keys() == CASES.keys()
    for name, counts in COUNTS.items():
        training = counts.training - name.startswith("routed")  # transformers reads a decoder's mask twice
        assert max(training, counts.exit, counts.decoding) <= MOST, name


def test_the_guide_contains_the_table() -> None:
    assert render_table(COUNTS) in GUIDE.read_text(encoding="utf-8")


def test_a_mirror_has_the_values_of_its_tensor() -> None:
    torch.manual_seed(0)
    values = torch.randn(4, 5)
    reads = MirroredReads()
    with reads:
        mirrored = values.to(ACCELERATOR)
        part = mirrored[1:, ::2]
        part.mul_(2.0)
        rows = (mirrored.sum(dim=1) > 0).nonzero().squeeze(1)
        largest, selected = mirrored.max().item(), mirrored[rows].cpu()
        masked, table = mirrored[mirrored > 0].cpu(), torch.tensor([3, 1], device=ACCELERATOR).tolist()
    values[1:, ::2] *= 2.0
    assert largest == values.max().item()
    assert torch.equal(selected, values[values.sum(dim=1) > 0])
    assert torch.equal(masked, values[values > 0])
    assert table == [3, 1]
    assert reads.reads.total() == 6  # positions of rows and their mask, a maximum, two copies, and a list
