"""Errors that a user can act on, and the nearest-match hint in their messages."""

import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches


class UserError(ValueError):
    """Error caused by the user's input. The entry point prints the message on one line and exits with status 2."""

    def __str__(self) -> str:
        """Return the message, without the traceback that torch adds to an error in a data-loading process."""
        text = super().__str__()
        is_wrapped = text.startswith("Caught ") and "\nOriginal Traceback" in text
        return text.rstrip().rpartition("\n")[2].partition(": ")[2] if is_wrapped else text


class ConfigError(UserError):
    """Error about a key, value or combination of settings that is not allowed."""


class DataError(UserError):
    """Error about a corpus, file or tokenizer that is missing, empty or unreadable."""


class UnreachableError(DataError):
    """Error about a part of a pretrained model that must be read from the hub while the hub is unreachable."""


class CheckpointError(UserError):
    """Error about a checkpoint or run directory that is missing, damaged, in use, or of another family."""


class WeightShapeError(CheckpointError, RuntimeError):
    """Error about weights with another shape than the model's.

    It is also a RuntimeError because transformers raises a RuntimeError in this case.
    """


def nearest(value: object, allowed: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the allowed name closest to ``value``, or an empty string."""
    matches = get_close_matches(str(value), sorted(allowed), n=1, cutoff=0.6)
    return f" (did you mean {matches[0]!r}?)" if matches else ""


def missing_package(name: str, needs: str) -> str:
    """Return the message that a package is missing, with the command that installs it.

    The command installs a package or an extra of adadepth, such as ``adadepth[optuna]``. pip finds an extra whether
    adadepth was installed from a clone, a wheel or an index.
    """
    return f"the package {name} is missing; install it with pip install {shlex.quote(needs)}"


def is_exit(error: BaseException) -> bool:
    """Return whether an exception ends a process or a generator and therefore must be re-raised."""
    return isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit)


def format_error(error: BaseException) -> str:
    """Return an unexpected error as one line that starts with its type."""
    return f"{type(error).__name__}: {' '.join(str(error).split()):.300}".removesuffix(": ")


@contextmanager
def refuse_panics(subject: str) -> Iterator[None]:
    """Convert a panic of compiled code into a one-line error. It also works as a decorator.

    A panic is no subclass of `Exception`. For example, a tokenizer panics if its regular expression backtracks without
    end.

    Args:
        subject: Name of the object that runs the code, such as `tokenizer`.

    Raises:
        DataError: If the code panicked.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) or is_exit(error):
            raise
        raise DataError(f"{subject}: failed on this text ({format_error(error)})") from error
