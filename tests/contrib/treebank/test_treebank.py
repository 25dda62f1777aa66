"""`mode=evaluate dataset=treebank` as a user calls it: masked language models, taggers, another package's family."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from adadepth.models.build import build_classifier
from tests.configs.support import configured
from tests.runs_support import execute_run, read_json
from tests.toy_support import execute, install_toy_family
from tests.treebank_support import UPOS, write_treebank

SMALL = (
    "budget=none", "debug=default", "trainer.disable_tqdm=true",
    "dataset.sequence_length=64", "model.num_hidden_layers=3",
    "tokenizer=trained", "tokenizer.vocab_size=300",
)  # fmt: skip


FORMULA = "=1+1"  # a relation, to which a spreadsheet would be open


@pytest.fixture(scope="module")
def treebank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("treebank")
    write_treebank(folder, "en-ud-train.conllu", "en-ud-dev.conllu", "en-ud-test.conllu")
    for file in folder.iterdir():
        file.write_text(file.read_text(encoding="utf-8").replace("discourse", FORMULA), encoding="utf-8")
    return folder


def list_overrides(treebank: Path, trained: Path) -> tuple[str, ...]:
    return (
        "mode=evaluate", f"checkpoint={trained}", "dataset=treebank", f"dataset.path={treebank}",
        "dataset.sequence_length=64", "trainer.disable_tqdm=true",
    )  # fmt: skip


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return execute_run(tmp_path_factory.mktemp("pretrained"), "--config-name", "act_tiny", *SMALL)


@pytest.fixture(scope="module")
def evaluation(pretrained: Path, treebank: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    arguments = ("dataset.masking.probability=0.5", "logger=tensorboard")
    return execute_run(
        tmp_path_factory.mktemp("evaluated"),
        "--config-name",
        "act_tiny",
        *list_overrides(treebank, pretrained),
        *arguments,
    )


@pytest.mark.slow
def test_every_word_is_in_its_class(evaluation: Path) -> None:
    words = read_json(evaluation / "words.json")
    assert set(words["sets"]) == {"validation", "test"}
    assert words["sets"]["validation"] == words["sets"]["test"]  # the same sentences under two names
    plain = words["sets"]["validation"]["plain"]
    assert plain["all"]["n"] == len(UPOS)
    assert {row["class"]: row["n"] for row in plain["kinds"]["upos"]} == {tag: UPOS.count(tag) for tag in UPOS}
    assert {row["class"]: row["n"] for row in plain["kinds"]["deprel"]}["advmod"] == 2  # one of them advmod:neg
    assert {row["class"]: row["n"] for row in plain["kinds"]["tree_depth"]} == {"0": 2, "1": 6, "2": 2}
    assert words["counted_words"] == 3 * len(UPOS)


@pytest.mark.slow
def test_states_are_compared_by_class(evaluation: Path) -> None:
    plain = read_json(evaluation / "words.json")["sets"]["validation"]["plain"]
    assert plain["all"]["cosine_n"][0] == len(UPOS)  # everybody runs the first iteration
    assert all(-1 <= value <= 1 for value in plain["all"]["cosine"] if value is not None)
    rows = plain["kinds"]["upos"]
    total = sum(row["cosine"][0] * row["cosine_n"][0] for row in rows)
    assert total / len(UPOS) == pytest.approx(plain["all"]["cosine"][0])


def test_some_words_are_masked(evaluation: Path) -> None:
    masked = read_json(evaluation / "words.json")["sets"]["validation"]["masked"]
    assert 0 < masked["all"]["n"] < len(UPOS)
    assert sum(row["n"] for row in masked["kinds"]["upos"]) == masked["all"]["n"]
    halting = read_json(evaluation / "halting.json")
    assert (halting["set"], halting["classes"]["plain"]["n"] > 0) == ("validation_masked", True)
    assert halting["classes"]["mask/mask"]["n"] >= masked["all"]["n"]


def test_the_depths_are_those_of_the_sentences(evaluation: Path) -> None:
    sentences = [json.loads(line) for line in (evaluation / "sentences.jsonl").read_text().splitlines()]
    assert {sentence["index"] for sentence in sentences} == {0, 1}
    plain = read_json(evaluation / "words.json")["sets"]["validation"]["plain"]["all"]
    metrics = [json.loads(line) for line in (evaluation / "metrics.jsonl").read_text().splitlines()]
    (mean,) = (line["halting/validation/plain/mean"] for line in metrics if "halting/validation/plain/mean" in line)
    (pieces,) = (line["halting/validation/plain/n"] for line in metrics if "halting/validation/plain/n" in line)
    assert pieces == pytest.approx(plain["pieces"] * plain["n"])
    if plain["split"] == 0:
        assert plain["mean"] == pytest.approx(mean)


def test_files_trackers_and_the_report_have_the_results(evaluation: Path) -> None:
    rows = list(csv.DictReader((evaluation / "depth_by_word.csv").read_text(encoding="utf-8").splitlines()))
    assert {row["kind"] for row in rows} == {"word", "upos", "deprel", "deprel_full", "tree_depth", "frequency"}
    metrics = (evaluation / "metrics.jsonl").read_text(encoding="utf-8")
    assert '"halting/validation/upos/VERB/mean"' in metrics
    assert '"halting/words"' in metrics
    assert read_json(evaluation / "run.json")["final_metrics"]["halting/test_masked/word/all/mean"] > 0
    page = (evaluation / "report.html").read_text(encoding="utf-8")
    assert "Depth by linguistic class" in page
    assert "Published depths" in page
    assert "2 sentences, 10 of their 10 words" in page
    assert list((evaluation / "tensorboard").iterdir())


def test_no_table_holds_a_formula(evaluation: Path) -> None:
    tables = {file.name: list(csv.reader(file.open(encoding="utf-8"))) for file in evaluation.rglob("*.csv")}
    tables_with_quotes = {name for name, rows in tables.items() if any(f"'{FORMULA}" in row for row in rows)}
    assert {"depth_by_word.csv", "depth_by_deprel_test.csv", "cosine_by_deprel_test.csv"} <= tables_with_quotes
    assert not [name for name, rows in tables.items() if any(FORMULA in row for row in rows)]


@pytest.mark.slow
def test_a_tagger_is_measured_without_masks(treebank: Path, tmp_path: Path) -> None:
    tagger = execute_run(
        tmp_path / "trained", "--config-name", "act_pos", *SMALL, "dataset.source=local", f"dataset.path={treebank}"
    )
    words = read_json(
        execute_run(tmp_path / "found", "--config-name", "act_pos", *list_overrides(treebank, tagger)) / "words.json"
    )
    assert list(words["sets"]["test"]) == ["plain"]
    assert words["sets"]["test"]["plain"]["all"]["n"] == len(UPOS)
    assert words["sets"]["test"]["plain"]["all"]["cosine_n"][0] == len(UPOS)
    again = execute_run(
        tmp_path / "again", "--config-name", "act_pos", "mode=evaluate", f"checkpoint={tagger}", "dataset.source=local",
        f"dataset.path={treebank}", "dataset.sequence_length=64", "trainer.disable_tqdm=true",
    )  # fmt: skip
    halting = read_json(again / "halting.json")  # its own evaluation compares states, too
    assert "halting/cosine" not in halting["missing"]
    assert halting["cosine"]["all"][0]["running_n"] == halting["n"]


@pytest.fixture
def _install_family(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with install_toy_family(tmp_path_factory.mktemp("site")):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("_install_family")
def test_a_family_of_another_package_has_depths_without_states(treebank: Path, tmp_path: Path) -> None:
    model = (
        "model=router", "model.hidden_size=32", "model.embedding_size=16", "model.intermediate_size=32",
        "model.num_attention_heads=4", "model.max_position_embeddings=64", "model.num_hidden_layers=3",
    )  # fmt: skip
    tagger = execute_run(
        tmp_path / "trained", "--config-name", "act_pos", *SMALL, *model, "dataset.source=local",
        f"dataset.path={treebank}",
    )  # fmt: skip
    words = read_json(
        execute_run(tmp_path / "found", "--config-name", "act_pos", *model, *list_overrides(treebank, tagger))
        / "words.json"
    )
    statistics = words["sets"]["test"]["plain"]["all"]
    assert statistics["n"] == len(UPOS)
    assert "cosine" not in statistics  # the family has no states


def test_a_family_of_whole_sequences_is_a_one_line_error(
    treebank: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = tmp_path / "model"
    settings = configured("ponder_tiny", "debug=default").model
    build_classifier(settings, 60, {"num_labels": 2}).save_pretrained(trained)
    assert (
        execute("--config-name", "ponder_tiny", *list_overrides(treebank, trained), f"output_dir={tmp_path / 'found'}")
        == 2
    )
    (line,) = capsys.readouterr().err.strip().splitlines()[-1:]
    assert line == (
        f"error: checkpoint={trained}: ponder_albert has one depth per sequence; dataset=treebank needs a model "
        "with one depth per token"
    )
    assert not (tmp_path / "found").exists()


def test_a_head_of_another_task_is_a_one_line_error(
    treebank: Path, pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute("--config-name", "act_pos", *list_overrides(treebank, pretrained), f"output_dir={tmp_path}") == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert "holds AlbertActForPreTraining; dataset=treebank with task=finetune needs" in line
