"""Low-rank adapters (LoRA) in checkpoints: weights of an adapted model, and the plain weights that they add up to.

An adapted matrix W0 is stored with its factors A and B. Without adapters, the same model has the matrix

    W = W0 + (alpha / r) B A        (Hu et al. 2021, arXiv 2106.09685, equation 3)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from adadepth.errors import CheckpointError

ADAPTERS = "lora.json"  # file of a checkpoint whose weights have adapters
_BASE, _A, _B = ".base_layer.", ".lora_A.default.weight", ".lora_B.default.weight"


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
        CheckpointError: If the scale cannot be read, or a factor is missing.
    """
    weights = {
        name: value for file in sorted(folder.glob("model*.safetensors")) for name, value in load_file(file).items()
    }
    try:
        scale = float(json.loads((folder / ADAPTERS).read_text(encoding="utf-8"))["scale"])
        merged = {name.replace(_BASE, "."): value for name, value in weights.items() if ".lora_" not in name}
        for name in weights:
            if name.endswith(_A):
                module = name.removesuffix(_A)
                product = weights[module + _B].float() @ weights[name].float()
                merged[f"{module}.weight"] = merged[f"{module}.weight"] + (scale * product).to(product.dtype)
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise CheckpointError(f"{folder}: its adapters cannot be read ({error})") from error
    return merged
