"""First hour on a device: tests, parity, speed, crossovers and published runs, with one report to send.

    python benchmarks/first_hour.py [--device cuda|cpu] [--hours 1] [--folder FOLDER] [--only STEP ...]
        [--wikitext2 FOLDER] [--sudoku FOLDER] [--mazes FOLDER]

Each step is a process with its share of the time; unused time goes to later steps. A step that fails or is stopped does
not stop the others. Results are stored in the folder, so that the same command continues after an interruption, repeats
failed steps, and draws the report again. `--device cpu` runs everything at small sizes, the CPU standing in for the
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
from first_hour_steps import DataFolders, Step, list_steps

from adadepth.report.run_files import write_json
from adadepth.runs.directory import collect_environment

ROOT = Path(__file__).resolve().parents[1]
RESULT_FILE, LOG = "result.json", "log.txt"
MIN_SECONDS = 5.0  # least seconds for which a step is started
GRACE = 30.0  # seconds that a step has to end by itself after a signal
_LONGEST_ERROR = 300


def load_result(folder: Path, step: Step) -> dict[str, Any] | None:
    """Load the stored result of a step that an earlier call started; None if there is none."""
    file = folder / step.name / RESULT_FILE
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def run_step(folder: Path, step: Step, seconds: float, environment: Mapping[str, str]) -> dict[str, Any]:
    """Run a step for at most so many seconds, and store its result."""
    step_folder = folder / step.name
    step_folder.mkdir(parents=True, exist_ok=True)
    arguments = step.command(seconds / 60, step_folder)
    start = time.monotonic()
    with (step_folder / LOG).open("wb") as log:
        command = [sys.executable, *arguments]
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env=dict(environment)
        )
        try:
            status = "failed" if process.wait(seconds) else "done"
        except subprocess.TimeoutExpired:
            stop_process(process)
            status = "cut"
        except KeyboardInterrupt:
            stop_process(process)
            raise
    result = {
        "status": status,
        "seconds": time.monotonic() - start,
        "seconds_allowed": seconds,
        "command": shlex.join(["python", *arguments]).replace(f"{ROOT}/", ""),
        "error": None if status == "done" else read_last_line(step_folder / LOG),
        "figures": read_figures(step, step_folder),
    }
    write_json(step_folder / RESULT_FILE, result)
    return result


def read_figures(step: Step, step_folder: Path) -> list[dict[str, Any]]:
    """Read the figures that a step measured; empty if its files are damaged."""
    try:
        return list(step.read(step_folder))
    except (KeyError, ValueError, TypeError) as error:
        print(f"  what {step.name} wrote cannot be read: {type(error).__name__}: {error}", flush=True)
        return []


def stop_process(process: subprocess.Popen[bytes]) -> None:
    """Stop a process and those it started, first as Ctrl-C does, after a while by force."""
    for number in (signal.SIGINT, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(GRACE)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
        return


def read_last_line(log: Path) -> str:
    """Return the last non-empty line of a log."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1][:_LONGEST_ERROR] if lines else "it said nothing"


def run_steps(folder: Path, plan: list[Step], hours: float, environment: Mapping[str, str]) -> dict[str, Any]:
    """Run the open steps, each within its share of the time that is left, and return all results by name."""
    results = {step.name: result for step in plan if (result := load_result(folder, step)) is not None}
    open_steps = [step for step in plan if results.get(step.name, {}).get("status") != "done"]
    deadline = time.monotonic() + 3600 * hours
    for number, step in enumerate(open_steps):
        remaining = deadline - time.monotonic()
        seconds = remaining * step.minutes / sum(other.minutes for other in open_steps[number:])
        if seconds < MIN_SECONDS:
            print(f"no time is left for {step.name}", flush=True)
            continue
        print(f"{step.title}: at most {seconds / 60:.1f} minutes, {folder / step.name / LOG}", flush=True)
        result = results[step.name] = run_step(folder, step, seconds, environment)
        error = "" if result["error"] is None else f": {result['error']}"
        print(
            f"  {result['status']} after {result['seconds']:.0f} s, {len(result['figures'])} figures{error}", flush=True
        )
    return results


def describe_setup(on_cpu: bool) -> dict[str, Any]:
    """Describe the device, the machine and the versions."""
    device: dict[str, Any] = {"name": "CPU standing in for a device" if on_cpu else torch.cuda.get_device_name()}
    if not on_cpu:
        properties = torch.cuda.get_device_properties(0)
        device |= {
            "memory": f"{properties.total_memory / 1e9:.1f} GB", "capability": f"{properties.major}.{properties.minor}",
            "processors": properties.multi_processor_count, "CUDA": torch.version.cuda, "ROCm": torch.version.hip,
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
    parser.add_argument("--hours", type=float, default=1.0, help="hours of all steps together")
    parser.add_argument("--folder", type=Path, default=None, help="outputs/first_hour_DEVICE unless it is given")
    parser.add_argument("--only", nargs="+", metavar="STEP", help="these steps alone, by name")
    for name in DataFolders._fields:
        parser.add_argument(f"--{name}", metavar="FOLDER", help="a folder with the published files; otherwise the hub")
    options = parser.parse_args()
    if not 0 < options.hours < float("inf"):
        parser.error(f"--hours {options.hours:g}: must be a number above 0")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error(
            "--device cuda: torch sees no such device here; --device cpu (make gpu DEVICE=cpu) runs small sizes"
        )
    for name in DataFolders._fields:
        folder = getattr(options, name)
        if folder is not None and not Path(folder).expanduser().is_dir():
            parser.error(f"--{name} {folder}: no such folder")
    plan = list_steps(options.device == "cpu", DataFolders(*(getattr(options, name) for name in DataFolders._fields)))
    names = [step.name for step in plan]
    if unknown := [name for name in options.only or [] if name not in names]:
        parser.error(f"--only {unknown[0]}: no such step; there are {', '.join(names)}")
    options.plan = [step for step in plan if step.name in (options.only or names)]
    return options


def main() -> None:
    """Run the steps, and write the report in every case; exit with an error if a step failed."""
    options = parse_options()
    on_cpu, plan = options.device == "cpu", options.plan
    folder = (options.folder or ROOT / "outputs" / f"first_hour_{options.device}").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    hidden = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""} if on_cpu else {}
    environment = {**os.environ, **hidden, "PYTHONUNBUFFERED": "1"}
    interrupted = False
    try:
        results = run_steps(folder, plan, options.hours, environment)
    except KeyboardInterrupt:
        interrupted = True
        results = {step.name: result for step in plan if (result := load_result(folder, step)) is not None}
    page = write_report(folder, describe_setup(on_cpu), plan, results)
    print(f"{page}\nThe page and {page.with_name('first_hour.json')} are what to send.", flush=True)
    if interrupted:
        raise SystemExit(130)
    failed = [name for name, result in results.items() if result["status"] == "failed"]
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}; the report says why")


if __name__ == "__main__":
    main()
