"""Training on a stream: epochs differ in their masks, and a resumed run continues exactly."""

import pytest
import torch

from tests.training.support import build_tiny_trainer


@pytest.fixture
def stream(tmp_path):
    corpus = tmp_path / "corpus.txt"
    texts = (f"Document {n} says something short. It says another thing, number {n}, too." * 3 for n in range(60))
    corpus.write_text("\n\n".join(texts), encoding="utf-8")
    return (
        "dataset=text",
        f"dataset.path={corpus}",
        "dataset.streaming=true",
        "dataset.max_documents=null",
        "dataset.shuffle_buffer=8",
        "tokenizer.vocab_size=60",
        "trainer.per_device_train_batch_size=8",
    )


def record_batches(trainer):
    seen, forward = [], trainer.model.forward

    def record(**inputs):
        if trainer.model.training:
            seen.append(inputs["input_ids"].clone())
        return forward(**inputs)

    trainer.model.forward = record
    return seen


@pytest.mark.slow
def test_epochs_differ_and_resume_is_exact(tmp_path, stream):
    overrides = (*stream, "trainer.save_strategy=steps", "trainer.save_steps=2", "trainer.save_total_limit=null")
    whole = build_tiny_trainer(tmp_path / "whole", *overrides, "trainer.max_steps=24")
    seen = record_batches(whole)
    whole.train()
    assert whole.state.global_step == 24
    assert len({tuple(batch.flatten().tolist()) for batch in seen}) == 24, "an epoch repeated another's masks"

    resumed = build_tiny_trainer(tmp_path / "resumed", *overrides, "trainer.max_steps=24")
    again = record_batches(resumed)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert all(torch.equal(expected, actual) for expected, actual in zip(seen[2:], again, strict=True))
    for name, parameter in whole.model.named_parameters():
        assert torch.equal(parameter, resumed.model.get_parameter(name)), name
