"""Files of published models: where they are, and their weights by their stored names."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor
from transformers import GenerationConfig
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, WEIGHTS_INDEX_NAME, WEIGHTS_NAME

from adadepth.errors import CheckpointError

# Options of `from_pretrained` by which the hub finds a model.
HUB_OPTIONS = ("cache_dir", "revision", "token", "local_files_only", "force_download")
TOKEN_FIELDS = ("bos_token_id", "eos_token_id", "pad_token_id")
TRAINING_DATA = "training_data"  # identity of the training data, which other programs ignore
TOKENIZER_FILES = ("tokenizer_config.json", "tokenizer.json")
# Further files of the tokenizers of transformers.
VOCABULARY_FILES = (
    "special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "chat_template.json", "vocab.json",
    "vocab.txt", "merges.txt", "tokenizer.model", "spiece.model", "spm.model", "sentencepiece.bpe.model",
    "tokenizer.tiktoken", "tekken.json",
)  # fmt: skip
_TABLES = re.compile(r"(^|\.)(freqs_cis|rotary_emb\.inv_freq)$")
_FILES = (
    "config.json", "*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json", *TOKENIZER_FILES,
)  # fmt: skip


def find_folder(path: Any, options: Mapping[str, Any]) -> Path:
    """Return the folder of a published model, after downloading its configuration and weights if it is on the hub.

    Args:
        path: Folder, configuration file or hub id.
        options: Arguments of `from_pretrained`.
    """
    folder = Path(path)
    if folder.is_file():
        return folder.parent
    if not folder.is_dir():
        hub_options = {name: options[name] for name in HUB_OPTIONS if name in options}
        folder = Path(snapshot_download(str(path), allow_patterns=list(_FILES), **hub_options))
    return folder / (options.get("subfolder") or "")


def find_publishable_file(folder: Path, name: str) -> Path | None:
    """Return the path of a file that may be copied into a folder for publishing, or None if it does not exist.

    A link must lead to a file of the same folder, or to the blobs of the hub's cache.

    Raises:
        CheckpointError: If the file lies elsewhere, is not regular or cannot be read. The message begins with `its`.
    """
    path = folder / name
    if not os.path.lexists(path):
        return None
    root, target = Path(os.path.realpath(folder)), Path(os.path.realpath(path))
    roots = [root, *([root.parents[1] / "blobs"] if root.parent.name == "snapshots" else [])]
    if not any(target.is_relative_to(folder) for folder in roots):
        raise CheckpointError(f"its {name} is a link to {target}, outside the folder; replace the link by the file")
    if not target.exists():
        raise CheckpointError(f"its {name} is a broken link")
    if not target.is_file():
        raise CheckpointError(f"its {name} is not a regular file")
    if not os.access(target, os.R_OK):
        raise CheckpointError(f"its {name} cannot be read")
    return path


def list_stored_weights(folder: Path) -> set[str]:
    """Return the names of all weights of a folder, none if it has no weights.

    Raises:
        CheckpointError: If a file of weights is damaged.
    """
    tensors, pickles = list_weight_files(folder)
    names: set[str] = set()
    for file in tensors:
        try:
            with safe_open(file, framework="pt") as weights:
                names.update(weights.keys())
        except SafetensorError as error:
            raise CheckpointError(f"{file}: damaged ({error})") from error
    for file in () if tensors else pickles:
        names.update(torch.load(file, map_location="meta", weights_only=True))
    return names


def load_stored_weights(folder: Path) -> dict[str, Tensor]:
    """Load all weights of a folder by their stored names, from safetensors files if there are any.

    Raises:
        CheckpointError: If there are no weights.
    """
    tensors, pickles = list_weight_files(folder)
    if not tensors and not pickles:
        raise CheckpointError(f"{folder}: contains neither {SAFE_WEIGHTS_NAME} nor {WEIGHTS_NAME}")
    weights: dict[str, Tensor] = {}
    for file in tensors or pickles:
        weights |= load_file(file) if tensors else torch.load(file, map_location="cpu", weights_only=True)
    return weights


def is_rotary_table(name: str) -> bool:
    """Return whether a stored weight is a table of rotary positions, which follows from the configuration."""
    return _TABLES.search(name) is not None


def read_generation_config(
    path: Any, options: Mapping[str, Any], correct: Callable[[GenerationConfig], None] | None = None
) -> GenerationConfig | None:
    """Load the generation configuration of a published model, or return None if it has none.

    transformers refuses to save a model with contradictory generation settings. In that case, only the special tokens
    are kept.

    Args:
        path: Folder or hub id.
        options: Arguments of `from_pretrained`.
        correct: Function that changes stale values of the configuration, if there may be some.
    """
    hub_options = {name: options[name] for name in (*HUB_OPTIONS, "subfolder") if name in options}
    try:
        stored = GenerationConfig.from_pretrained(path, **hub_options)
    except OSError:
        return None
    if correct is not None:
        correct(stored)
    try:
        stored.validate(strict=True)
    except ValueError:
        return GenerationConfig(**{name: getattr(stored, name) for name in TOKEN_FIELDS})
    return stored


def list_weight_files(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the safetensors files and the pickles that contain the weights of a model.

    As in transformers, these are the file of the usual name, else the files of the index, so that other files beside
    them are not read. If a folder has neither, all its files of weights are returned.

    Raises:
        CheckpointError: If an index is damaged, or names a file outside the folder.
    """
    tensors = _list_named_files(folder, SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME)
    pickles = _list_named_files(folder, WEIGHTS_NAME, WEIGHTS_INDEX_NAME)
    return (
        tensors or sorted(folder.glob(f"*{Path(SAFE_WEIGHTS_NAME).suffix}")),
        pickles or sorted(folder.glob(f"{Path(WEIGHTS_NAME).stem}*.bin")),
    )


def _list_named_files(folder: Path, name: str, index: str) -> list[Path]:
    """Return the file of this name, else the files that the index names, or none without both."""
    if (folder / name).is_file():
        return [folder / name]
    if not (folder / index).is_file():
        return []
    try:
        files = sorted(set(json.loads((folder / index).read_text(encoding="utf-8"))["weight_map"].values()))
        outside = next((file for file in files if Path(file).name != file), None)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{folder / index}: is damaged and names no files of weights") from error
    if outside is not None:
        raise CheckpointError(f"{folder / index}: names {outside!r}; allowed are files of this folder")
    return [folder / file for file in files]


class LayoutFiles(NamedTuple):
    """Content of the files of a model in a published layout.

    Attributes:
        config: Fields of config.json.
        weights: Weights by their published names.
    """

    config: dict[str, Any]
    weights: dict[str, Tensor]


@dataclass(frozen=True)
class PublishedFolder:
    """Folder of published training code that has no configuration of transformers.

    Attributes:
        config: Fields of the configuration of this package, with `model_type` and `architectures`.
        symbols: Symbols of the tokens 1, 2, ... of puzzles, one character each, or None if they are unknown.
    """

    config: dict[str, Any]
    symbols: str | None = None
