"""Records of a language model's predictions at a random sample of positions in a text.

Logits over the whole vocabulary are too large to record every position.

Shape legend: B rows, T positions, K recorded positions, N steps, V vocabulary entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adadepth.data.batches import get_lengths
from adadepth.data.randomness import EVALUATION_SEED, FIXED_EPOCH, Purpose, random_generator
from adadepth.data.streams.blocks import TextBlocks
from adadepth.evaluation.predictions import merge_processes
from adadepth.metrics.step_records import POSITIONS, StepRecorder, StepRecords

NUMBERS = 2**26  # recorded logits of a set: 256 MiB in float32


def sample_positions(blocks: TextBlocks, logits_per_position: int) -> Tensor:
    """Draw a random sample of positions in a text, at which predictions are recorded, sorted, int64.

    A position is encoded as the number of its block times `POSITIONS` plus the position in the block.

    As many positions as `NUMBERS` allows are sampled without replacement, excluding the last position of each block.
    They depend on the vocabulary size and the number of steps of a model, but not on the batches.

    Args:
        blocks: Packed blocks of text.
        logits_per_position: Number of logits per position, N V.
    """
    lengths = get_lengths(blocks)
    assert lengths is not None
    ends = np.cumsum(lengths - 1)
    count = min(int(ends[-1]), max(1, NUMBERS // logits_per_position))
    generator = random_generator(EVALUATION_SEED, Purpose.RECORDS, FIXED_EPOCH, 0)
    sample = np.sort(generator.choice(int(ends[-1]), count, replace=False))
    block = np.searchsorted(ends, sample, side="right")
    return torch.from_numpy(block * POSITIONS + sample - (ends - lengths + 1)[block])


def text_columns(batch: Mapping[str, Tensor], outputs: Any, positions: Tensor) -> dict[str, Tensor]:
    """Return the recorded values at those positions of a batch that are in `positions` and predict a token.

    Args:
        batch: Batch with `index` (B,), and `attention_mask` and `labels` (B, T).
        outputs: Output with `step_logits`, indexed as (B, T, N, V), and `exit_steps` (B, T). If the model returns them,
            also `halting_logits` (B, T, N) and `state_moves` (B, T, N, 2).
        positions: Sampled positions from `sample_positions`, on any device.

    Returns:
        Columns of `StepRecords`, each (K, ...). The label is the next token; the length is that of the block.
    """
    labels = batch["labels"]
    following = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=-100)
    numbers = batch["index"].unsqueeze(1) * POSITIONS + torch.arange(labels.shape[1], device=labels.device)
    rows, columns = (torch.isin(numbers, positions.to(labels.device)) & (following >= 0)).nonzero(as_tuple=True)
    logits, exits = outputs.step_logits[rows, columns], outputs.exit_steps[rows, columns]
    recorded = {
        "index": numbers[rows, columns],
        "lengths": batch["attention_mask"].sum(dim=1)[rows],
        "logits": logits[torch.arange(len(exits), device=exits.device), exits - 1],
        "depth": exits.float(),
        "labels": following[rows, columns],
        "step_logits": logits,
        "exit_steps": exits,
    }
    for name in ("halting_logits", "state_moves"):
        if (values := getattr(outputs, name, None)) is not None:
            recorded[name] = values[rows, columns].float()
    return recorded


def text_records(passes: Iterable[tuple[Mapping[str, Tensor], Any]], positions: Tensor) -> StepRecords:
    """Return the records at the sampled positions, merged over all processes.

    Args:
        passes: Batches of this process with the outputs of all steps.
        positions: Sampled positions from `sample_positions`.
    """
    recorder = StepRecorder()
    for batch, outputs in passes:
        recorder.keep(text_columns(batch, outputs, positions), outputs.trace.max_updates)
    return merge_processes(recorder)
