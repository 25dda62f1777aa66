"""The recurrent PonderNet against torch's cells and the objective written out."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from adadepth.errors import ConfigError
from adadepth.halting.exit_rules import parse_rule
from adadepth.models.ponder.configuration import PonderRnnConfig
from adadepth.models.ponder.rnn import PonderRnnForClassification
from tests.parity.ponder_variants import compute_plain_pmf
from tests.unit.models.ponder_rnn_support import build_recurrent, draw_examples


@pytest.mark.parametrize("cell", ["tanh", "gru"])
def test_states_equal_the_cells_of_torch(cell):
    model = build_recurrent(cell=cell)
    reference_cell = nn.RNNCell(5, 12) if cell == "tanh" else nn.GRUCell(5, 12)
    with torch.no_grad():
        reference_cell.weight_ih.copy_(model.input.weight)
        reference_cell.bias_ih.copy_(model.input.bias)
        reference_cell.weight_hh.copy_(model.recurrent.weight)
        reference_cell.bias_hh.copy_(torch.zeros(12) if cell == "tanh" else model.recurrent.bias)
    inputs, state = draw_examples(), torch.zeros(17, 12)
    output = model(inputs=inputs, run_all_steps=True)
    for step in range(6):
        state = reference_cell(inputs, state)
        torch.testing.assert_close(output.step_logits[:, step], model.classifier(state))
        torch.testing.assert_close(output.halting_logits[:, step], model.halting(state).squeeze(-1))


@pytest.mark.parametrize("prior_name", ["geometric", "uniform"])
@pytest.mark.parametrize(
    ("truncation", "direction"), [("renormalise", "posterior_prior"), ("leftover", "prior_posterior")]
)
def test_the_loss_equals_that_of_the_paper(truncation, direction, prior_name):
    model = build_recurrent(
        truncation=truncation, kl_direction=direction, kl_penalty_factor=0.3, target_halt_probability=0.25,
        prior=prior_name,
    )  # fmt: skip
    labels = torch.randint(0, 2, (17,))
    output = model(inputs=draw_examples(), labels=labels)
    task = divergence = 0.0
    prior = compute_plain_pmf([0.25] * 6, truncation) if prior_name == "geometric" else [1 / 6] * 6
    for row in range(17):
        posterior = compute_plain_pmf(output.halting_probabilities[row].tolist(), truncation)
        for step in range(6):
            task -= posterior[step] * output.step_logits[row, step].log_softmax(-1)[labels[row]].item() / 17
            first, second = posterior[step], prior[step]
            if direction == "prior_posterior":
                first, second = second, first
            divergence += first * math.log(first / second) / 17
    assert output.loss_parts["task"].item() == pytest.approx(task, rel=1e-4)
    assert output.loss_parts["kl"].item() == pytest.approx(0.3 * divergence, rel=1e-4)
    assert output.loss.item() == pytest.approx(task + 0.3 * divergence, rel=1e-4)


def test_macs_count_executed_steps():
    model = build_recurrent()
    output = model(inputs=draw_examples())
    work = model.price(output.trace)
    per_example, per_step = 5 * 12, 12 * 12 + 12 * 3
    depth = output.exit_steps.sum().item()
    assert work.executed.item() == work.adaptive.item() == 17 * per_example + depth * per_step
    assert work.full.item() == 17 * (per_example + 6 * per_step)
    assert work.dense.item() == 17 * (per_example + output.exit_steps.max().item() * per_step)
    full_work = model.price(model(inputs=draw_examples(), run_all_steps=True).trace)
    assert (full_work.executed, full_work.dense, full_work.adaptive) == (work.full, work.dense, work.adaptive)


@pytest.mark.parametrize("cell", ["tanh", "gru"])
def test_initial_weights_survive_a_round_trip(cell, tmp_path):
    torch.manual_seed(0)
    model = PonderRnnForClassification(PonderRnnConfig(cell=cell, halt_bias_init=-1.5))
    weight = model.recurrent.weight
    torch.testing.assert_close(weight.T @ weight, torch.eye(128), atol=1e-5, rtol=0)
    for layer in (model.input, model.classifier):
        bound = layer.in_features**-0.5
        assert layer.weight.abs().max() <= bound
        assert layer.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.15)
    assert model.halting.bias.item() == -1.5
    model.save_pretrained(tmp_path)
    loaded = PonderRnnForClassification.from_pretrained(tmp_path)
    assert loaded.config.to_dict().items() >= {"cell": cell, "halt_bias_init": -1.5}.items()
    assert all(torch.equal(one, loaded.state_dict()[name]) for name, one in model.state_dict().items())


@pytest.mark.slow
def test_training_learns_the_parity_of_a_few_values():
    torch.manual_seed(1)
    model = PonderRnnForClassification(PonderRnnConfig(input_size=4, hidden_size=32, num_steps=5)).train()
    inputs = torch.cartesian_prod(*[torch.tensor([-1.0, 0.0, 1.0])] * 4)
    labels = inputs.ne(0).sum(1) % 2
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(400):
        optimizer.zero_grad()
        model(inputs=inputs, labels=labels).loss.backward()
        optimizer.step()
    predictions = model.eval()(inputs=inputs, exit_rule="quantile").logits.argmax(-1)
    assert (predictions == labels).float().mean() > 0.95


@pytest.mark.parametrize("shape", [(3, 4), (3,), (2, 3, 5)])
def test_inputs_of_another_size_are_refused(shape):
    with pytest.raises(ValueError, match=r"must be \(batch, 5\)"):
        build_recurrent()(inputs=torch.zeros(shape))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cell": "lstm"}, "cell='lstm' must be one of tanh, gru"),
        ({"num_steps": 0}, "num_steps=0"),
        ({"target_halt_probability": 1.0}, "target_halt_probability=1.0"),
        ({"truncation": "leftovers"}, "did you mean 'leftover'"),
        ({"exit_rule": "quantil"}, "did you mean 'quantile'"),
    ],
)
def test_a_wrong_field_is_refused_in_one_line(changes, message):
    with pytest.raises(ConfigError, match=message) as caught:
        PonderRnnConfig(**changes)
    assert "\n" not in str(caught.value)


def test_a_rule_beyond_the_last_step_is_refused():
    with pytest.raises(ConfigError, match="the model has 6 steps"):
        build_recurrent()(inputs=draw_examples(), exit_rule=parse_rule("fixed:7"))
