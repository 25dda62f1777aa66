"""Memory of real training steps against mode=estimate, a process each: `python benchmarks/estimated_memory.py --help`.

The process builds the model with weights, and trains some updates on micro-batches of the longest examples. Its peak is
that of the operating system (`VmHWM`, reset before the last update) without the memory held before the model. Linux
only; freed memory is given back at once (`MALLOC_MMAP_THRESHOLD_`).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

STEPS = 3
_WIDE = "act_tiny model=albert_act_tiny dataset=python_docs budget=none"  # the published width
CASES = {
    "ACT-ALBERT, masked text": _WIDE,
    "the same, computed again": f"{_WIDE} trainer.gradient_checkpointing=true",
    "ACT-ALBERT, tags": "act_pos",
    "ACT-ALBERT, eager attention": f"{_WIDE} model.attn_implementation=eager",
    "PonderALBERT": "ponder_tiny trainer.per_device_train_batch_size=128",
    "ALBERT": "ponder_tiny model=albert_mini trainer.per_device_train_batch_size=128",
    "PABEE": "ponder_tiny model=pabee_mini trainer.per_device_train_batch_size=128",
    "Ponder RNN": "ponder_parity trainer.per_device_train_batch_size=8192",
    "Adalayers": "adalayers_tiny trainer.per_device_train_batch_size=128",
    "PAR-XL": "par_tiny trainer.per_device_train_batch_size=64",
    "PAR-XL supernet": "par_network trainer.per_device_train_batch_size=128",
    "TRM": "trm_tiny",
    "the same, computed again ": "trm_tiny trainer.gradient_checkpointing=true trainer.per_device_train_batch_size=192",
    "looped, text": "loop_tiny",
    "looped, text, computed again": "loop_tiny trainer.gradient_checkpointing=true",
    "looped, pointers": "loop_hops",
}


def read_resident_bytes(line: str) -> int:
    """Return the bytes of `VmRSS` or `VmHWM`."""
    status = dict(status_line.split(":", 1) for status_line in Path("/proc/self/status").read_text().splitlines())
    return int(status[line].split()[0]) * 1024


def measure(case: str) -> dict[str, float]:
    """Return the bytes of a step, estimated and at the peak of a real one, and the mean updates of the real one."""
    import torch
    from family_cases import build_case_config, build_case_model, select_inputs

    from adadepth.contrib.estimate.estimate import estimate_training
    from adadepth.contrib.estimate.training_spec import build_training_spec
    from adadepth.training.optimization import build_optimizer

    torch.set_num_threads(1)
    config = build_case_config(case)
    estimate = estimate_training(config)["memory"]
    warm = torch.ones(64, 64, requires_grad=True)
    (warm @ warm).sum().backward()
    subject = build_training_spec(config)
    before = read_resident_bytes("VmRSS")
    batch = subject.batch(config.trainer.per_device_train_batch_size)
    model = build_case_model(config, subject)  # no token halts, as the estimate assumes
    optimizer = build_optimizer(model, config.trainer)
    inputs = select_inputs(config, model, batch)
    for _ in range(STEPS):
        optimizer.zero_grad()
        Path("/proc/self/clear_refs").write_text("5")
        outputs = model(**inputs)
        depth = float(outputs.trace.updates.float().mean())
        outputs.loss.backward()
        del outputs
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return {"estimated": estimate["total"], "peak": read_resident_bytes("VmHWM") - before, "depth": depth}


def main() -> None:
    """Print a line for every case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", help="measure this one, here: a configuration and its overrides")
    parser.add_argument("--only", nargs="*", default=list(CASES), help="names of cases")
    parser.add_argument("--repeats", type=int, default=1)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(measure(options.case)))
        return
    print("| model | configuration | mean updates | estimated, MiB | measured, MiB | estimated by measured |")
    print("|---|---|---|---|---|---|")
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    for name in options.only:
        command = [sys.executable, __file__, "--case", CASES[name]]
        runs = [
            json.loads(
                subprocess.run(command, env=environment, check=True, capture_output=True).stdout.splitlines()[-1]
            )
            for _ in range(options.repeats)
        ]
        peaks, estimate = sorted(run["peak"] for run in runs), runs[0]["estimated"]
        measured = " to ".join(dict.fromkeys(f"{peak / 2**20:,.0f}" for peak in (peaks[0], peaks[-1])))
        ratio = estimate / peaks[len(peaks) // 2]
        depth = f"{runs[0]['depth']:.1f}"
        print(
            f"| {name} | `{CASES[name]}` | {depth} | {estimate / 2**20:,.0f} | {measured} | {ratio:.2f} |", flush=True
        )


if __name__ == "__main__":
    main()
