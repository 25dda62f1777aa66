"""Accuracy by length against a loop over texts."""

from __future__ import annotations

import torch

from adadepth.metrics.length_scores import summarise_lengths
from adadepth.metrics.step_records import POSITIONS, StepRecords
from adadepth.metrics.step_summary import summarise_steps

STEPS, CLASSES = 5, 3


def make_records() -> StepRecords:
    """Return records of 12 texts of one to four labelled tokens, with one loop more than tokens."""
    generator = torch.Generator().manual_seed(0)
    texts = [(text, position) for text in range(12) for position in range(1 + text % 4)]
    index = torch.tensor([text * POSITIONS + position for text, position in texts])
    loops = torch.tensor([2 + text % 4 for text, _ in texts])
    labels = torch.randint(0, CLASSES, (len(texts),), generator=generator)
    logits = torch.randn(len(texts), STEPS, CLASSES, generator=generator)
    logits += 2 * torch.nn.functional.one_hot(labels, CLASSES).unsqueeze(1)  # often right
    exits = torch.randint(1, STEPS + 1, (len(texts),), generator=generator)
    at_exit = logits[torch.arange(len(texts)), exits - 1]
    return StepRecords(
        index, loops, at_exit, exits.float(), STEPS, labels, None, logits, exit_steps=exits, text_loops=loops
    )


def test_a_text_is_right_if_all_of_its_tokens_are() -> None:
    records = make_records()
    assert records.labels is not None
    assert records.step_logits is not None
    assert records.text_loops is not None
    assert records.exit_steps is not None
    rows = summarise_lengths(records)
    assert [row["loops"] for row in rows] == [2, 3, 4, 5]
    for row in rows:
        texts = [text for text in range(12) if 2 + text % 4 == row["loops"]]
        assert row["n"] == len(texts) == 3
        tokens = {text: (records.sequences == text).nonzero().squeeze(1).tolist() for text in texts}
        for step in range(STEPS):
            right = [
                all(records.step_logits[token, step].argmax() == records.labels[token] for token in tokens[text])
                for text in texts
            ]
            assert abs(row["accuracy"][step] - sum(right) / 3) < 1e-9
        right = [
            all(records.logits[token].argmax() == records.labels[token] for token in tokens[text]) for text in texts
        ]
        assert abs(row["rule_accuracy"] - sum(right) / 3) < 1e-9
        exits = [records.exit_steps[token].item() for text in texts for token in tokens[text]]
        assert abs(row["rule_loops"] - sum(exits) / len(exits)) < 1e-9
    assert 0 < sum(row["rule_accuracy"] for row in rows) < 4  # neither all right nor all wrong


def test_the_summary_has_lengths_where_texts_have_a_number_of_loops() -> None:
    records = make_records()
    task = {"problem": "classification", "labels": ("a", "b", "c"), "metrics": ("accuracy",)}
    assert summarise_steps(records, **task)["lengths"] == summarise_lengths(records)  # type: ignore[arg-type]
    without = StepRecords(**{**vars(records), "text_loops": None})
    assert "lengths" not in summarise_steps(without, **task)  # type: ignore[arg-type]
