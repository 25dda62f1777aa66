"""Runs on generated data of known difficulty, and of ACT-ALBERT on tagged tokens: from the settings to the files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForTokenClassification, PreTrainedModel

from adadepth.data import load_labelled_data
from adadepth.errors import CheckpointError, ConfigError
from tests.configs.support import configured
from tests.training.support import run_debug

SMALL = (
    "model.embedding_size=16", "model.hidden_size=16", "model.num_attention_heads=2", "model.intermediate_size=32",
    "model.num_hidden_layers=4", "budget=none",
)  # fmt: skip
SENTENCE = ["the", "cat", "sat", "on", "a", "mat", "and", "then", "it", "slept"]


@pytest.mark.slow
@pytest.mark.parametrize(("root", "overrides", "sets"), [
    ("act_maze", ("dataset.size=4", "dataset.beyond_sizes=[5]"), ["inside", "beyond_5"]),
    ("act_hops", (), ["inside", "beyond"]),
    ("act_addition", (), ["inside", "beyond_20"]),
    ("act_hops", ("dataset=hops_sequence",), ["inside", "beyond"]),
    ("ponder_tiny", ("dataset=hops_sequence",), ["inside", "beyond"]),
])  # fmt: skip
def test_every_generated_task_trains_and_reports_difficulty(
    root: str, overrides: tuple[str, ...], sets: list[str], tmp_path: Path
) -> None:
    directory, _ = run_debug(tmp_path, root, *SMALL, *overrides)
    record, halting = (json.loads((directory / name).read_text()) for name in ("run.json", "halting.json"))
    metrics, is_sequence = record["final_metrics"], "dataset=hops_sequence" in overrides
    assert record["status"] == "finished"
    assert f"eval/{sets[1]}/{'accuracy' if is_sequence else 'token_accuracy'}" in metrics
    assert halting["unit"] == ("sequence" if root == "ponder_tiny" else "token")
    assert (halting["set"], list(halting["further_sets"])) == (sets[0], sets[1:])
    rows = halting["difficulty"]["rows"]
    predicted = sum(row.get("accuracy_n", 0) for row in rows)
    assert predicted == 8 if is_sequence else predicted > 8
    assert f"halting/difficulty/{rows[-1]['difficulty']}/mean" in metrics
    assert (directory / "grids.json").exists() == (root in ("act_maze", "act_hops") and not is_sequence)
    assert "Depth and difficulty" in (directory / "report.html").read_text()
    assert (directory / "figures" / "difficulty.png").exists()


@pytest.mark.slow
def test_texts_with_a_number_of_loops_are_scored_as_a_whole(tmp_path: Path) -> None:
    """Compare the heat map of the run with its saved model, which is called once for every number of loops."""
    overrides = ("model.num_loops=6", "dataset.train_lengths=[1,3]", "dataset.beyond_lengths=[5]")
    directory, _ = run_debug(tmp_path, "loop_lengths", *overrides)
    sets = json.loads((directory / "exits.json").read_text())["sets"]
    model = AutoModelForTokenClassification.from_pretrained(directory / "model").eval()
    config = configured("loop_lengths", "debug=default", *overrides)
    evaluated = load_labelled_data(config.dataset, config.tokenizer, 0).evaluation["beyond_5"]
    examples = [evaluated[number] for number in range(len(evaluated))]
    ids, labels = (torch.tensor([example[name].tolist() for example in examples]) for name in ("input_ids", "labels"))
    (row,) = sets["beyond_5"]["lengths"]
    assert (row["loops"], row["n"]) == (5, len(ids))
    for loops in range(1, 7):
        with torch.no_grad():
            right = (model(ids, num_loops=loops).logits.argmax(dim=-1) == labels) | (labels < 0)
        assert row["accuracy"][loops - 1] == pytest.approx(right.all(dim=1).double().mean().item())
    assert "Length and loops" in (directory / "report.html").read_text()
    assert (directory / "figures" / "lengths.png").exists()


@pytest.mark.slow
def test_a_maze_checkpoint_is_evaluated_on_other_mazes_and_refuses_a_larger_field(tmp_path: Path) -> None:
    directory, _ = run_debug(tmp_path / "first", "act_maze", *SMALL, "dataset.size=4", "dataset.beyond_sizes=[]")
    model = AutoModelForTokenClassification.from_pretrained(directory / "model")
    assert (model.config.type_vocab_size, model.config.id2label) == (12, {0: "unreachable", 1: "reachable"})
    again = ("mode=evaluate", f"checkpoint={directory}", "dataset.beyond_sizes=[7]", "dataset.size=6")
    grids_file = json.loads((run_debug(tmp_path / "again", "act_maze", *again)[0] / "grids.json").read_text())
    assert [len(grids[0]["cells"]) for grids in grids_file["sets"].values()] == [6, 7]
    with pytest.raises(CheckpointError, match=r"dataset.field=20: "):
        run_debug(tmp_path / "wide", "act_maze", *again, "dataset.field=20", "model.max_position_embeddings=null")
    start = (
        *SMALL,
        f"model.pretrained={directory}/model",
        "dataset.field=8",
        "dataset.sequence_length=64",
        "dataset.size=6",
        "dataset.beyond_sizes=[]",
    )
    with pytest.raises(ConfigError, match=r"the data need type_vocab_size=8, but the pretrained model has 12"):
        run_debug(tmp_path / "narrow", "act_maze", *start)


@pytest.fixture(scope="module")
def tagged_sentences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tagged")
    for split, rows in (("train", 12), ("validation", 9), ("test", 5)):
        with (folder / f"{split}.jsonl").open("w") as file:
            for row in range(rows):
                words = [SENTENCE[(row + shift) % len(SENTENCE)] for shift in range(4 + row % 3)]
                tags = ["SHORT" if len(word) < 3 else "LONG" for word in words]
                file.write(json.dumps({"tokens": words, "upos": tags}) + "\n")
    return folder


def load_tagger(directory: Path) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForTokenClassification.from_pretrained(directory / "model")
    return model


@pytest.mark.slow
def test_words_are_tagged_from_scratch(tagged_sentences: Path, tmp_path: Path) -> None:
    data = (
        "dataset.source=local",
        f"dataset.path={tagged_sentences}",
        "tokenizer.vocab_size=60",
        "dataset.sequence_length=32",
    )
    directory, _ = run_debug(tmp_path, "act_pos", *SMALL, *data)
    halting = json.loads((directory / "halting.json").read_text())
    labelled = sum(halting["classes"][f"label: {name}"]["n"] for name in ("LONG", "SHORT"))
    assert halting["unit"] == "token"
    assert labelled == halting["classes"]["correct"]["n"] + halting["classes"]["wrong"]["n"]
    assert labelled + halting["classes"]["unlabelled"]["n"] == halting["n"]
    assert halting["classes"]["all"]["accuracy_n"] == halting["classes"]["all"]["loss_n"] == labelled
    assert halting["classes"]["all"]["accuracy"] == pytest.approx(
        json.loads((directory / "run.json").read_text())["final_metrics"]["eval/token_accuracy"]
    )
    assert "difficulty" not in halting
    assert {row["tag"]: row["n"] for row in halting["words"]["tags"]} == {
        name: halting["classes"][f"label: {name}"]["n"] for name in ("LONG", "SHORT")
    }
    assert halting["words"]["n"] <= labelled  # unknown words have no name
    sentences = [json.loads(line) for line in (directory / "sentences.jsonl").read_text().splitlines()]
    assert {tag for sentence in sentences for tag in sentence["original"]} == {"LONG", "SHORT", None}
    assert load_tagger(directory).config.id2label == {0: "LONG", 1: "SHORT"}


@pytest.mark.slow
def test_words_are_tagged_from_pretrained_weights(tagged_sentences: Path, pretrained: Path, tmp_path: Path) -> None:
    settings = ("model=albert_act_pretrained", f"model.pretrained={pretrained}", "dataset.sequence_length=32")
    data = ("dataset.source=local", f"dataset.path={tagged_sentences}")
    directory, _ = run_debug(tmp_path / "first", "act_pos", *settings, *data)
    assert load_tagger(directory).config.hidden_size == 32
    again, _ = run_debug(
        tmp_path / "again", "act_pos", settings[0], settings[2], *data, "mode=evaluate", f"checkpoint={directory}"
    )
    scores = [json.loads((path / "run.json").read_text())["final_metrics"]["eval/score"] for path in (directory, again)]
    assert scores[0] == pytest.approx(scores[1])
