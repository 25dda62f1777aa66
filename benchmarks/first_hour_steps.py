"""What the first hour on a device consists of: commands, how much of the hour each may take, and what each found."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

Found = dict[str, Any]  # a figure: what, value, unit, n, low, high
HERE = Path(__file__).resolve().parent


class Places(NamedTuple):
    """Where data lie that are not on this machine by themselves; None: the hub."""

    wikitext2: str | None = None
    sudoku: str | None = None
    mazes: str | None = None


class Step(NamedTuple):
    """A process, and what is read of it.

    Attributes:
        name: Of its files.
        title: Of its section.
        minutes: Of an hour.
        command: From the minutes that it has and its folder to what the interpreter is given.
        read: From its folder to what it found, whatever of it is there.
        about: How to read that.
    """

    name: str
    title: str
    minutes: float
    command: Callable[[float, Path], list[str]]
    read: Callable[[Path], Iterator[Found]]
    about: str


def figure(what: str, value: float, unit: str = "", n: int | None = None, spread: Any = (None, None)) -> Found:
    """Return a figure with its number of measurements and its spread; values that are not finite become None."""
    numbers = dict(zip(("value", "low", "high"), (value, *spread), strict=True))
    told = {name: each if each is not None and math.isfinite(each) else None for name, each in numbers.items()}
    return {"what": what, "unit": unit, "n": n, **told}


def steps(on_cpu: bool, places: Places) -> list[Step]:
    """All of them in their order; on a CPU at sizes for minutes."""
    return [*_checks(on_cpu), *_benchmarks(on_cpu), *_runs(on_cpu, places)]


# ---- commands


def _script(name: str, *options: str) -> Callable[[float, Path], list[str]]:
    return lambda minutes, folder: [str(HERE / f"{name}.py"), *options, "--json", str(folder / "found.json")]


def _checks(on_cpu: bool) -> Iterator[Step]:
    tests = ["tests/parity", "-m", "not slow"] if on_cpu else ["-m", "gpu"]
    about = "Those that only a device can show (tests/gpu)."
    if on_cpu:
        about = "The quick tests of parity with independent implementations stand in for those of a device (tests/gpu)."
    options = ["-m", "pytest", *tests, "-q", "-p", "no:cacheprovider"]
    yield Step("tests", "Tests", 6, lambda minutes, folder: options, _tests, about)
    few = ["--seeds", "1"] if on_cpu else []
    about = (
        "Largest relative difference between device and CPU over seeds, in float32 without dropout, and the share of "
        "depths and exits that are the same."
    )
    if on_cpu:
        about += " Here the CPU is compared with itself."
    yield Step("parity", "Parity of CPU and device", 4, _script("device_parity", *few), _parity, about)


def _benchmarks(on_cpu: bool) -> Iterator[Step]:
    def of(name: str, small: str, full: str = "") -> Callable[[float, Path], list[str]]:
        return _script(name, *(small if on_cpu else full).split())

    about = (
        "A training step of each family beside a like model of transformers: time, operations a second over those of a "
        "large product measured here, and over the data sheet's peak (MFU) where the device is known."
    )
    yield Step("family_steps", "Training steps", 6, of("family_steps", "--small --repeats 3"), _family_steps, about)
    about = "ACT-ALBERT at full depth over transformers' ALBERT with the same heads; the target is at most 0.85."
    small = "--depth 2 --hidden 64 --batch 2 --length 32 --repeats 3"
    yield Step("training_step", "ACT-ALBERT's step", 1, of("training_step", small, "--batch 64"), _training_step, about)
    about = "Speed-up of the ragged over the dense execution, with prescribed depths of published means."
    full = "--depth 6 12 24 --depths published --length 128 512 --batch 1 8 32 128 --max-seconds 20"
    yield Step("ragged", "Ragged against dense", 11, of("ragged_execution", "--fast", full), _ragged, about)
    about = "Time of inference whose sequences leave at their exits, over their share of full depth's time."
    small = "--hidden 64 --depth 4 --lengths full --batch 4 --repeats 2"
    full = "--hidden 768 --depth 12 24"
    yield Step("ponder", "PonderALBERT's exits", 3, of("ponder_inference", small, full), _ponder, about)
    about = "Adalayers: an epoch on kept states over one on computed ones; the base stopped after some blocks; memory."
    yield Step("adalayers", "Adalayers", 3, of("adalayers", "--fast"), _adalayers, about)
    about = "PAR-XL: steps of the supernet, blocks, searched networks and the adaptive softmax."
    yield Step("par", "PAR-XL", 3, of("par", "--fast"), _par, about)


def _runs(on_cpu: bool, places: Places) -> Iterator[Step]:
    def of(configuration: str, *overrides: str, path: str | None = None) -> Callable[[float, Path], list[str]]:
        given = [*overrides, *(["debug=default"] if on_cpu else []), *([f"dataset.path={path}"] if path else [])]

        def command(minutes: float, folder: Path) -> list[str]:
            budget = f"trainer.time_budget_minutes={0.7 * minutes:.3f}"  # the rest is for data, evaluation and report
            run = ["adadepth/run.py", "--config-name", configuration, *given, budget]
            return [*run, f"output_dir={folder / 'outputs'}"]

        return command

    text = ["model=albert_act_tiny", "budget=none", "dataset=wikitext2", "tokenizer.vocab_size=8000", "trainer=adamw"]
    about = "A published run within a time budget, as its run.json tells it; its folder has its own report."
    masked = of("act_tiny", *([] if on_cpu and not places.wikitext2 else text), path=places.wikitext2)
    yield Step("act", "act_tiny on text", 6, masked, _run, about)
    search = "par_tiny" if on_cpu else "par_wikitext2"
    path = None if on_cpu else places.wikitext2
    yield Step("search", f"{search}: a search", 7, of(search, path=path), _run, about)
    if not on_cpu:
        seed = of(search, "preset=seed", "search.stages=[search]", path=path)
        yield Step("search_seed", f"{search}: the original's choices", 4, seed, _run, about)
    puzzles = {"trm_tiny": None} if on_cpu else {"trm_sudoku_extreme": places.sudoku, "trm_maze_hard": places.mazes}
    for name, place in puzzles.items():
        yield Step(name, name, 5, of(name, path=place), _run, about)


# ---- what was found


def found_by(folder: Path) -> dict[str, Any]:
    """Load the JSON file of a benchmark; empty if it does not exist yet."""
    file = folder / "found.json"
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return found


def _tests(folder: Path) -> Iterator[Found]:
    log = folder / "log.txt"
    last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-1:] if log.exists() else []
    for count, what in re.findall(r"(\d+) (passed|failed|skipped|errors?|deselected)", " ".join(last)):
        yield figure(f"tests {what}", int(count))


def _parity(folder: Path) -> Iterator[Found]:
    names = {"loss": "loss", "gradient": "gradient", "step_logits": "predictions after every step"}
    shares = {"same_updates": "depths the same", "same_exits": "exits the same"}
    for row in found_by(folder).get("rows", []):
        for key, name in {**names, **shares}.items():
            if key in row:
                yield figure(f"{row['case']}: {name}", row[key], "share" if key in shares else "relative", row["n"])


def _timed(what: str, times: dict[str, float]) -> Found:
    milliseconds = {key: 1e3 * times[key] for key in ("median", "p10", "p90") if key in times}
    spread = (milliseconds.get("p10"), milliseconds.get("p90"))
    return figure(what, milliseconds["median"], "ms", times.get("n"), spread)  # type: ignore[arg-type]


def _family_steps(folder: Path) -> Iterator[Found]:
    found = found_by(folder)
    if found:
        yield figure("a large product", found["setting"]["product_flops"] / 1e12, "TFLOPS", 5)
    for row in found.get("rows", []):
        for key in ("ours", "peer"):
            if key not in row:
                continue
            name = row["case"] if key == "ours" else f"{row['case']}: {row['peer_name']} of transformers"
            each = row[key]
            yield _timed(name, each["seconds"])
            for share, told in (("of_product", "of a product's rate"), ("mfu", "MFU, of the data sheet's peak")):
                if each[share] is not None:
                    ends = [each[share] * each["seconds"]["median"] / each["seconds"][end] for end in ("p90", "p10")]
                    yield figure(f"{name}: {told}", each[share], "share", each["seconds"]["n"], ends)


def _training_step(folder: Path) -> Iterator[Found]:
    if found := found_by(folder):
        for name, times in found["seconds"].items():
            yield _timed(name, times)
        yield figure("ACT-ALBERT over ALBERT", found["ratio"], "ratio of medians", found["seconds"]["ALBERT"]["n"])


def _case(row: dict[str, Any]) -> str:
    return f"{row['mode']}, H {row['hidden']}, cap {row['depth']}, {row['depths']}, {row['batch']} x {row['length']}"


def _ragged(folder: Path) -> Iterator[Found]:
    found = found_by(folder)
    for row in found.get("rows", []):
        dense, ragged = row["seconds"]["dense"], row["seconds"]["ragged"]
        ends = (dense["p10"] / ragged["p90"], dense["p90"] / ragged["p10"])
        what = f"{_case(row)}: dense over ragged, at best {row['ideal']:.2f}"
        yield figure(what, row["ragged"]["speedup"], "ratio of medians", dense["n"], ends)
    for mode, least in crossovers(found.get("rows", [])).items():
        if least is not None:
            yield figure(f"{mode}: ragged is faster from", least / 1e6, "million MACs an iteration")


def crossovers(rows: list[dict[str, Any]]) -> dict[str, float | None]:
    """By mode the multiply-accumulates of an iteration from which on ragged is faster in every row; None: in none.

    An iteration of B rows of T tokens has 12 H^2 B T, attention left out, as `execution=auto` reckons.
    """
    found: dict[str, float | None] = {}
    for mode in dict.fromkeys(row["mode"] for row in rows):
        work = [
            (12.0 * row["hidden"] ** 2 * row["batch"] * row["length"], row["ragged"]["speedup"])
            for row in rows
            if row["mode"] == mode
        ]
        slower = max((macs for macs, speedup in work if speedup <= 1), default=0.0)
        found[mode] = min((macs for macs, _ in work if macs > slower), default=None)
    return found


def _ponder(folder: Path) -> Iterator[Found]:
    found = found_by(folder)
    for row in found.get("rows", []):
        name = f"H {row['hidden']}, {row['depth']} steps, {row['lengths']}, exits {row['exits']}"
        n, (low, high) = found["setting"]["repeats"], row["compacted_range"]
        yield figure(f"{name}: compacted", 1e3 * row["compacted_seconds"], "ms", n, (1e3 * low, 1e3 * high))
        yield figure(f"{name}: over its share of full depth", row["ratio"], "ratio of medians", n)


def _adalayers(folder: Path) -> Iterator[Found]:
    found = found_by(folder)
    n = found.get("setting", {}).get("repeats")
    for row in found.get("cache", []):
        yield figure(f"{row['case']}: computed over kept states", row["ratio"], "ratio of medians", n)
    for row in found.get("truncate", []):
        yield figure(f"{row['blocks']} of {row['depth']} blocks, over their share", row["ratio"], "ratio of medians", n)
    if "memory" in found:
        yield figure("all states mixed over the base alone, memory", found["memory"]["ratio"], "ratio", 1)


def _par(folder: Path) -> Iterator[Found]:
    found = found_by(folder)
    if not found:
        return
    n, parts = found["setting"]["repeats"], found["steps"]
    for name in ("soft", "sampled", "derived", "plain"):
        yield _timed(f"step, {name}", parts[name])
    yield figure("step, sampled over soft", parts["sampled_ratio"], "ratio of medians", n)
    for kind, key in (("blocks", "ratio"), ("networks", "blocks_ratio")):
        for row in found[kind]:
            shape = row["shape"]
            at = f"T {shape['length']}, M {shape['memory']}, batch {shape['batch']}, d {shape['hidden']}"
            told = "attention over feed-forward" if kind == "blocks" else "searched over alternating blocks"
            yield figure(f"{told}, {at}", row[key], "ratio of medians", n)
    for row in found["softmax"]:
        yield figure(f"adaptive over full softmax, V {row['vocab']}", row["ratio"], "ratio of medians", n)


def _run(folder: Path) -> Iterator[Found]:
    """Yield the final metrics of the newest run that a command made."""
    records = sorted(folder.glob("outputs/*/*/run.json"), key=lambda file: file.stat().st_mtime)
    if not records:
        return
    record = json.loads(records[-1].read_text(encoding="utf-8"))
    yield figure("minutes", record["wall_time_s"] / 60, "min", 1)
    for name, value in (record["final_metrics"] or {}).items():
        if isinstance(value, int | float) and value == value:
            yield figure(name, value, "", 1)
