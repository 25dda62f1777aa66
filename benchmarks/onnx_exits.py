"""Early exits in ONNX Runtime: time of a text by its depth, and accuracy and depth with int8 weights.

    python benchmarks/onnx_exits.py [--run FOLDER]

With --run, the folder of a run with a PonderALBERT on pointers (`--config-name ponder_hops`), the first table has
accuracy and depth of its texts in f32, in int8, and in int8 with a threshold of the exit rule that was fitted on the
first half of each set, so that the mean depth is that of f32. Texts run one at a time.

The second table has the model `demo:hops` of the package on its evaluation sets, with weights in f32 and int8. A shift
of the halting bias is fitted on the first half of each set, so that the mean depth in int8 is that of f32; accuracy and
depth are those on the second half. The third table has the CPU time of a text of 64 tokens by the step at which it
exits: a PonderALBERT with random weights (12 steps, width 256), as an exported program with branches and in this
package, with one thread each.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

import adadepth
from adadepth import AlbertActForTokenClassification, PonderAlbertConfig, PonderAlbertForSequenceClassification
from adadepth.config.export import ExportConfig
from adadepth.contrib.engines.onnx_program import FILE, convert, save_program, write_onnx
from adadepth.contrib.engines.programs import make_example, prepare_model
from adadepth.contrib.engines.text_steps import AlbertSteps
from adadepth.data.generated.hops import load_hops
from adadepth.halting.exit_decisions import apply_rule, select_predictions
from adadepth.halting.exit_rules import parse_rule
from adadepth.runtime.hardware import describe_machine

_TOKENS, _REPEATS = 64, 12
_BIASES = (-5.0, -0.8, -0.3, 5.0)
_DEMO = Path(adadepth.__file__).parent / "demos" / "hops"


class ShiftedHalting(nn.Module):
    """ACT-ALBERT as a function of its inputs and of a number that is added to the halting bias."""

    def __init__(self, model: Any, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names
        self.bias = next(name for name, value in model.named_parameters() if value is model.halting_bias)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits, (B, T, C), and the updates of every token, (B, T)."""
        *texts, shift = inputs
        weights = {self.bias: self.model.halting_bias + shift}
        arguments = dict(zip(self.names, texts, strict=True))
        output = torch.func.functional_call(self.model, weights, (), arguments)
        return output.logits, output.trace.updates.long()


def main() -> None:
    """Print the tables."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(describe_machine(torch.device("cpu")))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="folder of a run of ponder_hops")
    run = parser.parse_args().run
    with TemporaryDirectory() as folder, torch.no_grad():
        if run is not None:
            compare_thresholds(run, Path(folder))
        compare_weights(Path(folder))
        compare_times(Path(folder))


def start_session(path: Path) -> Any:
    """Load a program for one thread of the CPU."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


# ---- Time by depth


def compare_times(folder: Path) -> None:
    """Print the CPU time of a text by its depth, which the halting bias sets, in ONNX Runtime and in this package."""
    shape = {"embedding_size": 128, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}
    more = {"num_hidden_layers": 12, "max_position_embeddings": 128, "initializer_range": 0.1}
    config = PonderAlbertConfig(vocab_size=1000, **shape, **more, exit_rule="quantile:0.5")
    model = PonderAlbertForSequenceClassification(config).eval()
    model.ponder[-1].bias.fill_(-1.5)  # a program has equal weights once, and another vector is 0, too
    write_onnx(model, folder, folder, ExportConfig(format="onnx"))
    program = onnx.load(folder / FILE)
    stored = next(weight for weight in program.graph.initializer if weight.name == "model.ponder.2.bias")
    ids = torch.randint(5, 1000, (1, _TOKENS))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
    arrays = {name: value.numpy() for name, value in inputs.items()}
    print("| depth | equal | ONNX | adadepth |")
    for bias in _BIASES:
        model.ponder[-1].bias.fill_(bias)
        stored.CopyFrom(onnx.numpy_helper.from_array(np.array([bias], dtype=np.float32), stored.name))
        onnx.save(program, folder / FILE)
        session = start_session(folder / FILE)
        output, (logits, depths) = model(**inputs), session.run(None, arrays)
        equal = depths[0] == output.exit_steps[0] and np.allclose(logits, output.logits.numpy(), atol=1e-4)
        times = measure_time(session.run, None, arrays), measure_time(lambda texts: model(**texts), inputs)
        print(f"| {depths[0]} | {bool(equal)} | {times[0]:.1f} ms | {times[1]:.1f} ms |")


def measure_time(call: Callable[..., Any], *arguments: Any) -> float:
    """Return the least CPU time of a call out of several, in milliseconds."""
    durations = []
    for _ in range(_REPEATS):
        start = time.process_time()
        call(*arguments)
        durations.append(time.process_time() - start)
    return 1e3 * min(durations)


# ---- Accuracy and depth of whole texts with int8 weights


