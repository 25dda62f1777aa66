"""Published checkpoints in four ways, as a user types them: predict, evaluate, serve and `adadepth.Pipeline`.

A checkpoint is a folder as its authors publish it, with small random weights. A new kind is a row of `KINDS`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adadepth import AlbertActForPreTraining, Pipeline
from adadepth.contrib.serve.answers import compute_answer
from adadepth.contrib.serve.checkpoint import ServedCheckpoint
from adadepth.contrib.serve.generation import stream_continuation
from adadepth.contrib.serve.knobs import FULL, Setting
from adadepth.contrib.serve.rendering import render_answer, render_continuations
from tests.cli.support import Command
from tests.marks_support import keep_one_quick, mark_mostly_slow
from tests.models_support import SMALL, make_small_act
from tests.puzzles_support import SUDOKU, write_puzzle_table
from tests.unit.data.tokenizers_support import TEXT, tokenizer
from tests.unit.models.early_exit.layerskip_support import LAYERS, write_layerskip
from tests.unit.models.looped.published_support import (
    HUGINN,
    NANBEIGE,
    OURO,
    build_hrm_text,
    draw_huginn_weights,
    draw_nanbeige_weights,
    draw_ouro_weights,
    write_folder,
)
from tests.unit.models.looped.retrofits_support import write_retrofit
from tests.unit.models.trm_published_support import write_published

SENTENCE, MASKED = "don't stop the naive cat", "don't stop the [MASK] cat"
QUESTION = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
SOLUTION = "534678912672195348198342567859761423426853791713924856961537284287419635345286179"


def write_ouro(folder: Path) -> None:
    """Write a folder as ByteDance/Ouro-1.4B."""
    config = OURO | {"model_type": "ouro", "architectures": ["OuroForCausalLM"],
                     "auto_map": {"AutoModelForCausalLM": "modeling_ouro.OuroForCausalLM"}}  # fmt: skip
    write_folder(folder, config, draw_ouro_weights())
    write_tokenizer(folder)


def write_huginn(folder: Path) -> None:
    """Write a folder as tomg-group-umd/huginn-0125."""
    config = HUGINN | {"model_type": "huginn_raven", "architectures": ["RavenForCausalLM"],
                       "auto_map": {"AutoModelForCausalLM": "raven_modeling_minimal.RavenForCausalLM"}}  # fmt: skip
    write_folder(folder, config, draw_huginn_weights())
    write_tokenizer(folder)


def write_hrm_text(folder: Path) -> None:
    """Write a folder as sapientinc/HRM-Text-1B."""
    build_hrm_text().save_pretrained(folder)
    write_tokenizer(folder)


def write_nanbeige(folder: Path) -> None:
    """Write a folder as Nanbeige/Nanbeige4.2-3B."""
    write_folder(folder, NANBEIGE | {"bos_token_id": None}, draw_nanbeige_weights())
    write_tokenizer(folder)


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer with a start and an end of a text, which the configuration names too."""
    pieces = tokenizer("bert")
    pieces.bos_token, pieces.eos_token = "[CLS]", "[SEP]"
    pieces.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    if config.get("bos_token_id") is None:  # a retrofit has stale ones
        config |= {"bos_token_id": pieces.bos_token_id, "eos_token_id": pieces.eos_token_id}
    (folder / "config.json").write_text(json.dumps(config))


def write_albert_act(folder: Path, architecture: str = "AlbertActModel") -> None:
    """Write a folder as asi/albert-act-base: an encoder in a pickle, with a buffer of old releases.

    With another architecture, the published code has saved a model with heads.
    """
    pieces = tokenizer("bert")
    model = make_small_act(AlbertActForPreTraining, vocab_size=len(pieces), max_position_embeddings=64)
    config = {name: getattr(model.config, name) for name in SMALL}
    config |= {"model_type": "albert_act", "architectures": [architecture], "act_epsilon": 0.01,
               "hidden_act": "gelu", "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0,
               "num_hidden_groups": 1, "initializer_range": 0.02, "layer_norm_eps": 1e-12}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    weights = model.state_dict() | {"albert.embeddings.position_ids": torch.arange(64).unsqueeze(0)}
    if architecture == "AlbertActModel":
        encoder = {name: weight for name, weight in weights.items() if name.startswith("albert.")}
        weights = {name.removeprefix("albert."): weight for name, weight in encoder.items()}
        assert len(weights) == 28
    torch.save(weights, folder / "pytorch_model.bin")
    pieces.save_pretrained(folder)


