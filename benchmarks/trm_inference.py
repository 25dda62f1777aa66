"""Tiny recursive models: does the time of a batch follow the steps that its puzzles take?

    python benchmarks/trm_inference.py RUN/model [--rule correct:0.9] [--batch 1 8 32] [--repeats 7] [--json FILE]

Of a trained model on 6 x 6 Sudoku that it has not seen, in turns: all N steps, and puzzles that leave the batch by the
rule. The share of the ideal is (full / with exits) / (N / mean step), 1 if time followed the mean step exactly (target
at batch 32: at least 0.85). The limit is that share at the sizes: of a step's own time for as many rows as still run.
Answers of both ways are compared.
"""

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

import torch

from adadepth import TrmForPuzzles
from adadepth.allocation import keep_freed_memory
from adadepth.config.puzzles import SudokuConfig
from adadepth.data.puzzles.sudoku_task import load_sudoku
from adadepth.timing import time_interleaved

PUZZLES = 256
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
WARMUP = 1


def main() -> None:
    options = arguments()
    keep_freed_memory()
    model = TrmForPuzzles.from_pretrained(options.model).to(DEVICE).eval()
    dataset = SudokuConfig(name="sudoku", train_examples=500, max_evaluation_examples=PUZZLES)
    data = load_sudoku(dataset, seed=0)
    held_out = data.evaluation["validation"]
    cells = data.collate([held_out[number] for number in range(PUZZLES)])["input_ids"].to(DEVICE)
    print(f"{DEVICE}, {torch.get_num_threads()} threads, rule {options.rule}, {PUZZLES} puzzles, N {model.max_updates}")
    print("times a puzzle")
    print(f"{'batch':>5}  {'full, ms':>8}  {'exits, ms':>9}  {'mean step':>9}  {'share of ideal':>14}  {'limit':>5}")
    rows = [measure(model, cells, batch, options.rule, options.repeats) for batch in options.batch]
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


@torch.no_grad()
def measure(model: Any, cells: torch.Tensor, batch: int, rule: str, repeats: int) -> dict[str, float]:
    """A row of the table, times a puzzle in milliseconds."""
    parts = cells.split(batch)
    ways = {"full": f"fixed:{model.max_updates}", "exits": rule}
    calls: dict[Any, Any] = {name: partial(run, model, parts, way) for name, way in ways.items()}
    left = [model(input_ids=part, exit_rule=rule) for part in parts]
    stayed = [model(input_ids=part, exit_rule=rule, run_all_steps=True) for part in parts]
    for one, other in zip(left, stayed, strict=True):
        assert torch.equal(one.exit_steps, other.exit_steps), "the same steps"
        assert torch.equal(one.logits.argmax(dim=-1), other.logits.argmax(dim=-1)), "the same answers"
    running = [int(rows) for output in left for rows in output.trace.executed.rows]
    calls |= {rows: partial(step, model, cells[:rows]) for rows in sorted({batch, *running})}
    seconds = {name: found["median"] for name, found in time_interleaved(calls, repeats, WARMUP, DEVICE).items()}
    mean = float(torch.cat([output.exit_steps for output in left]).double().mean())
    ideal = model.max_updates / mean
    share = seconds["full"] / seconds["exits"] / ideal
    at_sizes = len(parts) * model.max_updates * seconds[batch] / sum(seconds[rows] for rows in running)
    row = {"batch": batch, "full": seconds["full"], "exits": seconds["exits"], "mean_step": mean, "share": share}
    full, exits = (1e3 * seconds[name] / len(cells) for name in ways)
    print(f"{batch:>5}  {full:>8.2f}  {exits:>9.3f}  {mean:>9.2f}  {share:>14.2f}  {at_sizes / ideal:>5.2f}")
    return row | {"limit": at_sizes / ideal}


def run(model: Any, parts: tuple[torch.Tensor, ...], rule: str) -> None:
    for part in parts:
        model(input_ids=part, exit_rule=rule)


def step(model: Any, cells: torch.Tensor) -> None:
    """One supervision step of so many puzzles."""
    embedded = model.embed(cells, cells.new_zeros(len(cells)))
    model.read(model.step(embedded, *model.start(len(cells)))[0])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder with a trained model")
    parser.add_argument("--rule", default="correct:0.9", help="by which puzzles leave the batch")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path, help="also write the rows here")
    return parser.parse_args()


if __name__ == "__main__":
    main()
