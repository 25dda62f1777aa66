"""Recording of predictions at a random sample of positions in a text, for next or masked words.

Logits over the whole vocabulary are too large to record every position.

Shape legend: B rows, T positions, K recorded positions, N steps, V vocabulary entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adadepth.data.batches import get_lengths
from adadepth.data.randomness import EVALUATION_SEED, FIXED_EPOCH, Purpose, random_generator
from adadepth.data.streams.blocks import CausalExamples
from adadepth.evaluation.predictions import merge_processes
from adadepth.metrics.step_records import POSITIONS, StepRecorder, StepRecords

NUMBERS = 2**26  # recorded logits of a set: 256 MiB in float32


def sample_positions(blocks: CausalExamples, logits_per_position: int) -> Tensor:
    """Draw a random, sorted sample of text positions at which to record predictions, int64.

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
    sample = _draw_numbers(int(ends[-1]), logits_per_position)
    block = np.searchsorted(ends, sample, side="right")
    return torch.from_numpy(block * POSITIONS + sample - (ends - lengths + 1)[block])


def sample_masked_positions(examples: Sequence[Mapping[str, Any]], logits_per_position: int) -> tuple[Tensor, int]:
    """Draw a random sample of a text's masked words, and count all of them.

    Args:
        examples: Examples with `labels` (T,), which are negative where no word is to be predicted.
        logits_per_position: Number of logits per position, N V.
    """
    labels = (np.asarray(examples[index]["labels"]) for index in range(len(examples)))
    masked = [index * POSITIONS + np.flatnonzero(row >= 0) for index, row in enumerate(labels)]
    positions = np.concatenate(masked).astype(np.int64)
    return torch.from_numpy(positions[_draw_numbers(len(positions), logits_per_position)]), len(positions)


def _draw_numbers(total: int, logits_per_position: int) -> Any:
    """Draw a sorted random sample of the numbers below `total`, at most `NUMBERS` of them, int64."""
    count = min(total, max(1, NUMBERS // logits_per_position))
    generator = random_generator(EVALUATION_SEED, Purpose.RECORDS, FIXED_EPOCH, 0)
    return np.sort(generator.choice(total, count, replace=False))


def text_columns(
    batch: Mapping[str, Tensor], outputs: Any, positions: Tensor, *, predicts_next: bool = True
) -> dict[str, Tensor]:
    """Return what is recorded at the sampled positions of a batch that predict a token, by column name.

    Args:
        batch: Batch with `index` (B,), and `attention_mask` and `labels` (B, T).
        outputs: Output with `step_logits`, indexed as (B, T, N, V), and `exit_steps` (B, T). If the model returns them,
            also `halting_logits` (B, T, N) and `state_moves` (B, T, N, 2).
        positions: Sampled positions, on any device.
        predicts_next: Whether a position predicts the label of the next one, and not its own.

    Returns:
        Columns of `StepRecords`, each (K, ...). The label is the predicted token; the length is that of the block.
    """
    labels = batch["labels"]
    targets = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=-100) if predicts_next else labels
    numbers = batch["index"].unsqueeze(1) * POSITIONS + torch.arange(labels.shape[1], device=labels.device)
    rows, columns = (torch.isin(numbers, positions.to(labels.device)) & (targets >= 0)).nonzero(as_tuple=True)
    logits, exits = outputs.step_logits[rows, columns], outputs.exit_steps[rows, columns]
    recorded = {
        "index": numbers[rows, columns],
        "lengths": batch["attention_mask"].sum(dim=1)[rows],
        "logits": logits[torch.arange(len(exits), device=exits.device), exits - 1],
        "depth": exits.float(),
        "labels": targets[rows, columns],
        "step_logits": logits,
        "exit_steps": exits,
    }
    for name in ("halting_logits", "state_moves"):
        if (values := getattr(outputs, name, None)) is not None:
            recorded[name] = values[rows, columns].float()
    return recorded


def text_records(
    passes: Iterable[tuple[Mapping[str, Tensor], Any]], positions: Tensor, *, predicts_next: bool = True
) -> StepRecords:
    """Return the records at all sampled positions, merged over processes.

    Args:
        passes: Batches of this process with the outputs of all steps.
        positions: Positions from `sample_positions` or `sample_masked_positions`.
        predicts_next: See `text_columns`.
    """
    recorder = StepRecorder()
    for batch, outputs in passes:
        columns = text_columns(batch, outputs, positions, predicts_next=predicts_next)
        recorder.keep(columns, outputs.trace.max_updates)
    return merge_processes(recorder)
