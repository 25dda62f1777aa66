"""Weights of published ACT-ALBERT models in TensorFlow's file `tf_model.h5`, for folders that hold no other weights."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, WEIGHTS_INDEX_NAME, WEIGHTS_NAME, cached_file

from adadepth.errors import CheckpointError, missing_package
from adadepth.models.loading import HUB_ARGUMENTS, describe_place

TF_WEIGHTS_NAME = "tf_model.h5"
_OTHERS = (SAFE_WEIGHTS_NAME, WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_INDEX_NAME)
_NAMES = (
    (r"^[^/]+/", ""),  # of the model
    (r":0$", ""),
    (r"(token_type_embeddings|position_embeddings)/embeddings$", r"\1/weight"),
    (r"/gamma$", "/weight"),
    (r"/beta$", "/bias"),
    (r"/kernel$", "/weight"),
    (r"/", "."),
)


def find_tf_weights(path: Any, options: Mapping[str, Any]) -> Path | None:
    """Return the file `tf_model.h5` of a folder or hub id, or None if it has none, or other weights, too.

    Args:
        path: Folder or hub id.
        options: Arguments of `from_pretrained`.
    """
    location: dict[str, Any] = {name: options[name] for name in HUB_ARGUMENTS if name in options and name != "proxies"}
    quiet = {f"_raise_exceptions_for_{case}": False for case in ("gated_repo", "missing_entries", "connection_errors")}
    for name in (*_OTHERS, TF_WEIGHTS_NAME):
        if (file := cached_file(str(path), name, **location, **quiet)) is not None:
            return Path(file) if name == TF_WEIGHTS_NAME else None
    return None


def read_tf_weights(path: Any, file: Path) -> dict[str, Tensor]:
    """Read the weights of an ACT-ALBERT model from TensorFlow's file, renamed as in the other published files.

    Matrices of linear layers are transposed, that of the pooler included.

    Args:
        path: Folder or hub id, for messages.
        file: File `tf_model.h5`.

    Raises:
        CheckpointError: If the package h5py is missing, or the file is damaged.
    """
    origin = describe_place(path)
    try:
        h5py = import_module("h5py")
    except ImportError as error:
        problem = f"its weights are those of TensorFlow ({TF_WEIGHTS_NAME}) alone"
        raise CheckpointError(f"{origin}: {problem}, and {missing_package('h5py', 'h5py')}") from error
    try:
        with h5py.File(file, "r") as stored:
            arrays = dict(_list_arrays(stored))
    except (OSError, KeyError) as error:
        raise CheckpointError(f"{origin}: its {TF_WEIGHTS_NAME} is damaged ({error})") from error
    return _rename(arrays)


def _list_arrays(stored: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and array of every weight in a file of Keras, which lists them by top-level layer."""
    for layer in _decode(stored.attrs["layer_names"]):
        for name in _decode(stored[layer].attrs["weight_names"]):
            yield name, stored[layer][name][()]


def _decode(names: Any) -> list[str]:
    return [name.decode() if isinstance(name, bytes) else str(name) for name in names]


def _rename(arrays: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return arrays by TensorFlow's names as weights by their published names.

    A model without a head has no prefix. TensorFlow adds only the second of its two biases to the logits of words.
    """
    weights = {}
    for stored, array in arrays.items():
        name = stored
        for pattern, replacement in _NAMES:
            name = re.sub(pattern, replacement, name)
        weight = torch.from_numpy(array)
        weights[name] = weight.T.contiguous() if stored.endswith("/kernel:0") else weight
    if "predictions.decoder.bias" in weights:
        weights["predictions.bias"] = weights["predictions.decoder.bias"]
    has_head = any(not name.startswith("albert.") for name in weights)
    return weights if has_head else {name.removeprefix("albert."): weight for name, weight in weights.items()}
