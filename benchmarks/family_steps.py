"""Training steps of every family: their share of the device's peak, beside a comparable model of transformers.

    python benchmarks/family_steps.py [--small] [--only NAME ...] [--repeats 10] [--json FILE]

A step is forward pass, loss, backward pass and a fused AdamW, dense, at full depth, in bf16 autocast on an accelerator
and in float32 on a CPU. Its operations are those of its products and of attention, counted in the same way for both
models. The share is operations a second over the peak of the data sheet (MFU) if the device is one of
`adadepth.contrib.estimate.devices`, and over the rate of a large product that is measured here. The peer has as many
layers as the model applies, of the same widths; TRM and Ponder's recurrent cell have none in transformers. Steps are
timed in turns. With `--small`, models take minutes on a CPU, and their shares say little.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from device_parity import CASES as SMALL
from device_parity import ROWS
from family_cases import build_case, move
from ragged_cases import measure_rate
from torch import Tensor, nn
from training_step import AlbertWithSparseHead, make_step
from transformers import AlbertConfig, AlbertForSequenceClassification, GPT2Config, LlamaConfig
from transformers import GPT2LMHeadModel as Gpt
from transformers import LlamaForCausalLM as Llama

from adadepth.contrib.estimate.devices import find_driver_device, get_peak_rate
from adadepth.contrib.estimate.fake_step import MemoryTracker
from adadepth.runtime.hardware import describe_machine
from adadepth.runtime.timing import time_interleaved

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PRECISION = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32
WARMUP = 3
PRODUCT = 4096 if DEVICE.type == "cuda" else 1024  # width of the product that is measured
_ALBERT = "model.hidden_size=768 model.num_attention_heads=12 model.intermediate_size=3072 model.embedding_size=128"
_SHORT = "dataset.sequence_length=128 trainer.per_device_train_batch_size=64"
_PAR = (
    "model.hidden_size=512 model.num_attention_heads=8 model.intermediate_size=2048 model.memory_length=192 "
    "dataset.sequence_length=192 trainer.per_device_train_batch_size=64"
)
CASES = {
    "ACT-ALBERT, masked text": "act_tiny model=albert_act_tiny dataset=python_docs budget=none "
    "trainer.per_device_train_batch_size=64",
    "PonderALBERT": f"ponder_tiny {_ALBERT} {_SHORT}",
    "ALBERT": f"ponder_tiny model=albert_mini {_ALBERT} {_SHORT}",
    "PABEE": f"ponder_tiny model=pabee_mini {_ALBERT} {_SHORT}",
    "Ponder RNN": "ponder_parity trainer.per_device_train_batch_size=8192",
    "Adalayers": "adalayers_tiny features.cache=false dataset.sequence_length=128 "
    "trainer.per_device_train_batch_size=256",
    "PAR-XL": f"par_network {_PAR}",
    "PAR-XL, supernet": f"par_tiny {_PAR}",
    "TRM": "trm_sudoku_extreme",
    "looped, text": "loop_tiny model.hidden_size=1024 model.num_attention_heads=16 model.intermediate_size=2816 "
    "dataset.sequence_length=512 trainer.per_device_train_batch_size=32",
}


class Classified(nn.Module):
    """Frozen encoder run without gradients, with a linear head on the mean of its states."""

    def __init__(self, base: nn.Module, width: int) -> None:
        super().__init__()
        self.base, self.head = base, nn.Linear(width, 2)

    def forward(self, labels: Tensor, **inputs: Tensor) -> Tensor:
        """Compute the loss of the labels."""
        with torch.no_grad():
            states = self.base(**inputs).last_hidden_state
        return nn.functional.cross_entropy(self.head(states.mean(dim=1)).float(), labels)


def build_peer(model: Any, inputs: dict[str, Any]) -> tuple[str, nn.Module, dict[str, Any]] | None:
    """Build the comparable model of transformers, with its name and inputs; None if there is none."""
    build = {
        "albert_act": _build_masked_albert, "ponder_albert": _build_albert, "albert": _build_albert,
        "multi_exit_albert": _build_albert,
        "adalayers": _build_frozen, "par_xl": _build_gpt, "looped": _build_llama,
    }.get(model.config.model_type)  # fmt: skip
    if build is _build_masked_albert and "sentence_order_label" not in inputs:
        return None
    return None if build is None else build(model, inputs)


def _build_masked_albert(model: Any, inputs: dict[str, Any]) -> tuple[str, nn.Module, dict[str, Any]]:
    return "ALBERT, the same heads", AlbertWithSparseHead(model.config, model.max_updates), inputs


def _build_albert(model: Any, inputs: dict[str, Any]) -> tuple[str, nn.Module, dict[str, Any]]:
    names = "vocab_size embedding_size hidden_size num_attention_heads intermediate_size max_position_embeddings"
    sizes = {name: getattr(model.config, name) for name in (*names.split(), "num_hidden_layers", "num_labels")}
    return "ALBERT", AlbertForSequenceClassification(AlbertConfig(**sizes)), inputs


def _build_frozen(model: Any, inputs: dict[str, Any]) -> tuple[str, nn.Module, dict[str, Any]]:
    base = type(model.model)(model.model.config)
    return type(base).__name__, Classified(base, base.config.hidden_size), inputs


def _build_gpt(model: Any, inputs: dict[str, Any]) -> tuple[str, nn.Module, dict[str, Any]]:
    config, ids = model.config, inputs["input_ids"]
    shape = {"n_embd": config.hidden_size, "n_head": config.num_attention_heads, "n_inner": config.intermediate_size}
    layers = config.num_hidden_layers // 2  # a layer has two blocks: attention and feed-forward
    peer = Gpt(GPT2Config(vocab_size=config.vocab_size, n_positions=ids.shape[1], n_layer=layers, **shape))
    return "GPT-2", peer, {"input_ids": ids, "labels": ids}


def _build_llama(model: Any, inputs: dict[str, Any]) -> tuple[str, nn.Module, dict[str, Any]]:
    config, ids = model.config, inputs["input_ids"]
    names = ("vocab_size", "hidden_size", "num_attention_heads", "intermediate_size", "max_position_embeddings")
    layers = config.prelude + config.core * config.num_loops + config.coda
    peer = Llama(LlamaConfig(**{name: getattr(config, name) for name in names}, num_hidden_layers=layers))
    return "Llama", peer, {"input_ids": ids, "labels": ids}


def count_operations(step: Callable[[], Any]) -> int:
    """Count multiplications and additions of products and attention in a step."""
    with MemoryTracker() as tracker:
        step()
    return tracker.operations


def get_sheet_peak(name: str) -> float | None:
    """Return the operations a second of the device's data sheet, or None if it is not in the table."""
    device = find_driver_device(name)
    return None if device is None else get_peak_rate(device, "bf16", tf32=False)


