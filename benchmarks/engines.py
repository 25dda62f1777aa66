"""Engines for exported looped language models: speed and memory against adadepth and transformers, and predictions.

    OMP_NUM_THREADS=1 python benchmarks/engines.py [--widths 64 256 1024] [--loops 1 2 4] [--engines NAME...]
    OMP_NUM_THREADS=1 python benchmarks/engines.py --checkpoint FOLDER [--loops 1 2 3 4] [--blocks 40]

One thread and one text. Every engine has a process of its own with one model, and their repetitions alternate.
  adadepth:W     `generate` of the looped model
  transformers:W `generate` of the Llama that has the layers of all loops one after the other, which computes the same,
                 if need be with a hook that applies the last norm after every loop
  llama.cpp:W    the exported file with weights W, and llama.cpp's defaults otherwise
  onnxruntime:W  the exported program with weights W, which reads the whole text again for every written token
`reads` and `writes` are tokens per second of a prompt and of the likeliest next tokens, medians over repetitions.
`of_adadepth` and `of_transformers` are these as multiples. `memory` is the peak of the process above that after its
imports, in MiB, and `process` the peak itself. `same` counts the first written tokens that are those of adadepth.

With --checkpoint: predictions of a trained model in every engine on the text of Python's documentation, for every
number of loops: the perplexity, how often the likeliest token is that of adadepth in float32, and how many of 20
continuations are. llama.cpp keeps keys and values in float32.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

Generate = Callable[[list[int], int], list[int]]
CORE, VOCABULARY, BLOCK = 2, 4096, 96
READ, PROMPT, WRITTEN = 256, 8, 48  # tokens


@dataclass(frozen=True)
class Engine:
    """Program that runs a looped model.

    Attributes:
        write: Function that writes a model into a folder.
        load: Function that loads a folder and returns a function for the likeliest next tokens of a text.
    """

    write: Callable[[Any, Path], None]
    load: Callable[[Path], Generate]


def make_model(width: int, loops: int) -> Any:
    """Build a looped model with random weights."""
    import torch

    from adadepth import LoopedConfig, LoopedForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": width, "intermediate_size": 4 * width, "num_attention_heads": max(4, width // 64)}
    config = LoopedConfig(**sizes, vocab_size=VOCABULARY, core=CORE, num_loops=loops, initializer_range=0.05)
    return LoopedForCausalLM(config).eval()


def write_unrolled(model: Any, folder: Path) -> None:
    """Write the Llama with the layers of all loops one after the other, which is equivalent to the looped model."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from adadepth.models.shared.layouts import convert_to_layout

    fields, weights = convert_to_layout(model, "nanbeige")
    layers = {name: weight for name, weight in weights.items() if ".layers." in name}
    unrolled = {name: weight for name, weight in weights.items() if name not in layers}
    for loop, (name, weight) in itertools.product(range(fields["num_loops"]), layers.items()):
        parts = name.split(".")
        parts[2] = str(int(parts[2]) + loop * model.config.core)
        unrolled[".".join(parts)] = weight
    layer_count = model.config.core * fields["num_loops"]
    fields |= {"num_hidden_layers": layer_count, "model_type": "llama", "core": model.config.core}
    config = LlamaConfig(**fields)
    llama = LlamaForCausalLM(config)
    llama.load_state_dict(unrolled)
    llama.save_pretrained(folder)


def write_gguf_file(model: Any, folder: Path, weights: str) -> None:
    """Write the GGUF file of a model, without a tokenizer."""
    from adadepth.config.export import ExportConfig
    from adadepth.contrib.engines.gguf_file import write_gguf

    source = folder / "no tokenizer"
    source.mkdir(parents=True)
    with redirect_stdout(io.StringIO()):  # a line says that there is no tokenizer
        write_gguf(model, folder, source, ExportConfig(format="gguf", weights=weights))


def load_torch_model(folder: Path, class_name: str, dtype: str = "float32") -> Generate:
    """Load a model of adadepth or transformers."""
    import torch
    import transformers

    import adadepth

    model_class = getattr(adadepth, class_name, None) or getattr(transformers, class_name)
    model = model_class.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    if getattr(model.config, "skip_loop_final_norm", True) is False:  # a Llama that applies the last norm in every loop
        for layer in model.model.layers[model.config.core - 1 : -1 : model.config.core]:
            layer.register_forward_hook(lambda layer, inputs, states: model.model.norm(states))
    return partial(generate_with_torch, model)


