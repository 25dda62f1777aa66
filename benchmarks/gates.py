"""Gates that stop a looped network: how many loops they need, beside exit rules without training.

A network of six loops is trained on `hops` (pointers, `hops_causal`) or `parity` (of all values up to a token), with
the losses of all loops weighted by a geometric prior. It is then frozen. Each gate learns from recorded states, and the
exit rules `quantile` and `hazard` read it. `joint` is the gate of another network, trained with it as in Ouro's first
stage.

The figure of a method is the mean number of loops at which it reaches 95, 98 and 99 % of the full-depth improvement:
the difference in accuracy between the first and the last loop for every token. Each threshold of a rule is an operating
point (mean loops, accuracy). A random choice between two thresholds reaches all points between theirs, so the figure is
read from the upper concave hull. `loss` is the same for the mean cross-entropy.

Each network writes one file, and so does each task, method and seed; a repeated command computes only missing ones. The
tables compare methods at 98 % by Welch's t over seeds, with Holm's correction for all comparisons with one reference.

    python benchmarks/gates.py --seeds 5 --folder outputs/gates
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from adadepth import HaltingUnit, LoopedConfig, LoopedForTokenClassification, register_halting_unit
from adadepth.config.data import HopsConfig
from adadepth.data.generated.hops import TaggedHops, list_node_symbols
from adadepth.data.generated.parity import SYMBOLS, draw_values
from adadepth.halting.exit_rules import ExitRule, apply_rule, parse_rule
from adadepth.halting.units import UnitMemory, build_halting_unit, run_unit
from adadepth.metrics.significance import LEVEL, average_over_seeds, compare_means, correct_p_values
from adadepth.models.looped.objectives import objective_terms

LOOPS, BATCH, RATE, WARMUP = 6, 64, 3e-3, 50
SIZES = {"hidden_size": 32, "core": 1, "num_attention_heads": 2, "intermediate_size": 64}
NETWORK = {"num_loops": LOOPS, "norms": "branch", "state_norm": "fed", "gate": True, "geometric_truncation": "leftover"}
HOPS = HopsConfig(
    nodes=16,
    colours=4,
    train_hops=[0, 5],
    beyond_hops=None,
    causal=True,
    sequence_length=16,
    drawing="natural",  # type: ignore[arg-type]
)
VALUES = 12  # of a row of the parity task
GATE_STEPS, GATE_BATCH, GATE_RATE = 300, 2048, 1e-2
TRAIN_ROWS, TEST_ROWS, TRAIN_SEED, TEST_SEED = 2000, 1500, 10**5, 10**6
SHARES = (0.95, 0.98, 0.99)

Batch = tuple[Tensor, Tensor]
Loops = dict[str, list[float]]


# ---- Tasks and networks


def draw_hops(rows: int, generator: np.random.Generator) -> Batch:
    """Draw token ids and colours of nodes, int64 (rows, nodes) each; nodes of more pointers have no label."""
    columns = TaggedHops(HOPS, (0, 5), 1, 0).draw(rows, 0, generator)
    ids, labels, hops = (torch.from_numpy(columns[name].astype(np.int64)) for name in ("symbols", "colours", "hops"))
    return ids, torch.where(hops <= 5, labels, -100)


def draw_parity(rows: int, generator: np.random.Generator) -> Batch:
    """Draw values and the parities of the number of values other than 0 up to each, int64 (rows, VALUES) each."""
    values = draw_values(rows, VALUES, (0, VALUES), generator)
    return torch.from_numpy(values.astype(np.int64) + 1), torch.from_numpy((values != 0).cumsum(axis=1) % 2)


# Function that draws a batch, sizes of the vocabulary and of the classes, and optimiser steps of a network.
TASKS: dict[str, tuple[Callable[[int, np.random.Generator], Batch], int, int, int]] = {
    "hops": (draw_hops, len(list_node_symbols(HOPS)), 4, 1000),
    "parity": (draw_parity, len(SYMBOLS), 2, 1000),
}


def train_network(folder: Path, task: str, objective: str, seed: int) -> LoopedForTokenClassification:
    """Return a network that was trained on a task, from its file if there is one."""
    draw, pieces, classes, steps = TASKS[task]
    torch.manual_seed(seed)
    config = LoopedConfig(**SIZES, **NETWORK, vocab_size=pieces, objective=objective, num_labels=classes)
    model = LoopedForTokenClassification(config).train()
    if (file := folder / f"network_{task}_{objective}_{seed}.pt").exists():
        model.load_state_dict(torch.load(file))
        return model.eval()
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimiser = torch.optim.AdamW(weights, RATE, betas=(0.9, 0.98), weight_decay=0.01)
    generator = np.random.default_rng(seed)
    for step in range(steps):
        warmth, decay = min((step + 1) / WARMUP, 1), (1 + math.cos(math.pi * step / steps)) / 2
        optimiser.param_groups[0]["lr"] = RATE * warmth * decay
        ids, labels = draw(BATCH, generator)
        loss = model(ids, labels=labels).loss
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if step % 100 == 99:
            print(task, objective, seed, step + 1, f"{loss.item():.3f}", flush=True)
    torch.save(model.state_dict(), file)
    return model.eval()


class Recorded(NamedTuple):
    """What a frozen network computed for M tokens in N loops.

    Attributes:
        states: States that gates read, (M, N, D).
        logits: Predictions, (M, N, C).
        halting: Halting logits of the gate of the network, (M, N).
        moves: Movement of the states, (M, N, 2).
        losses: Cross-entropies L_n, (M, N).
        right: Whether predictions are right, boolean (M, N).
    """

    states: Tensor
    logits: Tensor
    halting: Tensor
    moves: Tensor
    losses: Tensor
    right: Tensor

    def select(self, rows: Tensor) -> Recorded:
        """Return the tokens with these positions."""
        return Recorded(*(values[rows] for values in self))


@torch.no_grad()
def record(model: LoopedForTokenClassification, task: str, rows: int, seed: int) -> Recorded:
    """Run all loops on rows of a task, and record what they computed for the tokens with a label."""
    ids, labels = TASKS[task][0](rows, np.random.default_rng(seed))
    output = model(ids, labels=labels, output_hidden_states=True, run_all_steps=True)
    counted = labels.flatten() >= 0
    states, targets = torch.stack(output.hidden_states[1:], dim=2).flatten(0, 1)[counted], labels.flatten()[counted]
    logits = output.step_logits[counted]
    losses = nn.functional.cross_entropy(logits.transpose(1, 2), targets[:, None].expand(-1, LOOPS), reduction="none")
    right = logits.argmax(-1) == targets[:, None]
    return Recorded(states, logits, output.halting_logits[counted], output.state_moves[counted], losses, right)


# ---- Gates


@register_halting_unit
class HaltingMLPOfLoop(HaltingUnit):
    """Unit with an MLP of its own for every loop (AdaPonderLM, arXiv 2603.01914)."""

    name = "mlp_of_loop"

    def __init__(self, width: int, bias: float) -> None:
        super().__init__(width, bias)
        self.parts = nn.ModuleList(build_halting_unit("mlp", width, bias) for _ in range(LOOPS))

    def forward(self, states: Tensor, memory: UnitMemory, step: int) -> tuple[Tensor, UnitMemory]:
        """Return the logits of the MLP of this loop."""
        logits, memory = self.parts[step - 1](states, memory, step)
        return logits + self.bias, memory


def compute_gate_loss(halting: Tensor, data: Recorded, **settings: Any) -> Tensor:
    """Return the loss of `objective=gate_alone` with these settings, for halting logits (M, N)."""
    config = LoopedConfig(**SIZES, **NETWORK, vocab_size=2, objective="gate_alone", **settings)
    term = objective_terms(config, data.losses, halting, torch.ones(len(halting)))["gate"]
    return term.total / term.count


def compute_oracle_loss(halting: Tensor, data: Recorded, weight: float) -> Tensor:
    """Return BCE(1 - lambda_n, first loop from which the prediction stays right > n) of Think-at-Hard, n < N.

    A token that is wrong at the end stops at once. The weight multiplies the terms of tokens that continue.
    """
    stays_right = data.right.flip(1).cummin(1).values.flip(1)
    first = torch.where(stays_right[:, -1], stays_right.int().argmax(1), 0)
    goes_on = (first[:, None] > torch.arange(LOOPS - 1)).float()
    positive = torch.tensor(weight)
    return nn.functional.binary_cross_entropy_with_logits(-halting[:, :-1], goes_on, pos_weight=positive)


GATE_LOSSES: dict[str, Callable[[Tensor, Recorded], Tensor]] = {
    "ouro": compute_gate_loss,
    "next 0.05": partial(compute_gate_loss, gate_gain=0.05),
    "later 0.05": partial(compute_gate_loss, gate_gain=0.05, gate_pairing="later"),
    "ponder 0.03 0.8": partial(compute_gate_loss, gate_loss="ponder", entropy_weight=0.03, geometric_share=0.8),
    "ponder 0.01 0.6": partial(compute_gate_loss, gate_loss="ponder", entropy_weight=0.01, geometric_share=0.6),
    "oracle 4.8": partial(compute_oracle_loss, weight=4.8),
    "ouro made": partial(compute_gate_loss, gate_pairing="made"),
}
GATES = [(unit, loss) for unit in ("linear", "mlp") for loss in GATE_LOSSES]
GATES += [("mlp_of_loop", loss) for loss in ("ouro", "later 0.05", "ponder 0.03 0.8")]


def train_gate(unit: str, loss: str, data: Recorded, seed: int) -> nn.Module:
    """Train a gate on the recorded tokens of a frozen network."""
    torch.manual_seed(seed)
    gate = build_halting_unit(unit, SIZES["hidden_size"], 0.0)
    optimiser = torch.optim.AdamW(gate.parameters(), GATE_RATE, weight_decay=0.0)
    for step in range(GATE_STEPS):
        optimiser.param_groups[0]["lr"] = GATE_RATE * (1 + math.cos(math.pi * step / GATE_STEPS)) / 2
        batch = data.select(torch.randint(len(data.states), (GATE_BATCH,)))
        value = GATE_LOSSES[loss](read_gate(gate, batch.states), batch)
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
    return gate


def read_gate(gate: nn.Module, states: Tensor) -> Tensor:
    """Return the halting logits of a gate without a memory, (M, N), for states (M, N, D)."""
    return torch.stack([run_unit(gate, states[:, n], (), n + 1)[0] for n in range(LOOPS)], dim=1)


# ---- Figures of methods

LEVELS = torch.linspace(-12, 12, 97, dtype=torch.float64).sigmoid().tolist()


def list_thresholds(name: str) -> list[ExitRule]:
    """Return an exit rule with all of its thresholds."""
    if name in ("fixed", "patience"):
        return [parse_rule(f"{name}:{count}") for count in range(1, LOOPS + (name == "fixed"))]
    rule = parse_rule(name if name in ("quantile", "hazard") else f"{name}:0.5")
    return [levelled for level in LEVELS if (levelled := rule.with_level(level)) is not None]


@torch.no_grad()
def measure(name: str, data: Recorded, halting: Tensor) -> Loops:
    """Return the loops that an exit rule needs for each share of the full-depth improvement.

    Args:
        name: Name of the exit rule.
        data: Outputs of the network for M tokens.
        halting: Halting logits that the rule reads, (M, N).
    """
    rows = torch.arange(len(halting))
    exits = [apply_rule(rule, data.logits, halting, moves=data.moves) for rule in list_thresholds(name)]
    exits.append(torch.full_like(rows, LOOPS))
    loops_by_share: Loops = {}
    for measured, values in (("accuracy", data.right.double()), ("loss", -data.losses.double())):
        points = [(steps.double().mean().item(), values[rows, steps - 1].mean().item()) for steps in exits]
        first, last = values[:, 0].mean().item(), values[:, -1].mean().item()
        loops_by_share[measured] = [find_loops(points, first + share * (last - first)) for share in SHARES]
    return loops_by_share


def find_loops(points: list[tuple[float, float]], target: float) -> float:
    """Return the fewest mean loops at which a mixture of operating points (loops, quality) reaches the target."""
    costs = [
        low[0] + (high[0] - low[0]) * (target - low[1]) / (high[1] - low[1])
        for low in points
        for high in points
        if low[1] < target <= high[1]
    ]
    return min(costs + [loops for loops, quality in points if quality >= target])


RULES = ("fixed", "confidence", "entropy", "kl", "patience", "distance")
READINGS = ("quantile", "hazard")
METHODS = [
    *RULES,
    *(f"{unit} {loss}, {reading}" for unit, loss in GATES for reading in READINGS),
    *(f"joint, {reading}" for reading in (*READINGS, "confidence")),
]


def run(folder: Path, task: str, seed: int, methods: list[str]) -> dict[str, Loops]:
    """Return the figures of methods on a task with a seed, from their files where there are some."""

    @cache
    def record_network(objective: str, rows: int, draw_seed: int) -> Recorded:
        return record(train_network(folder, task, objective, seed), task, rows, draw_seed)

    @cache
    def compute_halting(unit: str, loss: str) -> Tensor:
        gate = train_gate(unit, loss, record_network("geometric", TRAIN_ROWS, TRAIN_SEED), seed)
        return read_gate(gate, record_network("geometric", TEST_ROWS, TEST_SEED).states)

    results = {}
    for method in methods:
        file = folder / f"{task}_{method.replace(', ', '_').replace(' ', '_')}_{seed}.json"
        if not file.exists():
            begin = time.process_time()
            gate, _, rule = method.rpartition(", ")
            data = record_network("gate" if gate == "joint" else "geometric", TEST_ROWS, TEST_SEED)
            halting = data.halting if gate in ("", "joint") else compute_halting(*gate.split(" ", 1))
            file.write_text(json.dumps(measure(rule, data, halting) | {"seconds": time.process_time() - begin}))
        results[method] = json.loads(file.read_text())
    return results


def compare(results: dict[str, list[Loops]], references: list[str]) -> None:
    """Print the mean loops of all methods with sample standard deviations, and differences from the references."""
    for name, seeds in results.items():
        table = np.array([scores["accuracy"] + scores["loss"] for scores in seeds])
        cells = (f"{m:.2f} ± {s:.2f}" for m, s in zip(table.mean(axis=0), table.std(axis=0, ddof=1), strict=True))
        print(f"{name:33}", *cells)
    for reference in references:
        for measured in ("accuracy", "loss"):
            values = {name: [scores[measured][1] for scores in seeds] for name, seeds in results.items()}
            base = values.pop(reference)
            p_values = [compare_means(average_over_seeds(of), average_over_seeds(base)) for of in values.values()]
            for (name, of), p in zip(values.items(), correct_p_values(p_values), strict=True):
                fewer = sum(loops < other for loops, other in zip(of, base, strict=True))
                text = f"{np.mean(of) - np.mean(base):+.3f} p {p:.4f} fewer loops with {fewer} of {len(of)} seeds"
                print(f"{measured:8} {name:33} - {reference} {text} {'*' if p < LEVEL else ''}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tasks", nargs="*", default=list(TASKS))
    parser.add_argument("--methods", nargs="*", default=METHODS)
    parser.add_argument("--references", nargs="*", default=["confidence", "linear ouro, quantile"])
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--folder", type=Path, default=Path("outputs/gates"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    jobs = [(options.folder, task, seed, options.methods) for seed in range(options.seeds) for task in options.tasks]
    with multiprocessing.get_context("fork").Pool(options.jobs) as pool:
        rows = pool.starmap(run, jobs, chunksize=1)
    for task in options.tasks:
        seeds = [row for (_, name, *_), row in zip(jobs, rows, strict=True) if name == task]
        print(f"\n{task}: loops for 95, 98, 99 % of the improvement in accuracy, and in loss")
        compare({method: [row[method] for row in seeds] for method in options.methods}, options.references)


if __name__ == "__main__":
    main()
