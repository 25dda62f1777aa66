"""Conversations: which tokens are predicted, and which keys of a row are read."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from adadepth.config import TokenizerConfig
from adadepth.config.data import ChatConfig
from adadepth.data.streams.conversations import encode_conversation, load_conversations
from adadepth.errors import DataError

# Pieces like those of Llama 3: a space belongs to the word that follows, and line breaks stay together.
PIECES = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"
TURN = "{% for m in messages %}"
ANSWER = "{% generation %}{{ m['content'] + '<|end|>\n' }}{% endgeneration %}"
CHATML = (
    TURN + "{{ '<|start|>' + m['role'] + '\n' }}{% if m['role'] == 'assistant' %}" + ANSWER
    + "{% else %}{{ m['content'] + '<|end|>\n' }}{% endif %}{% endfor %}"
    + "{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}"
)  # fmt: skip


@cache
def build_tokenizer(trims: bool = False) -> Any:
    """Return a byte-level tokenizer whose tokens cross the borders of answers."""
    words = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PIECES), "isolated")
    words.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    words.decoder, words.post_processor = decoders.ByteLevel(), processors.ByteLevel(trim_offsets=trims)
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<|start|>", "<|end|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    words.train_from_iterator(
        ["Assistant: good good bad movie\n\nhello\n\n\n\n", "user\n\n assistant\n\n :( :)"] * 9, trainer
    )
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<|end|>", pad_token="<|end|>")


def encode(template: str, messages: list[dict[str, Any]], trims: bool = False, **options: Any) -> tuple[Any, Any]:
    """Return the labels of this package and transformers' mask of the assistant."""
    words = build_tokenizer(trims)
    words.chat_template = template
    ids, labels, _ = encode_conversation(messages, words, "words", 10_000, options)
    theirs = words.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True, **options)
    assert ids.tolist() == theirs["input_ids"]
    return labels, np.array([0, *theirs["assistant_masks"][1:]], dtype=bool)  # the first token cannot be predicted


TEXTS = st.text(st.sampled_from("ab :\nO(é\u4e2d good"), max_size=12)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": TEXTS}), min_size=1, max_size=5
)


@st.composite
def draw_templates(draw: st.DrawFn) -> str:
    """Draw a template that writes headers, contents and ends, and marks answers; some trim, some have no prompt."""
    pieces = st.sampled_from(["<|start|>", "\n", " ", ": ", ":", "Assistant: ", "user\n", "[", "\n\n", ""])
    header, end, prefix = draw(pieces), draw(pieces), draw(pieces)
    role = draw(st.sampled_from([" + m['role']", ""]))
    content = draw(st.sampled_from(["m['content']", "m['content'] | trim", "' ' + m['content']"]))
    assistant_header = f"{header!r} + 'assistant'" if role else f"{header!r}"
    prompt = (
        f"{{% if add_generation_prompt %}}{{{{ {assistant_header} + {end!r} }}}}{{% endif %}}"
        if draw(st.booleans())
        else ""
    )
    written = f"({content}) + '<|end|>' + {draw(pieces)!r}"
    return (
        f"{{{{ {prefix!r} }}}}{TURN}{{{{ {header!r}{role} + {end!r} }}}}{{% if m['role'] == 'assistant' %}}"
        f"{{% generation %}}{{{{ {written} }}}}{{% endgeneration %}}{{% else %}}{{{{ {written} }}}}{{% endif %}}"
        f"{{% endfor %}}{prompt}"
    )


@settings(max_examples=30, deadline=None)
@given(draw_templates(), MESSAGES, st.booleans())
def test_predicted_tokens_equal_those_of_transformers(
    template: str, messages: list[dict[str, str]], trims: bool
) -> None:
    labels, mask = encode(template, messages, trims)
    assert np.array_equal(labels >= 0, mask)


@settings(max_examples=30, deadline=None)
@given(draw_templates(), MESSAGES)
def test_answers_without_marks_equal_those_with_marks(template: str, messages: list[dict[str, str]]) -> None:
    """Compare labels, except text that a template without a prompt writes between its header and the content."""
    plain = re.sub(r"\{% (end)?generation %\}", "", template)
    words = build_tokenizer()
    words.chat_template = plain
    _, labels, _ = encode_conversation(messages, words, "words", 10_000)
    _, mask = encode(template, messages)
    if "' ' +" in template or "| trim" in template:
        assert not (labels[~mask] >= 0).any()
    else:
        assert np.array_equal(labels >= 0, mask)


