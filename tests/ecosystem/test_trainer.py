"""Training and evaluation of every head of every family with transformers' own Trainer."""

import math

import numpy as np
import pytest
import torch
from transformers import Trainer, TrainingArguments

from tests.ecosystem.families_under_test import CASES, build_targets
from tests.ecosystem.model_tests import BATCH
from tests.marks_support import keep_one_quick

# The first head of each family is a quick test.
HEADS = [
    head
    for case in CASES
    for head in keep_one_quick(
        99, [pytest.param(case, head, id=head.__name__) for head in case.models() if build_targets(head)]
    )
]


def draw_examples(case, head, config):
    inputs = case.inputs(config)
    if "MultipleChoice" in head.__name__:
        inputs = {name: value.unsqueeze(1).expand(-1, 2, -1) for name, value in inputs.items()}
    batch = inputs | build_targets(head)
    return [{name: value[row] for name, value in batch.items()} for row in range(BATCH)]


@pytest.mark.parametrize(("case", "head"), keep_one_quick(3, HEADS))
def test_the_stock_trainer_trains_and_evaluates(case, head, tmp_path):
    config = case.config()
    model, data = head(config), draw_examples(case, head, config)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    arguments = TrainingArguments(
        tmp_path, max_steps=1, per_device_train_batch_size=BATCH, per_device_eval_batch_size=2,
        use_cpu=True, report_to="none", save_strategy="no", disable_tqdm=True, learning_rate=0.1,
    )  # fmt: skip
    seen = []
    trainer = Trainer(
        model,
        arguments,
        train_dataset=data,
        eval_dataset=data,
        compute_metrics=lambda prediction: seen.append(prediction) or {},
    )
    trainer.train()
    assert any(not torch.equal(weight, before[name]) for name, weight in model.named_parameters())

    metrics = trainer.evaluate()
    assert math.isfinite(metrics["eval_loss"])
    predictions = seen[0].predictions
    several = predictions if isinstance(predictions, tuple) else (predictions,)
    assert all(isinstance(array, np.ndarray) for array in several)
    with torch.no_grad():
        weights = [len(part) for part in (data[:2], data[2:])]
        losses = [float(model.eval()(**trainer.data_collator(part)).loss) for part in (data[:2], data[2:])]
    assert metrics["eval_loss"] == pytest.approx(np.average(losses, weights=weights), rel=1e-5)
