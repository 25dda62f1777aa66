"""Hard and smooth depths of a distribution over layers, against closed forms."""

from __future__ import annotations

import pytest
import torch

from adadepth.budget.controller import EXPONENT
from adadepth.errors import ConfigError
from adadepth.halting.layer_mixing import compute_tail_masses, expected_state
from adadepth.models import AdaLayersForSequenceClassification
from adadepth.training.depth_budget import MEASURES
from tests.unit.models.adalayers_support import SCORES, build_mixture


def outputs_of(made, rows=3):
    ids = torch.randint(5, 20, (rows, 6), generator=torch.Generator().manual_seed(rows))
    return made(ids, labels=torch.zeros(rows, dtype=torch.long))


def mean(measure, made, outputs):
    reading = MEASURES[measure].read(made, outputs.trace)
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
    made = build_mixture(include_embeddings=embeddings, distribution_cutoff=0.05)
    scores = SCORES if embeddings else SCORES[1:]
    soft = (10 * torch.tensor(scores, dtype=torch.float64)).softmax(dim=0)
    states = torch.arange(len(scores)) + (0 if embeddings else 1)
    kept = torch.where(soft > 0.05, soft, 0.0)
    kept /= kept.sum()
    outputs = outputs_of(made)
    assert mean("deepest_layer", made, outputs) == float(states[kept > 0].max()) == 2.0
    assert mean("expected_layer", made, outputs) == pytest.approx((kept * states).sum().item(), rel=1e-6)
    tails = torch.stack([soft[states >= n].sum() for n in range(1, 5)])
    sharp, flat = made.soft_depth(outputs), made.expected_depth(outputs)
    assert sharp.count == flat.count == 3
    assert (sharp.total / 3).item() == pytest.approx((tails**EXPONENT).sum().item(), rel=1e-5)
    assert (flat.total / 3).item() == pytest.approx(tails.sum().item(), rel=1e-5)


def test_a_price_reaches_a_layer_that_was_cut():
    """The task does not: a layer that was cut can only come back through the budget."""
    made = build_mixture(distribution_cutoff=0.05)
    outputs = outputs_of(made)
    outputs.loss.backward()
    assert made.distribution.grad[3:].abs().max() < 1e-7
    made.zero_grad()
    made.soft_depth(outputs_of(made)).total.backward()
    assert (made.distribution.grad[3:] > 0).all(), "paying less means less weight there"


@pytest.mark.parametrize("switches", [{}, {"distribution_cutoff": 0.05}, {"topk_distribution": 2}])
def test_nothing_lies_beyond_a_limit(switches):
    made = build_mixture(**switches)
    made.limit_depth(1)
    weights = made.layer_distribution()
    assert weights[2:].tolist() == [0.0, 0.0, 0.0]
    expected = (10 * torch.tensor(SCORES[:2])).softmax(dim=0)
    torch.testing.assert_close(weights[:2].detach(), expected)
    assert made.states_to_read() == (0, 1)
    assert made.eval().states_to_read() == (0, 1)
    assert outputs_of(made).trace.execution.steps == 1


def test_a_limit_is_a_part_of_the_model(tmp_path):
    made = build_mixture().eval()
    made.limit_depth(2)
    made.save_pretrained(tmp_path)
    loaded = AdaLayersForSequenceClassification.from_pretrained(tmp_path)
    assert torch.equal(outputs_of(loaded).logits, outputs_of(made).logits)
    assert loaded.layer_distribution()[3:].tolist() == [0.0, 0.0]
    made.truncate()
    assert made.config.layers == (0, 1, 2)


def test_a_model_without_shallow_layers_has_no_such_limit():
    made = build_mixture(include_embeddings=False)
    with pytest.raises(ConfigError, match="budget=0: the shallowest state of this model comes after 1 blocks"):
        made.limit_depth(0)
    assert made.config.deepest_state is None


def test_fitting_never_gives_back_what_training_took():
    made = build_mixture().eval()
    made.limit_depth(2)
    depths = [made.fit_depth(target, lambda: float(outputs_of(made).trace.updates[0])).depth for target in (1, 4)]
    assert depths == [1.0, 2.0]
