"""The first hour on a device: tests, parity, speed, crossovers and published runs, and one report to send to us.

    python benchmarks/first_hour.py [--device cuda|cpu] [--hours 1] [--folder FOLDER] [--only STEP ...]
        [--wikitext2 FOLDER] [--sudoku FOLDER] [--mazes FOLDER]

Each step is a process with its share of the time; what one leaves is the others'. A step that fails or is cut does not
stop the others. What is done is kept in the folder, so that the same command goes on after an interruption, tries again
what failed, and draws the report anew. `--device cpu` runs everything at small sizes, the CPU standing in for the
device. Without folders the data sets come from the hub.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from first_hour_page import write_report
from first_hour_steps import Places, Step, steps

from adadepth.report.run_files import write_json
from adadepth.runs.directory import collect_environment

ROOT = Path(__file__).resolve().parents[1]
KEPT, LOG = "result.json", "log.txt"
LEAST = 5.0  # seconds that a step must have to be begun
GRACE = 30.0  # seconds that a step has to end by itself once it is asked to
_LONGEST_ERROR = 300


def kept(folder: Path, step: Step) -> dict[str, Any] | None:
    """Load the stored result of a step that an earlier call started; None if there is none."""
    file = folder / step.name / KEPT
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def take(folder: Path, step: Step, seconds: float, environment: Mapping[str, str]) -> dict[str, Any]:
    """Run a step for so many seconds at the most, and keep what it found."""
    own = folder / step.name
    own.mkdir(parents=True, exist_ok=True)
    given = step.command(seconds / 60, own)
    begun = time.monotonic()
    with (own / LOG).open("wb") as log:
        command = [sys.executable, *given]
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env=dict(environment)
        )
        try:
            status = "failed" if process.wait(seconds) else "done"
        except subprocess.TimeoutExpired:
            end(process)
            status = "cut"
        except KeyboardInterrupt:
            end(process)
            raise
    result = {
        "status": status,
        "seconds": time.monotonic() - begun,
        "seconds_allowed": seconds,
        "command": shlex.join(["python", *given]).replace(f"{ROOT}/", ""),
        "error": None if status == "done" else last_line(own / LOG),
        "figures": figures(step, own),
    }
    write_json(own / KEPT, result)
    return result


def figures(step: Step, own: Path) -> list[dict[str, Any]]:
    """Read the figures that a step measured; empty if its files are damaged."""
    try:
        return list(step.read(own))
    except (KeyError, ValueError, TypeError) as error:
        print(f"  what {step.name} wrote cannot be read: {type(error).__name__}: {error}", flush=True)
        return []


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask a process and those it started to end, as Ctrl-C does, and make them after a while."""
    for number in (signal.SIGINT, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(GRACE)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
        return


def last_line(log: Path) -> str:
    """Return the last non-empty line of a log."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1][:_LONGEST_ERROR] if lines else "it said nothing"


def take_all(folder: Path, plan: list[Step], hours: float, environment: Mapping[str, str]) -> dict[str, Any]:
    """Run what is not done yet, each within its share of the time that is left; returns the results by name."""
    found = {step.name: result for step in plan if (result := kept(folder, step)) is not None}
    open_steps = [step for step in plan if found.get(step.name, {}).get("status") != "done"]
    deadline = time.monotonic() + 3600 * hours
    for number, step in enumerate(open_steps):
        left = deadline - time.monotonic()
        seconds = left * step.minutes / sum(other.minutes for other in open_steps[number:])
        if seconds < LEAST:
            print(f"no time is left for {step.name}", flush=True)
            continue
        print(f"{step.title}: at most {seconds / 60:.1f} minutes, {folder / step.name / LOG}", flush=True)
        result = found[step.name] = take(folder, step, seconds, environment)
        told = "" if result["error"] is None else f": {result['error']}"
        print(
            f"  {result['status']} after {result['seconds']:.0f} s, {len(result['figures'])} figures{told}", flush=True
        )
    return found


def machine(on_cpu: bool) -> dict[str, Any]:
    """Describe the device, the machine and the versions."""
    device: dict[str, Any] = {"name": "CPU standing in for a device" if on_cpu else torch.cuda.get_device_name()}
    if not on_cpu:
        about = torch.cuda.get_device_properties(0)
        device |= {
            "memory": f"{about.total_memory / 1e9:.1f} GB", "capability": f"{about.major}.{about.minor}",
            "processors": about.multi_processor_count, "CUDA": torch.version.cuda, "ROCm": torch.version.hip,
        }  # fmt: skip
    return {
        "device": device,
        **collect_environment(),
        "begun": datetime.now().astimezone().isoformat(timespec="seconds"),
    }


def parse_options() -> argparse.Namespace:
    """Parse and check the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--hours", type=float, default=1.0, help="of all steps together")
    parser.add_argument("--folder", type=Path, default=None, help="outputs/first_hour_DEVICE unless it is given")
    parser.add_argument("--only", nargs="+", metavar="STEP", help="these steps alone, by name")
    for name in Places._fields:
        parser.add_argument(f"--{name}", metavar="FOLDER", help="a folder with the published files; otherwise the hub")
    options = parser.parse_args()
    if not 0 < options.hours < float("inf"):
        parser.error(f"--hours {options.hours:g}: must be a number above 0")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error(
            "--device cuda: torch sees no such device here; --device cpu (make gpu DEVICE=cpu) runs small sizes"
        )
    for name in Places._fields:
        folder = getattr(options, name)
        if folder is not None and not Path(folder).expanduser().is_dir():
            parser.error(f"--{name} {folder}: no such folder")
    plan = steps(options.device == "cpu", Places(*(getattr(options, name) for name in Places._fields)))
    known = [step.name for step in plan]
    if unknown := [name for name in options.only or [] if name not in known]:
        parser.error(f"--only {unknown[0]}: no such step; there are {', '.join(known)}")
    options.plan = [step for step in plan if step.name in (options.only or known)]
    return options


def main() -> None:
    """Run the steps, and write the report whatever became of them; fails where a step failed."""
    options = parse_options()
    on_cpu, plan = options.device == "cpu", options.plan
    folder = (options.folder or ROOT / "outputs" / f"first_hour_{options.device}").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    hidden = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""} if on_cpu else {}
    environment = {**os.environ, **hidden, "PYTHONUNBUFFERED": "1"}
    interrupted = False
    try:
        results = take_all(folder, plan, options.hours, environment)
    except KeyboardInterrupt:
        interrupted = True
        results = {step.name: result for step in plan if (result := kept(folder, step)) is not None}
    page = write_report(folder, machine(on_cpu), plan, results)
    print(f"{page}\nThe page and {page.with_name('first_hour.json')} are what to send.", flush=True)
    if interrupted:
        raise SystemExit(130)
    failed = [name for name, result in results.items() if result["status"] == "failed"]
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}; the report says why")


if __name__ == "__main__":
    main()
