"""Runs of looped language models on packed blocks: whole, stopped, in micro-batches, in two processes, and deeper."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from adadepth import LoopedForCausalLM
from adadepth.tasks import exit_study
from tests.runs_support import execute_run, read_json
from tests.toy_support import execute
from tests.training.support import assert_same_end, copy_interrupted_run

ROOT = ("--config-name", "loop_tiny")
SMALL = (
    "dataset.sequence_length=32", "dataset.evaluation_fraction=0.1", "model.hidden_size=16", "tokenizer=bytes",
    "tokenizer.vocab_size=null",
    "model.intermediate_size=16", "model.num_attention_heads=2", "model.num_loops=3", "model.core=1",
    "model.injection=linear", "model.objective=last", "model.train_loops=drawn", "model.backprop_loops=2",
    "model.loop_curriculum=sqrt", "model.curriculum_share=0.9", "trainer.max_steps=6", "trainer.warmup_steps=0",
    "trainer.per_device_train_batch_size=8", "trainer.eval_steps=2", "trainer.save_steps=2",
    "trainer.save_total_limit=null", "trainer.logging_steps=1", "trainer.disable_tqdm=true",
    "trainer.eval_on_start=false", "trainer.precision=fp32",
)  # fmt: skip


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Return a text of so many blocks that the checkpoint of the second update lies within the first epoch."""
    file = tmp_path_factory.mktemp("corpus") / "text.txt"
    file.write_text("".join(f"líne {number} of it\n{'' if number % 3 else chr(10)}" for number in range(40)))
    return "dataset=causal_text", f"dataset.path={file}", *SMALL


