"""PonderALBERT's inference with exits: does the time follow the mean exit step, or the slowest example?

    python benchmarks/ponder_inference.py [--hidden 256 768] [--depth 12 24] [--batch 32] [--lengths full mixed]
                                          [--exits uniform early one-deep] [--repeats 7] [--json FILE]

Three ways over the same batch, the same weights and the same exit steps, which a rule prescribes:
  full       every example runs all N steps: the full-depth model
  compacted  examples leave the batch when they exit: this project
  waiting    every example runs until the last one exits: the reference implementation
The ratio is compacted / (mean exit step / N x full), 1 if time followed the mean exit step exactly; with texts of mixed
lengths it follows the tokens that still run instead. The limit is the ratio at the sizes: of the layer's own time for
the sequences that still run at each step, measured alone, which is longer a sequence where few are left. Passes are
interleaved and medians compared, because machines drift. Predictions are compared with the uncompacted evaluation of
the same rule.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from adadepth import PonderAlbertConfig, PonderAlbertForSequenceClassification
from adadepth.halting.exit_rules import ExitRule, Fixed, StepView
from adadepth.models.shared.albert.stepper import PackedRows
from adadepth.runtime.distributed import set_malloc_thresholds
from adadepth.runtime.hardware import describe_machine

TARGET = 1.05
LENGTH = 128


@dataclass(frozen=True)
class Prescribed(ExitRule):
    """Exit rule of prescribed exit steps."""

    name = "prescribed"
    needs = frozenset()
    steps: tuple[int, ...]

    def start(self, rows: int, device: torch.device | str, generator: torch.Generator | None = None) -> Tensor:
        """Return the exit steps."""
        return torch.tensor(self.steps, dtype=torch.float32, device=device).unsqueeze(1)

    def decide(self, view: StepView, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Compare the step with the exit step."""
        return memory[:, 0] <= view.step, memory


def make_exits(kind: str, batch: int, depth: int) -> list[int]:
    """Draw exit steps of a batch: even, mostly early (geometric, mean about a quarter), or all early but one."""
    generator = torch.Generator().manual_seed(0)
    if kind == "uniform":
        steps = torch.linspace(1, depth, batch).round()
    elif kind == "early":
        uniform = torch.rand(batch, generator=generator)
        steps = (uniform.log() / torch.tensor(1 - 4 / depth).log()).ceil().clamp(1, depth)
    else:
        steps = torch.full((batch,), depth / 4).round()
        steps[0] = depth
    return [int(step) for step in steps[torch.randperm(batch, generator=generator)]]


def make_batch(lengths: str, batch: int, vocab_size: int, device: torch.device) -> dict[str, Tensor]:
    """Draw random ids: all of full length, or of lengths from an eighth of it upwards."""
    generator = torch.Generator().manual_seed(1)
    counts = torch.full((batch,), LENGTH)
    if lengths == "mixed":
        counts = torch.randint(LENGTH // 8, LENGTH + 1, (batch,), generator=generator)
        counts[0] = LENGTH
    ids = torch.randint(5, vocab_size, (batch, LENGTH), generator=generator)
    mask = (torch.arange(LENGTH) < counts.unsqueeze(1)).long()
    return {"input_ids": (ids * mask).to(device), "attention_mask": mask.to(device)}


def make_model(hidden: int, depth: int, device: torch.device) -> PonderAlbertForSequenceClassification:
    """Build an untrained model of ALBERT's proportions, in the device's usual precision."""
    config = PonderAlbertConfig(
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_attention_heads=hidden // 64,
        num_hidden_layers=depth,
        initializer_range=0.05,  # larger than usual, so that steps and texts differ in their untrained predictions
    )
    torch.manual_seed(0)
    precision = torch.bfloat16 if device.type == "cuda" else torch.float32
    return PonderAlbertForSequenceClassification(config).to(device, precision).eval()


def time_pass(forward: Callable[[], Any], device: torch.device) -> float:
    """Return the seconds of one pass."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    forward()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def compare_predictions(
    model: PonderAlbertForSequenceClassification, batch: dict[str, Tensor], rule: ExitRule
) -> dict[str, Any]:
    """Compare evaluation with and without compaction: exit steps, classes, largest difference of a logit."""
    compacted, full = model(**batch, exit_rule=rule), model(**batch, exit_rule=rule, run_all_steps=True)
    same = compacted.exit_steps.equal(full.exit_steps) and compacted.logits.argmax(1).equal(full.logits.argmax(1))
    return {
        "predictions_identical": bool(same),
        "largest_difference": (compacted.logits - full.logits).abs().max().item(),
    }


def measure(hidden: int, depth: int, lengths: str, exits: str, batch_size: int, repeats: int) -> dict[str, Any]:
    """Measure one row of the table."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = make_model(hidden, depth, device)
    batch = make_batch(lengths, batch_size, model.config.vocab_size, device)
    steps = make_exits(exits, batch_size, depth)
    rules = {"full": Fixed(depth), "compacted": Prescribed(tuple(steps)), "waiting": Fixed(max(steps))}
    passes: dict[Any, Callable[[], Any]] = {
        name: partial(model, **batch, exit_rule=rule) for name, rule in rules.items()
    }
    passes |= build_layer_passes(model, batch["attention_mask"], steps)
    with torch.inference_mode():
        agreement = compare_predictions(model, batch, rules["compacted"])  # warms up, too
        seconds: dict[Any, list[float]] = {name: [] for name in passes}
        for _ in range(repeats):
            for name, forward in passes.items():
                seconds[name].append(time_pass(forward, device))
    share = statistics.mean(steps) / depth
    layer = {step: statistics.median(seconds.pop(step)) for step in range(1, max(steps) + 1)}
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "hidden": hidden,
        "depth": depth,
        "lengths": lengths,
        "exits": exits,
        "mean_exit": statistics.mean(steps),
        "max_exit": max(steps),
        **{f"{name}_seconds": value for name, value in medians.items()},
        **{f"{name}_range": [min(values), max(values)] for name, values in seconds.items()},
        "ratio": medians["compacted"] / (share * medians["full"]),
        "limit": sum(layer.values()) / (share * depth * layer[1]),
        "waiting_ratio": medians["waiting"] / (share * medians["full"]),
        **agreement,
    }


