"""Low-rank adapters (LoRA) in checkpoints: weights of an adapted model, and the plain weights that they add up to.

An adapted matrix W0 is stored with its factors A and B. Without adapters, the same model has the matrix

    W = W0 + (alpha / r) B A        (Hu et al. 2021, arXiv 2106.09685, equation 3)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypedDict

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from adadepth.errors import CheckpointError
from adadepth.models.shared.published_files import list_weight_files
from adadepth.runtime.json_files import read_json

ADAPTERS = "lora.json"  # file of a checkpoint whose weights have adapters
_BASE, _A, _B = ".base_layer.", ".lora_A.default.weight", ".lora_B.default.weight"


class _Adapters(TypedDict):
    """Content of the file `ADAPTERS`."""

    scale: float


def find_adapters(path: Any, options: Any) -> Path | None:
    """Return the folder of a checkpoint that has adapters beside its weights, or None.

    Args:
        path: Folder or hub id, or None.
        options: Arguments of `from_pretrained`.
    """
    folder = None if path is None else Path(str(path), options.get("subfolder") or "")
    return folder if folder is not None and (folder / ADAPTERS).is_file() else None


def write_scale(folder: Path, scale: float) -> None:
    """Record in a checkpoint that its weights have adapters, and their scale alpha / r."""
    (folder / ADAPTERS).write_text(json.dumps({"scale": scale}), encoding="utf-8")


def read_merged_weights(folder: Path) -> dict[str, Tensor]:
    """Read the weights of a checkpoint with adapters as those of the same model without adapters.

    Raises:
        CheckpointError: If the scale cannot be read, there are no adapters, or a factor is missing or of another shape.
    """
    try:
        scale: float = read_json(folder / ADAPTERS, _Adapters)["scale"]
        weights = {name: value for file in list_weight_files(folder)[0] for name, value in load_file(file).items()}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{folder}: its adapters cannot be read ({error})") from error
    merged = {name.replace(_BASE, "."): value for name, value in weights.items() if ".lora_" not in name}
    factors = {name for name in weights if ".lora_" in name}
    modules = sorted({name.removesuffix(_A).removesuffix(_B) for name in factors})
    if not modules:
        raise CheckpointError(f"{folder}: its {ADAPTERS} names adapters, but its weights have none; delete {ADAPTERS}")
    for module in modules:
        base, down, up = f"{module}.weight", module + _A, module + _B
        if missing := [name for name in (base, down, up) if name not in (merged if name == base else weights)]:
            raise CheckpointError(f"{folder}: its adapters are incomplete: {missing[0]!r} is missing")
        matrix, first, second = merged[base], weights[down], weights[up]
        is_matrix = matrix.ndim == first.ndim == second.ndim == 2
        if not is_matrix or (*second.shape, *first.shape) != (len(matrix), len(first), len(first), matrix.shape[1]):
            shapes = (tuple(factor.shape) for factor in (second, first, matrix))
            raise CheckpointError(
                f"{folder}: its adapters of {base!r} have the shapes {next(shapes)} and {next(shapes)}, whose product "
                f"has not the shape {next(shapes)} of the matrix"
            )
        product = second.float() @ first.float()
        merged[base] = matrix + (scale * product).to(product.dtype)
    return merged
