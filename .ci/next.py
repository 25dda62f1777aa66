"""Run the quick tests with the newest transformers and torch that the index has, and say what they would break.

`next.py [--pre] [--only transformers] [-- pytest's arguments]`. The environment is `.venv-next`, made by the first run
and brought up to date by every later one. The project's own bounds do not hold there: they are what is asked about.

`next.py --lowest [-- pytest's arguments]` runs them with the lowest versions that the bounds admit, in `.venv-lowest`.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = "dev,minilm,optuna,parallel,slurm,tensorboard"  # those of `make test`
PACKAGES = ("transformers", "torch", "accelerate")
_MOST_LINES, _LONGEST = 12, 160


def make_environment(venv: Path, constraints: bytes) -> None:
    """Make an environment with the project in it, unless there is one.

    Args:
        venv: Folder of the environment.
        constraints: Constraints of pip on the versions.
    """
    if not (venv / "bin" / "python").is_file():
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    path = venv / "constraints.txt"
    if not path.is_file() or path.read_bytes() != constraints:
        path.write_bytes(constraints)
        subprocess.run([*pip_install(venv), "-c", path, "-e", f"{ROOT}[{EXTRAS}]"], check=True)


def pip_install(venv: Path) -> tuple[str, ...]:
    """Return the command that installs packages into an environment."""
    return (str(venv / "bin" / "python"), "-m", "pip", "install", "-qq", "--disable-pip-version-check")


def read_lock() -> bytes:
    """Return the locked versions as constraints of pip."""
    command = [sys.executable, ROOT / ".ci" / "lock.py", "constraints"]
    return subprocess.run(command, check=True, capture_output=True).stdout


def read_lowest() -> bytes:
    """Return the lowest versions that the project's bounds admit, as constraints of pip.

    A bound like 2.11 stands for the last release of 2.11. Tools of development have no lowest version.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [project["optional-dependencies"][name] for name in EXTRAS.split(",") if name != "dev"]
    bounds = [re.findall(r"^([\w-]+)>=([\d.]+)", text)[0] for text in sum(extras, project["dependencies"])]
    lines = (f"{name}=={lowest}{'.*' if lowest.count('.') < 2 else ''}\n" for name, lowest in bounds)
    return "".join(lines).encode()


def read_versions(venv: Path) -> dict[str, str]:
    """Return the versions in an environment, by name."""
    code = f"from importlib.metadata import version\nfor name in {PACKAGES}: print(name, version(name))"
    command = [venv / "bin" / "python", "-c", code]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
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
    parser.add_argument("--lowest", action="store_true", help="the lowest versions that the bounds admit")
    parser.add_argument("--pre", action="store_true", help="pre-releases, too")
    parser.add_argument("--only", nargs="+", choices=PACKAGES, default=PACKAGES, help="leave the others as locked")
    parser.add_argument("--workers", default="2", help="test processes")
    parser.add_argument("tests", nargs="*", help="arguments of pytest")
    options = parser.parse_args(arguments)
    venv = ROOT / (".venv-lowest" if options.lowest else ".venv-next")
    make_environment(venv, read_lowest() if options.lowest else read_lock())
    if not options.lowest:
        newest = ["--upgrade", *(["--pre"] if options.pre else []), *options.only]
        subprocess.run([*pip_install(venv), *newest], check=True)
    results = venv / "results.xml"
    results.unlink(missing_ok=True)
    parallel = ("-n", options.workers, "--dist", "worksteal")
    tests = ["-m", "pytest", "-q", "--tb=no", *parallel, f"--junitxml={results}", *options.tests]
    command = [venv / "bin" / "python", *tests]
    status = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False).returncode
    print(describe_versions(read_locked(), read_versions(venv)))
    if results.is_file():
        print(*summarise(results), sep="\n")
    else:
        print(f"pytest wrote no results (status {status})")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
