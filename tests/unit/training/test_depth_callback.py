"""Depth and compute in transformers' own Trainer, against a loop over the same batches."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import Trainer, TrainingArguments

import adadepth
from adadepth import DepthCallback
from tests.host_reads_support import ACCELERATOR, HostReads, accelerator_autocast
from tests.marks_support import keep_one_quick
from tests.models_support import MOVING, make_padded_batch, make_small_act
from tests.unit.models.every_model_support import BUILD, build_training_batch
from tests.wandb_support import read_wandb_history

LENGTHS = (10, 7, 1, 12, 3, 9, 5, 8)
SIZES = {name: MOVING[name] for name in ("vocab_size", "hidden_size", "num_attention_heads", "intermediate_size")}


def build_act() -> Any:
    return make_small_act(adadepth.AlbertActForSequenceClassification, hidden_dropout_prob=0.0)


def build_looped() -> Any:
    torch.manual_seed(0)
    sizes = {**SIZES, "core": 1, "num_loops": 4, "initializer_range": 0.5, "pad_token_id": 0}
    config = adadepth.LoopedConfig(**sizes, exit_rule="confidence:0.6")
    return adadepth.LoopedForSequenceClassification(config)


def build_early_exit() -> Any:
    torch.manual_seed(0)
    sizes = {**SIZES, "num_hidden_layers": 4, "initializer_range": 0.5, "pad_token_id": 0}
    config = adadepth.EarlyExitConfig(base="llama", **sizes, exit_heads="own", exit_rule="confidence:0.6")
    return adadepth.EarlyExitForSequenceClassification(config)


MODELS = pytest.mark.parametrize("build", [build_act, build_looped, build_early_exit])


def make_examples() -> list[dict[str, torch.Tensor]]:
    batch = make_padded_batch(LENGTHS)
    del batch["token_type_ids"]
    batch["labels"] = torch.arange(len(LENGTHS)) % 2
    return [{name: column[row] for name, column in batch.items()} for row in range(len(LENGTHS))]


def build_trainer(model: Any, folder: Path, **arguments: Any) -> Trainer:
    """Return a trainer with two examples in a batch that changes no weight, so that a loop sees the same depths."""
    settings = {
        "per_device_train_batch_size": 2, "per_device_eval_batch_size": 2, "num_train_epochs": 1, "learning_rate": 0.0,
        "report_to": "none", "save_strategy": "no", "use_cpu": True, "disable_tqdm": True,
    }  # fmt: skip
    args = TrainingArguments(str(folder), **(settings | arguments))
    examples = make_examples()
    return Trainer(model, args, train_dataset=examples, eval_dataset=examples, callbacks=[DepthCallback()])


def measure_in_a_loop(model: Any, *, training: bool) -> dict[str, float]:
    """Return depth and compute of all examples, two in a batch."""
    model.train(training)
    depths, works = [], []
    examples = make_examples()
    for row in range(0, len(examples), 2):
        batch = transformers.default_data_collator(examples[row : row + 2])
        with torch.no_grad():
            trace = model(**batch).trace
        depths.append(trace.updates[trace.valid].double())
        works.append(torch.stack([*model.price(trace)]))
    depth, work = torch.cat(depths), torch.stack(works).sum(dim=0).tolist()
    counts = depth.unique(return_counts=True)[1] / len(depth)
    return {
        "halting/all/n": len(depth),
        "halting/all/mean": float(depth.mean()),
        "halting/all/std": float(depth.std(correction=0)),
        "halting/all/median": float(depth.quantile(0.5, interpolation="lower")),
        "halting/all/p90": float(depth.sort().values[-(-9 * len(depth) // 10) - 1]),
        "halting/all/at_cap": float((depth == model.max_updates).double().mean()),
        "halting/effective_depths": float((-counts * counts.log()).sum().exp()),
        f"cost/macs_per_{model.depth_unit}": work[2] / len(depth),
        "cost/adaptive_over_full": work[2] / work[3],
        "cost/executed_over_full": work[0] / work[3],
        "cost/executed_over_dense": work[0] / work[1],
    }


@pytest.mark.parametrize("build", [build_looped, build_early_exit])
def test_training_logs_of_models_that_train_all_exits_have_full_depth(build: Any, tmp_path: Path) -> None:
    trainer = build_trainer(build(), tmp_path, logging_steps=4)
    trainer.train()
    training, evaluation = trainer.state.log_history[0], trainer.evaluate()
    assert (training["halting/all/mean"], training["cost/adaptive_over_full"]) == (4.0, 1.0)
    assert evaluation["eval_halting/all/mean"] < 2.0, "by the exit rule"


def select(metrics: dict[str, Any], names: Any, prefix: str = "") -> dict[str, float]:
    return {name: metrics[f"{prefix}{name}"] for name in names}


@MODELS
def test_an_evaluation_has_the_depths_of_a_loop(build: Any, tmp_path: Path) -> None:
    model = build()
    trainer = build_trainer(model, tmp_path)
    expected = measure_in_a_loop(model, training=False)
    assert expected["halting/all/std"] > 0, "depths differ"
    metrics = trainer.evaluate()
    assert select(metrics, expected, "eval_") == pytest.approx(expected)
    assert select(trainer.state.log_history[-1], expected, "eval_") == pytest.approx(expected)
    again = trainer.predict(trainer.eval_dataset, metric_key_prefix="held_out").metrics
    assert select(again, expected, "held_out_") == pytest.approx(expected), "nothing is counted twice"


@MODELS
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_training_log_covers_every_micro_batch_since_the_last(build: Any, micro_batches: int, tmp_path: Path) -> None:
    model = build()
    trainer = build_trainer(
        model, tmp_path, gradient_accumulation_steps=micro_batches, logging_steps=4 // micro_batches,
        train_sampling_strategy="sequential", eval_strategy="steps", eval_steps=1, num_train_epochs=2,
    )  # fmt: skip
    model(**transformers.default_data_collator(make_examples()[:1]))  # a pass that belongs to no batch of the trainer
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    expected = measure_in_a_loop(model, training=True)
    assert len(logs) == 2, "one for every epoch"
    for entry in logs:
        assert select(entry, expected) == pytest.approx(expected)
    in_evaluation = measure_in_a_loop(model, training=False)
    for entry in (entry for entry in trainer.state.log_history if "eval_loss" in entry):
        assert select(entry, in_evaluation, "eval_") == pytest.approx(in_evaluation)


def test_trackers_get_about_a_dozen_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "tensorboard"))
    import wandb

    trainer = build_trainer(build_act(), tmp_path, logging_steps=4, report_to=["tensorboard", "wandb"])
    trainer.train()
    trainer.evaluate()
    wandb.finish()
    (folder,) = {file.parent for file in tmp_path.rglob("events.out.tfevents.*")}
    logged = EventAccumulator(str(folder)).Reload().Tags()["scalars"]
    for section in ("train", "eval"):
        depths = {name for name in logged if name.startswith((f"{section}/halting/", f"{section}/cost/"))}
        assert f"{section}/halting/all/mean" in depths
        assert 10 <= len(depths) <= 15
        assert depths <= {name for line in read_wandb_history(tmp_path) for name in line}


SEARCHES = {"network", "supernet"}  # these read the operations of the blocks, once a log


@pytest.mark.parametrize("name", keep_one_quick(5, [name for name in BUILD if name not in SEARCHES]))
def test_a_micro_batch_between_two_logs_is_added_without_a_read(name: str) -> None:
    model = BUILD[name]().train().to(ACCELERATOR)
    batch = {
        key: value.to(ACCELERATOR) if torch.is_tensor(value) else value
        for key, value in build_training_batch(name).items()
    }
    callback, reads = DepthCallback(), HostReads()
    callback._read_traces(model)
    with accelerator_autocast():
        with HostReads():
            model(**batch)
        with reads:
            callback.on_substep_end(*[None] * 3)
    assert not reads.reads


def test_the_best_model_may_be_the_shallowest(tmp_path: Path) -> None:
    trainer = build_trainer(
        build_act(), tmp_path, eval_strategy="steps", eval_steps=2, save_strategy="best",
        metric_for_best_model="halting/all/mean", greater_is_better=False,
    )  # fmt: skip
    trainer.train()
    assert trainer.state.best_metric == pytest.approx(trainer.evaluate()["eval_halting/all/mean"])


def test_a_model_built_by_the_trainer_is_measured(tmp_path: Path) -> None:
    examples = make_examples()
    args = TrainingArguments(
        str(tmp_path), max_steps=1, logging_steps=1, report_to="none", save_strategy="no", use_cpu=True,
        disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(model_init=build_act, args=args, train_dataset=examples, callbacks=[DepthCallback()])
    trainer.train()
    assert trainer.state.log_history[0]["halting/all/mean"] > 1


def test_a_model_with_adapters_is_measured(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model = build_act()
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["query"], task_type="SEQ_CLS"))
    expected = measure_in_a_loop(model, training=False)
    assert select(build_trainer(adapted, tmp_path).evaluate(), expected, "eval_") == pytest.approx(expected)


def test_the_hook_ends_with_the_trainer(tmp_path: Path) -> None:
    model = build_act()
    trainer = build_trainer(model, tmp_path)
    trainer.evaluate()
    assert len(model._forward_hooks) == 1
    del trainer
    gc.collect()
    assert not model._forward_hooks


def test_a_model_without_depths_is_refused(tmp_path: Path) -> None:
    config = transformers.BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=1, intermediate_size=16)
    with pytest.raises(ValueError, match=r"^DepthCallback: BertForSequenceClassification has no depth trace; [^\n]+$"):
        build_trainer(transformers.BertForSequenceClassification(config), tmp_path)
    model = build_act()
    model.config.return_dict = False
    trainer = build_trainer(model, tmp_path)
    with pytest.raises(ValueError, match=r"^DepthCallback: the output of AlbertAct[^\n]+ has no depth trace; [^\n]+$"):
        trainer.evaluate()


def test_a_callback_added_after_the_start_is_refused(tmp_path: Path) -> None:
    trainer = build_trainer(build_act(), tmp_path)
    trainer.remove_callback(DepthCallback)
    trainer.add_callback(DepthCallback())
    with pytest.raises(ValueError, match=r"^DepthCallback: [^\n]+ pass it as Trainer\(callbacks=\[\.\.\.\]\)[^\n]+$"):
        trainer.evaluate()
