"""A question that fails in a way of its own, or never ends, is told in a line, and the next one is answered."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Regex, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from adadepth import Pipeline, tasks
from adadepth.contrib.serve import turns
from adadepth.contrib.serve.asking import ask, standing
from adadepth.contrib.serve.knobs import Setting
from adadepth.contrib.serve.serve import served_checkpoint
from adadepth.contrib.serve.served import Measured, Served, Standing, drawn_example
from adadepth.contrib.serve.turns import Turns, call_within
from adadepth.contrib.serve.writing import write_on
from adadepth.errors import DataError
from tests.configs.support import configured
from tests.contrib.serve.support import of_text, saved
from tests.models_support import small_ponder
from tests.unit.data.tokenizers_support import tokenizer
from tests.unit.families.looped.looped_support import OURO, small

PANIC = "a" * 60  # which the expression below cannot decide
LINE = "tokenizer: it fails on this text .PanicException: .*retry-limit"


def panicking(kind: str) -> PreTrainedTokenizerFast:
    """A tokenizer whose regular expression backtracks."""
    words = tokenizer(kind)
    words.backend_tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("(?:(?:a|a)+)+c"), "isolated")
    return words


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Turns:
    """Turns of a moment."""
    monkeypatch.setattr(turns, "GRACE", 0.05)
    monkeypatch.setattr("adadepth.contrib.serve.writing.GRACE", 0.05)
    return Turns(0.3)


def test_a_tokenizer_that_panics_is_a_line_of_the_page_and_of_python() -> None:
    words = panicking("bert")
    one = of_text(small_ponder(), words)
    for call in (
        partial(ask, one, PANIC, Setting()),
        partial(one.pipeline, PANIC),
        partial(one.pipeline.examine, PANIC),
    ):
        with pytest.raises(DataError, match=LINE):
            call()
    assert ask(one, "the naive cat", Setting()).row["label"]


def test_a_tokenizer_that_panics_is_a_line_of_mode_predict(tmp_path: Path) -> None:
    small_ponder().save_pretrained(tmp_path / "model")
    panicking("bert").save_pretrained(tmp_path / "model")
    config = configured(
        "ponder_tiny", "mode=predict", f"checkpoint={tmp_path}/model", f"text={PANIC}", f"output_dir={tmp_path}/out"
    )
    with pytest.raises(DataError, match=LINE):
        tasks.run(config)
    assert not (tmp_path / "out").exists()


def test_a_writer_that_panics_tells_who_waits() -> None:
    one = of_text(small(**OURO | {"vocab_size": len(tokenizer("roberta"))}), panicking("roberta"))
    with pytest.raises(DataError, match=LINE):
        list(write_on(one, PANIC, 2, Setting()))
    assert list(write_on(one, "a cat", 2, Setting()))[-1].found is not None


class Fatal(BaseException):
    """What nobody catches who catches every `Exception`."""


def test_a_writer_tells_whatever_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    one = of_text(small(**OURO | {"vocab_size": len(tokenizer("roberta"))}), tokenizer("roberta"))
    monkeypatch.setattr("adadepth.contrib.serve.writing.describe_texts", _fail)
    with pytest.raises(Fatal):
        list(write_on(one, "a cat", 2, Setting()))


def _fail(*_: Any) -> Any:
    raise Fatal


def test_a_model_that_never_ends_is_stopped(impatient: Turns) -> None:
    model = torch.nn.Sequential(torch.nn.Identity())
    calls = 0

    def compute() -> None:
        nonlocal calls
        with impatient.take(model):
            while True:
                model(torch.zeros(1))
                calls += 1

    with pytest.raises(DataError, match=r"^the question takes more than 0\.3 seconds"):
        call_within(impatient.seconds, compute)
    assert calls
    model(torch.zeros(1))  # by whom nobody waits
    with impatient.take(model):
        model(torch.zeros(1))


@pytest.fixture
def stuck() -> Iterator[threading.Event]:
    """Set at the end: what compiled code that cannot be stopped waits for here."""
    end = threading.Event()
    yield end
    end.set()


def test_nobody_waits_for_what_cannot_be_stopped(
    impatient: Turns, stuck: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = of_text(small_ponder(), tokenizer("bert"), turns=impatient)
    described = Pipeline.priced

    def wait(self: Pipeline, texts: Any, **more: Any) -> Any:
        if texts == [PANIC]:
            stuck.wait(60)
        return described(self, texts, **more)

    monkeypatch.setattr(Pipeline, "priced", wait)
    begun = time.perf_counter()
    with pytest.raises(DataError, match=r"^the question takes more than 0\.3 seconds"):
        ask(one, PANIC, Setting())
    with pytest.raises(DataError, match=r"^the model is still busy with a question before"):
        ask(one, "the naive cat", Setting())
    assert time.perf_counter() - begun < 30
    stuck.set()
    while impatient._turn is not None:
        time.sleep(0.01)
    assert ask(one, "the naive cat", Setting()).row["label"]


def test_a_token_that_never_comes_is_a_line(
    impatient: Turns, stuck: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = tokenizer("roberta")
    one = of_text(small(**OURO | {"vocab_size": len(words)}), words, turns=impatient)
    monkeypatch.setattr("adadepth.contrib.serve.writing.describe_texts", lambda *_: stuck.wait(60))
    with pytest.raises(DataError, match=r"^the next token takes more than 0\.3 seconds"):
        list(write_on(one, "a cat", 2, Setting()))


def test_a_measurement_has_its_time_too(impatient: Turns, stuck: threading.Event) -> None:
    def here() -> Standing:
        stuck.wait(60)
        return Standing(0, 0, 0)

    one = of_text(small_ponder(), tokenizer("bert"), turns=impatient, measured=Measured("score", "", here))
    with pytest.raises(DataError, match=r"^the question takes more than 0\.3 seconds"):
        standing(one, Setting())


def mapped(folder: Path) -> list[str]:
    """Files of a folder that this process has in its memory as they lie on the disk."""
    return [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="Linux tells what is mapped")
@pytest.mark.parametrize(
    ("root", "overrides"), [("act_hops", ["budget=none"]), ("trm_tiny", ["dataset.size=4", "model.num_steps=2"])]
)
def test_a_checkpoint_that_is_cut_short_or_deleted_while_it_is_served_changes_nothing(
    root: str, overrides: list[str], tmp_path: Path
) -> None:
    one: Served = served_checkpoint(saved(tmp_path, root, *overrides))
    assert mapped(tmp_path) == [], "to read what is cut short would end the process"
    assert one.drawn is not None
    example = drawn_example(one, next(iter(one.drawn.sets)), 0)
    before = ask(one, example, Setting())
    for file in (tmp_path / "model").iterdir():
        file.write_bytes(b"")
    assert ask(one, example, Setting()).found == before.found
    assert standing(one, Setting()) is not None
    for file in (tmp_path / "model").iterdir():
        file.unlink()
    assert ask(one, example, Setting()).found == before.found


def test_weights_that_are_shared_stay_shared(tmp_path: Path) -> None:
    one = served_checkpoint(saved(tmp_path, "act_hops", "budget=none"))
    tied = one.model.get_input_embeddings().weight
    assert sum(parameter is tied for parameter in one.model.parameters()) == 1
