"""ACT-ALBERT's executions: does the time follow the tokens' mean depth, or the deepest token?

    python benchmarks/ragged_execution.py [--hidden 256 768] [--depth 6 12 24] [--depths published shallow geometric]
        [--length 128 512] [--batch 1 8 32] [--mode inference training] [--executions dense ragged auto] [--padding]
        [--repeats 9] [--max-seconds 600] [--fast] [--json FILE]
    python benchmarks/ragged_execution.py --figure PNG JSON...

The same weights, batch and depths, which a table prescribes for every token, under
  dense   every token in every iteration until the last one has halted: the reference's algorithm
  ragged  the tokens that are still running
  auto    whichever of the two is expected to be faster
  ALBERT  transformers' own, with SDPA, for as many layers as the mean depth (between the two depths next to it the time
          is interpolated), and for L layers
  fixed   ACT-ALBERT's own block with its own products, for as many iterations as the mean depth, likewise
Beside ragged / ALBERT stands the limit at the sizes: ALBERT whose matrix products are replaced by those of the ragged
execution, with the rows that its iterations have. All other work would have to cost what it costs at a fixed depth.
Depths are `published` (a bell around ACT-ALBERT's mean of 3.8, 7.1 or 10.0 updates under a cap L of 6, 12 or 24),
`shallow` (the same around the smaller of these means, under the same cap) or `geometric` (p ~ r^n, cut off at the cap,
with the published mean: nearly flat). The first token of every sequence runs to the cap, as the published models' [CLS]
does, so that the ideal speed-up over dense is L / mean. `--padding` adds texts of mixed lengths, whose ideal counts the
padding that dense computes.

A training step is a forward and a backward pass without an optimiser. Calls are timed in turns and medians compared,
because machines drift. A row that would take too long or too much memory is named and left out.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from prescribed_depths import draw_depths, prescribe_depths
from ragged_cases import (
    DEPTHS,
    LEAST_ROUNDS,
    MODES,
    PUBLISHED_MEANS,
    Case,
    describe_impossibility,
    get_available_memory,
    make_cases,
    measure_rate,
)
from speedup_plot import save_speedups
from torch import Tensor, nn
from transformers import AlbertConfig, AlbertModel

from adadepth import AlbertActConfig, AlbertActModel
from adadepth.halting.trace import ComputedSteps
from adadepth.runtime.hardware import describe_machine
from adadepth.runtime.timing import time_interleaved

EXECUTIONS = ("dense", "ragged", "auto")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PRECISION = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32


def make_batch(case: Case, vocab_size: int) -> dict[str, Tensor]:
    """Draw random ids: all of full length, or of lengths from a quarter of it upwards."""
    generator = torch.Generator().manual_seed(1)
    counts = torch.full((case.batch,), case.length)
    if case.padding:
        counts = torch.randint(case.length // 4, case.length + 1, (case.batch,), generator=generator)
        counts[0] = case.length
    ids = torch.randint(5, vocab_size, (case.batch, case.length), generator=generator)
    mask = (torch.arange(case.length) < counts.unsqueeze(1)).long()
    return {"input_ids": (ids * mask).to(DEVICE), "attention_mask": mask.to(DEVICE)}


def make_models(case: Case) -> tuple[AlbertActModel, AlbertModel]:
    """Build both untrained models of one geometry."""
    shape = {
        "vocab_size": 1_000,  # looking words up is not what is compared
        "hidden_size": case.hidden,
        "intermediate_size": 4 * case.hidden,
        "num_attention_heads": max(1, case.hidden // 64),
        "num_hidden_layers": case.depth,
        "initializer_range": 0.05,  # larger than usual, so that tokens differ in what they attend to
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "hidden_act": "gelu_new",
    }
    torch.manual_seed(0)
    training = case.mode == "training"
    options_of_move = (DEVICE, torch.float32 if training else PRECISION)
    ours = AlbertActModel._from_config(AlbertActConfig(**shape)).to(*options_of_move).train(training)
    # The harder peer: its own gelu_new, the same formula, is written out in eight steps and costs a third of the layer.
    fused = AlbertConfig(**(shape | {"hidden_act": "gelu_pytorch_tanh"}))
    theirs = AlbertModel._from_config(fused, attn_implementation="sdpa").to(*options_of_move).train(training)
    return ours, theirs


def make_call(model: nn.Module, inputs: dict[str, Tensor], mode: str, **fields: Any) -> Callable[[], Any]:
    """Return a function that runs the model with these configuration fields and returns its outputs."""

    def forward() -> Any:
        for name, value in fields.items():
            setattr(model.config, name, value)
        return model(**inputs)

    if mode == "inference":
        return torch.inference_mode()(forward)
    shape = (*inputs["input_ids"].shape, model.config.hidden_size)
    # Normalised states have a constant mean square: only the distance from something has a gradient.
    target = torch.randn(shape, generator=torch.Generator().manual_seed(2)).to(DEVICE)

    def step() -> Any:
        model.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE.type, dtype=PRECISION, enabled=torch.float32 != PRECISION):
            outputs = forward()
        nn.functional.mse_loss(outputs.last_hidden_state.float(), target).backward()
        return outputs

    return step


def make_fixed(model: AlbertActModel, inputs: dict[str, Tensor], mode: str, depth: int) -> Callable[[], Any]:
    """Return a function that runs the model with all tokens at one depth."""
    call = make_call(model, inputs, mode)

    def forced() -> Any:
        model.force_depth(depth)
        return call()

    return forced


def get_albert_block(model: AlbertModel) -> nn.Module:
    """Return the single layer that transformers' ALBERT applies repeatedly."""
    return model.encoder.albert_layer_groups[0].albert_layers[0]


