"""Streams of running text, from a configuration: which text is read, how it is counted, and errors of bad input."""

from __future__ import annotations

import json
from collections import Counter
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adadepth.config import CorpusConfig, Source, StreamConfig, TokenizerConfig
from adadepth.config.experiment import TokenizerKind
from adadepth.data import RunData, StreamBatches, TwoPhase, load_language_data
from adadepth.data.stores import documents as stores
from adadepth.data.stores.parallel_tokenisation import ensure_texts
from adadepth.data.streams import load as language_module
from adadepth.data.streams.load import count_token_ids
from adadepth.data.text.corpora import Split
from adadepth.errors import DataError
from tests.marks_support import keep_one_quick
from tests.unit.data.streams_support import LINES, ROWS, make_stream_config


def make_word_config(**changes: Any) -> TokenizerConfig:
    return TokenizerConfig(**{"kind": TokenizerKind.word, "vocab_size": None, "lowercase": False, **changes})


def load_streams(folder: Path, tokenizer: TokenizerConfig | None = None, **changes: Any) -> RunData:
    return load_language_data(make_stream_config(folder, **changes), tokenizer or make_word_config(), **ROWS)


def read_targets(batches: StreamBatches) -> list[int]:
    """Return all targets of a set: row after row, step after step."""
    items = [batches[index] for index in range(len(batches))]
    rows = range(len(items[0]["targets"]))
    return [token for row in rows for item in items for token in item["targets"][row].tolist() if token != -100]


def decode_words(data: RunData, batches: StreamBatches) -> list[str]:
    return [str(token) for token in data.tokenizer.convert_ids_to_tokens(read_targets(batches))]


def split_words(lines: list[str], append_eos: bool = True) -> list[str]:
    return [word for line in lines for word in line.split() + ["<eos>"] * append_eos]


def replace_unknown(data: RunData, words: list[str]) -> list[str]:
    vocabulary = data.tokenizer.get_vocab()
    return [word if word in vocabulary else "<unk>" for word in words]


@pytest.mark.parametrize("append_eos", [True, False])
def test_every_line_is_read_once_and_in_order(tmp_path: Path, append_eos: bool) -> None:
    data = load_streams(tmp_path, append_eos=append_eos)
    parts = {"train": (data.train, LINES[:32]), "evaluation": (data.evaluation["held_out"], LINES[32:])}
    for name, (batches, lines) in parts.items():
        words = split_words(lines, append_eos)
        assert decode_words(data, batches) == replace_unknown(data, words)
        characters = sum(map(len, lines)) + append_eos * len(lines)
        counts = {"lines": len(lines), "tokens": len(words), "words": len(words), "characters": characters}
        counts["bytes"] = len("".join(lines).encode()) + append_eos * len(lines)
        assert data.summary[name].items() >= counts.items()
        sizes = (batches.tokens, batches.words, batches.characters, batches.bytes)
        assert sizes == (len(words), len(words), characters, counts["bytes"])
    assert not data.test
    assert data.train.steps_per_epoch == len(data.train) == ceil(ceil(data.train.tokens / 2) / 4)
    assert data.summary["train"]["tokens_per_word"] == 1.0
    assert data.summary["train"]["steps"] == {"weights": len(data.train)}
    assert data.summary["tokenizer"] == {"path": None, "kind": "word", "vocab_size": len(data.tokenizer)}


def write_jsonl(file: Path, rows: list[str]) -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(json.dumps({"body": row}) + "\n" for row in rows), encoding="utf-8")
    return file


@pytest.mark.parametrize("kind", keep_one_quick(2, ["hub", "jsonl", "folder", "documents"]))
def test_every_source_gives_the_same_lines(tmp_path: Path, kind: str) -> None:
    rows = [f"{line}\n" if line else "" for line in LINES]  # as WikiText is on the hub
    if kind == "documents":
        rows = ["\r\n".join(LINES[n : n + 4]) for n in range(0, 40, 4)]
    changes: dict[str, Any] = {"source": Source.local, "text_column": "body"}
    if kind == "folder":
        write_jsonl(tmp_path / "in" / "a.jsonl", rows[:7])
        (tmp_path / "in" / "b.txt").write_text("\n".join(LINES[7:]), encoding="utf-8")
        changes["path"] = str(tmp_path / "in")
    else:
        file = write_jsonl(tmp_path / "in" / "train.jsonl", rows)
        changes["path"] = str(file)
    if kind == "hub":
        changes |= {"source": Source.hub, "path": None, "hub": [{"path": str(tmp_path / "in")}]}
    data = load_streams(tmp_path, **changes)
    assert decode_words(data, data.train) == split_words(LINES[:32])
    assert decode_words(data, data.evaluation["held_out"]) == replace_unknown(data, split_words(LINES[32:]))
    assert data.summary["train"]["characters"] == sum(len(line) + 1 for line in LINES[:32])