def measure(case: str, repeats: int, rate: float, peak: float | None) -> dict[str, Any]:
    """Measure seconds, operations and shares of a model and its peer."""
    model, inputs = build_case(case)
    peer = build_peer(model, inputs)
    models = {"ours": (model, inputs)} | ({} if peer is None else {"peer": peer[1:]})
    steps = {
        name: make_step(step_model.to(DEVICE).train(), move(step_inputs, DEVICE), PRECISION)
        for name, (step_model, step_inputs) in models.items()
    }
    operations = {name: count_operations(step) for name, step in steps.items()}
    seconds = time_interleaved(steps, repeats, WARMUP, DEVICE)
    row: dict[str, Any] = {"peer_name": None if peer is None else peer[0]}
    for name, times in seconds.items():
        per_second = operations[name] / times["median"]
        shares = {"of_product": per_second / rate, "mfu": None if peak is None else per_second / peak}
        row[name] = {"operations": operations[name], "seconds": times, **shares}
    return row


def format_row(row: dict[str, Any]) -> str:
    """Format a row as a line of text."""
    if "error" in row:
        return f"FAILED {row['error']}"
    parts = []
    for name in ("ours", "peer"):
        if name in row:
            figures = row[name]
            mfu = "" if figures["mfu"] is None else f", MFU {figures['mfu']:.1%}"
            label = "" if name == "ours" else f"{row['peer_name']}: "
            parts.append(
                f"{label}{1e3 * figures['seconds']['median']:.1f} ms, {figures['of_product']:.1%} of a product{mfu}"
            )
    return "; ".join(parts)


def main() -> None:
    """Print a line a family, and write the JSON on request; fails where a family does not run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="models for minutes on a CPU")
    parser.add_argument("--only", nargs="+", choices=[*CASES, *SMALL], metavar="NAME")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    cases = {name: f"{case} {ROWS}" for name, case in SMALL.items()} if options.small else CASES
    device = describe_machine(DEVICE)
    rate, peak = 2 * measure_rate(PRODUCT, DEVICE, PRECISION), get_sheet_peak(device)
    precision = str(PRECISION).removeprefix("torch.")
    print(f"training steps: {device}, {precision}, a product has {rate / 1e12:.3g} TFLOPS", flush=True)
    setting = {"device": device, "precision": precision, "product_flops": rate, "sheet_flops": peak}
    report: dict[str, Any] = {"setting": setting, "rows": []}
    for name in options.only or cases:
        row = {"case": name, "configuration": cases[name]}
        try:
            row |= measure(cases[name], options.repeats, rate, peak)
        except Exception as error:  # one family must not hide the others
            row["error"] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        report["rows"].append(row)
        print(f"  {name:<24} {format_row(row)}", flush=True)
        if options.json is not None:
            options.json.write_text(json.dumps(report, indent=2) + "\n")
    failed = [row["case"] for row in report["rows"] if "error" in row]
    if failed:
        raise SystemExit(f"did not run: {', '.join(failed)}")


if __name__ == "__main__":
    main()
