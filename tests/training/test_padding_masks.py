"""Batches without padding, which need no attention mask: the model computes the same without it."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.training.support import build_tiny_trainer


def test_a_mask_that_hides_nothing_is_not_passed_to_the_model(tmp_path: Path) -> None:
    trainer = build_tiny_trainer(tmp_path)
    batch = next(iter(trainer.get_train_dataloader()))
    whole = {**batch, "attention_mask": torch.ones_like(batch["attention_mask"])}
    padded = {**batch, "attention_mask": whole["attention_mask"].clone()}
    padded["attention_mask"][0, -1] = 0
    for raw_batch, is_passed in ((whole, False), (padded, True)):
        prepared = trainer.prepare_batch(raw_batch)
        assert ("attention_mask" in trainer.model_inputs(prepared)) == is_passed
        assert "attention_mask" in prepared  # statistics count its tokens
    inputs = trainer.model_inputs(trainer.prepare_batch(whole))
    model = trainer.unwrapped_model.eval()
    with torch.no_grad():
        alone, masked = model(**inputs), model(**inputs, attention_mask=whole["attention_mask"])
    assert alone.loss.equal(masked.loss)
    assert alone.trace.updates.equal(masked.trace.updates)
    assert alone.trace.valid.equal(masked.trace.valid)
    trainer.args.torch_compile = True  # one graph
    assert "attention_mask" in trainer.model_inputs(trainer.prepare_batch(whole))
