"""Texts longer than in training: loops tied to the length of a text against fixed and random numbers of loops.

The tasks are parity, copy and addition of `dataset=lengths`. Training has texts of lengths 1 to L, and the test has
lengths up to 3 L, with every number of loops. Every method trains the same network for the same number of loops in
total, forward and backward. Those with more loops a text therefore train for fewer optimiser steps. A batch has texts
of one length. Each task, method and seed writes one file, and a repeated command runs only the missing ones. The table
compares accuracies by Welch's t over seeds, with Holm's correction for all comparisons.

    python benchmarks/longer_texts.py --seeds 5 --folder outputs/longer_texts
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import time
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch

from adadepth import LoopedConfig, LoopedForTokenClassification
from adadepth.data.generated.base import encode_symbols
from adadepth.data.generated.lengths import LABELS, SYMBOLS, arrange_bits, draw_bits
from adadepth.metrics.significance import LEVEL, average_over_seeds, compare_means, correct_p_values

LONGEST, BATCH, RATE, WARMUP = 10, 32, 2e-3, 50
MEAN = (LONGEST + 1) / 2  # loops of a text whose loops are its length
TESTED = tuple(range(LONGEST // 2, 3 * LONGEST + 1, LONGEST // 2))
MOST_LOOPS, EXAMPLES, TEST_SEED = 4 * LONGEST, 128, 10**6
POLICY = "margin:0.99"
SIZES = {"hidden_size": 32, "core": 1, "num_attention_heads": 2, "intermediate_size": 64}
SETTINGS = {"injection": "add", "norms": "pre", "state_norm": "fed", "sliding_window": 2}

# Settings of every method, and the mean number of loops of a text in an optimiser step.
METHODS: dict[str, tuple[dict[str, Any], float]] = {
    "length": ({"train_loops": "length"}, MEAN),
    "fixed": ({}, LONGEST),
    "drawn": ({"train_loops": "drawn", "num_loops": round(MEAN - 1)}, round(MEAN - 1) + 1),
}

Scores = dict[str, Any]


def draw_batch(task: str, rows: int, length: int, generator: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw token ids and labels of texts of one length, int64 (rows, tokens) each."""
    symbols, labels = arrange_bits(task, draw_bits(task, rows, length, generator))
    return torch.from_numpy(encode_symbols(symbols)), torch.from_numpy(labels)


def train(task: str, method: str, seed: int, steps: int) -> LoopedForTokenClassification:
    """Train a method, for as many optimiser steps as `steps` of `length` take in loops."""
    settings, loops = METHODS[method]
    steps = round(steps * MEAN / loops)
    torch.manual_seed(seed)
    vocabulary = int(encode_symbols(np.array(len(SYMBOLS[task]))))
    config = {"num_loops": LONGEST, "vocab_size": vocabulary, "draw_seed": seed, **SIZES, **SETTINGS, **settings}
    model = LoopedForTokenClassification(LoopedConfig(**config, num_labels=len(LABELS[task])))
    optimiser = torch.optim.AdamW(model.train().parameters(), RATE, betas=(0.9, 0.98), weight_decay=0.01)
    generator = np.random.default_rng(seed)
    for step in range(steps):
        model.set_step(step, steps)
        progress = max(step - WARMUP, 0) / max(steps - WARMUP, 1)
        rate = RATE * min((step + 1) / WARMUP, 1.0) * (1 + math.cos(math.pi * progress)) / 2
        optimiser.param_groups[0]["lr"] = rate
        length = int(generator.integers(1, LONGEST + 1))
        ids, labels = draw_batch(task, BATCH, length, generator)
        loss = model(ids, labels=labels, text_loops=torch.full((BATCH,), length)).loss
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    return model.eval()


@torch.no_grad()
def score(model: LoopedForTokenClassification, task: str) -> Scores:
    """Return the shares of texts with all labels right, by tested length.

    `loops` has them for every number of loops, `policy` at the exits of an exit rule, and `updates` its mean loops.
    """
    generator, scores = np.random.default_rng(TEST_SEED), Scores(loops=[], tokens=[], policy=[], updates=[])
    for length in TESTED:
        ids, labels = draw_batch(task, EXAMPLES, length, generator)
        output = model(ids, num_loops=MOST_LOOPS, exit_rule=POLICY, run_all_steps=True)
        predictions = output.step_logits.argmax(dim=-1).view(*ids.shape, MOST_LOOPS)
        labelled, right = labels >= 0, predictions == labels.unsqueeze(-1)
        scores["loops"].append((right | ~labelled.unsqueeze(-1)).all(dim=1).double().mean(dim=0).tolist())
        scores["tokens"].append(right[labelled].double().mean(dim=0).tolist())
        scores["policy"].append(((output.logits.argmax(-1) == labels) | ~labelled).all(dim=1).double().mean().item())
        scores["updates"].append(output.exit_steps.view_as(ids)[labelled].double().mean().item())
    return scores


