"""Private members of transformers' Trainer that `DepthTrainer` relies on: their place, parameters and meaning."""

from __future__ import annotations

import inspect

import pytest
from transformers import Trainer

from adadepth.training.checkpointing import CheckpointingTrainer
from adadepth.training.trainer import DepthTrainer

# Each private method that is overridden: its parameters, and the calls that we count on, by the method they stand in.
OVERRIDDEN: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "_determine_best_metric": (
        ("metrics", "trial"),
        {"_maybe_log_save_evaluate": "is_new_best_metric = self._determine_best_metric(metrics=metrics, trial=trial)"},
    ),
    "_save_checkpoint": (
        ("model", "trial"),
        {"_maybe_log_save_evaluate": "if self.control.should_save:\n            self._save_checkpoint(model, trial)"},
    ),
    "_save_optimizer_and_scheduler": (
        ("output_dir",),
        {
            "_save_checkpoint": "if not self.args.save_only_model:\n            # Save optimizer and scheduler\n"
            "            self._save_optimizer_and_scheduler(output_dir)"
        },
    ),
    "_load_from_checkpoint": (
        ("resume_from_checkpoint", "model"),
        {
            "train": "self._load_from_checkpoint(resume_from_checkpoint)",
            "_prepare_for_training": "self._load_from_checkpoint(resume_from_checkpoint, self.model_wrapped)",
        },
    ),
    "_load_best_model": (
        (),
        {"_finalize_training": "self.state.best_model_checkpoint is not None:\n            self._load_best_model()"},
    ),
    "_load_optimizer_and_scheduler": (
        ("checkpoint",),
        {
            "_prepare_for_training": "self._load_optimizer_and_scheduler(resume_from_checkpoint)\n"
            "            self._load_scaler(resume_from_checkpoint)"
        },
    ),
}
# Private members that are used as they are, and the line of a method that says they mean what we believe.
USED = {
    "_load_rng_state": ("_run_epoch", "self._load_rng_state(resume_from_checkpoint)"),
    "_prepare_inputs": ("training_step", "inputs = self._prepare_inputs(inputs)"),
    "_save": ("save_model", "self._save(output_dir, state_dict=state_dict)"),
    "_tr_loss": ("_run_epoch", "self._tr_loss += tr_loss_step"),
    "_globalstep_last_logged": ("_maybe_log_save_evaluate", "self._globalstep_last_logged = self.state.global_step"),
    "_created_lr_scheduler": (
        "_prepare_for_training",
        "if self._created_lr_scheduler:\n            self.lr_scheduler = None",
    ),
}
# Order of a training and of an epoch in transformers, on which `ResumeCallback` relies.
ORDER = {
    "_inner_training_loop": (
        "self._init_training_state(", "self._prepare_for_training(", "self._tr_loss = torch.tensor(0.0",
        "self.callback_handler.on_train_begin(", "self.callback_handler.on_epoch_begin(", "self._run_epoch(",
    ),
    "_run_epoch": (
        "self.get_batch_samples(", "self._load_rng_state(resume_from_checkpoint)\n                rng_to_sync = False",
        "self.callback_handler.on_step_begin(", "self.training_step(",
        "if self.control.should_epoch_stop or self.control.should_training_stop",
        "self.callback_handler.on_epoch_end(", "self._maybe_log_save_evaluate(",
    ),
    "_save_checkpoint": ("self.save_model(output_dir, _internal_call=True)", "self._save_optimizer_and_scheduler("),
    "_finalize_training": ("self._load_best_model()", "self.callback_handler.on_train_end("),
}  # fmt: skip


def read_method(method: str) -> str:
    return inspect.getsource(getattr(Trainer, method))


def test_no_other_private_method_is_overridden() -> None:
    members = {**vars(DepthTrainer), **vars(CheckpointingTrainer)}
    private = {name for name in members if name.startswith("_") and not name.startswith("__")}
    assert {name for name in private if hasattr(Trainer, name)} == set(OVERRIDDEN)
    assert len(OVERRIDDEN) <= 6


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_overridden_methods_have_the_expected_parameters_and_callers(name: str) -> None:
    parameters, calls = OVERRIDDEN[name]
    for owner in (Trainer, DepthTrainer):
        assert tuple(inspect.signature(getattr(owner, name)).parameters)[1:] == parameters
    for method, line in calls.items():
        assert line in read_method(method), method


@pytest.mark.parametrize("name", USED)
def test_private_members_have_the_expected_meaning(name: str) -> None:
    method, line = USED[name]
    assert line in read_method(method)


@pytest.mark.parametrize("method", ORDER)
def test_transformers_trains_in_the_expected_order(method: str) -> None:
    text, position = read_method(method), 0
    for line in ORDER[method]:
        position = text.find(line, position)
        assert position >= 0, line
