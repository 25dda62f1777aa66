"""The second training stage: a halting head alone learns, on a frozen model."""

import json

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from adadepth import tasks
from adadepth.errors import UserError
from adadepth.halting.distribution import continuation_losses
from tests.configs.support import configured
from tests.marks_support import mark_mostly_slow
from tests.models_support import make_padded_batch, make_small_ponder
from tests.training.support import assert_same_end, copy_interrupted_run, run_config

TOKENS = (
    "dataset=parity", "dataset.size=8", "dataset.sequence_length=12", "dataset.train_ones=[1,8]",
    "dataset.extrapolation_ones=null", "model.embedding_size=16", "model.hidden_size=16",
    "model.num_hidden_layers=4", "model.num_attention_heads=2", "model.intermediate_size=32",
)  # fmt: skip
VECTORS = (
    "dataset.size=8", "dataset.train_ones=[1,8]", "dataset.extrapolation_ones=null", "dataset.easy_epochs=0",
    "dataset.easy_ones=null", "model.hidden_size=16",
)  # fmt: skip
SHORT = (
    "dataset.train_examples=64", "dataset.max_evaluation_examples=16", "trainer.per_device_train_batch_size=8",
    "trainer.max_steps=4", "trainer.time_budget_minutes=null", "trainer.eval_strategy=steps", "trainer.eval_steps=2",
    "trainer.save_steps=2", "trainer.save_total_limit=null", "trainer.disable_tqdm=true", "trainer.warmup_steps=0",
    "trainer.learning_rate=1e-2", "trainer.halting_statistics=false", "trainer.load_best_model_at_end=false",
    "runtime.threads=1",
)  # fmt: skip
FAMILIES = {"ponder_tiny": TOKENS, "ponder_parity": VECTORS}


def train_stage(folder, root, *overrides):
    return run_config(configured(root, *FAMILIES[root], *SHORT, f"output_dir={folder}", *overrides))[0]


def load_weights(folder):
    return AutoModelForSequenceClassification.from_pretrained(folder).state_dict()


def is_halting(name):
    return name.startswith(("ponder.", "halting."))


@pytest.fixture(scope="module", params=mark_mostly_slow(FAMILIES, lambda family: family == "ponder_tiny"))
def first_stage(request, tmp_path_factory):
    """Return a family's configuration, and a run of its first stage."""
    return request.param, train_stage(tmp_path_factory.mktemp("first"), request.param)


@pytest.mark.slow
def test_only_the_halting_head_changes_and_the_result_is_an_ordinary_run(first_stage, tmp_path):
    root, first = first_stage
    second = train_stage(
        tmp_path, root, f"model.pretrained={first}/model", "halting.alone=true", "trainer.weight_decay=0.1"
    )
    before, after = load_weights(first / "model"), load_weights(second / "model")
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert torch.equal(value, after[name]) != is_halting(name), name
    assert (first / "model/config.json").read_text() == (second / "model/config.json").read_text()
    record = json.loads((second / "run.json").read_text())
    assert record["status"] == "finished"
    assert record["final_metrics"]["eval/loss"] == record["final_metrics"]["eval/halting_loss"]
    assert "eval/kl_loss" not in record["final_metrics"]
    assert "Second stage" in (second / "report.html").read_text()
    assert "Second stage" not in (first / "report.html").read_text()
    train_stage(tmp_path, root, "mode=evaluate", f"checkpoint={second}", "exit_rules=[quantile:0.5,fixed:2]")


@pytest.mark.slow
def test_a_resumed_second_stage_is_the_one_that_was_never_stopped(first_stage, tmp_path):
    root, first = first_stage
    stage = (f"model.pretrained={first}/model", "halting.alone=true")
    whole = train_stage(tmp_path / "whole", root, *stage)
    stopped = copy_interrupted_run(2, whole, tmp_path)
    tasks.run(configured(root, *FAMILIES[root], *SHORT, *stage, f"resume={stopped}"))
    assert_same_end(stopped, whole)


# ---- the model


@pytest.mark.parametrize("readout", ["tokens", "pooler"])
def test_what_is_frozen_evaluates_and_only_the_head_gets_gradients(readout):
    model = make_small_ponder(readout=readout, hidden_dropout_prob=0.3, classifier_dropout_prob=0.3)
    labels = torch.tensor([0, 1, 0])
    with torch.no_grad():
        expected = model(**make_padded_batch(), labels=labels)
    model.train()
    model.train_halting_alone(slope=10.0, threshold=0.1)
    for _ in range(2):
        output = model(**make_padded_batch(), labels=labels)
        assert torch.equal(output.step_logits, expected.step_logits), "no dropout"
        model.eval()
        model.train()
    assert model.training
    assert model.ponder.training
    assert not model.albert.training
    output.loss.backward()
    assert all((value.grad is not None) == is_halting(name) for name, value in model.named_parameters())


def test_the_loss_is_normalised_by_the_sequences_of_the_whole_update():
    model = make_small_ponder()
    model.train_halting_alone(slope=10.0, threshold=0.1)
    labels = torch.tensor([0, 1, -100])  # the last step is no target
    batch = make_padded_batch()
    assert {name: count.item() for name, count in model.count_targets({"labels": labels}).items()} == {"halting": 2}
    output = model(**batch, labels=labels)
    losses = torch.stack([-output.step_logits[row].log_softmax(-1)[:, labels[row]] for row in range(2)])
    per_row = continuation_losses(output.halting_logits[:2], losses, 10.0, 0.1)
    assert output.loss.item() == pytest.approx(per_row.mean().item(), rel=1e-5)
    shares = [
        model(
            **{name: value[row : row + 1] for name, value in batch.items()},
            labels=labels[row : row + 1],
            num_targets={"halting": torch.tensor(2)},
        ).loss.item()
        for row in range(3)
    ]
    assert sum(shares) == pytest.approx(output.loss.item(), rel=1e-4)
    assert shares[2] == 0.0


# ---- mistakes


def test_weights_of_another_family_and_a_single_step_are_refused(first_stage, tmp_path):
    root, first = first_stage
    depth = "model.num_hidden_layers=1" if root == "ponder_tiny" else "model.num_steps=1"
    with pytest.raises(UserError, match="has one step, so there is no exit to decide") as caught:
        train_stage(tmp_path, root, f"model.pretrained={first}/model", "halting.alone=true", depth)
    assert "\n" not in str(caught.value)
    if root == "ponder_tiny":
        plain = train_stage(tmp_path, root, "model=albert_mini")
        with pytest.raises(UserError, match=r"holds albert; halting\.alone=true needs ponder_albert"):
            train_stage(tmp_path, root, f"model.pretrained={plain}/model", "halting.alone=true")
