"""Runs as a user starts them, and the files they write."""

from __future__ import annotations

import json
import os
import sys
import traceback
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, NoReturn

from adadepth.run import main as main_of_run
from tests.toy_support import execute


def run_and_exit(arguments: list[str], *contexts: AbstractContextManager[Any]) -> NoReturn:
    """Run `adadepth` with this command line in these contexts, and end this process with its status."""
    sys.argv, status = ["adadepth", *arguments], 0
    try:
        with ExitStack() as entered:
            for context in contexts:
                entered.enter_context(context)
            main_of_run()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def execute_run(folder: Path, *arguments: str) -> Path:
    """Run a command, and return the folder of the one run that it makes below another."""
    assert execute(*arguments, f"output_dir={folder}") == 0
    (directory,) = folder.glob("*/*")
    return directory


def read_json(path: Path) -> Any:
    """Return the content of a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def read_logged(directory: Path, name: str) -> list[float]:
    """Return every value of a metric that a run logged."""
    lines = map(json.loads, (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [line[name] for line in lines if name in line]
