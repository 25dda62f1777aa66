"""Kill runs of every family at random moments, resume them, and compare them bit for bit with uninterrupted runs.

    PYTHONPATH=. python tests/soak.py [--families act ponder adalayers par trm] [--kills 50] [--minutes 10] [--seed 0]

A chain is one run that is killed one to four times, by SIGKILL, SIGTERM or SIGINT, after a random share of the time of
an uninterrupted run, and resumed each time; then it runs to its end. Compared are the weights of every folder that has
some, the checkpoints (weights, optimiser, schedule, random numbers, the state of the run) and the lines of
metrics.jsonl without times. A run killed before its first checkpoint starts again.

Runs are forked from a process that has imported the libraries, and write a point where a figure would be: most of a run
of seconds would be spent on that. A table is printed at the end; the exit status is 1 if anything differed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import pkgutil
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from adadepth import tasks
from adadepth.runs.checkpoints import list_complete_checkpoints
from tests.runs_support import run_and_exit

_COMMON = ("debug=default", "trainer.disable_tqdm=true", "trainer.logging_steps=3")
_RHYTHM = ("trainer.eval_steps=4", "trainer.save_steps=4")  # which that of the log does not divide
_FAMILIES = {
    "act": ("act_tiny", "trainer.max_steps=16", "trainer.save_total_limit=2", "dataset.max_documents=12", *_RHYTHM),
    "ponder": ("ponder_tiny", "trainer.max_steps=16", "trainer.save_total_limit=1", *_RHYTHM),
    "adalayers": ("adalayers_tiny", "trainer.max_steps=16", "trainer.save_total_limit=1", *_RHYTHM),
    "trm": (
        "trm_tiny", "trainer.max_steps=16", "trainer.save_total_limit=1", "dataset.train_examples=200",
        "dataset.max_evaluation_examples=24", "trainer.ema_decay=0.5", *_RHYTHM,
    ),
    "par": ("par_tiny", "trainer.max_steps=8", "search.baselines=[alternating]", *_RHYTHM),
}  # fmt: skip
_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
# Entries of metrics and records that depend on a clock; files of a checkpoint that hold a time or a path.
_CLOCK = ("time", "runtime", "per_second", "speedup", "_ms", "ms_per", "seconds", "latency", "peak_memory")
_STATE = ("trainer_state.json", "progress_0.json")
_LEFT_OUT = ("training_args.bin", "manifest.json", "metrics.json", *_STATE)
_FOLDERS = ("model", "supernet", "derived/model", "retrained/derived", "retrained/alternating")


def main() -> int:
    options = parse_arguments()
    for module in pkgutil.iter_modules(tasks.__path__, "adadepth.tasks."):  # what every run would import anew
        importlib.import_module(module.name)
    torch.set_num_threads(1)  # threads do not survive a fork
    generator = random.Random(options.seed)
    folder = Path(options.keep or tempfile.mkdtemp(prefix="soak-"))
    until = time.monotonic() + 60 * options.minutes
    tallies = {family: Counter[str]() for family in options.families}
    wholes = {family: run_whole(family, folder / family / "whole") for family in options.families}
    number = 0
    while time.monotonic() < until:
        remaining = [family for family in options.families if tallies[family]["kills"] < options.kills]
        if not remaining:
            break
        family, number = remaining[number % len(remaining)], number + 1
        whole, seconds = wholes[family]
        run_chain(family, folder / family / f"chain-{number}", whole, seconds, generator, tallies[family])
    print_table(tallies)
    if not options.keep:
        shutil.rmtree(folder)
    return int(any(tally["different"] or tally["errors"] for tally in tallies.values()))


def parse_arguments() -> argparse.Namespace:
    options = argparse.ArgumentParser(description="Kill, resume, compare.")
    options.add_argument("--families", nargs="+", choices=list(_FAMILIES), default=list(_FAMILIES))
    options.add_argument("--minutes", type=float, default=10.0, help="no chain begins later")
    options.add_argument("--kills", type=int, default=50, help="enough of one family")
    options.add_argument(
        "--seed", type=int, default=0, help="seed of the moments, the signals and the lengths of chains"
    )
    options.add_argument("--keep", help="a folder for the runs, which is kept")
    return options.parse_args()


# ---- runs


def build_command(family: str, folder: Path, *more: str) -> list[str]:
    root, *overrides_of_family = _FAMILIES[family]
    return ["--config-name", root, *_COMMON, *overrides_of_family, f"output_dir={folder}", *more]


def run_whole(family: str, folder: Path) -> tuple[Path, float]:
    """Run to the end twice, and return the second run and its seconds: the first one prepares the data."""
    for output in (folder.with_name("first"), folder):
        start = time.monotonic()
        status, errors = run(build_command(family, output))
        if status:
            raise SystemExit(f"{family}: {errors[-3000:]}")
    print(f"{family}: {time.monotonic() - start:.1f} s when it is left alone", flush=True)
    return find_run(folder), time.monotonic() - start


def run(arguments: list[str], number: signal.Signals | None = None, moment: float = math.inf) -> tuple[int, str]:
    """Run a command line in its own process, send it a signal at a moment, and return its status and its errors."""
    with tempfile.TemporaryFile("w+") as errors:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(errors.fileno(), 2)
            run_and_exit(arguments)
        start, status = time.monotonic(), None
        while status is None:
            done, code = os.waitpid(child, os.WNOHANG)
            if done:
                status = os.waitstatus_to_exitcode(code)
            elif number is not None and time.monotonic() - start > moment:
                os.kill(child, number)
                number = None
            else:
                time.sleep(0.01)
        errors.seek(0)
        return status, errors.read()


def find_run(folder: Path) -> Path:
    (run,) = folder.glob("*/*")
    return run


def run_chain(
    family: str, folder: Path, whole: Path, seconds: float, generator: random.Random, tally: Counter[str]
) -> None:
    """Kill one run one to four times, let it end, compare it with the whole one, and count the outcome."""
    more: tuple[str, ...] = ()
    for _ in range(generator.randint(1, 4)):
        moment = generator.uniform(0.2, 1) * seconds
        status, errors = run(build_command(family, folder, *more), generator.choice(_SIGNALS), moment)
        tally["kills"] += status != 0
        if status == 0 or is_finished(folder):
            status = 0
            break
        more = choose_resume(folder, status, errors, tally)
    else:
        status, errors = run(build_command(family, folder, *more))
    tally["chains"] += 1
    differences = list(compare(whole, find_run(folder))) if status == 0 else []
    if status:
        tally["errors"] += 1
        print(f"{family} {folder.name}: exit {status}\n{errors[-2000:]}", flush=True)
    elif differences:
        tally["different"] += 1
        print(f"{family} {folder.name}: " + "; ".join(differences[:6]), flush=True)
    else:
        tally["equal"] += 1
        shutil.rmtree(folder)


def is_finished(folder: Path) -> bool:
    """Return whether the run is recorded as finished: a signal may come between that and the end of the process."""
    records = [json.loads(path.read_text()) for path in folder.glob("*/*/run.json")]
    return any(record["status"] == "finished" for record in records)


def choose_resume(folder: Path, status: int, errors: str, tally: Counter[str]) -> tuple[str, ...]:
    """Return the override that resumes a killed run, or none where it has no complete checkpoint and starts again."""
    if status not in (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, 130, 143):
        tally["errors"] += 1
        print(f"{folder.name}: exit {status} after a signal\n{errors[-2000:]}", flush=True)
    elif "Traceback" in errors:
        tally["tracebacks"] += 1
        print(errors[-2000:], flush=True)
    if any(list_complete_checkpoints(checkpoints) for checkpoints in folder.glob("*/*/checkpoints")):
        return (f"resume={find_run(folder)}",)
    shutil.rmtree(folder, ignore_errors=True)
    tally["started again"] += 1
    return ()


# ---- comparing


def compare(whole: Path, run: Path) -> Iterator[str]:
    """Yield the differences between an uninterrupted run and an interrupted one."""
    if json.loads((run / "run.json").read_text())["status"] != "finished":
        yield "run.json: not finished"
    for folder in _FOLDERS:
        weights = folder if (whole / folder / "model.safetensors").exists() else f"{folder}/model"
        if (whole / weights).is_dir():
            yield from compare_bytes(whole, run, f"{weights}/model.safetensors")
    for log in sorted(path.relative_to(whole) for path in whole.rglob("metrics.jsonl")):
        yield from compare_lines(whole / log, run / log, str(log))
    yield from compare_metrics(whole, run)
    yield from compare_checkpoints(whole, run)
    leftovers = [path.name for path in run.rglob(".*") if path.is_file() and path.name != ".lock"]
    if leftovers:
        yield f"left behind: {leftovers[0]}"


def compare_bytes(whole: Path, run: Path, name: str) -> Iterator[str]:
    if not (run / name).is_file():
        yield f"{name} is missing"
    elif (whole / name).read_bytes() != (run / name).read_bytes():
        yield f"{name} differs"


def compare_lines(whole: Path, run: Path, name: str) -> Iterator[str]:
    if not run.is_file():
        yield f"{name} is missing"
        return
    lines = [[drop_times(json.loads(line)) for line in path.read_text().splitlines()] for path in (whole, run)]
    if len(lines[0]) != len(lines[1]):
        yield f"{name}: {len(lines[1])} lines, not {len(lines[0])}"
    for number, (expected, actual) in enumerate(zip(*lines, strict=False), start=1):
        if expected != actual:
            names = [key for key in {**expected, **actual} if expected.get(key) != actual.get(key)]
            yield f"{name}, line {number}: {names[:3]}"
            return


def compare_metrics(whole: Path, run: Path) -> Iterator[str]:
    expected, actual = (
        drop_times(json.loads((each_run / "run.json").read_text())["final_metrics"]) for each_run in (whole, run)
    )
    if expected != actual:
        yield f"final metrics: {[key for key in {**expected, **actual} if expected.get(key) != actual.get(key)][:3]}"


def compare_checkpoints(whole: Path, run: Path) -> Iterator[str]:
    """Yield the differences of the checkpoints that both runs have; a signal may leave more, and the newest agree."""
    names = [sorted(path.relative_to(each_run) for path in each_run.rglob("checkpoint-*")) for each_run in (whole, run)]
    if names[0][-1:] != names[1][-1:]:
        yield f"the newest checkpoint is {names[1][-1:]}, not {names[0][-1:]}"
    for name in set(names[0]) & set(names[1]):
        for path in sorted((whole / name).iterdir()):
            other = run / name / path.name
            if path.name in _STATE:
                if read_state(path) != read_state(other):
                    yield f"{name / path.name} differs"
            elif path.name.endswith((".pt", ".pth")):
                if not are_equal(*(torch.load(one, weights_only=False) for one in (path, other))):
                    yield f"{name / path.name} differs"
            elif path.name not in _LEFT_OUT:
                yield from compare_bytes(whole, run, str(name / path.name))


def read_state(path: Path) -> Any:
    """Return a checkpoint's JSON without times, and with the best checkpoint by name."""
    if not path.is_file():
        return None
    content = drop_times(json.loads(path.read_text()))
    content.pop("stateful_callbacks", None)  # an interruption sets the flag that stops a training
    if content.get("best_model_checkpoint"):
        content["best_model_checkpoint"] = Path(content["best_model_checkpoint"]).name
    return content


def drop_times(value: Any) -> Any:
    """Return a value without the entries that depend on a clock."""
    if isinstance(value, dict):
        return {key: drop_times(item) for key, item in value.items() if not any(word in key for word in _CLOCK)}
    return [drop_times(item) for item in value] if isinstance(value, list) else value


def are_equal(first: Any, second: Any) -> bool:
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(are_equal(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(are_equal, first, second))
    if hasattr(first, "shape"):
        return first.shape == second.shape and bool((first == second).all())
    return bool(first == second)


def print_table(tallies: dict[str, Counter[str]]) -> None:
    columns = ("kills", "chains", "equal", "different", "errors", "started again", "tracebacks")
    print("| family | " + " | ".join(columns) + " |\n" + "|---" * (len(columns) + 1) + "|")
    for family, tally in tallies.items():
        print(f"| {family} | " + " | ".join(str(tally[name]) for name in columns) + " |")


if __name__ == "__main__":
    raise SystemExit(main())
