"""Packed blocks, compared with a plain loop over documents, and starts of documents."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from adadepth.config import Source, TokenizerConfig
from adadepth.config.data import CausalConfig, Separator
from adadepth.config.experiment import TokenizerKind
from adadepth.data.stores.documents import LineDocuments, LineStore
from adadepth.data.streams.blocks import BlockCollator, TextBlocks, load_text_blocks
from adadepth.data.text.local_files import mark_lines
from adadepth.errors import DataError
from tests.marks_support import keep_one_quick

START = 1


def make_blocks(sizes: list[int], length: int) -> TextBlocks:
    """Return blocks of documents whose tokens count up from 10."""
    total = sum(sizes)
    lines = np.arange(total + 1)[:, None] * np.array([1, 1, 2, 3])
    store = LineStore(np.arange(10, 10 + total, dtype=np.uint16), lines)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return TextBlocks(store, offsets, length, START, store.counts())


def list_predictions(blocks: TextBlocks) -> list[tuple[int, list[int]]]:
    """Return every predicted token with its context: its document's tokens before it in its block."""
    pairs = []
    for index in range(len(blocks)):
        block = blocks[(3, index)]
        for position in range(1, len(block["input_ids"])):
            if (target := int(block["labels"][position])) >= 0:
                seen = block["documents"][:position] == block["documents"][position - 1]
                pairs.append((target, block["input_ids"][:position][seen].tolist()))
    return pairs


@pytest.mark.parametrize("length", keep_one_quick(2, [2, 3, 5, 8, 100]))
@pytest.mark.parametrize("sizes", [[7], [1, 1, 1], [3, 9, 1, 4], [5, 5, 5], [20, 2]], ids=str)
def test_every_token_is_predicted_once_from_its_own_document(sizes: list[int], length: int) -> None:
    pairs = list_predictions(make_blocks(sizes, length))
    first, expected, position = 10, [], -1
    for size in sizes:
        document = [START, *range(first, first + size)]
        position += 1
        for number in range(1, len(document)):
            begins = (
                position // (length - 1) * (length - 1)
            )  # the first position of the block that predicts the next one
            expected.append((document[number], document[max(0, number - 1 - (position - begins)) : number]))
            position += 1
        first += size
    assert pairs == expected


def test_lengths_equal_those_of_the_blocks() -> None:
    blocks = make_blocks([3, 9, 1, 4], 6)
    assert blocks.lengths().tolist() == [len(blocks[index]["input_ids"]) for index in range(len(blocks))]
    with pytest.raises(IndexError):
        blocks[len(blocks)]


def test_padding_belongs_to_no_document() -> None:
    blocks = make_blocks([3, 9], 9)
    batch = BlockCollator(0, 9)([blocks[0], blocks[1]])
    assert batch["documents"][1].tolist() == [0, 0, 0, 0, 0, 0, -1, -1, -1]
    assert batch["attention_mask"].sum(dim=1).tolist() == [9, 6]
    assert (batch["labels"][1, 6:] == -100).all()
    assert batch["index"].tolist() == [0, 1]
    assert all(values.dtype == torch.int64 for values in batch.values())


@pytest.mark.parametrize(("separator", "begins"), [
    ("blank_line", [0, 1, 0, 0, 0, 1, 0]), ("line", [0, 1, 1, 0, 0, 1, 0]), ("auto", [0, 1, 0, 0, 0, 1, 0]),
    ("heading", [0] * 7),
])  # fmt: skip
def test_lines_are_marked_if_they_begin_a_document(separator: str, begins: list[int]) -> None:
    lines = ["", "a", "b", "", " ", "c", ""]
    assert list(mark_lines(lines, separator)) == list(zip(lines, map(bool, begins), strict=True))


def make_config(folder: Path, text: str, **changes: object) -> CausalConfig:
    (folder / "text.txt").write_text(text, encoding="utf-8")
    settings = {"name": "test", "sequence_length": 8, "cache_dir": str(folder / "cache"), "evaluation_fraction": 0.2,
                "source": Source.local, "path": str(folder / "text.txt")}  # fmt: skip
    return CausalConfig(**{**settings, **changes})


BYTES = TokenizerConfig(path=None, kind=TokenizerKind.byte, vocab_size=None, lowercase=False)


@pytest.mark.parametrize(("separator", "documents"), [
    (Separator.auto, ["ab\ncd\n\n", "e\n", ]), (Separator.line, ["ab\n", "cd\n\n", "e\n"]),
])  # fmt: skip
def test_documents_of_a_file_are_runs_of_its_lines(tmp_path: Path, separator: Separator, documents: list[str]) -> None:
    data = load_text_blocks(make_config(tmp_path, "ab\ncd\n\ne\nheld\n", document_separator=separator), BYTES)
    tokenizer, train = data.tokenizer, data.train
    ends = [tokenizer.eos_token_id]
    stored = [train.store.tokens[a:b].tolist() for a, b in zip(train.offsets, train.offsets[1:], strict=False)]
    encoded = [
        [token for line in document[:-1].split("\n") for token in [*tokenizer(line)["input_ids"], *ends]]
        for document in documents
    ]
    assert stored == encoded
    assert sum(len(document) for document in encoded) == train.tokens
    assert {"documents", "blocks", "tokens_used"} <= data.summary["train"].keys()


def test_every_row_of_a_table_is_a_document(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f'{{"text": "a\\n\\n{number}"}}\n' for number in range(10)), encoding="utf-8")
    data = load_text_blocks(make_config(tmp_path, "", path=str(file)), BYTES)
    assert (data.train.documents, data.evaluation["held_out"].documents) == (8, 2)


def test_a_text_without_a_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no token"):
        load_text_blocks(make_config(tmp_path, "\n\n\n", append_eos=False), BYTES)


def test_documents_without_a_token_are_skipped() -> None:
    store = LineStore(np.arange(4), np.array([[0, 0, 0, 0], [2, 1, 1, 1], [2, 1, 1, 1], [4, 2, 2, 2]]))
    assert LineDocuments(np.array([1, 2])).offsets(store, 4).tolist() == [0, 2, 4]
    assert LineDocuments(np.array([1, 2])).offsets(store, 2).tolist() == [0, 2]


@pytest.mark.slow
@pytest.mark.data
def test_wikitext2_has_its_published_articles(data_root: Path, tmp_path: Path) -> None:
    """Read blocks of the articles that `test_text` counts, with the tokens that streams of the same file have."""
    file = str(data_root / "wikitext-2" / "wiki.{}.tokens")
    config = make_config(tmp_path, "", path=file.format("test"), evaluation_path=file.format("valid"))
    words = TokenizerConfig(path=None, kind=TokenizerKind.word, vocab_size=None, lowercase=False)
    data = load_text_blocks(config, words)
    assert data.train.documents == 61  # a blank line stands before the first title
    assert data.train.tokens == 245569
