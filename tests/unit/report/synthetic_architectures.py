"""Files of a made-up run that searched an architecture, of one with a fixed network, and a comparison."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from adadepth.metrics.architectures import describe_architecture, flatten_search
from adadepth.report.depth_by_class import write_halting_files
from adadepth.report.run_files import ARCHITECTURES, write_json

SHAPES = [
    {"name": "T=32, M=16, batch=8", "length": 32, "memory": 16, "batch": 8},
    {"name": "T=64, M=640, batch=1", "length": 64, "memory": 640, "batch": 1},
]


def make_gate_probabilities(blocks: int, progress: float = 1.0, seed: int = 0) -> list[list[float]]:
    """Return probabilities that are even at first, then attention early, feed-forward late and some identities."""
    depth = np.linspace(0, 1, blocks)
    noise = np.random.default_rng(seed).normal(0, 0.6, (blocks, 3))
    logits = np.stack([2 - 3 * depth, 0.4 + 1.5 * depth, np.where(np.arange(blocks) % 5 == 4, 2.4, -1)], axis=1)
    exponentials = np.exp(2 * progress * (logits + noise))
    return (exponentials / exponentials.sum(axis=1, keepdims=True)).tolist()


def make_quality(perplexity: float) -> dict[str, float]:
    loss = math.log(perplexity)
    bits = 1.45 * loss / math.log(2) / 5.2
    return {"loss": loss, "perplexity": perplexity, "word_perplexity": perplexity**1.45, "bits_per_character": bits}


def make_search_evaluation(blocks: int, progress: float, seed: int = 0) -> dict[str, Any]:
    """Return the content of halting.json after an evaluation of a supernet."""
    perplexity = 40 + 160 * math.exp(-3 * progress)
    return {
        "unit": "architecture",
        "max_depth": blocks,
        "architecture": describe_architecture(make_gate_probabilities(blocks, progress, seed), 0.1**progress),
        "cost": {
            "executed_macs": 7.4e5 * blocks, "dense_macs": 7.4e5 * blocks, "adaptive_macs": 3.1e5 * blocks,
            "full_macs": 3.7e5 * blocks, "executed_over_dense": 1.0, "executed_over_full": 2.0,
            "adaptive_over_full": 3.1 / 3.7,
        },
        "evaluations": {
            "soft": make_quality(perplexity),
            "argmax": make_quality(perplexity * (3 - 1.8 * progress)),
            "sampled": make_quality(perplexity * (3.5 - 1.9 * progress)) | {"perplexity_std": 6.1},
        },
        "missing": {},
    }  # fmt: skip


def make_search_run(directory: Path, blocks: int = 6, evaluations: int = 9, seed: int = 0) -> Path:
    """Write every file of a finished search, without a comparison."""
    lines = []
    for index in range(evaluations):
        progress = index / max(evaluations - 1, 1)
        content = make_search_evaluation(blocks, progress, seed)
        metrics = {f"eval/{key}": value for key, value in content["evaluations"]["soft"].items()}
        metrics |= {
            f"eval/{name}/perplexity": content["evaluations"][name]["perplexity"] for name in ("argmax", "sampled")
        }
        metrics["train/loss"] = metrics["eval/loss"] - 0.2
        lines.append({"step": 50 * index, "time": 9.0 * index, **metrics, **flatten_search(content)})
    write_halting_files(directory, content, [], lines[-1]["step"])
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    perplexity = content["evaluations"]["soft"]["perplexity"]
    _write_facts(directory, "par_tiny", {"eval/perplexity": perplexity}, search={"method": "two_phase"})
    return directory


def make_fixed_run(directory: Path, architecture: str = "sf-fsf") -> Path:
    """Write every file of a finished run of a fixed network."""
    one_hot = [[float(letter == of) for of in "sf-"] for letter in architecture]
    content = make_search_evaluation(len(architecture), 1.0) | {
        "architecture": describe_architecture(one_hot),
        "evaluations": {"network": make_quality(51.0)},
    }
    write_halting_files(directory, content, [], 200)
    line = {"step": 200, "time": 9.0, "eval/loss": 4.0, "eval/perplexity": 51.0, **flatten_search(content)}
    (directory / "metrics.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
    _write_facts(directory, "par_fixed", {"eval/perplexity": 51.0})
    return directory


def _write_facts(directory: Path, name: str, metrics: dict[str, float], **settings: dict[str, Any]) -> None:
    run = {
        "status": "finished", "config_name": name, "seed": 0, "final_metrics": metrics,
        "data": {"tokenizer": {"path": "tokenizers/5f2a", "vocab_size": 1987}},
        "settings": {"model": {"name": "par_xl", "hidden_size": 64}, **settings},
    }  # fmt: skip
    (directory / "run.json").write_text(json.dumps(run), encoding="utf-8")
    config = f"name: {name}\nmodel:\n  name: par_xl\n  hidden_size: 64\n  memory_length: 16\n  attention_scale: sqrt\n"
    config += "search:\n  method: two_phase\n  path: soft\n  tau_start: 1.0\n  tau_end: 0.1\n"
    config += "tokenizer:\n  kind: unigram\n  vocab_size: 2000\n  lowercase: true\n"
    (directory / "config.yaml").write_text(config, encoding="utf-8")


def make_comparison(directory: Path | None = None) -> dict[str, Any]:
    """Return five rows: a searched network twice, and baselines of which one was not timed and one not evaluated."""
    rows = [
        _make_row(
            "derived", "searched", "from scratch", "sfff-sf", make_quality(49.2), (2.4e6, 5.1e6), (1.9e-3, 4.2e-3)
        ),
        _make_row(
            "derived", "searched", "not retrained", "sfff-sf", make_quality(310.0), (2.4e6, 5.1e6), (1.9e-3, 4.2e-3)
        ),
        _make_row(
            "alternating", "baseline", "from scratch", "sfsfsf", make_quality(50.1), (2.5e6, 9.9e6), (2.2e-3, 9.1e-3)
        ),
        _make_row("paper_rule", "baseline", "from scratch", "sfffff", make_quality(52.8), (2.5e6, 4.0e6), None),
        _make_row("random", "baseline", "from scratch", "ffs-sff", None, (2.6e6, 6.0e6), (2.0e-3, 5.0e-3)),
    ]
    comparison = {
        "reference": "alternating", "derived": "sfff-sf", "shapes": SHAPES, "rows": rows,
        "conditions": {"device": "cpu", "dtype": "float32", "threads": 1, "repeats": 20},
    }  # fmt: skip
    if directory is not None:
        write_json(directory / ARCHITECTURES, comparison)
    return comparison


def _make_row(
    name: str, kind: str, trained: str, architecture: str, figures: dict[str, float] | None,
    macs: tuple[float, float], medians: tuple[float, float] | None,
) -> dict[str, Any]:  # fmt: skip
    names = [str(shape["name"]) for shape in SHAPES]
    times = {
        shape: {"median": median, "p10": 0.9 * median, "p90": 1.2 * median, "n": 20, "blocks_median": 0.8 * median}
        for shape, median in zip(names, medians or (), strict=medians is not None)
    }
    return {
        "name": name, "kind": kind, "trained": trained, "architecture": architecture, "parameters": 412_416,
        "quality": figures, "quality_set": "held_out", "macs": dict(zip(names, macs, strict=True)), "seconds": times,
    }  # fmt: skip
