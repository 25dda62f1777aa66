"""Runs of early-exit models on text, pointers and a pretrained encoder: exits are trained, studied and fitted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from adadepth import EarlyExitForMaskedLM, EarlyExitForTokenClassification
from adadepth.data import RunData, load_labelled_data
from adadepth.errors import ConfigError
from tests.configs.support import configured
from tests.runs_support import execute_run, read_json, read_logged
from tests.toy_support import execute
from tests.training.support import assert_same_end, copy_interrupted_run
from tests.unit.models.early_exit.early_exit_support import build_early_exit

QUICK = ("trainer.disable_tqdm=true", "trainer.logging_steps=1")


@pytest.mark.slow
def test_a_language_model_is_trained_on_text_and_its_exits_are_studied(tmp_path: Path) -> None:
    root = ("--config-name", "exit_tiny", "debug=default", "model.hidden_size=16", "model.num_hidden_layers=3")
    layers = ("model.exit_layers=[1]", "model.exit_heads=own", "model.layer_dropout=0.3", "model.distillation=0.5")
    trained = execute_run(tmp_path / "trained", *root, *layers, *QUICK)
    assert read_json(trained / "run.json")["status"] == "finished"
    halting = read_json(trained / "halting.json")
    assert (halting["unit"], halting["max_depth"]) == ("token", 2)
    assert {"eval/lm_loss_step_1", "eval/lm_loss_step_2"} <= set(read_json(trained / "run.json")["final_metrics"])
    assert read_logged(trained, "train/distillation_loss")
    assert AutoModelForCausalLM.from_pretrained(trained / "model").config.exits == [1, 3]
    rules = "exit_rules=[fixed:1,margin:0.001,oracle:expected]"
    run = execute_run(tmp_path / "studied", *root, "mode=evaluate", f"checkpoint={trained}", rules)  # its own exits
    # With its predictions, the run at full depth has the compute of an exit rule at full depth.
    full = read_json(run / "exit_rules.json")["sets"]["held_out"]["readings"]["fixed"][-1]
    compute = halting["cost"]["adaptive_macs"] / halting["n"]
    assert compute < 0.9 * full["macs"]
    assert compute + halting["prediction_macs"] == pytest.approx(full["macs"], rel=0.02)
    rows = {row["rule"]: row for row in read_json(run / "exit_rules.json")["sets"]["held_out"]["rows"]}
    assert rows["fixed:2"]["mean_updates"] == 2
    assert rows["fixed:1"]["macs"] < rows["fixed:2"]["macs"]
    assert rows["oracle:expected:0.5"]["kind"] == "ceiling"


def test_masked_words_are_compared_with_a_fixed_depth(tmp_path: Path) -> None:
    root = ("--config-name", "exit_mlm", "debug=default", "model.hidden_size=16", "model.num_hidden_layers=2")
    options = ("matched_baseline=true", "trainer.per_device_train_batch_size=16", "trainer.max_steps=2")
    run = execute_run(tmp_path, *root, *options, "trainer.eval_steps=2", "trainer.save_steps=2")
    compared = read_json(run / "matched_baseline.json")["sets"]["held_out"]
    assert compared["examples"] >= 8
    assert compared["rule"].startswith("margin:")


def test_positions_beyond_those_of_the_model_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = "--config-name exit_mlm debug=default model.max_position_embeddings=16"
    assert execute(*command.split(), f"output_dir={tmp_path}") == 2
    assert "dataset.sequence_length=64: the model has only 16 positions" in capsys.readouterr().err


@pytest.mark.slow
def test_exit_rules_of_masked_words_are_studied_and_fitted(tmp_path: Path) -> None:
    root = ("--config-name", "exit_mlm", "debug=default", "model.hidden_size=16", "model.num_hidden_layers=3")
    trained = execute_run(tmp_path / "trained", *root, *QUICK)
    final = read_json(trained / "run.json")["final_metrics"]
    assert final["eval/mlm_loss"] == final["eval/mlm_loss_step_3"]  # no rule: all words exit at the end
    assert final["eval/loss"] == final["eval/mlm_loss"]
    rules = ("exit_rules=[fixed:1,margin:0.0001,patience:1]", "budget.targets=[2]", "adopt_rule=true")
    rules = (*rules, "score_halves=true")
    run = execute_run(tmp_path / "studied", *root, "mode=evaluate", f"checkpoint={trained}", *rules)
    study = read_json(run / "exit_rules.json")["sets"]["held_out"]
    rows = {row["rule"]: row for row in study["rows"]}
    assert study["n"] <= study["drawn_of"]
    assert rows["fixed:1"]["macs"] < rows["fixed:3"]["macs"]
    assert 1 <= rows["margin:0.0001"]["mean_updates"] < 3
    assert set(rows["patience:1"]["time_ratio"]) == {"1", "8"}
    assert EarlyExitForMaskedLM.from_pretrained(run / "model").config.exit_rule == study["advice"]["rule"]["rule"]
    budgets = read_json(run / "budgets.json")
    assert budgets["knob"] == "exit_rule margin"
    # All words are recorded, so exit rules are scored on the words on which budgets are.
    full, as_trained = study["readings"]["fixed"][-1], budgets["rows"][0]
    assert study["has_budget_halves"]
    assert study["n"] == study["drawn_of"]
    losses = [as_trained[half]["mlm_loss_step_3"] for half in ("fitting_metrics", "metrics")]
    assert losses == pytest.approx([-full["chosen_score"], -full["score"]])


@pytest.mark.slow
def test_exits_of_a_tagger_do_not_move_states(tmp_path: Path) -> None:
    root = ("--config-name", "exit_hops", "debug=default", "dataset.max_evaluation_examples=16")
    trained = execute_run(tmp_path / "trained", *root, *QUICK)
    assert isinstance(
        EarlyExitForTokenClassification.from_pretrained(trained / "model"), EarlyExitForTokenClassification
    )
    rules = ("exit_rules=[fixed:1,margin:0.02,patience:1]", "budget.targets=[2]", "score_halves=true")
    run = execute_run(tmp_path / "studied", *root, "mode=evaluate", f"checkpoint={trained}", *rules)
    rows = {row["rule"]: row for row in read_json(run / "exit_rules.json")["sets"]["inside"]["rows"]}
    for rule in ("margin:0.02", "patience:1"):
        assert rows[rule]["online"]["mean_updates"] == pytest.approx(rows[rule]["mean_updates"])
        assert rows[rule]["online"]["quality"] == pytest.approx(rows[rule]["quality"])
    budgets, study = read_json(run / "budgets.json"), read_json(run / "exit_rules.json")["sets"]["inside"]
    assert budgets["knob"] == "exit_rule margin"
    # Exit rules are selected and scored on the halves on which budgets are fitted and scored.
    full = study["readings"]["fixed"][-1]
    assert study["has_budget_halves"]
    as_trained = budgets["rows"][0]
    assert (as_trained["fitting_metrics"]["score"], as_trained["metrics"]["score"]) == pytest.approx(
        (full["chosen_score"], full["score"])
    )
    first, second = rows[full["rule"]]["online"]["halves"]
    assert (first["quality"]["score"], second["quality"]["score"]) == pytest.approx(
        (full["chosen_score"], full["score"])
    )


@pytest.mark.slow
def test_early_exits_of_a_pretrained_encoder_are_trained_and_studied_under_all_rules(tmp_path: Path) -> None:
    """Train as EE-Tuning does: only the early exits learn, so the last exit stays the network of transformers."""
    build_early_exit(EarlyExitForTokenClassification, "bert", vocab_size=300)._build_stock().base_model.save_pretrained(
        tmp_path
    )
    table = tmp_path / "reviews.csv"
    lines = [
        f"{word} film {number},{label}" for number in range(20) for word, label in (("good", "yes"), ("bad", "no"))
    ]
    table.write_text("\n".join(["text,label", *lines]) + "\n")
    run = execute_run(
        tmp_path / "runs", "--config-name", "finetune", "model=early_exit_pretrained", f"model.pretrained={tmp_path}",
        "model.trains=exits", "model.exit_layers=[2]", "tokenizer.path=null", "tokenizer.vocab_size=100",
        f"dataset.path={table}", "dataset.sequence_length=32", "debug=default", *QUICK,
    )  # fmt: skip
    halting = read_json(run / "halting.json")
    assert (halting["unit"], halting["max_depth"]) == ("sequence", 2)
    command = ("--config-name", "finetune", "model=early_exit_pretrained", "mode=evaluate", "debug=default")
    checkpoint = (f"checkpoint={run}", f"dataset.path={table}", "model.trains=exits", "exit_rules=[all]")
    studied = execute_run(tmp_path / "studied", *command, *checkpoint)
    rows = {row["rule"]: row for row in read_json(studied / "exit_rules.json")["sets"]["held_out"]["rows"]}
    assert {rule.partition(":")[0] for rule in rows} >= {"fixed", "margin", "entropy", "patience", "kl"}
    for row in rows.values():
        assert 1 <= row["mean_updates"] <= 2
    assert rows["fixed:1"]["macs"] < rows["fixed:2"]["macs"]


RETROFIT = (
    "--config-name", "exit_retrofit", "debug=default", "model.exit_layers=[1,3]", "trainer.max_steps=4",
    "trainer.eval_steps=2", "trainer.save_steps=2", "trainer.save_total_limit=null", "matched_baseline=false", *QUICK,
)  # fmt: skip
NEW_TOKENIZER = ("tokenizer.path=null", "tokenizer.vocab_size=300")


def _save_stock(folder: Path) -> str:
    """Save a Llama of transformers."""
    build_early_exit(vocab_size=300)._build_stock().save_pretrained(folder)
    return f"model.pretrained={folder}"


def _list_stored(folder: Path) -> set[str]:
    return set(load_file(folder / "model.safetensors"))


def test_exits_are_trained_and_evaluated_without_a_copy_of_their_network(tmp_path: Path) -> None:
    base = _save_stock(tmp_path / "base")
    run = execute_run(tmp_path / "runs", *RETROFIT, base, *NEW_TOKENIZER, "model.save_base=false")
    assert {name.partition(".")[0] for name in _list_stored(run / "model")} == {"exits"}
    (tmp_path / "base").rename(tmp_path / "moved")
    moved = f"model.pretrained={tmp_path / 'moved'}"
    evaluated = execute_run(tmp_path / "e", *RETROFIT, "mode=evaluate", f"checkpoint={run}", moved)
    ends = [read_json(folder / "run.json")["final_metrics"] for folder in (run, evaluated)]
    for step in (1, 2, 3):
        assert ends[0][f"eval/lm_loss_step_{step}"] == ends[1][f"eval/lm_loss_step_{step}"]


def test_exits_after_layers_that_the_network_lacks_are_refused_before_data_are_prepared(tmp_path: Path) -> None:
    base = _save_stock(tmp_path / "base")
    arguments = (*RETROFIT[2:], base, *NEW_TOKENIZER)
    configured("exit_retrofit", *arguments, "model.exit_layers=[1,4]")
    with pytest.raises(ConfigError, match=r"^model\.exit_layers=\[6, 12\]: layers are counted from 1 to 4$"):
        configured("exit_retrofit", *arguments, "model.exit_layers=[6,12]")
    with pytest.raises(ConfigError, match=r"^model\.exit_layers=\[4\]: layers are counted from 1 to 3$"):
        configured("exit_retrofit", *arguments, "model.exit_layers=[4]", "model.num_hidden_layers=3")
    (tmp_path / "base" / "config.json").write_text("{")
    configured("exit_retrofit", *arguments, "model.exit_layers=[6,12]")  # the damage is reported when it is loaded


@pytest.mark.slow
def test_exits_without_their_network_resume_predict_and_are_left_out(tmp_path: Path, capsys) -> None:
    base = _save_stock(tmp_path / "base")
    command = (*RETROFIT, base, *NEW_TOKENIZER, "model.save_base=false")
    run = execute_run(tmp_path / "runs", *command)
    checkpoint = run / "checkpoints" / "checkpoint-2"
    assert _list_stored(checkpoint) == _list_stored(run / "model")
    stopped = copy_interrupted_run(2, run, tmp_path / "copy")
    assert execute(f"resume={stopped}") == 0
    assert_same_end(stopped, run)
    again = execute_run(tmp_path / "again", *RETROFIT, f"model.pretrained={run / 'model'}", "model.save_base=false")
    assert _list_stored(again / "model") == _list_stored(run / "model")
    execute_run(tmp_path / "p", *RETROFIT, "mode=predict", f"checkpoint={run}", "text=Return the", "new_tokens=3")
    plain = tmp_path / "plain"
    export = (*RETROFIT, "mode=export", f"checkpoint={run}", "export.layout=llama", f"export.folder={plain}")
    capsys.readouterr()
    assert execute(*export) == 2
    assert "export.drop_exits=true, leaves the exits out" in capsys.readouterr().err
    assert execute(*export, "export.drop_exits=true") == 0
    before, after = (load_file(folder / "model.safetensors") for folder in (tmp_path / "base", plain))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    save_file({name: weight + 1 for name, weight in before.items()}, tmp_path / "base" / "model.safetensors")
    assert execute(*RETROFIT, "mode=predict", f"checkpoint={run}", "text=Return the", f"output_dir={tmp_path}") == 2
    assert "its weights differ from those on which" in capsys.readouterr().err


def _score_by_hand(model: EarlyExitForTokenClassification, data: RunData, rule: str) -> tuple[float, float]:
    """Return accuracy and mean depth over the tokens of the half that scores budgets, one sequence at a time."""
    right, depths = [], []
    for row in np.random.default_rng(0).permutation(16)[8:]:
        batch = data.collate([data.evaluation["inside"][int(row)]])
        real = batch["attention_mask"].bool()
        with torch.no_grad():
            outputs = model(batch["input_ids"], attention_mask=batch["attention_mask"], exit_rule=rule)
        labels = batch["labels"]
        right += (outputs.logits.argmax(-1) == labels)[labels >= 0].tolist()
        depths += outputs.trace.updates[real].tolist()
    return sum(right) / len(right), sum(depths) / len(depths)


@pytest.mark.slow
def test_an_adopted_rule_keeps_the_results_of_the_trained_model(tmp_path: Path) -> None:
    """Check the order: a budget after adoption fits the exit rule of the checkpoint, and names it."""
    root = ("--config-name", "exit_hops", "debug=default", "dataset.max_evaluation_examples=16", *QUICK)
    trained = execute_run(tmp_path / "trained", *root, "model.exit_rule=confidence:0.99")
    rules = ("exit_rules=[fixed:1,margin:0.02]", "budget.targets=[2]", "adopt_rule=true")
    command = ("mode=evaluate", f"checkpoint={trained}", *rules)
    run = execute_run(tmp_path / "studied", *root, *command)
    adopted = read_json(run / "exit_rules.json")["sets"]["inside"]["advice"]["rule"]["rule"]
    assert adopted != "confidence:0.99"
    assert read_json(run / "model" / "config.json")["exit_rule"] == adopted
    budgets = read_json(run / "budgets.json")
    as_trained, fitted = budgets["rows"]
    config = configured("exit_hops", *root[2:])
    data = load_labelled_data(config.dataset, config.tokenizer, config.seed)
    model = EarlyExitForTokenClassification.from_pretrained(trained / "model").eval()
    assert model.config.exit_rule == as_trained["rule"] == "confidence:0.99"
    for row in (as_trained, fitted):
        score, depth = _score_by_hand(model, data, row["rule"])
        assert row["metrics"]["score"] == pytest.approx(score)
        assert row["mean"] == pytest.approx(depth)
    assert budgets["knob"] == "exit_rule confidence"
    assert fitted["rule"].startswith("confidence:")
