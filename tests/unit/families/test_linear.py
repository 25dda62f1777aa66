"""Linear maps in training, against torch's own."""

import pytest
import torch
from torch import nn

from adadepth.families.shared import linear
from adadepth.families.shared.linear import LEAST_MACS, Linear

needs_wide_vectors = pytest.mark.skipif(not linear._IS_WIDE, reason="a CPU without AVX-512")


@pytest.fixture
def calls(monkeypatch):
    """How often oneDNN was asked for a product."""
    found = []
    multiply = linear._multiply
    monkeypatch.setattr(linear, "_multiply", lambda *args: found.append(1) or multiply(*args))
    return found


def pair(width: int, outputs: int, bias: bool = True) -> tuple[Linear, nn.Linear]:
    torch.manual_seed(0)
    ours, torch_s = Linear(width, outputs, bias), nn.Linear(width, outputs, bias)
    torch_s.load_state_dict(ours.state_dict())
    return ours, torch_s


@needs_wide_vectors
@pytest.mark.parametrize(("width", "outputs"), [(128, 512), (512, 128), (8, 4000), (4000, 8)])
@pytest.mark.parametrize("bias", [True, False])
def test_values_and_gradients_are_those_of_torch(width, outputs, bias, calls):
    ours, torch_s = pair(width, outputs, bias)
    states = torch.randn(4, 36, width)
    # Parts of larger matrices, as a concatenation hands them back.
    gradient = torch.randn(4, 36, outputs + 3)[..., :outputs]
    found = []
    for layer in (ours, torch_s):
        given = states.clone().requires_grad_()
        mapped = layer(given)
        found.append([mapped, *torch.autograd.grad(mapped, [given, *layer.parameters()], gradient)])
    for mine, expected in zip(*found, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-4)
    assert len(calls) == 3


@needs_wide_vectors
def test_a_gradient_has_a_gradient():
    ours, torch_s = pair(64, 64, bias=False)
    states = torch.randn(1024, 64)
    found = []
    for layer in (ours, torch_s):
        given = states.clone().requires_grad_()
        (first,) = torch.autograd.grad((layer(given) ** 2).sum(), given, create_graph=True)
        found.append(torch.autograd.grad((first**2).sum(), layer.weight)[0])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-1)


def test_small_products_inference_and_other_types_are_left_to_torch(calls):
    ours, torch_s = pair(128, 512)
    enough = torch.randn(LEAST_MACS // (128 * 512), 128)
    cases = [(enough[1:], False), (enough, True)]
    for states, inference in cases:
        with torch.inference_mode(inference):
            torch.testing.assert_close(ours(states), torch_s(states), rtol=0, atol=0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ours(enough).dtype == torch.bfloat16
    ours.double()(enough.double())
    assert not calls


@needs_wide_vectors
def test_a_map_of_rows_over_and_over_is_the_same(calls):
    ours, _ = pair(128, 512)
    states = torch.randn(64, 128, requires_grad=True)
    first = torch.autograd.grad(ours(states).square().sum(), states)[0]
    assert torch.equal(first, torch.autograd.grad(ours(states).square().sum(), states)[0])
    assert calls


def test_an_exported_program_has_torch_s_own_map():
    ours, _ = pair(128, 512)
    program = torch.export.export(ours, (torch.randn(64, 128),))
    assert "mkldnn" not in program.graph_module.code
