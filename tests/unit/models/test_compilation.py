"""`torch.compile` of the training step of every model that is one graph, and of one family with inductor."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch import nn
from torch._inductor import config as inductor_config

from tests.unit.models.every_model_support import BUILD, FURTHER, NO_GRAPH, build_training_batch

ALL = BUILD | FURTHER
# One model of every family and loop over depth, because inductor compiles C++ for one to four minutes.
BY_INDUCTOR = (
    "act classification", "albert", "stock classification", "ponder", "exits", "recurrent", "puzzles", "looped",
    "early exit", "supernet",
)  # fmt: skip


def compute_gradients(model: nn.Module, name: str, backend: str | None) -> dict[str, torch.Tensor]:
    """Return the loss and the gradients of a training step, eager if there is no backend."""
    torch.manual_seed(0)
    batch = build_training_batch(name)

    def compute_loss() -> torch.Tensor:
        return model(**batch).loss

    compiled = compute_loss if backend is None else torch.compile(compute_loss, fullgraph=True, backend=backend)
    torch.manual_seed(1)
    loss = compiled()
    loss.backward()
    gradients = {key: weight.grad for key, weight in model.named_parameters() if weight.grad is not None}
    model.zero_grad()
    return {"loss": loss.detach()} | gradients


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "backend"),
    [(name, "aot_eager") for name in sorted(set(ALL) - NO_GRAPH)] + [(name, "inductor") for name in BY_INDUCTOR],
)
def test_a_compiled_training_step_equals_the_eager_one(name: str, backend: str) -> None:
    if backend == "inductor" and not any(map(shutil.which, ("g++", "c++", "clang++"))):
        pytest.skip("no C++ compiler")
    torch.compiler.reset()
    torch.manual_seed(0)
    model = ALL[name]().train()
    model.set_step(1, 10)
    with inductor_config.patch(fallback_random=True):  # it would draw other random numbers
        expected, got = (compute_gradients(model, name, compiler) for compiler in (None, backend))
    assert got.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(got[key], value, atol=2e-5, rtol=2e-4, msg=lambda text, key=key: f"{key}: {text}")
