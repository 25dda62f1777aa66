"""Halting statistics of depth 0 and of iterations that are not the first ones, against a plain loop over units."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from adadepth.halting.trace import DepthTrace, Halting
from adadepth.metrics.depth_statistics import HaltingStatistics

DEPTH = 4
Unit = tuple[bool, list[bool], list[float]]  # whether the unit is real, its executed iterations, its probabilities

units = st.lists(
    st.tuples(
        st.booleans(),
        st.lists(st.booleans(), min_size=DEPTH, max_size=DEPTH),
        st.lists(st.floats(0, 1, width=32), min_size=DEPTH, max_size=DEPTH),
    ),
    min_size=1,
    max_size=12,
)


def make_architecture_trace(batch: list[Unit]) -> DepthTrace:
    """Build a trace of units as a row of tokens; nothing ran at padding."""
    valid = torch.tensor([[real for real, _, _ in batch]])
    ran = torch.tensor([[iterations for _, iterations, _ in batch]]) & valid[..., None]
    probabilities = torch.tensor([[values for _, _, values in batch]])
    return DepthTrace("token", ran.sum(dim=-1), valid, DEPTH, halting=Halting(probabilities), ran=ran)


@given(units)
def test_statistics_count_the_iterations_that_ran(batch: list[Unit]) -> None:
    statistics = HaltingStatistics(DEPTH, ("all",), "cpu")
    trace = make_architecture_trace(batch)
    statistics.update(trace, {"all": trace.valid})
    summary = statistics.summary()
    real = [(iterations, values) for is_real, iterations, values in batch if is_real]
    depths = [sum(iterations) for iterations, _ in real]
    assert summary["n"] == len(real)
    least = 0 if 0 in depths else 1
    assert [row["depth"] for row in summary["steps"]] == list(range(least, DEPTH + 1))
    for row in summary["steps"]:
        k = row["depth"]
        assert row["n"] == depths.count(k)
        if k == 0:
            assert row.keys() == {"depth", "n", "share", "loss_n"}
            continue
        here = [values[k - 1] for iterations, values in real if iterations[k - 1]]
        assert row["reached"] == len(here)
        if real:
            assert abs(row["survival"] - len(here) / len(real)) < 1e-9
        if here:
            assert abs(row["probability"] - sum(here) / len(here)) < 1e-6
        else:
            assert "probability" not in row


@given(st.lists(st.integers(0, DEPTH), min_size=1, max_size=12))
def test_updates_without_iterations_count_the_first_ones(depths: list[int]) -> None:
    updates = torch.tensor([depths])
    valid = torch.ones_like(updates, dtype=torch.bool)
    ran = torch.arange(DEPTH) < updates[..., None]
    summaries = []
    for trace in (
        DepthTrace("token", updates, valid, DEPTH),
        DepthTrace("token", updates, valid, DEPTH, ran=ran),
    ):
        statistics = HaltingStatistics(DEPTH, ("all",), "cpu")
        statistics.update(trace, {"all": valid})
        summaries.append(statistics.summary())
    assert summaries[0] == summaries[1]


@given(units)
def test_states_are_compared_where_the_iteration_ran(batch: list[Unit]) -> None:
    trace = make_architecture_trace(batch)
    generator = torch.Generator().manual_seed(0)
    states = [torch.randn(1, len(batch), 3, generator=generator) for _ in range(DEPTH + 1)]
    statistics = HaltingStatistics(DEPTH, ("all",), "cpu")
    statistics.update(trace, {"all": trace.valid}, hidden_states=states)
    for row in statistics.summary()["cosine"].get("all", []):
        k = row["step"]
        here = [
            float(torch.nn.functional.cosine_similarity(states[k - 1][0, position], states[k][0, position], dim=0))
            for position, (real, iterations, _) in enumerate(batch)
            if real and iterations[k - 1]
        ]
        assert row["running_n"] == len(here)
        if here:
            assert abs(row["running"] - sum(here) / len(here)) < 1e-5
