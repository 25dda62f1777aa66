"""Searches that end when their architecture stays unchanged: the update, the message, and a resume."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from adadepth.training.supernet_gates import StopUnchanged
from tests.marks_support import keep_one_quick
from tests.training.stream_support import build_stream_config, build_stream_trainer
from tests.unit.models.par_xl_support import build_supernet

LETTERS = "sf-"
SEARCH = (
    "trainer.max_steps=12", "trainer.save_total_limit=null", "trainer.load_best_model_at_end=false",
    "search.gate_learning_rate=1", "search.sampled_paths=1", "model.cutoffs=[]",
    "trainer.eval_on_start=false",  # a resumed run has none
)  # fmt: skip


def build_decided_supernet(architecture):
    """Return a supernet whose most probable operations these are; an empty architecture has not learned."""
    gates = torch.nn.functional.one_hot(torch.tensor([LETTERS.index(letter) for letter in architecture or "ssss"]), 3)
    return build_supernet((gates * bool(architecture)).tolist())


@pytest.mark.parametrize(
    ("share", "architectures", "stops_at"),
    [
        (0.75, ["", "", "sfff", "ffs-", "ffff", "fsff", "fsff"], 5),
        (1.0, ["", "", "sfff", "ffs-", "ffff", "fsff", "fsff"], 6),
        (0.25, ["sfff", "ffs-", "ffs-"], 1),
        (0.75, ["ssff", "sssf", "ssss"], 1),
        (1.0, ["ssss", "fsss"], None),
    ],
)
def test_a_search_ends_after_unchanged_evaluations(share, architectures, stops_at, capsys):
    rule, control, state = StopUnchanged(share), TrainerControl(), TrainerState(global_step=7)
    stopped = None
    for number, architecture in enumerate(architectures):
        rule.on_evaluate(TrainingArguments("unused"), state, control, model=build_decided_supernet(architecture))
        if control.should_training_stop and stopped is None:
            stopped = number
    assert stopped == stops_at
    text = capsys.readouterr().out.replace("\n  ", " ")  # long lines are wrapped
    assert text.count("search ends at step") == (stops_at is not None), "told once"
    if stops_at is not None:
        before, now = architectures[stops_at - 1 : stops_at + 1]
        assert (
            f"are unchanged since the previous evaluation, from {before} to {now} "
            f"(search.stop_unchanged={share:g})" in text
        )


class Notes(TrainerCallback):
    """Callback that records the architecture of every evaluation."""

    def __init__(self):
        self.seen = []

    def on_evaluate(self, args, state, control, model, **kwargs):
        self.seen.append((state.global_step, model.architecture() if model.gates.any() else None))


def run_search(folder, *overrides, resume=None):
    trainer, notes = build_stream_trainer(build_stream_config(folder.parent, *SEARCH, *overrides), folder), Notes()
    trainer.add_callback(notes)
    trainer.train(resume_from_checkpoint=resume)
    return trainer, notes.seen


METHODS = {
    "joint": ("search.method=joint",),
    "two_phase": ("search.method=two_phase", "search.weights_only=2", "search.architecture_share=0.5"),
}


@pytest.mark.parametrize("method", keep_one_quick(2, METHODS))
def test_a_search_and_its_resume_end_at_the_same_update(tmp_path, method):
    """Find the expected update from the evaluations of a search without the rule."""
    settings = METHODS[method]
    _, seen = run_search(tmp_path / "whole", *settings)
    pairs = pairwise(seen)
    expected = next(step for (_, before), (step, now) in pairs if before is not None and before == now)
    assert 2 < expected < 12, seen
    overrides = (*settings, "search.stop_unchanged=1")
    stopped, _ = run_search(tmp_path / "stopped", *overrides)
    assert stopped.state.global_step == expected
    checkpoint = tmp_path / "stopped" / f"checkpoint-{expected - 1}"
    resumed, _ = run_search(tmp_path / "resumed", *overrides, resume=str(checkpoint))
    assert resumed.state.global_step == expected, "it knows the architecture of the evaluation before"
    for name, weight in stopped.model.named_parameters():
        assert torch.equal(weight, resumed.model.get_parameter(name)), name
