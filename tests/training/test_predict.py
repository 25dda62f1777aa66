"""`mode=predict`: what a checkpoint says of a user's texts, in the terminal, in texts.json and on a page."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from adadepth import (
    AdaLayersForSequenceClassification,
    AlbertActForPreTraining,
    AlbertActForSequenceClassification,
    AlbertActForTokenClassification,
    ParXLConfig,
    ParXLForCausalLM,
    Pipeline,
    tasks,
)
from adadepth.analysis.render.colors import depth_color
from adadepth.analysis.texts.terminal import print_texts
from adadepth.command_line import verbatim
from adadepth.errors import ConfigError, DataError
from adadepth.tasks.predict import read_texts
from tests.configs.support import configured
from tests.models_support import small_config, small_ponder, spread_depths
from tests.unit.data.tokenizers_support import tokenizer
from tests.unit.families.adalayers_support import HEAD, save_base
from tests.unit.families.par_xl_support import SMALL as PAR

WORDS = tokenizer("bert")
TEXTS = ["a cat, they said: stop!", "don't stop the naive cat"]
Made = tuple[str, Any, PreTrainedTokenizerFast]  # name of a configuration, model, tokenizer


def act(model_class: Any, **changes: Any) -> Any:
    torch.manual_seed(0)
    model = model_class(small_config(initializer_range=0.3, **changes)).eval()
    spread_depths(model, scale=3.0)
    return model


def layers(folder: Path) -> Any:
    torch.manual_seed(0)
    return AdaLayersForSequenceClassification.from_base(save_base("bert", folder / "base"), **HEAD, num_labels=3)


def language(folder: Path) -> Any:
    torch.manual_seed(0)
    return ParXLForCausalLM(ParXLConfig(**PAR | {"vocab_size": len(WORDS)}, architecture="sfsf"))


def streaming() -> PreTrainedTokenizerFast:
    words = json.loads(WORDS.backend_tokenizer.to_str()) | {"post_processor": None}
    backend = Tokenizer.from_str(json.dumps(words))
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", eos_token="[SEP]")


MAKE: dict[str, Callable[[Path], Made]] = {
    "act": lambda _: ("act_cola", act(AlbertActForSequenceClassification), WORDS),
    "tagger": lambda _: ("act_pos", act(AlbertActForTokenClassification, num_labels=3), WORDS),
    "masks": lambda _: ("act_tiny", act(AlbertActForPreTraining), WORDS),
    "ponder": lambda _: ("ponder_tiny", small_ponder(exit_rule="quantile:0.5"), WORDS),
    "adalayers": lambda folder: ("adalayers_cola", layers(folder), WORDS),
    "next": lambda folder: ("par_tiny", language(folder), streaming()),
}


def asked(kind: str, folder: Path, texts: Any, *overrides: str) -> tuple[dict[str, Any], str, Any]:
    """What texts.json says, the page, and the model, from a folder of that kind."""
    name, model, words = MAKE[kind](folder)
    model.eval().save_pretrained(folder / "model")
    words.save_pretrained(folder / "model")
    config = configured(
        name, "mode=predict", f"checkpoint={folder}/model", f"output_dir={folder}/out", "text=a cat", *overrides
    )
    config.text = texts
    assert tasks.run(config) is None
    (found,) = folder.glob("out/*/*/texts.json")
    return json.loads(found.read_text()), (found.parent / "report.html").read_text(), model


@pytest.mark.parametrize("kind", ["act", "ponder", "adalayers"])
def test_classes(kind: str, tmp_path: Path) -> None:
    found, page, model = asked(kind, tmp_path, TEXTS)
    expected = Pipeline(model, WORDS)(TEXTS)
    assert [row["scores"] for row in found["texts"]] == [pytest.approx(each.scores, abs=1e-5) for each in expected]
    assert [row["updates"] for row in found["texts"]] == pytest.approx([each.updates for each in expected])
    assert 0 < found["work"] <= 1
    assert all(f"{row['label']} {row['score']:.2f}" in page for row in found["texts"])


def test_a_token_shows_the_probabilities_of_its_iterations(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    found, page, model = asked("act", tmp_path, [TEXTS[0]])
    with torch.no_grad():
        outputs = model(**WORDS(TEXTS[0], return_tensors="pt"))
    depths, probabilities = outputs.updates[0].tolist(), outputs.halting_probabilities[0]
    assert len(set(depths)) > 1
    (row,) = found["texts"]
    tips = [json.loads(found) for found in re.findall(r"data-notes='(.*?)'", page)]
    for token, depth, own, tip in zip(row["tokens"], depths, probabilities, tips, strict=True):
        assert token["updates"] == len(token["steps"]) == depth
        assert [step["halting"] for step in token["steps"]] == pytest.approx(own[: int(depth)].tolist(), abs=1e-5)
        assert [share for _, share, *_ in tip] == pytest.approx(own[: int(depth)].tolist(), abs=1e-5)
    assert found["mean"] == pytest.approx(sum(depths) / len(depths))
    line = next(line for line in capsys.readouterr().out.splitlines() if "[CLS]" in line)
    assert re.sub(r"\(\d\)|\[CLS\]|\[SEP\]", "", line).strip() == TEXTS[0]  # the text as it was written
    assert [float(depth) for depth in re.findall(r"\((\d)\)", line)] == depths


def test_steps_of_a_text_are_those_of_the_exit_rules(tmp_path: Path) -> None:
    found, page, _ = asked("ponder", tmp_path, TEXTS)
    for row in found["texts"]:
        assert len(row["steps"]) == 6
        for number, step in enumerate(row["steps"], start=1):
            (expected,) = Pipeline(small_ponder(), WORDS, exit_rule=f"fixed:{number}")(" ".join(row["text"]))
            assert (step["label"], step["score"]) == (expected.label, pytest.approx(expected.score, abs=1e-5))
        assert row["label"] == row["steps"][round(row["updates"]) - 1]["label"]
        assert f"{round(row['updates'])} (exit)" in page


def test_tags_and_pairs(tmp_path: Path) -> None:
    found, page, model = asked("tagger", tmp_path, [["a cat", "stop"]])
    (row,) = found["texts"]
    (expected,) = Pipeline(model, WORDS)([("a cat", "stop")])
    assert [token["label"] for token in row["tokens"]] == [token.label for token in expected.tokens]
    assert [token["part"] for token in row["tokens"]] == [None, 0, 0, None, 1, None]
    assert page.count("data-notes=") == len(row["tokens"])


def test_fillings(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    found, page, model = asked("masks", tmp_path, "a [MASK] cat")
    (token,) = [token for token in found["texts"][0]["tokens"] if token["label"] is not None]
    with torch.no_grad():
        logits = model(**WORDS("a [MASK] cat", return_tensors="pt")).prediction_logits[0, 2, : len(WORDS)]
    best = logits.softmax(dim=-1).topk(5)
    assert list(token["candidates"].values()) == pytest.approx(best.values.tolist(), abs=1e-5)
    assert list(token["candidates"]) == [WORDS.decode([word]) for word in best.indices.tolist()]
    assert f"[MASK]: {token['label']} {token['score']:.2f}, " in capsys.readouterr().out
    notes = [json.loads(found) for found in re.findall(r"data-notes='(.*?)'", page)]
    assert [[list(pair) for pair in token["candidates"].items()]] == [
        found[-5:] for found in notes if isinstance(found[0][-1], str)
    ]


def test_weights_of_layers(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    found, page, model = asked("adalayers", tmp_path, TEXTS)
    weights = model.layer_distribution().tolist()
    assert found["texts"][0]["layers"] == pytest.approx([*[0.0] * (5 - len(weights)), *weights], abs=1e-6)
    assert "weights of layers" in capsys.readouterr().out
    assert "weights:" in page


def test_segments_are_those_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "config.yaml").write_text("{model: {name: par_xl}, dataset: {sequence_length: 2}, trainer: {}}")
    lengths = []

    class Asked(Pipeline):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            lengths.append(self.segment_length)

    monkeypatch.setattr("adadepth.tasks.predict.Pipeline", Asked)
    asked("next", tmp_path, "a cat stop")
    assert lengths == [2]


def test_next_tokens(tmp_path: Path) -> None:
    """Every token's own probability multiplies to that of the text, as the loss has it."""
    found, page, model = asked("next", tmp_path, "a cat stop")
    (row,) = found["texts"]
    ids = streaming()("a cat stop", add_special_tokens=False, return_tensors="pt")["input_ids"]
    start = torch.full((1, 1), streaming().eos_token_id)
    with torch.no_grad():
        outputs = model(torch.cat([start, ids[:, :-1]], dim=1), targets=ids)
    own = torch.tensor([token["own_score"] for token in row["tokens"] if token["span"] is not None])
    assert -own.log().mean().item() == pytest.approx(outputs.loss.item(), abs=1e-4)
    assert "its probability" in page


