"""Exits of stepwise models: finished rows leave the batch, and outputs equal those of each row alone."""

import pytest
import torch

from tests.marks_support import keep_one_quick
from tests.models_support import make_padded_batch, make_small_multi_exit, make_small_ponder

LENGTHS = (10, 7, 2, 12, 5, 9, 3, 8)
COMMON = ["fixed:3", "entropy:0.5", "normalised_entropy:0.6", "confidence:0.75", "margin:0.4", "patience:2"]
HALTING = ["sample", "quantile:0.5", "quantile:0", "quantile:1", "expectation"]
CASES = [(make_small_ponder, rule) for rule in (*HALTING, *COMMON)] + [(make_small_multi_exit, rule) for rule in COMMON]


def evaluate(model, batch, rule, **kwargs):
    with torch.no_grad():
        return model(**batch, exit_rule=rule, generator=torch.Generator().manual_seed(3), **kwargs)


@pytest.mark.parametrize(("make", "rule"), keep_one_quick(4, CASES))
def test_leaving_the_batch_changes_no_prediction(make, rule):
    model, batch = make(num_labels=3), make_padded_batch(LENGTHS)
    exited, stayed = evaluate(model, batch, rule), evaluate(model, batch, rule, run_all_steps=True)
    assert exited.exit_steps.equal(stayed.exit_steps)
    torch.testing.assert_close(exited.logits, stayed.logits, atol=1e-5, rtol=0)
    steps = torch.arange(1, 7)
    ran = steps <= exited.exit_steps.unsqueeze(1)
    assert exited.step_logits.isnan().all(dim=-1).equal(~ran)
    torch.testing.assert_close(exited.step_logits[ran], stayed.step_logits[ran], atol=1e-5, rtol=0)
    if model.exit_signals == {"logits", "halting"}:
        assert exited.halting_logits.isnan().equal(~ran)
        assert exited.halting_probabilities.isnan().equal(~ran)
        torch.testing.assert_close(exited.halting_logits[ran], stayed.halting_logits[ran], atol=1e-4, rtol=0)
    assert not stayed.step_logits.isnan().any()


@pytest.mark.parametrize(
    "changes", [{"halting_head": "linear_diff"}, {"halting_head": "linear_cat", "readout": "pooler"}]
)
def test_heads_on_consecutive_steps_keep_the_predecessor_of_each_row(changes):
    model, batch = make_small_ponder(**changes), make_padded_batch(LENGTHS)
    exited, stayed = (evaluate(model, batch, "sample", run_all_steps=run_all) for run_all in (False, True))
    assert exited.exit_steps.equal(stayed.exit_steps)
    ran = ~exited.halting_logits.isnan()
    assert 0 < exited.trace.execution.rows[-1] < 8
    torch.testing.assert_close(exited.halting_logits[ran], stayed.halting_logits[ran], atol=1e-4, rtol=0)


def test_the_cases_exercise_many_exits():
    """Check that rows exit at many steps, so that a row written to a wrong position is noticed."""
    batch = make_padded_batch(LENGTHS)
    assert len(evaluate(make_small_ponder(), batch, "quantile:0.5").exit_steps.unique()) >= 3
    assert len(evaluate(make_small_multi_exit(num_labels=3), batch, "confidence:0.75").exit_steps.unique()) >= 3
    logits = evaluate(make_small_ponder(), batch, "quantile:0.5").logits
    assert torch.cdist(logits, logits).add(torch.eye(8)).min() > 1e-3, "rows must have different predictions"


@pytest.mark.parametrize(("make", "rule"), keep_one_quick(4, CASES))
def test_a_batch_equals_its_rows_alone(make, rule):
    model, batch = make(), make_padded_batch(LENGTHS)
    together = evaluate(model, batch, rule)
    generator = torch.Generator().manual_seed(3)
    for row, length in enumerate(LENGTHS):
        alone = {name: value[row : row + 1, :length] for name, value in batch.items()}
        with torch.no_grad():
            single = model(**alone, exit_rule=rule, generator=generator)
        assert single.exit_steps.item() == together.exit_steps[row].item()
        torch.testing.assert_close(single.logits[0], together.logits[row], atol=1e-5, rtol=1e-5)


def test_every_step_computes_running_rows_only():
    model = make_small_ponder()
    batch = {name: torch.nn.functional.pad(value, (0, 4)) for name, value in make_padded_batch(LENGTHS).items()}
    outputs = evaluate(model, batch, "quantile:0.5")
    steps = torch.arange(1, outputs.trace.execution.steps + 1)
    running = outputs.exit_steps >= steps.unsqueeze(1)
    assert outputs.trace.execution.rows.equal(running.sum(dim=1))
    assert outputs.trace.execution.steps == outputs.exit_steps.max()
    longest = (running * torch.tensor(LENGTHS)).amax(dim=1)
    widths = torch.where(running.all(dim=1), 16, longest)
    assert outputs.trace.execution.width.equal(widths)
    assert widths.min() < 8 < widths.max()
    tokens = (running * torch.tensor(LENGTHS)).sum(dim=1)
    assert outputs.trace.execution.computed.queries.equal(tokens)
    assert outputs.trace.execution.computed.keys.equal(tokens)
    assert outputs.trace.execution.computed.pairs.equal(running.sum(dim=1) * longest**2)


