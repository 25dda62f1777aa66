"""Steps of the first hour on a device: commands, shares of the hour, and readers of their figures."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

Figure = dict[str, Any]  # what, value, unit, n, low, high
HERE = Path(__file__).resolve().parent


class DataFolders(NamedTuple):
    """Folders of data that do not come with the package; None means the hub."""

    wikitext2: str | None = None
    sudoku: str | None = None
    mazes: str | None = None


class Step(NamedTuple):
    """Process, and the figures that are read from its files.

    Attributes:
        name: Name of its files.
        title: Title of its section.
        minutes: Minutes of an hour.
        command: Function of its minutes and its folder that returns the arguments of the interpreter.
        read: Function of its folder that yields the figures of the files that exist.
        description: Explanation of the figures.
    """

    name: str
    title: str
    minutes: float
    command: Callable[[float, Path], list[str]]
    read: Callable[[Path], Iterator[Figure]]
    description: str


def make_figure(what: str, value: float, unit: str = "", n: int | None = None, spread: Any = (None, None)) -> Figure:
    """Return a figure with its number of measurements and its spread; values that are not finite become None."""
    numbers = dict(zip(("value", "low", "high"), (value, *spread), strict=True))
    finite_numbers = {
        name: value_or_none if value_or_none is not None and math.isfinite(value_or_none) else None
        for name, value_or_none in numbers.items()
    }
    return {"what": what, "unit": unit, "n": n, **finite_numbers}


def list_steps(on_cpu: bool, folders: DataFolders) -> list[Step]:
    """List all steps in their order; on a CPU at sizes for minutes."""
    return [*_list_checks(on_cpu), *_list_benchmarks(on_cpu), *_list_runs(on_cpu, folders)]


# ---- commands


def _build_script_command(name: str, *options: str) -> Callable[[float, Path], list[str]]:
    return lambda minutes, folder: [str(HERE / f"{name}.py"), *options, "--json", str(folder / "found.json")]


def _list_checks(on_cpu: bool) -> Iterator[Step]:
    tests = ["tests/parity", "-m", "not slow"] if on_cpu else ["-m", "gpu"]
    description = "Those that only a device can show (tests/gpu)."
    if on_cpu:
        description = (
            "The quick tests of parity with independent implementations stand in for those of a device (tests/gpu)."
        )
    options = ["-m", "pytest", *tests, "-q", "-p", "no:cacheprovider"]
    yield Step("tests", "Tests", 6, lambda minutes, folder: options, _read_tests, description)
    few = ["--seeds", "1"] if on_cpu else []
    description = (
        "Largest relative difference between device and CPU over seeds, in float32 without dropout, and the share of "
        "depths and exits that are the same."
    )
    if on_cpu:
        description += " Here the CPU is compared with itself."
    yield Step(
        "parity", "Parity of CPU and device", 4, _build_script_command("device_parity", *few), _read_parity, description
    )


def _list_benchmarks(on_cpu: bool) -> Iterator[Step]:
    def script(name: str, small: str, full: str = "") -> Callable[[float, Path], list[str]]:
        return _build_script_command(name, *(small if on_cpu else full).split())

    description = (
        "A training step of each family beside a like model of transformers: time, operations a second over those of a "
        "large product measured here, and over the data sheet's peak (MFU) where the device is known."
    )
    yield Step(
        "family_steps",
        "Training steps",
        6,
        script("family_steps", "--small --repeats 3"),
        _read_family_steps,
        description,
    )
    description = "ACT-ALBERT at full depth over transformers' ALBERT with the same heads; the target is at most 0.85."
    small = "--depth 2 --hidden 64 --batch 2 --length 32 --repeats 3"
    yield Step(
        "training_step",
        "ACT-ALBERT's step",
        1,
        script("training_step", small, "--batch 64"),
        _read_training_step,
        description,
    )
    description = "Speed-up of the ragged over the dense execution, with prescribed depths of published means."
    full = "--depth 6 12 24 --depths published --length 128 512 --batch 1 8 32 128 --max-seconds 20"
    yield Step(
        "ragged", "Ragged against dense", 11, script("ragged_execution", "--fast", full), _read_ragged, description
    )
    description = "Time of inference whose sequences leave at their exits, over their share of full depth's time."
    small = "--hidden 64 --depth 4 --lengths full --batch 4 --repeats 2"
    full = "--hidden 768 --depth 12 24"
    yield Step("ponder", "PonderALBERT's exits", 3, script("ponder_inference", small, full), _read_ponder, description)
    description = (
        "Adalayers: an epoch on kept states over one on computed ones; the base stopped after some blocks; memory."
    )
    yield Step("adalayers", "Adalayers", 3, script("adalayers", "--fast"), _read_adalayers, description)
    description = "PAR-XL: steps of the supernet, blocks, searched networks and the adaptive softmax."
    yield Step("par", "PAR-XL", 3, script("par", "--fast"), _read_par, description)


def _list_runs(on_cpu: bool, folders: DataFolders) -> Iterator[Step]:
    def run_command(configuration: str, *overrides: str, path: str | None = None) -> Callable[[float, Path], list[str]]:
        arguments = [*overrides, *(["debug=default"] if on_cpu else []), *([f"dataset.path={path}"] if path else [])]

        def command(minutes: float, folder: Path) -> list[str]:
            budget = f"trainer.time_budget_minutes={0.7 * minutes:.3f}"  # the rest is for data, evaluation and report
            run = ["adadepth/run.py", "--config-name", configuration, *arguments, budget]
            return [*run, f"output_dir={folder / 'outputs'}"]

        return command

    text = ["model=albert_act_tiny", "budget=none", "dataset=wikitext2", "tokenizer.vocab_size=8000", "trainer=adamw"]
    description = "A published run within a time budget, as its run.json tells it; its folder has its own report."
    masked = run_command("act_tiny", *([] if on_cpu and not folders.wikitext2 else text), path=folders.wikitext2)
    yield Step("act", "act_tiny on text", 6, masked, _read_run, description)
    search = "par_tiny" if on_cpu else "par_wikitext2"
    path = None if on_cpu else folders.wikitext2
    yield Step("search", f"{search}: a search", 7, run_command(search, path=path), _read_run, description)
    if not on_cpu:
        seed = run_command(search, "preset=seed", "search.stages=[search]", path=path)
        yield Step("search_seed", f"{search}: the original's choices", 4, seed, _read_run, description)
    puzzles = {"trm_tiny": None} if on_cpu else {"trm_sudoku_extreme": folders.sudoku, "trm_maze_hard": folders.mazes}
    for name, folder_of_data in puzzles.items():
        yield Step(name, name, 5, run_command(name, path=folder_of_data), _read_run, description)


# ---- figures


def read_benchmark(folder: Path) -> dict[str, Any]:
    """Load the JSON file of a benchmark; empty if it does not exist yet."""
    file = folder / "found.json"
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return content


def _read_tests(folder: Path) -> Iterator[Figure]:
    log = folder / "log.txt"
    last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-1:] if log.exists() else []
    for count, what in re.findall(r"(\d+) (passed|failed|skipped|errors?|deselected)", " ".join(last)):
        yield make_figure(f"tests {what}", int(count))


def _read_parity(folder: Path) -> Iterator[Figure]:
    names = {"loss": "loss", "gradient": "gradient", "step_logits": "predictions after every step"}
    shares = {"same_updates": "depths the same", "same_exits": "exits the same"}
    for row in read_benchmark(folder).get("rows", []):
        for key, name in {**names, **shares}.items():
            if key in row:
                yield make_figure(
                    f"{row['case']}: {name}", row[key], "share" if key in shares else "relative", row["n"]
                )


def _make_time_figure(what: str, times: dict[str, float]) -> Figure:
    milliseconds = {key: 1e3 * times[key] for key in ("median", "p10", "p90") if key in times}
    spread = (milliseconds.get("p10"), milliseconds.get("p90"))
    return make_figure(what, milliseconds["median"], "ms", times.get("n"), spread)  # type: ignore[arg-type]


def _read_family_steps(folder: Path) -> Iterator[Figure]:
    content = read_benchmark(folder)
    if content:
        yield make_figure("a large product", content["setting"]["product_flops"] / 1e12, "TFLOPS", 5)
    for row in content.get("rows", []):
        for key in ("ours", "peer"):
            if key not in row:
                continue
            name = row["case"] if key == "ours" else f"{row['case']}: {row['peer_name']} of transformers"
            figures = row[key]
            yield _make_time_figure(name, figures["seconds"])
            for share, rate_name in (("of_product", "of a product's rate"), ("mfu", "MFU, of the data sheet's peak")):
                if figures[share] is not None:
                    ends = [
                        figures[share] * figures["seconds"]["median"] / figures["seconds"][end]
                        for end in ("p90", "p10")
                    ]
                    yield make_figure(f"{name}: {rate_name}", figures[share], "share", figures["seconds"]["n"], ends)


def _read_training_step(folder: Path) -> Iterator[Figure]:
    if content := read_benchmark(folder):
        for name, times in content["seconds"].items():
            yield _make_time_figure(name, times)
        yield make_figure(
            "ACT-ALBERT over ALBERT", content["ratio"], "ratio of medians", content["seconds"]["ALBERT"]["n"]
        )


def _format_case(row: dict[str, Any]) -> str:
    return f"{row['mode']}, H {row['hidden']}, cap {row['depth']}, {row['depths']}, {row['batch']} x {row['length']}"


def _read_ragged(folder: Path) -> Iterator[Figure]:
    content = read_benchmark(folder)
    for row in content.get("rows", []):
        dense, ragged = row["seconds"]["dense"], row["seconds"]["ragged"]
        ends = (dense["p10"] / ragged["p90"], dense["p90"] / ragged["p10"])
        what = f"{_format_case(row)}: dense over ragged, at best {row['ideal']:.2f}"
        yield make_figure(what, row["ragged"]["speedup"], "ratio of medians", dense["n"], ends)
    for mode, least in find_crossovers(content.get("rows", [])).items():
        if least is not None:
            yield make_figure(f"{mode}: ragged is faster from", least / 1e6, "million MACs an iteration")


def find_crossovers(rows: list[dict[str, Any]]) -> dict[str, float | None]:
    """Return by mode the multiply-accumulates of an iteration from which ragged is faster in every row, or None.

    An iteration of B rows of T tokens has 12 H^2 B T without attention, as `execution=auto` computes.
    """
    thresholds: dict[str, float | None] = {}
    for mode in dict.fromkeys(row["mode"] for row in rows):
        work = [
            (12.0 * row["hidden"] ** 2 * row["batch"] * row["length"], row["ragged"]["speedup"])
            for row in rows
            if row["mode"] == mode
        ]
        slower = max((macs for macs, speedup in work if speedup <= 1), default=0.0)
        thresholds[mode] = min((macs for macs, _ in work if macs > slower), default=None)
    return thresholds


def _read_ponder(folder: Path) -> Iterator[Figure]:
    content = read_benchmark(folder)
    for row in content.get("rows", []):
        name = f"H {row['hidden']}, {row['depth']} steps, {row['lengths']}, exits {row['exits']}"
        n, (low, high) = content["setting"]["repeats"], row["compacted_range"]
        yield make_figure(f"{name}: compacted", 1e3 * row["compacted_seconds"], "ms", n, (1e3 * low, 1e3 * high))
        yield make_figure(f"{name}: over its share of full depth", row["ratio"], "ratio of medians", n)


def _read_adalayers(folder: Path) -> Iterator[Figure]:
    content = read_benchmark(folder)
    n = content.get("setting", {}).get("repeats")
    for row in content.get("cache", []):
        yield make_figure(f"{row['case']}: computed over kept states", row["ratio"], "ratio of medians", n)
    for row in content.get("truncate", []):
        yield make_figure(
            f"{row['blocks']} of {row['depth']} blocks, over their share", row["ratio"], "ratio of medians", n
        )
    if "memory" in content:
        yield make_figure("all states mixed over the base alone, memory", content["memory"]["ratio"], "ratio", 1)


def _read_par(folder: Path) -> Iterator[Figure]:
    content = read_benchmark(folder)
    if not content:
        return
    n, parts = content["setting"]["repeats"], content["steps"]
    for name in ("soft", "sampled", "derived", "plain"):
        yield _make_time_figure(f"step, {name}", parts[name])
    yield make_figure("step, sampled over soft", parts["sampled_ratio"], "ratio of medians", n)
    for kind, key in (("blocks", "ratio"), ("networks", "blocks_ratio")):
        for row in content[kind]:
            shape = row["shape"]
            at = f"T {shape['length']}, M {shape['memory']}, batch {shape['batch']}, d {shape['hidden']}"
            ratio_name = "attention over feed-forward" if kind == "blocks" else "searched over alternating blocks"
            yield make_figure(f"{ratio_name}, {at}", row[key], "ratio of medians", n)
    for row in content["softmax"]:
        yield make_figure(f"adaptive over full softmax, V {row['vocab']}", row["ratio"], "ratio of medians", n)


def _read_run(folder: Path) -> Iterator[Figure]:
    """Yield the final metrics of the newest run that a command made."""
    records = sorted(folder.glob("outputs/*/*/run.json"), key=lambda file: file.stat().st_mtime)
    if not records:
        return
    record = json.loads(records[-1].read_text(encoding="utf-8"))
    yield make_figure("minutes", record["wall_time_s"] / 60, "min", 1)
    for name, value in (record["final_metrics"] or {}).items():
        if isinstance(value, int | float) and value == value:
            yield make_figure(name, value, "", 1)
