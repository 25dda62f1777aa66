"""Optimizers against their equations, schedules against closed forms."""

import math
from typing import Any

import pytest
import torch
from torch import nn
from transformers import BertConfig

from adadepth import AdaLayersConfig, AdaLayersForSequenceClassification, AlbertActForPreTraining
from adadepth.config import TrainerConfig
from adadepth.config.experiment import Optimizer, Schedule
from adadepth.errors import ConfigError
from adadepth.models.contract import DepthModel
from adadepth.training.muon import find_hidden_matrices
from adadepth.training.optimization import build_optimizer, build_schedule, parameter_groups
from tests.models_support import make_small_config
from tests.toy_support import execute
from tests.unit.models.early_exit.layerskip_support import write_layerskip
from tests.unit.models.every_model_support import BUILD


def test_groups_hold_every_parameter_once_and_decay_only_matrices():
    model = AlbertActForPreTraining(make_small_config())
    decayed, undecayed = parameter_groups(model, TrainerConfig(weight_decay=0.01))
    names = {id(p): name for name, p in model.named_parameters()}
    assert {names[id(p)] for p in undecayed["params"]} == {
        name for name in names.values() if name.endswith("bias") or "norm" in name.lower()
    }
    assert sorted(map(id, decayed["params"] + undecayed["params"])) == sorted(names)
    assert (decayed["weight_decay"], undecayed["weight_decay"]) == (0.01, 0.0)


@pytest.mark.parametrize("decay_vectors", [False, True])
def test_the_distribution_over_layers_has_its_own_rate_and_no_decay(decay_vectors):
    base = BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8
    )  # fmt: skip
    model = AdaLayersForSequenceClassification(
        AdaLayersConfig(base_config=base, project_dim=8, attention_heads_num=2, distribution_lr_multiplier=5.0)
    )
    settings = TrainerConfig(learning_rate=1e-3, weight_decay=0.01, decay_vectors=decay_vectors)
    groups = parameter_groups(model, settings)
    (distribution_group,) = [group for group in groups if group["lr"] != 1e-3]
    assert (distribution_group["lr"], distribution_group["weight_decay"]) == (5e-3, 0.0)
    assert [id(parameter) for parameter in distribution_group["params"]] == [id(model.distribution)]
    spared = {id(p) for group in groups if not group["weight_decay"] for p in group["params"]}
    assert (id(model.logits.bias) in spared) is not decay_vectors
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert sorted(id(p) for group in groups for p in group["params"]) == sorted(map(id, trained))
    assert not {id(p) for p in model.model.parameters()} & {id(p) for p in trained}


class Map(DepthModel, nn.Linear):
    """Layer with a matrix and a vector."""


