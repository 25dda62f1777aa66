"""Losses and layer dropout of early exits against torchtune: stored values of its code, and its code itself.

The tables hold results of `torchtune/modules/early_exit_loss.py` and `layer_dropout.py` (pytorch/torchtune, bd2a0fc).
`ADADEPTH_TORCHTUNE=FOLDER pytest tests/parity/test_early_exit_reference.py` compares with a checkout of torchtune. Its
two modules are loaded without the rest of the package.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adadepth.models.early_exit import modeling
from adadepth.models.early_exit.losses import dropout_probability, exit_weights
from tests.unit.models.early_exit.early_exit_support import IDS, LAYERS, build_config, build_early_exit, check_close

_FOLDER = os.environ.get("ADADEPTH_TORCHTUNE")
_needs_torchtune = pytest.mark.skipif(_FOLDER is None, reason="ADADEPTH_TORCHTUNE names no checkout of torchtune")
# exit_weights -> torchtune's function, and its weights of the layers 1, 3, 4 and 5 of 5 with a scale of 0.5.
WEIGHTS = {
    "uniform": ("uniform_loss_scale", [0.2, 0.2, 0.2, 0.4]),
    "linear": ("linear_l_loss_scale", [0.0555556, 0.1666667, 0.2222222, 0.5555556]),
    "sum": ("sum_l_loss_scale", [0.025641, 0.1025641, 0.2051282, 0.6666667]),
    "sqrt": ("sqrt_l_loss_scale", [0.1086462, 0.1881807, 0.2172924, 0.4858806]),
    "inverse": ("inv_l_loss_scale", [0.5042017, 0.1680672, 0.1260504, 0.2016807]),
    "inverse_sqrt": ("inv_sqrt_l_loss_scale", [0.3364989, 0.1942778, 0.1682495, 0.3009738]),
}
# Layers with a loss in the steps 0, 1, ...: every third of 8 layers, and 4 layers in 12 steps.
ROTATION = [[1, 4, 7, 8], [2, 5, 8], [1, 3, 6, 8], [2, 4, 7, 8], [3, 5, 8], [1, 4, 6, 8], [2, 5, 7, 8], [3, 6, 8],
            [1, 4, 7, 8], [2, 5, 8]]  # fmt: skip
GROWTH = [[4]] * 4 + [[3, 4]] * 2 + [[2, 3, 4]] + [[1, 2, 3, 4]] * 5
# Probabilities of 6 layers, at most 0.2.
DROPOUT = [0.0, 0.0297397, 0.0639016, 0.1031433, 0.1482202, 0.2]


def list_trained_layers(config: Any, step: int, total: int) -> list[int]:
    """List the layers whose exits have a loss in a step."""
    return [layer for layer, weight in zip(config.exits, exit_weights(config, step, total), strict=True) if weight]


# ---- against stored values


@pytest.mark.parametrize("name", WEIGHTS)
def test_loss_weights_equal_torchtune(name: str) -> None:
    config = build_config(5, exits=[1, 3, 4, 5], exit_weights=name, exit_scale=0.5)
    assert exit_weights(config) == pytest.approx(WEIGHTS[name][1], abs=1e-6)


def test_curricula_equal_torchtune() -> None:
    rotational, gradual = (
        build_config(8, exit_curriculum="rotational", rotation=3),
        build_config(4, exit_curriculum="gradual"),
    )
    assert [list_trained_layers(rotational, step, 10) for step in range(10)] == ROTATION
    assert [list_trained_layers(gradual, step, 12) for step in range(12)] == GROWTH


def test_layer_dropout_probabilities_equal_torchtune() -> None:
    config = build_config(6, layer_dropout=0.2)
    assert [dropout_probability(config, layer, None, 1) for layer in range(1, 7)] == pytest.approx(DROPOUT, abs=1e-6)
    assert dropout_probability(build_config(1, layer_dropout=0.2), 1, None, 1) == 0.2


# ---- against the code of torchtune


@pytest.fixture
def torchtune(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Load the modules `early_exit_loss` and `layer_dropout` of torchtune."""
    assert _FOLDER is not None
    logs = SimpleNamespace(get_logger=lambda level: None)
    stand_ins = {
        "torchtune": {"utils": logs}, "torchtune.modules": {},
        "torchtune.modules.transformer": {"TransformerDecoder": 0},
        "torchtune.modules.common_utils": {"slice_str_to_array": None},
    }  # fmt: skip
    for name, members in stand_ins.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    loaded = {}
    for name in ("early_exit_loss", "layer_dropout"):
        spec = importlib.util.spec_from_file_location(name, Path(_FOLDER, "torchtune", "modules", f"{name}.py"))
        assert spec is not None
        assert spec.loader is not None
        loaded[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded[name])
    return SimpleNamespace(**loaded)