@dataclass(frozen=True)
class Kind:
    """A kind of published checkpoint.

    Attributes:
        write: Function that writes the folder.
        config: Shipped configuration of its family.
        text: Input for which it predicts.
        data: Options of the evaluation.
        depth: Maximum depth of an answer.
        has_head: Whether it predicts anything that can be evaluated.
        predicts_tokens: Whether the tokens of an answer have their own depth.
    """

    write: Callable[[Path], Any]
    config: str
    text: str
    data: Sequence[str]
    depth: int
    has_head: bool = True
    predicts_tokens: bool = True


CAUSAL = ("dataset=causal_text", "dataset.path=corpus.txt")
MASKS = ("dataset=text", "dataset.path=corpus.txt", "dataset.sequence_length=64")
PUZZLES = ("dataset.path=puzzles",)
KINDS = {
    "ouro": Kind(write_ouro, "loop_retrofit", SENTENCE, CAUSAL, 4),
    "huginn": Kind(write_huginn, "loop_retrofit", SENTENCE, CAUSAL, 4),
    "hrm_text": Kind(write_hrm_text, "loop_retrofit", SENTENCE, CAUSAL, 2),
    "nanbeige": Kind(write_nanbeige, "loop_retrofit", SENTENCE, CAUSAL, 2),
    **{
        f"retrofit_{kind}": Kind(
            lambda folder, kind=kind: (write_retrofit(folder, kind), write_tokenizer(folder)),
            "loop_retrofit", SENTENCE, CAUSAL, 4,
        )
        for kind in ("llama", "olmo2", "gemma2")
    },
    "layerskip": Kind(write_layerskip, "exit_tiny", SENTENCE, CAUSAL, LAYERS),
    "albert_act": Kind(write_albert_act, "act_tiny", SENTENCE, MASKS, 6, has_head=False),
    "albert_act_pretraining": Kind(
        lambda folder: write_albert_act(folder, "AlbertActForPreTraining"), "act_tiny", MASKED, MASKS, 6
    ),
    "trm": Kind(write_published, "trm_sudoku_extreme", QUESTION, PUZZLES, 4, predicts_tokens=False),
    "hrm": Kind(lambda folder: write_published(folder, "hrm", file="checkpoint"), "trm_sudoku_extreme", QUESTION,
                PUZZLES, 4, predicts_tokens=False),
}  # fmt: skip


# Quick: one that continues texts, one that fills masks, one that solves puzzles.
QUICK = ("ouro", "albert_act_pretraining", "hrm")


