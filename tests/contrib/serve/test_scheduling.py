"""Requests that fail in unusual ways or never end: a one-line error, and the next request is answered."""

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
from tests.contrib.serve.support import save_untrained, serve_text_model
from tests.models_support import make_small_ponder
from tests.unit.data.tokenizers_support import tokenizer
from tests.unit.models.looped.looped_support import OURO, build_looped

PANIC = "a" * 60  # which the expression below cannot decide
LINE = "tokenizer: failed on this text .PanicException: .*retry-limit"


def build_panicking_tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer whose regular expression backtracks."""
    words = tokenizer(kind)
    words.backend_tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("(?:(?:a|a)+)+c"), "isolated")
    return words


@pytest.fixture
def short_lock(monkeypatch: pytest.MonkeyPatch) -> ModelLock:
    """Return a lock whose turns last a moment."""
    monkeypatch.setattr(scheduling, "GRACE", 0.05)
    monkeypatch.setattr("adadepth.contrib.serve.generation.GRACE", 0.05)
    return ModelLock(1.5)  # a slow machine answers a short text in this time


def test_a_panicking_tokenizer_is_an_error_of_the_page_and_of_python() -> None:
    words = build_panicking_tokenizer("bert")
    one = serve_text_model(make_small_ponder(), words)
    for call in (
        partial(compute_answer, one, PANIC, Setting()),
        partial(one.pipeline, PANIC),
        partial(one.pipeline.examine, PANIC),
    ):
        with pytest.raises(DataError, match=LINE):
            call()
    assert compute_answer(one, "the naive cat", Setting()).row["label"]


def test_a_panicking_tokenizer_is_a_one_line_error_of_mode_predict(tmp_path: Path) -> None:
    make_small_ponder().save_pretrained(tmp_path / "model")
    build_panicking_tokenizer("bert").save_pretrained(tmp_path / "model")
    config = configured(
        "ponder_tiny", "mode=predict", f"checkpoint={tmp_path}/model", f"text={PANIC}", f"output_dir={tmp_path}/out"
    )
    with pytest.raises(DataError, match=LINE):
        tasks.run(config)
    assert not (tmp_path / "out").exists()


def test_a_panicking_generation_informs_waiting_requests() -> None:
    one = serve_text_model(
        build_looped(**OURO | {"vocab_size": len(tokenizer("roberta"))}), build_panicking_tokenizer("roberta")
    )
    with pytest.raises(DataError, match=LINE):
        list(stream_continuation(one, PANIC, 2, Setting()))
    assert list(stream_continuation(one, "a cat", 2, Setting()))[-1].result is not None


class Fatal(BaseException):
    """Exception that no `except Exception` catches."""


def test_a_generation_reports_any_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    one = serve_text_model(build_looped(**OURO | {"vocab_size": len(tokenizer("roberta"))}), tokenizer("roberta"))
    monkeypatch.setattr("adadepth.contrib.serve.generation.describe_texts", _fail)
    with pytest.raises(Fatal):
        list(stream_continuation(one, "a cat", 2, Setting()))


def _fail(*_: Any) -> Any:
    raise Fatal


def test_a_model_that_never_ends_is_stopped(short_lock: ModelLock) -> None:
    model = torch.nn.Sequential(torch.nn.Identity())
    calls = 0

    def compute() -> None:
        nonlocal calls
        with short_lock.hold(model):
            while True:
                model(torch.zeros(1))
                calls += 1

    with pytest.raises(DataError, match=r"^the request took more than 1\.5 seconds"):
        call_with_timeout(short_lock.seconds, compute)
    assert calls
    model(torch.zeros(1))  # no request waits for it
    with short_lock.hold(model):
        model(torch.zeros(1))


@pytest.fixture
def end_event() -> Iterator[threading.Event]:
    """Yield an event, set at the end, on which uninterruptible code waits."""
    end = threading.Event()
    yield end
    end.set()


def test_requests_do_not_wait_for_uninterruptible_code(
    short_lock: ModelLock, end_event: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = serve_text_model(make_small_ponder(), tokenizer("bert"), lock=short_lock)
    described = Pipeline.priced

    def wait(self: Pipeline, texts: Any, **more: Any) -> Any:
        if texts == [PANIC]:
            end_event.wait(60)
        return described(self, texts, **more)

    monkeypatch.setattr(Pipeline, "priced", wait)
    begun = time.perf_counter()
    with pytest.raises(DataError, match=r"^the request took more than 1\.5 seconds"):
        compute_answer(one, PANIC, Setting())
    with pytest.raises(DataError, match=r"^the model is still busy with a previous request"):
        compute_answer(one, "the naive cat", Setting())
    assert time.perf_counter() - begun < 30
    end_event.set()
    while short_lock._deadline is not None:
        time.sleep(0.01)
    assert compute_answer(one, "the naive cat", Setting()).row["label"]


def test_a_token_that_never_comes_is_a_one_line_error(
    short_lock: ModelLock, end_event: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = tokenizer("roberta")
    one = serve_text_model(build_looped(**OURO | {"vocab_size": len(words)}), words, lock=short_lock)
    monkeypatch.setattr("adadepth.contrib.serve.generation.describe_texts", lambda *_: end_event.wait(60))
    with pytest.raises(DataError, match=r"^the next token took more than 1\.5 seconds"):
        list(stream_continuation(one, "a cat", 2, Setting()))


def test_a_measurement_has_a_time_limit(short_lock: ModelLock, end_event: threading.Event) -> None:
    def measure_slowly() -> DepthQuality:
        end_event.wait(60)
        return DepthQuality(0, 0, 0)

    one = serve_text_model(
        make_small_ponder(), tokenizer("bert"), lock=short_lock, evaluator=QualityEvaluator("score", "", measure_slowly)
    )
    with pytest.raises(DataError, match=r"^the request took more than 1\.5 seconds"):
        measure_quality(one, Setting())


def list_mapped_files(folder: Path) -> list[str]:
    """Return the files of a folder that this process has mapped into its memory."""
    return [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="Linux tells what is mapped")
@pytest.mark.parametrize(
    ("root", "overrides"), [("act_hops", ["budget=none"]), ("trm_tiny", ["dataset.size=4", "model.num_steps=2"])]
)
def test_a_served_checkpoint_can_be_truncated_or_deleted(root: str, overrides: list[str], tmp_path: Path) -> None:
    one: ServedCheckpoint = load_served_checkpoint(save_untrained(tmp_path, root, *overrides))
    assert list_mapped_files(tmp_path) == [], "to read what is cut short would end the process"
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


def test_shared_weights_stay_shared(tmp_path: Path) -> None:
    one = load_served_checkpoint(save_untrained(tmp_path, "act_hops", "budget=none"))
    tied = one.model.get_input_embeddings().weight
    assert sum(parameter is tied for parameter in one.model.parameters()) == 1
