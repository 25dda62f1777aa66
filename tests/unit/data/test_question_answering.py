"""Questions, from files to windows: spans of tokens, windows, and positions of answers in them."""

from __future__ import annotations

import pickle
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from adadepth.config import QuestionConfig, Source, TokenizerConfig
from adadepth.data import RunData, load_labelled_data
from adadepth.data.labelled.question_answering import CONTEXT, QUESTION, cut_windows
from adadepth.data.stores.questions import find_answer_tokens
from adadepth.data.text.tokenizer import encode_with_spans, train_tokenizer, wrap_tokenizer
from adadepth.errors import DataError
from tests.marks_support import keep_one_quick

from .labelled_support import write_table
from .tokenizers_support import tokenizer

CONTEXT_TEXT = "Don't  stop the naïve cat: they said 12 of 345 cats don't stop, and a lot of lots — that now!"
QUESTIONS = [
    ("who should not be stopped?", "the naïve cat"),
    ("how many cats don't?", "12 of 345"),
    ("when?", "now"),
    ("what is a cat?", None),
]


def make_row(number: int, question: str, answer: str | None, context: str = CONTEXT_TEXT) -> dict[str, Any]:
    texts = [] if answer is None else [answer]
    answers = {"text": texts, "answer_start": [context.index(text) for text in texts]}
    return {"id": f"q{number}", "question": question, "context": context, "answers": answers}


ROWS = [make_row(number, *entry) for number, entry in enumerate(QUESTIONS)]


def load_questions(folder: Path, rows: list[dict[str, Any]] = ROWS, kind: str = "bert", **changes: Any) -> RunData:
    for split in ("train", "validation"):
        if not (folder / "table" / f"{split}.{changes.get('suffix', 'jsonl')}").exists():
            write_table(folder / "table" / f"{split}.{changes.get('suffix', 'jsonl')}", rows)
    if not (folder / kind).exists():
        tokenizer(kind).save_pretrained(folder / kind)
    settings: dict[str, Any] = {
        "name": "questions", "source": Source.local, "path": str(folder / "table"), "cache_dir": str(folder / "cache"),
        "sequence_length": 32, "stride": 5, "max_question_length": 12, "unanswerable": True,
    }  # fmt: skip
    changes.pop("suffix", None)
    dataset = QuestionConfig(**{**settings, **changes})
    return load_labelled_data(dataset, TokenizerConfig(path=str(folder / kind)), 0)


