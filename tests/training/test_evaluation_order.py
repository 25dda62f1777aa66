"""Evaluation sorted by length: every example once in any number of processes, with the figures of data order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from transformers import TrainingArguments

from adadepth.training import trainer as module
from tests.training.support import build_tiny_trainer

SIZE = "trainer.per_device_eval_batch_size=4"


def test_one_process_and_three_cover_every_example_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = build_tiny_trainer(tmp_path, SIZE)
    lengths = trainer.data.evaluation["held_out"].lengths()
    assert len(set(lengths.tolist())) > 4
    for processes in (1, 3):
        monkeypatch.setattr(TrainingArguments, "world_size", processes)
        seen = []
        for process in range(processes):
            monkeypatch.setattr(TrainingArguments, "process_index", process)
            batches = list(trainer.get_eval_dataloader())
            widths = [batch["input_ids"].shape[1] for batch in batches]
            assert widths == sorted(widths, reverse=True)
            for batch in batches:
                assert batch["attention_mask"].sum(dim=1).tolist() == lengths[batch["index"].numpy()].tolist()
            seen += [number for batch in batches for number in batch["index"].tolist()]
        assert sorted(seen) == list(range(len(lengths)))


def test_sorted_evaluation_has_the_figures_of_data_order_for_less_compute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = build_tiny_trainer(tmp_path, SIZE)
    by_length, work = trainer.evaluate(), trainer.last_reports["held_out"].statistics["cost"]
    monkeypatch.setattr(module, "order_for_evaluation", lambda examples: np.arange(len(examples)))
    in_order, more_work = trainer.evaluate(), trainer.last_reports["held_out"].statistics["cost"]
    same = [name for name in in_order if name.endswith(("loss", "accuracy"))]
    assert len(same) > 4
    assert {name: by_length[name] for name in same} == pytest.approx({name: in_order[name] for name in same}, rel=1e-5)
    assert work["adaptive_macs"] == pytest.approx(more_work["adaptive_macs"])
    assert work["dense_macs"] < more_work["dense_macs"]
