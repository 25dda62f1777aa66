"""`mode=predict`: predictions for a user's texts in the terminal, in texts.json and on a page."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from adadepth import (
    AdaLayersForSequenceClassification,
    AlbertActForPreTraining,
    AlbertActForSequenceClassification,
    AlbertActForTokenClassification,
    ParXLConfig,
    ParXLForCausalLM,
    Pipeline,
    tasks,
)
from adadepth.cli.command_line import quote_text_override
from adadepth.data.puzzles.dataset import build_puzzle_tokenizer
from adadepth.errors import ConfigError, DataError
from adadepth.models.trm.configuration import TrmConfig
from adadepth.models.trm.modeling import TrmForPuzzles
from adadepth.report.predictions import print_texts
from adadepth.report.style import get_depth_color
from adadepth.tasks.predict import read_texts
from tests.configs.support import configured
from tests.marks_support import keep_one_quick
from tests.models_support import make_small_act, make_small_ponder
from tests.unit.data.tokenizers_support import build_streaming_tokenizer, tokenizer
from tests.unit.models.adalayers_support import HEAD, save_base
from tests.unit.models.par_xl_support import SMALL as PAR

WORDS = tokenizer("bert")
TEXTS = ["a cat, they said: stop!", "don't stop the naive cat"]
Made = tuple[str, Any, PreTrainedTokenizerFast]  # name of a configuration, model, tokenizer


def build_adalayers(folder: Path) -> Any:
    torch.manual_seed(0)
    return AdaLayersForSequenceClassification.from_base(save_base("bert", folder / "base"), **HEAD, num_labels=3)


def build_language_model(folder: Path) -> Any:
    torch.manual_seed(0)
    return ParXLForCausalLM(ParXLConfig(**PAR | {"vocab_size": len(WORDS)}, architecture="sfsf"))


def build_puzzle_model() -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_steps": 3, "cycles": 1}
    return TrmForPuzzles(TrmConfig(cells=16, vocab_size=6, **sizes))


MAKE: dict[str, Callable[[Path], Made]] = {
    "act": lambda _: ("act_cola", make_small_act(AlbertActForSequenceClassification), WORDS),
    "tagger": lambda _: ("act_pos", make_small_act(AlbertActForTokenClassification, num_labels=3), WORDS),
    "masks": lambda _: ("act_tiny", make_small_act(AlbertActForPreTraining), WORDS),
    "ponder": lambda _: ("ponder_tiny", make_small_ponder(exit_rule="quantile:0.5"), WORDS),
    "adalayers": lambda folder: ("adalayers_cola", build_adalayers(folder), WORDS),
    "puzzle": lambda _: ("trm_tiny", build_puzzle_model(), build_puzzle_tokenizer(".1234")),
    "next": lambda folder: ("par_tiny", build_language_model(folder), build_streaming_tokenizer()),
}


def run_prediction(kind: str, folder: Path, texts: Any, *overrides: str) -> tuple[dict[str, Any], str, Any]:
    """Return texts.json, the page, and the model, from a prediction with a folder of that kind."""
    name, model, words = MAKE[kind](folder)
    model.eval().save_pretrained(folder / "model")
    words.save_pretrained(folder / "model")
    config = configured(
        name, "mode=predict", f"checkpoint={folder}/model", f"output_dir={folder}/out", "text=a cat", *overrides
    )
    config.text = texts
    assert tasks.run(config) is None
    (path,) = folder.glob("out/*/*/texts.json")
    return json.loads(path.read_text()), (path.parent / "report.html").read_text(), model


@pytest.mark.parametrize("kind", keep_one_quick(3, ["act", "ponder", "adalayers"]))
def test_classes_are_those_of_the_pipeline(kind: str, tmp_path: Path) -> None:
    answer, page, model = run_prediction(kind, tmp_path, TEXTS)
    expected = Pipeline(model, WORDS)(TEXTS)
    assert [row["scores"] for row in answer["texts"]] == [
        pytest.approx(prediction.scores, abs=1e-5) for prediction in expected
    ]
    assert [row["updates"] for row in answer["texts"]] == pytest.approx([prediction.updates for prediction in expected])
    assert 0 < answer["work"] <= 1
    assert all(f"{row['label']} {row['score']:.2f}" in page for row in answer["texts"])


def test_a_token_shows_the_probabilities_of_its_iterations(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    answer, page, model = run_prediction("act", tmp_path, [TEXTS[0]])
    with torch.no_grad():
        outputs = model(**WORDS(TEXTS[0], return_tensors="pt"))
    depths, probabilities = outputs.updates[0].tolist(), outputs.halting_probabilities[0]
    assert len(set(depths)) > 1
    (row,) = answer["texts"]
    tips = [json.loads(answer) for answer in re.findall(r"data-notes='(.*?)'", page)]
    for token, depth, masses, tip in zip(row["tokens"], depths, probabilities, tips, strict=True):
        assert token["updates"] == len(token["steps"]) == depth
        assert [step["halting"] for step in token["steps"]] == pytest.approx(masses[: int(depth)].tolist(), abs=1e-5)
        assert tip == pytest.approx(masses[: int(depth)].tolist(), abs=1e-5)
    assert answer["mean"] == pytest.approx(sum(depths) / len(depths))
    line = next(line for line in capsys.readouterr().out.splitlines() if "[CLS]" in line)
    assert re.sub(r"\(\d\)|\[CLS\]|\[SEP\]", "", line).strip() == TEXTS[0]  # the text as it was written
    assert [float(depth) for depth in re.findall(r"\((\d)\)", line)] == depths


def test_steps_of_a_text_are_those_of_the_exit_rules(tmp_path: Path) -> None:
    answer, page, _ = run_prediction("ponder", tmp_path, TEXTS)
    for row in answer["texts"]:
        assert len(row["steps"]) == 6
        for number, step in enumerate(row["steps"], start=1):
            (expected,) = Pipeline(make_small_ponder(), WORDS, exit_rule=f"fixed:{number}")(" ".join(row["text"]))
            assert (step["label"], step["score"]) == (expected.label, pytest.approx(expected.score, abs=1e-5))
        assert row["label"] == row["steps"][round(row["updates"]) - 1]["label"]
        assert f"{round(row['updates'])} (exit)" in page


@pytest.mark.slow
def test_tags_of_pairs_are_those_of_the_pipeline(tmp_path: Path) -> None:
    answer, page, model = run_prediction("tagger", tmp_path, [["a cat", "stop"]])
    (row,) = answer["texts"]
    (expected,) = Pipeline(model, WORDS)([("a cat", "stop")])
    assert [token["label"] for token in row["tokens"]] == [token.label for token in expected.tokens]
    assert [token["part"] for token in row["tokens"]] == [None, 0, 0, None, 1, None]
    assert page.count("data-notes=") == len(row["tokens"])


def test_fillings_are_the_most_probable_tokens(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    answer, page, model = run_prediction("masks", tmp_path, "a [MASK] cat")
    (token,) = [token for token in answer["texts"][0]["tokens"] if token["label"] is not None]
    with torch.no_grad():
        logits = model(**WORDS("a [MASK] cat", return_tensors="pt")).prediction_logits[0, 2, : len(WORDS)]
    best = logits.softmax(dim=-1).topk(5)
    assert list(token["candidates"].values()) == pytest.approx(best.values.tolist(), abs=1e-5)
    assert list(token["candidates"]) == [WORDS.decode([word]) for word in best.indices.tolist()]
    assert f"[MASK]: {token['label']} {token['score']:.2f}, " in capsys.readouterr().out
    notes = [json.loads(answer) for answer in re.findall(r"data-notes='(.*?)'", page)]
    assert [[list(pair) for pair in token["candidates"].items()]] == [
        answer[-5:] for answer in notes if isinstance(answer[0], list) and isinstance(answer[0][-1], str)
    ]


def test_weights_of_layers_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    answer, page, model = run_prediction("adalayers", tmp_path, TEXTS)
    weights = model.layer_distribution().tolist()
    assert answer["texts"][0]["layers"] == pytest.approx([*[0.0] * (5 - len(weights)), *weights], abs=1e-6)
    assert "weights of layers" in capsys.readouterr().out
    assert "weights:" in page


@pytest.mark.slow
def test_segments_are_those_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.json").write_text('{"dataset_schema": "stream"}')
    (tmp_path / "config.yaml").write_text(
        "{model: {name: par_xl}, dataset: {name: x, sequence_length: 8}, trainer: {}}"
    )
    lengths = []

    class Asked(Pipeline):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            lengths.append(self.segment_length)

    monkeypatch.setattr("adadepth.tasks.predict.Pipeline", Asked)
    run_prediction("next", tmp_path, "a cat stop")
    assert lengths == [8]


def test_probabilities_of_next_tokens_are_those_of_the_loss(tmp_path: Path) -> None:
    """Check that the tokens' probabilities multiply to that of the text, as the loss has it."""
    answer, page, model = run_prediction("next", tmp_path, "a cat stop")
    (row,) = answer["texts"]
    ids = build_streaming_tokenizer()("a cat stop", add_special_tokens=False, return_tensors="pt")["input_ids"]
    start = torch.full((1, 1), build_streaming_tokenizer().eos_token_id)
    with torch.no_grad():
        outputs = model(torch.cat([start, ids[:, :-1]], dim=1), targets=ids)
    probabilities = torch.tensor([token["own_score"] for token in row["tokens"] if token["span"] is not None])
    assert -probabilities.log().mean().item() == pytest.approx(outputs.loss.item(), abs=1e-4)
    assert "its probability" in page