@pytest.mark.parametrize(
    ("template", "answer", "trained"),
    [
        (CHATML, "\nhello", ["\n\n", "hello", "<|end|>", "\n"]),
        (CHATML, "good", ["go", "od", "<|end|>", "\n"]),
        (CHATML.replace("'\n' }}{% if m", "': ' }}{% if m").replace("assistant\n'", "assistant: '"), "good",
         [" good", "<|end|>", "\n"]),
        (CHATML.partition("{% if add_generation_prompt")[0], "good", ["go", "od", "<|end|>", "\n"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_marked", [True, False])
def test_the_first_token_of_an_answer_is_predicted(
    template: str, answer: str, trained: list[str], is_marked: bool
) -> None:
    """Include a token that begins in the header before, and a template without a prompt for answers."""
    words = build_tokenizer()
    words.chat_template = template if is_marked else re.sub(r"\{% (end)?generation %\}", "", template)
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": answer}]
    _, labels, answers = encode_conversation(messages, words, "words", 100)
    assert [words.decode([label]) for label in labels if label >= 0] == trained
    assert answers == [answer]


TOOLS = "{% if tools %}{{ tools | tojson }}{% endif %}{% if m and brief %}{% endif %}{{ brief }}"
USER = {"role": "user", "content": "hi"}
GOOD = {"role": "assistant", "content": "good"}


def read(folder: Path, row: dict[str, Any], template: str = CHATML) -> Any:
    words = build_tokenizer()
    words.chat_template = template
    words.save_pretrained(folder / "words")
    (folder / "chat.jsonl").write_text(f"{json.dumps(row)}\n" * 2, encoding="utf-8")
    dataset = ChatConfig(name="chat", path=str(folder / "chat.jsonl"), sequence_length=128)
    data = load_conversations(dataset, TokenizerConfig(path=str(folder / "words")))
    example, count = data.train[0], data.train
    return words.decode(example["input_ids"]), words.decode([i for i in example["labels"] if i >= 0]), count


def test_answers_of_weight_0_are_read_but_not_predicted(tmp_path: Path) -> None:
    row = {
        "messages": [USER, {**GOOD, "content": "bad", "weight": 0}, USER, {**GOOD, "weight": 1}],
        "id": 3,
    }
    text, trained, data = read(tmp_path, row)
    assert "bad" in text
    assert trained == "good<|end|>\n"
    assert (data.words, data.characters, data.bytes) == (1, 4, 4)


def test_tools_and_arguments_reach_the_template(tmp_path: Path) -> None:
    row = {"messages": [USER, GOOD], "tools": [{"name": "search"}], "chat_template_kwargs": {"brief": "yes"}}
    text, trained, _ = read(tmp_path, row, TOOLS + CHATML)
    assert text.startswith('[{"name": "search"}]yes<|start|>')
    assert trained == "good<|end|>\n"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"messages": [USER, {**GOOD, "weight": 0.5}]}, "of weight 0.5; answers have 0 or 1, other messages 0"),
        ({"messages": [{**USER, "weight": 1}, GOOD]}, "has a message of user of weight 1; answers have 0 or 1"),
        ({"messages": [USER, {**GOOD, "train": False}]}, "has 'train', which is not read; weight of a message"),
        ({"messages": [USER, {**GOOD, "trainable": False}]}, "has 'trainable', which is not read"),
        ({"messages": [USER, {**GOOD, "is_masked": False}]}, "has 'is_masked', which is not read"),
        ({"messages": [USER, {**GOOD, "lossWeight": 1}]}, "has 'lossWeight', which is not read"),
        ({"messages": [USER, GOOD], "loss_mask": [0, 1]}, "has 'loss_mask', which is not read"),
        ({"messages": [USER, GOOD], "weight": 1}, "has 'weight', which is not read"),
        ({"messages": [USER, GOOD], "system": "be brief"}, "has 'system', which is not read"),
        ({"messages": [USER, GOOD], "tools": [{}]}, "has tools, which the chat template of the tokenizer does not"),
        ({"messages": [USER, GOOD], "tools": "[]"}, "has tools that are not a list of objects"),
        ({"messages": [USER, GOOD], "chat_template_kwargs": {"brief": 1}}, "has brief, which the chat template of"),
        ({"messages": [USER, GOOD], "chat_template_kwargs": ["a"]}, "chat_template_kwargs that are not an object"),
        ({"messages": [USER, GOOD], "chat_template_kwargs": {"add_generation_prompt": True}}, "has add_generation_p"),
    ],
)  # fmt: skip
def test_an_unread_key_is_a_one_line_error(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=rf"^dataset\.path=.*chat\.jsonl, line 1 .*{re.escape(message)}") as raised:
        read(tmp_path, row)
    assert "\n" not in str(raised.value)


def test_keys_without_a_meaning_and_null_are_allowed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    row = {"id": 1, "constraints": [], "tools": None, "train": None, "messages": [{**USER, "name": None}, GOOD]}
    caplog.set_level("INFO", "adadepth")
    assert read(tmp_path, row)[1] == "good<|end|>\n"
    assert "keys that are not read: constraints, id" in caplog.text


