"""Models that meet other classes, another tokenizer, other data or longer texts than in training."""

from __future__ import annotations

import csv
import dataclasses
import json
import random
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from adadepth import Pipeline, tasks
from adadepth.errors import CheckpointError, ConfigError, DataError
from adadepth.models.folder import read_config
from adadepth.runs.checkpoints import checkpoints, get_checkpoint_step
from adadepth.runs.data_identity import DataIdentity, digest_tokenizer
from tests.configs.support import configured
from tests.marks_support import mark_mostly_slow
from tests.training.finetune_support import SMALL
from tests.training.support import mark_interrupted
from tests.unit.data.labelled_support import write_splits

WORDS = {"neg": ["bad", "dull", "poor"], "pos": ["good", "fine", "great"]}
TABLE = ("dataset=table", "dataset.text_columns=[text]", "dataset.label_column=label", "dataset.metrics=[accuracy]")
LEARNS = (
    *SMALL, "trainer.max_steps=20", "trainer.per_device_train_batch_size=16", "trainer.learning_rate=3e-3",
    "trainer.warmup_steps=0", "trainer.disable_tqdm=true", "trainer.logging_steps=20", "trainer.eval_strategy=no",
    "trainer.save_strategy=steps", "trainer.save_steps=10", "trainer.save_total_limit=null",
    "trainer.load_best_model_at_end=false",
    "trainer.eval_on_start=false", "predictions=true", "runtime.threads=1", "trainer.dataloader_drop_last=false",
)  # fmt: skip
FAMILIES = {
    "act": ("act_cola", "model=albert_act_mini", "budget=none"),
    "albert": ("act_cola", "model=albert_mini", "budget=none"),
    "ponder": ("ponder_cola", "model=ponder_albert_mini"),
    "pabee": ("act_cola", "model=pabee_mini", "budget=none"),
}


def make_sentences(count: int, seed: int, words: Mapping[str, list[str]] = WORDS) -> list[dict[str, Any]]:
    """Return rows whose class is that of one word in them; three of four rows have the last class."""
    draw, names = random.Random(seed), list(words)
    rows = []
    for number in range(count):
        label = names[-1] if number % 4 else names[number // 4 % (len(names) - 1)]
        filler = [draw.choice(["film", "plot", "the", "was", "story"]) for _ in range(4)]
        rows.append({"text": " ".join([*filler, draw.choice(words[label])]), "label": label})
    return rows


def write_table(folder: Path, words: Mapping[str, list[str]] = WORDS) -> Path:
    write_splits(folder, "csv", train=make_sentences(96, 0, words), validation=make_sentences(32, 1, words))
    return folder


def list_overrides(folder: Path, data: Path, *overrides: str) -> tuple[str, ...]:
    local = (f"dataset.path={data}", f"output_dir={folder}/out", f"dataset.cache_dir={folder}/cache")
    return (*TABLE, *LEARNS, *local, "tokenizer.path=null", "model.pretrained=null", *overrides)


def train(folder: Path, family: str, data: Path, *overrides: str) -> Path:
    root, *model = FAMILIES[family]
    tasks.run(configured(root, *model, *list_overrides(folder, data), *overrides))
    return max((folder / "out").glob("*/*"))


def interrupt(run: Path) -> Path:
    """Take the last checkpoint from a finished run, and mark the run as interrupted before it."""
    shutil.rmtree(max(checkpoints(run / "checkpoints"), key=get_checkpoint_step))
    return mark_interrupted(run)


def evaluate(run: Path, family: str, *overrides: str) -> float:
    root, *model = FAMILIES[family]
    out = run.parents[1]
    metric = tasks.run(
        configured(
            root, *model, "mode=evaluate", f"checkpoint={run}", f"output_dir={out}", "optimise=eval/accuracy",
            "trainer.disable_tqdm=true", *overrides,
        )
    )  # fmt: skip
    assert metric is not None
    return metric


@pytest.fixture(scope="module", params=mark_mostly_slow(FAMILIES, lambda family: family == "act"))
def trained_run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Path]:
    folder = tmp_path_factory.mktemp(request.param)
    data = write_table(folder / "data")
    return request.param, train(folder, request.param, data), data


def read_accuracy(run: Path) -> float:
    """Return the accuracy of the training's own evaluation."""
    return float(json.loads((run / "run.json").read_text())["final_metrics"]["eval/accuracy"])


def rename_classes(data: Path, folder: Path, names: Mapping[str, str]) -> Path:
    folder.mkdir()
    for file in data.iterdir():
        rows = list(csv.DictReader(file.open(encoding="utf-8")))
        write_splits(folder, "csv", **{file.stem: [{**row, "label": names[row["label"]]} for row in rows]})
    return folder