def check_execution(model: AlbertActModel, call: Callable[[], Any]) -> dict[str, Any]:
    """Run one call, and return its states, depths, multiply-accumulates, and the gradient of a training step."""
    outputs = call()
    gradients = [weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]
    return {
        "state": outputs.last_hidden_state.detach().float() * outputs.trace.valid.unsqueeze(-1),
        "updates": outputs.updates,
        "macs": model.price(outputs.trace).executed.item(),
        "computed": outputs.trace.execution.computed,
        "gradient": torch.cat(gradients) if gradients else None,
    }


def compare(execution: dict[str, Any], dense: dict[str, Any]) -> dict[str, Any]:
    """Compare an execution with the dense one; the gradient's difference is relative to its norm."""
    result = {
        "updates_equal": bool(execution["updates"].equal(dense["updates"])),
        "difference": (execution["state"] - dense["state"]).abs().max().item(),
        "macs": execution["macs"] / dense["macs"],
    }
    if (gradient := dense["gradient"]) is not None:
        result["gradient_difference"] = ((execution["gradient"] - gradient).norm() / gradient.norm()).item()
    return result


def measure(case: Case, executions: Sequence[str], repeats: int, max_seconds: float) -> dict[str, Any]:
    """Measure one row of the table."""
    ours, theirs = make_models(case)
    inputs = make_batch(case, ours.config.vocab_size)
    valid = inputs["attention_mask"].bool().cpu()
    depths = draw_depths(valid, case.mean, case.depth, flat=case.depths == "geometric")
    prescribe_depths(ours, depths)
    runs = {name: make_call(ours, inputs, case.mode, execution=name) for name in executions}
    checks = {name: check_execution(ours, call) for name, call in runs.items()}
    dense = checks["dense"]
    assert dense["updates"].cpu().equal(depths.to(dense["updates"].dtype)), "the depths are not those prescribed"

    mean = depths[valid].double().mean().item()
    layers = {"floor": math.floor(mean), "ceiling": math.ceil(mean), "full": case.depth}
    peers = {f"albert_{name}": make_call(theirs, inputs, case.mode, num_hidden_layers=n) for name, n in layers.items()}
    free_model = make_models(case)[0]  # without prescribed halting
    for name in ("floor", "ceiling"):
        peers[f"fixed_{name}"] = make_fixed(free_model, inputs, case.mode, layers[name])
    steps = None if "ragged" not in checks else list_rows(checks["ragged"]["computed"])
    if steps is not None:
        training, all_rows = case.mode == "training", [steps[0]] * layers["floor"]
        peers["products"] = make_products(ours.encoder.albert_layer, steps, training)
        peers["products_albert"] = make_products(get_albert_block(theirs), all_rows, training)
    # In turns: a call that follows one of its own model is faster, a small one by a tenth.
    calls = dict(item for pair in zip_longest(runs.items(), peers.items()) for item in pair if item)
    pilot = time_interleaved(calls, repeats=1, warmup=0, device=DEVICE)  # warms up, too
    rounds = int(max_seconds / sum(time["median"] for time in pilot.values()))
    seconds = time_interleaved(calls, min(repeats, max(rounds, LEAST_ROUNDS)), 0, DEVICE)

    medians = {name: time["median"] for name, time in seconds.items()}
    fixed, fixed_depth = (
        medians[f"{peer}_floor"] + (mean - layers["floor"]) * (medians[f"{peer}_ceiling"] - medians[f"{peer}_floor"])
        for peer in ("albert", "fixed")
    )
    ideal = case.depth * depths.numel() / depths.sum().item()
    adaptive = {
        name: {
            "speedup": (speedup := medians["dense"] / medians[name]),
            "share_of_ideal": speedup / ideal,
            "of_albert": medians[name] / fixed,
            "of_fixed": medians[name] / fixed_depth,
            "of_dense": medians[name] / medians["dense"],
            **compare(checks[name], dense),
        }
        for name in executions
        if name != "dense"
    }
    if {"ragged", "auto"} <= medians.keys():
        adaptive["auto"]["of_best"] = medians["auto"] / min(medians["dense"], medians["ragged"])
    if steps is not None:
        products = medians["products"] - medians["products_albert"] * mean / layers["floor"]
        adaptive["ragged"]["limit"] = 1 + products / fixed
    return {
        **asdict(case),
        "mean": mean,
        "padded_share": 1 - valid.float().mean().item(),
        "seconds": seconds,
        "albert_at_mean_seconds": fixed,
        "fixed_at_mean_seconds": fixed_depth,
        "ideal": ideal,
        **adaptive,
    }


