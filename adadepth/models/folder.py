"""Safe loading of models from folders and hub ids, with checks of files, configuration and weights.

Every error is one line with the setting, the file or weight, and the problem. `adadepth.models.loading` contains the
checks that `from_pretrained` makes itself, also when it is called from Python.
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

from adadepth.config.declaration import find_excessive_stored_count, get_field_specs
from adadepth.errors import CheckpointError, UserError, nearest
from adadepth.models.loading import (
    StrictLoading,
    find_family,
    name_setting,
    read_published_folder,
    read_stored_config,
    refuse_mismatched,
    refuse_missing,
    refuse_unread,
    split_report,
    warn_about_new_weights,
)
from adadepth.models.registry import families
from adadepth.models.shared.configuration import MODULE
from adadepth.runtime.hub_access import get_first_line, load_with_code_policy, silence_transformers

_READ = (".json", ".safetensors", ".bin", ".txt", ".model")  # endings of the files that are read
_LARGEST_JSON = 2**25  # bytes of a configuration or an index
_INDICES = {SAFE_WEIGHTS_INDEX_NAME: ".safetensors", WEIGHTS_INDEX_NAME: ".bin"}


_is_weightless: ContextVar[bool] = ContextVar("is_weightless", default=False)


@contextmanager
def skip_weight_loading() -> Iterator[None]:
    """Build models within the `with` block from their configurations alone, without reading or initialising weights."""
    token = _is_weightless.set(True)
    try:
        with no_init_weights():
            yield
    finally:
        _is_weightless.reset(token)


def is_weightless() -> bool:
    """Return whether models are currently built without weights, within `skip_weight_loading`."""
    return _is_weightless.get()


def read_config(key: str, path: str) -> PreTrainedConfig:
    """Read and check the configuration of a checkpoint. Errors name the setting `key`.

    Raises:
        CheckpointError: If there is no configuration, or a file of the folder cannot belong to a model.
    """
    check_files(key, path)
    try:
        return load_with_code_policy(path, lambda trust: _load_config(path, trust))
    except Exception as error:  # a wrong type of a field raises errors of many classes
        is_stored = os.path.isfile(Path(path, CONFIG_NAME))
        if not is_stored and (published := _read_published_config(key, path)) is not None:
            return published
        if is_stored and "trust_remote_code" not in str(error):
            raise CheckpointError(f"{key}={path}: its {CONFIG_NAME}: {_extract_reason(error)}") from error
        what = "a folder without a model" if os.path.isdir(path) else "neither a folder nor a model on the hub"
        raise CheckpointError(f"{key}={path}: {what} ({get_first_line(error)})") from error


def _read_published_config(key: str, path: str) -> PreTrainedConfig | None:
    """Read the configuration of a folder of published training code, or return None for other paths."""
    with name_setting(key, path):
        published = read_published_folder(path, {})
    if published is None:
        return None
    try:
        config = families()[published.config["model_type"]].config().from_dict(published.config)
    except (UserError, StrictDataclassError) as error:
        raise CheckpointError(f"{key}={path}: its configuration: {_extract_reason(error)}") from error
    return config


def _load_config(path: str, trust_remote_code: bool) -> PreTrainedConfig:
    """Load a configuration, converted to that of a family if the family can read models of this type.

    AutoConfig converts only types that transformers does not define itself.
    """
    config: PreTrainedConfig = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    spec = find_family(config.model_type)
    if spec is None or config.model_type not in spec.published:
        return config
    return spec.config().from_dict(read_stored_config(path, {}), name_or_path=path)


def _extract_reason(error: Exception) -> str:
    """Return the line of a multi-line error message that states the problem."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1 if isinstance(error, StrictDataclassError) else 0].strip()


def check_files(key: str, path: str) -> None:
    """Raise an error if a checkpoint folder contains unreadable or damaged files. Hub ids are not checked.

    Args:
        key: Setting of the path, for the message.
        path: Folder or hub id.

    Raises:
        CheckpointError: Naming the file.
    """
    folder = Path(path)
    if not os.path.isdir(folder):
        return
    with convert_loading_errors(key, path):
        files = sorted(folder.iterdir())
    for file in files:
        if file.suffix in _READ and (problem := _check_file(file)):
            raise CheckpointError(f"{key}={path}: its {file.name} {problem}")
    if (folder / CONFIG_NAME).is_file():
        _check_config(f"{key}={path}: its {CONFIG_NAME}", _read_object(key, path, CONFIG_NAME))
    for name, ending in _INDICES.items():
        if (folder / name).is_file():
            _check_index(key, path, name, ending)


