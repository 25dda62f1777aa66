"""Hard and smooth depths of a distribution over layers, compared with closed forms."""

from __future__ import annotations

import pytest
import torch

from adadepth.budget.controller import EXPONENT
from adadepth.errors import ConfigError
from adadepth.halting.layer_mixing import compute_tail_masses, expected_state
from adadepth.models import AdaLayersForSequenceClassification
from adadepth.training.depth_budget import MEASURES
from tests.unit.models.adalayers_support import SCORES, build_mixture


def compute_outputs(model, rows=3):
    ids = torch.randint(5, 20, (rows, 6), generator=torch.Generator().manual_seed(rows))
    return model(ids, labels=torch.zeros(rows, dtype=torch.long))


def compute_mean(measure, model, outputs):
    reading = MEASURES[measure].read(model, outputs.trace)
    return (reading.total / reading.units).item()


def test_tail_masses_add_up_to_the_expected_state():
    weights = torch.tensor([0.4, 0.3, 0.2, 0.1])
    assert compute_tail_masses(weights, 0, 3).tolist() == pytest.approx([0.6, 0.3, 0.1])
    assert compute_tail_masses(weights, 1, 4).tolist() == pytest.approx([1.0, 0.6, 0.3, 0.1])
    for first in (0, 1):
        total = compute_tail_masses(weights, first, 3 + first).sum()
        assert total.item() == pytest.approx(expected_state(weights, first).item())


@pytest.mark.parametrize("embeddings", [True, False])
def test_depths_of_a_distribution(embeddings):
    model = build_mixture(include_embeddings=embeddings, distribution_cutoff=0.05)
    scores = SCORES if embeddings else SCORES[1:]
    soft = (10 * torch.tensor(scores, dtype=torch.float64)).softmax(dim=0)
    states = torch.arange(len(scores)) + (0 if embeddings else 1)
    weights = torch.where(soft > 0.05, soft, 0.0)
    weights /= weights.sum()
    outputs = compute_outputs(model)
    assert compute_mean("deepest_layer", model, outputs) == float(states[weights > 0].max()) == 2.0
    assert compute_mean("expected_layer", model, outputs) == pytest.approx((weights * states).sum().item(), rel=1e-6)
    tails = torch.stack([soft[states >= n].sum() for n in range(1, 5)])
    sharp, flat = model.soft_depth(outputs), model.expected_depth(outputs)
    assert sharp.count == flat.count == 3
    assert (sharp.total / 3).item() == pytest.approx((tails**EXPONENT).sum().item(), rel=1e-5)
    assert (flat.total / 3).item() == pytest.approx(tails.sum().item(), rel=1e-5)


def test_the_depth_penalty_has_a_gradient_for_a_cut_layer():
    """Check that a cut layer gets a gradient from the budget, though none from the task."""
    model = build_mixture(distribution_cutoff=0.05)
    outputs = compute_outputs(model)
    outputs.loss.backward()
    assert model.distribution.grad[3:].abs().max() < 1e-7
    model.zero_grad()
    model.soft_depth(compute_outputs(model)).total.backward()
    assert (model.distribution.grad[3:] > 0).all(), "paying less means less weight there"


@pytest.mark.parametrize("switches", [{}, {"distribution_cutoff": 0.05}, {"topk_distribution": 2}])
def test_layers_above_the_limit_have_no_weight(switches):
    model = build_mixture(**switches)
    model.limit_depth(1)
    weights = model.layer_distribution()
    assert weights[2:].tolist() == [0.0, 0.0, 0.0]
    expected = (10 * torch.tensor(SCORES[:2])).softmax(dim=0)
    torch.testing.assert_close(weights[:2].detach(), expected)
    assert model.states_to_read() == (0, 1)
    assert model.eval().states_to_read() == (0, 1)
    assert compute_outputs(model).trace.execution.steps == 1


def test_a_limit_is_a_part_of_the_model(tmp_path):
    model = build_mixture().eval()
    model.limit_depth(2)
    model.save_pretrained(tmp_path)
    loaded = AdaLayersForSequenceClassification.from_pretrained(tmp_path)
    assert torch.equal(compute_outputs(loaded).logits, compute_outputs(model).logits)
    assert loaded.layer_distribution()[3:].tolist() == [0.0, 0.0]
    model.truncate()
    assert model.config.layers == (0, 1, 2)


def test_a_limit_below_the_shallowest_layer_is_refused():
    model = build_mixture(include_embeddings=False)
    with pytest.raises(ConfigError, match="budget=0: the shallowest state of this model comes after 1 blocks"):
        model.limit_depth(0)
    assert model.config.deepest_state is None


def test_fitting_never_exceeds_the_limit_of_training():
    model = build_mixture().eval()
    model.limit_depth(2)
    depths = [
        model.fit_depth(target, lambda: float(compute_outputs(model).trace.updates[0])).depth for target in (1, 4)
    ]
    assert depths == [1.0, 2.0]
