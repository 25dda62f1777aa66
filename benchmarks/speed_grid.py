"""Speed-up of ragged execution: by width, batch, threads, and forward pass or training step.

    python benchmarks/speed_grid.py [--hidden 64 128 256] [--batch 1 8 64 512] [--threads 1 2]
        [--mode forward training] [--seconds 20] [--json FILE]

The demo's model (`act_hops`: 16 tokens a sequence, recall, readouts) at several widths, with the depths that its tokens
get after training: 2, 2, 2, 3, 4, 5, on average 3.0. They are prescribed, so no network is trained.

Each cell times both executions in turns within one process, for as many rounds as fit into its seconds, and prints
  ratio    dense over ragged time, of medians: above 1, ragged is faster
  cpu      the same of the processor's time, with one thread: other work on the machine disturbs it less
  allowed  dense over adaptive multiply-accumulates: what the ratio would be if time were work and nobody waited
  share    ratio over allowed
Every figure is followed by the processor, torch's version and the threads that it was measured with. A training step is
a forward and a backward pass without an optimiser.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch
from prescribed_depths import prescribe_depths
from torch import Tensor

from adadepth import AlbertActConfig, AlbertActForTokenClassification
from adadepth.runtime.distributed import set_malloc_thresholds
from adadepth.runtime.hardware import describe_machine
from adadepth.runtime.timing import time_interleaved

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
MODES = ("forward", "training")
LENGTH, DEPTHS = 16, (2, 2, 2, 3, 4, 5)
LEAST_ROUNDS, MOST_ROUNDS = 5, 400


def make_model(hidden: int, depths: Tensor) -> AlbertActForTokenClassification:
    """Build the demo's model at this width, untrained, with prescribed depths of tokens, (B, T)."""
    torch.manual_seed(0)
    config = AlbertActConfig(
        vocab_size=25, embedding_size=hidden, hidden_size=hidden, intermediate_size=4 * hidden,
        num_attention_heads=hidden // 16, num_hidden_layers=8, max_position_embeddings=24, num_labels=4,
        initializer_range=0.12, hidden_act="gelu", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        state_rule="graves", cap_remainder="forced", recall=True, readout_weight=0.5,
    )  # fmt: skip
    model = AlbertActForTokenClassification(config).to(DEVICE)
    prescribe_depths(model.albert, depths)
    return model


def make_batch(batch: int) -> dict[str, Tensor]:
    """Draw random ids and labels of a batch, (B, 16)."""
    generator = torch.Generator().manual_seed(1)
    ids, labels = (torch.randint(low, high, (batch, LENGTH), generator=generator) for low, high in ((5, 25), (0, 4)))
    return {"input_ids": ids.to(DEVICE), "attention_mask": torch.ones_like(ids).to(DEVICE), "labels": labels.to(DEVICE)}


def run_model(model: AlbertActForTokenClassification, batch: dict[str, Tensor], mode: str, execution: str) -> Any:
    """Run one forward pass or training step under an execution, and return the outputs."""
    model.config.execution = execution
    with torch.set_grad_enabled(mode == "training"):
        outputs = model(**batch)
    if mode == "training":
        outputs.loss.backward()
        model.zero_grad(set_to_none=True)
    return outputs


def call_on_clock(call: Callable[[], Any], seconds: list[float]) -> None:
    """Call a function, and append its processor seconds."""
    begun = time.process_time()
    call()
    seconds.append(time.process_time() - begun)


def measure_cell(hidden: int, batch: int, mode: str, seconds: float) -> dict[str, Any]:
    """Measure one cell of the grid."""
    depths = torch.tensor(DEPTHS).repeat(-(-batch * LENGTH // len(DEPTHS)))[: batch * LENGTH].view(batch, LENGTH)
    model, inputs = make_model(hidden, depths).train(mode == "training"), make_batch(batch)
    calls: dict[str, Callable[[], Any]] = {
        execution: partial(run_model, model, inputs, mode, execution) for execution in ("dense", "ragged")
    }
    traces = {execution: call().trace for execution, call in calls.items()}
    for trace in traces.values():
        assert trace.updates.cpu().equal(depths.float()), "the depths are not those prescribed"
    work = model.price(traces["ragged"])
    used: dict[str, list[float]] = {execution: [] for execution in calls}
    calls = {execution: partial(call_on_clock, call, used[execution]) for execution, call in calls.items()}
    pilot = time_interleaved(calls, repeats=3, warmup=1, device=DEVICE)
    rounds = int(seconds / sum(times["median"] for times in pilot.values()))
    times = time_interleaved(calls, max(LEAST_ROUNDS, min(rounds, MOST_ROUNDS)), 0, DEVICE)
    ratio = times["dense"]["median"] / times["ragged"]["median"]
    of_processor = median(used["dense"]) / median(used["ragged"]) if torch.get_num_threads() == 1 else None
    allowed = float(work.dense / work.adaptive)
    return {
        "mode": mode, "hidden": hidden, "batch": batch, "threads": torch.get_num_threads(), "seconds": times,
        "ratio": ratio, "cpu": of_processor, "allowed": allowed, "share": ratio / allowed,
        "machine": describe_machine(DEVICE), "load": os.getloadavg()[0],
    }  # fmt: skip


def describe_cell(cell: dict[str, Any]) -> str:
    """Format one cell of the grid as a line."""
    cpu = "    -" if cell["cpu"] is None else f"{cell['cpu']:5.2f}"
    dense, ragged = (1e3 * cell["seconds"][name]["median"] for name in ("dense", "ragged"))
    return (
        f"{cell['mode']:<8} width {cell['hidden']:4d} batch {cell['batch']:4d} | dense {dense:8.2f} ms  ragged "
        f"{ragged:8.2f} ms  ratio {cell['ratio']:5.2f} cpu {cpu} allowed {cell['allowed']:5.2f} "
        f"share {cell['share']:4.2f} | {cell['machine']}; {cell['seconds']['dense']['n']} rounds, "
        f"load {cell['load']:.1f}"
    )


def main() -> None:
    """Print a line a cell, and write the JSON on request."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 64, 512])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--mode", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds of a cell, if that is five rounds or more")
    parser.add_argument("--json", type=Path, default=None, help="written after every cell")
    options = parser.parse_args()
    set_malloc_thresholds()  # as a run does
    cells = []
    for threads, mode, hidden, batch in product(options.threads, options.mode, options.hidden, options.batch):
        torch.set_num_threads(threads)
        cells.append(measure_cell(hidden, batch, mode, options.seconds))
        print(describe_cell(cells[-1]), flush=True)
        if options.json is not None:
            options.json.write_text(json.dumps(cells, indent=2) + "\n")


if __name__ == "__main__":
    main()
