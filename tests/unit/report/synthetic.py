"""Run directory with statistics of made-up but plausible traces, for tests of report and figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from adadepth.halting.trace import DepthTrace, Execution, Halting, Work
from adadepth.metrics.depth_statistics import HaltingStatistics, flatten
from adadepth.metrics.example_sentences import SentenceSampler
from adadepth.metrics.unit_classes import TOKEN_CLASSES, token_classes
from adadepth.report.depth_by_class import write_halting_files

CLS, SEP, MASK, PAD = 2, 3, 4, 0
WORDS = """
    the of and to in a is that for it as was with be by on not he his but at are this have from or had an they which
    one you were all her she there would their we him been has when who will no more if out so up said what its about
    river empire theorem keyboard painted walked slowly northern music season played team album between during
""".split()  # noqa: SIM905


def decode(token: int) -> str:
    if token < 5:
        return ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")[token]
    word = WORDS[(token - 5) % len(WORDS)]
    return word[:3] if token % 11 == 0 else "▁" + word


def make_batch(
    generator: np.random.Generator, size: int = 8, length: int = 64, vocabulary: int = 95
) -> dict[str, torch.Tensor]:
    original = generator.integers(5, vocabulary, (size, length))
    lengths = generator.integers(length // 2, length + 1, size)
    real = np.arange(length) < lengths[:, None]
    original[:, 0], original[:, length // 3] = CLS, SEP
    original[np.arange(size), lengths - 1] = SEP
    original[~real] = PAD
    draws, ordinary = generator.random((size, length)), real & (original > 4)
    kind = np.where(ordinary & (draws < 0.15), np.where(draws < 0.12, 1, np.where(draws < 0.135, 2, 3)), 0)
    fed = np.where(kind == 1, MASK, np.where(kind == 2, generator.integers(5, vocabulary, (size, length)), original))
    arrays = {
        "input_ids": fed,
        "attention_mask": real.astype(np.int64),
        "labels": np.where(kind > 0, original, -100),
        "mask_kind": kind.astype(np.uint8),
    }
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def make_trace(
    generator: np.random.Generator, batch: dict[str, torch.Tensor], max_updates: int, progress: float = 1.0
) -> DepthTrace:
    """Return a trace in which masked tokens go deeper than others, more so as training progresses."""
    fed, real = batch["input_ids"].numpy(), batch["attention_mask"].numpy() > 0
    scale = max_updates / 12
    centre = np.where(fed == MASK, 2 + 7 * progress, np.where(fed == CLS, 2 + 8 * progress, 2 + 3 * progress)) * scale
    noise = generator.normal(0, 0.3 + 1.4 * progress, fed.shape) * scale + (fed % 7 - 3) * 0.4 * progress
    depth = np.clip(np.rint(centre + noise), 1, max_updates) * real
    steps = int(depth.max())
    running = np.arange(steps) < depth[..., None]
    probabilities = running * generator.uniform(0.02, 1.6, (*fed.shape, steps)) / np.maximum(depth, 1)[..., None]
    return DepthTrace(
        unit="token",
        updates=torch.from_numpy(depth).float(),
        valid=torch.from_numpy(real),
        max_updates=max_updates,
        execution=Execution(steps),
        halting=Halting(
            remainders=torch.from_numpy(generator.uniform(0.05, 0.9, fed.shape) * real).float(),
            probabilities=torch.from_numpy(probabilities.clip(0, 1)).float(),
        ),
    )


def make_losses(generator: np.random.Generator, batch: dict[str, torch.Tensor], trace: DepthTrace) -> torch.Tensor:
    losses = generator.gamma(1.5, 1.0, trace.updates.shape) * (0.3 + trace.updates.numpy() / trace.max_updates)
    return torch.where(batch["labels"] >= 0, torch.from_numpy(losses).float(), torch.nan)


def make_states(generator: np.random.Generator, trace: DepthTrace, width: int = 16) -> list[torch.Tensor]:
    """Return random walks with shrinking steps; a token that has halted stays where it is."""
    state = torch.from_numpy(generator.normal(size=(*trace.updates.shape, width))).float()
    states = [state]
    for step in range(trace.execution.steps):
        move = torch.from_numpy(generator.normal(size=state.shape)).float() * 0.9 / (1 + 0.4 * step)
        state = torch.where((trace.updates > step)[..., None], state + move, state)
        states.append(state)
    return states


def make_work(trace: DepthTrace) -> Work:
    """Return an execution that saves half of what could be saved."""
    dense = float(trace.execution.steps * trace.updates.numel())
    needed, full = trace.updates.double().sum(), trace.valid.sum().double() * trace.max_updates
    work = Work(executed=(dense + needed) / 2, dense=torch.tensor(dense).double(), adaptive=needed, full=full)
    return Work(*(7.1e6 * value for value in work))


def evaluate(
    max_updates: int, progress: float, seed: int, batches: int = 6
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return summary and sentences of an evaluation at `progress` (0 to 1) of a made-up training."""
    generator = np.random.default_rng(seed)
    statistics = HaltingStatistics(max_updates, TOKEN_CLASSES, "cpu")
    sampler = SentenceSampler(decode)
    for _ in range(batches):
        batch = make_batch(generator)
        trace = make_trace(generator, batch, max_updates, progress)
        losses = make_losses(generator, batch, trace)
        classes = token_classes(batch, cls_id=CLS, sep_id=SEP, mask_id=MASK)
        statistics.update(trace, classes, losses, make_states(generator, trace), make_work(trace))
        right = torch.from_numpy(generator.random(losses.shape)) < 0.4
        sampler.update(batch, trace, losses, torch.where(right, batch["labels"], 5 + batch["labels"] % 60))
    return statistics.summary(), sampler.sentences()


