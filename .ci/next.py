"""Run the quick tests with the newest transformers and torch that the index has, and say what they would break.

`next.py [--pre] [--only transformers] [-- pytest's arguments]`. The environment is `.venv-next`, made by the first run
and brought up to date by every later one. The project's own bounds do not hold there: they are what is asked about.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv-next"
PYTHON = VENV / "bin" / "python"
EXTRAS = "dev,minilm,optuna,parallel,slurm,tensorboard"  # those of `make test`
PACKAGES = ("transformers", "torch", "accelerate")
_MOST_LINES, _LONGEST = 12, 160


def install(packages: Sequence[str], *, prereleases: bool) -> None:
    """Install the project with its locked versions, then the newest of some packages.

    Args:
        packages: Names of what is brought up to date; the others stay as they are.
        prereleases: Whether pre-releases count.
    """
    pip = (str(PYTHON), "-m", "pip", "install", "-qq", "--disable-pip-version-check")
    if not PYTHON.is_file():
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
        constraints = VENV / "constraints.txt"
        lock = [sys.executable, ROOT / ".ci" / "lock.py", "constraints"]
        constraints.write_bytes(subprocess.run(lock, check=True, capture_output=True).stdout)
        subprocess.run([*pip, "-c", constraints, "-e", f"{ROOT}[{EXTRAS}]"], check=True)
    subprocess.run([*pip, "--upgrade", *(["--pre"] if prereleases else []), *packages], check=True)


def read_versions() -> dict[str, str]:
    """Return the versions in the environment, by name."""
    code = f"from importlib.metadata import version\nfor name in {PACKAGES}: print(name, version(name))"
    lines = subprocess.run([PYTHON, "-c", code], check=True, capture_output=True, text=True).stdout.splitlines()
    return dict(line.split() for line in lines)


def read_locked() -> dict[str, str]:
    """Return the locked versions, by name."""
    text = (ROOT / "poetry.lock").read_text(encoding="utf-8")
    return {name: re.findall(rf'^name = "{name}"\nversion = "(.+)"', text, re.MULTILINE)[0] for name in PACKAGES}


def summarise(results: Path) -> Iterator[str]:
    """Say in a few lines how many tests passed, and which errors the others ended with, the commonest first.

    Args:
        results: What pytest wrote, in JUnit's format.
    """
    cases = list(ElementTree.parse(results).iter("testcase"))
    tests_by_error: dict[str, list[str]] = {}
    for case in cases:
        for problem in (*case.iterfind("failure"), *case.iterfind("error")):
            message = (problem.get("message") or problem.text or "?").strip().splitlines()[0][:_LONGEST]
            tests_by_error.setdefault(message, []).append(f"{case.get('classname')}::{case.get('name')}")
    broken = {test for tests in tests_by_error.values() for test in tests}
    skipped = sum(case.find("skipped") is not None for case in cases)
    yield f"{len(cases) - len(broken) - skipped:,} tests pass, {skipped:,} are skipped, {len(broken):,} break"
    by_number = sorted(tests_by_error.items(), key=lambda pair: -len(pair[1]))
    for message, tests in by_number[:_MOST_LINES]:
        yield f"  {len(tests):>4} x {message}   (first: {tests[0]})"
    if len(by_number) > _MOST_LINES:
        yield f"  and {len(by_number) - _MOST_LINES} other errors, in {results}"


def describe_versions(locked: Mapping[str, str], installed: Mapping[str, str]) -> str:
    """Say which versions the tests ran with, and which ones are locked."""
    return "with " + ", ".join(f"{name} {installed[name]} (locked: {locked[name]})" for name in installed)


def main(arguments: Sequence[str]) -> int:
    """Install, test, and summarise; return pytest's exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pre", action="store_true", help="pre-releases, too")
    parser.add_argument("--only", nargs="+", choices=PACKAGES, default=PACKAGES, help="leave the others as locked")
    parser.add_argument("--workers", default="2", help="test processes")
    parser.add_argument("tests", nargs="*", help="arguments of pytest")
    options = parser.parse_args(arguments)
    install(options.only, prereleases=options.pre)
    results = VENV / "results.xml"
    results.unlink(missing_ok=True)
    parallel = ("-n", options.workers, "--dist", "worksteal")
    command = [PYTHON, "-m", "pytest", "-q", "--tb=no", *parallel, f"--junitxml={results}", *options.tests]
    status = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False).returncode
    print(describe_versions(read_locked(), read_versions()))
    if results.is_file():
        print(*summarise(results), sep="\n")
    else:
        print(f"pytest wrote no results (status {status})")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
