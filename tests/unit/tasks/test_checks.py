"""Checks at the start of a run, with stand-ins for model and data."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from adadepth import AlbertActForMaskedLM, EarlyExitForCausalLM
from adadepth.errors import CheckpointError, ConfigError
from adadepth.tasks import checks
from tests.configs.support import configured
from tests.models_support import make_small_act


def make_arguments(**changes: Any) -> Any:
    values: dict[str, Any] = {
        "train_batch_size": 8, "world_size": 1, "dataloader_drop_last": True, "gradient_checkpointing": False,
        "bf16": False, "fp16": False,
    }  # fmt: skip
    return SimpleNamespace(**values | changes)


@pytest.mark.parametrize(("rows", "changes", "problem"), [
    (8, {}, None), (7, {"dataloader_drop_last": False}, None),
    (7, {}, "there are 7 training examples, too few for a full batch; smaller batches are dropped"),
    (15, {"world_size": 2}, "there are 15 training examples, too few for a full batch in each of 2 processes;"),
])  # fmt: skip
def test_training_data_must_fill_a_batch(rows: int, changes: dict[str, Any], problem: str | None) -> None:
    if problem is None:
        checks.check_batches(range(rows), make_arguments(**changes))
        return
    with pytest.raises(ConfigError, match=rf"^trainer\.per_device_train_batch_size=8: {problem}"):
        checks.check_batches(range(rows), make_arguments(**changes))


def test_data_without_a_length_always_fill_a_batch() -> None:
    checks.check_batches(iter([]), make_arguments())


@pytest.mark.parametrize(("positions", "is_refused"), [(None, False), (128, False), (127, True)])
def test_sequences_must_fit_the_positions(positions: int | None, is_refused: bool) -> None:
    config, model = configured("act_tiny", "dataset.sequence_length=128"), SimpleNamespace(longest_sequence=positions)
    if not is_refused:
        checks.check_positions(config, model)
        return
    with pytest.raises(CheckpointError, match=r"^dataset\.sequence_length=128: the model has only 127 positions$"):
        checks.check_positions(config, model)


def test_the_loss_of_a_checkpoint_must_be_computable() -> None:
    checks.check_step_loss("there", SimpleNamespace(step_loss_problem=None))
    with pytest.raises(ConfigError, match=r"^checkpoint there: the package x is missing$"):
        checks.check_step_loss("there", SimpleNamespace(step_loss_problem="the package x is missing"))


@pytest.mark.parametrize(("overrides", "problem"), [
    (["budget.target=4"], "budget.target=4: must be at most 3, in updates"),
    (["budget.target=3"], None),
    (["mode=evaluate", "checkpoint=a", "budget.targets=[2,4]"], "budget.targets=4: must be at most 3, in updates"),
    (["mode=evaluate", "checkpoint=a", "budget.target=4", "budget.targets=[2]"], None),
])  # fmt: skip
def test_a_budget_must_be_within_the_depth_of_the_model(overrides: list[str], problem: str | None) -> None:
    model = make_small_act(AlbertActForMaskedLM, num_hidden_layers=3)
    config = configured("act_tiny", "budget=depth", "model.act_penalty=0", *overrides)
    if problem is None:
        checks.check_depth(config, model)
        return
    with pytest.raises(ConfigError) as raised:
        checks.check_depth(config, model)
    assert str(raised.value) == problem


def test_states_are_diagnosed_where_one_map_repeats() -> None:
    act, exits = AlbertActForMaskedLM.__new__(AlbertActForMaskedLM), EarlyExitForCausalLM.__new__(EarlyExitForCausalLM)
    checks.check_state_maps(configured("act_tiny"), exits)
    diagnosed = configured("act_tiny", "trainer.state_diagnostics=true")
    checks.check_state_maps(diagnosed, act)
    with pytest.raises(ConfigError, match=r"^trainer\.state_diagnostics=true: model=albert_act does not update one st"):
        checks.check_state_maps(diagnosed, exits)
    sharded = configured("act_tiny", "trainer.state_diagnostics=true")
    sharded.trainer.fsdp = True
    with pytest.raises(ConfigError, match=r"needs a model in one piece, but trainer\.fsdp is set"):
        checks.check_state_maps(sharded, act)
