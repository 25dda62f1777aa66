"""A loss over exits of a package, the example of docs/plugins.md, against plain loops in every family with exits."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import adadepth
from adadepth import LoopedForSequenceClassification, LoopedForTokenClassification
from adadepth.errors import ConfigError
from adadepth.halting.step_losses import BUILT_IN, StepLoss, parse_step_loss
from adadepth.models.shared.losses import weigh_steps
from adadepth.tasks.checks import check_step_loss
from tests.configs.support import configured
from tests.models_support import make_padded_batch, make_small_multi_exit
from tests.plugins_support import example_extensions
from tests.unit.models.early_exit.early_exit_support import (
    HEADS,
    IDS,
    LAYERS,
    MASK,
    PADDED,
    build_early_exit,
    check_close,
)
from tests.unit.models.looped.looped_support import IDS as LOOPED_IDS
from tests.unit.models.looped.looped_support import OURO, build_looped

EXITS = [1, 3, 4]


@pytest.fixture(scope="module", autouse=True)
def _install_example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with example_extensions(tmp_path_factory.mktemp("package")):
        yield


def weigh_plainly(losses: list[float], depths: list[int], temperature: float) -> list[float]:
    """Return d_n exp(-L_n / T), over their sum, of one token."""
    terms = [depth * math.exp(-loss / temperature) for loss, depth in zip(losses, depths, strict=True)]
    return [term / sum(terms) for term in terms]


def compute_plainly(logits: list[Tensor], targets: Tensor, depths: list[int], factors: list[float]) -> Tensor:
    """Return the mean over targets of sum_n s_n w_n L_n with constant w_n, from logits (M, C) at every exit."""
    total = torch.zeros((), dtype=logits[0].dtype)
    for row, target in enumerate(targets.tolist()):
        losses = [-at_exit[row].log_softmax(dim=-1)[target] for at_exit in logits]
        weights = weigh_plainly([loss.item() for loss in losses], depths, 0.5)
        for loss, weight, factor in zip(losses, weights, factors, strict=True):
            total = total + factor * weight * loss
    return total / len(targets)


def compute_gradients(model: Any, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


def check_gradients(model: Any, loss: Tensor, expected: Tensor) -> None:
    check_close(loss, expected)
    gradients, plain = compute_gradients(model, loss), compute_gradients(model, expected)
    assert {name for name, gradient in plain.items() if gradient.any()} <= gradients.keys()
    for name, gradient in plain.items():
        check_close(gradients.get(name, torch.zeros_like(gradient)), gradient)


# ---- Early exit


def build_labels(head: str) -> Tensor:
    labels = HEADS[head][2]
    return labels if labels.dim() == 1 else labels.masked_fill(MASK == 0, -100)


def select_targets(head: str, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits (M, C) and the classes (M,) of all units with a label."""
    labels = build_labels(head)
    if head == "words":
        logits, labels = logits[:, :-1], labels[:, 1:]
    return logits[labels >= 0], labels[labels >= 0]


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("trains", ["all", "exits"])
def test_a_loss_of_early_exits_equals_a_plain_loop(head: str, training: bool, trains: str) -> None:
    model_class, extra_fields, _ = HEADS[head]
    fields = {"exit_layers": EXITS[:-1], "exit_weights": "competence:0.5", "exit_scale": 0.5, "exit_heads": "own"}
    model = build_early_exit(model_class, trains=trains, **{**extra_fields, **fields})
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    model.train(training)
    loss = model(PADDED, attention_mask=MASK, labels=build_labels(head)).loss
    model.eval()
    options = {"attention_mask": MASK, "run_all_steps": True}
    logits = [model(PADDED, exit_rule=f"fixed:{step}", **options).logits for step in (1, 2, 3)]
    rows = [select_targets(head, at_exit)[0] for at_exit in logits]
    targets = select_targets(head, logits[0])[1]
    used = slice(0, 2) if trains == "exits" else slice(0, 3)
    expected = compute_plainly(rows[used], targets, EXITS[used], [0.5, 0.5, 1.0][used])
    check_gradients(model, loss, expected)


