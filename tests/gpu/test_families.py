"""Small models of all families on the device: waits of a training step, evaluation, low precision, and generation."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from tests.gpu.device_support import DEVICE, count_waits, move
from tests.unit.models.every_model_support import BUILD, FURTHER, READS, build_training_batch

pytestmark = pytest.mark.gpu
ALL = BUILD | FURTHER
WRITERS = [name for name in ALL if name == "network" or name.startswith(("looped ", "early exit ", "routed "))]


def build_model(name: str) -> Any:
    """Return a model with drawn weights."""
    torch.manual_seed(0)
    return ALL[name]()


@pytest.mark.parametrize("name", ALL)
def test_a_training_step_waits_as_often_as_documented(name: str) -> None:
    model, batch = build_model(name).to(DEVICE).train(), move(build_training_batch(name))
    for _ in range(2):  # the first step also allocates, and chooses kernels
        model.zero_grad()
        model.set_step(1, 10)
        with count_waits() as waits:
            loss = model(**batch).loss
            loss.backward()
    assert len(waits) <= READS.get(name, 0), waits
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    assert loss.isfinite()
    assert gradients
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("name", ALL)
def test_an_evaluation_equals_the_cpu(name: str) -> None:
    model, batch = build_model(name).eval(), build_training_batch(name)
    samples = name in ("ponder", "recurrent")  # by their exit rule

    def evaluate(model: Any, batch: dict[str, Any]) -> Any:
        options = {"generator": torch.Generator().manual_seed(3)} if samples else {}
        with torch.no_grad():
            return model(**batch, **options)

    expected = evaluate(copy.deepcopy(model), batch)
    outputs = evaluate(model.to(DEVICE), move(batch))
    torch.testing.assert_close(outputs.loss.cpu(), expected.loss, atol=1e-4, rtol=1e-4)
    assert outputs.trace.updates.cpu().equal(expected.trace.updates)
    executed, expected_macs = model.price(outputs.trace).executed, model.price(expected.trace).executed
    assert float(executed) == pytest.approx(float(expected_macs), rel=1e-6)


@pytest.mark.parametrize("name", ALL)
def test_bfloat16_is_close_to_float32(name: str) -> None:
    model, batch = build_model(name).to(DEVICE).eval(), move(build_training_batch(name))
    with torch.no_grad():
        expected = model(**batch).loss
        with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
            loss = model(**batch).loss
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected, atol=0.05, rtol=0.05)


@pytest.mark.parametrize("name", WRITERS)
def test_a_continuation_equals_the_cpu(name: str) -> None:
    model, ids = build_model(name).eval(), build_training_batch(name)["input_ids"][:, :6]
    options: dict[str, Any] = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    expected = copy.deepcopy(model).generate(ids, **options)
    assert model.to(DEVICE).generate(ids.to(DEVICE), **options).cpu().equal(expected)
