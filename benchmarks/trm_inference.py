"""Tiny recursive models: does the time of a batch follow the steps that its puzzles take?

    python benchmarks/trm_inference.py RUN/model [--rule correct:0.9] [--batch 1 8 32] [--puzzles 512] [--repeats 7]
                                       [--json FILE]

Of a trained model on 6 x 6 Sudoku that it has not seen, in turns: all N steps, puzzles that leave the batch by the rule
(`exits`), and puzzles that wait for a place in the batch and take it as another leaves (`refilled`). The share of the
ideal is (full / with exits) / (N / mean step), 1 if time followed the mean step exactly (target at batch 32: at least
0.85). The limit is that share at the sizes: of a step's own time for as many rows as ran together. Answers of all ways
are compared.
"""

import argparse
import json
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from adadepth import TrmForPuzzles
from adadepth.config.data import SudokuConfig
from adadepth.data.puzzles.generated import load_sudoku
from adadepth.runtime.distributed import set_malloc_thresholds
from adadepth.runtime.hardware import describe_machine
from adadepth.runtime.timing import time_interleaved

FULL = 64  # puzzles that run all N steps, which take the same time whichever they are
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
WARMUP = 1


def main() -> None:
    options = parse_arguments()
    set_malloc_thresholds()
    model = TrmForPuzzles.from_pretrained(options.model).to(DEVICE).eval()
    dataset = SudokuConfig(name="sudoku", train_examples=500, max_evaluation_examples=options.puzzles)
    data = load_sudoku(dataset, seed=0)
    held_out = data.evaluation["validation"]
    cells = data.collate([held_out[number] for number in range(options.puzzles)])["input_ids"].to(DEVICE)
    setting = f"{describe_machine(DEVICE)}, rule {options.rule}"
    print(f"{setting}, {options.puzzles} puzzles, N {model.max_updates}; milliseconds a puzzle, share of the ideal")
    print(f"{'batch':>5}  {'mean step':>9}  {'full':>6}  {'exits':>5} {'share':>5} {'limit':>5}", end="  ")
    print(f"{'refilled':>8} {'share':>5} {'limit':>5}")
    rows = [measure(model, cells, batch, options.rule, options.repeats) for batch in options.batch]
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


@torch.no_grad()
def measure(model: Any, cells: torch.Tensor, batch: int, rule: str, repeats: int) -> dict[str, float]:
    """Measure one row of the table: seconds per puzzle, and shares of the ideal and of the limits with exits."""
    parts, few = cells.split(batch), cells[: max(FULL, batch)].split(batch)
    of_ways = {
        "exits": [model(part, exit_rule=rule) for part in parts],
        "refilled": [model(cells, exit_rule=rule, places=batch)],
    }
    mean = compare(of_ways.values(), [model(part, exit_rule=rule, run_all_steps=True) for part in parts])
    ran = {
        way: [int(rows) for output in outputs for rows in output.trace.executed.rows]
        for way, outputs in of_ways.items()
    }
    calls: dict[Any, Any] = {
        "full": partial(run, model, few, f"fixed:{model.max_updates}"),
        "exits": partial(run, model, parts, rule),
        "refilled": partial(model, cells, exit_rule=rule, places=batch),
    }
    calls |= {rows: partial(run_step, model, cells[:rows]) for rows in sorted({batch, *ran["exits"], *ran["refilled"]})}
    seconds = {name: times["median"] for name, times in time_interleaved(calls, repeats, WARMUP, DEVICE).items()}

    row = {"batch": batch, "mean_step": mean, "full": seconds["full"] / sum(map(len, few))}
    for way, sizes in ran.items():
        row[way] = seconds[way] / len(cells)
        row[f"{way}_share"] = row["full"] * mean / model.max_updates / row[way]
        row[f"{way}_limit"] = len(cells) * mean * seconds[batch] / batch / sum(seconds[rows] for rows in sizes)
    print_row(row)
    return row


def compare(ways: Iterable[list[Any]], full_outputs: list[Any]) -> float:
    """Check that all methods have the same exit steps and answers; return the mean exit step."""
    steps, answers = join_outputs(full_outputs, "exit_steps"), join_outputs(full_outputs, "logits").argmax(dim=-1)
    for outputs in ways:
        assert torch.equal(join_outputs(outputs, "exit_steps"), steps), "the same steps"
        assert torch.equal(join_outputs(outputs, "logits").argmax(dim=-1), answers), "the same answers"
    return float(steps.double().mean())


def print_row(row: dict[str, float]) -> None:
    print(f"{row['batch']:>5}  {row['mean_step']:>9.2f}  {1e3 * row['full']:>6.2f}", end="")
    for way in ("exits", "refilled"):
        print(f"  {1e3 * row[way]:>{len(way)}.3f} {row[f'{way}_share']:>5.2f} {row[f'{way}_limit']:>5.2f}", end="")
    print(flush=True)


def join_outputs(outputs: list[Any], name: str) -> torch.Tensor:
    return torch.cat([getattr(output, name) for output in outputs])


def run(model: Any, parts: tuple[torch.Tensor, ...], rule: str) -> None:
    for part in parts:
        model(part, exit_rule=rule)


def run_step(model: Any, cells: torch.Tensor) -> None:
    """Run one supervision step of a batch of puzzles."""
    embedded = model.embed(cells, cells.new_zeros(len(cells)))
    model.read(model.step(embedded, *model.start(len(cells)))[0])


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder with a trained model")
    parser.add_argument("--rule", default="correct:0.9", help="exit rule by which puzzles leave the batch")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--puzzles", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path, help="also write the rows here")
    return parser.parse_args()


if __name__ == "__main__":
    main()