@_needs_torchtune
@pytest.mark.parametrize("curriculum", ["none", "rotational", "gradual"])
@pytest.mark.parametrize("name", WEIGHTS)
def test_losses_of_a_curriculum_equal_torchtune(name: str, curriculum: str, torchtune: SimpleNamespace) -> None:
    fields = {"exit_weights": name, "exit_scale": 0.3, "exit_curriculum": curriculum, "rotation": 3}
    model, total = build_early_exit(num_hidden_layers=7, **fields).double().train(), 30
    source = torchtune.early_exit_loss
    kinds = {
        "none": source.EarlyExitCurriculum, "rotational": source.RotationalEarlyExitCurriculum,
        "gradual": source.GradualEarlyExitCurriculum,
    }  # fmt: skip
    reference = kinds[curriculum]([curriculum != "rotational" or layer % 3 == 0 for layer in range(7)], total)
    with torch.no_grad():
        states = model(IDS, output_hidden_states=True).hidden_states[1:]
    described = SimpleNamespace(layers=model.layers, unembed=partial(model.read, model.max_updates))
    for step in range(total):
        trained = {layer: states[layer][:, :-1] for layer, is_trained in enumerate(reference.get()) if is_trained}
        expected = source.early_exit_loss(
            described, trained, IDS[:, 1:].reshape(-1), nn.CrossEntropyLoss(), 0.3, getattr(source, WEIGHTS[name][0])
        )
        model.set_step(step, total)
        check_close(model(IDS, labels=IDS).loss, expected, 1e-6)
        reference.step()


@_needs_torchtune
def test_states_of_skipped_layers_equal_torchtune(torchtune: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare states under the same masks; torchtune draws each layer's mask with its own generator."""
    model = build_early_exit(layer_dropout=0.6).double().train()
    ids = IDS.repeat(4, 1)
    layers = nn.ModuleList(nn.Identity() for _ in range(LAYERS))
    torchtune.layer_dropout.prepare_layer_dropout(layers, 0.6, torchtune.layer_dropout.ScaleType.EXP)
    probabilities = [layer.dropout.prob for layer in layers]
    probabilities_per_call: list[list[float]] = []

    def skip_as_torchtune(chances: list[float], rows: int, device: torch.device) -> Tensor:
        probabilities_per_call.append(chances)
        masks = []
        for number, chance in enumerate(chances):
            generator = torch.Generator().manual_seed(number)
            masks.append(torch.bernoulli(torch.full((rows,), chance), generator=generator).bool())
        return torch.stack(masks, dim=1)

    monkeypatch.setattr(modeling, "draw_skipped", skip_as_torchtune)
    with torch.no_grad():
        states = model(ids, output_hidden_states=True).hidden_states
        running = model.begin({"input_ids": ids})
        expected = running.states
        for number, (arguments, options) in enumerate(running.inputs):
            layer = model.layers[number]
            expected = layers[number].dropout(
                lambda read, layer=layer, arguments=arguments, options=options: layer(read, *arguments, **options),
                expected,
            )
            check_close(states[number + 1], expected, 1e-6)
    assert probabilities_per_call[0] == pytest.approx(probabilities, abs=1e-6)
    assert 0 < sum(layer.dropout.inferred for layer in layers) < LAYERS
