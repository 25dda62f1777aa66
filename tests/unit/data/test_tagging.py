"""Tagged sentences, from files to batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyarrow import parquet
from transformers import PreTrainedTokenizerFast

from adadepth.config import Source, TaggingConfig, TokenizerConfig
from adadepth.data import RunData, load_labelled_data
from adadepth.data.text.tokenizer import encode_words
from adadepth.errors import DataError
from tests.marks_support import keep_one_quick
from tests.treebank_support import write_treebank

from .labelled_support import write_splits
from .tokenizers_support import KINDS, tokenizer

AWKWARD = ["don't", "naïve", "", "\u200b", "東京", "😀", " ", "stop", "a\u00a0cat"]
NAMES = ["O", "B-PER", "I-PER"]
SENTENCES = [["stop", "that", "naive", "cat"], ["don't"], ["they", "said", ":", "lots"], ["a", "cat", "!"]]
TAGS = [["O", "O", "B-PER", "I-PER"], ["O"], ["B-PER", "O", "O", "O"], ["O", "B-PER", "O"]]


def make_rows(sentences: list[list[str]] = SENTENCES, tags: list[Any] = TAGS) -> list[dict[str, Any]]:
    return [{"tokens": words, "ner_tags": row} for words, row in zip(sentences, tags, strict=True)]


def load_tags(folder: Path, path: Any, kind: str = "bert", **changes: Any) -> RunData:
    if not (folder / kind).exists():
        tokenizer(kind).save_pretrained(folder / kind)
    settings: dict[str, Any] = {
        "name": "tags", "source": Source.local, "path": path if isinstance(path, dict) else str(path),
        "cache_dir": str(folder / "cache"), "sequence_length": 32,
    }  # fmt: skip
    dataset = TaggingConfig(**{**settings, **changes})
    return load_labelled_data(dataset, TokenizerConfig(path=str(folder / kind)), 0, cls_tokens=0)


def label_by_word(words: list[str], tags: list[int], tokenizer_: PreTrainedTokenizerFast) -> list[int]:
    """Return a sentence's labels by a plain loop, one after the other, by the library's word numbers."""
    encoding = tokenizer_(words, is_split_into_words=True)
    labels, seen = [], None
    for word in encoding.word_ids():
        labels.append(tags[word] if word is not None and word != seen else -100)
        seen = word
    return labels


# --- words


@pytest.mark.parametrize("kind", KINDS)
def test_words_equal_those_of_the_library_without_loss(kind: str) -> None:
    words = tokenizer(kind)
    theirs = tokenizer(kind, add_prefix_space=True)
    encoding = theirs(AWKWARD, is_split_into_words=True, add_special_tokens=False)
    expected: list[list[int]] = [[] for _ in AWKWARD]
    for token, word in zip(encoding["input_ids"], encoding.word_ids(), strict=True):
        expected[word].append(token)
    assert [] in expected
    encoded = encode_words(words, [AWKWARD, [], ["cat"]])
    assert encode_words(words, [[], ["cat"]]) == encoded[1:]
    assert encoded[0] == [pieces or [words.unk_token_id] for pieces in expected]
    assert encoded[1] == []
    assert encode_words(theirs, [AWKWARD]) == encoded[:1]


def test_a_word_without_pieces_needs_an_unknown_token() -> None:
    words = tokenizer("bert")
    words.unk_token = None
    with pytest.raises(DataError, match=r"cannot encode the word '\\u200b', and has no unknown token"):
        encode_words(words, [["cat", "\u200b"]])


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_piece_of_a_word_has_its_tag(tmp_path: Path, kind: str) -> None:
    path = write_splits(tmp_path / "in", train=make_rows(), validation=make_rows())
    data = load_tags(tmp_path, path, kind)
    theirs = tokenizer(kind, add_prefix_space=True)
    assert data.labels == ("B-PER", "I-PER", "O")
    for index, (words, tags) in enumerate(zip(SENTENCES, TAGS, strict=True)):
        numbers = [data.labels.index(tag) for tag in tags]
        example = data.train[(0, index)]
        assert example["input_ids"].tolist() == theirs(words, is_split_into_words=True)["input_ids"]
        assert example["labels"].tolist() == label_by_word(words, numbers, theirs)
        assert data.train.gold(index) == numbers


@pytest.mark.parametrize("kind", KINDS)
def test_every_awkward_word_has_one_label(tmp_path: Path, kind: str) -> None:
    content = make_rows([AWKWARD], [list(range(len(AWKWARD)))])
    path = write_splits(tmp_path / "in", train=content, validation=content)
    data = load_tags(tmp_path, path, kind, sequence_length=200)
    labels = data.train[0]["labels"]
    assert labels[labels >= 0].tolist() == data.train.gold(0) == list(range(len(AWKWARD)))


def label_by_piece(words: list[str], tags: list[int], tokenizer_: PreTrainedTokenizerFast) -> list[int]:
    """Return labels of every piece by a plain loop: B-X (odd) is followed by I-X, the next number."""
    labels, seen = [], None
    for word in tokenizer_(words, is_split_into_words=True).word_ids():
        tag = -100 if word is None else tags[word]
        labels.append(tag + 1 if word == seen and tag % 2 == 1 else tag)
        seen = word
    return labels


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("room", [32, 6])
def test_all_pieces_of_a_word_may_have_a_label(tmp_path: Path, kind: str, room: int) -> None:
    sentences, tags = [["unhappily", "they", "said", "naïve"], ["stop"]], [["B-PER", "I-PER", "O", "B-PER"], ["O"]]
    path = write_splits(tmp_path / "in", train=make_rows(sentences, tags), validation=make_rows(sentences, tags))
    data = load_tags(tmp_path, path, kind, labelled_pieces="all", sequence_length=room, labels=NAMES)
    firsts = load_tags(tmp_path, path, kind, sequence_length=room, labels=NAMES)
    library = tokenizer(kind, add_prefix_space=True)
    for index in range(2):
        numbers = data.train.gold(index)
        whole, piece_labels = label_by_piece(sentences[index], numbers, library), data.train[index]["labels"].tolist()
        assert piece_labels == (whole if len(whole) <= room else [*whole[: room - 1], whole[-1]])
        expected = np.flatnonzero(firsts.train[index]["labels"] >= 0)
        assert data.train.find_first_pieces(index).tolist() == expected.tolist()
    assert (data.train[0]["labels"] >= 0).sum() > (firsts.train[0]["labels"] >= 0).sum()


def test_words_beyond_the_sequence_are_truncated_but_scored(tmp_path: Path) -> None:
    content = make_rows([["cat"] * 30, ["cat"] * 6], [[0, 1] * 15, [1] * 6])
    path = write_splits(tmp_path / "in", train=content, validation=content)
    data = load_tags(tmp_path, path, sequence_length=8)
    example = data.train[0]
    assert example["input_ids"].tolist()[-1] == data.tokenizer.sep_token_id
    assert example["labels"].tolist() == [-100, 0, 1, 0, 1, 0, 1, -100]
    assert data.train.gold(0) == [0, 1] * 15
    assert (data.summary["train"]["cut"], data.summary["train"]["words"]) == (1, 36)


def test_batches_are_padded_tensors(tmp_path: Path) -> None:
    data = load_tags(tmp_path, write_splits(tmp_path / "in", train=make_rows(), validation=make_rows()))
    examples = [data.train[(0, index)] for index in (2, 0)]
    batch = data.collate(examples)
    assert batch["labels"].dtype == torch.int64
    assert batch["labels"].shape == batch["input_ids"].shape
    for row, example in enumerate(examples):
        length = len(example["labels"])
        assert batch["labels"][row].tolist() == example["labels"].tolist() + [-100] * (
            batch["labels"].shape[1] - length
        )
    assert batch["index"].tolist() == [2, 0]
    assert (data.problem, data.metrics, data.test) == ("tagging", ("entity_f1",), {})


# --- tags


@pytest.mark.parametrize("values", [[0, 1, 2], ["0", "1", "2"], NAMES])
def test_tags_are_numbers_or_names(tmp_path: Path, values: list[Any]) -> None:
    content = make_rows([["a", "cat", "stop"]] * 2, [values, values[::-1]])
    for suffix in ("jsonl", "parquet"):
        path = write_splits(tmp_path / suffix, suffix, train=content, validation=content)
        data = load_tags(tmp_path, path, labels=NAMES)
        assert data.labels == tuple(NAMES)
        assert [data.train.gold(index) for index in range(2)] == [[0, 1, 2], [2, 1, 0]]


def test_tags_that_only_the_evaluation_has_are_classes(tmp_path: Path) -> None:
    path = write_splits(tmp_path / "in", train=make_rows(), validation=make_rows([["cat"]], [["B-LOC"]]))
    data = load_tags(tmp_path, path)
    assert data.labels == ("B-LOC", "B-PER", "I-PER", "O")
    assert data.evaluation["validation"].gold(0) == [0]


# --- text in columns


CONLLU = """# text = Don't stop
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\tVB\t_\t3\taux\t_\t_
2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t_\t_
3\tstop\tstop\tVERB\tVB\t_\t0\troot\t_\t_
3.1\tit\tit\tPRON\tPRP\t_\t_\t_\t_\t_

