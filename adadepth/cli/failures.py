"""Handling of failed commands: an expected error prints one line, any other error writes its traceback to a file."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from typing import NoReturn, TypeGuard

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from adadepth.cli.config_files import list_config_folders
from adadepth.cli.error_messages import format_config_error
from adadepth.config.env_redaction import redact_env_values
from adadepth.errors import UserError
from adadepth.runtime.distributed import exit_with_error, format_memory_error
from adadepth.runtime.failures import format_failure
from adadepth.runtime.files import format_full_disk_error

# Errors of files that a person can put right.
_FILE_ERRORS = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG,
    errno.ELOOP, errno.EIO, errno.ESTALE, errno.EEXIST, errno.ENOTEMPTY,
)  # fmt: skip
_JOB = ("adadepth.cli.job", "run_job")  # Hydra has a function of that name, too
_OPEN_FILE_ERRORS, _OPEN_FILES_MESSAGE = (errno.EMFILE, errno.ENFILE), "Too many open files"


def format_expected_error(error: BaseException) -> str | None:
    """Format a user error or a limit of the machine as one line; return None for any other error."""
    if isinstance(error, UserError | HydraException | OmegaConfBaseException | YAMLError):
        return format_config_error(error, list_config_folders)
    return (
        format_full_disk_error(error)
        or _format_open_files(error)
        or format_memory_error(error)
        or _format_file_error(error)
    )


def _format_open_files(error: BaseException) -> str | None:
    """Format an error of too many open files, or one caused by it, as one line; return None for other errors."""
    current: BaseException | None = error
    while current is not None:
        if getattr(current, "errno", None) in _OPEN_FILE_ERRORS or _OPEN_FILES_MESSAGE in str(current):
            return "too many open files; raise the limit of the system (ulimit -n)"
        current = current.__cause__ or current.__context__
    return None


def _format_file_error(error: BaseException) -> str | None:
    if not isinstance(error, OSError) or error.errno not in _FILE_ERRORS or error.filename is None:
        return None
    return f"{os.fsdecode(error.filename) if not isinstance(error.filename, int) else error.filename}: {error.strerror}"


def format_job_failure(error: BaseException) -> str:
    """Format the failure of one job of a sweep as one line: error and message, or path of the traceback."""
    if format_expected_error(error) is not None:
        return f"{type(error).__name__}: {error}"
    return format_failure(error, redact_env_values)


def end_with_error(error: BaseException, *, show: bool) -> NoReturn:
    """Print a user's error and exit with status 2, or print an unexpected error as `_end_with_failure` does."""
    if (line := format_expected_error(error)) is not None:
        exit_with_error(redact_env_values(line), 2)
    if _is_composition_error(error):
        exit_with_error(format_config_error(error, list_config_folders), 2)
    _end_with_failure(error, show=show)


def _is_composition_error(error: BaseException) -> TypeGuard[Exception]:
    """Return whether Hydra raised the error while it composed the command line and YAML files, before any job."""
    if not isinstance(error, Exception):
        return False
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    calls = [(str(frame.f_globals.get("__name__")), frame.f_code.co_name) for frame in frames]
    modules = [module for module, _ in calls]
    ours = [name for name in modules if name.startswith(("adadepth.", "hydra_plugins.")) and name != "adadepth.run"]
    is_told_by_hydra = all(name.startswith("adadepth.cli.") for name in ours) and modules[-1] not in ours
    return "hydra.main" in modules and is_told_by_hydra and _JOB not in calls


def _end_with_failure(error: BaseException, *, show: bool) -> NoReturn:
    """Print an unexpected error and the path of its traceback in one line, and exit with status 1.

    Args:
        error: Unexpected error.
        show: Whether the traceback is printed, too.
    """
    line = format_failure(error, redact_env_values)
    if show:
        print(redact_env_values("".join(traceback.format_exception(error))), file=sys.stderr, end="", flush=True)
    from adadepth.runtime.console import visible  # its imports would slow `--help`

    rank = os.environ.get("RANK", "0")
    print(visible(f"error: {'' if rank == '0' else f'process {rank}: '}{line}"), file=sys.stderr, flush=True)
    raise SystemExit(1)