def generate_with_torch(model: Any, tokens: list[int], count: int) -> list[int]:
    """Return the likeliest next tokens of a text in torch."""
    import torch

    texts, options = torch.tensor([tokens]), {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    with torch.inference_mode():
        ids = model.generate(texts, attention_mask=torch.ones_like(texts), max_new_tokens=count, **options)
    return list(ids[0, len(tokens) :].tolist())


def load_llama_cpp(folder: Path) -> Generate:
    """Load a GGUF file with llama.cpp's defaults."""
    from llama_cpp import Llama

    model = Llama(str(folder / "model.gguf"), n_ctx=2 * READ, n_threads=1, n_threads_batch=1, verbose=False)

    def generate(tokens: list[int], count: int) -> list[int]:
        model.reset()
        return list(itertools.islice(model.generate(tokens, temp=0.0), count))

    return generate


def write_onnx_file(model: Any, folder: Path, weights: str) -> None:
    """Write the ONNX program of a model."""
    from adadepth.config.export import ExportConfig
    from adadepth.contrib.engines.onnx_program import write_onnx

    write_onnx(model, folder, folder, ExportConfig(format="onnx", weights=weights))


def load_onnxruntime(folder: Path) -> Generate:
    """Load an ONNX program for one thread."""
    import onnxruntime

    from adadepth.contrib.engines.run_onnx import generate

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(folder / "model.onnx", options, providers=["CPUExecutionProvider"])
    return partial(generate, session)


def write_looped(model: Any, folder: Path) -> None:
    """Write a looped model in its own layout."""
    model.save_pretrained(folder)


ENGINES = {
    "adadepth:f32": Engine(write_looped, partial(load_torch_model, class_name="LoopedForCausalLM")),
    "transformers:f32": Engine(write_unrolled, partial(load_torch_model, class_name="LlamaForCausalLM")),
    "adadepth:f16": Engine(write_looped, partial(load_torch_model, class_name="LoopedForCausalLM", dtype="float16")),
    "transformers:f16": Engine(
        write_unrolled, partial(load_torch_model, class_name="LlamaForCausalLM", dtype="float16")
    ),
    **{
        f"llama.cpp:{weights}": Engine(partial(write_gguf_file, weights=weights), load_llama_cpp)
        for weights in ("f32", "f16", "q8_0")
    },
    **{
        f"onnxruntime:{weights}": Engine(partial(write_onnx_file, weights=weights), load_onnxruntime)
        for weights in ("f32", "int8")
    },
}
# Modules that are imported before memory is counted.
MODULES = {"llama.cpp": ["llama_cpp"], "onnxruntime": ["onnxruntime"]}
TORCH_MODULES = ["adadepth.models.looped.modeling", "transformers.models.llama.modeling_llama"]


class Worker:
    """Process with a model in one engine, which continues texts on demand."""

    def __init__(self, engine: str, folder: Path) -> None:
        command = [sys.executable, __file__, "--worker", engine, str(folder)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.ask([0], 1)

    def ask(self, tokens: list[int], count: int) -> dict[str, Any]:
        """Return the next tokens of a text, with their seconds and the memory of the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([tokens, count]), file=self._process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def serve_requests(engine: str, folder: Path) -> None:
    """Run the requests of a `Worker`."""
    for name in MODULES.get(engine.partition(":")[0], TORCH_MODULES):
        import_module(name)
    imports = read_peak()
    generate = ENGINES[engine].load(folder)
    for line in sys.stdin:
        tokens, count = json.loads(line)
        start = time.perf_counter()
        written = generate(tokens, count)
        seconds = time.perf_counter() - start
        peak = read_peak()
        print(
            json.dumps({"tokens": written, "seconds": seconds, "memory": peak - imports, "process": peak}), flush=True
        )


def read_peak() -> float:
    """Return the largest resident memory of this process so far, in MiB.

    `getrusage` would count the memory of the parent before the program of the process was loaded.
    """
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def write_files(model: Any, engines: list[str], folder: Path) -> dict[str, Path]:
    """Write a model for every engine, and return the folders by engine."""
    folders = {engine: folder / engine for engine in engines}
    for engine, path in folders.items():
        path.mkdir()
        ENGINES[engine].write(model, path)
    return folders


def measure(model: Any, folders: dict[str, Path], repeats: int) -> Iterator[dict[str, Any]]:
    """Yield a row for every engine."""
    prompt = [(7 * number) % model.config.vocab_size for number in range(READ)]
    engines = [*folders]
    sizes = {
        engine: sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 2**20
        for engine, folder in folders.items()
    }
    workers = {engine: Worker(engine, folder) for engine, folder in folders.items()}
    reads: dict[str, list[float]] = {engine: [] for engine in engines}
    writes: dict[str, list[float]] = {engine: [] for engine in engines}
    answers = {}
    for number in range(repeats + 1):
        for engine, worker in workers.items():
            read = worker.ask(prompt, 1)
            answers[engine] = worker.ask(prompt[:PROMPT], WRITTEN)
            if number:  # the first one warms up
                reads[engine].append(READ / read["seconds"])
                writes[engine].append(WRITTEN / answers[engine]["seconds"])
    for worker in workers.values():
        worker.close()
    speeds = {engine: (statistics.median(reads[engine]), statistics.median(writes[engine])) for engine in engines}
    for engine in engines:
        answer = answers[engine]
        same = itertools.takewhile(
            lambda pair: pair[0] == pair[1], zip(answer["tokens"], answers[engines[0]]["tokens"], strict=True)
        )
        yield {
            "width": model.config.hidden_size,
            "loops": model.config.num_loops,
            "engine": engine,
            "reads": speeds[engine][0],
            "writes": speeds[engine][1],
            **{
                f"of_{other}": [speeds[engine][part] / speeds[f"{other}:f32"][part] for part in (0, 1)]
                for other in ("adadepth", "transformers")
                if f"{other}:f32" in engines
            },
            "reads_range": [min(reads[engine]), max(reads[engine])],
            "writes_range": [min(writes[engine]), max(writes[engine])],
            "memory": answer["memory"],
            "process": answer["process"],
            "file": sizes[engine],
            "same": len(list(same)),
            "load": os.getloadavg()[0],
        }


# ---- Predictions of a trained model


def compare_predictions(
    model: Any, checkpoint: Path, folders: dict[str, Path], blocks: int
) -> Iterator[dict[str, Any]]:
    """Yield a row for every engine."""
    import torch

    from adadepth.data.text.corpora import read_embedded_documents
    from adadepth.data.text.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(str(checkpoint), needed=())
    ids = tokenizer("\n".join(read_embedded_documents()), add_special_tokens=False)["input_ids"][-blocks * BLOCK :]
    texts = torch.tensor(ids).view(blocks, BLOCK)
    logits = torch.tensor([compute_with_torch(model, text) for text in texts.tolist()])
    continuations = [generate_with_torch(model, text[:32], 32) for text in texts[:20].tolist()]
    expected = compute_perplexity(logits, texts)
    for engine, folder in folders.items():
        compute_logits, generate = load_predictor(engine, folder)
        predicted = torch.tensor([compute_logits(text) for text in texts.tolist()])
        written = [generate(text[:32], 32) for text in texts[:20].tolist()]
        perplexity = compute_perplexity(predicted, texts)
        yield {
            "loops": model.config.num_loops,
            "engine": engine,
            "perplexity": perplexity,
            "relative_difference": perplexity / expected - 1,
            "largest_logit_difference": float((predicted - logits).abs().max()),
            "same_likeliest": float((predicted.argmax(-1) == logits.argmax(-1)).float().mean()),
            "same_continuations": sum(map(list.__eq__, continuations, written)),
        }


def load_predictor(engine: str, folder: Path) -> tuple[Callable[[list[int]], Any], Generate]:
    """Load the files of an engine, and return its functions for the logits and the next tokens of a text."""
    name = engine.partition(":")[0]
    if name in ("llama.cpp", "onnxruntime"):
        module = "run_gguf" if name == "llama.cpp" else "run_onnx"
        runner = import_module(f"adadepth.contrib.engines.{module}")
        loaded = runner.load(folder)
        return partial(runner.compute_logits, loaded), partial(runner.generate, loaded)
    generate: Any = ENGINES[engine].load(folder)
    return partial(compute_with_torch, generate.args[0]), generate


def compute_with_torch(model: Any, tokens: list[int]) -> Any:
    """Return the logits of a text in torch, [tokens][vocabulary]."""
    import torch

    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0].float().tolist()


def compute_perplexity(logits: Any, texts: Any) -> float:
    """Return exp of the mean loss of the next tokens in blocks of text."""
    from torch.nn.functional import cross_entropy

    return math.exp(cross_entropy(logits[:, :-1].flatten(0, 1).double(), texts[:, 1:].flatten()))


def list_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield every row of the tables."""
    for width, loops in itertools.product([None] if options.checkpoint else options.widths, options.loops):
        model = make_model(width, loops) if width else load_checkpoint(options.checkpoint, loops)
        with tempfile.TemporaryDirectory() as temporary:
            folders = write_files(model, options.engines, Path(temporary))
            if options.checkpoint is None:
                yield from measure(model, folders, options.repeats)
            else:
                yield from compare_predictions(model, options.checkpoint, folders, options.blocks)


def load_checkpoint(path: Path, loops: int) -> Any:
    """Load a trained model with a number of loops."""
    from adadepth import LoopedForCausalLM

    return LoopedForCausalLM.from_pretrained(path, num_loops=loops).eval()


def main() -> None:
    """Print the table, and write the JSON on request."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--loops", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=[*ENGINES])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--checkpoint", type=Path, default=None)
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--worker", nargs=2, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        serve_requests(options.worker[0], Path(options.worker[1]))
        return
    import torch

    from adadepth.runtime.hardware import describe_machine

    print(f"{describe_machine(torch.device('cpu'))}, {options.repeats} repeats")
    rows = []
    for row in list_rows(options):
        rows.append(row)
        print("  ".join(f"{key} {format_value(value)}" for key, value in row.items()), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


def format_value(value: Any) -> str:
    """Return a value of a row as it is printed."""
    if isinstance(value, list):
        return "/".join(f"{entry:.3g}" for entry in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
