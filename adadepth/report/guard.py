"""Error handling of report parts: a part whose files contradict each other is skipped with a warning."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from jinja2 import TemplateError

from adadepth.config.env_redaction import redact_env_values
from adadepth.report.run_files import RunFiles
from adadepth.runtime.console import say
from adadepth.runtime.failures import attach_run, write_traceback

_CONTRADICTIONS = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, AssertionError, TemplateError)
_T = TypeVar("_T")


def build_or_leave_out(build: Callable[[RunFiles], _T], files: RunFiles, otherwise: _T) -> _T:
    """Build a part of a report, but skip it with a warning if its files contradict each other.

    Fields that every page reads are checked when a file is read. Invalid fields of a single part raise errors in
    `build`.

    Args:
        build: Function from the files of a run to a part of a report.
        files: Files of the run.
        otherwise: Result if the part is skipped.
    """
    try:
        return build(files)
    except _CONTRADICTIONS as error:
        name = getattr(build, "__name__", str(build))
        attach_run(error, files.directory)
        where = write_traceback(error, redact_env_values)
        say(
            f"warning: {files.directory}: {name!r} is missing from the report because of an error; see the "
            f"traceback in {where}"
        )
        return otherwise