@pytest.fixture(scope="module", params=mark_mostly_slow(KINDS, QUICK.__contains__))
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture(scope="module")
def folder(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the published folder, and nothing else of the model."""
    folder: Path = tmp_path_factory.mktemp("doors") / "published"
    folder.mkdir()
    kind.write(folder)
    return folder


@pytest.fixture
def files(tmp_path: Path) -> None:
    """Write data of an evaluation: texts and puzzles."""
    (tmp_path / "corpus.txt").write_text("\n\n".join([". ".join(TEXT) + ".", "a cat. a lot of lots."] * 40))
    (tmp_path / "puzzles").mkdir()
    solution = np.array([SUDOKU.index(cell) + 1 for cell in SOLUTION])
    for split, blanks in (("train", 30), ("test", 40)):
        question = np.where(np.arange(81) < blanks, 1, solution)
        write_puzzle_table(tmp_path / "puzzles" / f"{split}.csv", [[(question, solution)]] * 3, SUDOKU)


def check_depths(kind: Kind, prediction: Any) -> None:
    """Check that an answer, as an object or as JSON, has its depth, and the depth of its tokens if they differ."""
    fields = prediction if isinstance(prediction, dict) else vars(prediction)
    assert 0 < fields["updates"] <= kind.depth
    depths = [(token if isinstance(token, dict) else vars(token))["updates"] for token in fields["tokens"] or ()]
    assert bool(depths) == kind.predicts_tokens
    assert all(0 < depth <= kind.depth for depth in depths)


def test_the_pipeline_reads_a_published_checkpoint(kind: Kind, folder: Path) -> None:
    pipeline = Pipeline.from_pretrained(folder)
    (prediction,) = pipeline([kind.text])
    check_depths(kind, prediction)
    if pipeline.predicts == "next":
        ids = pipeline.tokenizer(kind.text, add_special_tokens=False, return_tensors="pt")["input_ids"]
        start = torch.tensor([[pipeline.tokenizer.bos_token_id]])
        with torch.no_grad():
            logits = pipeline.model(torch.cat([start, ids], dim=1)).logits[0, -1, : len(pipeline.tokenizer)]
        assert prediction.score == pytest.approx(float(logits.softmax(dim=-1).max()), abs=1e-5)
        (continued,) = Pipeline.from_pretrained(folder, new_tokens=3)([kind.text])
        assert continued.continuation is not None
        check_depths(kind, continued)


def test_predict_reads_a_published_checkpoint(kind: Kind, folder: Path, command: Command, tmp_path: Path) -> None:
    result = command("--config-name", kind.config, "mode=predict", f"checkpoint={folder}", f"text={kind.text}")
    assert "mean updates" in result.checked().out
    (texts,) = tmp_path.glob("outputs/*/*/texts.json")
    content = json.loads(texts.read_text(encoding="utf-8"))
    assert content["max_depth"] == kind.depth
    (prediction,) = content["texts"]
    check_depths(kind, prediction)


@pytest.mark.parametrize("kind", keep_one_quick(8, KINDS), indirect=True, scope="module")
def test_evaluate_reads_a_published_checkpoint(
    kind: Kind, folder: Path, command: Command, tmp_path: Path, files: None
) -> None:
    result = command("--config-name", kind.config, "mode=evaluate", f"checkpoint={folder}", *kind.data)
    if not kind.has_head:
        message = f"error: checkpoint={folder}: its weights 'predictions.LayerNorm.bias' and 7 more are missing\n"
        assert (result.status, result.err) == (2, message)
        return
    result.checked()
    (record,) = tmp_path.glob("outputs/*/*/run.json")
    metrics = json.loads(record.read_text(encoding="utf-8"))["final_metrics"]
    assert "eval/loss" in metrics
    assert 0 < metrics["halting/all/mean"] <= kind.depth


@pytest.mark.parametrize("kind", keep_one_quick(8, KINDS), indirect=True, scope="module")
def test_serve_reads_a_published_checkpoint(
    kind: Kind, folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Build the page without opening it, and ask a question at three depths."""
    pytest.importorskip("gradio")
    from adadepth.contrib.serve import page

    opened: list[ServedCheckpoint] = []
    monkeypatch.setattr(page, "open_page", lambda checkpoints, *_: opened.extend(checkpoints))
    result = command("--config-name", kind.config, "mode=serve", f"checkpoint={folder}").checked()
    assert "depth controls: " in result.out
    (checkpoint,) = opened
    assert page.build_page(opened).config["components"]
    knob = checkpoint.knobs[0]
    for setting in (Setting(), Setting(FULL), Setting(knob.name, knob.low)):
        answer = compute_answer(checkpoint, kind.text, setting)
        check_depths(kind, answer.result["texts"][0])
        assert render_answer(checkpoint, kind.text, answer)
    if checkpoint.generates_text:
        *_, last = stream_continuation(checkpoint, kind.text, 3, Setting())
        assert render_continuations(checkpoint, kind.text, [last])
        assert last.result is not None
        check_depths(kind, last.result["texts"][0])
