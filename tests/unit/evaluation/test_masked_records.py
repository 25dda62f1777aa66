"""Exit rules on masked words, compared with a plain loop over words, exits and cut networks of transformers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from adadepth import EarlyExitForMaskedLM
from adadepth.evaluation import text_records as recording
from adadepth.evaluation.text_records import sample_masked_positions, text_records
from adadepth.halting.exit_rules import parse_rule
from adadepth.metrics.exit_study import study
from adadepth.metrics.step_records import POSITIONS
from tests.unit.models.early_exit.early_exit_support import LAYERS, MASK, PADDED, PIECES, build_early_exit, get_stock

LABELS = torch.full_like(PADDED, -100)
MASKED = [(0, 1), (0, 4), (1, 0), (1, 2), (1, 7), (2, 3), (2, 8)]
for _row, _column in MASKED:
    LABELS[_row, _column] = PADDED[_row, _column]
EXAMPLES = [{"labels": row.numpy()} for row in LABELS]
THRESHOLD = 0.03


def make_batches() -> Iterator[dict[str, Tensor]]:
    for rows in ([0], [1, 2]):
        batch = {"input_ids": PADDED, "attention_mask": MASK, "labels": LABELS, "index": torch.arange(len(PADDED))}
        yield {name: values[rows] for name, values in batch.items()}


def select_inputs(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: values for name, values in batch.items() if name != "index"}


@pytest.mark.slow
@torch.no_grad()
def test_rules_have_the_figures_of_a_plain_loop_over_masked_words() -> None:
    model = build_early_exit(EarlyExitForMaskedLM, "bert")
    cut = [get_stock(model, layers)(PADDED, attention_mask=MASK).logits for layers in range(1, LAYERS + 1)]
    exits, losses, last_losses = [], [], []
    for row, column in MASKED:
        predictions = [logits[row, column].double().softmax(dim=0) for logits in cut]
        exit = LAYERS
        for step, probabilities in enumerate(predictions[:-1], start=1):
            best, second = probabilities.sort(descending=True).values[:2]
            if best - second > THRESHOLD:
                exit = step
                break
        exits.append(exit)
        losses.append(-predictions[exit - 1][LABELS[row, column]].log().item())
        last_losses.append(-predictions[-1][LABELS[row, column]].log().item())
    assert len(set(exits)) > 1

    positions, total = sample_masked_positions(EXAMPLES, LAYERS * PIECES)
    passes = ((batch, model(**select_inputs(batch), run_all_steps=True)) for batch in make_batches())
    records = text_records(passes, positions, predicts_next=False)
    assert (total, records.index.tolist()) == (len(MASKED), [row * POSITIONS + column for row, column in MASKED])
    assert records.lengths.tolist() == [int(MASK[row].sum()) for row, _ in MASKED]
    rule = f"margin:{THRESHOLD}"
    rules = [parse_rule(rule), parse_rule(f"fixed:{LAYERS}")]
    content = study(records, rules, macs=lambda *_: 1.0, problem="language_model", metrics=("loss",))
    rows = {entry["rule"]: entry for entry in content["rows"]}
    assert rows[rule]["mean_updates"] == pytest.approx(sum(exits) / len(exits))
    assert rows[rule]["quality"]["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert rows[f"fixed:{LAYERS}"]["quality"]["loss"] == pytest.approx(sum(last_losses) / len(exits), rel=1e-5)

    # executed, not replayed
    runs = [(batch, model(**select_inputs(batch), exit_rule=rule)) for batch in make_batches()]
    assert torch.cat([run.exit_steps[batch["labels"] >= 0] for batch, run in runs]).tolist() == exits
    assert torch.cat([run.token_losses for _, run in runs]).tolist() == pytest.approx(losses, rel=1e-5)


def test_a_sample_is_drawn_if_logits_exceed_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    every, _ = sample_masked_positions(EXAMPLES, LAYERS * PIECES)
    monkeypatch.setattr(recording, "NUMBERS", 3 * LAYERS * PIECES + 1)
    sample, total = sample_masked_positions(EXAMPLES, LAYERS * PIECES)
    assert (len(sample), total) == (3, len(MASKED))
    assert set(sample.tolist()) < set(every.tolist())