def read_data_changes(run: Path) -> Iterable[str]:
    """Return what the record of the newest evaluation says of changed data."""
    newest = max((run / "evaluations").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    changed: Iterable[str] = json.loads((newest / "run.json").read_text())["data"].get("changed", ())
    return changed


@pytest.mark.parametrize(("names", "order"), [
    ({"neg": "neg", "pos": "pos"}, ["dataset.labels=[pos,neg]"]),
    pytest.param({"neg": "Neg", "pos": "POS"}, [], marks=pytest.mark.slow),
    # numbers, whose names the settings give
    pytest.param({"neg": "1", "pos": "0"}, ["dataset.labels=[pos,neg]"], marks=pytest.mark.slow),
])  # fmt: skip
def test_classes_are_mapped_by_name(
    trained_run: tuple[str, Path, Path], names: Mapping[str, str], order: list[str], tmp_path: Path
) -> None:
    family, run, data = trained_run
    other = rename_classes(data, tmp_path / "renamed", names)
    assert evaluate(run, family, f"dataset.path={other}", *order) == read_accuracy(run) > 0.7


def test_a_class_that_the_model_does_not_have_is_refused(trained_run: tuple[str, Path, Path], tmp_path: Path) -> None:
    family, run, data = trained_run
    renamed = rename_classes(data, tmp_path / "others", {"neg": "neg", "pos": "approve"})
    with pytest.raises(DataError, match=r"dataset.label_column=label: the model has no class 'approve'.*neg, pos$"):
        evaluate(run, family, f"dataset.path={renamed}")


@pytest.mark.slow
def test_data_with_some_of_the_classes_are_evaluated(tmp_path: Path) -> None:
    words = {"maybe": ["perhaps", "so-so", "possibly"], **WORDS}
    data = write_table(tmp_path / "three", words)
    run = train(tmp_path, "act", data)
    two = write_table(tmp_path / "two")
    assert evaluate(run, "act", f"dataset.path={two}") > 0.7
    assert read_data_changes(run) == ["the data have changed (train, validation)"]


def test_predictions_have_the_names_of_the_model(trained_run: tuple[str, Path, Path]) -> None:
    family, run, _ = trained_run
    metric = evaluate(run, family, "dataset.labels=[pos,neg]", "predictions=true")
    newest = max((run / "evaluations").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    lines = (newest / "predictions" / "validation.jsonl").read_text().splitlines()
    rows = list(map(json.loads, lines))
    assert sum(row["label"] == row["prediction"] for row in rows) / len(rows) == metric


def test_another_tokenizer_of_the_same_size_is_refused(trained_run: tuple[str, Path, Path], tmp_path: Path) -> None:
    family, run, _ = trained_run
    words = tmp_path / "words"
    shutil.copytree(run / "model", words, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    described = json.loads((words / "tokenizer.json").read_text())
    pieces = described["model"]["vocab"]
    pieces[-1], pieces[-2] = pieces[-2], pieces[-1]
    (words / "tokenizer.json").write_text(json.dumps(described))
    refused = "the tokenizer differs from the one used in training; to allow this, add allow_changed_data=true"
    with pytest.raises(CheckpointError, match=refused):
        evaluate(run, family, f"tokenizer.path={words}")
    evaluate(run, family, f"tokenizer.path={words}", "allow_changed_data=true")
    assert read_data_changes(run) == ["the tokenizer differs from the one used in training"]
    model = Pipeline.from_pretrained(run / "model").model
    other = AutoTokenizer.from_pretrained(words)
    with pytest.raises(ConfigError, match="tokenizer: differs from the one used in training"):
        Pipeline(model, other)
    assert Pipeline(model, other, allow_changed_data=True)("film")


def test_a_saved_tokenizer_has_the_digest_of_the_one_in_training(trained_run: tuple[str, Path, Path]) -> None:
    _, run, _ = trained_run
    identity = DataIdentity.from_config("checkpoint", "", read_config("checkpoint", str(run / "model")))
    assert identity is not None
    assert identity.tokenizer == digest_tokenizer(AutoTokenizer.from_pretrained(run / "model"))
    assert identity.tokenizer == json.loads((run / "run.json").read_text())["data"]["tokenizer"]["digest"]
    assert (identity.dataset, identity.problem, list(identity.columns)) == ("table", "classification", ["text"])
    assert identity.sequence_length == 32
    assert set(identity.sources) == {"train", "validation"}


def test_a_run_does_not_resume_on_changed_data(tmp_path: Path) -> None:
    data = write_table(tmp_path / "data")
    run = interrupt(train(tmp_path, "act", data))
    root, *model = FAMILIES["act"]
    write_splits(data, "csv", train=[*make_sentences(94, 0), *make_sentences(4, 9)], validation=make_sentences(32, 1))

    def resume(*overrides: str) -> None:
        tasks.run(configured(root, *model, *list_overrides(tmp_path, data), f"resume={run}", *overrides))

    with pytest.raises(CheckpointError, match=r"the data have changed \(train\).*add allow_changed_data=true"):
        resume()
    assert json.loads((run / "run.json").read_text())["status"] == "interrupted"
    resume("allow_changed_data=true")
    record = json.loads((run / "run.json").read_text())
    assert record["status"] == "finished"
    assert record["data"]["changed"] == ["the data have changed (train)"]
    model_digest = digest_tokenizer(AutoTokenizer.from_pretrained(run / "model"))
    first, *_ = checkpoints(run / "checkpoints")
    assert model_digest == digest_tokenizer(AutoTokenizer.from_pretrained(first))


@pytest.mark.slow
def test_a_run_does_not_resume_with_changed_classes(tmp_path: Path) -> None:
    data = write_table(tmp_path / "data")
    run = interrupt(train(tmp_path, "act", data))
    root, *model = FAMILIES["act"]
    renamed = rename_classes(data, tmp_path / "renamed", {"neg": "down", "pos": "up"})
    shutil.rmtree(data)
    renamed.rename(data)
    config = configured(root, *model, *list_overrides(tmp_path, data), f"resume={run}")
    with pytest.raises(CheckpointError, match="the classes were neg, pos and now are down, up"):
        tasks.run(config)
    with pytest.raises(DataError, match="the model has no class 'down'"):
        tasks.run(dataclasses.replace(config, allow_changed_data=True))


TEXTS = {
    "act_tiny": ("dataset=text", "budget=none", "tokenizer.vocab_size=100", "dataset.sequence_length=32"),
    "par_network": (
        "dataset=stream_text",
        "model.architecture=sfsf",
        "model.cutoffs=[]",
        "dataset.sequence_length=8",
        "trainer.per_device_eval_batch_size=2",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("root", TEXTS)
def test_a_language_model_does_not_resume_on_another_text(root: str, tmp_path: Path) -> None:
    """Replace the text, which would be cut by another tokenizer than the one whose pieces the weights know."""
    text = tmp_path / "text"
    text.mkdir()
    documents = [f"The {word} cat of number {number} sat. It saw a dog." for number, word in enumerate(["big"] * 60)]
    (text / "all.txt").write_text("\n\n".join(documents), encoding="utf-8")
    settings = (
        root, "debug=default", *TEXTS[root], f"dataset.path={text}", f"output_dir={tmp_path}/out",
        f"dataset.cache_dir={tmp_path}/cache", "trainer.disable_tqdm=true", "trainer.max_steps=4",
        "trainer.save_strategy=steps", "trainer.save_steps=2", "trainer.save_total_limit=null",
    )  # fmt: skip
    tasks.run(configured(*settings))
    (run,) = (tmp_path / "out").glob("*/*")
    interrupt(run)
    (text / "all.txt").write_text("\n\n".join([*documents, "Quite another text."] * 2), encoding="utf-8")
    with pytest.raises(CheckpointError, match="the data have changed"):
        tasks.run(configured(*settings, f"resume={run}"))
    words = digest_tokenizer(AutoTokenizer.from_pretrained(checkpoints(run / "checkpoints")[0]))
    tasks.run(configured(*settings, f"resume={run}", "allow_changed_data=true"))
    assert digest_tokenizer(AutoTokenizer.from_pretrained(run / "model")) == words


@pytest.mark.slow
def test_a_matched_baseline_trains_on_the_same_data(tmp_path: Path) -> None:
    data = write_table(tmp_path / "data")
    run = train(tmp_path, "act", data)
    root, *model = FAMILIES["act"]
    write_splits(data, "csv", train=make_sentences(90, 5), validation=make_sentences(32, 6))
    with pytest.raises(CheckpointError, match=r"rival_of=.*the data have changed"):
        tasks.run(configured(root, *model, *list_overrides(tmp_path, data), f"rival_of={run}"))


@pytest.mark.slow
def test_texts_are_truncated_as_in_training(trained_run: tuple[str, Path, Path], tmp_path: Path) -> None:
    """Compare evaluation, prediction and Python for a model with more positions than its training used."""
    family, run, _ = trained_run
    rows = [
        {"text": " ".join([row["text"], "the film was dull and poor " * 12]), "label": row["label"]}
        for row in make_sentences(24, 3)
    ]
    write_splits(tmp_path / "long", "csv", train=rows, validation=rows)
    evaluate(run, family, f"dataset.path={tmp_path}/long", "predictions=true")
    newest = max((run / "evaluations").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    lines = (newest / "predictions" / "validation.jsonl").read_text().splitlines()
    evaluated = [json.loads(line)["prediction"] for line in lines]
    texts = [row["text"] for row in rows]
    pipeline = Pipeline.from_pretrained(run / "model")
    assert [prediction.label for prediction in pipeline(texts)] == evaluated
    assert pipeline.layout.sequence_length == 32
    root, *model = FAMILIES[family]
    settings = [
        "mode=predict", f"checkpoint={run}", f"input={tmp_path}/long/validation.csv", f"output_dir={run.parents[1]}"
    ]  # fmt: skip
    tasks.run(configured(root, *model, *settings, f"output={tmp_path}/told.jsonl"))
    predictions = [json.loads(line) for line in (tmp_path / "told.jsonl").read_text().splitlines()]
    assert [row["prediction"] for row in predictions] == evaluated
    longer = Pipeline.from_pretrained(run / "model", max_length=64)
    assert longer.layout.sequence_length == 64


TAGS = {"the": "DET", "film": "NOUN", "plot": "NOUN", "was": "VERB", "good": "ADJ"}


def write_tagged(folder: Path) -> list[str]:
    rows = [{"words": [word, *list(TAGS)[:3]], "tags": [TAGS[word], *list(TAGS.values())[:3]]} for word in TAGS] * 8
    write_splits(folder, "jsonl", train=rows, validation=rows)
    return [
        "dataset=tagging_table", f"dataset.path={folder}", "dataset.token_column=words", "dataset.tag_column=tags",
        "dataset.metrics=[token_accuracy]",
    ]  # fmt: skip


@pytest.mark.slow
def test_tags_are_mapped_by_name(tmp_path: Path) -> None:
    data = write_tagged(tmp_path / "data")
    common = (*LEARNS, f"output_dir={tmp_path}/out", f"dataset.cache_dir={tmp_path}/cache", "tokenizer.path=null")
    model = ("act_pos", "model=albert_act_mini", "model.pretrained=null", "budget=none")
    tasks.run(configured(*model, *data, *common))
    (run,) = (tmp_path / "out").glob("*/*")
    settings = (
        *model,
        "mode=evaluate",
        f"checkpoint={run}",
        f"output_dir={tmp_path}/out",
        "optimise=eval/token_accuracy",
    )
    score = tasks.run(configured(*settings))
    assert score is not None
    assert score > 0.4
    assert tasks.run(configured(*settings, "dataset.labels=[VERB,ADJ,NOUN,DET]")) == score
    with pytest.raises(DataError, match=r"dataset.tag_column=tags: the model has no class 'X'"):
        tasks.run(configured(*settings, "dataset.labels=[VERB,ADJ,NOUN,X]"))


@pytest.mark.slow
def test_multiple_labels_are_mapped_by_name(tmp_path: Path) -> None:
    rows = [{"text": f"It says {name}", "label": name} for name in ("food", "news; food", "", "food")] * 8
    write_splits(tmp_path / "data", "csv", train=rows, validation=rows)
    settings = ("dataset.problem=multi_label", "dataset.metrics=[micro_f1]", 'dataset.label_separator=";"')
    run = train(tmp_path, "ponder", tmp_path / "data", *settings)
    scores = [
        evaluate(run, "ponder", "optimise=eval/micro_f1", *order) for order in ((), ("dataset.labels=[news,food]",))
    ]
    assert scores[0] == scores[1] > 0.5
    rows = [{"text": f"It says {name}", "label": name} for name in ("food", "news")] * 8
    write_splits(tmp_path / "one", "csv", train=rows, validation=rows)
    single = ("dataset.problem=classification", "dataset.metrics=[accuracy]")
    with pytest.raises(
        CheckpointError, match="the model was trained for multi_label, but the data are for classification"
    ):
        evaluate(run, "ponder", *single, f"dataset.path={tmp_path}/one")


def test_pretrained_heads_keep_their_classes(trained_run: tuple[str, Path, Path]) -> None:
    """Check that a trained head goes on under its learned names, and that a frozen one must have all classes."""
    family, run, data = trained_run
    folder = run.parents[2] / "again"
    start = ("trainer.max_steps=1", "trainer.learning_rate=1e-9", "dataset.labels=[pos,neg]")
    again = train(folder, family, data, f"model.pretrained={run}/model", f"tokenizer.path={run}/model", *start)
    assert read_accuracy(again) == read_accuracy(run)
    assert read_config("checkpoint", str(again / "model")).id2label == {0: "neg", 1: "pos"}
