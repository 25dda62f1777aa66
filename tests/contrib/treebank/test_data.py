"""Sentences of a treebank from CoNLL-U to sequences whose tokens know their words."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adadepth.config.data import HubTable, MaskingConfig
from adadepth.contrib.treebank import data
from adadepth.contrib.treebank.data import (
    TreebankData,
    Trees,
    count_forms,
    count_per_million,
    load_treebank,
    read_trees,
)
from adadepth.contrib.treebank.settings import TreebankConfig
from adadepth.data.text.local_files import open_conll_table
from adadepth.errors import DataError
from tests.treebank_support import DEPREL, DEPTH, FORMS, UPOS, write_treebank
from tests.unit.data.tokenizers_support import tokenizer


def read_text(text: str, folder: Path) -> Trees:
    (folder / "some.conllu").write_text(text.replace(" ", "\t"), encoding="utf-8")
    return read_trees(open_conll_table(folder / "some.conllu"))


def format_row(number: int | str, head: int | str, form: str = "w") -> str:
    return f"{number} {form} w X _ _ {head} dep _ _\n"


def format_rows(*ids_and_heads: str) -> str:
    """Return lines of words from "ID:HEAD"; an empty text is an empty line."""
    return "".join(format_row(*word.split(":")) if word else "\n" for word in ids_and_heads)


def load_sentences(folder: Path, *, masks: bool = False, **changes: Any) -> TreebankData:
    tokenizer("bert").save_pretrained(folder / "tokenizer")
    path = changes.pop("path", str(write_treebank(folder / "treebank", "en-ud-dev.conllu")))
    dataset = TreebankConfig(**{"name": "trees", "path": path, "sequence_length": 64, **changes})
    return load_treebank(dataset, str(folder / "tokenizer"), masks=masks)


def test_words_are_the_rows_with_a_head(tmp_path: Path) -> None:
    trees = read_trees(open_conll_table(write_treebank(tmp_path, "a.conllu") / "a.conllu"))
    assert trees.sentences.tolist() == [0, 7, 10]
    assert (trees.forms, trees.upos, trees.deprel) == (FORMS, UPOS, DEPREL)
    assert trees.depth.tolist() == DEPTH
    assert trees.sentence(1) == ["Stop", "it", "now"]


def test_rows_of_the_hub_hold_contractions_and_class_numbers(tmp_path: Path) -> None:
    rows = {"tokens": ["don't", "do", "n't", "stop", "it"], "upos": ["_", "AUX", "PART", "VERB", "PRON"],
            "head": ["None", "3", "3", "0", "_"], "deprel": ["_", "aux", "advmod", "root", "_"]}  # fmt: skip
    (tmp_path / "validation.jsonl").write_text(json.dumps(rows) + "\n", encoding="utf-8")
    data = load_sentences(tmp_path, path=str(tmp_path))
    trees = data.sets["validation"].trees
    assert (trees.forms, trees.depth.tolist()) == (["do", "n't", "stop"], [1, 1, 0])


@pytest.mark.parametrize(("rows", "depths"), [
    ([0], [0]), ([2, 3, 4, 0], [3, 2, 1, 0]), ([0, 1, 2, 3], [0, 1, 2, 3]), ([2, 0, 2], [1, 0, 1]),
])  # fmt: skip
def test_depth_counts_the_arcs_to_the_root(rows: list[int], depths: list[int], tmp_path: Path) -> None:
    text = "".join(format_row(number, head) for number, head in enumerate(rows, start=1))
    assert read_text(text, tmp_path).depth.tolist() == depths


@pytest.mark.parametrize(("lines", "expected"), [
    (["1:0", "2:3", "3:2"], "line 2: the heads of its words form a cycle"),
    (["1:1"], "line 1 begins a sentence without a root (head 0); a sentence must have one"),
    (["1:0", "2:1", "3:0"], "line 3 has a second root (head 0); a sentence must have one"),
    *((["1:0", f"2:{head}"], f"line 2 has the head '{head}'; allowed are 0 for the root and the "
                             "words 1 to 2 of its sentence") for head in ("3", "_", "-1", "x", "٢", "1.1", "01", "²")),
    (["1:0", "", "1:0", "2:1", "1:0"],
     "line 5 has the id '1' instead of 3; an empty line must end the previous sentence"),
    *((["1:0", f"{number}:1"], f"line 2 has the id '{number}' instead of 2; words are numbered 1, 2, 3, "
                              "...; n-m is a contraction of "
        "the following words, and n.1 is an empty node")
      for number in ("3", "0", "x", "٢", "²", "02", "1-2", "3-4", "2-1", "2-", "2-x", "1.2", "2.1", "-2", "")),
    (["0:0"], "line 1 has the id '0' instead of 1; words are numbered 1, 2, 3, ...; n-m is a contraction"),
    (["1-2:_", "1-3:_", "1:0"], "line 2 has the id '1-3' instead of 1; words are numbered"),
    (["1-3:_", "1:0", "2:1"], "line 3 ends a sentence of 2 words, but a contraction includes word 3"),
])  # fmt: skip
def test_an_invalid_tree_is_a_one_line_error(lines: list[str], expected: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as raised:
        read_text(format_rows(*lines), tmp_path)
    message = str(raised.value)
    assert message.startswith(f"dataset.path={tmp_path / 'some.conllu'}, {expected}")
    assert "\n" not in message


def test_the_line_of_an_empty_form_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"some.conllu, line 2 has a word whose column tokens is empty$"):
        read_text(format_row(1, 0) + format_row(2, 1, form=""), tmp_path)


def test_contractions_and_empty_words_can_be_anywhere(tmp_path: Path) -> None:
    text = format_rows("0.1:_", "1-2:_", "1:0", "1.1:_", "1.2:_", "2:1", "3-3:_", "3:2", "3.1:_", "", "1:0")
    assert read_text(text, tmp_path).depth.tolist() == [0, 1, 2, 0]


@pytest.mark.parametrize(("changes", "expected"), [
    ({"head": ["0", "5"]}, "FILE, line 1 has the head '5'; allowed are 0 for the root and the words 1 to 2"),
    ({"head": ["0", "ten"]}, "FILE, line 1 has the head 'ten'; allowed are"),
    ({"head": ["0"]}, "FILE, line 1: its column head is not a list with a value for each of its tokens"),
    ({"upos": "X X"}, "FILE, line 1: its column upos is not a list with a value for each of its tokens"),
    ({"tokens": ["a", ""]}, "FILE, line 1 has a word whose column tokens is empty"),
    ({"head": ["_", None]}, "FILE: no word has a head; a treebank needs a head for every word in the column head"),
])  # fmt: skip
def test_an_invalid_row_of_the_hub_is_a_one_line_error(changes: dict[str, Any], expected: str, tmp_path: Path) -> None:
    sentence = {"tokens": ["a", "b"], "upos": ["X", "X"], "head": ["0", "1"], "deprel": ["root", "dep"]} | changes
    file = tmp_path / "validation.jsonl"
    file.write_text(json.dumps(sentence) + "\n", encoding="utf-8")
    with pytest.raises(DataError) as raised:
        load_sentences(tmp_path, path=str(tmp_path))
    assert str(raised.value).startswith(expected.replace("FILE", f"dataset.path={file}"))


def test_frequencies_are_those_of_lower_cased_words_of_all_splits(tmp_path: Path) -> None:
    table = open_conll_table(write_treebank(tmp_path, "a.conllu") / "a.conllu")
    counts = count_forms([table, table])
    assert counts == Counter(dict.fromkeys(("do", "n't", "cats", ",", "please", "!", "it", "now"), 2) | {"stop": 4})
    assert count_per_million(["STOP", "it"], counts).tolist() == [200_000, 100_000]


def test_every_token_knows_its_word(tmp_path: Path) -> None:
    data = load_sentences(tmp_path)
    (name,), examples = data.sets, data.sets["validation"].plain
    assert name == "validation"
    for index in range(2):
        ids, owners = examples[index]["input_ids"], examples.owners(index)
        assert (len(ids), owners[0], owners[-1]) == (len(owners), -1, -1)
        words: dict[int, list[int]] = {}
        for token, owner in zip(ids[1:-1].tolist(), owners[1:-1].tolist(), strict=True):
            words.setdefault(owner, []).append(token)
        first, last = data.sets["validation"].trees.sentences[index : index + 2]
        assert list(words) == list(range(first, last))  # in order, none lost
        for owner, pieces in words.items():
            assert pieces == data.tokenizer(FORMS[owner], add_special_tokens=False)["input_ids"]
    assert max(Counter(examples.owners(0).tolist()).values()) > 1  # some word is split
    assert examples.lengths().tolist() == [len(examples[index]["input_ids"]) for index in range(2)]


def test_a_long_sentence_is_truncated_with_a_message(tmp_path: Path) -> None:
    data = load_sentences(tmp_path, sequence_length=8)
    examples = data.sets["validation"].plain
    assert len(examples[0]["input_ids"]) == 8
    whole = load_sentences(tmp_path).sets["validation"].plain
    assert examples.owners(0)[:7].tolist() == whole.owners(0)[:7].tolist()
    cut = sum(length > 8 for length in whole.lengths())
    assert data.summary["evaluation"]["validation"]["cut"] == cut >= 1


def test_masks_are_those_of_an_evaluation_and_stay(tmp_path: Path) -> None:
    data = load_sentences(tmp_path, masks=True, masking=MaskingConfig(probability=0.5))
    validation = data.sets["validation"]
    assert validation.masked is not None
    for index in range(2):
        plain, masked = validation.plain[index], validation.masked[(3, index)]
        is_masked = masked["labels"] >= 0
        assert 1 <= is_masked.sum() <= round(0.5 * (len(is_masked) - 2))
        np.testing.assert_array_equal(np.where(is_masked, masked["labels"], masked["input_ids"]), plain["input_ids"])
        np.testing.assert_array_equal(masked["input_ids"], validation.masked[index]["input_ids"])
        assert ((masked["mask_kind"] == 1) <= (masked["input_ids"] == data.tokenizer.mask_token_id)).all()
    batch = data.collate([validation.masked[0], validation.masked[1]])
    assert batch["labels"].shape == batch["mask_kind"].shape == batch["input_ids"].shape
    assert "labels" not in data.collate([validation.plain[0]])


@pytest.mark.parametrize(("files", "splits", "expected"), [
    (["en-ud-train.conllu", "en-ud-dev.conllu", "en-ud-test.conllu"], None, ["validation", "test"]),
    (["en-ud-train.conllu"], None, ["train"]),
    (["en-ud-train.conllu", "en-ud-dev.conllu"], ["train"], ["train"]),
    (["one.conllu", "two.conllu"], None, ["treebank"]),
])  # fmt: skip
def test_files_of_a_folder_are_sets(
    files: list[str], splits: list[str] | None, expected: list[str], tmp_path: Path
) -> None:
    folder = write_treebank(tmp_path / "folder", *files)
    data = load_sentences(tmp_path, path=str(folder), evaluation_splits=splits)
    assert list(data.sets) == expected
    assert data.summary["counted_words"] == 10 * len(files)


def test_files_that_are_no_splits_are_one_set(tmp_path: Path) -> None:
    folder = write_treebank(tmp_path / "folder", "a.conllu", "b.conllu")
    for path in (str(folder / "*.conllu"), [str(folder / "a.conllu"), str(folder / "b.conllu")]):
        assert len(load_sentences(tmp_path, path=path).sets["treebank"].trees) == 4
    assert list(load_sentences(tmp_path, path={"mine": str(folder / "a.conllu")}).sets) == ["mine"]


def test_sentences_are_evenly_spread(tmp_path: Path) -> None:
    data = load_sentences(tmp_path, max_evaluation_examples=1)
    assert (len(data.sets["validation"].plain), len(data.sets["validation"].trees)) == (1, 2)


@pytest.mark.parametrize(("changes", "expected"), [
    ({"evaluation_splits": ["tset"]}, "dataset.evaluation_splits=tset: known splits are validation"),
    ({"path": "PLACE/nothing"}, "dataset.path=PLACE/nothing: "),
    ({"path": "PLACE"}, "dataset.path=PLACE: no CoNLL-U file (.conllu) in that folder"),
    ({"path": "PLACE/words.txt"}, "dataset.path=PLACE/words.txt: not a CoNLL-U file, which ends in .conllu"),
    ({"path": None, "hub": HubTable(path="somebody/trees")}, "dataset.hub=somebody/trees"),
])  # fmt: skip
def test_missing_files_are_a_one_line_error(changes: dict[str, Any], expected: str, tmp_path: Path) -> None:
    folder = tmp_path / "place"
    folder.mkdir()
    (folder / "words.txt").write_text("no columns\n")
    if isinstance(path := changes.get("path"), str):
        changes = changes | {"path": path.replace("PLACE", str(folder))}
    with pytest.raises(DataError) as raised:
        load_sentences(tmp_path, **changes)
    assert str(raised.value).startswith(expected.replace("PLACE", str(folder)))
    assert "\n" not in str(raised.value)


def test_a_table_without_heads_is_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "test.jsonl").write_text(json.dumps({"tokens": ["a"], "upos": ["X"]}) + "\n")
    with pytest.raises(DataError, match="a treebank has the columns tokens, upos, head, deprel; missing: head"):
        load_sentences(tmp_path, path=str(tmp_path))


@pytest.mark.slow
@pytest.mark.data
def test_the_treebank_of_the_paper_is_read_completely(tmp_path: Path, data_root: Path) -> None:
    data = load_sentences(tmp_path, path=str(data_root / "ud_english_ewt"))
    counts = {name: (len(treebank.trees), len(treebank.trees.forms)) for name, treebank in data.sets.items()}
    text = {name: (data_root / "ud_english_ewt" / f"en_ewt-ud-{file}.conllu").read_text(encoding="utf-8")
            for name, file in (("validation", "dev"), ("test", "test"))}  # fmt: skip
    for name, content in text.items():
        words = [line for line in content.splitlines() if line.split("\t")[0].isdigit()]
        assert counts[name] == (content.count("# sent_id"), len(words))


def test_a_treebank_must_not_change_between_two_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_treebank(tmp_path, "en-ud-test.conllu")
    tokenizer("bert").save_pretrained(tmp_path / "bert")
    dataset = TreebankConfig(name="t", path=str(tmp_path), sequence_length=32)
    file = tmp_path / "en-ud-test.conllu"
    original = data.count_forms

    def change(tables: Any) -> Any:
        counts = original(tables)
        file.write_text(file.read_text().replace("\tNOUN\t", "\tPROPN\t"))
        return counts

    monkeypatch.setattr(data, "count_forms", change)
    with pytest.raises(DataError, match=re.escape(str(file))):
        load_treebank(dataset, str(tmp_path / "bert"), masks=False)