@pytest.mark.parametrize("source", keep_one_quick(2, ["local", "hub"]))
def test_given_sets_are_read_unchanged(tmp_path: Path, source: str) -> None:
    changes: dict[str, Any] = {"source": Source(source), "text_column": "body"}
    for prefix, lines in (("", LINES), ("evaluation_", LINES[:9]), ("test_", LINES[5:20])):
        file = write_jsonl(tmp_path / f"{prefix}set" / "train.jsonl", lines)
        changes |= {f"{prefix}path": str(file)} if source == "local" else {f"{prefix}hub": [{"path": str(file.parent)}]}
    data = load_streams(tmp_path, **changes, evaluation_length=3)
    held_out, test = data.evaluation["held_out"], data.test["test"]
    for batches, lines in ((data.train, LINES), (held_out, LINES[:9]), (test, LINES[5:20])):
        assert decode_words(data, batches) == split_words(lines)
    assert test[0]["targets"].shape == held_out[0]["targets"].shape == (1, 3)
    assert data.summary["test"]["lines"] == 15


def test_evaluation_is_limited_at_the_end_of_a_line(tmp_path: Path) -> None:
    held_out, used = split_words(LINES[32:]), split_words(LINES[32:34])  # a blank line, and one of seven words
    for most in (9, 10):
        data = load_streams(tmp_path, max_evaluation_tokens=most)
        assert decode_words(data, data.evaluation["held_out"]) == replace_unknown(data, used)
        assert data.evaluation["held_out"].tokens == data.evaluation["held_out"].words == len(used) == 9
        assert data.evaluation["held_out"].characters == sum(len(line) + 1 for line in LINES[32:34])
        assert data.summary["evaluation"]["tokens"] == len(held_out)
        assert data.summary["evaluation"]["tokens_used"] == 9


def test_the_embedded_corpus_needs_no_file(tmp_path: Path) -> None:
    data = load_streams(tmp_path, make_word_config(lowercase=True), source=Source.embedded, sequence_length=64)
    split = Split(CorpusConfig(name="test", evaluation_fraction=0.2))
    for batches, documents in ((data.train, split.train()), (data.evaluation["held_out"], split.evaluation())):
        lines = [line for document in documents for line in document.split("\n")]
        assert batches.words == len(split_words(lines)) == batches.tokens
        assert (
            decode_words(data, batches)[:500]
            == replace_unknown(data, split_words([line.lower() for line in lines]))[:500]
        )


def test_pieces_are_counted_per_word_and_a_saved_tokenizer_is_reused(tmp_path: Path) -> None:
    first = load_streams(tmp_path, TokenizerConfig(vocab_size=40, lowercase=True))
    words = first.summary["train"]["words"]
    assert words == len(split_words(LINES[:32]))
    assert first.summary["train"]["tokens_per_word"] == first.train.tokens / words > 1
    first.tokenizer.save_pretrained(tmp_path / "saved")
    again = load_streams(tmp_path, TokenizerConfig(path=str(tmp_path / "saved")))
    assert read_targets(again.train) == read_targets(first.train)
    limited = load_streams(tmp_path, TokenizerConfig(kind=TokenizerKind.word, vocab_size=None, train_documents=2))
    assert limited.tokenizer.get_vocab().keys() == {"<pad>", "<unk>", "<eos>", *LINES[1].lower().split()}


@pytest.mark.parametrize("two_phase", [None, TwoPhase(0, 2, 0.25)])
def test_words_are_counted_in_the_whole_training_text(
    tmp_path: Path, two_phase: TwoPhase | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "_TOKENS_AT_ONCE", 7)
    data = load_language_data(make_stream_config(tmp_path), make_word_config(), **ROWS, two_phase=two_phase)
    expected = Counter(replace_unknown(data, split_words(LINES[:32])))
    names = data.tokenizer.convert_ids_to_tokens(range(len(data.tokenizer)))
    assert count_token_ids(data).tolist() == [expected[name] for name in names]


