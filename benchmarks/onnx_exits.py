"""Early exits in ONNX Runtime: time by depth, and accuracy and depth with int8 weights before and after a new fit.

    python adadepth/run.py --config-name ponder_hops
    python benchmarks/onnx_exits.py RUN

RUN is the folder of the run. The first table has the time of single texts by the step at which they exit, in the
exported program with branches and in this package. For the second table, a program returns the predictions and halting
logits of all steps, with weights in f32 and int8. The threshold of the exit rule is fitted on one half of the
evaluation set, so that the mean depth is that of f32. Accuracy and depth are those on the other half.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime
import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

from adadepth import PonderAlbertForSequenceClassification
from adadepth.budget.fit import fit_level
from adadepth.config.export import ExportConfig
from adadepth.contrib.engines.onnx_program import FILE, convert, save_program, write_onnx
from adadepth.contrib.engines.programs import make_example, prepare_model
from adadepth.data.generated.hops import load_hops
from adadepth.halting.exit_rules import ExitRule, apply_rule
from adadepth.runtime.hardware import describe_machine

_REPEATS = 5


class AllSteps(nn.Module):
    """A model as a function that returns the predictions, (B, N, C), and halting logits, (B, N), of all steps."""

    def __init__(self, model: Any, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Run all steps."""
        output = self.model(**dict(zip(self.names, inputs, strict=True)), run_all_steps=True)
        return output.step_logits, output.halting_logits


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    run = parser.parse_args().run
    torch.set_num_threads(1)
    checkpoint = max((run / "checkpoints").iterdir(), key=lambda folder: folder.stat().st_mtime)
    model = PonderAlbertForSequenceClassification.from_pretrained(checkpoint).eval()
    dataset: Any = OmegaConf.load(run / "config.yaml").dataset
    data = load_hops(dataset, 0, model.config.cls_tokens)
    examples = data.evaluation["inside"]
    batches = [data.collate([examples[index]]) for index in range(len(examples))]
    print(f"{describe_machine()}; {len(batches)} texts, exit rule {model.config.exit_rule}")
    with TemporaryDirectory() as folder:
        compare_times(model, batches[:200], Path(folder))
        compare_weights(model, batches, Path(folder))


def start_session(path: Path) -> onnxruntime.InferenceSession:
    """Load a program for one thread of the CPU."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def compare_times(model: Any, batches: list[dict[str, Tensor]], folder: Path) -> None:
    """Print the median time of a text by its depth, in milliseconds, in ONNX Runtime and in this package."""
    write_onnx(model, folder, folder, ExportConfig(format="onnx"))
    session, names = start_session(folder / FILE), [*make_example(model)]
    times, own, equal = defaultdict[int, list[float]](list), defaultdict[int, list[float]](list), 0
    for batch in batches:
        inputs = {name: batch[name] for name in names}
        arrays = {name: value.numpy() for name, value in inputs.items()}
        with torch.no_grad():
            output = model(**inputs)
            depth = int(output.exit_steps)
            logits, executed = session.run(None, arrays)
            equal += int(executed[0] == depth and np.allclose(logits, output.logits.numpy(), atol=1e-4))
            times[depth].append(measure(lambda arrays=arrays: session.run(None, arrays)))  # type: ignore[misc]
            own[depth].append(measure(lambda inputs=inputs: model(**inputs)))  # type: ignore[misc]
    print(f"equal depth and logits within 1e-4: {equal} of {len(batches)} texts\n| depth | texts | ONNX | adadepth |")
    for depth in sorted(times):
        print(f"| {depth} | {len(times[depth])} | {median(times[depth]):.2f} ms | {median(own[depth]):.2f} ms |")


def measure(call: Any) -> float:
    """Return the shortest time of a call out of several, in milliseconds."""
    durations = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        call()
        durations.append(time.perf_counter() - start)
    return 1e3 * min(durations)


def compare_weights(model: Any, batches: list[dict[str, Tensor]], folder: Path) -> None:
    """Print accuracy and depth with weights in f32 and int8, with the rule of the model and a rule fitted again."""
    prepare_model(model, "onnx")
    example, rule = make_example(model), model.config.parsed_exit_rule
    proto = convert(AllSteps(model, [*example]), example, [*example], ["logits", "halting_logits"])
    labels = torch.cat([batch["labels"] for batch in batches])
    recorded = {}
    for weights in ("f32", "int8"):
        save_program(proto, folder / f"{weights}.onnx", weights)
        session = start_session(folder / f"{weights}.onnx")
        rows = [session.run(None, {name: batch[name].numpy() for name in example}) for batch in batches]
        recorded[weights] = [torch.from_numpy(np.concatenate(column)) for column in zip(*rows, strict=True)]
        print(f"{weights}: {(folder / f'{weights}.onnx').stat().st_size / 1e6:.2f} MB")
    fits, scores = slice(0, None, 2), slice(1, None, 2)
    target = find_depths(rule, recorded["f32"], fits).mean().item()

    def measure_depth(level: float) -> float:
        return find_depths(rule.with_level(level), recorded["int8"], fits).mean().item()

    fitted = rule.with_level(fit_level(measure_depth, target).level)
    print("| weights | rule | accuracy | mean depth |")
    for weights, used in (("f32", rule), ("int8", rule), ("int8", fitted)):
        depths = find_depths(used, recorded[weights], scores)
        logits = recorded[weights][0][scores]
        answers = logits[torch.arange(len(logits)), depths.long() - 1].argmax(dim=-1)
        accuracy = (answers == labels[scores]).float().mean()
        print(f"| {weights} | `{used.label}` | {accuracy:.4f} | {depths.mean():.3f} |")


def find_depths(rule: ExitRule, signals: list[Tensor], part: slice) -> Tensor:
    """Return the exit steps of a part of the recorded texts, float32 (M,)."""
    logits, halting = signals
    return apply_rule(rule, logits[part], halting[part]).float()


if __name__ == "__main__":
    main()