def test_colours_are_those_of_the_page(tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch) -> None:
    found, page, _ = asked("act", tmp_path, TEXTS)
    capsys.readouterr()
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    print_texts(found, color=True)
    shown = capsys.readouterr().out
    for depth in {round(token["updates"]) for row in found["texts"] for token in row["tokens"]}:
        color = depth_color(depth, found["max_depth"])
        red, green, blue = (int(color[start : start + 2], 16) for start in (1, 3, 5))
        assert f"48;2;{red};{green};{blue}m" in shown
        assert f".d{depth}{{background:{color}" in page
    monkeypatch.setenv("NO_COLOR", "1")
    print_texts(found, color=True)
    assert "\x1b[48" not in capsys.readouterr().out


def test_a_report_can_be_written_again(tmp_path: Path) -> None:
    _, page, _ = asked("ponder", tmp_path, TEXTS)
    (report,) = tmp_path.glob("out/*/*/report.html")
    report.unlink()
    tasks.run(configured("ponder_tiny", "mode=report", f"run={report.parent}"))
    assert report.read_text() == page
    assert "http" not in re.sub(r"http://www\.w3\.org/\S+", "", page)  # nothing is fetched


# ---- what is asked


def test_lines_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("a cat\n\nstop\tthat now\n", encoding="utf-8")
    assert read_texts(f"@{tmp_path}/lines.txt") == ["a cat", ("stop", "that now")]
    assert read_texts("one") == ["one"]
    assert read_texts(["one", ["a", "b"]]) == ["one", ("a", "b")]
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe")
    for name, message in (("none", "No such file"), ("empty", "holds no text"), ("binary", "it is no UTF-8 text")):
        with pytest.raises(DataError, match=message) as caught:
            read_texts(f"@{tmp_path}/{name}.txt")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        'a, b: it\'s "so" (or not) = [x]?',
        "a\\",
        "it\\'s",
        "${oc.env:HOME}",
        "@file name.txt",
        "5",
        "true",
        "'quoted'",
        "ä",
    ],
)
def test_text_is_text_to_hydra(text: str) -> None:
    config = configured("ponder_tiny", "mode=predict", "checkpoint=x", verbatim(f"text={text}"))
    assert config.text == text


def test_lists_and_other_keys_are_hydra_s() -> None:
    for override in ("text=[a,b]", "text=null", "trainer.max_steps=3", "~x"):
        assert verbatim(override) == override


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["mode=predict", "checkpoint=x"], "text: mode=predict needs it"),
        (["mode=predict", "checkpoint=x", "text=[]"], "text=[]: must be a text"),
        (["mode=predict", "checkpoint=x", "text=[[a,b,c]]"], "must be a text, a list of texts or of pairs"),
        (["mode=predict", "text=a"], "checkpoint: mode=predict needs it"),
        (["text=a"], "text=a: read only with mode=predict"),
    ],
)
def test_mistakes(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        configured("ponder_tiny", *overrides)


def test_a_checkpoint_of_another_family(tmp_path: Path) -> None:
    from adadepth.errors import CheckpointError

    small_ponder().save_pretrained(tmp_path / "model")
    config = configured("act_cola", "mode=predict", f"checkpoint={tmp_path}/model", "text=a")
    with pytest.raises(CheckpointError, match="holds a model of type ponder_albert"):
        tasks.run(config)
