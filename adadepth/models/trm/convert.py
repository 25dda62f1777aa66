"""Conversion of checkpoints of the published TRM and HRM code.

Their training scripts write a folder with `all_config.yaml`, a dump of the Hydra configuration, and the weights in
`step_N` (TRM) or `checkpoint` (HRM on the hub). The file of weights holds a state dictionary whose names begin with
`_orig_mod.model.inner.`. Files of PyTorch Lightning hold it under `state_dict`. Sizes that the configuration lacks
follow from the weights. No file of the folder runs code.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from huggingface_hub import snapshot_download
from safetensors.torch import load_file
from torch import Tensor
from transformers.utils import CONFIG_NAME
from transformers.utils.hub import cached_file

from adadepth.errors import CheckpointError, nearest
from adadepth.models.loading import HUB_ARGUMENTS, describe_place
from adadepth.models.shared.published_files import PublishedFolder
from adadepth.models.trm.network import EPSILON
from adadepth.runtime.hub_access import get_first_line
from adadepth.runtime.json_files import read_json

_CONFIG_FILE = "all_config.yaml"
_FACTS = "dataset.json"  # of the published data folders
_STEP = re.compile(r"(?:.*_)?step_(\d+)")
_PLAIN = "checkpoint"
_ENDINGS = (".ckpt", ".pt", ".pth", ".bin", ".safetensors")
_DOWNLOADED = (_CONFIG_FILE, _FACTS, _PLAIN, "*step_*", *(f"*{ending}" for ending in _ENDINGS))
# Entries of a file that hold the weights, and those that hold their moving average.
_STATES = ("state_dict", "model_state_dict", "model")
_AVERAGES = ("ema_state_dict", "state_dict_ema", "model_ema", "ema", "shadow")
# Prefixes that compilation, loss heads and Lightning modules add to every name.
_WRAPPERS = re.compile(r"^(?:(?:_orig_mod|module|model|net|inner)\.)*")
# Published name or prefix -> name or prefix here.
_NAMES = {
    "embed_tokens.embedding_weight": "embed_tokens.weight",
    "embed_pos.embedding_weight": "embed_positions.weight",
    "puzzle_emb.weights": "prefix.weight",
    "H_init": "answer_init",
    "L_init": "reasoning_init",
    "H_level.layers.": "answer_network.layers.",
    "L_level.layers.": "network.layers.",
    "lm_head.": "lm_head.",
    "q_head.": "q_head.",
}
_BUFFERS = frozenset({"answer_init", "reasoning_init", "prefix.weight"})  # which moving averages leave out
_MODULES = {"trm": "TRM", "hrm": "HRM", "hrm_act_v1": "HRM"}  # module of `arch.name` -> model
_POSITIONS = {"rope": "rotary", "learned": "learned"}
_LOSSES = {"stablemax_cross_entropy": "stablemax", "softmax_cross_entropy": "softmax"}
_MIXING = "network.layers.0.mlp_t.down_proj.weight"
_NEEDED = (
    "H_cycles", "L_cycles", "H_layers", "L_layers", "hidden_size", "num_heads", "pos_encodings", "puzzle_emb_ndim",
    "halt_max_steps", "halt_exploration_prob",
)  # fmt: skip
# Word in the path of the training data -> number of tokens, number of cells, and symbols of the tokens 1, 2, ...
_PUZZLES: dict[str, tuple[int, int, str | None]] = {
    "sudoku": (11, 81, ".123456789"),
    "maze": (6, 900, "# SGo"),
    "arc": (12, 900, None),  # padding is part of a grid, so that no text of cells describes it
}


def rename_weights(state_dict: Mapping[str, Tensor], pooler_transpose: bool = False) -> dict[str, Tensor]:
    """Rename the weights of a published TRM or HRM checkpoint as in this package.

    The published code calls the answer z_H, the reasoning z_L, and the networks `H_level` (HRM only) and `L_level`.
    """
    return {_rename(name): weight for name, weight in state_dict.items()}


def _rename(name: str) -> str:
    bare = _WRAPPERS.sub("", name)
    for published, ours in _NAMES.items():
        if bare.startswith(published):
            return ours + bare.removeprefix(published)
    raise CheckpointError(f"{name}: not a parameter of the published model{nearest(bare, _NAMES)}")


def find_published_folder(path: Any, options: Mapping[str, Any]) -> Path | None:
    """Return the folder that the published code wrote, after downloading it if it is on the hub, or None.

    Args:
        path: Folder or hub id. A folder with a `config.json` was not written by that code.
        options: Arguments of `from_pretrained`.
    """
    location = {name: options[name] for name in HUB_ARGUMENTS if name in options}
    errors = ("missing_entries", "gated_repo", "connection_errors")
    is_quiet = {f"_raise_exceptions_for_{error}": False for error in errors}
    try:
        file = cached_file(str(path), _CONFIG_FILE, **location, **is_quiet)
        if file is None or cached_file(str(path), CONFIG_NAME, **location, **is_quiet) is not None:
            return None
    except (OSError, ValueError):  # neither a folder nor a hub id, which the caller reports
        return None
    if not Path(path).is_dir():
        prefix = f"{subfolder}/" if (subfolder := location.pop("subfolder", "")) else ""
        snapshot_download(str(path), allow_patterns=[prefix + pattern for pattern in _DOWNLOADED], **location)
    return Path(file).parent


def read_folder(path: Any, options: Mapping[str, Any]) -> PublishedFolder | None:
    """Read the configuration and the symbols of a folder that the published code wrote, or return None for others.

    Args:
        path: Folder or hub id.
        options: Arguments of `from_pretrained`; `cells` is the number of cells if the folder does not tell it.

    Raises:
        CheckpointError: If the folder lacks a file or a field, or its model is neither TRM nor HRM.
    """
    folder = find_published_folder(path, options)
    if folder is None:
        return None
    origin = f"{describe_place(path)}: its {_CONFIG_FILE}"
    try:
        stored = yaml.safe_load((folder / _CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise CheckpointError(f"{origin} is not YAML ({get_first_line(error)})") from error
    if not isinstance(stored, dict) or not isinstance(stored.get("arch"), dict):
        raise CheckpointError(f"{origin} has no mapping arch, the settings of the published model")
    weights, _ = read_weights(folder, describe_place(path))
    config = _convert_config(origin, stored["arch"], weights)
    usual_cells, symbols = _find_puzzles(stored.get("data_paths", stored.get("data_path")), config["vocab_size"])
    cells = options.get("cells") or _count_cells(origin, folder, config, weights, usual_cells)
    return PublishedFolder(config | {"cells": cells}, symbols)


def read_weights(folder: Path, origin: str) -> tuple[dict[str, Tensor], str]:
    """Read the weights of a published folder, renamed as in this package.

    Args:
        folder: Folder with the file of weights.
        origin: Path of the folder, for messages.

    Returns:
        The weights in float32, and their source in words. If the file holds weights and their moving average, the
        weights are the average, as in the published evaluation, and buffers are the stored ones.

    Raises:
        CheckpointError: If there is no file, more than one, or the file holds anything but tensors.
    """
    file = _find_weights(folder, origin)
    content = _load_file(file, f"{origin}: its {file.name}")
    state, average = _find_tensors(content, _STATES), _find_tensors(content, _AVERAGES)
    if state is None and average is None:
        raise CheckpointError(f"{origin}: its {file.name} has no weights, nor an entry {', '.join(_STATES)}")
    weights, averaged = rename_weights(state or {}), rename_weights(average or {})
    if averaged and (missing := sorted(weights.keys() - averaged.keys() - _BUFFERS)):
        raise CheckpointError(f"{origin}: the moving average in its {file.name} lacks {missing[0]!r}")
    source = f"the moving average (EMA) of the weights in {file.name}" if averaged else file.name
    # The start states are stored in bfloat16, in which the published code computes.
    return {name: weight.float() for name, weight in (weights | averaged).items()}, source


def _find_weights(folder: Path, origin: str) -> Path:
    """Return the file of weights in a folder: the newest `step_N`, or else the only other file of weights."""
    files = sorted(file for file in folder.iterdir() if file.is_file())
    steps = {int(match[1]): file for file in files if (match := _STEP.fullmatch(file.stem))}
    if steps:
        return steps[max(steps)]
    candidates = [file for file in files if file.name == _PLAIN or file.suffix in _ENDINGS]
    if len(candidates) != 1:
        names = ", ".join(file.name for file in candidates) or "none"
        raise CheckpointError(f"{origin}: must have one file of weights, step_N or {_PLAIN}, but has {names}")
    return candidates[0]


def _load_file(file: Path, origin: str) -> Any:
    """Load the content of a file of weights, without running code that it may hold."""
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        return torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
    except Exception as error:  # the unpickler raises errors of many classes for a damaged file
        reason = get_first_line(error)
        if "weights_only" in str(error):
            reason = "it holds other objects than tensors, which are not unpickled; save its state_dict alone"
        raise CheckpointError(f"{origin} cannot be read: {reason}") from error


def _find_tensors(content: Any, names: Collection[str]) -> Mapping[str, Tensor] | None:
    """Return the state dictionary under one of the names, or the whole content if it is one and weights are wanted.

    Callbacks of Lightning hold a moving average in a state of their own.
    """
    if not isinstance(content, Mapping):
        return None
    if names is _STATES and content and all(isinstance(value, Tensor) for value in content.values()):
        return content
    for mapping in (content, *_list_callbacks(content)):
        for value in (mapping[name] for name in names if name in mapping):
            if isinstance(value, Mapping) and value and all(isinstance(item, Tensor) for item in value.values()):
                return value
    return None


def _list_callbacks(content: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    callbacks = content.get("callbacks")
    if isinstance(callbacks, Mapping):
        yield from (state for state in callbacks.values() if isinstance(state, Mapping))


def _convert_config(origin: str, arch: Mapping[str, Any], weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """Convert the published settings `arch` and the sizes of the weights to the fields of `TrmConfig`."""
    is_hrm, mixes_positions = _check_settings(origin, arch) == "HRM", bool(arch.get("mlp_t", False))
    sizes = {
        "vocab_size": ("embed_tokens.weight", 0),
        "puzzle_kinds": ("prefix.weight", 0),
        "intermediate_size": ("network.layers.0.mlp.down_proj.weight", 1),
        **({"mixing_size": (_MIXING, 1)} if mixes_positions else {}),
    }
    if missing := [weight for weight, _ in sizes.values() if weight not in weights]:
        raise CheckpointError(f"{origin} names the model {arch['name']}, but the weights lack {missing[0]!r}")
    return {
        "model_type": "trm",
        "architectures": ["TrmForPuzzles"],
        "dtype": "float32",
        "hidden_size": arch["hidden_size"],
        "num_layers": arch["L_layers"],
        "answer_layers": arch["H_layers"] if is_hrm else None,
        "num_attention_heads": arch["num_heads"],
        "cycles": arch["H_cycles"],
        "reasoning_updates": arch["L_cycles"],
        "num_steps": arch["halt_max_steps"],
        "exploration": arch["halt_exploration_prob"],
        "mixing": "positions" if mixes_positions else "attention",
        "positions": _POSITIONS.get(arch["pos_encodings"], "none"),
        "rope_theta": arch.get("rope_theta", 10000.0),
        # HRM has no such setting, and 0 means the same: the positions that the puzzle embedding fills.
        "prefix_length": 1 if is_hrm else arch.get("puzzle_emb_len", 16) or 1,
        "answer_loss": _LOSSES[_get_loss(arch)],
        "num_labels": weights["embed_tokens.weight"].shape[0],  # classes of a cell
        "exit_rule": f"fixed:{arch['halt_max_steps']}",  # the published evaluation
        **{field: weights[weight].shape[axis] for field, (weight, axis) in sizes.items()},
    }


def _check_settings(origin: str, arch: Mapping[str, Any]) -> str:
    """Return `TRM` or `HRM`, or raise an error for another model, a missing setting or an unsupported value."""
    name = str(arch.get("name"))
    model = _MODULES.get(name.partition("@")[0].rpartition(".")[2])
    if model is None:
        raise CheckpointError(f"{origin}: arch.name={name}: must be a model of the modules {', '.join(_MODULES)}")
    if missing := [field for field in _NEEDED if field not in arch]:
        raise CheckpointError(f"{origin} lacks arch.{missing[0]}, which the published {model} needs")
    for field, value, allowed in (
        ("puzzle_emb_ndim", arch["puzzle_emb_ndim"], (arch["hidden_size"],)),
        ("rms_norm_eps", arch.get("rms_norm_eps", EPSILON), (EPSILON,)),
        ("loss.loss_type", _get_loss(arch), tuple(_LOSSES)),
    ):
        if value not in allowed:
            raise CheckpointError(f"{origin}: arch.{field}={value}: must be {' or '.join(map(str, allowed))}")
    return model


def _get_loss(arch: Mapping[str, Any]) -> str:
    return str((arch.get("loss") or {}).get("loss_type", "stablemax_cross_entropy"))


def _find_puzzles(data: Any, vocab_size: int) -> tuple[int | None, str | None]:
    """Return the number of cells and the symbols of published data, given their path and number of tokens."""
    for word, (size, cells, symbols) in _PUZZLES.items():
        if word in str(data).lower() and size == vocab_size:
            return cells, symbols
    return None, None


def _count_cells(
    origin: str, folder: Path, config: Mapping[str, Any], weights: Mapping[str, Tensor], usual_cells: int | None
) -> int:
    """Return the number of cells of a puzzle: by weights over positions, by `dataset.json`, or by the published data.

    Raises:
        CheckpointError: If none of them gives the number.
    """
    for name in ("embed_positions.weight", _MIXING):
        if name in weights:
            return int(weights[name].shape[0]) - int(config["prefix_length"])
    if (folder / _FACTS).is_file():
        facts = read_json(folder / _FACTS, dict[str, object])
        usual_cells = facts.get("seq_len")
    if not isinstance(usual_cells, int):
        raise CheckpointError(
            f"{origin} does not give the number of cells of a puzzle; copy {_FACTS} of the data into the folder"
        )
    return usual_cells
