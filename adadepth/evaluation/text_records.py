"""Tokens of a text as recorded examples: of packed blocks a drawn part, because logits are as many as there are pieces.

Shape legend: B rows, T places, K places that are recorded, N steps, V pieces.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adadepth.data.batches import known_lengths
from adadepth.data.randomness import EVALUATION_SEED, FIXED_EPOCH, Purpose, random_generator
from adadepth.data.streams.blocks import TextBlocks
from adadepth.evaluation.predictions import merge_processes
from adadepth.measure.exit_records import POSITIONS, StepRecorder, StepRecords

NUMBERS = 2**26  # logits that are kept of a set: 256 MiB in float32


def drawn_places(blocks: TextBlocks, numbers_of_a_place: int) -> Tensor:
    """Places of a text of which everything is kept, sorted, int64: block times `POSITIONS` plus place.

    As many as `NUMBERS` holds, drawn without repetition among all places but the last of each block, alike for every
    model of as many pieces and steps, and however batches are cut.

    Args:
        blocks: The text.
        numbers_of_a_place: N V.
    """
    lengths = known_lengths(blocks)
    assert lengths is not None
    ends = np.cumsum(lengths - 1)
    wanted = min(int(ends[-1]), max(1, NUMBERS // numbers_of_a_place))
    generator = random_generator(EVALUATION_SEED, Purpose.RECORDS, FIXED_EPOCH, 0)
    drawn = np.sort(generator.choice(int(ends[-1]), wanted, replace=False))
    block = np.searchsorted(ends, drawn, side="right")
    return torch.from_numpy(block * POSITIONS + drawn - (ends - lengths + 1)[block])


def text_columns(batch: Mapping[str, Tensor], outputs: Any, places: Tensor) -> dict[str, Tensor]:
    """What is kept of the places of a batch at which a token is predicted, if they are among `places`.

    Args:
        batch: `index` (B,), `attention_mask` and `labels` (B, T).
        outputs: `step_logits`, read as (B, T, N, V), `exit_steps` (B, T), and if the model has them `halting_logits`
            (B, T, N) and `state_moves` (B, T, N, 2).
        places: From `drawn_places`, on any device.

    Returns:
        The columns of `StepRecords`, each (K, ...): the label is the token that follows, the length that of the block.
    """
    labels = batch["labels"]
    following = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=-100)
    numbers = batch["index"].unsqueeze(1) * POSITIONS + torch.arange(labels.shape[1], device=labels.device)
    rows, columns = (torch.isin(numbers, places.to(labels.device)) & (following >= 0)).nonzero(as_tuple=True)
    logits, exits = outputs.step_logits[rows, columns], outputs.exit_steps[rows, columns]
    found = {
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
            found[name] = values[rows, columns].float()
    return found


def text_records(passes: Iterable[tuple[Mapping[str, Tensor], Any]], places: Tensor) -> StepRecords:
    """The records of `places`, of all processes; `passes` are this one's batches with outputs of all steps."""
    recorder = StepRecorder()
    for batch, outputs in passes:
        recorder.keep(text_columns(batch, outputs, places), outputs.trace.max_updates)
    return merge_processes(recorder)
