"""Errors a person can act on, and the nearest-match hint used in their messages."""

import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches


class UserError(ValueError):
    """A mistake in what the user gave: the entry point prints the message on one line and exits with status 2."""

    def __str__(self) -> str:
        """Return the message; of an error in a process that loads data, torch puts a traceback around it."""
        text = super().__str__()
        is_wrapped = text.startswith("Caught ") and "\nOriginal Traceback" in text
        return text.rstrip().rpartition("\n")[2].partition(": ")[2] if is_wrapped else text


class ConfigError(UserError):
    """A key, value or combination of settings that is not allowed."""


class DataError(UserError):
    """A corpus, file or tokenizer that is missing, empty or unreadable."""


class UnreachableError(DataError):
    """A part of a pretrained model that only the hub has, and the hub cannot be asked."""


class CheckpointError(UserError):
    """A checkpoint or run directory that is missing, damaged, in use, or of another family."""


class WeightShapeError(CheckpointError, RuntimeError):
    """Weights of another shape than the model's; transformers raises a RuntimeError there."""


def nearest(value: object, allowed: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the allowed name closest to ``value``, or an empty string."""
    matches = get_close_matches(str(value), sorted(allowed), n=1, cutoff=0.6)
    return f" (did you mean {matches[0]!r}?)" if matches else ""


def missing_package(name: str, needs: str) -> str:
    """Say that a package is missing, and what installs it: a package, or an extra such as ``adadepth[optuna]``.

    pip finds an extra of adadepth wherever adadepth itself was installed from: a clone, a wheel or an index.
    """
    return f"the package {name} is missing; install it with pip install {shlex.quote(needs)}"


def is_exit(error: BaseException) -> bool:
    """Return whether an error ends a process or a generator, and must go on its way."""
    return isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit)


def format_error(error: BaseException) -> str:
    """Return an error that nobody foresaw as one line, with its kind."""
    return f"{type(error).__name__}: {' '.join(str(error).split()):.300}".removesuffix(": ")


@contextmanager
def refuse_panics(subject: str) -> Iterator[None]:
    """Raise a panic of compiled code, which is no `Exception`, as a line; usable as a decorator, too.

    A tokenizer whose regular expression backtracks without end panics, for one.

    Args:
        subject: Name of the object with that code, such as `tokenizer`.

    Raises:
        DataError: It panicked.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) or is_exit(error):
            raise
        raise DataError(f"{subject}: failed on this text ({format_error(error)})") from error
