"""`mode=probe` from the command's settings to its files."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from adadepth import tasks
from adadepth.errors import ConfigError
from tests.configs.support import configured

WORDS = ["the", "one", "every", "no", "house", "car", "tree", "river", "old", "new", "large", "runs", "stands", "falls"]


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write sentences of two classes that one word decides: `sea` or `hill`, at a random position."""
    draw, folder = random.Random(0), tmp_path_factory.mktemp("senteval")
    lines = []
    for split, count in (("tr", 150), ("va", 40), ("te", 90)):
        for number in range(count):
            label = "HILL" if number % 3 else "SEA"
            words = draw.choices(WORDS, k=draw.randint(4, 9))
            words.insert(draw.randrange(len(words)), label.lower())
            lines.append(f"{split}\t{label}\t{' '.join(words)}\n")
    (folder / "word_content.txt").write_text("".join(lines))
    return folder


def run_probe(run: Path, folder: Path, *overrides: str) -> tuple[Path, dict[str, Any]]:
    settings = ("mode=probe", f"checkpoint={run}", f"output_dir={folder}", "trainer.disable_tqdm=true")
    data = ("dataset.sequence_length=32", f"dataset.cache_dir={folder}/cache")
    assert tasks.run(configured("act_cola", *settings, *data, *overrides)) is None
    (directory,) = folder.glob("act_cola/*")
    return directory, json.loads((directory / "probes.json").read_text())


def test_a_pretrained_checkpoint_is_probed(
    pretrained: Path, sentences: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ("dataset=senteval", "dataset.task=word_content", f"dataset.path={sentences}")
    directory, content = run_probe(pretrained.parent, tmp_path, *data)
    assert content["examples"] == {"train": 150, "validation": 40}
    rows, majority = content["sets"]["test"]["rows"], content["sets"]["test"]["majority"]
    row_by_name = {(row["readout"], row["update"]): row for row in rows}
    assert (majority["class"], majority["accuracy"]) == ("HILL", pytest.approx(2 / 3))
    # Before any update a first token knows nothing of the others, and a mean holds every word.
    assert row_by_name["first", 0]["accuracy"] == majority["accuracy"]
    assert row_by_name["mean", 0]["accuracy"] > 0.95
    assert row_by_name["first", 1]["accuracy"] > majority["high"]
    assert row_by_name["first", 1]["gain"] == pytest.approx(
        row_by_name["first", 1]["accuracy"] - row_by_name["first", 0]["accuracy"]
    )
    assert "gain" not in row_by_name["mean", 0]
    record = json.loads((directory / "run.json").read_text())
    assert (record["status"], record["mode"]) == ("finished", "probe")
    assert record["final_metrics"]["probe/test/mean/0"] == row_by_name["mean", 0]["accuracy"]
    assert record["evaluated"] == str(pretrained)
    assert "Linear probes after each update" in (directory / "report.html").read_text()
    assert {path.name for path in (directory / "figures").iterdir()} >= {"probes_test.png", "probes_test.pdf"}
    assert "always HILL" in capsys.readouterr().out
    tasks.run(configured("act_cola", "mode=report", f"run={directory}"))


def write_table(folder: Path) -> Path:
    """Write sentences in a table with one evaluation split, and their difficulty."""
    draw = random.Random(1)
    for split, count in (("train", 60), ("validation", 40)):
        rows = [{"sentence": " ".join(draw.choices(WORDS, k=6)), "label": n % 2, "hard": n % 2} for n in range(count)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.mark.slow
def test_training_rows_select_the_probe_if_there_is_one_evaluation_split(pretrained: Path, tmp_path: Path) -> None:
    data = ("dataset.source=local", f"dataset.path={write_table(tmp_path)}", "dataset.difficulty_column=hard")
    directory, content = run_probe(pretrained.parent, tmp_path, *data)
    assert (content["validation_set"], content["examples"]) == ("held_out", {"train": 54, "validation": 6})
    assert list(content["sets"]) == ["validation"]
    row = content["sets"]["validation"]["rows"][0]
    assert set(row["metrics"]) == {"matthews", "score"}  # CoLA's
    assert [part["difficulty"] for part in row["by_difficulty"]] == [0, 1]
    assert "By difficulty" in (directory / "report.html").read_text()


@pytest.mark.slow
def test_depth_by_the_difficulty_of_a_table(pretrained: Path, tmp_path: Path) -> None:
    data = ("dataset.source=local", f"dataset.path={write_table(tmp_path)}", "dataset.difficulty_column=hard")
    model = (f"model.pretrained={pretrained}", "dataset.sequence_length=32")
    quick = ("debug=default", f"output_dir={tmp_path}", f"dataset.cache_dir={tmp_path}/cache")
    tasks.run(configured("act_cola", *data, *model, *quick, "dataset.max_evaluation_examples=40"))
    (directory,) = tmp_path.glob("act_cola/*")
    halting = json.loads((directory / "halting.json").read_text())
    rows, classes = halting["difficulty"]["rows"], halting["classes"]
    assert [row["difficulty"] for row in rows] == [0, 1]
    for row, label in zip(rows, ("unacceptable", "acceptable"), strict=True):  # as hard as its number
        assert (row["n"], row["mean"]) == (classes[f"label: {label}"]["n"], classes[f"label: {label}"]["mean"])


@pytest.mark.parametrize(("overrides", "expected"), [
    (["model=ponder_albert_pretrained"],
     "model=ponder_albert: does not return the states after its updates, which mode=probe reads; albert, albert_act or "
         "looped does"),
    (["dataset=bigram_shift"], "dataset=bigram_shift: mode=probe reads labelled sentences of files or the hub"),
    (["dataset=hops"], "dataset=hops: mode=probe reads labelled sentences of files or the hub, e.g. dataset=cola"),
    (["dataset=stsb"], "dataset=stsb: mode=probe reads classes, not dataset.problem=regression"),
    (["checkpoint=null"], "checkpoint: required by mode=probe (a run directory"),
    (["exit_rules=[all]"], "exit_rules=['all']: only used"),
    (["dataset=senteval", "dataset.path=folder"], "dataset.task: required by dataset=senteval, e.g. past_present"),
    (["dataset=senteval", "dataset.task=tree_depth"], "dataset.path: "),
    (["dataset=senteval", "dataset.task=tree_depth", "dataset.source=hub"],
     "dataset.source=hub: dataset=senteval_tree_depth is read from local files; leave it at local"),
])  # fmt: skip
def test_unsuitable_data_are_one_line_errors(overrides: list[str], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configured("act_cola", "mode=probe", "checkpoint=run", *overrides)
    assert [line for line in str(caught.value).splitlines() if line.startswith(expected)]


def test_a_corpus_is_not_probed() -> None:
    with pytest.raises(ConfigError, match=r"mode=probe: reads labelled data, e\.g\. --config-name act_cola"):
        configured("act_tiny", "mode=probe", "checkpoint=run")


def test_embedded_sentences_have_their_own_difficulty() -> None:
    with pytest.raises(ConfigError, match=r"dataset\.difficulty_column=x: only used with"):
        configured("act_cola", "dataset=bigram_shift", "dataset.difficulty_column=x")