@pytest.mark.parametrize("head", ["words", "texts"])
def test_distillation_has_the_weights_of_the_losses(head: str) -> None:
    model_class, extra_fields, _ = HEADS[head]
    model = build_early_exit(model_class, exit_weights="competence:0.5", distillation=0.7, **extra_fields)
    part = model(PADDED, attention_mask=MASK, labels=build_labels(head)).loss_parts["distillation"]
    options = {"attention_mask": MASK, "run_all_steps": True}
    with torch.no_grad():
        logits = [model(PADDED, exit_rule=f"fixed:{step + 1}", **options).logits for step in range(LAYERS)]
    rows, total = [select_targets(head, at_exit)[0] for at_exit in logits], 0.0
    targets = select_targets(head, logits[0])[1].tolist()
    for row, target in enumerate(targets):
        logs = [at_exit[row].log_softmax(dim=-1) for at_exit in rows]
        weights = weigh_plainly([-log[target].item() for log in logs], [1, 2, 3, 4], 0.5)
        for weight, log in zip(weights[:-1], logs[:-1], strict=True):
            total += 0.7 * weight * (logs[-1].exp() * (logs[-1] - log)).sum().item()
    check_close(part, torch.tensor(total / len(targets)))


def test_a_curriculum_excludes_exits_from_the_loss() -> None:
    """Check step 0 of 10 of the gradual curriculum: only the last exit has a loss, of weight 1."""
    model = build_early_exit(exit_weights="competence", exit_curriculum="gradual").train()
    model.set_step(0, 10)
    check_close(model(IDS, labels=IDS).loss, build_early_exit(exit_weights="last").train()(IDS, labels=IDS).loss)


# ---- Looped models and PABEE


RELATIVE = {
    "last": [0, 0, 0, 1], "uniform": [1, 1, 1, 1], "linear": [1, 2, 3, 4], "inverse": [12, 6, 4, 3],
    "sqrt": [1, 2**0.5, 3**0.5, 2], "inverse_sqrt": [1, 2**-0.5, 3**-0.5, 0.5], "sum": [1, 3, 6, 10],
    "layerskip": [0, 1, 3, 6],
}  # fmt: skip


def compute_objective(name: str, logits: list[Tensor], targets: Tensor) -> Tensor:
    """Return the loss of an objective from logits (M, C) after each of four loops or steps."""
    if name.startswith("competence"):
        return compute_plainly(logits, targets, [1, 2, 3, 4], [1.0] * 4)
    terms = [weight * torch.nn.functional.cross_entropy(at_exit, targets)
             for weight, at_exit in zip(RELATIVE[name], logits, strict=True)]  # fmt: skip
    return sum(terms, start=torch.zeros(())) / sum(RELATIVE[name])


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", ["competence:0.5", *BUILT_IN])
def test_an_objective_of_loops_equals_a_plain_loop(name: str, training: bool) -> None:
    model = build_looped(**{**OURO, "gate": False}, objective=name)
    labels = LOOPED_IDS.clone()
    labels[0, :4] = -100
    is_target = labels[:, 1:] >= 0
    logits = model(LOOPED_IDS, run_all_steps=True).step_logits
    at_loops = [logits[:, :-1, loop][is_target] for loop in range(4)]
    expected = compute_objective(name, at_loops, labels[:, 1:][is_target])
    check_gradients(model, model.train(training)(LOOPED_IDS, labels=labels).loss, expected)


@pytest.mark.parametrize("head", [LoopedForSequenceClassification, LoopedForTokenClassification])
@pytest.mark.parametrize("name", ["competence:0.5", "sum"])
def test_looped_classifiers_support_the_loss(head: Any, name: str) -> None:
    model = build_looped(head, **{**OURO, "gate": False}, objective=name, num_labels=3)
    labels = torch.tensor([0, 2, 1]) if head is LoopedForSequenceClassification else LOOPED_IDS % 3
    logits = model(LOOPED_IDS, run_all_steps=True).step_logits
    expected = compute_objective(name, [logits[:, loop] for loop in range(4)], labels.flatten())
    check_gradients(model, model(LOOPED_IDS, labels=labels).loss, expected)


@pytest.mark.parametrize("name", ["competence:0.5", *BUILT_IN])
def test_multi_exit_albert_supports_the_loss(name: str) -> None:
    model, labels = make_small_multi_exit(num_hidden_layers=4, num_labels=3, exit_weights=name), torch.tensor([0, 2, 1])
    logits = model(**make_padded_batch(), run_all_steps=True).step_logits
    expected = compute_objective(name, [logits[:, step] for step in range(4)], labels)
    check_gradients(model, model(**make_padded_batch(), labels=labels).loss, expected)


