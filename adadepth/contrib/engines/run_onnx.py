"""Run an exported ONNX program with ONNX Runtime. The packages onnxruntime and numpy suffice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime


def load(folder: Path) -> Any:
    """Load the program of a folder, `model.onnx`, for the CPU."""
    return onnxruntime.InferenceSession(Path(folder) / "model.onnx", providers=["CPUExecutionProvider"])


def run(model: Any, token_ids: list[int], **grid: list[int]) -> dict[str, Any]:
    """Run the program for one text, and return its outputs by name: `logits`, and `depth` if the depth varies.

    Logits are float32, (1, classes), or (1, positions, classes) of models that predict for every position. Depths are
    int64, (1,) or (1, positions). Of a puzzle, `token_ids` are its cells, and its kind is the first one. Of a grid,
    `position_ids` are the rows of its cells, and `token_type_ids` the columns.
    """
    ids = np.array([token_ids], dtype=np.int64)
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    inputs["puzzle_kinds"] = np.zeros(1, dtype=np.int64)
    inputs |= {name: np.array([values], dtype=np.int64) for name, values in grid.items()}
    names = [value.name for value in model.get_inputs()]
    values = model.run(None, {name: inputs[name] for name in names})
    return dict(zip([value.name for value in model.get_outputs()], values, strict=True))


def compute_logits(model: Any, token_ids: list[int], **grid: list[int]) -> list[list[float]]:
    """Return the logits of one text: positions x classes, or 1 x classes of a classifier of texts."""
    logits = run(model, token_ids, **grid)["logits"]
    rows: list[list[float]] = logits.reshape(-1, logits.shape[-1]).tolist()
    return rows


def generate(model: Any, token_ids: list[int], count: int) -> list[int]:
    """Return the `count` most probable next tokens of a language model, one after the other.

    The program has no cache: it computes the whole text for every token.
    """
    tokens = list(token_ids)
    for _ in range(count):
        tokens.append(int(run(model, tokens)["logits"][0, -1].argmax()))
    return tokens[len(token_ids) :]
