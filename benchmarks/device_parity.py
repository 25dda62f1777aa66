"""Every family on a device and on a CPU, in float32: the same losses, gradients, depths and exits?

    python benchmarks/device_parity.py [--only NAME ...] [--seeds 3] [--json FILE]

The same weights and batches of small models, without dropout, in training mode; tf32 is off. A loss's difference is
relative to the loss; the gradient's is the norm of the difference over the norm. Depths are of an evaluation of the
same batch, and of models that predict after every step also the predictions and the exits of a rule whose threshold
lies between those of the CPU. Without an accelerator the CPU is compared with itself, which shows that the comparison
runs and nothing about a device.
"""

from __future__ import annotations

import argparse
import copy
import json
from pathlib import Path
from typing import Any

import torch
from family_cases import build_case, disable_dropout, move
from torch import Tensor

from adadepth.runtime.hardware import describe_machine

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LOSS_TARGET, GRADIENT_TARGET, SAME_TARGET = 1e-4, 1e-3, 0.99
CASES = {
    "ACT-ALBERT, masked text": "act_tiny model=albert_act_mini dataset.sequence_length=64",
    "ACT-ALBERT, tags": "act_hops",
    "PonderALBERT": "ponder_tiny",
    "ALBERT": "ponder_tiny model=albert_mini",
    "PABEE": "ponder_tiny model=pabee_mini",
    "Ponder RNN": "ponder_parity",
    "Adalayers": "adalayers_tiny features.cache=false",
    "PAR-XL": "par_network",
    "PAR-XL, supernet": "par_tiny",
    "TRM": "trm_tiny",
    "looped, text": "loop_tiny",
    "looped, pointers": "loop_hops",
}
ROWS = "trainer.per_device_train_batch_size=8"


def compute_gradient(model: Any, inputs: dict[str, Any]) -> tuple[float, Tensor]:
    """Return loss and gradient of a step, on the CPU."""
    model.zero_grad(set_to_none=True)
    loss = model(**inputs).loss
    loss.backward()
    gradients = [weight.grad.flatten().float().cpu() for weight in model.parameters() if weight.grad is not None]
    return loss.item(), torch.cat(gradients)


@torch.no_grad()
def evaluate(model: Any, inputs: dict[str, Any], rule: str | None) -> dict[str, Tensor]:
    """Return depths, and with a rule predictions after every step and exits, on the CPU."""
    model.eval()
    inputs = {name: value for name, value in inputs.items() if name not in ("carry", "draws")}
    outputs_by_name = {"updates": model(**inputs).trace.updates}
    if rule is not None:
        outputs = model(**inputs, exit_rule=rule, run_all_steps=True)
        outputs_by_name |= {"step_logits": outputs.step_logits[...], "exits": outputs.exit_steps}
    model.train()
    return {name: value.float().cpu() for name, value in outputs_by_name.items()}


def resolve_exit_rule(model: Any, inputs: dict[str, Any]) -> str | None:
    """Return a confidence rule with a threshold between two confidences seen on the CPU; None without predictions."""
    if "logits" not in model.exit_signals:
        return None
    steps = evaluate(model, inputs, "fixed:1")["step_logits"]
    if steps.shape[-1] == 1:
        return None
    values = steps.softmax(-1).amax(-1).flatten().unique()
    middle = len(values) // 2
    threshold = (values[middle] + values[min(middle + 1, len(values) - 1)]).item() / 2
    return f"confidence:{min(max(threshold, 1e-3), 0.999):.6f}"


def compare_devices(case: str, seed: int) -> dict[str, float]:
    """Return the differences of the device from the CPU."""
    model, inputs = build_case(f"{case} {ROWS}", seed)
    disable_dropout(model)
    rule = resolve_exit_rule(model, inputs)
    device_model, device_inputs = copy.deepcopy(model).to(DEVICE), move(inputs, DEVICE)
    loss, gradient = compute_gradient(model, inputs)
    device_loss, device_gradient = compute_gradient(device_model, device_inputs)
    expected, actual = evaluate(model, inputs, rule), evaluate(device_model, device_inputs, rule)
    result = {
        "loss": abs(device_loss - loss) / max(abs(loss), 1e-12),
        "gradient": ((device_gradient - gradient).norm() / gradient.norm()).item(),
        "same_updates": actual["updates"].eq(expected["updates"]).float().mean().item(),
    }
    if rule is not None:
        difference = (actual["step_logits"] - expected["step_logits"]).abs().nan_to_num()
        result["step_logits"] = (difference.max() / expected["step_logits"].nan_to_num().abs().max()).item()
        result["same_exits"] = actual["exits"].eq(expected["exits"]).float().mean().item()
    return result


def select_worst(runs: list[dict[str, float]]) -> dict[str, float]:
    """Return the largest differences and the smallest shares of equal results over all runs."""
    return {name: (min if name.startswith("same") else max)(run[name] for run in runs) for name in runs[0]}


def is_met(row: dict[str, Any]) -> bool:
    """Return whether a row is within the targets."""
    shares = [row[name] for name in ("same_updates", "same_exits") if name in row]
    return row["loss"] <= LOSS_TARGET and row["gradient"] <= GRADIENT_TARGET and min(shares) >= SAME_TARGET


def measure(name: str, seeds: int) -> dict[str, Any]:
    """Compare the devices on one case; return a row of the table, with the error if the case fails."""
    try:
        differences = select_worst([compare_devices(CASES[name], seed) for seed in range(seeds)])
    except Exception as error:  # one family must not hide the others
        return {"case": name, "error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
    row = {"case": name, "n": seeds, **differences}
    return row | {"met": is_met(row)}


def main() -> None:
    """Print a line a family, and write the JSON on request; fails where a family is off its targets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="NAME")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    device = describe_machine(DEVICE) + (", compared with itself" if DEVICE.type == "cpu" else "")
    print(f"parity: {device}; largest relative difference of {options.seeds} seeds", flush=True)
    report: dict[str, Any] = {"setting": {"device": device, "itself": DEVICE.type == "cpu"}, "rows": []}
    for name in options.only:
        row = measure(name, options.seeds)
        report["rows"].append(row)
        print(f"  {name:<24} {format_row(row)}", flush=True)
        if options.json is not None:
            options.json.write_text(json.dumps(report, indent=2) + "\n")
    missed = [row["case"] for row in report["rows"] if not row.get("met")]
    if missed:
        raise SystemExit(f"not within the targets: {', '.join(missed)}")


def format_row(row: dict[str, Any]) -> str:
    """Format a row as a line of text."""
    if "error" in row:
        return f"FAILED {row['error']}"
    exits = f", exits the same {row['same_exits']:.1%}, steps {row['step_logits']:.0e}" if "same_exits" in row else ""
    verdict = "met" if row["met"] else "NOT met"
    differences = f"loss {row['loss']:.0e}, gradient {row['gradient']:.0e}"
    return f"{differences}, depths the same {row['same_updates']:.1%}{exits}: {verdict}"


if __name__ == "__main__":
    main()
