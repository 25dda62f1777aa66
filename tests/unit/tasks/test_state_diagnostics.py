"""Diagnostics of states of a trained model: on the first sequences, and refused where no map is repeated."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from adadepth.errors import ConfigError
from adadepth.evaluation.state_diagnostics import diagnose_states
from adadepth.tasks.checks import check_state_maps
from tests.unit.models.every_model_support import BUILD
from tests.unit.models.looped.looped_support import build_looped


def make_config(**trainer: Any) -> Any:
    settings = {"state_diagnostics": True, "fsdp": None, "deepspeed": None} | trainer
    return SimpleNamespace(trainer=SimpleNamespace(**settings), model=SimpleNamespace(name="early_exit"))


def test_a_setting_that_measures_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="state_diagnostics=true: model=early_exit does not update one state"):
        check_state_maps(make_config(), BUILD["early exit"]())
    with pytest.raises(ConfigError, match=r"needs a model in one piece, but trainer\.fsdp is set"):
        check_state_maps(make_config(fsdp=True), BUILD["looped"]())
    check_state_maps(make_config(), BUILD["looped"]())
    check_state_maps(make_config(state_diagnostics=False), BUILD["early exit"]())


def test_the_first_sequences_of_a_set_are_measured() -> None:
    """Use a state that is normed after every loop, so that a residual follows from the states of the model."""
    model = build_looped(core=1, num_loops=2, state_norm="fed")
    ids = torch.randint(0, 53, (20, 5), generator=torch.Generator().manual_seed(2))
    trainer = SimpleNamespace(
        unwrapped_model=model,
        data_collator=lambda examples: {"input_ids": torch.stack(examples)},
        prepare_batch=lambda batch: batch,
        model_inputs=lambda batch: batch,
    )
    measured = diagnose_states(trainer, ids)
    assert [measured[name] for name in ("sequences", "tokens", "radius_sequences")] == [16, 80, 4]
    states = model.model(ids[:16], output_hidden_states=True).hidden_states
    for row, before, after in zip(measured["rows"], states, states[1:], strict=False):
        residual = ((after - before).detach().norm(dim=-1) / before.norm(dim=-1)).mean()
        assert row["residual"] == pytest.approx(residual.item(), rel=1e-4)
        assert row["spectral_radius"] > 0
    assert measured["rows"][-1]["cka_last"] == pytest.approx(1.0)
