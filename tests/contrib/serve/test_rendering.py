"""What a page shows: figures as they were asked, texts of strangers as text, and commands that say the same."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser

from adadepth import AlbertActForTokenClassification
from adadepth.cli.command_line import quote_text_override
from adadepth.contrib.serve.answers import compute_answer
from adadepth.contrib.serve.checkpoint import get_synthetic_example
from adadepth.contrib.serve.knobs import Setting
from adadepth.contrib.serve.rendering import build_command, render_answer, render_board, render_error
from adadepth.errors import DataError
from tests.contrib.serve.support import of_text, served
from tests.models_support import small_act, small_ponder
from tests.unit.data.tokenizers_support import tokenizer

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)',
    "' autofocus onfocus='alert(1)",
    "${alert(1)} {{value}} {% raw %}",
    "/etc/passwd",
    "file:/etc/passwd",
    "http://example.org/secret",
    "</style></textarea><svg onload=alert(1)>",
]
RULE = Setting("exit rule quantile", 0.5)


@pytest.fixture(scope="module")
def ponder() -> Any:
    return of_text(small_ponder(), tokenizer("bert"))


@pytest.mark.parametrize("text", HOSTILE)
def test_markup_of_a_visitor_is_text(text: str, ponder: Any) -> None:
    html = str(render_answer(ponder, text, compute_answer(ponder, text, RULE)))
    tags = set(re.findall(r"<(/?[a-zA-Z]+)", html))
    assert not {"script", "img", "textarea"} & tags
    assert not re.search(r"<[^>]*\son[a-z]+=", html)
    assert "<script" not in str(render_error(ponder, DataError(text)))


@pytest.mark.parametrize(
    "text", [*HOSTILE, "a, b: 'c' \"d\" \\", "[1, 2]", "@home/x", "null", "a ${name} b", "it's \\'"]
)
def test_the_command_gives_the_same_text(text: str, ponder: Any) -> None:
    command, _ = build_command(ponder, text, compute_answer(ponder, text, RULE))
    words = shlex.split(command)
    (given,) = [word for word in words if word.startswith("text=")]
    value = OverridesParser.create().parse_override(quote_text_override(given)).value()
    found = [str(each) for each in value] if isinstance(value, list) else str(value).replace("\\${", "${")
    assert found == ([text] if isinstance(found, list) else text)
    assert "model.exit_rule=quantile:0.5" in words


def test_a_board_shows_what_is_known_of_every_cell(tmp_path: Path) -> None:
    maze = served(tmp_path, "act_maze", "budget=none", "model.num_hidden_layers=3")
    example = get_synthetic_example(maze, "inside", 0)
    html = str(render_answer(maze, example, compute_answer(maze, example, Setting())))
    assert html.count('class="cell') == 2 * 64
    assert html.count("cell wall") == example.board.count("#")
    assert str(render_board(maze, example)).count("<button") == 64
    assert "mode=evaluate" in html


def test_a_tagged_word_says_what_every_iteration_would_have_answered() -> None:
    model = small_act(AlbertActForTokenClassification, num_labels=3)
    tagger = of_text(model, tokenizer("bert"))
    answer = compute_answer(tagger, "a naive cat", Setting())
    notes = [
        json.loads(found)
        for found in re.findall(r"data-notes='(.*?)'", str(render_answer(tagger, "a naive cat", answer)))
    ]
    ids = tokenizer("bert")("a naive cat", return_tensors="pt")
    with torch.no_grad():
        logits = model(**ids, run_all_steps=True).step_logits
    depths = [round(token["updates"]) for token in answer.row["tokens"]]
    assert len(notes) == len(depths) == ids["input_ids"].shape[1]
    for told, depth, expected in list(zip(notes, depths, logits.argmax(dim=-1).tolist(), strict=True))[1:-1]:
        steps = [note for note in told if note[0].isdigit()]
        assert [note[1] for note in steps] == [model.config.id2label[best] for best in expected[:depth]]


def test_a_drawn_sequence_is_told_as_a_text_with_what_is_right(tmp_path: Path) -> None:
    marked = served(tmp_path, "ponder_hops", "model.num_hidden_layers=3")
    example = get_synthetic_example(marked, "inside", 2)
    html = str(render_answer(marked, example, compute_answer(marked, example, Setting())))
    assert 'class="board' not in html
    right = marked.model.config.id2label[int(example.example["label"])]
    assert f"the right answer is {right}, difficulty {example.example['difficulty']}" in html
    assert html.count('scope="row"') == 3
