"""What the tests of the command line share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from adadepth.config import ExperimentConfig


@dataclass
class Result:
    """What a command ended with: exit status (0 if it returned), standard output and standard error."""

    status: int
    out: str
    err: str

    def checked(self) -> Result:
        """Return the result of a command that must have ended well."""
        assert self.status == 0, self.err
        return self


Command = Callable[..., Result]
Refusal = Callable[..., str]
Jobs = list[ExperimentConfig]
