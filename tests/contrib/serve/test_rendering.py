"""Rendered answers: figures, escaped texts of visitors, and commands that reproduce them."""

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
from adadepth.contrib.serve.generation import stream_continuation
from adadepth.contrib.serve.knobs import Setting
from adadepth.contrib.serve.rendering import (
    build_command,
    render_answer,
    render_board,
    render_continuations,
    render_error,
)
from adadepth.errors import DataError
from adadepth.report.table import percent
from tests.contrib.serve.support import serve_text_model, serve_untrained
from tests.models_support import make_small_act, make_small_ponder
from tests.unit.data.tokenizers_support import build_streaming_tokenizer, tokenizer
from tests.unit.models.early_exit.early_exit_support import build_early_exit

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
def served_ponder() -> Any:
    return serve_text_model(make_small_ponder(), tokenizer("bert"))


@pytest.mark.parametrize("text", HOSTILE)
def test_markup_of_a_visitor_is_escaped(text: str, served_ponder: Any) -> None:
    html = str(render_answer(served_ponder, text, compute_answer(served_ponder, text, RULE)))
    tags = set(re.findall(r"<(/?[a-zA-Z]+)", html))
    assert not {"script", "img", "textarea"} & tags
    assert not re.search(r"<[^>]*\son[a-z]+=", html)
    assert "<script" not in str(render_error(served_ponder, DataError(text)))


@pytest.mark.parametrize(
    "text", [*HOSTILE, "a, b: 'c' \"d\" \\", "[1, 2]", "@home/x", "null", "a ${name} b", "it's \\'"]
)
def test_the_command_gives_the_same_text(text: str, served_ponder: Any) -> None:
    command, _ = build_command(served_ponder, text, compute_answer(served_ponder, text, RULE))
    words = shlex.split(command)
    (override,) = [word for word in words if word.startswith("text=")]
    value = OverridesParser.create().parse_override(quote_text_override(override)).value()
    parsed = (
        [str(text_of_value) for text_of_value in value] if isinstance(value, list) else str(value).replace("\\${", "${")
    )
    assert parsed == ([text] if isinstance(parsed, list) else text)
    assert "model.exit_rule=quantile:0.5" in words


def test_a_board_shows_the_results_of_every_cell(tmp_path: Path) -> None:
    maze = serve_untrained(tmp_path, "act_maze", "budget=none", "model.num_hidden_layers=3")
    example = get_synthetic_example(maze, "inside", 0)
    html = str(render_answer(maze, example, compute_answer(maze, example, Setting())))
    assert html.count('class="cell') == 2 * 64
    assert html.count("cell wall") == example.board.count("#")
    assert str(render_board(maze, example)).count("<button") == 64
    assert "mode=evaluate" in html


def test_a_tagged_word_shows_the_prediction_of_every_update() -> None:
    model = make_small_act(AlbertActForTokenClassification, num_labels=3)
    tagger = serve_text_model(model, tokenizer("bert"))
    answer = compute_answer(tagger, "a naive cat", Setting())
    notes = [
        json.loads(match)
        for match in re.findall(r"data-notes='(.*?)'", str(render_answer(tagger, "a naive cat", answer)))
    ]
    ids = tokenizer("bert")("a naive cat", return_tensors="pt")
    with torch.no_grad():
        logits = model(**ids, run_all_steps=True).step_logits
    depths = [round(token["updates"]) for token in answer.row["tokens"]]
    assert len(notes) == len(depths) == ids["input_ids"].shape[1]
    for word_notes, depth, expected in list(zip(notes, depths, logits.argmax(dim=-1).tolist(), strict=True))[1:-1]:
        steps = [note for note in word_notes if note[0].isdigit()]
        assert [note[1] for note in steps] == [model.config.id2label[best] for best in expected[:depth]]


def read_tiles(html: str, name: str) -> list[str]:
    """Return the values of the tiles of a name."""
    return re.findall(f'data-tile="{name}">(.*?)<', html)


def test_tiles_count_compute_with_predictions_as_the_curve_does(tmp_path: Path) -> None:
    served = serve_untrained(tmp_path, "exit_hops", "model.num_hidden_layers=3", "model.exit_rule=margin:0.02")
    for model_input in (get_synthetic_example(served, "inside", 2), "1 2 3"):
        answer = compute_answer(served, model_input, Setting())
        share = answer.result["work_with_predictions"]
        assert percent(share) != percent(answer.result["work"])
        html = str(render_answer(served, model_input, answer, with_curve=False))
        assert read_tiles(html, "compute") == [percent(share)]
        assert f"of full depth ({percent(answer.full_result['work_with_predictions'])})" in html
    assert answer.full_result["work_with_predictions"] == 1.0


def test_a_continuation_counts_compute_with_predictions() -> None:
    words = build_streaming_tokenizer()
    model = build_early_exit(vocab_size=len(words), exit_rule="margin:0.05")
    served = serve_text_model(model, words)
    *_, last = stream_continuation(served, "a cat stop", 2, Setting())
    assert last.result is not None
    share = percent(last.result["work_with_predictions"])
    assert share != percent(last.result["work"])
    assert read_tiles(str(render_continuations(served, "a cat stop", [last])), "compute") == [share]


def test_a_drawn_sequence_is_shown_as_a_text_with_its_target(tmp_path: Path) -> None:
    marked = serve_untrained(tmp_path, "ponder_hops", "model.num_hidden_layers=3")
    example = get_synthetic_example(marked, "inside", 2)
    html = str(render_answer(marked, example, compute_answer(marked, example, Setting())))
    assert 'class="board' not in html
    right = marked.model.config.id2label[int(example.example["label"])]
    assert f"the right answer is {right}, difficulty {example.example['difficulty']}" in html
    assert html.count('scope="row"') == 3