def build_library_windows(words: PreTrainedTokenizerFast, question: str, length: int, stride: int) -> Any:
    """Return the tokenizer's own windows: its `stride` is the overlap of two of them."""
    question_length = len(words(question, add_special_tokens=False)["input_ids"])
    room = length - question_length - words.num_special_tokens_to_add(pair=True)
    return words(
        question, CONTEXT_TEXT, truncation="only_second", max_length=length, stride=room - stride,
        return_overflowing_tokens=True, return_offsets_mapping=True, return_token_type_ids=True,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_windows_equal_those_of_the_library(kind: str, tmp_path: Path) -> None:
    words, examples = (
        tokenizer(kind),
        load_questions(tmp_path, kind=kind, sequence_length=40, max_question_length=24).train,
    )
    windows = [examples[number] for number in range(len(examples))]
    for number, (question, _) in enumerate(QUESTIONS):
        theirs = build_library_windows(words, question, 40, 5)
        ours = [example for example in windows if example["question"] == number]
        assert len(theirs["input_ids"]) == len(ours) > 1
        for window, ids in enumerate(theirs["input_ids"]):
            assert ours[window]["input_ids"].tolist() == ids
            owners = theirs.sequence_ids(window)
            assert (ours[window]["token_kind"] == QUESTION).tolist() == [owner == 0 for owner in owners]
            assert (ours[window]["token_kind"] == CONTEXT).tolist() == [owner == 1 for owner in owners]
            if kind == "bert":
                assert ours[window]["token_type_ids"].tolist() == theirs["token_type_ids"][window]
    assert examples.lengths().tolist() == [len(example["input_ids"]) for example in windows]
    assert [example["index"] for example in windows] == list(range(len(windows)))


@pytest.mark.parametrize("kind", ["bert", "roberta", "t5"])
def test_spans_are_characters_of_tokens_without_the_leading_space(kind: str) -> None:
    words = tokenizer(kind)
    texts = [CONTEXT_TEXT, "", "  \u200b cat", "東京 cats"]
    for text, (ids, spans) in zip(texts, encode_with_spans(words, texts), strict=True):
        encoding = words(text, add_special_tokens=False, return_offsets_mapping=True)
        assert ids == encoding["input_ids"]
        for (start, end), (first, last) in zip(spans.tolist(), encoding["offset_mapping"], strict=True):
            assert text[start:end] == text[first:last].lstrip()
            assert end == last


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("answer", keep_one_quick(3, [
    "e\u0301te\u0301", "tie\u0302\u0301ng", "हिन्दी", "서울", "❤\ufe0f", "كتابٌ", "été", "東京", "cat",
]))  # fmt: skip
def test_an_answer_ends_with_its_last_character(answer: str, lowercase: bool) -> None:
    """Include composed characters, whose second code point is in no token's offsets (huggingface/tokenizers#1201)."""
    context = f"it says {unicodedata.normalize('NFD', answer) if answer == '서울' else answer} and no more"
    answer = context.removeprefix("it says ").removesuffix(" and no more")
    words = wrap_tokenizer(train_tokenizer([context, "it was a lot of text"] * 3, 90, lowercase))
    ((_, spans),) = encode_with_spans(words, [context])
    first, last = find_answer_tokens(spans, context.index(answer), answer)
    assert context[spans[first, 0] : spans[last, 1]] == answer


def label_by_loop(offsets: list[tuple[int, int]], owners: list[int | None], start: int, end: int) -> tuple[int, int]:
    """Find the answer by the plain loop of the library's example, as the tokens of its first and last character."""
    inside = [position for position, owner in enumerate(owners) if owner == 1]
    first, last = inside[0], inside[-1]
    if offsets[first][0] > start or offsets[last][1] < end:
        return 0, 0
    while first <= inside[-1] and offsets[first][0] <= start:
        first += 1
    while offsets[last][1] >= end:
        last -= 1
    return first - 1, last + 1


def test_positions_of_answers_equal_a_plain_loop(tmp_path: Path) -> None:
    words, examples = tokenizer("bert"), load_questions(tmp_path, max_question_length=20).train
    windows = [examples[number] for number in range(len(examples))]
    positions = set()
    for number, (question, answer) in enumerate(QUESTIONS):
        theirs = build_library_windows(words, question, 32, 5)
        ours = [example for example in windows if example["question"] == number]
        for window, example in enumerate(ours):
            expected = (0, 0)
            if answer is not None:
                start = CONTEXT_TEXT.index(answer)
                expected = label_by_loop(
                    theirs["offset_mapping"][window], theirs.sequence_ids(window), start, start + len(answer)
                )
            assert (example["start_positions"], example["end_positions"]) == expected
            positions.add(expected > (0, 0))
            if answer is not None and expected > (0, 0):
                span = [position + example["context_shift"] for position in expected]
                assert examples.span_text(number, *span) == answer
    assert positions == {True, False}


def test_windows_overlap_and_cover_the_context() -> None:
    for length in range(14):
        for room in range(1, 8):
            for stride in range(1, room + 1):
                expected, start = [], 0
                while True:  # as in BERT's run_squad.py
                    size = min(length - start, room)
                    expected.append((start, start + size))
                    if start + size == length:
                        break
                    start += stride
                owners, starts, ends = cut_windows(np.array([length]), np.array([room]), stride)
                assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == expected
                assert not owners.any()


def test_an_answer_that_no_token_holds_is_ignored() -> None:
    spans = np.array([[0, 3], [5, 8], [8, 9]])
    assert find_answer_tokens(spans, 5, "abc") == (1, 1)
    assert find_answer_tokens(spans, 2, "abcd") == (0, 1)
    assert find_answer_tokens(spans, 7, "ab") == (1, 2)
    assert find_answer_tokens(spans, 3, "ab") == (-100, -100)


def test_a_batch_is_padded_and_numbered(tmp_path: Path) -> None:
    data = load_questions(tmp_path)
    batch = data.collate([data.train[(3, number)] for number in range(3)])
    assert batch["input_ids"].shape == batch["token_kind"].shape == (3, 32)
    assert set(batch) == {
        "input_ids", "attention_mask", "token_type_ids", "special_tokens_mask", "token_kind", "index", "question",
        "context_shift", "start_positions", "end_positions",
    }  # fmt: skip
    padding = batch["attention_mask"] == 0
    assert not batch["token_kind"][padding].any()


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_prepared_data_are_reused_for_all_windows(suffix: str, tmp_path: Path) -> None:
    first = load_questions(tmp_path, suffix=suffix)
    names = sorted(path.name for path in (tmp_path / "cache").glob("questions-*[!k]"))
    other = load_questions(tmp_path, suffix=suffix, sequence_length=40, stride=9, max_question_length=6)
    assert sorted(path.name for path in (tmp_path / "cache").glob("questions-*[!k]")) == names
    assert len(other.train) < len(first.train)
    assert first.train.text(0)._asdict() == {"id": "q0", "context": CONTEXT_TEXT, "answers": ["the naïve cat"]}
    again = pickle.loads(pickle.dumps(first.train))
    assert again[3]["input_ids"].tolist() == first.train[3]["input_ids"].tolist()
    assert first.summary["train"] == {
        "rows": 4, "examples": 4, "windows": len(first.train), "tokens": first.summary["train"]["tokens"],
        "unanswerable": 1, "answers_lost": 0,
    }  # fmt: skip


def test_limits_count_questions_not_windows(tmp_path: Path) -> None:
    data = load_questions(tmp_path, max_train_examples=2, max_evaluation_examples=1)
    assert len(set(data.train.owners.tolist())) == 2
    assert len(data.train) > 2
    assert data.summary["evaluation"]["validation"]["examples"] == 1


def test_a_tokenizer_with_shifted_offsets_is_a_one_line_error() -> None:
    """Use bytes after words: the spaces of the second division shift every later word."""
    words = Tokenizer.from_str(tokenizer("roberta").backend_tokenizer.to_str())
    text = ["a cat and a lot of lots , they said : stop that now"]
    for divisions, is_right in ((["bytes"], True), (["words", "bytes"], False)):
        parts = {"words": pre_tokenizers.Whitespace(), "bytes": pre_tokenizers.ByteLevel(add_prefix_space=True)}
        words.pre_tokenizer = pre_tokenizers.Sequence([parts[division] for division in divisions])
        words.post_processor = processors.ByteLevel(trim_offsets=True)
        fast = PreTrainedTokenizerFast(tokenizer_object=words)
        if is_right:
            assert len(encode_with_spans(fast, text)) == 1
        else:
            with pytest.raises(DataError, match="its offsets are wrong, so answers have no place: the token"):
                encode_with_spans(fast, text)
