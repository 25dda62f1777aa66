"""Latencies of blocks and networks, measured with a clock that tests set."""

from __future__ import annotations

import pytest
import torch

from adadepth.models.par_xl import latency
from adadepth.models.par_xl.configuration import ParXLConfig
from adadepth.models.par_xl.latency import draw_ids, model_latencies, operation_latencies
from adadepth.models.par_xl.modeling import ParXLForCausalLM
from adadepth.runtime import timing
from adadepth.runtime.timing import compare_rounds, time_interleaved, time_rounds

CPU = torch.device("cpu")
SIZES = {"vocab_size": 30, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 20, "cutoffs": [5]}


@pytest.fixture
def clock(monkeypatch):
    """Return a clock that only advances when a call adds to its single entry."""
    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    return now


def test_calls_take_turns_and_warm_ups_do_not_count(clock):
    order = []
    durations = {"quick": iter([50.0, 60.0, 1.0, 2.0, 3.0, 4.0, 5.0]), "slow": iter([70.0, 80.0] + 5 * [9.0])}

    def call(name):
        order.append(name)
        clock[0] += next(durations[name])

    seconds = time_interleaved({name: lambda name=name: call(name) for name in durations}, 5, 2, CPU)
    assert order == 7 * ["quick", "slow"]
    assert seconds["quick"] == pytest.approx({"median": 3.0, "p10": 1.4, "p90": 4.6, "n": 5})
    assert seconds["slow"] == pytest.approx({"median": 9.0, "p10": 9.0, "p90": 9.0, "n": 5})


def test_the_ratio_of_times_is_taken_within_rounds(clock):
    """Check a machine that is three times slower in one round, for both calls."""
    durations = {"whole": iter([9.0, 2.0, 6.0, 2.5]), "part": iter([1.0, 1.0, 3.0, 1.0])}

    def call(name):
        clock[0] += next(durations[name])

    rounds = time_rounds({name: lambda name=name: call(name) for name in durations}, 3, 1, CPU)
    assert rounds == {"whole": [2.0, 6.0, 2.5], "part": [1.0, 3.0, 1.0]}
    assert compare_rounds(rounds["whole"], rounds["part"]) == (2.0, 2.0, 2.5)


def test_one_repeat_gives_every_percentile(clock):
    def call():
        clock[0] += 0.25

    assert time_interleaved({"only": call}, 1, 0, CPU) == {"only": {"median": 0.25, "p10": 0.25, "p90": 0.25, "n": 1}}


@pytest.mark.parametrize("fields", [{}, {"share_position_bias": False, "branch_norm": "paper", "clamp_length": 3}])
@pytest.mark.parametrize("memory", [0, 6])
def test_blocks_are_timed_separately(fields, memory):
    config = ParXLConfig(**SIZES, **fields)
    state = torch.get_rng_state()
    seconds = operation_latencies(config, 4, memory, 2, device=CPU, dtype=torch.float32, repeats=2)
    assert torch.get_rng_state().equal(state)
    assert list(seconds) == ["s", "f", "-"]
    assert seconds["s"] > 0 < seconds["f"]
    assert seconds["-"] == 0
    assert (config.vocab_size, config.cutoffs, config.architecture) == (30, [5], None)


def test_a_block_is_timed_with_a_full_memory(monkeypatch):
    """Check that attention reads the whole memory and that the time is the median of its calls."""
    ran = []

    def time_once(calls, repeats, warmup, device):
        ran.extend(call()[0].shape for call in calls.values())
        return {name: {"median": float(position)} for position, name in enumerate(calls, 1)}

    monkeypatch.setattr(latency, "time_interleaved", time_once)
    config = ParXLConfig(**SIZES)
    seconds = operation_latencies(config, 4, 6, 2, device=CPU, dtype=torch.float32, repeats=3)
    assert ran == [(2, 4, 8), (2, 4, 8)]
    assert seconds == {"s": 1.0, "f": 2.0, "-": 0.0}


def test_networks_are_timed_with_a_full_memory(monkeypatch):
    models = {text: ParXLForCausalLM(ParXLConfig(**SIZES, architecture=text)) for text in ("sfs", "ff-")}
    seen = []

    def time_once(calls, repeats, warmup, device):
        assert repeats == 7
        for name, call in calls.items():
            seen.append((name, call()))
        return {name: {"median": len(name[1]), "p10": 0.0, "p90": 0.0, "n": 1} for name in calls}

    monkeypatch.setattr(latency, "time_interleaved", time_once)
    seconds = model_latencies(models, 4, 40, 2, repeats=7)
    assert seconds == {
        name: {"median": len("whole"), "p10": 0.0, "p90": 0.0, "n": 1, "blocks_median": len("blocks")}
        for name in models
    }
    for (name, part), output in seen:
        assert output.memory.shape == (name.count("s"), 2, 40, 8)
        assert not output.memory.requires_grad
        assert not models[name].training
        if part == "whole":
            assert output.loss.isfinite()
            assert output.trace.execution.memory_length == 40
        else:
            assert output.last_hidden_state.shape == (2, 4, 8)


def test_networks_are_timed_by_name():
    models = {text: ParXLForCausalLM(ParXLConfig(**SIZES, architecture=text)) for text in ("sf", "-")}
    seconds = model_latencies(models, 4, 0, 2, repeats=3)
    assert list(seconds) == ["sf", "-"]
    for figures in seconds.values():
        assert 0 < figures["p10"] <= figures["median"] <= figures["p90"]
        assert figures["n"] == 3
        assert figures["blocks_median"] > 0


def test_words_are_drawn_proportionally_to_one_over_rank():
    """Check four words: 12, 6, 4 and 3 in 25."""
    ids = draw_ids(4, 20_000, torch.Generator().manual_seed(0))
    shares = ids.bincount() / len(ids)
    assert shares.tolist() == pytest.approx([0.48, 0.24, 0.16, 0.12], abs=0.015)
