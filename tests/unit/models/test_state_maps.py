"""Maps of states against the states of each model's forward pass, and a spectral radius against the Jacobian."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from adadepth import AlbertActForTokenClassification, TrmForPuzzles
from adadepth.metrics.state_diagnostics import estimate_spectral_radius
from tests.marks_support import keep_one_quick, mark_mostly_slow
from tests.models_support import make_padded_batch, make_small_config
from tests.unit.models.every_model_support import BUILD, build_inputs
from tests.unit.models.looped.looped_support import IDS, KINDS, build_looped, check_close


@pytest.mark.parametrize("name", keep_one_quick(3, KINDS))
def test_the_loops_of_a_looped_model_are_its_maps(name: str) -> None:
    model = build_looped(**KINDS[name])
    mask = torch.ones_like(IDS)
    mask[1, 6:] = 0
    expected = model.model(IDS, mask, output_hidden_states=True).hidden_states
    start, valid, maps = model.build_state_maps({"input_ids": IDS, "attention_mask": mask})
    state = start
    assert torch.equal(valid, mask.bool())
    for function, states in zip([None, *maps], expected, strict=True):
        state = state if function is None else function(state)
        check_close(model.model.split_state(state)[0][valid], states[valid])


@pytest.mark.parametrize("recall", [False, True])
@pytest.mark.parametrize("state_rule", ["graves", "single"])
def test_the_updates_of_act_albert_are_its_maps(state_rule: str, recall: bool) -> None:
    """Set halting probabilities near 0, so that tokens halt at the last update, whose weight is the remainder."""
    model: Any = AlbertActForTokenClassification(make_small_config(state_rule=state_rule, recall=recall)).eval()
    with torch.no_grad():
        model.albert.encoder.albert_layer.act.dense.bias.fill_(-5.0)
    batch = make_padded_batch()
    expected = model.albert(**batch, output_hidden_states=True).hidden_states
    start, valid, maps = model.build_state_maps(batch)
    state = start
    for function, states in list(zip([None, *maps], expected, strict=True))[:-1]:
        state = state if function is None else function(state)
        check_close(state[valid], states[valid])
    assert len(maps) == model.max_updates > 1


def test_the_steps_of_a_tiny_recursive_model_are_its_maps() -> None:
    model: Any = BUILD["puzzles"]().eval()
    model.config.cycles = 3
    batch = build_inputs("puzzles")
    answer, reasoning = model.start(2)
    embedded = model.embed(batch["input_ids"], torch.zeros(2, dtype=torch.long))
    start, valid, maps = model.build_state_maps(batch)
    assert isinstance(model, TrmForPuzzles)
    assert valid.all()
    state = start
    for function in maps:
        state, (answer, reasoning) = function(state), model.step(embedded, answer, reasoning)
        check_close(state, torch.cat([answer, reasoning], dim=-1))


@pytest.mark.parametrize(
    "name", mark_mostly_slow(["two states", "act tagging", "puzzles"], lambda name: name.startswith("act"))
)
def test_the_radius_of_an_update_is_that_of_its_jacobian_by_finite_differences(name: str) -> None:
    """Compare with central differences, which find an update that leaves some gradients out."""
    model: Any = build_looped(**KINDS[name]) if name in KINDS else BUILD[name]().eval()
    model = model.double()
    if name == "puzzles":
        model.config.cycles = 2
    ids = torch.ones(1, 9, dtype=torch.long) if name == "puzzles" else IDS[:1, :4] % 20
    with torch.no_grad():
        state, valid, maps = model.build_state_maps({"input_ids": ids})
        state = maps[0](state)
        offsets = 1e-5 * torch.eye(state.numel(), dtype=state.dtype).view(-1, *state.shape)
        columns = [(maps[1](state + offset) - maps[1](state - offset)).flatten() / 2e-5 for offset in offsets]
    expected = torch.linalg.eigvals(torch.stack(columns, dim=1)).abs().max()
    estimate = estimate_spectral_radius(maps[1], state, valid, iterations=300)
    assert float(estimate) == pytest.approx(float(expected), rel=0.03)


def test_models_without_a_repeated_map_have_none() -> None:
    for name in ("exits", "early exit", "mixture"):
        assert BUILD[name]().build_state_maps(build_inputs(name)) is None
    model = BUILD["act choices"]()
    batch = build_inputs("act choices")
    start, *_ = model.build_state_maps(batch)
    assert start.shape[:2] == batch["input_ids"].flatten(0, -2).shape
