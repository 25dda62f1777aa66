"""Streaming of generated text to the interactive page, at a depth setting and at full depth with the same seed."""

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

from adadepth.contrib.serve.answers import validate_text
from adadepth.contrib.serve.checkpoint import MAX_NEW_TOKENS, ServedCheckpoint
from adadepth.contrib.serve.knobs import Setting, apply_setting
from adadepth.contrib.serve.scheduling import GRACE, Deadline
from adadepth.errors import DataError
from adadepth.prediction import Pipeline
from adadepth.prediction.texts_file import describe_texts

_SEED = 0


@dataclass(frozen=True)
class Continuation:
    """Generated continuation of a text, complete or in progress.

    Attributes:
        setting: Depth of the model.
        requested_tokens: Number of requested tokens.
        text: Generated text, without the prompt.
        tokens: Number of generated tokens.
        seconds: Seconds since the start.
        result: Description of the whole text, with the fields of texts.json, or None while it is in progress.
        overrides: Settings of the model's configuration that `setting` changes.
    """

    setting: Setting
    requested_tokens: int
    text: str
    tokens: int
    seconds: float
    result: dict[str, Any] | None = None
    overrides: dict[str, Any] | None = None


class _TokenStreamer(BaseStreamer, StoppingCriteria):
    """Streamer that queues every generated token, and stops the generation once the reader has stopped."""

    def __init__(self, queue: Queue[Any], stopped: Event, deadline: Deadline) -> None:
        self.queue, self.stopped, self.deadline, self.is_prompt = queue, stopped, deadline, True

    def put(self, value: torch.Tensor) -> None:
        """Queue generated tokens. The first call passes the prompt, which is skipped."""
        self.deadline.renew()
        if not self.is_prompt:
            self.queue.put(value.flatten().tolist())
        self.is_prompt = False

    def end(self) -> None:
        """Do nothing at the end of generation, because the complete text is queued later."""

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> Any:
        """Return for every text whether its generation must stop."""
        return torch.full((input_ids.shape[0],), self.stopped.is_set(), dtype=torch.bool, device=input_ids.device)


def stream_continuation(
    checkpoint: ServedCheckpoint, text: str, count: int, setting: Setting
) -> Iterator[Continuation]:
    """Continue a text, and yield it after every token. If the iterator is closed, the model stops.

    Raises:
        DataError: If the text is too long, or the number of tokens exceeds the limit.
        ConfigError: If the setting does not exist.
    """
    validate_text(text)
    if not 1 <= count <= MAX_NEW_TOKENS:
        raise DataError(f"new tokens: {count}: must be from 1 to {MAX_NEW_TOKENS}")
    queue: Queue[Any] = Queue()
    stopped = Event()
    thread = Thread(target=_generate, args=(checkpoint, text, count, setting, queue, stopped), daemon=True)
    thread.start()
    tokens: list[int] = []
    start: float | None = None
    try:
        while True:
            part = _wait_for_part(queue, checkpoint.lock.seconds)
            if isinstance(part, Continuation):
                yield part
                return
            if isinstance(part, float):
                start = part
                continue
            tokens += part
            new_text = str(checkpoint.pipeline.tokenizer.decode(tokens, skip_special_tokens=True))
            yield Continuation(setting, count, new_text, len(tokens), perf_counter() - (start or perf_counter()))
    finally:
        stopped.set()
        thread.join(checkpoint.lock.seconds)


def _wait_for_part(queue: Queue[Any], seconds: float) -> Any:
    """Return the next part of generated text from the queue, or raise the error that ended the generation.

    Raises:
        DataError: If no part arrives in time, for example because compiled code does not return.
    """
    try:
        part = queue.get(timeout=seconds + GRACE)
    except Empty:
        raise DataError(f"the next token takes more than {seconds:g} seconds; use another text") from None
    if isinstance(part, BaseException):
        raise part
    return part


def _generate(
    checkpoint: ServedCheckpoint, text: str, count: int, setting: Setting, queue: Queue[Any], stopped: Event
) -> None:
    """Generate a text in a separate thread, and put text or error into the queue."""
    try:
        with (
            checkpoint.lock.hold(checkpoint.model) as deadline,
            apply_setting(checkpoint.model, checkpoint.knobs, setting) as overrides,
            torch.random.fork_rng(),
        ):
            torch.manual_seed(_SEED)
            queue.put(perf_counter())
            queue.put(
                _generate_all(
                    checkpoint, text, count, setting, _TokenStreamer(queue, stopped, deadline), dict(overrides)
                )
            )
    except BaseException as error:  # the reader waits for any error
        queue.put(error)


def _generate_all(
    checkpoint: ServedCheckpoint,
    text: str,
    count: int,
    setting: Setting,
    streamer: _TokenStreamer,
    overrides: dict[str, Any],
) -> Continuation:
    """Generate the whole continuation with the code of `mode=predict new_tokens=...`."""
    pipeline = checkpoint.pipeline
    end_times: list[float] = []
    streamer.end = lambda: end_times.append(perf_counter())  # type: ignore[method-assign]
    generator = Pipeline(
        pipeline.model, pipeline.tokenizer, segment_length=checkpoint.segment_length, new_tokens=count,
        generation={"streamer": streamer, "stopping_criteria": [streamer]},
    )  # fmt: skip
    start = perf_counter()
    result = describe_texts(generator, [text])
    row = result["texts"][0]
    seconds = (end_times[0] if end_times else perf_counter()) - start
    new_count = len(row["tokens"] or []) - len(pipeline.tokenizer(text, add_special_tokens=False)["input_ids"])
    return Continuation(setting, count, row["continuation"] or "", max(new_count, 0), seconds, result, overrides)
