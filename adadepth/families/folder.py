"""A model that others may have written: what its folder holds is checked before a model is filled with it.

Of a folder: which files are read, and what its configuration says. Of a folder and of the hub: what `from_pretrained`
reports of the weights. Whatever is wrong is one line with the setting, the file or weight, and what is wrong with it.
Which weights `from_pretrained` itself refuses, also in Python, says `adadepth.families.loading`.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights
from transformers.utils import CONFIG_NAME, SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_INDEX_NAME

from adadepth.errors import CheckpointError, UserError, nearest
from adadepth.families.loading import (
    StrictLoading,
    name_setting,
    refuse_mismatched,
    refuse_missing,
    refuse_unread,
    split_report,
    warn_about_new_weights,
)
from adadepth.families.registry import families, load
from adadepth.families.shared.convert import MODULE
from adadepth.settings.declaration import declared
from adadepth.system.places import first_line, load_trusted, quiet

_READ = (".json", ".safetensors", ".bin", ".txt", ".model")  # endings of what is read of a folder
_LARGEST_JSON = 2**25  # bytes of a configuration or an index
_INDICES = {SAFE_WEIGHTS_INDEX_NAME: ".safetensors", WEIGHTS_INDEX_NAME: ".bin"}


_is_weightless: ContextVar[bool] = ContextVar("is_weightless", default=False)


@contextmanager
def without_weights() -> Iterator[None]:
    """Let models be made of their configurations alone: no file of weights is read, and no weight is drawn."""
    token = _is_weightless.set(True)
    try:
        with no_init_weights():
            yield
    finally:
        _is_weightless.reset(token)


def is_weightless() -> bool:
    """Whether `without_weights` is in force."""
    return _is_weightless.get()


def read_config(key: str, path: str) -> PreTrainedConfig:
    """The configuration of a checkpoint, whose folder is checked; `key` names the setting in the error.

    Raises:
        CheckpointError: If there is none, or something in the folder cannot be a model's.
    """
    check_files(key, path)
    try:
        return load_trusted(path, lambda trust: AutoConfig.from_pretrained(path, trust_remote_code=trust))
    except Exception as error:  # of a wrong type of a field, the library raises what has no class of its own
        if os.path.isfile(Path(path, CONFIG_NAME)) and "trust_remote_code" not in str(error):
            raise CheckpointError(f"{key}={path}: its {CONFIG_NAME}: {_reason(error)}") from error
        what = "a folder without a model" if os.path.isdir(path) else "neither a folder nor a model that can be fetched"
        raise CheckpointError(f"{key}={path}: {what} ({first_line(error)})") from error


def _reason(error: Exception) -> str:
    """What a library says, cut to the line that says it."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1 if isinstance(error, StrictDataclassError) else 0].strip()


def check_files(key: str, path: str) -> None:
    """Refuse a folder whose files cannot be those of a model; what is no folder is left to whoever fetches it.

    Args:
        key: The setting that names it, for the message.
        path: A folder or hub id.

    Raises:
        CheckpointError: Naming the file.
    """
    folder = Path(path)
    if not os.path.isdir(folder):
        return
    with told(key, path):
        files = sorted(folder.iterdir())
    for file in files:
        if file.suffix in _READ and (problem := _flaw_of_file(file)):
            raise CheckpointError(f"{key}={path}: its {file.name} {problem}")
    if (folder / CONFIG_NAME).is_file():
        _check_written(f"{key}={path}: its {CONFIG_NAME}", _read_object(key, path, CONFIG_NAME))
    for name, ending in _INDICES.items():
        if (folder / name).is_file():
            _check_index(key, path, name, ending)


def _flaw_of_file(file: Path) -> str | None:
    """What keeps a file from being read; links to files, as caches and shared folders have them, are followed."""
    if not file.exists():
        return "is a link to nothing"
    return None if stat.S_ISREG(file.stat().st_mode) else "is no regular file"