# a comment
1\tcats\tcat\tNOUN\tNNS\t_\t0\troot\t_\t_
"""


@pytest.mark.parametrize(("column", "expected"), [
    ("upos", [["AUX", "PART", "VERB"], ["NOUN"]]), ("xpos", [["VB", "RB", "VB"], ["NNS"]]),
    ("deprel", [["aux", "advmod", "root"], ["root"]]),
])  # fmt: skip
def test_a_treebank_is_read(tmp_path: Path, column: str, expected: list[list[str]]) -> None:
    path = write_treebank(
        tmp_path / "in", "en_ewt-ud-train.conllu", "en_ewt-ud-dev.conllu", "en_ewt-ud-test.conllu", text=CONLLU
    )
    data = load_tags(tmp_path, path, tag_column=column, evaluation_splits=["validation", "test"])
    assert list(data.evaluation) == ["validation", "test"]
    for examples in (data.train, *data.evaluation.values()):
        assert [[data.labels[tag] for tag in examples.gold(index)] for index in range(len(examples))] == expected
    mapping = {"train": str(path / "en_ewt-ud-train.conllu"), "dev": str(path / "en_ewt-ud-dev.conllu")}
    assert len(load_tags(tmp_path, mapping, tag_column=column, evaluation_splits=["dev"]).train) == 2


def test_columns_of_conll_2003_are_read(tmp_path: Path) -> None:
    text = "-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\n\n# NN O O\n"
    for split in ("train", "validation"):
        (tmp_path / f"{split}.conll").write_text(text)
    data = load_tags(tmp_path, tmp_path)
    assert [[data.labels[tag] for tag in data.train.gold(index)] for index in range(2)] == [["B-ORG", "O"], ["O"]]


@pytest.mark.parametrize("comments", [
    "# global.columns = token tag\n-DOCSTART-\n\n# sent_id = 1\n# text = EU rejects\n",
    "#begin document (a); part 000\n",
])  # fmt: skip
def test_comments_between_the_words_of_columns_are_left_out(tmp_path: Path, comments: str) -> None:
    for split in ("train", "validation"):
        (tmp_path / f"{split}.conll").write_text(f"{comments}EU\tB-ORG\nrejects\tO\n\n#eu\tB-ORG\n#\tO\n")
    data = load_tags(tmp_path, tmp_path)
    assert [[data.labels[tag] for tag in data.train.gold(index)] for index in range(len(data.train))] == [
        ["B-ORG", "O"]
    ] * 2


# --- real data


def copy_sentences(source: Path, target: Path) -> None:
    """Write the first sentences of a real file into a small one."""
    if source.suffix == ".parquet":
        parquet.write_table(parquet.read_table(source).slice(0, 200), target)
    else:
        target.write_text("\n\n".join(source.read_text(encoding="utf-8").split("\n\n")[:200]), encoding="utf-8")


@pytest.mark.data
@pytest.mark.parametrize(("folder", "changes"), keep_one_quick(2, [
    ("wikiann/en", {"labels": ["O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC"]}),
    ("ud_english_ewt", {"tag_column": "upos", "metrics": ["token_accuracy"]}),
]))  # fmt: skip
def test_real_sentences_are_aligned(data_root: Path, tmp_path: Path, folder: str, changes: dict[str, Any]) -> None:
    path = tmp_path / "in"
    path.mkdir()
    for file in (data_root / folder).iterdir():
        copy_sentences(file, path / file.name)
    data = load_tags(tmp_path, path, sequence_length=512, **changes)
    assert (len(data.train), len(data.evaluation["validation"])) == (200, 200)
    for index in range(200):
        labels = data.train[index]["labels"]
        assert labels[labels >= 0].tolist() == data.train.gold(index)