def test_a_raising_template_is_a_one_line_error(tmp_path: Path) -> None:
    template = "{% if messages[0]['role'] == 'user' %}{{ raise_exception('System\nfirst') }}{% endif %}" + CHATML
    with pytest.raises(
        DataError, match=r"chat\.jsonl, line 1: tokenizer\.path=.*: its chat template fails \(System\)$"
    ):
        read(tmp_path, {"messages": [USER, GOOD]}, template)


def test_an_answer_may_be_the_first_message(tmp_path: Path) -> None:
    plain = re.sub(r"\{% (end)?generation %\}", "", CHATML)
    assert read(tmp_path, {"messages": [GOOD, USER]}, plain)[1] == "good<|end|>\n"


def test_weights_need_marks_of_every_answer(tmp_path: Path) -> None:
    template = CHATML.replace("== 'assistant' %}", "== 'assistant' and loop.last %}")
    messages = [GOOD, USER, {**GOOD, "weight": 0}]
    with pytest.raises(DataError, match="its chat template marks 1 answers of 2, so weights have no place"):
        read(tmp_path, {"messages": messages}, template)
    assert read(tmp_path, {"messages": [GOOD, USER, GOOD]}, template)[1] == "good<|end|>\n"


def encode_messages(template: str, messages: list[dict[str, Any]], length: int = 100) -> Any:
    words = build_tokenizer()
    words.chat_template = template
    return encode_conversation(messages, words, "words", length)


def make_messages(count: int) -> list[dict[str, Any]]:
    return [{"role": ("user", "assistant")[number % 2], "content": f"good {number}"} for number in range(count)]


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{% for m in messages %}", r"fails \(Unexpected end of template"),
        ("{{ raise_exception('no system') }}", r"fails \(no system\)"),
        ("{% include 'x' %}", r"fails \(no loader"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", r"fails \(maximum recursion depth"),
        ("{% for i in range(10**12) %}x{% endfor %}", r"fails \(Range too big"),
        ("{{ messages.pop() }}", r"fails \(access to attribute 'pop'"),
        ("{{ 2 ** (10 ** 9) }}", r"fails \(it takes more than 0\.3 s\)"),
        (
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            r"fails \(it takes more than 0",
        ),
        ("{{ 'x' * 10**11 }}", r"fails \(it takes more than 1 GiB\)"),
        ("{{ messages[1]['role'][0] * 10**7 }}", r"writes 10,000,000 characters for 2 messages"),
    ],
)
def test_a_hostile_template_is_a_one_line_error(template: str, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adadepth.data.streams.conversations._MAX_SECONDS", 0.3)
    with pytest.raises(DataError, match=rf"^tokenizer\.path=words: its chat template {problem}") as caught:
        encode_messages(template, make_messages(2))
    assert "\n" not in str(caught.value)


def test_answers_after_the_last_token_are_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip answers of which each would take the time of all messages before it."""
    template = TURN + "{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"
    whole, cut = encode_messages(template, make_messages(40), 10_000), encode_messages(template, make_messages(40), 60)
    words, calls = build_tokenizer(), []
    write = words.apply_chat_template
    monkeypatch.setattr(words, "apply_chat_template", lambda *args, **kwargs: calls.append(1) or write(*args, **kwargs))
    assert encode_messages(template, make_messages(2000), 60)[0].tolist() == cut[0].tolist()
    assert len(calls) < 20
    assert (cut[1] == whole[1][:60]).all()
    assert [answer for answer in cut[2] if answer] == whole[2][: len([answer for answer in cut[2] if answer])]


@pytest.mark.parametrize(
    ("template", "content", "problem"),
    [
        (
            TURN + "{{ m['role'] + ': x\n' }}{% endfor %}", "good",
            "dataset.path=.*, line 1: tokenizer.path=.*: its chat template does not write the content of an answer",
        ),
        (
            TURN + "{{ m['role'] + ': x\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}",
            "good", "dataset.path: train data: the chat template of .* writes no word of an answer",
        ),
        (CHATML, " ", "dataset.path: train data: all answers are empty"),
        (CHATML, "", "dataset.path: train data: all answers are empty"),
    ],
)  # fmt: skip
def test_answers_without_words_are_refused_before_training(
    tmp_path: Path, template: str, content: str, problem: str
) -> None:
    words = build_tokenizer()
    words.chat_template = template
    words.save_pretrained(tmp_path / "words")
    row = {"messages": [{"role": "user", "content": "good"}, {"role": "assistant", "content": content}]}
    (tmp_path / "chat.jsonl").write_text(f"{json.dumps(row)}\n" * 4)
    dataset = ChatConfig(path=str(tmp_path / "chat.jsonl"), sequence_length=64)
    with pytest.raises(DataError, match=f"^{problem}"):
        load_conversations(dataset, TokenizerConfig(path=str(tmp_path / "words")))
