"""Matrix products by oneDNN: values and gradients of torch's own, and cases left to torch."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers.activations import ACT2FN

from adadepth.models.shared import layers as products
from adadepth.models.shared.layers import Product, apply_linear_and_activation, product
from tests.marks_support import keep_one_quick

INPUTS, OUTPUTS = 64, 256


@pytest.fixture
def onednn_calls(monkeypatch):
    """Let oneDNN multiply on any processor and at any size, and return the list of its calls."""
    monkeypatch.setattr(products, "onednn_is_faster", lambda: True)
    monkeypatch.setattr(products, "_LEAST_WORK", 1)
    multiply, calls = products._multiply, []
    monkeypatch.setattr(products, "_multiply", lambda *args: calls.append(args[3:]) or multiply(*args))
    return calls


def build_twins():
    torch.manual_seed(0)
    mapped = Product(INPUTS, OUTPUTS)
    plain = nn.Linear(INPUTS, OUTPUTS).double()
    plain.load_state_dict(mapped.state_dict())
    return mapped, plain


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("shape", "width", "outputs"),
    keep_one_quick(2, [((1,), 64, 256), ((3, 5), 128, 512), ((4, 36), 512, 128), ((4, 36), 8, 400), ((4, 36), 400, 8)]),
)
def test_values_and_gradients_equal_double_precision(onednn_calls, shape, width, outputs, bias):
    torch.manual_seed(0)
    ours, exact = Product(width, outputs, bias), nn.Linear(width, outputs, bias).double()
    exact.load_state_dict(ours.state_dict())
    states = torch.randn(*shape, width)
    gradient = torch.randn(*shape, outputs + 3)[..., :outputs]  # strides of the gradient of a concatenation
    results = []
    for layer, kind in ((ours, torch.float32), (exact, torch.float64)):
        inputs = states.to(kind, copy=True).requires_grad_()
        output = layer(inputs)
        output.backward(gradient.to(kind))
        results.append([output.detach(), inputs.grad, *(weight.grad for weight in layer.parameters())])
    assert len(onednn_calls) == 3
    for one, other in zip(*results, strict=True):
        assert one.is_contiguous()
        torch.testing.assert_close(one.double(), other, atol=1e-4, rtol=1e-4)


def test_tensors_without_requires_grad_get_no_gradient(onednn_calls):
    mapped, _ = build_twins()
    mapped.weight.requires_grad_(False)
    state = torch.randn(3, INPUTS)
    mapped(state).sum().backward()
    assert mapped.weight.grad is None
    assert mapped.bias.grad.eq(3).all()
    assert len(onednn_calls) == 1


@pytest.mark.parametrize("name", ["gelu_pytorch_tanh", "relu"])
def test_an_activation_is_fused_in_inference_only(onednn_calls, name):
    mapped, plain = build_twins()
    activation, state = ACT2FN[name], torch.randn(7, INPUTS)
    expected = activation(plain(state.double()))
    with torch.inference_mode():
        torch.testing.assert_close(
            apply_linear_and_activation(mapped, activation, state).double(), expected, atol=1e-5, rtol=1e-5
        )
    torch.testing.assert_close(
        apply_linear_and_activation(mapped, activation, state).double(), expected, atol=1e-5, rtol=1e-5
    )
    assert onednn_calls == ([("gelu",)] if name.startswith("gelu") else [()]) + [()]


def test_hooks_get_the_unfused_output(onednn_calls):
    mapped, _ = build_twins()
    seen, state = [], torch.randn(2, INPUTS)
    mapped.register_forward_hook(lambda module, args, output: seen.append(output))
    with torch.no_grad():
        apply_linear_and_activation(mapped, ACT2FN["gelu_pytorch_tanh"], state)
        assert seen[0].equal(mapped(state))


@pytest.mark.slow
def test_unsupported_inputs_are_left_to_torch(onednn_calls):
    mapped, plain = build_twins()
    state = torch.randn(3, INPUTS)
    plain = plain.float()
    assert mapped(state[:0]).shape == (0, OUTPUTS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert mapped(state).equal(plain(state))
    assert copy.deepcopy(mapped).double()(state.double()).equal(copy.deepcopy(plain).double()(state.double()))
    graph = torch.compile(mapped, backend="eager", fullgraph=True)(state)
    assert graph.equal(plain(state))
    assert not onednn_calls


def test_few_rows_and_other_processors_are_left_to_torch(monkeypatch):
    monkeypatch.setattr(products, "_multiply", None)
    mapped, _ = build_twins()
    assert mapped(torch.randn(1, INPUTS)).shape == (1, OUTPUTS)
    monkeypatch.setattr(products, "_LEAST_WORK", 1)
    monkeypatch.setattr(products, "onednn_is_faster", lambda: False)
    assert mapped(torch.randn(500, INPUTS)).shape == (500, OUTPUTS)


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


def test_torch_counts_their_operations(onednn_calls):
    mapped, plain = build_twins()
    counted = []
    for layer in (mapped, plain.float()):
        with FlopCounterMode(display=False) as counter:
            layer(torch.randn(5, INPUTS, requires_grad=True)).sum().backward()
        counted.append(counter.get_total_flops())
    assert counted[0] == counted[1] == 3 * 2 * 5 * INPUTS * OUTPUTS


def test_second_derivatives_equal_torch(onednn_calls):
    torch.manual_seed(0)
    ours, library = Product(64, 64, bias=False), nn.Linear(64, 64, bias=False)
    library.load_state_dict(ours.state_dict())
    states = torch.randn(1024, 64)
    gradients = []
    for layer in (ours, library):
        inputs = states.clone().requires_grad_()
        (first,) = torch.autograd.grad((layer(inputs) ** 2).sum(), inputs, create_graph=True)
        gradients.append(torch.autograd.grad((first**2).sum(), layer.weight)[0])
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-1)


@pytest.mark.parametrize("shape", [(4, 2), (3, 5, 8), (9, 61), (2048,)])
def test_a_product_of_two_tensors_equals_torch(onednn_calls, shape):
    torch.manual_seed(0)
    values, weight = torch.randn(*shape, 96), torch.randn(24, 96)
    gradient = torch.randn(*shape, 24)
    operands, exact = (
        [tensor.to(kind, copy=True).requires_grad_() for tensor in (values, weight)]
        for kind in (torch.float32, torch.float64)
    )
    actual, expected = product(*operands), exact[0] @ exact[1].T
    actual.backward(gradient)
    expected.backward(gradient.double())
    for one, other in ((actual, expected), (operands[0].grad, exact[0].grad), (operands[1].grad, exact[1].grad)):
        torch.testing.assert_close(one.double(), other, atol=1e-6 * other.abs().max().item(), rtol=0)
    assert len(onednn_calls) == 3


def test_an_exported_program_has_no_onednn_product():
    program = torch.export.export(Product(128, 512), (torch.randn(64, 128),))
    assert "mkldnn" not in program.graph_module.code
