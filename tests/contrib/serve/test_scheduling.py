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
from adadepth.contrib.serve import scheduling
from adadepth.contrib.serve.answers import compute_answer, measure_quality
from adadepth.contrib.serve.checkpoint import DepthQuality, QualityEvaluator, ServedCheckpoint, get_synthetic_example
from adadepth.contrib.serve.generation import stream_continuation
from adadepth.contrib.serve.knobs import Setting
from adadepth.contrib.serve.scheduling import ModelLock, call_with_timeout
from adadepth.contrib.serve.serve import load_served_checkpoint
from adadepth.errors import DataError
from tests.configs.support import configured
from tests.contrib.serve.support import of_text, saved
from tests.models_support import small_ponder
from tests.unit.data.tokenizers_support import tokenizer
from tests.unit.models.looped.looped_support import OURO, build_looped

PANIC = "a" * 60  # which the expression below cannot decide
LINE = "tokenizer: failed on this text .PanicException: .*retry-limit"


def panicking(kind: str) -> PreTrainedTokenizerFast:
    """A tokenizer whose regular expression backtracks."""
    words = tokenizer(kind)
    words.backend_tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("(?:(?:a|a)+)+c"), "isolated")
    return words


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> ModelLock:
    """Turns of a moment."""
    monkeypatch.setattr(scheduling, "GRACE", 0.05)
    monkeypatch.setattr("adadepth.contrib.serve.generation.GRACE", 0.05)
    return ModelLock(1.5)  # a slow machine answers a short text in this time


def test_a_tokenizer_that_panics_is_a_line_of_the_page_and_of_python() -> None:
    words = panicking("bert")
    one = of_text(small_ponder(), words)
    for call in (
        partial(compute_answer, one, PANIC, Setting()),
        partial(one.pipeline, PANIC),
        partial(one.pipeline.examine, PANIC),
    ):
        with pytest.raises(DataError, match=LINE):
            call()
    assert compute_answer(one, "the naive cat", Setting()).row["label"]


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
    one = of_text(build_looped(**OURO | {"vocab_size": len(tokenizer("roberta"))}), panicking("roberta"))
    with pytest.raises(DataError, match=LINE):
        list(stream_continuation(one, PANIC, 2, Setting()))
    assert list(stream_continuation(one, "a cat", 2, Setting()))[-1].result is not None


class Fatal(BaseException):
    """What nobody catches who catches every `Exception`."""


def test_a_writer_tells_whatever_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    one = of_text(build_looped(**OURO | {"vocab_size": len(tokenizer("roberta"))}), tokenizer("roberta"))
    monkeypatch.setattr("adadepth.contrib.serve.generation.describe_texts", _fail)
    with pytest.raises(Fatal):
        list(stream_continuation(one, "a cat", 2, Setting()))


def _fail(*_: Any) -> Any:
    raise Fatal


def test_a_model_that_never_ends_is_stopped(impatient: ModelLock) -> None:
    model = torch.nn.Sequential(torch.nn.Identity())
    calls = 0

    def compute() -> None:
        nonlocal calls
        with impatient.hold(model):
            while True:
                model(torch.zeros(1))
                calls += 1

    with pytest.raises(DataError, match=r"^the request took more than 1\.5 seconds"):
        call_with_timeout(impatient.seconds, compute)
    assert calls
    model(torch.zeros(1))  # by whom nobody waits
    with impatient.hold(model):
        model(torch.zeros(1))


@pytest.fixture
def stuck() -> Iterator[threading.Event]:
    """Set at the end: what compiled code that cannot be stopped waits for here."""
    end = threading.Event()
    yield end
    end.set()


def test_nobody_waits_for_what_cannot_be_stopped(
    impatient: ModelLock, stuck: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = of_text(small_ponder(), tokenizer("bert"), lock=impatient)
    described = Pipeline.priced

    def wait(self: Pipeline, texts: Any, **more: Any) -> Any:
        if texts == [PANIC]:
            stuck.wait(60)
        return described(self, texts, **more)

    monkeypatch.setattr(Pipeline, "priced", wait)
    begun = time.perf_counter()
    with pytest.raises(DataError, match=r"^the request took more than 1\.5 seconds"):
        compute_answer(one, PANIC, Setting())
    with pytest.raises(DataError, match=r"^the model is still busy with a previous request"):
        compute_answer(one, "the naive cat", Setting())
    assert time.perf_counter() - begun < 30
    stuck.set()
    while impatient._deadline is not None:
        time.sleep(0.01)
    assert compute_answer(one, "the naive cat", Setting()).row["label"]


def test_a_token_that_never_comes_is_a_line(
    impatient: ModelLock, stuck: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = tokenizer("roberta")
    one = of_text(build_looped(**OURO | {"vocab_size": len(words)}), words, lock=impatient)
    monkeypatch.setattr("adadepth.contrib.serve.generation.describe_texts", lambda *_: stuck.wait(60))
    with pytest.raises(DataError, match=r"^the next token took more than 1\.5 seconds"):
        list(stream_continuation(one, "a cat", 2, Setting()))


def test_a_measurement_has_its_time_too(impatient: ModelLock, stuck: threading.Event) -> None:
    def here() -> DepthQuality:
        stuck.wait(60)
        return DepthQuality(0, 0, 0)

    one = of_text(small_ponder(), tokenizer("bert"), lock=impatient, evaluator=QualityEvaluator("score", "", here))
    with pytest.raises(DataError, match=r"^the request took more than 1\.5 seconds"):
        measure_quality(one, Setting())


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
    one: ServedCheckpoint = load_served_checkpoint(saved(tmp_path, root, *overrides))
    assert mapped(tmp_path) == [], "to read what is cut short would end the process"
    assert one.synthetic is not None
    example = get_synthetic_example(one, next(iter(one.synthetic.sets)), 0)
    before = compute_answer(one, example, Setting())
    for file in (tmp_path / "model").iterdir():
        file.write_bytes(b"")
    assert compute_answer(one, example, Setting()).result == before.result
    assert measure_quality(one, Setting()) is not None
    for file in (tmp_path / "model").iterdir():
        file.unlink()
    assert compute_answer(one, example, Setting()).result == before.result


def test_weights_that_are_shared_stay_shared(tmp_path: Path) -> None:
    one = load_served_checkpoint(saved(tmp_path, "act_hops", "budget=none"))
    tied = one.model.get_input_embeddings().weight
    assert sum(parameter is tied for parameter in one.model.parameters()) == 1