HEADER = (
    "mode         H  L depths    mean     S   B |  dense ms       ragged ms       auto ms         ALBERT at mean, at L"
    " | speed-up, ideal, share | ragged/ALBERT limit /fixed auto/best |  MACs difference"
)


def describe(case: Case, row: dict[str, Any]) -> str:
    """Format one line of the table; figures that were not measured are dashes."""
    times = row["seconds"]
    columns = [
        f"{1e3 * times[name]['median']:7.1f} ±{500 * (times[name]['p90'] - times[name]['p10']):<5.1f}"
        if name in times
        else f"{'-':>7}       "
        for name in EXECUTIONS
    ]
    albert = f"{1e3 * row['albert_at_mean_seconds']:8.1f} {1e3 * times['albert_full']['median']:8.1f}"
    best = next((row[name] for name in ("ragged", "auto") if name in row), None)
    if best is None:
        return f"{case} | {'  '.join(columns)} {albert} | ideal {row['ideal']:.2f}"
    of_best = row.get("auto", {}).get("of_best", math.nan)
    exact = "" if best["updates_equal"] else " DEPTHS DIFFER"
    return (
        f"{case} | {'  '.join(columns)} {albert} | {best['speedup']:5.2f} {row['ideal']:5.2f} "
        f"{best['share_of_ideal']:5.2f} | {best['of_albert']:6.3f} {best.get('limit', math.nan):6.3f} "
        f"{best['of_fixed']:6.3f} {of_best:6.3f} | {best['macs']:5.3f} "
        f"{best['difference']:.0e}{exact}"
    )


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    batches = [32, 64, 128] if DEVICE.type == "cuda" else [1, 8, 32]
    means = list(PUBLISHED_MEANS)
    parser.add_argument("--hidden", type=int, nargs="+", default=[256, 768])
    parser.add_argument("--depth", type=int, nargs="+", choices=means, default=means)
    parser.add_argument("--depths", nargs="+", choices=DEPTHS, default=list(DEPTHS))
    parser.add_argument("--length", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--batch", type=int, nargs="+", default=batches)
    parser.add_argument("--mode", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument(
        "--executions", nargs="+", choices=EXECUTIONS, default=list(EXECUTIONS), help="dense is always timed"
    )
    parser.add_argument("--padding", action="store_true", help="also rows with texts of mixed lengths")
    parser.add_argument("--repeats", type=int, default=9, help="rounds of a row, fewer if they take --max-seconds")
    parser.add_argument(
        "--max-seconds", type=float, default=600.0, help="seconds of a row; one that needs more is left out"
    )
    parser.add_argument("--fast", action="store_true", help="a smoke test: tiny models, whose ratios say nothing")
    parser.add_argument("--json", type=Path, default=None, help="written after every row")
    parser.add_argument("--figure", type=Path, nargs="+", metavar="FILE", help="draw PNG from JSON..., measure nothing")
    options = parser.parse_args()
    if options.figure is not None and len(options.figure) < 2:
        parser.error("--figure needs the PNG to draw and the JSON files to draw it from")
    if options.fast:
        options.hidden, options.depth, options.length, options.batch = [32], [12], [16], [1, 3]
        options.repeats = 1
    options.executions = [name for name in EXECUTIONS if name in {"dense", *options.executions}]
    return options


def run_case(case: Case, options: argparse.Namespace, rate: float, report: dict[str, Any]) -> None:
    """Measure, print and store a row, or print why it is left out."""
    reason = describe_impossibility(case, rate, options.max_seconds, get_available_memory(DEVICE))
    if reason is None:
        row = measure(case, options.executions, options.repeats, options.max_seconds)
        report["rows"].append(row)
        print(describe(case, row), flush=True)
    else:
        report["left_out"].append({**asdict(case), "reason": reason})
        print(f"{case} | left out: {reason}", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


def main() -> None:
    """Print the table and the targets, and write the JSON on request; or draw the figure."""
    options = parse_options()
    if options.figure is not None:
        picture, *files = options.figure
        rows = [row for file in files for row in json.loads(file.read_text())["rows"]]
        save_speedups(rows, picture)
        return
    device = describe_machine(DEVICE)
    setting = {"device": device, "precision": str(PRECISION).removeprefix("torch."), "repeats": options.repeats}
    print("ragged execution:", ", ".join(f"{name} {value}" for name, value in setting.items()))
    print(HEADER, flush=True)
    report: dict[str, Any] = {"setting": setting, "rows": [], "left_out": []}
    rates = {hidden: measure_rate(hidden, DEVICE, PRECISION) for hidden in options.hidden}
    for case in make_cases(options):
        run_case(case, options, rates[case.hidden], report)
    print(f"{len(report['rows'])} rows, {len(report['left_out'])} left out")
    for line in judge_rows(report["rows"], DEVICE.type == "cuda"):
        print(line)


def list_rows(computed: ComputedSteps) -> list[tuple[int, int]]:
    """Return the rows of queries and the rows of keys that each iteration computed."""
    return list(zip(computed.queries.tolist(), computed.keys.tolist(), strict=True))


def make_products(block: Any, steps: Sequence[tuple[int, int]], training: bool) -> Callable[[], None]:
    """Return a function that runs only the matrix products of a block, and with `training` their gradients.

    Args:
        block: Block of either ALBERT; their layers have the same names.
        steps: Rows of queries and of keys, iteration by iteration.
        training: Whether gradients are computed.
    """
    attention, most = block.attention, max(map(max, steps))
    layers = [attention.query, attention.key, attention.value, attention.dense, block.ffn, block.ffn_output]
    inputs = [torch.randn(most, layer.in_features).to(layer.weight) for layer in layers]
    gradients = [torch.randn(most, layer.out_features).to(layer.weight) for layer in layers]

    def multiply(layer: nn.Linear, state: Tensor, gradient: Tensor) -> None:
        if training:
            state = state.detach().requires_grad_()
            torch.autograd.grad(layer(state), (state, layer.weight, layer.bias), gradient)
        else:
            layer(state)

    def run() -> None:
        with torch.set_grad_enabled(training):
            for queries, keys in steps:
                rows = (queries, keys, keys, queries, queries, queries)
                for layer, state, gradient, count in zip(layers, inputs, gradients, rows, strict=True):
                    multiply(layer, state[:count], gradient[:count])

    return run


Row = dict[str, Any]

# On a CPU, of transformers' ALBERT at the mean depth: mode, width, smallest and largest batch, at most.
_OF_ALBERT = (
    ("inference", 768, 1, 1, 1.10),
    ("inference", 768, 8, 32, 1.10),
    ("inference", 256, 1, 1, 1.15),
    ("inference", 256, 8, 32, 1.08),
    ("training", 768, 8, 32, 1.05),
)


def judge(
    text: str, rows: Sequence[Row], execution: str, number: str, at_most: float = 0.0, at_least: float = 0.0
) -> str:
    """Compare a number of the worst row with the given limit and format the verdict."""
    values = [(row[execution][number], row) for row in rows if number in row.get(execution, {})]
    limit = f"target >= {at_least:g}" if at_least else f"target <= {at_most:g}"
    if not values:
        return f"{text}: not measured ({limit})"
    worst, row = (min if at_least else max)(values, key=lambda pair: pair[0])
    good = sum(value >= at_least if at_least else value <= at_most for value, _ in values)
    verdict = "met" if good == len(values) else f"NOT met in {len(values) - good} of {len(values)} rows"
    where = f"{row['mode']} H {row['hidden']} L {row['depth']} {row['depths']} S {row['length']} B {row['batch']}"
    return f"{text}: {worst:.3g} ({limit}: {verdict}; worst at {where})"


def judge_rows(rows: Sequence[Row], on_gpu: bool) -> Iterator[str]:
    """Yield the verdict on every target of this kind of device."""

    def select_rows(mode: str, hidden: int, least: int, most: float = math.inf) -> list[Row]:
        kind = (mode, hidden, 128, False)
        matches = [row for row in rows if (row["mode"], row["hidden"], row["length"], row["padding"]) == kind]
        return [row for row in matches if least <= row["batch"] <= most]

    if on_gpu:
        text = "inference, H 768, batch >= 32, length 128: ragged, share of the ideal speed-up"
        yield judge(text, select_rows("inference", 768, 32), "ragged", "share_of_ideal", at_least=0.75)
    else:
        for mode, hidden, least, most, limit in _OF_ALBERT:
            text = f"{mode}, H {hidden}, batch {least} to {most}, length 128: ragged / ALBERT at the mean depth"
            yield judge(text, select_rows(mode, hidden, least, most), "ragged", "of_albert", at_most=limit)
        for mode in ("inference", "training"):
            text = f"{mode}, H 768, batch >= 8, length 128: ragged, share of the ideal speed-up"
            yield judge(text, select_rows(mode, 768, 8), "ragged", "share_of_ideal", at_least=0.85)
        single = [row for row in rows if row["batch"] == 1]
        for name in ("ragged", "auto"):
            yield judge(f"batch 1: {name} / dense", single, name, "of_dense", at_most=1.0)
        yield judge("ragged and dense, largest difference of a state", rows, "ragged", "difference", at_most=1e-5)
        yield judge("ragged and dense, gradients", rows, "ragged", "gradient_difference", at_most=1e-5)
    yield judge("auto / the faster of dense and ragged", rows, "auto", "of_best", at_most=1.05)
    yield judge("ragged and dense, the same updates", rows, "ragged", "updates_equal", at_least=1)


if __name__ == "__main__":
    main()
