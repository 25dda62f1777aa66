"""Readers of SentEval's probing files and of the agreement data, on files written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adadepth.config import LabelledConfig, TokenizerConfig
from adadepth.config.data import AgreementConfig, SentEvalConfig
from adadepth.data import RunData
from adadepth.errors import DataError
from tests.configs.support import configured
from tests.marks_support import keep_one_quick

from .labelled_support import load, make_labelled_config, make_pair_rows, write_splits

TENSES = [
    "tr\tPAST\tThe dog barked at it .",
    "va\tPRES\tA dog sings .",
    'te\tPAST\tShe left "it" .',
    "tr\tPRES\tnotes of the authors\tShe sings well .",
    "te\tPRES\tThe dogs sing .",
    'tr\tPAST\tWe left "it" .',
]
COLUMNS = ["orig_sentence", "sentence", "verb_pos", "verb_index", "n_intervening", "n_diff_intervening", "distance"]


def write_lines(file: Path, lines: list[str]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return file


def make_senteval(folder: Path, task: str = "past_present", **changes: Any) -> SentEvalConfig:
    shipped = configured("act_cola", "dataset=senteval", f"dataset.task={task}", f"dataset.path={folder}").dataset
    assert isinstance(shipped, SentEvalConfig)
    return change_dataset(shipped, folder, changes)


def make_agreement(file: Path, **changes: Any) -> AgreementConfig:
    shipped = configured("act_cola", "dataset=agreement", f"dataset.path={file}").dataset
    assert isinstance(shipped, AgreementConfig)
    return change_dataset(shipped, file.parent, changes)


def change_dataset(dataset: Any, folder: Path, changes: dict[str, Any]) -> Any:
    for name, value in {"cache_dir": str(folder / "cache"), "sequence_length": 128, **changes}.items():
        setattr(dataset, name, value)
    return dataset


def read(dataset: LabelledConfig) -> RunData:
    return load(dataset, TokenizerConfig(vocab_size=40))


def list_texts(data: RunData, examples: Any) -> list[tuple[str, str]]:
    assert data.tokenizer is not None
    rows = [examples[index] for index in range(len(examples))]
    return [
        (data.tokenizer.decode(row["input_ids"], skip_special_tokens=True).strip(), data.labels[row["label"]])
        for row in rows
    ]


def read_message(dataset: LabelledConfig) -> str:
    with pytest.raises(DataError) as raised:
        read(dataset)
    assert "\n" not in str(raised.value)
    return str(raised.value)


# --- SentEval


@pytest.mark.slow
def test_a_probing_file_has_three_splits(tmp_path: Path) -> None:
    write_lines(tmp_path / "past_present.txt", TENSES)
    data = read(make_senteval(tmp_path))
    assert data.labels == ("PAST", "PRES")
    assert list_texts(data, data.train) == [
        ("the dog barked at it .", "PAST"), ("she sings well .", "PRES"), ('we left "it" .', "PAST"),
    ]  # fmt: skip
    assert list(data.evaluation) == ["validation", "test"]
    assert list_texts(data, data.evaluation["validation"]) == [("a dog sings .", "PRES")]
    assert list_texts(data, data.evaluation["test"]) == [('she left "it" .', "PAST"), ("the dogs sing .", "PRES")]
    assert (data.test, data.has_difficulty) == ({}, False)


def test_classes_that_are_numbers_are_in_their_order(tmp_path: Path) -> None:
    lines = [f"{split}\t{depth}\tone two three ." for split in ("tr", "va", "te") for depth in (5, 12, 10)]
    write_lines(tmp_path / "tree_depth.txt", lines)
    assert read(make_senteval(tmp_path, "tree_depth")).labels == ("5", "10", "12")


def test_the_task_follows_from_the_name(tmp_path: Path) -> None:
    assert make_senteval(tmp_path, "odd_man_out").name == "senteval_odd_man_out"


@pytest.mark.parametrize(("line", "expected"), [
    ("tr\tPAST", "line 7 has 2 fields with tabs between them; a line needs tr, va or te, the class, and the sentence"),
    ("", "line 7 has 1 fields with tabs between them; a line needs tr, va or te, the class, and the sentence"),
    ("dev\tPAST\tShe left .", "line 7 begins with 'dev', not with tr, va or te"),
])  # fmt: skip
def test_a_line_of_another_format_is_named(tmp_path: Path, line: str, expected: str) -> None:
    file = write_lines(tmp_path / "past_present.txt", [*TENSES, line])
    assert read_message(make_senteval(tmp_path)) == f"dataset.path={file}, {expected}"


def test_a_class_that_training_does_not_have_is_named(tmp_path: Path) -> None:
    write_lines(tmp_path / "past_present.txt", [*TENSES, "te\tFUT\tShe will ."])
    assert "past_present.txt, line 7 has" in read_message(make_senteval(tmp_path))
    assert "has the label 'FUT'; allowed are PAST, PRES" in read_message(make_senteval(tmp_path))


def test_a_split_without_rows_is_named(tmp_path: Path) -> None:
    write_lines(tmp_path / "past_present.txt", [line for line in TENSES if not line.startswith("va")])
    assert "the split validation of" in read_message(make_senteval(tmp_path))


def test_a_wrong_task_or_folder_is_named(tmp_path: Path) -> None:
    write_lines(tmp_path / "past_present.txt", TENSES)
    assert read_message(make_senteval(tmp_path, "past_presnt")) == (
        f"dataset.task=past_presnt: no past_presnt.txt in dataset.path={tmp_path}; there is past_present "
        "(did you mean 'past_present'?)"
    )
    gone = tmp_path / "gone"
    assert read_message(make_senteval(gone)) == f"dataset.path={gone}: no such folder; it must hold past_present.txt"
    assert "dataset.evaluation_splits=dev: " in read_message(
        make_senteval(tmp_path, evaluation_splits=["validation", "dev"])
    )


# --- agreement


def make_sentence(number: int) -> dict[str, Any]:
    """Return nouns between subject and verb, as many as the row's last digit says, every second of the other number."""
    between = number % 10
    nouns = ["of the keys" if position % 2 else "of the box" for position in range(between)]
    words = ["the", "key", *" ".join(nouns).split(), "is", "here", "."]
    return {
        "orig_sentence": " ".join(words), "sentence": "not read", "verb_pos": "VBZ" if number % 3 else "VBP",
        "verb_index": 3 + 3 * between, "n_intervening": between, "n_diff_intervening": between // 2,
        "distance": 1 + 3 * between,
    }  # fmt: skip