def test_the_architecture_is_searched_on_the_last_tokens(tmp_path: Path) -> None:
    data = load_language_data(
        make_stream_config(tmp_path), make_word_config(), **ROWS, slots=2, two_phase=TwoPhase(0, 2, 0.25)
    )
    tokens = split_words(LINES[:32])
    cut_parts = len(tokens) - round(0.25 * len(tokens))
    streams = data.train.streams
    assert {name: (stream.begin, stream.end) for name, stream in streams.items()} == {
        "weights": (0, cut_parts), "architecture": (cut_parts, len(tokens))
    }  # fmt: skip
    assert [data.train[index]["stream"] for index in range(8)] == ["weights"] * 2 + ["architecture"] * 2 + [
        "weights"
    ] * 2 + ["architecture"] * 2
    assert data.summary["train"]["steps"] == {name: stream.steps for name, stream in streams.items()}
    first = data.train[2]["input_ids"][0, 0]
    assert first == data.tokenizer.eos_token_id


def test_prepared_text_is_reused_only_for_the_same_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []

    def count(root: Path, name: str, texts: Any, *rest: Any) -> Path:
        def yield_texts() -> Any:
            built.append(name.split("-")[0])
            return texts()

        return ensure_texts(root, name, yield_texts, *rest)

    monkeypatch.setattr(language_module, "ensure_texts", count)
    load_streams(tmp_path)
    load_streams(tmp_path, sequence_length=7, name="other", max_evaluation_tokens=12)
    assert built == ["train", "evaluation"]
    changes: list[dict[str, Any]] = [{"append_eos": False}, {"evaluation_fraction": 0.3}]
    for number, change in enumerate(changes, start=2):
        load_streams(tmp_path, **change)
        assert len(built) == 2 * number
    load_streams(tmp_path, make_word_config(vocab_size=5))
    assert len(built) == 8
    data = load_streams(tmp_path)
    assert len(built) == 8
    assert isinstance(next(iter(data.train.streams.values())).store.tokens.base, np.memmap)


def read_message(folder: Path, **changes: Any) -> str:
    with pytest.raises(DataError) as caught:
        load_streams(folder, **changes)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_bad_input_is_a_one_line_error(tmp_path: Path) -> None:
    total = len(split_words(LINES[:32]))
    too_long = read_message(tmp_path, sequence_length=total)
    assert f"the training text has {total} tokens, too few for a batch of 2 rows of {total}" in too_long
    assert "dataset.sequence_length or trainer.per_device_train_batch_size" in too_long
    assert (
        "the evaluation text has 9 tokens, too few for a batch of 1 rows of 20; give more text, or lower "
        in read_message(tmp_path, max_evaluation_tokens=9, evaluation_length=20)
    )
    assert read_message(tmp_path, max_evaluation_tokens=9, evaluation_length=20).endswith(
        "dataset.evaluation_length or trainer.per_device_eval_batch_size"
    )
    with pytest.raises(DataError, match=r"the training text for the architecture has \d+ tokens, too few for a batch"):
        load_language_data(make_stream_config(tmp_path), make_word_config(), **ROWS, two_phase=TwoPhase(0, 50, 0.02))
    (tmp_path / "one.txt").write_text("only one line")
    assert (
        "1 line(s) or row(s) found, but a held-out text needs at least 2; give dataset.evaluation_path=..."
    ) in read_message(tmp_path, path=str(tmp_path / "one.txt"))
    assert "dataset.test_path=none.txt: " in read_message(tmp_path, test_path="none.txt")


@pytest.mark.data
@pytest.mark.slow
def test_wikitext2_has_its_published_number_of_tokens(data_root: Path, tmp_path: Path) -> None:
    file = str(data_root / "wikitext-2" / "wiki.{}.tokens")
    data = load_language_data(
        StreamConfig(
            name="wikitext2", sequence_length=32, source=Source.local, path=file.format("train"),
            evaluation_path=file.format("valid"), test_path=file.format("test"), cache_dir=str(tmp_path),
        ),
        make_word_config(), train_rows=16, slots=2, evaluation_rows=8,
    )  # fmt: skip
    tokens = [batches.tokens for batches in (data.train, data.evaluation["held_out"], data.test["test"])]
    assert tokens == [2_088_628, 217_646, 245_569]
    assert data.train.words == data.train.tokens
    assert len(data.tokenizer) == 33_278 + 1  # with <unk> and <eos>, and <pad>
    assert data.train.steps_per_epoch == ceil(ceil(2_088_628 / 32) / 32)
    lines = Path(file.format("valid")).read_text(encoding="utf-8").split("\n")[:-1]
    assert decode_words(data, data.evaluation["held_out"]) == split_words(lines)
