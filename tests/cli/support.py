"""What the tests of the command line share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Result:
    """What a command ended with: exit status (0 if it returned), standard output and standard error."""

    status: int
    out: str
    err: str
