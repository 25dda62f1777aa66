"""An exit rule with learned parameters in runs: fitted, compared, saved with the model, and used again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from adadepth import EarlyExitForTokenClassification
from adadepth.data import load_labelled_data
from adadepth.halting.exit_rules import parse_rule
from tests.configs.support import configured
from tests.plugins_support import example_extensions
from tests.runs_support import execute_run, read_json
from tests.toy_support import execute

ROOT = (
    "--config-name",
    "exit_hops",
    "debug=default",
    "dataset.max_evaluation_examples=16",
    "trainer.disable_tqdm=true",
)


@pytest.fixture(autouse=True)
def _install_extensions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with example_extensions(tmp_path_factory.mktemp("package")):
        yield


def test_a_learned_exit_rule_is_fitted_compared_saved_and_reused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = execute_run(tmp_path / "trained", *ROOT)
    evaluate = ("mode=evaluate", f"checkpoint={trained}")
    run = execute_run(tmp_path / "studied", *ROOT, *evaluate, "exit_rules=[agreement,margin:0.02]", "adopt_rule=true")
    sets = read_json(run / "exit_rules.json")["sets"]
    (label,) = {row["rule"] for row in sets["inside"]["rows"] if row["rule"].startswith("agreement")}
    rule = parse_rule(label)
    assert not rule.needs_fit
    assert (run / "report.html").read_text(encoding="utf-8").count(label)

    # The row is that of the model on the other half of the sequences, and the second set is scored whole.
    config = configured("exit_hops", *ROOT[2:])
    data = load_labelled_data(config.dataset, config.tokenizer, config.seed)
    model = EarlyExitForTokenClassification.from_pretrained(trained / "model").eval()
    halves = {"inside": np.random.default_rng(0).permutation(16)[8:], "beyond": range(16)}
    for name, sequences in halves.items():
        right, exits = [], []
        for sequence in sequences:
            batch = data.collate([data.evaluation[name][int(sequence)]])
            with torch.no_grad():
                outputs = model(batch["input_ids"], attention_mask=batch["attention_mask"], exit_rule=label)
            is_labelled = batch["labels"] >= 0
            right += (outputs.logits.argmax(-1) == batch["labels"])[is_labelled].tolist()
            exits += outputs.trace.updates[is_labelled].tolist()
        (row,) = [row for row in sets[name]["rows"] if row["rule"] == label]
        assert sets[name]["n"] == len(right)
        for figures in (row, row["online"]):
            assert figures["mean_updates"] == pytest.approx(sum(exits) / len(exits))
            assert figures["quality"]["score"] == pytest.approx(sum(right) / len(right))
    assert sets["inside"]["fitted_on"] > 0
    assert "fitted_on" not in sets["beyond"]

    # The recommended rule is that of the saved model; a fitted rule is also one of a command.
    assert read_json(run / "model" / "config.json")["exit_rule"] == sets["inside"]["advice"]["rule"]["rule"]
    again = execute_run(tmp_path / "again", *ROOT, *evaluate, f"model.exit_rule={label}", f"exit_rules=[{label}]")
    assert read_json(again / "exit_rules.json")["sets"]["inside"]["n"] > sets["inside"]["n"]
    assert label in {row["rule"] for row in read_json(again / "exit_rules.json")["sets"]["inside"]["rows"]}
    predicted = "exit rule 'agreement:0.9': its parameters bias, margin, entropy, step are not fitted"
    capsys.readouterr()
    assert execute(*ROOT, *evaluate, "model.exit_rule=agreement", f"output_dir={tmp_path / 'refused'}") == 2
    assert predicted in capsys.readouterr().err
    assert execute(*ROOT, "model.exit_rule=agreement", f"output_dir={tmp_path / 'refused'}") == 2
    assert predicted in capsys.readouterr().err
