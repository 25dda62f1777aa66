"""Types shared by the tests of the command line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from adadepth.config import ExperimentConfig


@dataclass
class Result:
    """Outcome of a command: exit status (0 if it returned), standard output and standard error."""

    status: int
    out: str
    err: str

    def checked(self) -> Result:
        """Check that the command ended with status 0, and return the result."""
        assert self.status == 0, self.err
        return self


Command = Callable[..., Result]
Refusal = Callable[..., str]
Jobs = list[ExperimentConfig]
