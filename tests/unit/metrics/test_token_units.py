"""Labelled tokens as examples of step records, studies and costs."""

from types import SimpleNamespace

import pytest
import torch

from adadepth import AlbertActForSequenceClassification, AlbertActForTokenClassification
from adadepth.evaluation.exit_cost import ExitCost
from adadepth.halting.exit_rules import parse_rule
from adadepth.metrics.exit_pareto import ORACLE
from adadepth.metrics.exit_study import DRAWS, add_online, find_oracle_exits, online_figures, study
from adadepth.metrics.scoring import compute_quality
from adadepth.metrics.step_records import POSITIONS, StepRecorder, get_sequence_numbers, merge
from adadepth.metrics.step_summary import summarise_steps
from tests.models_support import MOVING, make_padded_batch, make_small_config, spread_depths

LENGTHS, STEPS = (10, 7, 3, 12), 6
MEASURED = {"problem": "classification", "metrics": ("accuracy",)}


@pytest.fixture
def tagger():
    torch.manual_seed(0)
    model = AlbertActForTokenClassification(
        make_small_config(**(MOVING | {"state_rule": "graves", "num_labels": 3}))
    ).eval()
    spread_depths(model, scale=8.0, bias=-2.0)
    return model


def make_tagged_batch():
    batch = make_padded_batch(LENGTHS)
    labelled = batch["attention_mask"].bool() & (torch.arange(12) % 2 == 1)
    batch["labels"] = torch.where(labelled, batch["input_ids"] % 3, -100)
    difficulty = torch.where(labelled & (torch.arange(12) > 2), torch.arange(12), -1)
    return {**batch, "difficulty": difficulty, "index": torch.tensor([4, 0, 9, 2])}


def record_steps(model, batch, **options):
    recorder = StepRecorder()
    inputs = {name: value for name, value in batch.items() if name not in ("index", "difficulty")}
    with torch.no_grad():
        recorder.add(batch, model(**inputs, **options))
    return merge([recorder.parts()])


def test_every_labelled_token_is_an_example(tagger):
    batch = make_tagged_batch()
    records = record_steps(tagger, batch, run_all_steps=True)
    positions = sorted(
        (int(batch["index"][row]), position, row) for row, position in (batch["labels"] >= 0).nonzero().tolist()
    )
    assert records.index.tolist() == [index * POSITIONS + position for index, position, _ in positions]
    assert get_sequence_numbers(records.index).tolist() == [index for index, _, _ in positions]
    assert records.lengths.tolist() == [LENGTHS[row] for _, _, row in positions]
    assert records.labels.tolist() == [int(batch["labels"][row, position]) for _, position, row in positions]
    assert records.difficulty.tolist() == [int(batch["difficulty"][row, position]) for _, position, row in positions]
    assert records.ran_every_step
    assert records.depth.equal(records.exit_steps.float())
    at_exit = records.step_logits[torch.arange(len(records)), records.exit_steps - 1]
    torch.testing.assert_close(records.logits, at_exit)


def test_an_example_of_two_processes_counts_once(tagger):
    recorder, batch = StepRecorder(), make_tagged_batch()
    inputs = {name: value for name, value in batch.items() if name not in ("index", "difficulty")}
    with torch.no_grad():
        outputs = tagger(**inputs, run_all_steps=True)
    recorder.add(batch, outputs)
    assert len(merge([recorder.parts(), recorder.parts()])) == len(merge([recorder.parts()]))


def test_study_with_control_and_oracle(tagger):
    """Check as for sequences that permuted exits have the same steps and nothing beats the oracle."""
    records = record_steps(tagger, make_tagged_batch(), run_all_steps=True)
    rules = [parse_rule(text) for text in ("confidence:0.5", "quantile:0.5", "fixed:2", "fixed:6")]
    content = study(records, rules, macs=ExitCost(tagger, by_token=True).macs, **MEASURED)
    rows = {row["rule"]: row for row in content["rows"]}
    assert "permuted" in rows["confidence:0.5"] or "permuted" in rows["quantile:0.5"]
    assert "permuted" not in rows["fixed:2"]
    assert rows["fixed:2"]["mean_updates"] == 2
    best = compute_quality(
        records.step_logits[torch.arange(len(records)), find_oracle_exits(records.step_logits, records.labels) - 1],
        records.labels,
        **MEASURED,
    )
    assert rows[ORACLE]["quality"] == best
    assert all(row["quality"]["score"] <= best["score"] for row in rows.values())
    assert content["draws"] == DRAWS
    ran = record_steps(tagger, make_tagged_batch(), exit_rule="fixed:2")
    online = add_online(content, {"fixed:2": online_figures(ran, **MEASURED)})
    (row,) = [row for row in online["rows"] if row["rule"] == "fixed:2"]
    assert row["online"]["quality"] == row["quality"], "nobody exits before the others, so both are one"
    assert row["online"]["mean_updates"] == 2


def test_summary_of_tokens(tagger):
    records = record_steps(tagger, make_tagged_batch(), run_all_steps=True)
    summary = summarise_steps(records, labels=("a", "b", "c"), truncation="leftover", **MEASURED)
    assert summary["n"] == len(records)
    assert sum(summary["exit"]["histogram"]) == len(records)
    assert 1 <= summary["halting"]["expected_steps"]["mean"] <= STEPS
    with_difficulty = int((records.difficulty >= 0).sum())
    assert sum(row["n"] for name, row in summary["classes"].items() if name.startswith("difficulty")) == with_difficulty
    assert summary["spearman"]["updates_difficulty"]["n"] == with_difficulty
    assert {"confidence", "halting"} <= summary["calibration"].keys()


def test_compute_of_tokens_equals_a_loop_over_them(tagger):
    records = record_steps(tagger, make_tagged_batch(), run_all_steps=True)
    hidden, inner, entry = 32, 64, 16 * 32
    steps = torch.arange(len(records)) % STEPS + 1
    sequences, total = get_sequence_numbers(records.index), 0.0
    for unit, step in enumerate(steps.tolist()):
        keys = int(records.lengths[unit])
        deepest = int(steps[sequences == sequences[unit]].max())
        per_update = 2 * hidden**2 + 2 * keys * hidden + 2 * hidden * inner + hidden + hidden * 3
        total += step * per_update + min(step + 1, deepest) * 2 * hidden**2 + entry
    assert ExitCost(tagger, by_token=True).macs(records, steps, {"logits"}) == total


def test_compute_of_sequences_whose_tokens_halt_together():
    torch.manual_seed(0)
    model = AlbertActForSequenceClassification(make_small_config(num_labels=3)).eval()
    lengths, steps = torch.tensor(LENGTHS), torch.tensor([1, 6, 3, 2])
    batch = make_padded_batch(LENGTHS)
    expected = 0.0
    for row, step in enumerate(steps.tolist()):
        alone = {name: value[row : row + 1, : LENGTHS[row]] for name, value in batch.items()}
        with torch.no_grad():
            trace = model(**alone, exit_rule=f"fixed:{step}").trace
        expected += float(model.price(trace).adaptive) + step * (32 * 32 + 32 * 3)
    records, cost = SimpleNamespace(lengths=lengths, max_updates=STEPS), ExitCost(model, by_token=False)
    assert cost.macs(records, steps, {"logits", "halting"}) == pytest.approx(expected)
    one_each = expected - int((steps - 1).sum()) * (32 * 32 + 32 * 3)
    assert cost.macs(records, steps, {"halting"}) == pytest.approx(one_each), "one prediction a row"
