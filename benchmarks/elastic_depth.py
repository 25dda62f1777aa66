"""Elastic depth against other ways to train looped models, at every number of loops and equal training compute.

The task is `hops_causal`: each node follows a chain of pointers to a colour, and more pointers need more loops. Every
method trains the same core for the same number of loops in total, forward and backward. The networks of one fixed depth
therefore train for more optimiser steps. Each pair of method and seed writes one file, and a repeated command runs only
the missing ones. The table compares accuracies by Welch's t over seeds, with Holm's correction for all comparisons.

    python benchmarks/elastic_depth.py --seeds 3 --folder outputs/elastic_depth
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from adadepth import LoopedConfig, LoopedForTokenClassification
from adadepth.config.data import HopsConfig
from adadepth.data.generated.hops import TaggedHops, list_node_symbols
from adadepth.metrics.significance import LEVEL, average_over_seeds, compare_means, correct_p_values

LOOPS, BATCH, RATE, WARMUP = 4, 64, 3e-3, 50
SIZES = {"hidden_size": 32, "core": 1, "num_attention_heads": 2, "intermediate_size": 64}
DATA: dict[str, Any] = {
    "nodes": 12,
    "colours": 4,
    "train_hops": [0, 5],
    "beyond_hops": None,
    "causal": True,
    "sequence_length": 12,
}
EXAMPLES, TEST_SEED = 1024, 10**6

Scores = dict[str, list[float]]

# Settings of every method, and its mean number of loops in an optimiser step.
METHODS: dict[str, tuple[dict[str, Any], float]] = {
    "elastic": ({"objective": "elastic", "loop_conditioning": "time"}, LOOPS * 1.5),
    "control": ({"objective": "elastic"}, LOOPS * 1.5),
    "mean": ({"objective": "mean"}, LOOPS),
    "drawn": ({"train_loops": "drawn"}, LOOPS + 1),
    **{f"fixed {k}": ({"num_loops": k}, k) for k in range(1, LOOPS + 1)},
}


def draw_batch(rows: int, generator: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Draw token ids, labels, and numbers of pointers, int64 (rows, nodes) each."""
    columns = TaggedHops(HopsConfig(**DATA), tuple(DATA["train_hops"]), 1, 0).draw(rows, 0, generator)
    ids, labels, hops = (torch.from_numpy(columns[name].astype(np.int64)) for name in ("symbols", "colours", "hops"))
    return ids, labels, hops


def train(method: str, seed: int, steps: int) -> LoopedForTokenClassification:
    """Train a method, for as many optimiser steps as `steps` of `elastic` take in loops."""
    settings, loops = METHODS[method]
    steps = round(steps * LOOPS * 1.5 / loops)
    torch.manual_seed(seed)
    config = {"num_loops": LOOPS, "vocab_size": len(list_node_symbols(HopsConfig(**DATA))), "draw_seed": seed}
    model = LoopedForTokenClassification(LoopedConfig(**{**config, **SIZES, **settings}, num_labels=DATA["colours"]))
    optimiser = torch.optim.AdamW(model.train().parameters(), RATE, betas=(0.9, 0.98), weight_decay=0.01)
    generator = np.random.default_rng(seed)
    for step in range(steps):
        model.set_step(step, steps)
        progress = max(step - WARMUP, 0) / max(steps - WARMUP, 1)
        rate = RATE * min((step + 1) / WARMUP, 1.0) * (1 + math.cos(math.pi * progress)) / 2
        optimiser.param_groups[0]["lr"] = rate
        ids, labels, _ = draw_batch(BATCH, generator)
        loss = model(ids, labels=labels).loss
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if step % 100 == 99:
            print(method, seed, step + 1, f"{loss.item():.3f}", flush=True)
    return model.eval()


