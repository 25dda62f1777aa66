"""Run an exported ExecuTorch program. The packages executorch and torch suffice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from executorch.runtime import Runtime


def load(folder: Path) -> Any:
    """Load the program of a folder, `model.pte`."""
    return Runtime.get().load_program(Path(folder) / "model.pte").load_method("forward")


def run(model: Any, token_ids: list[int], **grid: list[int]) -> list[torch.Tensor]:
    """Run the program for one text, and return its outputs: logits, and depths if the depth varies.

    Logits are float32, (1, classes), or (1, positions, classes) of models that predict for every position. Depths are
    int64, (1,) or (1, positions). Of a puzzle, `token_ids` are its cells, and its kind is the first one. Of a grid,
    `position_ids` are the rows of its cells, and `token_type_ids` the columns.
    """
    ids = torch.tensor([token_ids])
    count = model.metadata.num_inputs()
    # The inputs are ids, mask and segments of a text, the same and the rows of a grid, or the cells of a puzzle and its
    # kind, which is no row of tokens.
    is_text = count == 1 or len(model.metadata.input_tensor_meta(1).sizes()) == 2
    inputs = [ids, torch.ones_like(ids), torch.zeros_like(ids)] if is_text else [ids, torch.zeros_like(ids[:, 0])]
    if grid:
        inputs[2:] = [torch.tensor([grid["token_type_ids"]]), torch.tensor([grid["position_ids"]])]
    outputs: list[torch.Tensor] = list(model.execute(inputs[:count]))
    return outputs


def compute_logits(model: Any, token_ids: list[int], **grid: list[int]) -> list[list[float]]:
    """Return the logits of one text: positions x classes, or 1 x classes of a classifier of texts."""
    logits = run(model, token_ids, **grid)[0]
    rows: list[list[float]] = logits.flatten(0, -2).tolist()
    return rows


def generate(model: Any, token_ids: list[int], count: int) -> list[int]:
    """Return the `count` most probable next tokens of a language model, one after the other.

    The program has no cache: it computes the whole text for every token.
    """
    tokens = list(token_ids)
    for _ in range(count):
        tokens.append(int(run(model, tokens)[0][0, -1].argmax()))
    return tokens[len(token_ids) :]