def take_five_steps(model, optimizer):
    """Take five steps, and return the gradients of the matrix and of the vector, drawn anew for every step."""
    gradients = [[torch.randn_like(p) for p in model.parameters()] for _ in range(5)]
    for step in gradients:
        for parameter, gradient in zip(model.parameters(), step, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
    return zip(*gradients, strict=True)


def apply_plain_lamb(weight, gradients, lr, adapts, decay, betas=(0.9, 0.999), eps=1e-6):
    """Apply the published update in a plain loop: no bias correction, decay inside the trust ratio, no clamp."""
    m, v = torch.zeros_like(weight), torch.zeros_like(weight)
    for gradient in gradients:
        m = betas[0] * m + (1 - betas[0]) * gradient
        v = betas[1] * v + (1 - betas[1]) * gradient**2
        update = m / (v.sqrt() + eps) + decay * weight
        ratio = weight.norm() / update.norm() if adapts and weight.norm() > 0 and update.norm() > 0 else 1.0
        weight = weight - lr * ratio * update
    return weight


def test_lamb_is_the_published_recipe():
    torch.manual_seed(0)
    model = Map(40, 30)
    nn.init.normal_(model.weight, std=3.0)  # a norm far above the library's own bound of 10
    start = [p.detach().clone() for p in model.parameters()]
    optimizer = build_optimizer(model, TrainerConfig(optimizer=Optimizer.lamb, learning_rate=0.01, weight_decay=0.01))
    weights, biases = take_five_steps(model, optimizer)
    weight = apply_plain_lamb(start[0], weights, 0.01, adapts=True, decay=0.01)
    bias = apply_plain_lamb(start[1], biases, 0.01, adapts=False, decay=0.0)
    torch.testing.assert_close(model.weight.detach(), weight, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model.bias.detach(), bias, atol=1e-5, rtol=1e-5)


def apply_plain_adam(weight, gradients, lr, decay, betas=(0.9, 0.999), eps=1e-8):
    """Apply algorithm 1 of Kingma & Ba 2015 to the gradient of the loss and of decay / 2 |w|^2."""
    m, v = torch.zeros_like(weight), torch.zeros_like(weight)
    for step, gradient in enumerate(gradients, 1):
        gradient = gradient + decay * weight
        m = betas[0] * m + (1 - betas[0]) * gradient
        v = betas[1] * v + (1 - betas[1]) * gradient**2
        weight = weight - lr * m / (1 - betas[0] ** step) / ((v / (1 - betas[1] ** step)).sqrt() + eps)
    return weight


@pytest.mark.parametrize("decay_vectors", [False, True])
def test_adam_adds_decay_to_the_gradient(decay_vectors):
    torch.manual_seed(0)
    model = Map(4, 3)
    start = [p.detach().clone() for p in model.parameters()]
    settings = TrainerConfig(
        optimizer=Optimizer.adam, learning_rate=0.01, weight_decay=0.1, adam_epsilon=1e-8, decay_vectors=decay_vectors
    )
    optimizer = build_optimizer(model, settings)
    weights, biases = take_five_steps(model, optimizer)
    weight = apply_plain_adam(start[0], weights, 0.01, 0.1)
    bias = apply_plain_adam(start[1], biases, 0.01, 0.1 if decay_vectors else 0.0)
    torch.testing.assert_close(model.weight.detach(), weight, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(model.bias.detach(), bias, atol=1e-6, rtol=1e-5)


def apply_plain_atan2(weight, gradients, lr, decay, betas):
    """Apply the published update of imoneoi/adam-atan2, number by number."""
    weights = []
    for w, weight_gradients in zip(weight.tolist(), torch.stack(gradients, dim=-1).tolist(), strict=True):
        m = v = 0.0
        for step, g in enumerate(weight_gradients, 1):
            m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g * g
            update = math.atan2(m, math.sqrt(v / (1 - betas[1] ** step))) / (1 - betas[0] ** step)
            w = w * (1 - lr * decay) - lr * update
        weights.append(w)
    return torch.tensor(weights)


class Signed(DepthModel, nn.Module):
    """Model with one weight for each of both update rules."""

    def __init__(self):
        super().__init__()
        self.turned, self.signed = (nn.Parameter(torch.randn(6)) for _ in range(2))

    def descending_by_sign(self):
        return {"signed"}


def test_adam_atan2_and_its_sign_descent_are_the_published_ones():
    """Check also gradients that are zero at first, tiny or huge."""
    torch.manual_seed(0)
    model = Signed()
    start = [p.detach().clone() for p in (model.turned, model.signed)]
    settings = TrainerConfig(
        optimizer=Optimizer.adam_atan2, learning_rate=0.05, weight_decay=0.3, adam_beta2=0.95, decay_vectors=True
    )
    optimizer = build_optimizer(model, settings)
    gradients = [torch.randn(6) * torch.tensor([0.0, 1e-12, 1.0, 1.0, 1.0, 1e6]) for _ in range(5)]
    gradients[0][2] = 0.0
    for number, gradient in enumerate(gradients):
        model.turned.grad = model.signed.grad = gradient.clone()
        optimizer.step()
        if number == 2:  # as an interrupted run goes on
            state = optimizer.state_dict()
            optimizer = build_optimizer(model, settings)
            optimizer.load_state_dict(state)
    turned = apply_plain_atan2(start[0], gradients, 0.05, 0.3, (0.9, 0.95))
    signed = start[1]
    for gradient in gradients:
        signed = signed * (1 - 0.05 * 0.3) - 0.05 * torch.where(gradient == 0, 0.0, gradient / gradient.abs())
    torch.testing.assert_close(model.turned.detach(), turned)
    torch.testing.assert_close(model.signed.detach(), signed, atol=1e-6, rtol=1e-6)
    groups = parameter_groups(model, TrainerConfig(decay_vectors=True))
    assert [group["by_sign"] for group in groups] == [False], "AdamW takes all parameters alike"


# A part of the name of every weight that is an embedding or a head, which Muon must not train.
NOT_HIDDEN = (
    "embed", "prefix", "classifier", "predictions", "qa_outputs", "act.dense", "ponder", "halting", "head", "score",
    "gate.", "exits", "bias", "norm", "Norm", "tables",
)  # fmt: skip


@pytest.mark.parametrize("name", [name for name in BUILD if name != "mixture"])
def test_muon_takes_the_matrices_of_hidden_layers(name):
    model = BUILD[name]()
    hidden = {id(weight) for weight in find_hidden_matrices(model)}
    names = {name for name, weight in model.named_parameters() if id(weight) in hidden}
    expected = {
        name
        for name, weight in model.named_parameters()
        if name.endswith(".weight") and weight.ndim == 2 and not any(part in name for part in NOT_HIDDEN)
    } | {name for name, _ in model.named_parameters() if "embedding_hidden_mapping_in.weight" in name}
    assert names == expected
    assert names


def test_muon_refuses_a_head_on_a_frozen_base():
    with pytest.raises(ConfigError, match=r"^trainer.optimizer=muon: \w+ trains no matrix of a hidden layer here"):
        build_optimizer(BUILD["mixture"](), TrainerConfig(optimizer=Optimizer.muon))


def test_muon_is_refused_before_a_run_directory_exists(tmp_path, capsys):
    write_layerskip(tmp_path / "base")
    command = ("--config-name", "router_tuning", f"model.pretrained={tmp_path / 'base'}", "trainer.optimizer=muon")
    assert execute(*command, "dataset.sequence_length=32", f"output_dir={tmp_path / 'runs'}") == 2
    assert "trains no matrix of a hidden layer here" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_muon_and_adamw_are_those_of_torch():
    """Check also after the state was stored and read, as by an interrupted run."""
    torch.manual_seed(0)
    model, twin = (AlbertActForPreTraining(make_small_config()) for _ in range(2))
    twin.load_state_dict(model.state_dict())
    settings = TrainerConfig(
        optimizer=Optimizer.muon, learning_rate=0.01, weight_decay=0.1, muon_learning_rate=0.03, adam_epsilon=1e-8
    )
    optimizer = build_optimizer(model, settings)
    of_twin = dict(zip(map(id, model.parameters()), twin.parameters(), strict=True))
    hidden = [of_twin[id(weight)] for weight in find_hidden_matrices(model)]
    remaining = [weight for weight in twin.parameters() if not any(weight is matrix for matrix in hidden)]
    by_decay = [
        {"params": [weight for weight in remaining if (weight.ndim > 1) is decays], "weight_decay": 0.1 * decays}
        for decays in (True, False)
    ]
    separate = (
        torch.optim.Muon(hidden, lr=0.03, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(by_decay, lr=0.01, eps=1e-8, fused=True),
    )
    for number in range(4):
        for weight, other in zip(model.parameters(), twin.parameters(), strict=True):
            weight.grad = torch.randn_like(weight)
            other.grad = weight.grad.clone()
        optimizer.step()
        for one in separate:
            one.step()
        if number == 1:
            state = optimizer.state_dict()
            optimizer = build_optimizer(model, settings)
            optimizer.load_state_dict(state)
    for (name, weight), other in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert torch.equal(weight, other), name


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Schedule.linear, {0: 0.0, 5: 0.5, 10: 1.0, 55: 0.5, 100: 0.0}),
        # The published schedule decays from step 0, so it falls to 0.9 where the warm-up ends.
        (Schedule.reference_linear, {0: 0.0, 5: 0.5, 9: 0.9, 10: 0.9, 50: 0.5, 100: 0.0}),
        (Schedule.cosine, {5: 0.5, 10: 1.0, 55: 0.5, 100: 0.0}),
        (Schedule.constant, {0: 0.0, 5: 0.5, 10: 1.0, 99: 1.0}),
    ],
)
@pytest.mark.parametrize("warmup", [10, 0.1])
def test_schedules_follow_their_closed_forms(schedule, expected, warmup):
    settings = TrainerConfig(schedule=schedule, warmup_steps=warmup)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    factor = build_schedule(optimizer, settings, 100).lr_lambdas[0]
    assert {step: factor(step) for step in expected} == pytest.approx(expected)


