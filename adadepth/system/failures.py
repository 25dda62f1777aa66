"""Failures that nobody foresaw: what was being done, and a file with the traceback."""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from adadepth.system.files import write_atomic

TRACEBACK = "traceback.txt"  # of a run
ERRORS = "errors"  # the folder of output_dir for failures without a run
_ACTIVITY, _RUN, _OUTPUT = "adadepth_activity", "adadepth_run", "adadepth_output"  # attributes of an exception


@contextmanager
def activity(words: str, output: Path | None = None) -> Iterator[None]:
    """Note in an error that leaves the block what was being done; the innermost block has the say.

    Args:
        words: As "reading results/a.json".
        output: Where runs are written.
    """
    try:
        yield
    except BaseException as error:
        _note(error, _ACTIVITY, words)
        if output is not None:
            _note(error, _OUTPUT, str(output))
        raise


def note_run(error: BaseException, folder: Path) -> None:
    """Note in an error the folder of the run that it belongs to."""
    _note(error, _RUN, str(folder))


def _note(error: BaseException, name: str, value: str) -> None:
    with suppress(AttributeError, TypeError):
        vars(error).setdefault(name, value)


def failure_line(error: BaseException, redact: Callable[[str], str] = str) -> str:
    """Write the traceback of a failure into a file, and say in one line what failed and where that file is.

    Args:
        error: It, which may have come from another process.
        redact: Takes out of a text what must not be told.
    """
    words = str(getattr(error, _ACTIVITY, "starting"))
    first = next(iter(str(error).splitlines()), "")
    kind = f"{type(error).__name__}: {first}" if first else type(error).__name__
    return redact(f"{words} failed unexpectedly ({kind}); its traceback is in {write_traceback(error, redact)}")


def write_traceback(error: BaseException, redact: Callable[[str], str] = str) -> Path:
    """Write the traceback of an error into its run, into `errors` where runs are written, or among temporary files."""
    text = redact("".join(traceback.format_exception(error)))
    process = os.environ.get("RANK", "0")
    for path in _places(error, "" if process == "0" else f"_{process}"):
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, text.encode("utf-8", "backslashreplace").decode())
            return path
    return Path(os.devnull)


def _places(error: BaseException, process: str) -> Iterator[Path]:
    stem, ending = TRACEBACK.split(".")
    if (folder := getattr(error, _RUN, None)) is not None and Path(folder).is_dir():
        yield Path(folder) / f"{stem}{process}.{ending}"
    name = f"{datetime.now():%Y-%m-%d_%H-%M-%S}_{os.getpid()}{process}.{ending}"
    yield Path(getattr(error, _OUTPUT, "outputs")) / ERRORS / name
    yield Path(tempfile.gettempdir()) / f"adadepth_{name}"
