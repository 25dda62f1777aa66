"""Runs as a user starts them, and what they leave."""

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


def become(given: list[str], *within: AbstractContextManager[Any]) -> NoReturn:
    """What `adadepth` does with this command line in these contexts, to the end of this process."""
    sys.argv, status = ["adadepth", *given], 0
    try:
        with ExitStack() as entered:
            for context in within:
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
