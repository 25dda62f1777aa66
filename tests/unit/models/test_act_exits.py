"""Exits of ACT-ALBERT by a rule: against models of that fixed depth, replays, and ragged execution."""

from itertools import product

import pytest
import torch

from adadepth import AlbertActForSequenceClassification, AlbertActForTokenClassification
from adadepth.errors import ConfigError
from adadepth.halting.act import act_hazard
from adadepth.halting.exit_rules import Quantile, apply_rule
from adadepth.models.albert_act.readouts import build_step_mask
from tests.marks_support import keep_one_quick
from tests.models_support import MOVING, make_padded_batch, make_small_config, spread_depths

LENGTHS, STEPS = (10, 7, 1, 12), 6
HEADS = (AlbertActForTokenClassification, AlbertActForSequenceClassification)
RULES = ["fixed:3", "entropy:0.3", "normalised_entropy:0.3", "confidence:0.9", "margin:0.8", "patience:2"]
RULES += ["quantile:0.99", "quantile:0.4", "sample", "expectation"]


def make(model_class, rule="graves", **changes):
    torch.manual_seed(0)
    model = model_class(make_small_config(**(MOVING | {"state_rule": rule, "num_labels": 3} | changes))).eval()
    spread_depths(model, scale=8.0, bias=-2.0)
    with torch.no_grad():
        model.classifier.weight.mul_(4.0)
    return model


def predict(model, batch, **options):
    with torch.no_grad():
        return model(**batch, generator=torch.Generator().manual_seed(3), **options)


@pytest.mark.parametrize(
    ("model_class", "rule", "recall", "depth"),
    keep_one_quick(5, product(HEADS, ["single", "graves"], [False, True], [1, 3, 6])),
)
def test_fixed_equals_a_configured_depth(model_class, rule, recall, depth):
    """Compare with configurations without halting, for any halting unit."""
    options_of_depth = {"fixed_depth": depth, "recall": recall, "execution": "dense"}
    model, batch = make(model_class, rule, **options_of_depth), make_padded_batch(LENGTHS)
    with torch.no_grad():
        expected = model(**batch)
    real = expected.updates > 0 if model_class is AlbertActForTokenClassification else slice(None)
    for execution in ("dense", "ragged"):
        model.config.execution = execution
        for options in ({"exit_rule": f"fixed:{depth}"}, {"run_all_steps": True}):
            outputs = predict(model, batch, **options)
            assert outputs.exit_steps.eq(depth).all()
            torch.testing.assert_close(outputs.logits[real], expected.logits[real], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("state_rule", "recall"), keep_one_quick(2, [("single", False), ("graves", False), ("graves", True)])
)
@pytest.mark.parametrize("model_class", keep_one_quick(2, HEADS))
@pytest.mark.parametrize("rule", keep_one_quick(3, RULES))
def test_packed_equals_dense(model_class, state_rule, recall, rule):
    model, batch = make(model_class, state_rule, recall=recall), make_padded_batch(LENGTHS)
    by_execution = {}
    for execution in ("dense", "ragged"):
        model.config.execution = execution
        for run_all in (False, True):
            by_execution[execution, run_all] = predict(model, batch, exit_rule=rule, run_all_steps=run_all)
    for run_all in (False, True):
        dense, ragged = by_execution["dense", run_all], by_execution["ragged", run_all]
        assert ragged.exit_steps.equal(dense.exit_steps)
        assert ragged.updates.equal(dense.updates)
        for name in ("logits", "step_logits", "halting_logits"):
            torch.testing.assert_close(ragged[name], dense[name], atol=2e-4, rtol=0, equal_nan=True)
    model.config.execution = "ragged"
    work = model.price(by_execution["ragged", False].trace)
    assert work.executed <= work.dense


@pytest.mark.parametrize("rule", keep_one_quick(3, RULES))
def test_exited_sequences_change_no_other_prediction(rule):
    """Check what makes a replay exact where units are whole sequences."""
    model, batch = make(AlbertActForSequenceClassification), make_padded_batch(LENGTHS)
    ran, replayed = (predict(model, batch, exit_rule=rule, run_all_steps=run_all) for run_all in (False, True))
    assert ran.exit_steps.equal(replayed.exit_steps)
    torch.testing.assert_close(ran.logits, replayed.logits, atol=1e-5, rtol=0)


