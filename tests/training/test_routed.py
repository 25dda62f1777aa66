"""Routed models as runs: on text, on pointers, and on a frozen pretrained decoder; depth is fitted, runs resume."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from adadepth import RoutedForCausalLM
from tests.runs_support import execute_run, read_json
from tests.toy_support import execute
from tests.training.support import assert_same_end, copy_interrupted_run

QUICK = ("trainer.disable_tqdm=true", "trainer.logging_steps=1")
TEXT = ("--config-name", "mor_tiny", "debug=default", "model.hidden_size=16")


def test_a_language_model_is_trained_reported_and_fitted(tmp_path: Path) -> None:
    trained = execute_run(tmp_path / "trained", *TEXT, "model.measure_leak=true", *QUICK)
    final = read_json(trained / "run.json")["final_metrics"]
    assert final["eval/routing/load_1"] == 1.0
    assert {"eval/routing/load_3", "eval/routing/dead", "eval/routing/agreement", "eval/routing/topk_loss"} <= set(
        final
    )
    page = (trained / "report.html").read_text(encoding="utf-8")
    assert "see later tokens" in page
    halting = read_json(trained / "halting.json")
    assert (halting["unit"], halting["max_depth"]) == ("token", 3)
    assert AutoModelForCausalLM.from_pretrained(trained / "model").config.recursions == 3
    targets = "budget.targets=[1.5,2.5]"
    run = execute_run(tmp_path / "fitted", *TEXT, "mode=evaluate", f"checkpoint={trained}", targets)
    budgets = read_json(run / "budgets.json")
    assert budgets["knob"] == "model.choice_bias"
    _, shallow, deep = budgets["rows"]
    assert shallow["mean"] < deep["mean"]


@pytest.mark.slow
@pytest.mark.parametrize("router", [(), ("model.router=token", "model.balance=bias", "model.bias_step=0.1")])
def test_a_run_resumes_bit_for_bit(router: tuple[str, ...], tmp_path: Path) -> None:
    steps = ("trainer.max_steps=4", "trainer.save_strategy=steps", "trainer.save_steps=2", "trainer.eval_strategy=no",
             "trainer.load_best_model_at_end=false", "trainer.save_total_limit=null")  # fmt: skip
    whole = execute_run(tmp_path / "whole", *TEXT, *router, *steps, *QUICK)
    stopped = copy_interrupted_run(2, whole, tmp_path / "stopped")
    assert execute(*TEXT, *router, *steps, *QUICK, f"resume={stopped}") == 0
    assert_same_end(stopped, whole)


@pytest.mark.slow
def test_routers_of_a_frozen_decoder_learn_alone(tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=300, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32,
        tie_word_embeddings=True,
    )  # fmt: skip
    decoder = LlamaForCausalLM(config)
    decoder.save_pretrained(tmp_path / "decoder")
    run = execute_run(
        tmp_path / "runs", "--config-name", "router_tuning", f"model.pretrained={tmp_path / 'decoder'}",
        "tokenizer=trained", "tokenizer.vocab_size=300", "debug=default", *QUICK,
    )  # fmt: skip
    model = RoutedForCausalLM.from_pretrained(run / "model")
    frozen = {f"model.{name}": value for name, value in decoder.model.state_dict().items() if name != "norm.weight"}
    for name, value in model.state_dict().items():
        if name in frozen:
            assert torch.equal(value, frozen[name]), name
    assert not torch.equal(model.routers[0].output.bias, torch.full((1,), 2.0))
    assert read_json(run / "run.json")["final_metrics"]["eval/routing/load_2"] > 0
