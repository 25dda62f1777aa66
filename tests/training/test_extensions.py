"""A user's extension: its loss part is normalised, trained and logged, and its state survives a resume."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import TrainerCallback

from adadepth.training.extension import Extension
from tests.training.support import build_tiny_trainer

STEPS = ("trainer.max_steps=4", "trainer.logging_steps=1", "trainer.gradient_accumulation_steps=2")


class Pull(Extension, TrainerCallback):
    """Extension that charges for the mean depth of rows, and records the calls of its hooks."""

    def __init__(self):
        self.calls, self.updates, self.is_allowed = [], 0, True

    def counts(self, batch):
        self.calls.append("counts")
        return {"pull": batch["attention_mask"].any(dim=1).sum()}

    def prepare(self, batch, model):
        self.calls.append("prepare")
        return batch

    def forward_options(self, batch):
        self.calls.append("options")
        return {"output_hidden_states": True}

    def after_forward(self, batch, outputs):
        assert outputs.hidden_states is not None
        self.calls.append("forward")

    def loss_parts(self, outputs, counts):
        rows = outputs.trace.valid.any(dim=1).sum()
        return {"pull": 2.0 * rows / counts["pull"]}

    def after_backward(self, batch, model):
        assert any(parameter.grad is not None for parameter in model.parameters())
        self.calls.append("backward")

    def parameter_groups(self, model, settings):
        bias = model.predictions.bias
        return [{"params": [bias], "lr": 0.0, "weight_decay": 0.0, "decays": False, "constant": True}]

    def logs(self):
        return {"pull/updates": float(self.updates)}

    def on_step_end(self, args, state, control, **kwargs):
        self.updates += 1

    def allows_best(self):
        return self.is_allowed

    def save(self, checkpoint, process):
        (checkpoint / f"pull_{process}.json").write_text(json.dumps(self.updates))

    def load(self, checkpoint, process, device):
        self.updates = json.loads((checkpoint / f"pull_{process}.json").read_text())


def test_every_hook_takes_part_in_training(tmp_path):
    pull = Pull()
    trainer = build_tiny_trainer(tmp_path / "one", *STEPS, extensions=[pull])
    bias = trainer.model.predictions.bias.detach().clone()
    trainer.train()
    assert pull.calls[:10] == ["counts", "counts"] + ["prepare", "options", "forward", "backward"] * 2
    logged = [entry for entry in trainer.state.log_history if "pull_loss" in entry]
    assert [entry["pull/updates"] for entry in logged] == [1.0, 2.0, 3.0, 4.0]
    for entry in logged:  # over both micro-batches of an update: rows / rows, with its weight
        assert entry["pull_loss"] == pytest.approx(2.0)
        parts = [value for name, value in entry.items() if name.endswith("_loss")]
        assert entry["loss"] == pytest.approx(sum(parts), abs=2e-4)
    assert torch.equal(trainer.model.predictions.bias, bias), "its own group has a rate of zero"


def test_the_state_of_an_extension_is_part_of_a_checkpoint(tmp_path):
    saving = ("trainer.save_strategy=steps", "trainer.save_steps=2", "trainer.save_total_limit=null")
    build_tiny_trainer(tmp_path, *STEPS, *saving, extensions=[Pull()]).train()
    resumed = Pull()
    trainer = build_tiny_trainer(tmp_path / "again", *STEPS, *saving, extensions=[resumed])
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert resumed.updates == 4
    assert [entry["pull/updates"] for entry in trainer.state.log_history if "pull_loss" in entry][-2:] == [3.0, 4.0]


def test_an_extension_can_bar_a_model_from_being_the_best(tmp_path):
    best = (
        "trainer.eval_strategy=steps", "trainer.eval_steps=1", "trainer.save_strategy=steps", "trainer.save_steps=1",
        "trainer.load_best_model_at_end=true", "trainer.max_steps=2",
    )  # fmt: skip
    pull = Pull()
    pull.is_allowed = False
    trainer = build_tiny_trainer(tmp_path, *best, extensions=[pull])
    trainer.train()
    assert trainer.state.best_model_checkpoint is None