class AllSteps(nn.Module):
    """All steps of a PonderALBERT as a function of its inputs, whatever the exit rule decides."""

    def __init__(self, model: Any, names: list[str]) -> None:
        super().__init__()
        self.model, self.steps, self.names = model, AlbertSteps(model), names

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits, (B, N, C), and the halting logits, (B, N), of all N steps."""
        states, constants = self.steps.begin(dict(zip(self.names, inputs, strict=True)))
        readings = []
        for step in range(1, self.model.max_updates + 1):
            states, *reading = self.steps.advance(step, states, constants)
            readings.append(reading)
        logits, halting = zip(*readings, strict=True)
        return torch.stack(logits, dim=1), torch.stack(halting, dim=1)


def compare_thresholds(run: Path, folder: Path) -> None:
    """Print accuracy and depth of a PonderALBERT in f32, in int8, and in int8 with a threshold fitted again."""
    model = prepare_model(PonderAlbertForSequenceClassification.from_pretrained(run / "model"), "onnx")
    dataset: Any = OmegaConf.load(run / "config.yaml").dataset
    data = load_hops(dataset, 0, cls_tokens=model.config.cls_tokens)
    example = make_example(model)
    proto = convert(AllSteps(model, [*example]), example, [*example], ["logits", "halting"])
    name, _, threshold = model.config.exit_rule.partition(":")
    print("| set | weights | threshold | accuracy | mean depth |")
    for set_name, examples in data.evaluation.items():
        records = {}
        for weights in ("f32", "int8"):
            save_program(proto, folder / "steps.onnx", weights)
            session = start_session(folder / "steps.onnx")
            texts = [data.collate([examples[index]]) for index in range(len(examples))]
            outputs = [session.run(None, {key: text[key].numpy() for key in example}) for text in texts]
            records[weights] = [torch.cat([torch.from_numpy(output[part]) for output in outputs]) for part in (0, 1)]
        labels = torch.cat([text["labels"] for text in texts])
        half = len(labels) // 2
        target = decide(name, float(threshold), [part[:half] for part in records["f32"]])[1].mean()
        low, high = 0.0, 1.0
        for _ in range(16):
            middle = (low + high) / 2
            is_deeper = decide(name, middle, [part[:half] for part in records["int8"]])[1].mean() > target
            low, high = (low, middle) if is_deeper else (middle, high)
        for weights, value in (("f32", float(threshold)), ("int8", float(threshold)), ("int8", low)):
            classes, depths = decide(name, value, [part[half:] for part in records[weights]])
            accuracy = (classes == labels[half:]).double().mean()
            print(f"| `{set_name}` | {weights} | {value:.4f} | {accuracy:.4f} | {depths.mean():.3f} |")


def decide(name: str, threshold: float, record: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the class of each text at its exit, (B,), and the depth of each text, float64 (B,)."""
    logits, halting = record
    rule = parse_rule(f"{name}:{threshold}")
    depths = apply_rule(rule, logits, halting)
    return select_predictions(rule, logits, halting, depths).argmax(-1), depths.double()


# ---- Accuracy and depth of tokens with int8 weights


def compare_weights(folder: Path) -> None:
    """Print accuracy and depth of `demo:hops` in f32, in int8, and in int8 with a bias that was fitted again."""
    model = prepare_model(AlbertActForTokenClassification.from_pretrained(_DEMO / "model"), "onnx")
    example = make_example(model)
    inputs = {**example, "shift": torch.zeros(())}
    proto = convert(ShiftedHalting(model, [*example]), inputs, [*inputs], ["logits", "depth"])
    sessions = {}
    for weights in ("f32", "int8"):
        save_program(proto, folder / f"{weights}.onnx", weights)
        sessions[weights] = start_session(folder / f"{weights}.onnx")
        print(f"{weights}: {(folder / f'{weights}.onnx').stat().st_size / 1e6:.2f} MB")
    dataset: Any = OmegaConf.load(_DEMO / "config.yaml").dataset
    data = load_hops(dataset, 0)
    print("| set | weights | shift of the bias | accuracy | mean depth |")
    for name, examples in data.evaluation.items():
        half = min(len(examples) // 2, 500)
        fits, scores = (
            data.collate([examples[index] for index in part]) for part in (range(half), range(half, 2 * half))
        )
        target = score(sessions["f32"], fits, [*example], 0.0)[1]
        fitted = fit_shift(sessions["int8"], fits, [*example], target)
        for weights, shift in (("f32", 0.0), ("int8", 0.0), ("int8", fitted)):
            accuracy, depth = score(sessions[weights], scores, [*example], shift)
            print(f"| `{name}` | {weights} | {shift:.3f} | {accuracy:.4f} | {depth:.3f} |")


def score(session: Any, batch: dict[str, Tensor], names: list[str], shift: float) -> tuple[float, float]:
    """Compute the accuracy of labelled tokens and the mean depth of real tokens in a batch."""
    inputs = {name: batch[name].numpy() for name in names} | {"shift": np.array(shift, dtype=np.float32)}
    logits, depths = session.run(None, inputs)
    labels, real = batch["labels"].numpy(), batch["attention_mask"].numpy() == 1
    labelled = labels >= 0
    return float((logits.argmax(-1) == labels)[labelled].mean()), float(depths[real].mean())


def fit_shift(session: Any, batch: dict[str, Tensor], names: list[str], target: float) -> float:
    """Return the shift of the halting bias, between -4 and 4, whose mean depth is nearest to a target."""
    low, high = -4.0, 4.0
    for _ in range(16):
        middle = (low + high) / 2
        is_deeper = score(session, batch, names, middle)[1] > target
        low, high = (middle, high) if is_deeper else (low, middle)
    return (low + high) / 2


if __name__ == "__main__":
    main()
