"""Training on conversations: predicted tokens, their loss, and runs that resume."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from adadepth.config import TokenizerConfig
from adadepth.config.data import ChatConfig
from adadepth.data.streams.conversations import load_conversations, pack_lengths
from adadepth.data.streams.tokenizer import load_stream_tokenizer
from adadepth.errors import DataError
from tests.runs_support import execute_run
from tests.toy_support import execute
from tests.training.support import assert_same_end, copy_interrupted_run
from tests.unit.models.looped.looped_support import build_looped

TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}<eos>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
ROWS = [
    {
        "messages": [
            {"role": "system", "content": "brief"},
            {"role": "user", "content": f"add {number} and 1"},
            {"role": "assistant", "content": f"it is {number + 1}"},
            {"role": "user", "content": "sure?"},
            {"role": "assistant", "content": "yes " * (number % 3 + 1)},
        ]
    }
    for number in range(20)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Write a file of conversations, and a tokenizer of bytes with a chat template."""
    path = tmp_path_factory.mktemp("chat")
    (path / "chat.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS), encoding="utf-8")
    config = TokenizerConfig(kind="byte", vocab_size=None)  # type: ignore[arg-type]
    words = load_stream_tokenizer(config, path / "cache", lambda: "", list)
    words.split_special_tokens = False
    words.chat_template = TEMPLATE
    words.save_pretrained(path / "words")
    return path


def load_chat(folder: Path, **fields):
    dataset = ChatConfig(name="chat", path=str(folder / "chat.jsonl"), **{"sequence_length": 256, **fields})
    return load_conversations(dataset, TokenizerConfig(path=str(folder / "words")))


def join_answers(row) -> str:
    return "".join(f"{message['content']}<eos>\n" for message in row["messages"] if message["role"] == "assistant")


def test_only_answers_and_their_ends_are_predicted(folder):
    data = load_chat(folder)
    words = AutoTokenizer.from_pretrained(folder / "words")
    assert (len(data.train), len(data.evaluation["held_out"])) == (19, 1)
    for row, example in zip(ROWS, data.train, strict=False):
        assert words.decode(example["input_ids"]) == words.apply_chat_template(row["messages"], tokenize=False)
        predicted = example["labels"][example["labels"] >= 0]
        assert words.decode(predicted) == join_answers(row)
    assert data.train.tokens == sum(int((data.train[index]["labels"] >= 0).sum()) for index in range(19))


def test_the_loss_is_that_of_a_plain_loop(folder):
    data = load_chat(folder)
    torch.manual_seed(0)
    model = build_looped(vocab_size=len(data.tokenizer), objective="last").eval()
    examples = [data.train[index] for index in range(4)]
    batch = data.collate(examples)
    batch.pop("index")
    losses = []
    for example in examples:
        ids = torch.tensor(example["input_ids"])[None]
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0]
        for position in range(1, ids.shape[1]):
            if example["labels"][position] >= 0:
                losses.append(-logits[position - 1].log_softmax(-1)[ids[0, position]])
    with torch.no_grad():
        loss = model(**batch).loss
    torch.testing.assert_close(loss, torch.stack(losses).mean(), rtol=1e-5, atol=1e-5)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 20), max_size=40))
def test_packing_keeps_every_sequence_once_and_leaves_no_two_rows_to_merge(lengths):
    rows = pack_lengths(lengths, 20)
    assert sorted(number for row in rows for number in row) == [*range(len(lengths))]
    sizes = sorted(sum(lengths[number] for number in row) for row in rows)
    assert all(size <= 20 for size in sizes)
    assert all(one + other > 20 for one, other in itertools.combinations(sizes, 2))


def test_packed_conversations_have_the_loss_of_unpacked_ones(folder):
    alone, packed = load_chat(folder), load_chat(folder, packing=True)
    assert packed.train.tokens == alone.train.tokens
    assert len(packed.train) < len(alone.train)
    assert packed.train.lengths().max() <= 256
    assert packed.train.lengths().sum() == alone.train.lengths().sum()
    torch.manual_seed(0)
    model = build_looped(vocab_size=len(alone.tokenizer), objective="last").eval()
    losses = []
    for data in (alone, packed):
        batch = data.collate([data.train[index] for index in range(len(data.train))])
        batch.pop("index")
        with torch.no_grad():
            losses.append(model(**batch).loss)
    torch.testing.assert_close(*losses, rtol=1e-5, atol=1e-5)


