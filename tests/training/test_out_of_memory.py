"""Runs out of memory: recorded as failed, with a whole last checkpoint from which `resume=` goes on."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch

from adadepth import tasks
from adadepth.models.registry import family
from adadepth.runs.checkpoints import list_complete_checkpoints
from adadepth.runs.directory import CHECKPOINTS, read_record
from tests.configs.support import configured

SETTINGS = ("debug=default", "trainer.max_steps=4", "trainer.eval_strategy=no", "trainer.load_best_model_at_end=false",
            "trainer.save_steps=2", "trainer.eval_on_start=false")  # fmt: skip


@pytest.mark.slow
def test_a_run_out_of_memory_resumes_from_its_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = family("albert_act").head("pretraining")
    forward, calls = head.forward, [0]

    def raise_out_of_memory(self: torch.nn.Module, *args: object, **kwargs: object) -> object:
        calls[0] += self.training
        if calls[0] == 4:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return forward(self, *args, **kwargs)

    # transformers and the trainer read its signature
    raise_out_of_memory.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
    monkeypatch.setattr(head, "forward", raise_out_of_memory)
    with pytest.raises(torch.OutOfMemoryError):
        tasks.run(configured("act_tiny", *SETTINGS, f"output_dir={tmp_path}"))
    (run,) = (tmp_path / "act_tiny").iterdir()
    record = read_record(run)
    assert (record["status"], record["error"][:16]) == ("failed", "OutOfMemoryError")
    assert [path.name for path in list_complete_checkpoints(run / CHECKPOINTS)] == ["checkpoint-2"]
    calls[0] = 10
    tasks.run(configured("act_tiny", *SETTINGS, f"output_dir={tmp_path}", f"resume={run}"))
    assert read_record(run)["status"] == "finished"
    assert [path.name for path in list_complete_checkpoints(run / CHECKPOINTS)][-1] == "checkpoint-4"
