"""Bound on what adaptive depth can gain in a language model of bytes: exits by the expected gain of more layers.

A decoder with an exit after every layer learns bytes of a text. Its losses at all exits are recorded on held-out text.
A fitted policy then decides at every exit whether a byte leaves: backwards from the last exit, gradient-boosted trees
predict the loss at this exit and the cost of going on (Longstaff and Schwartz 2001, optimal stopping), both relative to
the loss at the last exit, with a price per layer. The trees are fitted on one half of the texts and decide on the
other. They read what the network knows at this exit: states (principal components), the byte before it and the position
in the word, and with `predictions` also entropy, likeliest bytes and the change since the exit before. The policy is
no gate that one would run. It shows what a gate could gain.

Controls are all bytes at one exit, mixtures of two exits, the rule on entropy, and networks of every depth that were
trained alone. Compute is layers and predictions that were made, as a share of full depth. Each network writes one file,
and a repeated command trains only missing ones.

    python benchmarks/expected_gain.py --train FILE --test FILE --seeds 5 --folder outputs/expected_gain
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import time
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from adadepth import EarlyExitConfig, EarlyExitForCausalLM
from adadepth.metrics.expected_exits import stop_by_regression
from adadepth.metrics.significance import average_over_seeds, compare_means, correct_p_values

LENGTH, SCORED, BATCH, RATE, WARMUP = 128, 64, 32, 2e-3, 100  # bytes of a text, its last bytes that are tested, ...
TEXTS, TEST_SEED, COMPONENTS, HALVES = 1280, 10**6, 24, 32
PRICES = (0.002, 0.004, 0.008, 0.012, 0.016, 0.024, 0.032, 0.05, 0.08, 0.12)  # bits per byte that a layer costs
READINGS = ("states", "predictions")
BLANKS = (ord(" "), ord("\n"))


class Recorded(NamedTuple):
    """What a network computed for M bytes at N exits.

    Attributes:
        losses: Cross-entropies in bits, float32 (M, N).
        states: States at every exit, float16 (M, N, D).
        predictions: Entropy, four largest log-probabilities, and divergence from the exit before, float32 (M, N, 6).
        context: Position in the word, and the last two bytes, int64 (M, 3).
        texts: Number of the text of each byte, int64 (M,).
        layer: Multiply-accumulates of a layer for a byte.
        head: Multiply-accumulates of a prediction.
    """

    losses: np.ndarray
    states: np.ndarray
    predictions: np.ndarray
    context: np.ndarray
    texts: np.ndarray
    layer: float
    head: float


# ---- Networks


def build(layers: int, width: int, weights: str) -> EarlyExitForCausalLM:
    """Return a decoder of bytes with an exit after every layer, each with its own norm."""
    return EarlyExitForCausalLM(
        EarlyExitConfig(
            base="llama", vocab_size=256, hidden_size=width, num_hidden_layers=layers, num_attention_heads=width // 32,
            num_key_value_heads=width // 32, intermediate_size=8 * width // 3, max_position_embeddings=LENGTH,
            tie_word_embeddings=False, exit_heads="norm", exit_weights=weights,
        )
    )  # fmt: skip


def draw_texts(text: np.ndarray, rows: int, generator: np.random.Generator) -> torch.Tensor:
    """Return texts that begin at random bytes, int64 (rows, LENGTH)."""
    starts = generator.integers(0, len(text) - LENGTH, rows)
    return torch.from_numpy(np.stack([text[start : start + LENGTH] for start in starts]).astype(np.int64))


def train(model: EarlyExitForCausalLM, text: np.ndarray, steps: int, seed: int) -> EarlyExitForCausalLM:
    """Train a network in bfloat16."""
    generator = np.random.default_rng(seed)
    optimiser = torch.optim.AdamW(model.train().parameters(), RATE, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    for step in range(steps):
        decay = (1 + math.cos(math.pi * step / steps)) / 2
        optimiser.param_groups[0]["lr"] = RATE * min((step + 1) / WARMUP, decay + 0.02)
        ids = draw_texts(text, BATCH, generator)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=ids, labels=ids).loss
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if step % 500 == 499:
            print(model.config.num_hidden_layers, seed, step + 1, f"{loss.item() / math.log(2):.3f}", flush=True)
    return model.eval()


@torch.no_grad()
def record(model: EarlyExitForCausalLM, text: np.ndarray) -> Recorded:
    """Return the outputs of a network for held-out bytes."""
    generator, columns = np.random.default_rng(TEST_SEED), []
    for start in range(0, TEXTS, BATCH):
        ids = draw_texts(text, BATCH, generator)
        output = model(input_ids=ids, run_all_steps=True, output_hidden_states=True)
        logs = output.step_logits[:, SCORED - 1 : -1].log_softmax(dim=-1)
        losses = -logs.gather(-1, ids[:, SCORED:, None, None].expand(-1, -1, logs.shape[2], 1)).squeeze(-1)
        before = torch.cat([logs[:, :, :1], logs[:, :, :-1]], dim=2)
        signals = [-(logs.exp() * logs).sum(-1, keepdim=True), logs.topk(4).values]
        signals.append((logs.exp() * (logs - before)).sum(-1, keepdim=True))
        states = torch.stack(output.hidden_states[1:], dim=2)[:, SCORED - 1 : -1]
        is_blank = (ids == BLANKS[0]) | (ids == BLANKS[1])
        positions = torch.arange(LENGTH).expand_as(ids)
        in_word = positions - torch.where(is_blank, positions, 0).cummax(dim=1).values
        context = torch.stack([in_word[:, SCORED - 1 : -1], ids[:, SCORED - 1 : -1], ids[:, SCORED - 2 : -2]], dim=-1)
        texts = torch.arange(start, start + BATCH).unsqueeze(1).expand(-1, LENGTH - SCORED)
        fields = losses / math.log(2), states.half(), torch.cat(signals, dim=-1), context, texts
        columns.append([field.flatten(0, 1).numpy() for field in fields])
    layer = float(sum(weight.numel() for weight in model.layers.get_layer(0).parameters() if weight.dim() == 2))
    arrays = [np.concatenate(parts) for parts in zip(*columns, strict=True)]
    return Recorded(*arrays, layer=layer, head=model.readout_work)  # type: ignore[misc, arg-type]


def run(options: argparse.Namespace, layers: int, weights: str, seed: int) -> Recorded:
    """Return the outputs of a network with a seed, from their file if there is one."""
    file = options.folder / f"{layers}_{options.width}_{options.steps}_{weights}_{seed}.npz"
    if not file.exists():
        begin = time.perf_counter()
        torch.manual_seed(seed)
        train_text, test_text = (np.frombuffer(path.read_bytes(), np.uint8) for path in (options.train, options.test))
        recorded = record(train(build(layers, options.width, weights), train_text, options.steps, seed), test_text)
        np.savez_compressed(file, **recorded._asdict())
        print(layers, weights, seed, f"{(time.perf_counter() - begin) / 60:.1f} min", flush=True)
    with np.load(file) as stored:
        return Recorded(*(stored[name] for name in Recorded._fields))


# ---- Policies


def fit_policies(data: Recorded, reading: str) -> list[np.ndarray]:
    """Return the exits of all bytes, int64 (M,), by the expected gain at every price of a layer, cross-fitted."""
    from sklearn.decomposition import PCA
    from sklearn.ensemble import HistGradientBoostingRegressor

    count, exits = data.losses.shape
    half = data.texts // HALVES % 2
    readable = []  # what the network knows at each exit
    for exit in range(exits):
        states = data.states[:, exit].astype(np.float32)
        components = PCA(COMPONENTS, random_state=0).fit(states[half == 0]).transform(states)
        signals = (
            data.predictions[:, : exit + 1].reshape(count, -1) if reading == "predictions" else data.context[:, :0]
        )
        readable.append(np.concatenate([components, signals, data.context], axis=1))

    def predict(exit: int, values: np.ndarray) -> np.ndarray:
        predicted = np.empty(count)
        for other in (0, 1):
            trees = HistGradientBoostingRegressor(max_iter=150, learning_rate=0.08, random_state=0)
            trees.fit(readable[exit][half == other], values[half == other])
            predicted[half != other] = trees.predict(readable[exit][half != other])
        return predicted

    return stop_by_regression(data.losses[:, -1:] - data.losses, PRICES, predict)


def choose_by_entropy(data: Recorded) -> list[np.ndarray]:
    """Return the exits of all bytes by the rule on entropy at several thresholds."""
    entropies, exits = data.predictions[:, :, 0], data.losses.shape[1]
    thresholds = np.quantile(entropies, np.linspace(0.02, 0.98, 25))
    below = [
        np.concatenate([entropies[:, :-1] < level, np.ones((len(entropies), 1), bool)], axis=1) for level in thresholds
    ]
    return [leaves.argmax(axis=1) + 1 for leaves in below] + [np.full(len(entropies), exits)]


def measure_points(data: Recorded, policies: list[np.ndarray], predictions: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return compute (a share of all layers and one prediction) and bits per byte of policies, by compute.

    The points include the first exit for every byte and the last one.

    Args:
        data: Outputs of a network.
        policies: Exits of all bytes, (M,) each.
        predictions: Whether a prediction is made at every exit that is reached, and not only at the last one.
    """
    count, layers = data.losses.shape
    whole, rows = layers * data.layer + data.head, np.arange(count)
    policies = [*policies, np.full(count, 1), np.full(count, layers)]
    points = [
        (
            (exits * data.layer + (exits if predictions else 1) * data.head).mean() / whole,
            data.losses[rows, exits - 1].mean(),
        )
        for exits in policies
    ]
    costs, losses = zip(*sorted(points), strict=True)
    return np.array(costs), np.array(losses)


