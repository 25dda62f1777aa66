"""Classifiers of transformers from the command's settings to their files: evaluated as they are, and trained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForTokenClassification, BertConfig, BertForTokenClassification

from adadepth import tasks
from adadepth.errors import DataError
from adadepth.metrics.task_metrics import score_tagging
from tests.configs.support import configured
from tests.pages_support import check_costs
from tests.training.support import run_config
from tests.unit.data.tokenizers_support import tokenizer

NAMES = ["O", "B-PER", "I-PER", "B-LOC"]
SENTENCES = [["don't", "stop", "the", "naive", "cat"], ["a", "cat"], ["they", "said", "stop", "that", "now"]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write tagged sentences to `table`, and a tagger with its classes in another order and case to `tagger`."""
    folder = tmp_path_factory.mktemp("stock")
    (folder / "table").mkdir()
    for split, count in (("train", 12), ("validation", 9)):
        rows = [
            {"tokens": words, "tags": [NAMES[(number + position) % 4] for position in range(len(words))]}
            for number, words in enumerate(SENTENCES * (count // 3))
        ]
        (folder / "table" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = tokenizer("bert")
    labels = ["b-loc", "i-per", "o", "b-per"]
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=64, initializer_range=0.5, id2label=dict(enumerate(labels)),
        label2id={name: number for number, name in enumerate(labels)},
    )  # fmt: skip
    BertForTokenClassification(config).save_pretrained(folder / "tagger")
    words.save_pretrained(folder / "tagger")
    return folder


def run_tagger(folder: Path, output: Path, *overrides: str) -> tuple[Path, dict[str, float]]:
    config = configured(
        "finetune", "model=stock", "dataset=tagging_table", f"dataset.path={folder}/table",
        f"dataset.labels=[{','.join(NAMES)}]", "dataset.tag_column=tags", "dataset.sequence_length=32",
        "debug=default", "dataset.max_evaluation_examples=null", f"output_dir={output}", "trainer.disable_tqdm=true",
        f"dataset.cache_dir={output}/cache", *overrides,
    )  # fmt: skip
    directory, _ = run_config(config)
    return directory, json.loads((directory / "run.json").read_text())["final_metrics"]


def compute_expected_quality(folder: Path) -> dict[str, float]:
    """Return the entity F1 of the tagger by transformers alone, one sentence at a time, with its own names."""
    words = tokenizer("bert")
    model = AutoModelForTokenClassification.from_pretrained(folder / "tagger").eval()
    gold, predicted = [], []
    for line in (folder / "table" / "validation.jsonl").read_text().splitlines():
        row = json.loads(line)
        inputs = words(row["tokens"], is_split_into_words=True, return_tensors="pt")
        with torch.no_grad():
            classes = model(**inputs).logits[0].argmax(dim=-1).tolist()
        owners = inputs.word_ids()
        firsts = [owners.index(word) for word in range(len(row["tokens"]))]
        gold.append(row["tags"])
        predicted.append([model.config.id2label[classes[first]].upper() for first in firsts])
    return score_tagging(["entity_f1", "token_accuracy"], predicted, gold)


@pytest.mark.slow
def test_a_tagger_is_evaluated_as_it_is(folder: Path, tmp_path: Path) -> None:
    """Evaluate without a model in the settings, with the checkpoint's own tokenizer."""
    directory, metrics = run_tagger(
        folder, tmp_path, "mode=evaluate", f"checkpoint={folder}/tagger", "dataset.metrics=[entity_f1,token_accuracy]"
    )
    for name, value in compute_expected_quality(folder).items():
        assert metrics[f"eval/{name}"] == pytest.approx(value), name
    assert 0 < metrics["eval/token_accuracy"] < 1
    halting = json.loads((directory / "halting.json").read_text())
    assert halting["unit"] == "token"
    assert halting["classes"]["all"]["mean"] == 3
    assert halting["cost"]["adaptive_macs"] == halting["cost"]["full_macs"] > 0
    check_costs(directory)


def test_training_starts_from_its_head_and_is_evaluated_again(folder: Path, tmp_path: Path) -> None:
    directory, metrics = run_tagger(folder, tmp_path / "trained", f"model.pretrained={folder}/tagger")
    record = json.loads((directory / "run.json").read_text())
    assert record["status"] == "finished"
    model = AutoModelForTokenClassification.from_pretrained(directory / "model")
    assert type(model) is BertForTokenClassification, "what was trained is transformers' own model"
    assert list(model.config.id2label.values()) == NAMES
    start = AutoModelForTokenClassification.from_pretrained(folder / "tagger")
    moved = model.classifier.weight - start.classifier.weight[[2, 3, 1, 0]]
    assert 0 < moved.abs().max() < 0.01, "a few small updates of the rows in the data's order"
    _, again = run_tagger(folder, tmp_path / "again", "mode=evaluate", f"checkpoint={directory}")
    assert again["eval/loss"] == pytest.approx(metrics["eval/loss"])
    assert again["eval/entity_f1"] == metrics["eval/entity_f1"]


@pytest.mark.slow
def test_sentences_are_classified(tmp_path: Path, folder: Path) -> None:
    """Train the blocks of the tagger under a new head for sequences."""
    config = configured(
        "ponder_tiny", "model=stock", f"model.pretrained={folder}/tagger", "tokenizer=pretrained", "debug=default",
        "dataset.sequence_length=32", f"output_dir={tmp_path}", "trainer.disable_tqdm=true",
    )  # fmt: skip
    tasks.run(config)
    (record,) = tmp_path.glob("*/*/run.json")
    assert json.loads(record.read_text())["status"] == "finished"
    assert json.loads((record.parent / "halting.json").read_text())["unit"] == "sequence"


def test_classes_of_other_names_are_a_one_line_error(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError) as raised:
        run_tagger(
            folder,
            tmp_path,
            "mode=evaluate",
            f"checkpoint={folder}/tagger",
            "dataset.labels=[O,B-PER,I-PER,B-LOC,I-LOC]",
        )
    assert str(raised.value) == (
        "dataset.tag_column=tags: the model has no class 'I-LOC'; it predicts b-loc, i-per, o, b-per"
    )
