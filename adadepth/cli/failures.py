"""What an error that ends a command becomes: a line for what was foreseen, a file with the traceback for the rest."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from typing import NoReturn

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from adadepth.cli.command_line import folders
from adadepth.cli.hints import explain
from adadepth.errors import UserError
from adadepth.settings.interpolations import told_within
from adadepth.system.failures import failure_line
from adadepth.system.files import full_disk
from adadepth.system.processes import short_memory

# What the system says of files that a person can put right.
_OF_FILES = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG,
    errno.ELOOP, errno.EIO, errno.ESTALE, errno.EEXIST, errno.ENOTEMPTY,
)  # fmt: skip
_TOO_MANY = (errno.EMFILE, errno.ENFILE)
_TOO_MANY_WORDS = "Too many open files"


def foreseen_line(error: BaseException) -> str | None:
    """Say what a person gave wrongly or the machine lacks; None of what nobody foresaw."""
    if isinstance(error, UserError | HydraException | OmegaConfBaseException | YAMLError):
        return explain(error, folders)
    return full_disk(error) or _open_files(error) or short_memory(error) or _file(error)


def _open_files(error: BaseException) -> str | None:
    """Return the line for a limit of open files, wherever in the chain of causes it was met."""
    current: BaseException | None = error
    while current is not None:
        if getattr(current, "errno", None) in _TOO_MANY or _TOO_MANY_WORDS in str(current):
            return "too many open files; the system lets a process have no more (ulimit -n)"
        current = current.__cause__ or current.__context__
    return None


def _file(error: BaseException) -> str | None:
    if not isinstance(error, OSError) or error.errno not in _OF_FILES or error.filename is None:
        return None
    return f"{os.fsdecode(error.filename) if not isinstance(error.filename, int) else error.filename}: {error.strerror}"


def failure_text(error: BaseException) -> str:
    """Return what is said of an error of a job: its kind and words, or where its traceback is."""
    if foreseen_line(error) is not None:
        return f"{type(error).__name__}: {error}"
    return failure_line(error, told_within)


def end_with_failure(error: BaseException, *, show: bool) -> NoReturn:
    """Say in a line what failed and where its traceback is, and end with status 1.

    Args:
        error: What nobody foresaw.
        show: Whether the traceback is printed, too.
    """
    line = failure_line(error, told_within)
    if show:
        print(told_within("".join(traceback.format_exception(error))), file=sys.stderr, end="", flush=True)
    from adadepth.system.console import visible  # what it needs is not needed otherwise to say `--help`

    process = os.environ.get("RANK", "0")
    print(visible(f"error: {'' if process == '0' else f'process {process}: '}{line}"), file=sys.stderr, flush=True)
    raise SystemExit(1)
