"""Runs as a user starts them, and what they leave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.toy_support import execute


def folder_of_run(folder: Path, *arguments: str) -> Path:
    """The folder of the one run that a command makes below another."""
    assert execute(*arguments, f"output_dir={folder}") == 0
    (directory,) = folder.glob("*/*")
    return directory


def read(path: Path) -> Any:
    """What a JSON file says."""
    return json.loads(path.read_text(encoding="utf-8"))


def logged(directory: Path, name: str) -> list[float]:
    """Every value of a metric that a run wrote."""
    lines = map(json.loads, (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [line[name] for line in lines if name in line]
