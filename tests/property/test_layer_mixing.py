"""Laws of layer weights, for any scores."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from adadepth.halting.layer_mixing import expected_state, layer_weights, weights_entropy


@st.composite
def settings(draw):
    """Scores, and options that a configuration accepts."""
    layers = draw(st.integers(1, 26))
    scores = torch.tensor(draw(st.lists(st.floats(-4, 4, width=32), min_size=layers, max_size=layers)))
    options = {
        "alpha": draw(st.floats(0.1, 256.0)),
        "cutoff": draw(st.floats(0.0, 0.999 / layers)),
        "top_k": draw(st.none() | st.integers(1, layers)),
        "kept": draw(st.none() | st.lists(st.integers(0, layers - 1), min_size=1, unique=True)),
    }
    return scores, options


@given(settings())
def test_weights_are_a_distribution(case):
    scores, options = case
    weights = layer_weights(scores, **options)
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(), torch.tensor(1.0))
    assert weights[scores == scores.max()].max() > 0 or options["kept"] is not None


@given(settings())
def test_no_more_layers_than_asked_for(case):
    scores, options = case
    active = layer_weights(scores, **options).nonzero().flatten().tolist()
    assert len(active) <= (options["top_k"] or len(scores))
    assert options["kept"] is None or set(active) <= set(options["kept"])


@given(st.integers(1, 26), st.floats(0.1, 256.0), st.floats(0.0, 0.999))
def test_equal_scores_are_uniform(layers, alpha, share):
    weights = layer_weights(torch.ones(layers), alpha, cutoff=share / layers)
    torch.testing.assert_close(weights, torch.full((layers,), 1 / layers))
    assert math.isclose(weights_entropy(weights).item(), math.log(layers), abs_tol=1e-4)
    assert math.isclose(expected_state(weights, 0).item(), (layers - 1) / 2, abs_tol=1e-3)


@given(settings())
def test_entropy_is_between_that_of_one_layer_and_of_all(case):
    scores, options = case
    entropy = weights_entropy(layer_weights(scores, **options)).item()
    assert -1e-5 <= entropy <= math.log(len(scores)) + 1e-5
