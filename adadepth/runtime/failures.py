"""Unexpected errors: a traceback in a file, and what the program was doing."""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from adadepth.runtime.files import write_atomic

TRACEBACK = "traceback.txt"  # in the directory of a run
ERRORS = "errors"  # folder in output_dir for failures outside of runs
_ACTIVITY, _RUN, _OUTPUT = "adadepth_activity", "adadepth_run", "adadepth_output"  # attributes of an exception


@contextmanager
def activity(words: str, output: Path | None = None) -> Iterator[None]:
    """Name the activity of the `with` block in any error that it raises, for the error message.

    If blocks are nested, the innermost name is kept.

    Args:
        words: Name of the activity, such as "reading results/a.json".
        output: Folder in which runs are written.
    """
    try:
        yield
    except BaseException as error:
        _set_attribute(error, _ACTIVITY, words)
        if output is not None:
            _set_attribute(error, _OUTPUT, str(output))
        raise


def attach_run(error: BaseException, folder: Path) -> None:
    """Attach the run directory to an error, for the error message."""
    _set_attribute(error, _RUN, str(folder))


def _set_attribute(error: BaseException, name: str, value: str) -> None:
    with suppress(AttributeError, TypeError):
        vars(error).setdefault(name, value)


def format_failure(error: BaseException, redact: Callable[[str], str] = str) -> str:
    """Write the traceback of an error to a file, and return a line with the error and the file.

    Args:
        error: Failure, possibly of another process.
        redact: Function that removes secrets from a text.
    """
    words = str(getattr(error, _ACTIVITY, "starting"))
    first = next(iter(str(error).splitlines()), "")
    kind = f"{type(error).__name__}: {first}" if first else type(error).__name__
    return redact(f"{words} failed unexpectedly ({kind}); its traceback is in {write_traceback(error, redact)}")


def write_traceback(error: BaseException, redact: Callable[[str], str] = str) -> Path:
    """Write a traceback to a file and return its path.

    It goes to the run directory, or else to the folder `errors`, or else to the temporary folder.
    """
    text = redact("".join(traceback.format_exception(error)))
    process = os.environ.get("RANK", "0")
    for path in _list_paths(error, "" if process == "0" else f"_{process}"):
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, text.encode("utf-8", "backslashreplace").decode())
            return path
    return Path(os.devnull)


def _list_paths(error: BaseException, process: str) -> Iterator[Path]:
    stem, ending = TRACEBACK.split(".")
    if (folder := getattr(error, _RUN, None)) is not None and Path(folder).is_dir():
        yield Path(folder) / f"{stem}{process}.{ending}"
    name = f"{datetime.now():%Y-%m-%d_%H-%M-%S}_{os.getpid()}{process}.{ending}"
    yield Path(getattr(error, _OUTPUT, "outputs")) / ERRORS / name
    yield Path(tempfile.gettempdir()) / f"adadepth_{name}"