def make_run(directory: Path, max_updates: int = 12, evaluations: int = 12) -> Path:
    """Write every file of a finished run."""
    generator = np.random.default_rng(0)
    lines = []
    for index in range(evaluations):
        step, progress = 250 * index, 1 - np.exp(-3.5 * index / evaluations)
        summary, sentences = evaluate(max_updates, progress, seed=index)
        losses = {
            f"{split}/{name}_loss": float(scale * (1 - 0.55 * progress) * generator.normal(1, 0.01))
            for split in ("train", "eval")
            for name, scale in (("mlm", 9.0), ("sop", 0.69), ("ponder", 0.3))
        }
        losses |= {
            f"{split}/loss": sum(losses[f"{split}/{name}_loss"] for name in ("mlm", "sop", "ponder"))
            for split in ("train", "eval")
        }
        speed = {"eval/tokens_per_second": 4321.0 + index}
        lines.append({"step": step, "time": 40.0 * index, **losses, **speed, **flatten(summary)})
    write_halting_files(directory, summary, sentences, lines[-1]["step"])
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    run = {
        "status": "finished", "config_name": "act_small", "command": "python adadepth/run.py --config-name act_small",
        "versions": {"adadepth": "0.1.0", "torch": "2.13.0", "transformers": "5.23.0"}, "git_commit": "3f2c9a1",
        "hardware": {"device": "NVIDIA H200", "precision": "bf16", "processes": 1}, "seed": 0,
        "started": "2025-03-02T14:05:11+00:00",
        "wall_time_s": 1843.2, "best_checkpoint": "checkpoints/checkpoint-2750", "error": None,
        "final_metrics": {"eval/mlm_accuracy": 0.4123, "eval/sop_accuracy": 0.781, "halting/all/mean": 5.2},
    }  # fmt: skip
    (directory / "run.json").write_text(json.dumps(run), encoding="utf-8")
    config = "name: act_small\nseed: 0\nmodel:\n  name: albert_act\n  hidden_size: 768\n  num_hidden_layers: 12\n"
    config += (
        "  act_epsilon: 0.01\n  act_penalty: 0.0005\n  penalty_reduction: sum_tokens\n  cap_remainder: reference\n"
    )
    config += "  state_rule: single\ndataset:\n  name: wikitext2\n  source: local\n  sequence_length: 128\n"
    (directory / "config.yaml").write_text(config, encoding="utf-8")
    return directory
