"""What looped models are trained on, against the formulas written out target by target."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from adadepth import LoopedForCausalLM
from adadepth.errors import DataError
from adadepth.families.looped import objectives
from adadepth.families.looped.objectives import cross_entropies, gate_losses
from tests.unit.families.looped.test_looped import IDS, LENGTH, OURO, PIECES, near, small

LABELS = IDS.masked_fill(torch.rand(IDS.shape, generator=torch.Generator().manual_seed(5)) < 0.3, -100)
LABELS[1, 1:] = -100  # a row without a target


def losses_of(model: Any) -> tuple[list[list[float]], list[list[float]]]:
    """Of every target its cross-entropy and its gate's probability after every loop."""
    with torch.no_grad():
        found = model(IDS, run_all_steps=True)
    losses, gates = [], []
    for row in range(len(IDS)):
        for token in range(LENGTH - 1):
            target = LABELS[row, token + 1].item()
            if target < 0:
                continue
            logits = [found.step_logits[row, token, step].double() for step in range(4)]
            losses.append([(z.logsumexp(0) - z[target]).item() for z in logits])
            gates.append(found.halting_logits[row, token].double().sigmoid().tolist())
    return losses, gates


def stop(gates: list[float]) -> list[float]:
    """The distribution of the loops, p_t = lambda_t prod_{j<t} (1 - lambda_j), and what is left on the last."""
    found, left = [], 1.0
    for gate in gates[:-1]:
        found.append(left * gate)
        left *= 1 - gate
    return [*found, left]


def expected(objective: str, losses: list[list[float]], gates: list[list[float]], beta: float = 0.05) -> float:
    total = 0.0
    for each, lambdas in zip(losses, gates, strict=True):
        if objective == "last":
            total += each[-1]
        elif objective == "mean":
            total += sum(each) / 4
        elif objective == "geometric":
            weights = [0.3 * 0.7**step for step in range(4)]
            total += sum(w * loss for w, loss in zip(weights, each, strict=True)) / sum(weights)
        elif objective == "gate":
            p = stop(lambdas)
            total += sum(w * loss for w, loss in zip(p, each, strict=True)) + beta * sum(w * math.log(w) for w in p)
        else:
            made = objective == "gate_alone made"
            for step in range(3):
                goes_on = 1 / (1 + math.exp(-50 * (max(0.0, each[step] - each[step + 1]) - 0.005)))
                going = 1 - lambdas[step + 1 if made else step]
                total -= (goes_on * math.log(going) + (1 - goes_on) * math.log(1 - going)) / 3
    return total / len(losses)


@pytest.mark.parametrize("objective", ["last", "mean", "geometric", "gate", "gate_alone", "gate_alone made"])
def test_a_loss_is_its_formula(objective: str) -> None:
    name, _, pairing = objective.partition(" ")
    model = small(**OURO, objective=name, gate_pairing=pairing or "next")
    for mode in (True, False):
        found = model.train(mode)(IDS, labels=LABELS)
        near(found.loss, torch.tensor(expected(objective, *losses_of(model.eval()))))
        near(found.loss, sum(found.loss_parts.values()))
        assert (found.logits is None) == mode
    assert set(found.loss_parts) <= set(model.count_targets({"labels": LABELS}))


@pytest.mark.parametrize("objective", ["last", "mean", "gate", "gate_alone"])
def test_gradients_are_those_of_all_logits_at_once(objective: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def gradients(numbers: int) -> dict[str, Tensor]:
        monkeypatch.setattr(objectives, "_NUMBERS", numbers)
        model = small(**OURO, objective=objective).train()
        model(IDS, labels=LABELS).loss.backward()
        return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}

    whole, parts = gradients(10**9), gradients(3 * PIECES)
    assert whole.keys() == parts.keys()
    for name, gradient in whole.items():
        near(parts[name], gradient)
    assert ("model.gate.weight" in whole) == objective.startswith("gate")
    assert (set(whole) == {"model.gate.weight", "model.gate.bias"}) == (objective == "gate_alone")


def test_no_more_logits_are_made_at_once_than_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objectives, "_NUMBERS", 3 * PIECES)
    model, made = small(**OURO, objective="mean").train(), []
    model.lm_head.register_forward_hook(lambda module, inputs, output: made.append(len(output)))
    model(IDS, labels=LABELS).loss.backward()
    assert max(made) == 3
    assert sum(made) == 2 * 4 * int((LABELS[:, 1:] >= 0).sum())  # once forward, once again on the way back


def test_accumulation_changes_no_gradient() -> None:
    def gradient(parts: list[slice]) -> Tensor:
        model = small(**OURO, objective="gate").train()
        count = model.count_targets({"labels": LABELS})
        for part in parts:
            model(IDS[part], labels=LABELS[part], num_targets=count).loss.backward()
        return model.model.core[0].self_attn.q_proj.weight.grad

    near(gradient([slice(0, 1), slice(1, 3)]), gradient([slice(0, 3)]))


def test_a_stock_trainers_count_normalises_as_our_own() -> None:
    model = small(**OURO, objective="gate").train()
    count = (LABELS[:, 1:] >= 0).sum()
    near(model(IDS, labels=LABELS, num_items_in_batch=count).loss, model(IDS, labels=LABELS).loss)
    near(model(IDS, labels=LABELS, num_items_in_batch=2 * count).loss, model(IDS, labels=LABELS).loss / 2)


def test_without_targets_a_loss_is_nothing() -> None:
    for objective in ("last", "gate", "gate_alone"):
        model = small(**OURO, objective=objective).train()
        loss = model(IDS, labels=torch.full_like(IDS, -100)).loss
        assert loss.item() == 0.0


def test_a_label_that_is_no_piece_is_one_line() -> None:
    with pytest.raises(DataError, match="labels: 53 is not a class of this model"):
        small(**OURO)(IDS, labels=torch.full_like(IDS, PIECES))


def test_last_alone_reads_one_loop() -> None:
    """What is not asked for is not computed: the coda runs once, for the loss of the last loop."""
    model, ran = small(prelude=1, core=1, coda=1, num_loops=4).train(), []
    model.model.coda[0].register_forward_hook(lambda *_: ran.append(1))
    model(IDS, labels=LABELS).loss.backward()
    assert len(ran) == 1


def test_cross_entropies_of_no_target() -> None:
    assert cross_entropies(torch.zeros(0, 4), torch.zeros(0, dtype=torch.long), lambda x: x, 4).shape == (0,)


def test_the_gates_targets_have_no_gradient() -> None:
    losses = torch.rand(5, 3, requires_grad=True)
    halting = torch.randn(5, 3, requires_grad=True)
    gate_losses(halting, losses.detach(), "next").sum().backward()
    assert halting.grad is not None
    assert not halting.grad[:, 2].any()  # the last loop's unit is never asked
    assert halting.grad[:, :2].all()


@pytest.mark.slow
def test_it_learns() -> None:
    """A text that repeats itself is learnt by heart, and earlier loops learn with the last."""
    torch.manual_seed(0)
    model = small(LoopedForCausalLM, **OURO, objective="mean").train()
    ids = torch.randint(0, PIECES, (4, 16))
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(150):
        loss = model(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1