def test_colours_are_those_of_the_page(tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch) -> None:
    answer, page, _ = run_prediction("act", tmp_path, TEXTS)
    capsys.readouterr()
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    print_texts(answer, color=True)
    printed = capsys.readouterr().out
    for depth in {round(token["updates"]) for row in answer["texts"] for token in row["tokens"]}:
        color = get_depth_color(depth, answer["max_depth"])
        red, green, blue = (int(color[start : start + 2], 16) for start in (1, 3, 5))
        assert f"48;2;{red};{green};{blue}m" in printed
        assert f".d{depth}{{background:{color}" in page
    monkeypatch.setenv("NO_COLOR", "1")
    print_texts(answer, color=True)
    assert "\x1b[48" not in capsys.readouterr().out


@pytest.mark.slow
def test_a_report_can_be_written_again(tmp_path: Path) -> None:
    _, page, _ = run_prediction("ponder", tmp_path, TEXTS)
    assert f"{tmp_path}/model</" in page, "what was asked"
    assert "figures/" not in page, "there are none"
    (report,) = tmp_path.glob("out/*/*/report.html")
    report.unlink()
    tasks.run(configured("ponder_tiny", "mode=report", f"run={report.parent}"))
    assert report.read_text() == page
    assert "http" not in re.sub(r"http://www\.w3\.org/\S+", "", page)  # nothing is fetched


