"""Read poetry.lock without poetry: `lock.py check` or `lock.py constraints` (docs/decisions/0001 says why).

Standard library only, because it runs before anything is installed.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def content_hash(pyproject: dict[str, Any]) -> str:
    """Return the digest by which poetry 2 knows that a lock belongs to this pyproject.toml.

    It covers what a resolution depends on, so a change of the linter's settings leaves the lock in sync.
    """
    keys_of_project = ("requires-python", "dependencies", "optional-dependencies")
    keys_of_poetry = ("dependencies", "source", "extras", "dev-dependencies", "group")
    poetry = pyproject["tool"]["poetry"]
    relevant = {
        "project": {key: pyproject["project"][key] for key in keys_of_project if key in pyproject["project"]},
        "tool": {"poetry": {key: poetry[key] for key in keys_of_poetry if key in poetry}},
    }
    return hashlib.sha256(json.dumps(relevant, sort_keys=True).encode()).hexdigest()


def problems(pyproject: dict[str, Any], lock: dict[str, Any]) -> list[str]:
    """Return, one line each, why the lock cannot be installed as it is; empty when all is well."""
    found = []
    if lock["metadata"]["content-hash"] != content_hash(pyproject):
        found.append("poetry.lock is out of date with pyproject.toml: run `make lock`")
    names = [package["name"] for package in lock["package"]]
    for name in sorted({name for name in names if names.count(name) > 1}):
        # pip cannot hold both as constraints, and `poetry install` may install one over the other.
        found.append(f"poetry.lock holds more than one version of {name}: see docs/contributing.md")
    return found


def constraints(lock: dict[str, Any]) -> str:
    """Return pip constraints, `name==version` a line.

    Markers and hashes are left out. A constraint installs nothing by itself, so a marker has nothing to decide; and a
    CPU build of torch (2.13.0+cpu) satisfies `torch==2.13.0` but has a hash of its own.
    """
    return "".join(f"{package['name']}=={package['version']}\n" for package in lock["package"])


def main(command: str) -> int:
    """Run one of the two commands on the repository's own files and return the exit status."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    lock = tomllib.loads((ROOT / "poetry.lock").read_text(encoding="utf-8"))
    found = problems(pyproject, lock)
    if found:
        print(*found, sep="\n", file=sys.stderr)
        return 1
    if command == "constraints":
        sys.stdout.write(constraints(lock))
    return 0


if __name__ == "__main__":
    if sys.argv[1:] not in (["check"], ["constraints"]):
        sys.exit("usage: lock.py check | constraints")
    sys.exit(main(sys.argv[1]))