def _check_file(file: Path) -> str | None:
    """Return why a file, or the target of its link, cannot be read, or None if it can."""
    if not file.exists():
        return "is a broken link"
    return None if stat.S_ISREG(file.stat().st_mode) else "is not a regular file"


def _read_object(key: str, path: str, name: str) -> dict[str, Any]:
    file = Path(path, name)
    if (size := file.stat().st_size) > _LARGEST_JSON:
        raise CheckpointError(
            f"{key}={path}: its {name} has {size:,} bytes, too many for a file that describes a model"
        )
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{key}={path}: its {name} is not JSON ({get_first_line(error)})") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{key}={path}: its {name} must contain a JSON object, not {type(content).__name__}")
    return content


def _check_config(owner: str, config: Mapping[str, Any]) -> None:
    """Check the model type of a stored configuration and, for this package's models, that no size is missing.

    In other configurations, missing sizes have their default value. So have fields that are newer than the file.
    """
    name, classes = config.get("model_type"), config.get("architectures") or []
    if not isinstance(name, str):
        raise CheckpointError(f"{owner}: model_type={name!r} must be the name of a model type")
    if not isinstance(classes, list) or not all(isinstance(item, str) for item in classes):
        raise CheckpointError(f"{owner}: architectures={classes!r} must be a list of names")
    if problem := find_excessive_stored_count(config):
        raise CheckpointError(f"{owner}: {problem}")
    if MODULE not in str(config.get("auto_map")):
        return
    if name not in families():
        raise CheckpointError(
            f"{owner}: unknown model_type={name!r}; must be one of {', '.join(families())}{nearest(name, families())}"
        )
    fields = get_field_specs(families()[name].config()).items()
    sizes = [size for size, field in fields if field.shape and not field.later]
    if missing := [size for size in sizes if size not in config]:
        raise CheckpointError(f"{owner}: missing fields: {', '.join(missing)}")


def _check_index(key: str, path: str, name: str, ending: str) -> None:
    """Check that the files listed in a weight index exist in the folder and have the expected suffix."""
    weight_map = _read_object(key, path, name).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise CheckpointError(f"{key}={path}: its {name} has no weight_map from weights to files")
    for file in dict.fromkeys(weight_map.values()):
        if Path(file).name != file or not file.endswith(ending):
            raise CheckpointError(
                f"{key}={path}: its {name} names {file!r}; allowed are files of this folder that end in {ending}"
            )
        if not Path(path, file).is_file():
            raise CheckpointError(f"{key}={path}: its {name} names {file}, which is missing")


@contextmanager
def convert_loading_errors(key: str, path: str) -> Iterator[None]:
    """Convert errors of libraries within the `with` block to a one-line error that names the setting.

    Raises:
        CheckpointError: In place of errors of libraries. A `UserError` and errors about missing packages or memory are
            not converted.
    """
    try:
        with name_setting(key, path):
            yield
    except (UserError, ImportError, MemoryError, torch.OutOfMemoryError):
        raise
    except SafetensorError as error:
        raise CheckpointError(f"{key}={path}: its weights are damaged ({get_first_line(error)})") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{key}={path}: {get_first_line(error)}") from error
    except Exception as error:
        raise CheckpointError(
            f"{key}={path}: cannot be loaded ({type(error).__name__}: {get_first_line(error)})"
        ) from error


def load_with_weights(
    key: str,
    path: str,
    model_class: Any,
    config: PreTrainedConfig,
    *,
    has: Collection[str] | None = None,
    **options: Any,
) -> PreTrainedModel:
    """Load a model with its weights from a folder or hub id.

    Args:
        key: Setting of the path.
        path: Folder or hub id.
        model_class: Class of the model.
        config: Configuration of the model.
        has: Names of all stored weights if the stored model has another head. A warning then lists new weights, and
            unused weights are not read. If it is None, the names of the stored weights and of the model's must be the
            same.
        **options: Arguments of `from_pretrained`.

    Raises:
        CheckpointError: Naming the weight that is missing, unknown or of another shape.
    """
    if is_weightless():
        weightless: PreTrainedModel = model_class._from_config(config, **options)
        return weightless
    # A class of this package refuses other shapes itself; for others `refuse_mismatched` reads the report.
    ignores_shapes = not issubclass(model_class, StrictLoading)
    with silence_transformers(), convert_loading_errors(key, path):
        model, report = model_class.from_pretrained(
            path, config=config, ignore_mismatched_sizes=ignores_shapes, output_loading_info=True, **options
        )
    source = f"{key}={path}"
    refuse_mismatched(source, report)
    missing, surplus, new = split_report(model, report, has)
    refuse_missing(source, missing, surplus)
    refuse_unread(source, model, surplus)
    if not isinstance(model, StrictLoading):  # which warns itself
        warn_about_new_weights(source, new)
    return model