# ---- tables


def predict_table(kind: str, folder: Path, name: str, content: str, *overrides: str) -> Any:
    """Return the predictions for a file, by a model of a kind: rows of JSON, or the text of another format."""
    root, model, words = MAKE[kind](folder)
    model.eval().save_pretrained(folder / "model")
    words.save_pretrained(folder / "model")
    (folder / name).write_text(content, encoding="utf-8")
    tasks.run(configured(
        root, "mode=predict", f"checkpoint={folder}/model", f"output_dir={folder}/out", f"input={folder}/{name}",
        *overrides,
    ))  # fmt: skip
    (path,) = folder.glob("out/*/*/predictions.*")
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else text


def test_rows_of_csv_keep_their_columns(tmp_path: Path) -> None:
    content = 'id,sentence,note\n7,"a cat, they said",=1+1\n8,,-2.5\n9,stop,"two\nlines"\n'
    rows = list(csv.DictReader(io.StringIO(predict_table("ponder", tmp_path, "mine.csv", content))))
    expected = Pipeline(make_small_ponder(exit_rule="quantile:0.5"), WORDS)(["a cat, they said", "", "stop"])
    classes = [f"probability_{name}" for name in expected[0].scores]
    assert list(rows[0]) == ["id", "sentence", "note", "prediction", *classes, "updates"]
    assert [row["id"] for row in rows] == ["7", "8", "9"]
    assert [row["note"] for row in rows] == ["'=1+1", "-2.5", "two\nlines"]  # a formula is defused, a number is one
    for row, prediction in zip(rows, expected, strict=True):
        assert row["prediction"] == prediction.label
        assert [float(row[name]) for name in classes] == pytest.approx(list(prediction.scores.values()), abs=1e-5)
        assert float(row["updates"]) == prediction.updates