def compare(results: dict[tuple[int, str], list[Recorded]], layers: int) -> None:
    """Print bits per byte at the compute of every fixed depth, and Welch's test over seeds against it."""
    network = results[layers, "linear"]
    count = network[0].losses.shape[1]
    curves = {"entropy": [measure_points(data, choose_by_entropy(data), predictions=True) for data in network]}
    for reading in READINGS:
        priced = [(data, fit_policies(data, reading)) for data in network]
        curves[f"expected, {reading}"] = [
            measure_points(*pair, predictions=reading == "predictions") for pair in priced
        ]
    for (depth, weights), seeds in results.items():
        table = np.array([data.losses.mean(axis=0) for data in seeds])
        print(f"{depth} layers, {weights:6} fixed exits:", *(f"{value:.4f}" for value in table.mean(axis=0)))
    rows = []
    for depth, (name, points) in product(range(1, count), curves.items()):
        share = (depth * network[0].layer + network[0].head) / (count * network[0].layer + network[0].head)
        if not all(costs[0] <= share <= costs[-1] for costs, _ in points):
            continue
        values = [float(np.interp(share, costs, losses)) for costs, losses in points]
        controls = {"the same exit for all": [float(data.losses[:, depth - 1].mean()) for data in network]}
        if alone := results.get((depth, "last")):
            controls["trained alone"] = [float(data.losses[:, -1].mean()) for data in alone]
        rows += [(depth, share, name, values, control, losses) for control, losses in controls.items()]
    means = [(average_over_seeds(values), average_over_seeds(losses)) for *_, values, _, losses in rows]
    p_values = correct_p_values([compare_means(*pair) for pair in means])
    for (depth, share, name, _, control, _), (first, second), p in zip(rows, means, p_values, strict=True):
        text = f"{first.mean:.4f} against {second.mean:.4f} {control}, {first.mean - second.mean:+.4f}, p {p:.4f}"
        print(f"{depth} of {count} layers ({share:.0%}) {name:22} {text}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", type=Path, required=True, help="text to train on")
    parser.add_argument("--test", type=Path, required=True, help="held-out text")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--alone", type=int, nargs="*", help="depths of networks trained alone; all by default")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--folder", type=Path, default=Path("outputs/expected_gain"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    depths = range(1, options.layers + 1) if options.alone is None else options.alone
    networks = [(options.layers, "linear"), *((depth, "last") for depth in depths)]
    jobs: list[Any] = [(options, *network, seed) for seed in range(options.seeds) for network in networks]
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        recorded = pool.starmap(run, jobs, chunksize=1)
    results: dict[tuple[int, str], list[Recorded]] = {}
    for (_, layers, weights, _), data in zip(jobs, recorded, strict=True):
        results.setdefault((layers, weights), []).append(data)
    compare(results, options.layers)


if __name__ == "__main__":
    main()