@pytest.mark.parametrize("rule", keep_one_quick(2, RULES))
def test_token_exits_equal_a_loop_over_tokens(rule):
    """Apply the rule step by step to states in which exited tokens are frozen."""
    if rule in ("sample", "expectation"):
        pytest.skip("drawn, or never exits")
    model, batch = make(AlbertActForTokenClassification), make_padded_batch(LENGTHS)
    outputs = predict(model, batch, exit_rule=rule)
    valid = batch["attention_mask"].bool()
    exits = torch.zeros(valid.shape, dtype=torch.long)
    exits[valid] = outputs.exit_steps
    with torch.no_grad():
        ids, segments, encoder = batch["input_ids"], batch["token_type_ids"], model.albert.encoder
        mask = model.albert.start(ids, batch["attention_mask"], segments).mask
        state, step_logits, halting = (
            encoder.embedding_hidden_mapping_in(model.albert.embeddings(ids, segments)),
            [],
            [],
        )
        accumulated = torch.zeros(valid.shape)
        for step in range(1, STEPS + 1):
            output = encoder.albert_layer(state, mask)[0]
            probability, _ = encoder.albert_layer.act(output, (), step)
            state = torch.where((exits >= step).unsqueeze(-1), output, state)
            step_logits.append(model.classifier(state))
            accumulated = accumulated + probability
            halting.append(accumulated)
    step_logits, sums = torch.stack(step_logits, dim=2)[valid], torch.stack(halting, dim=2)[valid]
    steps = outputs.exit_steps
    torch.testing.assert_close(
        outputs.logits[valid], step_logits[torch.arange(len(step_logits)), steps - 1], atol=1e-5, rtol=0
    )
    if rule.startswith("quantile"):
        crossed = sums > float(rule.partition(":")[2])
        expected = torch.where(crossed.any(dim=1), crossed.int().argmax(dim=1) + 1, STEPS)
        assert steps.equal(expected)
    else:
        from adadepth.halting.exit_rules import parse_rule

        assert steps.equal(apply_rule(parse_rule(rule), step_logits, None))
    assert len(steps.unique()) >= (1 if rule == "fixed:3" else 2)


def test_the_halting_threshold_equals_a_quantile_rule():
    """Compare exits of the halting unit with those of the rule online: states are equal until a token halts."""
    model, batch = make(AlbertActForTokenClassification, "graves"), make_padded_batch(LENGTHS)
    with torch.no_grad():
        halted = model(**batch)
    ran = predict(model, batch, exit_rule=Quantile(0.99))
    assert ran.updates.equal(halted.updates)
    assert len(halted.updates.unique()) >= 4
    default = predict(model, batch, run_all_steps=True)
    assert default.exit_steps.equal(apply_rule(Quantile(0.99), default.step_logits, default.halting_logits))


def test_the_halting_sum_is_a_distribution():
    probabilities = torch.tensor([[0.2, 0.3, 0.7, 0.4], [1.0, 0.5, 0.5, 0.5], [0.0, 0.1, 0.1, 0.1]])
    accumulated, remaining, cdf = torch.zeros(3), torch.ones(3), []
    for probability in probabilities.unbind(dim=1):
        hazard, accumulated = act_hazard(accumulated, probability)
        remaining = remaining * (1 - hazard)
        cdf.append(1 - remaining)
    torch.testing.assert_close(torch.stack(cdf, dim=1), probabilities.cumsum(dim=1).clamp(max=1))


def test_the_hazard_of_a_halted_unit_has_a_gradient_of_0():
    """Check d lambda / dp = 1 / (1 - h) and d lambda / dh = p / (1 - h)^2 before the end, and 0 after it."""
    accumulated = torch.tensor([0.0, 0.5, 0.8, 1.0], requires_grad=True)
    probability = torch.tensor([0.3, 0.2, 0.4, 0.1], requires_grad=True)
    act_hazard(accumulated, probability)[0].sum().backward()
    torch.testing.assert_close(probability.grad, torch.tensor([1.0, 2.0, 0.0, 0.0]))
    torch.testing.assert_close(accumulated.grad, torch.tensor([0.3, 0.8, 0.0, 0.0]))


def test_labels_select_the_recorded_units():
    model, batch = make(AlbertActForTokenClassification), make_padded_batch(LENGTHS)
    valid = batch["attention_mask"].bool()
    labels = torch.where(valid & (torch.arange(12) % 2 == 1), batch["input_ids"] % 3, -100)
    some = predict(model, batch, labels=labels, run_all_steps=True)
    all_units = predict(model, batch, run_all_steps=True)
    assert some.unit_slots.equal((labels >= 0).flatten().nonzero().squeeze(1))
    assert some.logits.isnan().any(dim=-1).equal(labels < 0)
    torch.testing.assert_close(some.logits[labels >= 0], all_units.logits[labels >= 0])
    assert some.updates.equal(STEPS * valid.float())
    assert some.step_logits.shape == (int((labels >= 0).sum()), STEPS, 3)
    assert build_step_mask(some.trace, some.unit_slots, STEPS).all()


def test_without_a_rule_nothing_changes():
    for model_class in HEADS:
        model, batch = make(model_class), make_padded_batch(LENGTHS)
        with torch.no_grad():
            plain = model(**batch)
        seeded = predict(model, batch)
        assert torch.equal(plain.logits, seeded.logits)
        assert plain.keys() == seeded.keys()
        assert not {"step_logits", "unit_slots", "exit_steps"} & plain.keys()


def test_unsupported_rules_are_refused():
    batch = make_padded_batch(LENGTHS)
    with pytest.raises(ConfigError, match="state_rule='basic': exit rules need single or graves"):
        predict(make(HEADS[0], "basic"), batch, exit_rule="fixed:2")
    with pytest.raises(ConfigError, match="the model has 6 steps"):
        predict(make(HEADS[0]), batch, exit_rule="fixed:7")
    with pytest.raises(ConfigError, match="this is a regression"):
        predict(make(HEADS[1], num_labels=1), batch, exit_rule="entropy:0.5")