def _read_object(key: str, path: str, name: str) -> dict[str, Any]:
    file = Path(path, name)
    if (size := file.stat().st_size) > _LARGEST_JSON:
        raise CheckpointError(f"{key}={path}: its {name} has {size:,} bytes, more than any that describes a model")
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{key}={path}: its {name} is no JSON ({first_line(error)})") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{key}={path}: its {name} must hold an object, not {type(found).__name__}")
    return found


def _check_written(whose: str, described: Mapping[str, Any]) -> None:
    """Whether a configuration names a type, and, if this package wrote it, has every size that it ever wrote.

    One of somebody else's may mean a default by leaving a size out, and so may any in what came after its models.
    """
    name, classes = described.get("model_type"), described.get("architectures") or []
    if not isinstance(name, str):
        raise CheckpointError(f"{whose}: model_type={name!r} must be the name of a type of model")
    if not isinstance(classes, list) or not all(isinstance(each, str) for each in classes):
        raise CheckpointError(f"{whose}: architectures={classes!r} must be a list of names")
    if MODULE not in str(described.get("auto_map")):
        return
    if name not in families():
        raise CheckpointError(
            f"{whose}: model_type={name!r}, so this is a folder without a model that is known here; it must be one of "
            f"{', '.join(families())}{nearest(name, families())}"
        )
    about = declared(load(families()[name].config))
    if missing := [size for size, each in about.items() if each.shape and not each.later and size not in described]:
        raise CheckpointError(f"{whose}: lacks {', '.join(missing)}")


def _check_index(key: str, path: str, name: str, ending: str) -> None:
    """Whether the files that an index names are of its kind and in the folder."""
    found = _read_object(key, path, name).get("weight_map")
    if not isinstance(found, dict) or not all(isinstance(file, str) for file in found.values()):
        raise CheckpointError(f"{key}={path}: its {name} has no weight_map from weights to files")
    for file in dict.fromkeys(found.values()):
        if Path(file).name != file or not file.endswith(ending):
            raise CheckpointError(
                f"{key}={path}: its {name} names {file!r}; allowed are files here that end in {ending}"
            )
        if not Path(path, file).is_file():
            raise CheckpointError(f"{key}={path}: its {name} names {file}, which is missing")


@contextmanager
def told(key: str, path: str) -> Iterator[None]:
    """Say what a library cannot load in one line: of a damaged model it raises what has no class of its own.

    Raises:
        CheckpointError: Instead of an error that is nobody's mistake in a setting.
    """
    try:
        with name_setting(key, path):
            yield
    except (UserError, ImportError, MemoryError, torch.OutOfMemoryError):
        raise
    except SafetensorError as error:
        raise CheckpointError(f"{key}={path}: its weights are damaged ({first_line(error)})") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{key}={path}: {first_line(error)}") from error
    except Exception as error:
        raise CheckpointError(
            f"{key}={path}: cannot be loaded ({type(error).__name__}: {first_line(error)})"
        ) from error


def loaded(
    key: str,
    path: str,
    model_class: Any,
    config: PreTrainedConfig,
    *,
    has: Collection[str] | None = None,
    **options: Any,
) -> PreTrainedModel:
    """A model with the weights of a folder or hub id.

    Args:
        key: The setting that names it.
        path: The folder or hub id.
        model_class: What to make.
        config: Its configuration.
        has: Of a model with other heads, the names of all its weights: others are new, which is told, and what is of
            no use is left there. None: all that there is must be the model's, and the other way round.
        **options: Of `from_pretrained`.

    Raises:
        CheckpointError: Naming the weight that is missing, unknown or of another shape.
    """
    if is_weightless():
        made: PreTrainedModel = model_class._from_config(config, **options)
        return made
    # A class of this package refuses other shapes itself; of transformers' report they are told below.
    draws = not issubclass(model_class, StrictLoading)
    with quiet(), told(key, path):
        model, report = model_class.from_pretrained(
            path, config=config, ignore_mismatched_sizes=draws, output_loading_info=True, **options
        )
    place = f"{key}={path}"
    refuse_mismatched(place, report)
    missing, surplus, new = split_report(model, report, has)
    refuse_missing(place, missing, surplus)
    refuse_unread(place, model, surplus)
    if not isinstance(model, StrictLoading):  # it has told
        warn_about_new_weights(place, new)
    return model