# ---- Configurations and files


def test_a_model_predicts_without_the_package_of_its_loss(tmp_path: Path) -> None:
    build_early_exit(exit_weights="competence:0.25").save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    assert json.loads(file.read_text())["exit_weights"] == "competence:0.25"
    file.write_text(file.read_text().replace("competence", "incompetence"))
    model = adadepth.EarlyExitForCausalLM.from_pretrained(tmp_path)
    assert model(IDS).logits.shape[:2] == IDS.shape
    with pytest.raises(ConfigError, match=r"^loss over exits 'incompetence:0.25': must be one of .*the package$"):
        model(IDS, labels=IDS)
    problem = r"^checkpoint runs/a: model.exit_weights=incompetence:0.25: loss over exits 'incompetence:0.25': must be"
    with pytest.raises(ConfigError, match=problem):
        check_step_loss("runs/a", model)


@pytest.mark.parametrize(("command", "key"), [
    ("exit_tiny", "exit_weights"), ("loop_tiny", "objective"), ("ponder_tiny model=pabee_mini", "exit_weights"),
])  # fmt: skip
@pytest.mark.parametrize(("loss", "message"), [
    ("competense", r"must be one of last, .*competence \(did you mean 'competence'\?\); a loss of a package needs"),
    ("competence:x", r"a parameter has the wrong type, the form is competence:<temperature>"),
    ("competence:0", r"temperature=0.*above 0"),
    ("linear:1", r"too many parameters, the form is linear"),
])  # fmt: skip
def test_a_wrong_loss_of_a_configuration_is_refused_in_one_line(
    command: str, key: str, loss: str, message: str
) -> None:
    configured(*command.split(), f"model.{key}=competence:2")
    with pytest.raises(ConfigError, match=f"^model.{key}={loss}: loss over exits '{loss}': {message}[^\n]*$"):
        configured(*command.split(), f"model.{key}={loss}")


# ---- Registry


def test_a_program_registers_a_loss_and_replaces_it() -> None:
    for power in (1.0, 2.0):

        @adadepth.register_step_loss
        @dataclass(frozen=True)
        class Power(adadepth.StepLoss):
            name = "power"
            exponent: float = power

            def weigh(self, losses: Tensor, depths: Tensor) -> Tensor:
                return depths**self.exponent

        weights = weigh_steps(parse_step_loss("power"), torch.ones(5, 2), [2, 3])
        check_close(weights, torch.tensor([2.0**power, 3.0**power]))
    check_close(weigh_steps(parse_step_loss("power:0"), torch.ones(5, 2), [2, 3]), torch.ones(2))


@dataclass(frozen=True)
class Weightless(StepLoss):
    name = "weightless"


@dataclass(frozen=True)
class Named(StepLoss):
    name = "linear"

    def weigh(self, losses: Tensor, depths: Tensor) -> Tensor:
        return depths


@pytest.mark.parametrize(("loss", "message"), [
    (Weightless, "loss over exits 'weightless': must define weigh or weigh_depths"),
    (Named, "loss over exits 'linear': a loss over exits of that name already exists"),
    (int, "loss over exits '': must be a dataclass that extends adadepth.halting.step_losses.StepLoss"),
])  # fmt: skip
def test_a_broken_loss_is_refused_in_one_line(loss: Any, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        adadepth.register_step_loss(loss)
    assert str(raised.value) == message


@pytest.mark.parametrize("shape", [(5, 1), (5,), (2, 5)])
def test_weights_of_a_wrong_shape_are_refused_in_one_line(shape: tuple[int, ...]) -> None:
    @dataclass(frozen=True)
    class Wrong(StepLoss):
        name = "wrong"

        def weigh(self, losses: Tensor, depths: Tensor) -> Tensor:
            return torch.ones(shape)

    with pytest.raises(ConfigError) as raised:
        weigh_steps(Wrong(), torch.ones(5, 2), [1, 2])
    assert str(raised.value) == f"loss over exits 'wrong': returned weights of shape {shape}, not (5, 2) or (2,)"


def test_weights_that_are_all_0_are_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"^loss over exits 'layerskip': all weights are 0 at depths \[1\]$"):
        weigh_steps(parse_step_loss("layerskip"), torch.ones(5, 1), [1])
