"""A language model that writes on: its text as it comes, at a setting and at full depth, from the same seed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from queue import Empty, Queue
from threading import Event, Thread
from time import perf_counter
from typing import Any

import torch
from transformers import StoppingCriteria
from transformers.generation.streamers import BaseStreamer

from adadepth.contrib.serve.asking import refuse_text
from adadepth.contrib.serve.knobs import Setting, turned
from adadepth.contrib.serve.served import MOST_NEW_TOKENS, Served
from adadepth.contrib.serve.turns import GRACE, Turn
from adadepth.errors import DataError
from adadepth.prediction import Pipeline
from adadepth.prediction.pipeline import describe_texts

_SEED = 0


@dataclass(frozen=True)
class Continuation:
    """What was written so far.

    Attributes:
        setting: How deep.
        asked: How many tokens were asked for.
        text: The new text alone.
        tokens: How many there are.
        seconds: Since it began.
        found: As texts.json has the whole text; None: it is still being written.
        changed: The settings of the model's configuration that the setting changes.
    """

    setting: Setting
    asked: int
    text: str
    tokens: int
    seconds: float
    found: dict[str, Any] | None = None
    changed: dict[str, Any] | None = None


class _Listener(BaseStreamer, StoppingCriteria):
    """Hears every token, and stops where nobody listens any more."""

    def __init__(self, heard: Queue[Any], stopped: Event, turn: Turn) -> None:
        self.heard, self.stopped, self.turn, self.is_prompt = heard, stopped, turn, True

    def put(self, value: torch.Tensor) -> None:
        """Tokens: the prompt first."""
        self.turn.renew()
        if not self.is_prompt:
            self.heard.put(value.flatten().tolist())
        self.is_prompt = False

    def end(self) -> None:
        """The text is whole; who waits is told when it was read."""

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> Any:
        """Whether to stop, of every row."""
        return torch.full((input_ids.shape[0],), self.stopped.is_set(), dtype=torch.bool, device=input_ids.device)


def write_on(served: Served, text: str, count: int, setting: Setting) -> Iterator[Continuation]:
    """Continue a text, and tell what there is after every token; to close the iterator stops the model.

    Raises:
        DataError: The text is too long, or there are more tokens than a visitor may ask for.
        ConfigError: There is no such setting.
    """
    refuse_text(text)
    if not 1 <= count <= MOST_NEW_TOKENS:
        raise DataError(f"new tokens: {count}: must be from 1 to {MOST_NEW_TOKENS}")
    heard: Queue[Any] = Queue()
    stopped = Event()
    writer = Thread(target=_write, args=(served, text, count, setting, heard, stopped), daemon=True)
    writer.start()
    tokens: list[int] = []
    begun: float | None = None
    try:
        while True:
            told = _next_part(heard, served.turns.seconds)
            if isinstance(told, Continuation):
                yield told
                return
            if isinstance(told, float):
                begun = told
                continue
            tokens += told
            so_far = str(served.pipeline.tokenizer.decode(tokens, skip_special_tokens=True))
            yield Continuation(setting, count, so_far, len(tokens), perf_counter() - (begun or perf_counter()))
    finally:
        stopped.set()
        writer.join(served.turns.seconds)


def _next_part(heard: Queue[Any], seconds: float) -> Any:
    """Return what the writer says next, or raise what it failed with.

    Raises:
        DataError: It says nothing, because compiled code that knows no end has it.
    """
    try:
        part = heard.get(timeout=seconds + GRACE)
    except Empty:
        raise DataError(f"the next token takes more than {seconds:g} seconds; ask for another text") from None
    if isinstance(part, BaseException):
        raise part
    return part


def _write(served: Served, text: str, count: int, setting: Setting, heard: Queue[Any], stopped: Event) -> None:
    """Write in a thread of its own; what becomes of it goes into the queue."""
    try:
        with (
            served.turns.take(served.model) as turn,
            turned(served.model, served.knobs, setting) as changed,
            torch.random.fork_rng(),
        ):
            torch.manual_seed(_SEED)
            heard.put(perf_counter())
            heard.put(_whole(served, text, count, setting, _Listener(heard, stopped, turn), dict(changed)))
    except BaseException as error:  # whatever it is, someone waits for it
        heard.put(error)


def _whole(
    served: Served,
    text: str,
    count: int,
    setting: Setting,
    listener: _Listener,
    changed: dict[str, Any],
) -> Continuation:
    """By the code of `mode=predict new_tokens=...`."""
    pipeline = served.pipeline
    ends: list[float] = []
    listener.end = lambda: ends.append(perf_counter())  # type: ignore[method-assign]
    writing = Pipeline(
        pipeline.model, pipeline.tokenizer, segment_length=served.segment_length, new_tokens=count,
        generation={"streamer": listener, "stopping_criteria": [listener]},
    )  # fmt: skip
    begun = perf_counter()
    found = describe_texts(writing, [text])
    row = found["texts"][0]
    seconds = (ends[0] if ends else perf_counter()) - begun
    written = len(row["tokens"] or []) - len(pipeline.tokenizer(text, add_special_tokens=False)["input_ids"])
    return Continuation(setting, count, row["continuation"] or "", max(written, 0), seconds, found, changed)
