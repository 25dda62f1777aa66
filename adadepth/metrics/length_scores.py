"""Accuracy of whole texts by their length: after every step, and at the exits of the exit rule.

Shape legend: M examples (texts, or labelled tokens of texts), N steps.
"""

from __future__ import annotations

from typing import Any

import torch

from adadepth.metrics.scoring import is_right
from adadepth.metrics.step_records import StepRecords


def summarise_lengths(records: StepRecords) -> list[dict[str, Any]]:
    """Summarise the accuracy of texts with the same number of loops T(n), which follows from their length n.

    A text is right if all of its predictions are. At T(n), its number of loops is given; the exit rule decides without
    it, for every example of the text.

    Args:
        records: Records with `text_loops` and with predictions after every step.

    Returns:
        A row for every T(n): `loops`, T(n); `n`, the number of texts; `accuracy` after every step, N shares;
        `rule_accuracy`, at the exits of the rule; and `rule_loops`, the mean exit step of the examples.
    """
    assert records.text_loops is not None
    assert records.step_logits is not None
    assert records.exit_steps is not None
    assert records.labels is not None
    at_steps = is_right(records.step_logits, records.labels)
    right = torch.cat([at_steps, is_right(records.logits, records.labels).unsqueeze(1)], dim=1).double()
    texts, numbers = records.sequences.unique(return_inverse=True)
    positions = numbers.unsqueeze(1).expand_as(right)
    whole = right.new_ones(len(texts), right.shape[1]).scatter_reduce(0, positions, right, "amin")
    loops = records.text_loops.new_zeros(len(texts)).scatter(0, numbers, records.text_loops)
    rows = []
    for count in loops.unique().tolist():
        accuracy = whole[loops == count].mean(dim=0).tolist()
        exits = records.exit_steps[records.text_loops == count].double()
        rows.append(
            {
                "loops": count,
                "n": int((loops == count).sum()),
                "accuracy": accuracy[:-1],
                "rule_accuracy": accuracy[-1],
                "rule_loops": float(exits.mean()),
            }
        )
    return rows
