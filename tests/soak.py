"""Kill runs of every family at random moments, resume them, and compare them bit for bit with runs left alone.

    PYTHONPATH=. python tests/soak.py [--families act ponder adalayers par trm] [--kills 50] [--minutes 10] [--seed 0]

A chain is one run that is killed one to four times, by SIGKILL, SIGTERM or SIGINT, after a random share of the time
that the run takes when it is left alone, and resumed each time; then it is left to end. Compared are the weights of
every folder that holds some, the checkpoints (weights, optimiser, schedule, random numbers, the state of the run) and
the lines of metrics.jsonl without what a clock says. A run killed before its first checkpoint begins anew.

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
from tests.runs_support import become

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
# Of metrics and records, what depends on a clock; of a checkpoint's files, those that hold one or a path.
_CLOCK = ("time", "runtime", "per_second", "speedup", "_ms", "ms_per", "seconds", "latency", "peak_memory")
_STATE = ("trainer_state.json", "progress_0.json")
_LEFT_OUT = ("training_args.bin", "manifest.json", "metrics.json", *_STATE)
_FOLDERS = ("model", "supernet", "derived/model", "retrained/derived", "retrained/alternating")


def main() -> int:
    options = arguments()
    for module in pkgutil.iter_modules(tasks.__path__, "adadepth.tasks."):  # what every run would import anew
        importlib.import_module(module.name)
    torch.set_num_threads(1)  # threads do not survive a fork
    chosen = random.Random(options.seed)
    folder = Path(options.keep or tempfile.mkdtemp(prefix="soak-"))
    until = time.monotonic() + 60 * options.minutes
    tallies = {family: Counter[str]() for family in options.families}
    wholes = {family: run_whole(family, folder / family / "whole") for family in options.families}
    number = 0
    while time.monotonic() < until:
        left = [family for family in options.families if tallies[family]["kills"] < options.kills]
        if not left:
            break
        family, number = left[number % len(left)], number + 1
        whole, seconds = wholes[family]
        chain(family, folder / family / f"chain-{number}", whole, seconds, chosen, tallies[family])
    print_table(tallies)
    if not options.keep:
        shutil.rmtree(folder)
    return int(any(tally["different"] or tally["errors"] for tally in tallies.values()))


def arguments() -> argparse.Namespace:
    options = argparse.ArgumentParser(description="Kill, resume, compare.")
    options.add_argument("--families", nargs="+", choices=list(_FAMILIES), default=list(_FAMILIES))
    options.add_argument("--minutes", type=float, default=10.0, help="no chain begins later")
    options.add_argument("--kills", type=int, default=50, help="enough of one family")
    options.add_argument("--seed", type=int, default=0, help="of the moments, the signals and the lengths of chains")
    options.add_argument("--keep", help="a folder for the runs, which is kept")
    return options.parse_args()


# ---- runs


def overrides(family: str, folder: Path, *further: str) -> list[str]:
    root, *given = _FAMILIES[family]
    return ["--config-name", root, *_COMMON, *given, f"output_dir={folder}", *further]


def run_whole(family: str, folder: Path) -> tuple[Path, float]:
    """A run that is left alone, twice: the first one prepares the data, the second one tells how long it takes."""
    for place in (folder.with_name("first"), folder):
        begun = time.monotonic()
        status, said = run(overrides(family, place))
        if status:
            raise SystemExit(f"{family}: {said[-3000:]}")
    print(f"{family}: {time.monotonic() - begun:.1f} s when it is left alone", flush=True)
    return only_run(folder), time.monotonic() - begun


def run(given: list[str], number: signal.Signals | None = None, moment: float = math.inf) -> tuple[int, str]:
    """Run a command line in a process of its own and send it a signal at a moment; its status and its errors."""
    with tempfile.TemporaryFile("w+") as errors:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(errors.fileno(), 2)
            become(given)
        begun, status = time.monotonic(), None
        while status is None:
            done, code = os.waitpid(child, os.WNOHANG)
            if done:
                status = os.waitstatus_to_exitcode(code)
            elif number is not None and time.monotonic() - begun > moment:
                os.kill(child, number)
                number = None
            else:
                time.sleep(0.01)
        errors.seek(0)
        return status, errors.read()


def only_run(folder: Path) -> Path:
    (run,) = folder.glob("*/*")
    return run


def chain(family: str, folder: Path, whole: Path, seconds: float, chosen: random.Random, tally: Counter[str]) -> None:
    """One run, killed one to four times, then left to end and compared; what came of it is counted."""
    further: tuple[str, ...] = ()
    for _ in range(chosen.randint(1, 4)):
        moment = chosen.uniform(0.2, 1) * seconds
        status, said = run(overrides(family, folder, *further), chosen.choice(_SIGNALS), moment)
        tally["kills"] += status != 0
        if status == 0 or is_finished(folder):
            status = 0
            break
        further = after(folder, status, said, tally)
    else:
        status, said = run(overrides(family, folder, *further))
    tally["chains"] += 1
    differences = list(compare(whole, only_run(folder))) if status == 0 else []
    if status:
        tally["errors"] += 1
        print(f"{family} {folder.name}: exit {status}\n{said[-2000:]}", flush=True)
    elif differences:
        tally["different"] += 1
        print(f"{family} {folder.name}: " + "; ".join(differences[:6]), flush=True)
    else:
        tally["equal"] += 1
        shutil.rmtree(folder)


def is_finished(folder: Path) -> bool:
    """Whether the run is recorded as finished: a signal may come between that and the end of the process."""
    records = [json.loads(path.read_text()) for path in folder.glob("*/*/run.json")]
    return any(record["status"] == "finished" for record in records)


def after(folder: Path, status: int, said: str, tally: Counter[str]) -> tuple[str, ...]:
    """How to go on after a kill: with what there is, or anew where there is no whole checkpoint yet."""
    if status not in (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, 130, 143):
        tally["errors"] += 1
        print(f"{folder.name}: exit {status} after a signal\n{said[-2000:]}", flush=True)
    elif "Traceback" in said:
        tally["tracebacks"] += 1
        print(said[-2000:], flush=True)
    if any(list_complete_checkpoints(place) for place in folder.glob("*/*/checkpoints")):
        return (f"resume={only_run(folder)}",)
    shutil.rmtree(folder, ignore_errors=True)
    tally["begun anew"] += 1
    return ()


# ---- comparing


def compare(whole: Path, found: Path) -> Iterator[str]:
    """What differs between a run that was left alone and one that was not."""
    if json.loads((found / "run.json").read_text())["status"] != "finished":
        yield "run.json: not finished"
    for folder in _FOLDERS:
        weights = folder if (whole / folder / "model.safetensors").exists() else f"{folder}/model"
        if (whole / weights).is_dir():
            yield from same_bytes(whole, found, f"{weights}/model.safetensors")
    for log in sorted(path.relative_to(whole) for path in whole.rglob("metrics.jsonl")):
        yield from same_lines(whole / log, found / log, str(log))
    yield from same_metrics(whole, found)
    yield from same_checkpoints(whole, found)
    leftovers = [path.name for path in found.rglob(".*") if path.is_file() and path.name != ".lock"]
    if leftovers:
        yield f"left behind: {leftovers[0]}"


def same_bytes(whole: Path, found: Path, name: str) -> Iterator[str]:
    if not (found / name).is_file():
        yield f"{name} is missing"
    elif (whole / name).read_bytes() != (found / name).read_bytes():
        yield f"{name} differs"


def same_lines(whole: Path, found: Path, name: str) -> Iterator[str]:
    if not found.is_file():
        yield f"{name} is missing"
        return
    lines = [[timeless(json.loads(line)) for line in path.read_text().splitlines()] for path in (whole, found)]
    if len(lines[0]) != len(lines[1]):
        yield f"{name}: {len(lines[1])} lines, not {len(lines[0])}"
    for number, (left, right) in enumerate(zip(*lines, strict=False), start=1):
        if left != right:
            names = [key for key in {**left, **right} if left.get(key) != right.get(key)]
            yield f"{name}, line {number}: {names[:3]}"
            return


def same_metrics(whole: Path, found: Path) -> Iterator[str]:
    left, right = (timeless(json.loads((run / "run.json").read_text())["final_metrics"]) for run in (whole, found))
    if left != right:
        yield f"final metrics: {[key for key in {**left, **right} if left.get(key) != right.get(key)][:3]}"


def same_checkpoints(whole: Path, found: Path) -> Iterator[str]:
    """The checkpoints that both runs kept, of which the newest must be one: a signal may have left another one."""
    names = [sorted(path.relative_to(run) for path in run.rglob("checkpoint-*")) for run in (whole, found)]
    if names[0][-1:] != names[1][-1:]:
        yield f"the newest checkpoint is {names[1][-1:]}, not {names[0][-1:]}"
    for name in set(names[0]) & set(names[1]):
        for path in sorted((whole / name).iterdir()):
            other = found / name / path.name
            if path.name in _STATE:
                if state(path) != state(other):
                    yield f"{name / path.name} differs"
            elif path.name.endswith((".pt", ".pth")):
                if not equal(*(torch.load(one, weights_only=False) for one in (path, other))):
                    yield f"{name / path.name} differs"
            elif path.name not in _LEFT_OUT:
                yield from same_bytes(whole, found, str(name / path.name))


def state(path: Path) -> Any:
    """A checkpoint's JSON without clocks; the path of the best checkpoint is told by its name."""
    if not path.is_file():
        return None
    found = timeless(json.loads(path.read_text()))
    found.pop("stateful_callbacks", None)  # whether it was told to stop, which an interruption did
    if found.get("best_model_checkpoint"):
        found["best_model_checkpoint"] = Path(found["best_model_checkpoint"]).name
    return found


def timeless(value: Any) -> Any:
    """A value without the entries that a clock decides."""
    if isinstance(value, dict):
        return {key: timeless(item) for key, item in value.items() if not any(word in key for word in _CLOCK)}
    return [timeless(item) for item in value] if isinstance(value, list) else value


def equal(left: Any, right: Any) -> bool:
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(equal, left, right))
    if hasattr(left, "shape"):
        return left.shape == right.shape and bool((left == right).all())
    return bool(left == right)


def print_table(tallies: dict[str, Counter[str]]) -> None:
    columns = ("kills", "chains", "equal", "different", "errors", "begun anew", "tracebacks")
    print("| family | " + " | ".join(columns) + " |\n" + "|---" * (len(columns) + 1) + "|")
    for family, tally in tallies.items():
        print(f"| {family} | " + " | ".join(str(tally[name]) for name in columns) + " |")


if __name__ == "__main__":
    raise SystemExit(main())