def build_layer_passes(
    model: PonderAlbertForSequenceClassification, mask: Tensor, steps: list[int]
) -> dict[int, Callable[[], Tensor]]:
    """Return a function for each step that applies the layer to the sequences still running, and does nothing else."""
    exits = torch.tensor(steps, device=mask.device)

    def build_application(step: int) -> Callable[[], Tensor]:
        valid = mask[exits >= step]
        state = torch.randn(*valid.shape, model.config.hidden_size, device=mask.device, dtype=model.dtype)
        rows = PackedRows(model.config, state, valid, {}, training=False)
        return lambda: rows.update(model.albert.encoder.albert_layer)

    return {step: build_application(step) for step in range(1, max(steps) + 1)}


def list_cases(options: argparse.Namespace) -> Iterator[tuple[int, int, str, str]]:
    """Yield every combination, the cheapest first."""
    for hidden in options.hidden:
        for depth in options.depth:
            for lengths in options.lengths:
                for exits in options.exits:
                    yield hidden, depth, lengths, exits


def main() -> None:
    """Print the table, and write the JSON on request."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, nargs="+", default=[256, 768])
    parser.add_argument("--depth", type=int, nargs="+", default=[12, 24])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lengths", nargs="+", choices=("full", "mixed"), default=["full", "mixed"])
    parser.add_argument(
        "--exits", nargs="+", choices=("uniform", "early", "one-deep"), default=["uniform", "early", "one-deep"]
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    set_malloc_thresholds()  # as a run does

    on_gpu = torch.cuda.is_available()
    device = describe_machine(torch.device("cuda" if on_gpu else "cpu"))
    setting = {
        "device": device,
        "precision": "bfloat16" if on_gpu else "float32",
        "batch": options.batch,
        "length": LENGTH,
        "repeats": options.repeats,
    }
    print("inference with exits:", ", ".join(f"{name} {value}" for name, value in setting.items()))
    print("   H  N lengths exits    mean max    full ms compacted ms waiting ms  ratio limit waiting  predictions")
    rows = []
    for case in list_cases(options):
        row = measure(*case, options.batch, options.repeats)
        rows.append(row)
        same = "identical" if row["predictions_identical"] else "DIFFERENT"
        print(
            f"{row['hidden']:4d} {row['depth']:2d} {row['lengths']:<7} {row['exits']:<8} {row['mean_exit']:4.1f} "
            f"{row['max_exit']:3d} {1e3 * row['full_seconds']:10.1f} {1e3 * row['compacted_seconds']:12.1f} "
            f"{1e3 * row['waiting_seconds']:10.1f} {row['ratio']:6.3f} {row['limit']:5.3f} {row['waiting_ratio']:7.3f} "
            f" {same} ({row['largest_difference']:.0e})",
            flush=True,
        )
    worst = max(row["ratio"] for row in rows)
    print(f"largest ratio {worst:.3f} (target <= {TARGET})")
    if options.json is not None:
        options.json.write_text(json.dumps({"setting": setting, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
