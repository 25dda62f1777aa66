"""Agreement between the processes of one run: who prepares data, and where the run writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from accelerate.utils import broadcast_object_list
from transformers import TrainingArguments

from adadepth.errors import UserError

T = TypeVar("T")


def main_first(args: TrainingArguments, work: Callable[[], T]) -> T:
    """Run `work` on the main process, then on the others, which find the main one's results in the cache."""
    if args.world_size == 1:
        return work()
    found, failure = _attempt(work) if args.process_index == 0 else (None, None)
    _raise_everywhere(failure)
    return work() if found is None else found


def decide(args: TrainingArguments, work: Callable[[], T]) -> T:
    """Run `work` on the main process only and give every process what it returns."""
    if args.world_size == 1:
        return work()
    found, failure = _attempt(work) if args.process_index == 0 else (None, None)
    _raise_everywhere(failure)
    shared: list[Any] = [found]
    broadcast_object_list(shared)
    decided: T = shared[0]
    return decided


def wait_for_all(args: TrainingArguments) -> None:
    """Go on when every process has come this far."""
    if args.world_size > 1:
        broadcast_object_list([None])


def _attempt(work: Callable[[], T]) -> tuple[T | None, UserError | None]:
    try:
        return work(), None
    except UserError as error:
        return None, error


def _raise_everywhere(failure: UserError | None) -> None:
    """Let every process end on the main one's mistake instead of waiting for it."""
    shared = [None if failure is None else (type(failure), str(failure))]
    broadcast_object_list(shared)
    if shared[0] is not None:
        error_type, message = shared[0]
        raise error_type(message)