@torch.no_grad()
def score(model: LoopedForTokenClassification) -> Scores:
    """Return the accuracies with k = 1..N loops, and at exits after k of N loops; `deep`: at most pointers alone."""
    ids, labels, hops = draw_batch(EXAMPLES, np.random.default_rng(TEST_SEED))
    deep, scores = hops == DATA["train_hops"][1], Scores(loops=[], exits=[], deep=[])
    for k in range(1, LOOPS + 1):
        right = model(ids, num_loops=k).logits.argmax(-1) == labels
        exits = model(ids, num_loops=LOOPS, exit_rule=f"fixed:{k}").logits.argmax(-1) == labels
        scores["loops"].append(right.double().mean().item())
        scores["exits"].append(exits.double().mean().item())
        scores["deep"].append(right[deep].double().mean().item())
    return scores


def run(folder: Path, method: str, seed: int, steps: int) -> Scores:
    """Return the scores of a method and a seed, from its file if there is one."""
    file = folder / f"{method.replace(' ', '_')}_{seed}.json"
    if not file.exists():
        begin = time.process_time()
        scores = score(train(method, seed, steps))
        file.write_text(json.dumps(scores | {"seconds": time.process_time() - begin}))
        print(
            method,
            seed,
            [round(value, 3) for value in scores["loops"]],
            f"{time.process_time() - begin:.0f} s",
            flush=True,
        )
    read: Scores = json.loads(file.read_text())
    return read


def compare(results: dict[str, list[Scores]]) -> None:
    """Print mean accuracies, and differences of `elastic` from the other methods at the same number of loops."""
    for name, seeds in results.items():
        for kind in ("loops", "exits", "deep"):
            table = np.array([scores[kind] for scores in seeds])
            cells = (f"{m:.3f} ± {s:.3f}" for m, s in zip(table.mean(axis=0), table.std(axis=0, ddof=1), strict=True))
            print(f"{name:9} {kind:6}", *cells)
    rows = []
    for name, seeds in results.items():
        for k in list_loops(name) if name != "elastic" else ():
            pair = [average_over_seeds([scores["loops"][k - 1] for scores in of]) for of in (results["elastic"], seeds)]
            rows.append((name, k, pair[0].mean - pair[1].mean, compare_means(*pair)))
    for (name, k, gain, _), p in zip(rows, correct_p_values([row[3] for row in rows]), strict=True):
        print(f"elastic - {name:9} {k} loops {gain:+.3f} p {p:.3f} {'*' if p < LEVEL else ''}")


def list_loops(method: str) -> list[int]:
    """Return the numbers of loops at which a method is compared: all, or the one of a fixed depth."""
    return [METHODS[method][0]["num_loops"]] if method.startswith("fixed") else list(range(1, LOOPS + 1))


def draw_figure(results: dict[str, list[Scores]], file: Path) -> None:
    """Draw the mean accuracy and its standard deviation against the number of loops, with fixed depths as one curve."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(5, 3.4), layout="constrained")
    curves: dict[str, list[tuple[int, float, float]]] = {}
    for name, seeds in results.items():
        for k in list_loops(name):
            values = [scores["loops"][k - 1] for scores in seeds]
            curve = curves.setdefault("fixed depths" if name.startswith("fixed") else name, [])
            curve.append((k, float(np.mean(values)), float(np.std(values, ddof=1))))
    for label, curve in curves.items():
        loops, means, deviations = zip(*curve, strict=True)
        axes.errorbar(loops, means, deviations, label=label, marker="o", markersize=3, capsize=2)
    axes.set(xlabel="loops", ylabel="accuracy", xticks=range(1, LOOPS + 1))
    axes.legend()
    figure.savefig(file, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=800, help="optimiser steps of elastic")
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--folder", type=Path, default=Path("outputs/elastic_depth"))
    parser.add_argument("--figure", type=Path, help="image file of accuracy against the number of loops")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    jobs = [(options.folder, name, seed, options.steps) for seed in seeds for name in options.methods]
    with multiprocessing.get_context("fork").Pool(options.jobs) as pool:
        scores = pool.starmap(run, jobs, chunksize=1)
    results: dict[str, list[Scores]] = {name: [] for name in options.methods}
    for (_, name, *_), result in zip(jobs, scores, strict=True):
        results[name].append(result)
    if len(seeds) > 1 and "elastic" in results:
        compare(results)
    if options.figure is not None:
        draw_figure(results, options.figure)


if __name__ == "__main__":
    main()
