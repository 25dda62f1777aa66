"""Every shipped pretraining configuration trains: two steps at the debug width, evaluation, saving, report.

Tests of fine-tuning configurations are in test_finetune.py.
"""

import json

import pytest
from transformers import AutoModelForPreTraining, AutoTokenizer

from adadepth.cli.checks.measures import may_be_logged
from tests.configs.support import NEEDS, OPTIONS, choose_root
from tests.marks_support import mark_mostly_slow
from tests.training.support import run_debug

ROOTS = {"act_tiny": 6, "act_small": 12, "act_base": 24, "act_wikitext2": 6}

# Options that need a network; their loaders are tested on local data under tests/unit/data.
ONLINE = {("dataset", "wikitext103"), ("dataset", "wikipedia_bookcorpus"), ("tokenizer", "albert")}
# Options that make several runs; they are tested under tests/cli.
SWEEPS = {("sweep", "penalty"), ("sweep", "optuna_penalty")}
OURS = [option for option in OPTIONS if choose_root(*option) == "act_tiny" and option[0] != "debug"]
TRIED = [option for option in OURS if option not in ONLINE | SWEEPS]


def write_wikitext2(tmp_path):
    """Write a folder named and laid out as WikiText-2, with other text, and return overrides that read it."""
    folder = tmp_path / "wikitext-2"
    folder.mkdir()
    for part, articles in (("train", 40), ("valid", 10), ("test", 10)):
        text = " = {} {} = \n \n It has a sentence @-@ or two . It is by <unk> .\n"
        texts = (text.format(part, number) for number in range(articles))
        (folder / f"wiki.{part}.tokens").write_text(" \n".join(texts))
    return [f"dataset.path={folder}", "tokenizer.vocab_size=50"]


@pytest.mark.parametrize("root", mark_mostly_slow(ROOTS, lambda root: root == "act_tiny"))
def test_every_shipped_root_trains(root, tmp_path):
    overrides = write_wikitext2(tmp_path) if root == "act_wikitext2" else []
    directory, metric = run_debug(tmp_path, root, *overrides)
    record = json.loads((directory / "run.json").read_text())
    assert record["status"] == "finished"
    assert record["final_metrics"]["eval/loss"] == metric
    other_names = [name for name in record["final_metrics"] if not name.startswith("eval/")]
    assert not [name for name in other_names if not may_be_logged(name)]
    written = "config.yaml metrics.jsonl halting.json sentences.jsonl depth_by_class.csv report.html"
    for name in written.split():
        assert (directory / name).stat().st_size > 0, name
    assert list((directory / "figures").glob("*.png"))
    figures = {}
    for line in (directory / "metrics.jsonl").read_text().splitlines():
        figures |= json.loads(line)
    assert figures["eval/tokens_per_second"] > 0
    assert figures["cost/executed_macs"] <= figures["cost/dense_macs"]
    assert "real tokens per second" in (directory / "report.html").read_text()
    model = AutoModelForPreTraining.from_pretrained(directory / "model")
    tokenizer = AutoTokenizer.from_pretrained(directory / "model")
    assert model.config.num_hidden_layers == ROOTS[root]
    encoded = tokenizer("Return the absolute value.", "A second segment.", return_tensors="pt")
    outputs = model(**encoded)
    assert outputs.updates.shape == encoded["input_ids"].shape


@pytest.mark.slow
@pytest.mark.parametrize(("group", "option"), TRIED)
def test_every_shipped_option_trains(group, option, tmp_path):
    overrides = [f"{group}={option}"]
    if option == "text":
        corpus = tmp_path / "corpus.txt"
        corpus.write_text("\n\n".join(f"Document {n} has a sentence. It has another one, too." * 3 for n in range(60)))
        overrides += [f"dataset.path={corpus}", "tokenizer.vocab_size=50"]
    if option.startswith("wikitext2"):
        overrides += write_wikitext2(tmp_path)
    if option == "albert_phase2":
        overrides += ["model.max_position_embeddings=512"]
    directory, _ = run_debug(tmp_path, "act_tiny", *NEEDS.get((group, option), []), *overrides)
    assert json.loads((directory / "run.json").read_text())["status"] == "finished"