def write_agreement(file: Path, rows: list[dict[str, Any]], columns: list[str] = COLUMNS) -> Path:
    return write_lines(file, ["\t".join(columns), *("\t".join(str(row[name]) for name in columns) for row in rows)])


@pytest.mark.slow
def test_the_words_before_the_verb_are_read(tmp_path: Path) -> None:
    rows = [make_sentence(number) for number in range(200)]
    data = read(make_agreement(write_agreement(tmp_path / "agr.tsv", rows)))
    assert data.labels == ("VBZ", "VBP")
    expected = {
        "train": [*range(9), *range(100, 109)], "validation": [9, 109],
        "test": [*range(10, 100), *range(110, 200)],
    }  # fmt: skip
    for split, numbers in expected.items():
        examples = data.train if split == "train" else data.evaluation[split]
        assert list_texts(data, examples) == [
            (rows[number]["orig_sentence"].partition(" is ")[0], rows[number]["verb_pos"]) for number in numbers
        ]
        difficulty = [examples[index]["difficulty"] for index in range(len(examples))]
        assert difficulty == [rows[number]["n_diff_intervening"] for number in numbers]
    assert data.has_difficulty
    batch = data.collate([data.train[index] for index in range(4)])
    assert batch["difficulty"].tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("column", ["n_intervening", "distance"])
def test_difficulty_may_be_another_column(tmp_path: Path, column: str) -> None:
    rows = [make_sentence(number) for number in range(20)]
    data = read(make_agreement(write_agreement(tmp_path / "agr.tsv", rows), difficulty_column=column))
    assert [data.train[index]["difficulty"] for index in range(9)] == [row[column] for row in rows[:9]]


@pytest.mark.parametrize(("change", "expected"), keep_one_quick(5, [
    ({"verb_index": 9}, "agr.tsv, line 6 has the verb_index '9'; it must be from 2 to 7, the number of "
                        "words of its orig_sentence"),
    ({"verb_index": 1}, "agr.tsv, line 6 has the verb_index '1'; it must be from 2 to 7, the number of words"),
    ({"verb_index": "x"}, "agr.tsv, line 6 has the verb_index 'x'; it must be from 2 to 7, the number of words"),
    ({"verb_pos": "VBD"}, "agr.tsv, line 6 has the label"),
    ({"n_diff_intervening": "na"}, "has the difficulty 'na'; an integer of at least 0 is needed"),
]))  # fmt: skip
def test_a_bad_row_is_named(tmp_path: Path, change: dict[str, Any], expected: str) -> None:
    rows = [make_sentence(number) for number in range(20)]
    rows[4] = rows[4] | {"orig_sentence": "the key of the box is here"} | {"verb_index": 6} | change
    assert expected in read_message(make_agreement(write_agreement(tmp_path / "agr.tsv", rows)))


@pytest.mark.parametrize(
    "missing", keep_one_quick(4, ["verb_index", "verb_pos", "orig_sentence", "n_diff_intervening"])
)
def test_a_column_that_is_missing_is_named(tmp_path: Path, missing: str) -> None:
    columns = [name for name in COLUMNS if name != missing]
    file = write_agreement(tmp_path / "agr.tsv", [make_sentence(number) for number in range(20)], columns)
    error = read_message(make_agreement(file))
    assert missing in error
    assert ", ".join(columns) in error


# --- any table


def test_any_table_may_have_a_difficulty_column(tmp_path: Path) -> None:
    folder = write_splits(tmp_path / "in", train=make_pair_rows(6), validation=make_pair_rows(3, 6))
    data = load(make_labelled_config(folder, tmp_path / "cache", difficulty_column="number"))
    assert [data.evaluation["validation"][index]["difficulty"] for index in range(3)] == [6, 7, 8]
    plain = load(make_labelled_config(folder, tmp_path / "cache"))
    assert "difficulty" not in plain.train[0]
    assert not plain.has_difficulty
