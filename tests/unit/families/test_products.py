"""Products by oneDNN: the values and gradients of the library's own, and who they are not for."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers.activations import ACT2FN

from adadepth.families.shared import products
from adadepth.families.shared.products import Product, activated

INPUTS, OUTPUTS = 64, 256


@pytest.fixture
def used(monkeypatch):
    """Let oneDNN multiply on any processor and at any size; the list of what it was asked for."""
    monkeypatch.setattr(products, "onednn_is_faster", lambda: True)
    monkeypatch.setattr(products, "_LEAST_WORK", 1)
    multiply, calls = products._multiply, []
    monkeypatch.setattr(products, "_multiply", lambda *args: calls.append(args[3:]) or multiply(*args))
    return calls


def twins():
    torch.manual_seed(0)
    product = Product(INPUTS, OUTPUTS)
    plain = nn.Linear(INPUTS, OUTPUTS).double()
    plain.load_state_dict(product.state_dict())
    return product, plain


@pytest.mark.parametrize("shape", [(1,), (3, 5), (40,)])
def test_values_and_gradients_are_those_in_double_precision(used, shape):
    product, plain = twins()
    state, gradient = torch.randn(*shape, INPUTS), torch.randn(*shape, OUTPUTS)
    found = []
    for layer, kind in ((product, torch.float32), (plain, torch.float64)):
        read = state.detach().clone().to(kind).requires_grad_()
        output = layer(read)
        output.backward(gradient.to(kind))
        found.append([output.detach(), read.grad, layer.weight.grad, layer.bias.grad])
    assert len(used) == 3
    for one, other in zip(*found, strict=True):
        assert one.is_contiguous()
        torch.testing.assert_close(one.double(), other, atol=1e-5, rtol=1e-5)


def test_what_needs_no_gradient_gets_none(used):
    product, _ = twins()
    product.weight.requires_grad_(False)
    state = torch.randn(3, INPUTS)
    product(state).sum().backward()
    assert product.weight.grad is None
    assert product.bias.grad.eq(3).all()
    assert len(used) == 1


@pytest.mark.parametrize("name", ["gelu_pytorch_tanh", "relu"])
def test_an_activation_is_fused_in_inference_only(used, name):
    product, plain = twins()
    activation, state = ACT2FN[name], torch.randn(7, INPUTS)
    wanted = activation(plain(state.double()))
    with torch.inference_mode():
        torch.testing.assert_close(activated(product, activation, state).double(), wanted, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(activated(product, activation, state).double(), wanted, atol=1e-5, rtol=1e-5)
    assert used == ([("gelu",)] if name.startswith("gelu") else [()]) + [()]


def test_a_hook_sees_what_it_saw(used):
    product, _ = twins()
    seen, state = [], torch.randn(2, INPUTS)
    product.register_forward_hook(lambda module, args, output: seen.append(output))
    with torch.no_grad():
        activated(product, ACT2FN["gelu_pytorch_tanh"], state)
        assert seen[0].equal(product(state))


def test_who_is_left_to_the_library(used):
    product, plain = twins()
    state = torch.randn(3, INPUTS)
    plain = plain.float()
    assert product(state[:0]).shape == (0, OUTPUTS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert product(state).equal(plain(state))
    assert copy.deepcopy(product).double()(state.double()).equal(copy.deepcopy(plain).double()(state.double()))
    graph = torch.compile(product, backend="eager", fullgraph=True)(state)
    assert graph.equal(plain(state))
    assert not used


def test_few_rows_and_other_processors_are_left_to_the_library(monkeypatch):
    monkeypatch.setattr(products, "_multiply", None)
    product, _ = twins()
    assert product(torch.randn(1, INPUTS)).shape == (1, OUTPUTS)
    monkeypatch.setattr(products, "_LEAST_WORK", 1)
    monkeypatch.setattr(products, "onednn_is_faster", lambda: False)
    assert product(torch.randn(500, INPUTS)).shape == (500, OUTPUTS)


@pytest.mark.parametrize(
    ("processor", "faster"),
    [
        ({"cpu_name": "AMD EPYC", "avx512_f": True}, True),
        ({"cpu_name": "AMD EPYC", "avx512_f": False}, False),
        ({"cpu_name": "Intel(R) Xeon(R)", "avx512_f": True}, False),
        ({}, False),
    ],
)
def test_the_processor_decides(monkeypatch, processor, faster):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: processor, raising=False)
    assert products.onednn_is_faster.__wrapped__() is faster


def test_torch_counts_their_operations(used):
    product, plain = twins()
    counted = []
    for layer in (product, plain.float()):
        with FlopCounterMode(display=False) as counter:
            layer(torch.randn(5, INPUTS, requires_grad=True)).sum().backward()
        counted.append(counter.get_total_flops())
    assert counted[0] == counted[1] == 3 * 2 * 5 * INPUTS * OUTPUTS
