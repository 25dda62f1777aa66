"""Whether code that comes with a model, a tokenizer or a metric may run: not unless `runtime.trust_remote_code`."""

import sys
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_ALLOWED = {"is": False}


def allow_remote_code(is_allowed: bool) -> None:
    """Say it for this process."""
    _ALLOWED["is"] = is_allowed


def load_trusted(place: str, load: Callable[[bool], T]) -> T:
    """Load something without its own code; what cannot be loaded so, with it where that is allowed, saying so.

    Args:
        place: A folder or hub id, for people.
        load: Called with transformers' `trust_remote_code`, which is never left open: it would ask in a terminal.

    Raises:
        ValueError: From transformers: it needs code of its own, which is not allowed.
    """
    try:
        return load(False)
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        if not _ALLOWED["is"]:
            raise ValueError(
                f"{place} brings code of its own, which runs only with runtime.trust_remote_code=true"
            ) from error
    say_trusted(place)
    return load(True)


def say_trusted(place: str) -> None:
    """Tell whose code runs."""
    print(f"code of {place} runs: runtime.trust_remote_code=true", file=sys.stderr, flush=True)
