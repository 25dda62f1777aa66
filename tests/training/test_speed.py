"""Tokens per second of an evaluation: counted tokens and timed phases."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from adadepth.data.batches import count_tokens
from adadepth.training import profiling
from adadepth.training.profiling import Stopwatch


@pytest.mark.parametrize(
    ("batch", "tokens"),
    [
        ({"attention_mask": torch.tensor([[1, 1, 0], [1, 0, 0]]), "input_ids": torch.ones(2, 3)}, 3),
        ({"targets": torch.tensor([[4, 0, -100]])}, 2),
        ({"input_ids": torch.ones(2, 3)}, 6),
        ({"inputs": torch.zeros(2, 5)}, 10),
    ],
)
def test_padding_is_not_counted(batch, tokens):
    assert count_tokens(batch).item() == tokens


def test_only_loading_and_forward_passes_are_timed(monkeypatch):
    clock = SimpleNamespace(seconds=100.0)
    clock.perf_counter = lambda: clock.seconds
    monkeypatch.setattr(profiling, "time", clock)

    def yield_passes():
        for rows in (3, 4):
            clock.seconds += 2  # a batch is loaded and passed through the model
            yield {"attention_mask": torch.ones(rows, 5, dtype=torch.int64)}, f"outputs of {rows} rows"
        clock.seconds += 1  # a pass that keeps step with another process

    watch, batches = Stopwatch(torch.device("cpu")), []
    for batch, outputs in watch.time(yield_passes()):
        clock.seconds += 50  # statistics
        batches.append((len(batch["attention_mask"]), outputs))
    assert batches == [(3, "outputs of 3 rows"), (4, "outputs of 4 rows")]
    assert watch.tokens_per_second() == pytest.approx(35 / 5)