def test_a_csv_with_semicolons_keeps_its_delimiter(tmp_path: Path) -> None:
    lines = predict_table("ponder", tmp_path, "mine.csv", 'id;sentence;note\n7;a cat;"1,5; 2"\n').splitlines()
    assert lines[0].startswith("id;sentence;note;prediction;probability_")
    assert lines[1].startswith('7;a cat;"1,5; 2";')
    assert lines[1].count(";") == lines[0].count(";") + 1  # the one within quotes


@pytest.mark.slow
def test_rows_of_json_stay_as_they_are(tmp_path: Path) -> None:
    rows = [{"id": 1, "sentence": "a cat", "more": {"a": [1]}}, {"sentence": None, "id": 2.5}]
    predictions = predict_table("act", tmp_path, "mine.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    added = ["prediction", "probabilities", "updates"]
    assert [{key: value for key, value in row.items() if key not in added} for row in predictions] == rows
    assert [sum(row["probabilities"].values()) for row in predictions] == pytest.approx([1, 1], abs=1e-5)


def test_pairs_of_lines_are_written_to_the_named_output(tmp_path: Path) -> None:
    output = tmp_path / "said.tsv"
    overrides = ["dataset.text_columns=[first,second]", f"output={output}"]
    with pytest.raises(ValueError, match="not enough values"):  # nothing in the folder of the prediction
        predict_table("act", tmp_path, "mine.txt", "a cat\tthat stop\nstop\t\n", *overrides)
    assert [line.split("\t")[:2] for line in output.read_text().splitlines()] == [
        ["first", "second"], ["a cat", "that stop"], ["stop", ""],
    ]  # fmt: skip


@pytest.mark.slow
def test_cells_of_a_table_are_written_unchanged(tmp_path: Path) -> None:
    """Read cells back with pandas: except for formulas, texts and numbers are those of the input."""
    notes = ["nice ;-) film", "-1,5", "=1+1", "a\n-b", "@you", "two\u2028lines\x85\x0c", "8\xa0375", "+5%", "-", "a\rb"]
    rows = [{"sentence": f"cat {number}", "note": note} for number, note in enumerate(notes)]
    content = pandas.DataFrame(rows).to_csv(index=False, quoting=csv.QUOTE_ALL)
    expected = [f"'{note}" if note in ("=1+1", "@you") else note for note in notes]
    (tmp_path / "csv").mkdir()
    predict_table("ponder", tmp_path / "csv", "mine.csv", content)
    (path,) = tmp_path.glob("csv/out/*/*/predictions.csv")
    read = pandas.read_csv(path, dtype=str, keep_default_na=False)
    assert read["note"].tolist() == expected
    (tmp_path / "tsv").mkdir()
    output = tmp_path / "said.tsv"
    with pytest.raises(ValueError, match="not enough values"):  # nothing in the folder of the prediction
        predict_table("ponder", tmp_path / "tsv", "mine.csv", content, f"output={output}")
    with output.open(encoding="utf-8", newline="\n") as lines:
        cells = [line.split("\t")[1] for line in lines][1:]
    assert cells == [note.replace("\n", " ").replace("\r", " ") for note in expected]


def test_a_text_is_cut_into_words_at_blanks(tmp_path: Path) -> None:
    rows = predict_table(
        "tagger", tmp_path, "mine.jsonl", json.dumps({"tokens": "8\xa0375  stop\tthe\u3000cat\n"}),
        "dataset.token_column=tokens",
    )  # fmt: skip
    assert [len(row["prediction"]) for row in rows] == [3]


@pytest.mark.slow
def test_every_word_has_a_tag(tmp_path: Path) -> None:
    sentences = [["the", "naive", "cat's"], [], ["stop", "!"]]
    lines = "".join(json.dumps({"tokens": words}) + "\n" for words in sentences)
    rows = predict_table("tagger", tmp_path, "mine.jsonl", lines, "dataset.token_column=tokens")
    assert [row["tokens"] for row in rows] == sentences
    for name in ("prediction", "probability", "updates"):
        assert [len(row[name]) for row in rows] == [3, 0, 2]


def test_tables_of_masks_and_next_words_have_probabilities(tmp_path: Path) -> None:
    (row,) = predict_table("masks", tmp_path / "masks", "mine.jsonl", '{"text": "a [MASK] cat [MASK]"}')
    assert len(row["prediction"]) == len(row["probability"]) == 2
    (row,) = predict_table("next", tmp_path / "next", "mine.jsonl", '{"text": "a cat stop"}')
    (expected,) = Pipeline(build_language_model(tmp_path), build_streaming_tokenizer())(["a cat stop"])
    log_probabilities = [math.log(token.own_score) for token in expected.tokens if token.own_score is not None]
    assert row["log_probability"] == pytest.approx(sum(log_probabilities), abs=1e-4)


def test_a_user_s_puzzle_is_solved(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    puzzle = "1...|..2.|.3..|...4".replace("|", "")
    answers_file, page, model = run_prediction("puzzle", tmp_path / "text", "1.. .\n..2.\n.3..\n...4")
    (row,) = answers_file["texts"]
    with torch.no_grad():
        outputs = model(torch.tensor([[".1234".index(cell) + 1 for cell in puzzle]]), run_all_steps=True)
    answer = "".join("?.1234"[symbol] for symbol in outputs.logits[0].argmax(dim=-1))
    assert (row["label"], row["updates"], len(row["steps"])) == (answer, outputs.exit_steps.item(), 3)
    printed = capsys.readouterr().out
    assert f"1...   {answer[:4]}" in printed
    assert f"{answer[4:8]}\n{answer[8:12]}" in page
    (written,) = predict_table("puzzle", tmp_path / "table", "mine.jsonl", json.dumps({"question": puzzle}))
    assert (written["prediction"], written["updates"]) == (answer, row["updates"])
    lines = "".join(json.dumps({"question": question}) + "\n" for question in (puzzle, "12"))
    with pytest.raises(DataError, match=r"mine.jsonl, line 2, column question: '12': must be a puzzle of 16 cells"):
        predict_table("puzzle", tmp_path / "bad", "mine.jsonl", lines)
    for text, message in (("12", "but has 2"), ("5" * 16, "unknown symbol '5' in a cell; allowed are '.1234'")):
        with pytest.raises(DataError, match=message):
            Pipeline(model, build_puzzle_tokenizer(".1234"))(text)


MISTAKES = [
    ("mine.csv", "text\na\n", [], "lacks the column sentence; it has text"),
    ("mine.csv", "sentence,x\na,1\nb\n", [], "mine.csv, line 3 has 1 fields, its header 2"),
    ("mine.jsonl", '{"sentence": "a"}\n{"sentence": 3}\n', [], "line 2, column sentence: contains int, must be text"),
    ("mine.jsonl", '{"sentence": "a"}\n{"x": "b"}\n', [], "line 2 lacks the column sentence"),
    ("mine.jsonl", "[1]\n", [], "row 0 is not an object"),
    ("mine.jsonl", '{"sentence": "a", "x": "\\ud83d"}\n', [], "line 1 contains an unpaired surrogate"),
    ("mine.jsonl", "{\n", [], "line 1: Expecting property name"),
    ("mine.csv", "sentence,updates\na,1\n", [], "line 2 has a column updates, which the output also has"),
    ("mine.csv", "sentence\n", [], "the file has no rows"),
    ("mine.txt", "a\n", ["dataset.text_columns=[x,y]"], "line 1 has 1 tab-separated texts, must have 2"),
    ("mine.csv", "sentence\na\n", ["dataset.text_columns=[]"], "must name one column, or two for pairs"),
    ("mine.csv", "sentence\na\n", ["output=FOLDER/mine.csv"], "is the input file, which is never overwritten"),
    ("mine.csv", "sentence\na\n", ["output=FOLDER/said.doc"], "must end in one of .csv, .tsv, .jsonl"),
    ("mine.csv", "sentence\na\n", ["output=FOLDER/none/said.csv"], "folder not found"),
    ("mine.doc", "sentence\na\n", [], "input=FOLDER/mine.doc: not a table"),
]


@pytest.mark.parametrize(("name", "content", "overrides", "message"), MISTAKES)
def test_mistakes_in_tables_are_one_line_errors(
    name: str, content: str, overrides: list[str], message: str, tmp_path: Path
) -> None:
    overrides = [override.replace("FOLDER", str(tmp_path)) for override in overrides]
    with pytest.raises((ConfigError, DataError), match=re.escape(message.replace("FOLDER", str(tmp_path)))) as caught:
        predict_table("act", tmp_path, name, content, *overrides)
    assert "\n" not in str(caught.value)
    assert not [*tmp_path.glob("out/*/*/*predictions*"), *tmp_path.glob("said*"), *tmp_path.glob(".*.tmp")]
    assert "line 2" in message or "line 2 has a column" in message or not (tmp_path / "out").exists()


# ---- settings and their mistakes


def test_lines_of_a_file_are_texts(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("a cat\n\nstop\tthat now\n", encoding="utf-8")
    assert read_texts(f"@{tmp_path}/lines.txt") == ["a cat", ("stop", "that now")]
    (tmp_path / "marked.txt").write_bytes("\ufeffgood film\r\nthe film was good\u2028and bad\x85\x0c\n\xa0\n".encode())
    assert read_texts(f"@{tmp_path}/marked.txt") == ["good film", "the film was good\u2028and bad\x85\x0c", "\xa0"]
    assert read_texts("one") == ["one"]
    assert read_texts(["one", ["a", "b"]]) == ["one", ("a", "b")]


@pytest.mark.parametrize(
    "text",
    keep_one_quick(
        3,
        [
            'a, b: it\'s "so" (or not) = [x]?',
            "a\\",
            "it\\'s",
            "${oc.env:HOME}",
            "@file name.txt",
            "5",
            "true",
            "'quoted'",
            "ä",
        ],
    ),
)
def test_texts_are_not_parsed_by_hydra(text: str) -> None:
    config = configured("ponder_tiny", "mode=predict", "checkpoint=x", quote_text_override(f"text={text}"))
    assert config.text == text


def test_lists_and_other_keys_are_parsed_by_hydra() -> None:
    for override in ("text=[a,b]", "text=null", "trainer.max_steps=3", "~x"):
        assert quote_text_override(override) == override


def test_unread_data_are_not_checked() -> None:
    for mode in (["mode=predict", "checkpoint=x", "text=a"], ["mode=report", "run=x"]):
        assert configured("finetune", *mode).dataset.path is None


def test_a_checkpoint_of_another_family_is_refused(tmp_path: Path) -> None:
    from adadepth.errors import CheckpointError

    make_small_ponder().save_pretrained(tmp_path / "model")
    config = configured("act_cola", "mode=predict", f"checkpoint={tmp_path}/model", "text=a")
    with pytest.raises(
        CheckpointError, match=r"contains a model of type ponder_albert, not albert_act; add model=ponder_albert_mini$"
    ):
        tasks.run(config)
