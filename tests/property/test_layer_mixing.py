"""Properties of layer weights, for any scores."""

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from adadepth.halting.layer_mixing import expected_state, layer_weights, weights_entropy


@st.composite
def draw_settings(draw, *, distinct=False):
    """Draw scores, which differ by at least 0.02 if `distinct`, and options that a configuration accepts."""
    layers = draw(st.integers(1, 26))
    score = st.integers(-200, 200).map(lambda number: number / 50) if distinct else st.floats(-4, 4, width=32)
    scores = torch.tensor(draw(st.lists(score, min_size=layers, max_size=layers, unique=distinct)))
    options = {
        "alpha": draw(st.floats(0.1, 256.0)),
        "cutoff": draw(st.floats(0.0, 0.999 / layers)),
        "top_k": draw(st.none() | st.integers(1, layers)),
        "active": draw(st.none() | st.lists(st.integers(0, layers - 1), min_size=1, unique=True)),
    }
    return scores, options


def compute_plain_weights(scores, alpha, cutoff, top_k, active):
    """Compute the definition in double precision: top-k scores, their softmax, and what exceeds the cutoff."""
    logits = {layer: alpha * score for layer, score in enumerate(scores) if active is None or layer in active}
    top_layers = sorted(logits, key=logits.__getitem__, reverse=True)[: top_k or len(scores)]
    powers = {layer: math.exp(logits[layer] - logits[top_layers[0]]) for layer in top_layers}
    weights = {layer: power / sum(powers.values()) for layer, power in powers.items()}
    remaining = {layer: weight for layer, weight in weights.items() if weight > cutoff or layer == top_layers[0]}
    return [remaining.get(layer, 0.0) / sum(remaining.values()) for layer in range(len(scores))]


@given(draw_settings(distinct=True))  # which of equal scores is cut is undefined
def test_weights_equal_their_definition(case):
    scores, options = case
    weights = layer_weights(scores, **options)
    raw = compute_plain_weights(scores.tolist(), **{**options, "cutoff": 0.0})
    assume(options["cutoff"] == 0.0 or all(abs(weight - options["cutoff"]) > 1e-5 for weight in raw))
    assert weights.tolist() == pytest.approx(compute_plain_weights(scores.tolist(), **options), abs=1e-4)


@given(draw_settings())
def test_weights_are_a_distribution_over_active_layers(case):
    scores, options = case
    weights = layer_weights(scores, **options)
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(), torch.tensor(1.0))
    active = weights.nonzero().flatten().tolist()
    assert len(active) <= (options["top_k"] or len(scores))
    assert options["active"] is None or set(active) <= set(options["active"])
    assert -1e-5 <= weights_entropy(weights).item() <= math.log(len(scores)) + 1e-5


@given(st.integers(1, 26), st.floats(0.1, 256.0), st.floats(0.0, 0.999))
def test_equal_scores_are_uniform(layers, alpha, share):
    weights = layer_weights(torch.ones(layers), alpha, cutoff=share / layers)
    torch.testing.assert_close(weights, torch.full((layers,), 1 / layers))
    assert math.isclose(weights_entropy(weights).item(), math.log(layers), abs_tol=1e-4)
    assert math.isclose(expected_state(weights, 0).item(), (layers - 1) / 2, abs_tol=1e-3)