def test_a_conversation_is_cut_and_left_out_without_an_answer(folder):
    data = load_chat(folder, sequence_length=80)
    assert max(data.train.lengths()) == 80
    with pytest.raises(DataError, match=r"^dataset.path: no conversation of the train data has an answer within 20"):
        load_chat(folder, sequence_length=20)


def test_characters_and_words_are_those_of_the_predicted_tokens(folder):
    """Count characters and words also where conversations are truncated or left out: they are units of perplexity and
    of bits.
    """
    for length in (70, 80, 256):
        data = load_chat(folder, sequence_length=length)
        texts = [
            data.tokenizer.decode(row["labels"][row["labels"] >= 0])
            for row in map(data.train.__getitem__, range(len(data.train)))
        ]
        assert data.train.characters == sum(len(text.replace("<eos>", "").replace("\n", "")) for text in texts)
        assert data.train.words == sum(len(text.replace("<eos>", " ").split()) for text in texts)


def test_a_single_conversation_cannot_be_held_out(folder, tmp_path):
    (tmp_path / "chat.jsonl").write_text(json.dumps(ROWS[0]), encoding="utf-8")
    dataset = ChatConfig(name="chat", path=str(tmp_path / "chat.jsonl"))
    with pytest.raises(DataError, match=r"1 conversation found, but a held-out text needs at least 2; give dataset\."):
        load_conversations(dataset, TokenizerConfig(path=str(folder / "words")))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "a"}, "line 1 needs messages"),
        ({"messages": [{"role": "user"}]}, "line 1 has a message without content"),
        (
            {"messages": [{"role": "tool", "content": "a"}]},
            "line 1 has the role 'tool'; it must be one of system",
        ),
    ],
)
def test_a_damaged_row_is_a_one_line_error(folder, tmp_path, row, message):
    (tmp_path / "chat.jsonl").write_text(json.dumps(row), encoding="utf-8")
    dataset = ChatConfig(name="chat", path=str(tmp_path / "chat.jsonl"))
    with pytest.raises(DataError, match=message) as caught:
        load_conversations(dataset, TokenizerConfig(path=str(folder / "words")))
    assert "\n" not in str(caught.value)


def test_a_tokenizer_needs_a_template_that_only_appends(folder, tmp_path):
    words = AutoTokenizer.from_pretrained(folder / "words")
    for template, message in (
        (None, "it has no chat template"),
        ("{{ messages | length }}" + TEMPLATE, "its chat template rewrites earlier messages"),
    ):
        words.chat_template = template
        words.save_pretrained(tmp_path / "words")
        dataset = ChatConfig(name="chat", path=str(folder / "chat.jsonl"))
        with pytest.raises(DataError, match=message):
            load_conversations(dataset, TokenizerConfig(path=str(tmp_path / "words")))


@pytest.mark.slow
@pytest.mark.parametrize("packing", ["false", "true"])
def test_a_run_on_conversations_resumes_bit_for_bit(folder, tmp_path, packing):
    run = execute_run(
        tmp_path / "whole", "--config-name", "loop_tiny", "debug=default", "dataset=conversations",
        f"dataset.path={folder / 'chat.jsonl'}", f"tokenizer.path={folder / 'words'}", f"dataset.packing={packing}",
        "dataset.sequence_length=128",
        "trainer.disable_tqdm=true", "trainer.max_steps=4", "trainer.eval_steps=2", "trainer.save_steps=2",
        "trainer.save_total_limit=null",
    )  # fmt: skip
    assert np.isfinite(json.loads((run / "run.json").read_text(encoding="utf-8"))["final_metrics"]["eval/lm_loss"])
    stopped = copy_interrupted_run(2, run, tmp_path)
    assert execute(f"resume={stopped}") == 0
    assert_same_end(stopped, run)