@pytest.fixture(scope="module")
def trained_run(text: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return execute_run(tmp_path_factory.mktemp("trained"), *ROOT, *text)


@pytest.mark.slow
def test_a_run_logs_the_loss_of_every_loop(trained_run: Path) -> None:
    record = read_json(trained_run / "run.json")
    metrics = record["final_metrics"]
    assert record["status"] == "finished"
    assert metrics["eval/perplexity"] == pytest.approx(math.exp(metrics["eval/loss"]))
    assert metrics["eval/lm_loss_step_3"] == pytest.approx(metrics["eval/loss"])
    exits = read_json(trained_run / "exits.json")["sets"]["held_out"]
    assert [row["loss"] for row in exits["steps"]] == [metrics[f"eval/lm_loss_step_{loop}"] for loop in (1, 2, 3)]
    summary = record["data"]["evaluation"]
    assert exits["n"] == summary["tokens_used"]
    nats = metrics["eval/loss"] * exits["n"]
    assert metrics["eval/word_perplexity"] == pytest.approx(math.exp(nats / summary["words"]))
    assert metrics["eval/bits_per_character"] == pytest.approx(nats / math.log(2) / summary["characters"])
    assert metrics["eval/bits_per_byte"] == pytest.approx(nats / math.log(2) / summary["bytes"])
    assert "Loss of every step" in (trained_run / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_stopped_run_ends_as_the_whole_one(trained_run: Path, text: tuple[str, ...], tmp_path: Path) -> None:
    """Check a resume within an epoch bit for bit, where texts draw their loops and the mean of these grows."""
    assert 2 * 8 < read_json(trained_run / "run.json")["data"]["train"]["blocks"] < 4 * 8
    stopped = copy_interrupted_run(2, trained_run, tmp_path)
    assert execute(*ROOT, *text, f"resume={stopped}") == 0
    assert_same_end(stopped, trained_run)


@pytest.mark.slow
def test_a_stopped_run_of_two_states_ends_as_the_whole_one(text: tuple[str, ...], tmp_path: Path) -> None:
    """Check a resume of HRM-Text, whose low-level cycles only partly have gradients."""
    two_states = (
        "model=hrm_text_1b", *text, "model.vocab_size=null", "model.low_layers=1", "model.head_dim=8",
        "model.injection=none", "model.train_loops=fixed", "model.backprop_loops=null", "model.loop_curriculum=none",
        "model.curriculum_share=0.5", "model.embedding_scale=50", "trainer.max_steps=4",
    )  # fmt: skip
    whole = execute_run(tmp_path / "whole", *ROOT, *two_states)
    stopped = copy_interrupted_run(2, whole, tmp_path)
    assert execute(*ROOT, *two_states, f"resume={stopped}") == 0
    assert_same_end(stopped, whole)
    model = LoopedForCausalLM.from_pretrained(stopped / "model")
    assert (model.config.low_layers, model.config.low_backprop, model.model.low_start.abs().sum()) == (1, [2], 0)


@pytest.mark.slow
def test_exit_rules_are_studied_beyond_the_trained_loops(
    trained_run: Path, text: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exit_study, "TIMED_BLOCKS", 1)
    settings = ("mode=evaluate", f"checkpoint={trained_run}", "model.num_loops=5", "model.exit_rule=patience:1")
    studied = ("exit_rules=[patience:1,fixed:3,margin:0.01]", "adopt_rule=true", "budget.targets=[3]")
    studied = (*studied, "score_halves=true")
    run = execute_run(tmp_path, *ROOT, *text, *settings, *studied)
    exits = read_json(run / "exits.json")["sets"]["held_out"]
    before = read_json(trained_run / "exits.json")["sets"]["held_out"]
    assert [row["loss"] for row in exits["steps"]][:3] == pytest.approx([row["loss"] for row in before["steps"]])
    assert exits["max_steps"] == 5
    assert 1 <= exits["exit"]["mean"] < 5
    assert sum(row["n"] for row in exits["steps"]) == exits["n"] == before["n"]
    study = read_json(run / "exit_rules.json")["sets"]["held_out"]
    rows = {row["rule"]: row for row in study["rows"]}
    assert study["n"] == study["drawn_of"] == exits["n"]
    assert rows["patience:1"]["quality"]["loss"] == pytest.approx(exits["exit"]["loss"])
    assert rows["patience:1"]["mean_updates"] == pytest.approx(exits["exit"]["mean"])
    for loops in (3, 5):
        assert rows[f"fixed:{loops}"]["quality"]["loss"] == pytest.approx(exits["steps"][loops - 1]["loss"])
    assert rows["margin:0.01"]["seconds"].keys() == {"1", "8"}
    assert read_json(run / "model" / "config.json")["exit_rule"] == study["advice"]["rule"]["rule"]
    budgets = read_json(run / "budgets.json")
    fitted, replayed = budgets["rows"], {row["rule"]: row for row in budgets["exits"]["rows"]}
    assert 1 < fitted[1]["mean"] < 5
    # Fixed steps are compared on the half that measures budgets, and selected on the other.
    gain = replayed[fitted[1]["rule"]]["gains"]["fixed"]
    assert gain["adaptive"] == pytest.approx(fitted[1]["metrics"]["lm_loss"])
    assert replayed["fixed:3"]["quality"] == rows["fixed:3"]["quality"]
    verdict = read_json(run / "run.json")["verdict"]["worth"]
    assert any(", at target 3: held_out/loss" in sentence for sentence in verdict["sentences"])
    assert fitted[0]["metrics"]["lm_loss_step_1"] == fitted[1]["metrics"]["lm_loss_step_1"]
    # All tokens are recorded, so exit rules are selected and scored on the halves of budgets.
    assert study["has_budget_halves"]
    first = study["readings"]["fixed"][0]
    assert first["score"] == pytest.approx(-fitted[0]["metrics"]["lm_loss_step_1"])
    assert first["chosen_score"] == pytest.approx(-fitted[0]["fitting_metrics"]["lm_loss_step_1"])
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "minus the loss" in page
    assert "beyond the 3 steps of training" in page
    assert "beyond the" not in (trained_run / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_trained_model_is_fitted_to_a_budget(text: tuple[str, ...], tmp_path: Path) -> None:
    settings = ("budget.target=2", "model.exit_rule=margin:0.5")
    run = execute_run(tmp_path, *ROOT, *text, "dataset.evaluation_fraction=0.5", *settings)
    fitted = read_json(run / "budgets.json")["rows"][-1]
    assert fitted["fit"]["depth"] == pytest.approx(2, abs=0.2)  # on the half that it is fitted on
    assert read_json(run / "run.json")["final_metrics"]["budget/measured"] == fitted["mean"]
    assert read_json(run / "model" / "config.json")["exit_rule"].startswith("margin:")


@pytest.mark.slow
def test_a_pretrained_decoder_is_looped_and_trained(text: tuple[str, ...], tmp_path: Path) -> None:
    """Compare the first loop with a decoder of the kept layers, under its own tokenizer."""
    pieces = Tokenizer(models.BPE())
    pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pieces.train_from_iterator(
        ["line of it"], trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=pieces, eos_token="<end>")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 4}
    decoder = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer) + 3, **sizes))
    for part in (decoder, tokenizer):
        part.save_pretrained(tmp_path / "decoder")
    data_overrides = [override for override in text if not override.startswith(("tokenizer", "model."))]
    parts = (
        f"model.pretrained={tmp_path / 'decoder'}",
        "model.prelude=1",
        "model.core=1",
        "model.coda=1",
        "model.num_loops=3",
        "trainer.learning_rate=1e-30",
    )
    run = execute_run(tmp_path / "runs", "--config-name", "loop_retrofit", *data_overrides, *parts)
    model = LoopedForCausalLM.from_pretrained(run / "model")
    decoder.model.layers = decoder.model.layers[:1] + decoder.model.layers[2:]
    decoder.config.num_hidden_layers = 3
    ids = torch.tensor([tokenizer("line 3 of it")["input_ids"]])
    with torch.no_grad():
        assert torch.allclose(model(ids, num_loops=1).logits, decoder(ids, use_cache=False).logits, atol=1e-6)
    assert len(read_json(run / "exits.json")["sets"]["held_out"]["steps"]) == 3