def test_attention_that_cannot_be_packed_pads_its_rows():
    """Check FlexAttention, whose masks are of another kind: rows are narrowed to a multiple of eight."""
    model, batch = (
        make_small_ponder(),
        {name: torch.nn.functional.pad(value, (0, 4)) for name, value in make_padded_batch(LENGTHS).items()},
    )
    packed = evaluate(model, batch, "quantile:0.5")
    model.set_attn_implementation("flex_attention")
    with torch.compiler.set_stance("force_eager"):  # compilation takes longer than all other tests of this file
        padded = evaluate(model, batch, "quantile:0.5")
    assert padded.exit_steps.equal(packed.exit_steps)
    torch.testing.assert_close(padded.logits, packed.logits, atol=1e-5, rtol=0)
    steps = torch.arange(1, padded.trace.execution.steps + 1)
    running = padded.exit_steps >= steps.unsqueeze(1)
    longest = (running * torch.tensor(LENGTHS)).amax(dim=1)
    assert padded.trace.execution.width.equal(torch.where(running.all(dim=1), 16, (longest + 7) // 8 * 8))
    assert padded.trace.execution.computed.queries.equal(running.sum(dim=1) * padded.trace.execution.width)


def test_rows_of_one_length_or_without_a_mask_are_never_narrowed():
    model, batch = make_small_ponder(), make_padded_batch((12,) * 8)
    masked = evaluate(model, batch, "quantile:0.5")
    del batch["attention_mask"]
    unmasked = evaluate(model, batch, "quantile:0.5")
    assert masked.trace.execution.tokens.equal(unmasked.trace.execution.tokens)
    assert unmasked.trace.execution.tokens.tolist() == [12] * 8
    assert set(masked.trace.execution.width.tolist()) <= {12}
    torch.testing.assert_close(masked.logits, unmasked.logits)


def test_a_row_without_tokens_changes_no_other_row():
    model, batch = make_small_ponder(), make_padded_batch((12, 8, 5, 3))
    expected = evaluate(model, batch, "fixed:3")
    batch["attention_mask"][3] = 0
    outputs = evaluate(model, batch, "fixed:3")
    torch.testing.assert_close(outputs.logits[:3], expected.logits[:3], atol=1e-5, rtol=0)
    assert outputs.logits.isfinite().all()


def test_leaving_with_left_padding_changes_no_prediction():
    model, batch = make_small_ponder(), make_padded_batch((12, 8, 8, 8))
    left_padded = {
        name: torch.stack([row.roll(12 - n) for row, n in zip(value, (12, 8, 8, 8), strict=True)])
        for name, value in batch.items()
    }
    rule = "fixed:4"
    compacted, stayed = evaluate(model, left_padded, rule), evaluate(model, left_padded, rule, run_all_steps=True)
    torch.testing.assert_close(compacted.logits, stayed.logits, atol=1e-5, rtol=0)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_attention_implementations_agree(attention):
    model, batch = make_small_ponder(), make_padded_batch(LENGTHS)
    expected = evaluate(model, batch, "quantile:0.5")
    model.set_attn_implementation(attention)
    got = evaluate(model, batch, "quantile:0.5")
    assert got.exit_steps.equal(expected.exit_steps)
    torch.testing.assert_close(got.logits, expected.logits, atol=1e-5, rtol=0)


def test_the_trace_contains_the_depths():
    model, batch = make_small_ponder(), make_padded_batch(LENGTHS)
    for outputs in (evaluate(model, batch, "quantile:0.5"), evaluate(model, batch, "quantile:0.5", run_all_steps=True)):
        trace = outputs.trace
        assert trace.unit == "sequence"
        assert trace.updates.dtype == torch.float32
        assert trace.updates.equal(outputs.exit_steps.float())
        assert trace.valid.all()
        assert trace.max_updates == 6
        assert trace.execution.tokens.tolist() == list(LENGTHS)
        for row, depth in enumerate(outputs.exit_steps.tolist()):
            probabilities = trace.halting.probabilities[row]
            torch.testing.assert_close(probabilities[:depth], outputs.halting_probabilities[row, :depth])
            assert not probabilities[depth:].any()


def test_all_steps_run_when_the_loss_needs_them():
    model, batch = make_small_ponder(), make_padded_batch()
    labels = torch.tensor([0, 1, 0])
    with torch.no_grad():
        assert model(**batch).posterior is None
        labelled = model(**batch, labels=labels, exit_rule="quantile:0.5")
        trained = model.train()(**batch, exit_rule="quantile:0.5")
    for outputs in (labelled, trained):
        assert not outputs.step_logits.isnan().any()
        assert outputs.posterior.pmf.shape == (3, 6)
        assert outputs.trace.execution.steps == 6
        assert outputs.trace.execution.rows.tolist() == [3] * 6
    with pytest.raises(ValueError, match="every step"):
        model(**batch, labels=labels, run_all_steps=False)


def test_sampling_follows_the_generator():
    model, batch = make_small_ponder(), make_padded_batch(LENGTHS)
    draws = [evaluate(model, batch, "sample").exit_steps for _ in range(2)]
    assert draws[0].equal(draws[1])
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        other_draws = torch.stack(
            [model(**batch, exit_rule="sample", generator=generator).exit_steps for _ in range(8)]
        )
    assert (other_draws != draws[0]).any()