def test_schedules_without_warmup_start_at_the_full_rate():
    settings = TrainerConfig(schedule=Schedule.linear, warmup_steps=0)
    factor = build_schedule(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0), settings, 4).lr_lambdas[0]
    assert [factor(step) for step in range(5)] == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.0])
    assert math.isfinite(factor(10))


@pytest.mark.parametrize(("steps", "is_warned"), [(20, True), (30, True), (31, False)])
def test_a_warmup_as_long_as_training_is_a_warning(
    steps: int, is_warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = TrainerConfig(warmup_steps=30, learning_rate=2e-3)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    factor = build_schedule(optimizer, settings, steps).lr_lambdas[0]
    assert (max(factor(step) for step in range(steps)) < 1.0) == is_warned
    line = f"warning: trainer.warmup_steps=30: training has only {steps} steps, so the rate never reaches "
    printed = capsys.readouterr().out
    assert " ".join(printed.split()) == (f"{line}trainer.learning_rate=0.002" if is_warned else "")


@pytest.mark.parametrize(("metric", "greater", "value"), [("eval_score", None, -0.5), ("eval_gain", False, -0.5)])
def test_a_constant_negative_metric_lowers_the_rate_of_a_plateau(
    metric: str, greater: bool | None, value: float
) -> None:
    """Check a case in which torch's relative threshold takes any constant below 0 for an improvement."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    settings = TrainerConfig(
        schedule=Schedule.plateau, plateau_patience=1, metric_for_best_model=metric, greater_is_better=greater
    )
    schedule: Any = build_schedule(optimizer, settings, 10)
    for _ in range(3):
        schedule.step(value)
    assert optimizer.param_groups[0]["lr"] == 0.5


@pytest.mark.parametrize(("metric", "sign"), [("eval_loss", -1.0), ("eval_score", 1.0)])
def test_a_plateau_of_positive_metrics_matches_torch(metric: str, sign: float) -> None:
    optimizers = [torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0) for _ in range(2)]
    settings = TrainerConfig(schedule=Schedule.plateau, plateau_patience=1, metric_for_best_model=metric)
    schedule: Any = build_schedule(optimizers[0], settings, 10)
    mode: Any = schedule.mode
    stock = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizers[1], mode, factor=0.5, patience=1, min_lr=1e-6)
    for step in range(9):
        value = 2.0 + sign * (0.1 * min(step, 3) + 1e-5 * step)
        schedule.step(value)
        stock.step(value)
        assert optimizers[0].param_groups[0]["lr"] == optimizers[1].param_groups[0]["lr"]
    assert optimizers[0].param_groups[0]["lr"] < 1.0