def run(folder: Path, task: str, method: str, seed: int, steps: int) -> Scores:
    """Return the scores of a task, method and seed, from their file if there is one."""
    file = folder / f"{task}_{method}_{seed}.json"
    if not file.exists():
        begin = time.process_time()
        scores = score(train(task, method, seed, steps), task) | {"steps": steps}
        file.write_text(json.dumps(scores | {"seconds": time.process_time() - begin}))
        print(task, method, seed, [round(cell, 2) for cell in read_scores(scores, "T(n)")], flush=True)
    read: Scores = json.loads(file.read_text())
    return read


def read_scores(scores: Scores, reading: str) -> list[float]:
    """Return the accuracy at every tested length: at its T(n) loops, at the best number of loops, or of the policy."""
    if reading == "policy":
        policy: list[float] = scores["policy"]
        return policy
    if reading == "best":
        return [max(row) for row in scores["loops"]]
    return [row[length - 1] for length, row in zip(TESTED, scores["loops"], strict=True)]


def compare(results: dict[tuple[str, str], list[Scores]]) -> None:
    """Print mean accuracies at lengths L, 2 L and 3 L, and the differences of all pairs of methods at T(n) loops."""
    multiples = [TESTED.index(factor * LONGEST) for factor in (1, 2, 3)]
    rows = []
    for (task, method), seeds in results.items():
        for reading in ("T(n)", "best", "policy"):
            table = np.array([read_scores(scores, reading) for scores in seeds])[:, multiples]
            cells = (f"{m:.3f} ± {s:.3f}" for m, s in zip(table.mean(axis=0), table.std(axis=0, ddof=1), strict=True))
            print(f"{task:9} {method:8} {reading:6}", *cells)
    for (task, method), (other_task, other) in combinations(results, 2):
        for factor, index in enumerate(multiples, start=1) if task == other_task else ():
            values = (
                [read_scores(scores, "T(n)")[index] for scores in results[task, name]] for name in (method, other)
            )
            pair = [average_over_seeds(column) for column in values]
            name = f"{task:9} {method} - {other}"
            rows.append((f"{name:30} {factor}x", pair[0].mean - pair[1].mean, compare_means(*pair)))
    for (name, gain, _), p in zip(rows, correct_p_values([row[2] for row in rows]), strict=True):
        print(f"{name} {gain:+.3f} p {p:.3f} {'*' if p < LEVEL else ''}")


def draw_figure(results: dict[tuple[str, str], list[Scores]], file: Path) -> None:
    """Draw the mean accuracy of every pair of length and loops, with T(n) as a line."""
    from matplotlib import pyplot

    tasks, methods = (list(dict.fromkeys(names)) for names in zip(*results, strict=True))
    size = (2.2 * len(methods) + 1, 2 * len(tasks))
    figure, grid = pyplot.subplots(
        len(tasks), len(methods), figsize=size, sharex=True, sharey=True, layout="constrained", squeeze=False
    )
    for (task, method), seeds in results.items():
        axes = grid[tasks.index(task), methods.index(method)]
        table = np.mean([scores["loops"] for scores in seeds], axis=0)
        image = axes.pcolormesh(TESTED, range(1, MOST_LOOPS + 1), table.T, vmin=0, vmax=1, cmap="viridis")
        axes.plot(TESTED, TESTED, color="white", linewidth=1)
        axes.axvline(LONGEST + LONGEST / 4, color="white", linestyle=":", linewidth=1)
        axes.set_title(f"{task}, {method}", fontsize=9)
    figure.supxlabel("length of a text", fontsize=9)
    figure.supylabel("loops", fontsize=9)
    figure.colorbar(image, ax=grid, label="texts with all labels right")
    figure.savefig(file, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1200, help="optimiser steps of length")
    parser.add_argument("--tasks", nargs="*", default=list(SYMBOLS))
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--folder", type=Path, default=Path("outputs/longer_texts"))
    parser.add_argument("--figure", type=Path, help="image file of accuracy by length and loops")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    jobs = [
        (options.folder, task, name, seed, options.steps)
        for seed in seeds
        for task in options.tasks
        for name in options.methods
    ]
    with multiprocessing.get_context("fork").Pool(options.jobs) as pool:
        scores = pool.starmap(run, jobs, chunksize=1)
    results: dict[tuple[str, str], list[Scores]] = {}
    for (_, task, name, *_), result in zip(jobs, scores, strict=True):
        results.setdefault((task, name), []).append(result)
    if len(seeds) > 1:
        compare(results)
    if options.figure is not None:
        draw_figure(results, options.figure)


if __name__ == "__main__":
    main()
