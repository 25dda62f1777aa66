"""Strict `from_pretrained` for every model: missing, unused and mismatched weights are errors.

`DepthModel` extends `StrictLoading`, so that Python and the command line refuse the same checkpoints with the same
messages. There are four exceptions. The head for another task may be newly initialised, with a warning. The loading
report of transformers omits tied weights, derived buffers, and weights that a class ignores. Checkpoints of
transformers' own model types may contain more weights than their class. `ignore_mismatched_sizes=True` initialises
weights of another shape.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, WEIGHTS_INDEX_NAME, WEIGHTS_NAME

from adadepth.errors import CheckpointError, WeightShapeError
from adadepth.models.adapter_weights import find_adapters, read_merged_weights
from adadepth.models.generation_file import check_generation_file
from adadepth.models.registry import Family, ModelClass, families, join_alternatives
from adadepth.models.shared.published_files import PublishedFolder, list_weight_files

logger = logging.getLogger(__name__)

# Arguments of `from_pretrained` for location and version of a model.
HUB_ARGUMENTS = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")
_ADAPTER = "adapter_config.json"
_TABLE = "LOAD REPORT"
_WEIGHTS = (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_NAME, WEIGHTS_INDEX_NAME)

_setting: ContextVar[tuple[str, str]] = ContextVar("setting", default=("", ""))
_allows_new: ContextVar[bool] = ContextVar("allows_new", default=False)


@contextmanager
def name_setting(key: str, path: str) -> Iterator[None]:
    """Make error messages about a path within the `with` block name the setting that contains the path."""
    token = _setting.set((key, path))
    try:
        yield
    finally:
        _setting.reset(token)


def describe_place(path: Any) -> str:
    """Return `KEY=PATH` for an error message, or the path alone if no setting is known for it."""
    key, value = _setting.get()
    return f"{key}={path}" if key and value == str(path) else str(path)


@contextmanager
def allow_new_weights() -> Iterator[None]:
    """Allow, within the `with` block, that a checkpoint lacks weights of the model, which are then initialised."""
    token = _allows_new.set(True)
    try:
        yield
    finally:
        _allows_new.reset(token)


class StrictLoading:
    """Mixin whose `from_pretrained` rejects checkpoints that do not fit; it must precede `PreTrainedModel`."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Load a checkpoint as transformers does, and raise an error unless its weights fit exactly.

        Args:
            pretrained_model_name_or_path: Folder or hub id, or None if `state_dict` is given.
            *args: As in transformers.
            **kwargs: As in transformers.

        Raises:
            CheckpointError: If the checkpoint has another model type, or a weight is missing, unknown or of another
                shape. The message is one line.
        """
        path: Any = pretrained_model_name_or_path
        parent: Any = super()
        is_empty = path is None and not kwargs.get("state_dict")  # all weights are initialised
        if is_empty or _is_adapter(path, kwargs) or (path is None and _allows_new.get()):
            return parent.from_pretrained(path, *args, **kwargs)
        origin = "state_dict" if path is None else describe_place(path)
        stored = read_stored_config(path, kwargs)
        check_model_type(cls, origin, stored, advice=cls.advise(path, stored))
        if path is not None and getattr(cls, "can_generate", bool)():
            check_generation_file(origin, Path(str(path), kwargs.get("subfolder") or ""))
        wants_report, ignores_shapes = (
            kwargs.pop("output_loading_info", False),
            kwargs.pop("ignore_mismatched_sizes", False),
        )
        # Without a configuration, transformers may follow an adapter of the hub to a base that it does not report.
        options = {**kwargs, "output_loading_info": True, "ignore_mismatched_sizes": ignores_shapes or bool(stored)}
        if (adapted := find_adapters(path, kwargs)) is None:
            published = cls.read_published(path, stored, options)
        else:
            config: Any = cls.config_class  # type: ignore[attr-defined]
            plain = {"config": config.from_pretrained(adapted), "state_dict": read_merged_weights(adapted)}
            published = {**plain, **options}
        source, options = (path, options) if published is None else (None, published)
        with nullcontext() if ignores_shapes else _suppress_table():
            model, report = parent.from_pretrained(source, *args, **options)
        if published is not None:
            model.name_or_path = model.config.name_or_path = str(path)
        _check_report(origin, model, report, stored, ignores_shapes)
        _refuse_integers(origin, model, _read_types(path, kwargs))
        return (model, report) if wants_report else model

    @classmethod
    def advise(cls, path: Any, stored: Mapping[str, Any]) -> str:
        """Return what to do with a stored model of another type, for the end of the message that refuses it."""
        return ""

    @classmethod
    def read_published(cls, path: Any, stored: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any] | None:
        """Load a published checkpoint whose weights have other names, and rename them; see `Family.published`.

        Args:
            path: Folder or hub id.
            stored: Stored configuration.
            options: Arguments of `from_pretrained`.

        Returns:
            Options with `config` and `state_dict`, or None if the checkpoint needs no conversion.
        """
        return None


def take_config_fields(config: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Set the fields of a configuration that options of `from_pretrained` name, and return the other options.

    The `dtype` stays an option, because transformers loads the weights in it.
    """
    fields = {name for name in options if hasattr(config, name) and name != "dtype"}
    for name in fields:
        setattr(config, name, options[name])
    return {name: value for name, value in options.items() if name not in fields}


def read_stored_config(path: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration stored next to the weights as a dictionary, or an empty one if there is none."""
    if path is None:
        return {}
    location = {name: options[name] for name in HUB_ARGUMENTS if name in options}
    try:
        stored = dict(PreTrainedConfig.get_config_dict(path, **location)[0])
    except OSError:  # transformers reports the problem later
        stored = {}
    if not stored and (published := read_published_folder(path, options)) is not None:
        return dict(published.config)
    return stored


def read_published_folder(path: Any, options: Mapping[str, Any]) -> PublishedFolder | None:
    """Read a folder of published training code without a configuration of transformers, or return None for others.

    Args:
        path: Folder or hub id.
        options: Arguments of `from_pretrained`.

    Raises:
        CheckpointError: If the folder is incomplete or its model is not supported.
    """
    importers = [spec.folders_from for spec in families().values() if spec.folders_from is not None]
    folders = (importer()(path, options) for importer in importers)
    return next((folder for folder in folders if folder is not None), None)


def check_model_type(
    loaded_class: Any, origin: str, stored: Mapping[str, Any], *, starts: bool = False, advice: str = ""
) -> None:
    """Raise an error if a model class cannot load a configuration's model type.

    Args:
        loaded_class: Class of a model or of a configuration.
        origin: Path of the checkpoint, for the message.
        stored: Stored configuration.
        starts: Whether to allow the model types from which the class can load initial weights, too.
        advice: Suggested alternative, appended to the message.

    Raises:
        CheckpointError: Names both types.
    """
    allowed = list_readable_types(getattr(loaded_class, "config_class", None) or loaded_class, starts)
    kind = stored.get("model_type")
    if allowed and kind is not None and kind not in allowed:
        problem = f"contains a model of type {kind}; {loaded_class.__name__} reads {join_alternatives(allowed)}"
        raise CheckpointError(f"{origin}: {problem}{advice}")


def list_readable_types(config_class: Any, starts: bool = False) -> list[str]:
    """Return the model types that a model class can load. The list is empty if it can load all types."""
    kind = getattr(config_class, "model_type", "")
    spec = find_family(kind) if kind else None
    if spec is None:
        return [kind] if kind else []
    networks = spec.networks if kind == spec.name else ()
    return list(dict.fromkeys([kind, *spec.published, *networks, *(spec.starts_from if starts else ())]))


def find_family(model_type: str) -> Family | None:
    """Return the family that defines a model type or can load published models of that type, or None."""
    specs = families().values()
    return next((spec for spec in specs if model_type == spec.name or model_type in spec.published), None)


def find_model_class(config: PreTrainedConfig | Mapping[str, Any]) -> Any:
    """Return the model class for a configuration, from this package or transformers, or None if unknown.

    A family loads a published model with its own head of the same kind, e.g. `LoopedForCausalLM` for an
    `OuroForCausalLM`.
    """
    described = config if isinstance(config, Mapping) else vars(config)
    name = str(next(iter(described.get("architectures") or ()), ""))
    kind = str(described.get("model_type") or getattr(config, "model_type", ""))
    for spec in families().values():
        for model_class in _import_classes(spec):
            if model_class.__name__ == name:
                return model_class
    reader, task = find_family(kind), name[name.find("For") :] if "For" in name else ""
    if reader is not None and reader.published and task:
        return next((head for head in _import_classes(reader) if head.__name__.endswith(task)), None)
    named = getattr(transformers, name, None) if name else None
    return named if isinstance(named, type) and issubclass(named, PreTrainedModel) else None


def _import_classes(spec: Family) -> Iterator[ModelClass]:
    importers = (*spec.heads.values(), *spec.auto.values(), *(() if spec.encoder is None else (spec.encoder,)))
    return (importer() for importer in importers)


def build_without_memory(config: PreTrainedConfig) -> Any:
    """Build a model on the meta device, without allocating weights, or return None if that fails."""
    model_class = find_model_class(config)
    if model_class is None:
        return None
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            return model_class(copy.deepcopy(config))
    except Exception:  # invalid values, which loading reports
        return None


def list_weight_names(config: PreTrainedConfig) -> frozenset[str]:
    """Return the names of all weights of a configuration's model. The set is empty if its class is unknown."""
    model = build_without_memory(config)
    return frozenset(() if model is None else model.state_dict())


def split_report(
    model: Any, report: Mapping[str, Any], source: Collection[str] | None
) -> tuple[list[str], list[str], list[str]]:
    """Split transformers' loading report into missing weights, unused weights and new weights of the head.

    Args:
        model: Loaded model.
        report: The `output_loading_info` of the model.
        source: Names of all weights of the stored model if it has another head. If it is empty, the weights of the base
            are expected. If it is None, the stored model has the same class.

    Returns:
        Names of missing weights, of unread weights, and of new weights of the head.
    """
    stored = None if source is None else _list_spellings(source, model)
    new = sorted(name for name in report["missing_keys"] if stored is not None and name not in stored)
    surplus = sorted(name for name in report["unexpected_keys"] if name not in (stored or ()))
    return sorted(set(report["missing_keys"]).difference(new)), surplus, new


def _list_spellings(names: Collection[str], model: Any) -> set[str]:
    """Return weight names with and without the prefix of the base model. Without names, return those of the base."""
    prefix = f"{model.base_model_prefix}."
    weights = names or [name for name in model.state_dict() if name.startswith(prefix)]
    return {spelling for name in weights for spelling in (name, prefix + name, name.removeprefix(prefix))}


def refuse_mismatched(origin: str, report: Mapping[str, Any], advice: str = "") -> None:
    """Raise an error if stored weights have a different shape than the model's.

    Raises:
        WeightShapeError: Names the first such weight.
    """
    for name, stored, expected in sorted(report["mismatched_keys"]):
        raise WeightShapeError(
            f"{origin}: its weights {name!r} have the shape {format_shape(stored)}, not {format_shape(expected)}"
            f"{advice}"
        )


def refuse_missing(origin: str, missing: Iterable[str], surplus: Iterable[str] = ()) -> None:
    """Raise an error if weights are missing, because random weights would be mistaken for trained ones.

    Args:
        origin: Path with its setting, for the message.
        missing: Names of missing weights.
        surplus: Names of unread weights. The message names one of them.

    Raises:
        CheckpointError: If weights are missing.
    """
    absent, unread = sorted(missing), sorted(surplus)
    if not absent:
        return
    listed = _format_names(absent)
    wrapper = next((name.removesuffix(absent[0]) for name in unread if name.endswith(f".{absent[0]}")), None)
    other = f"; it contains {unread[0]!r}" if unread else ""
    if wrapper is not None:
        other = f"; its names begin with {wrapper!r}: save the inner model, without its wrapper"
    raise CheckpointError(f"{origin}: its weights {listed} are missing{other}")


def refuse_unread(origin: str, model: Any, surplus: Collection[str]) -> None:
    """Raise an error if a checkpoint has unused weights, except in transformers' models; old releases saved more.

    Raises:
        CheckpointError: Names the first unread weight.
    """
    if surplus and not _is_of_transformers(model):
        raise CheckpointError(
            f"{origin}: it contains the weights {_format_names(sorted(surplus))}, which its model does not have"
        )


def _format_names(names: Sequence[str]) -> str:
    """Format the first name and the number of the others."""
    return repr(names[0]) if len(names) == 1 else f"{names[0]!r} and {len(names) - 1} more"


def warn_about_new_weights(origin: str, names: Collection[str]) -> None:
    """Warn about weights that are missing in the checkpoint and were initialised at random."""
    if names:
        logger.warning(
            "%s: randomly initialised, because the checkpoint lacks them: %s", origin, ", ".join(sorted(names))
        )


def format_shape(shape: Iterable[int]) -> str:
    """Format the shape of a weight as text, such as 768 x 3072."""
    return f"({', '.join(map(str, shape))})"


def _check_report(
    origin: str, model: Any, report: Mapping[str, Any], stored: Mapping[str, Any], ignores_shapes: bool
) -> None:
    """Raise an error for weights that do not fit, and warn about newly initialised ones."""
    if not ignores_shapes:
        refuse_mismatched(
            origin, report, "" if _setting.get()[0] else "; ignore_mismatched_sizes=True initialises them randomly"
        )
    missing, surplus, new = split_report(model, report, _list_weights_of_other_head(model, stored))
    refuse_missing(origin, missing, surplus)
    refuse_unread(origin, model, surplus)
    _refuse_untied(origin, model)
    warn_about_new_weights(origin, {*new, *(name for name, *_ in report["mismatched_keys"])})


def _refuse_untied(origin: str, model: Any) -> None:
    """Raise an error if stored weights differ although the configuration ties them; transformers would not tie them."""
    tied = {} if _is_of_transformers(model) else model.get_expanded_tied_weights_keys(all_submodels=True)
    for name, source in sorted(tied.items()):
        if name not in model.all_tied_weights_keys:
            raise CheckpointError(
                f"{origin}: its weights {name!r} and {source!r} differ, but its configuration ties them"
            )


def _is_of_transformers(model: Any) -> bool:
    """Return whether a model's configuration class is defined by transformers."""
    return type(model.config).__module__.startswith("transformers.")


def _refuse_integers(origin: str, model: Any, types: Iterable[tuple[str, str]]) -> None:
    """Raise an error if stored weights are integers, such as quantised weights without their scales."""
    if getattr(model.config, "quantization_config", None) is not None:
        return
    weights = model.state_dict()
    for name, stored in types:
        if name in weights and weights[name].is_floating_point() and not stored.startswith(("F", "BF")):
            raise CheckpointError(
                f"{origin}: its weights {name!r} have type {stored}, but {weights[name].dtype} or a similar type is "
                "needed"
            )


def _read_types(path: Any, options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name and dtype of every weight in the safetensors files of a folder."""
    folder = Path(str(path), options.get("subfolder") or "")
    for file in list_weight_files(folder)[0] if path is not None else ():
        with safe_open(file, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118, it is no dictionary
                yield name, weights.get_slice(name).get_dtype()


def _list_weights_of_other_head(model: Any, stored: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the weight names of a stored model that has another task head.

    Return None if the head is the same or the class of the stored model is unknown.
    """
    spec = families().get(model.config.model_type)
    if spec is not None and stored.get("model_type") in spec.networks:
        return None
    name, source = next(iter(stored.get("architectures") or ()), None), find_model_class(stored)
    if name is None or source is type(model):
        return None
    if source is None or source.config_class.model_type != model.config_class.model_type:
        return None if name in {base.__name__ for base in type(model).__mro__} else frozenset()
    if stored.get("model_type") == model.config.model_type:
        return list_weight_names(type(model.config).from_dict(dict(stored)))
    converted = copy.deepcopy(model.config)  # of a published model; its weights were renamed
    converted.architectures = [source.__name__]
    return list_weight_names(converted)


def _is_adapter(path: Any, options: Mapping[str, Any]) -> bool:
    """Return whether a folder contains an adapter (PEFT), whose base model transformers then loads.

    Raises:
        CheckpointError: If the folder also contains full weights.
    """
    folder = None if path is None else Path(str(path), options.get("subfolder") or "")
    if folder is None or not (folder / _ADAPTER).is_file():
        return False
    if weights := next((name for name in _WEIGHTS if (folder / name).is_file()), None):
        raise CheckpointError(
            f"{describe_place(path)}: has the adapter {_ADAPTER} beside the full weights {weights}; move one of them "
            "into another folder"
        )
    return True


@contextmanager
def _suppress_table() -> Iterator[None]:
    """Silence transformers' table of mismatched weights within the `with` block; one line reports them instead."""
    library = logging.getLogger("transformers.modeling_utils")

    def is_wanted(record: logging.LogRecord) -> bool:
        return _TABLE not in record.getMessage()

    library.addFilter(is_wanted)
    try:
        yield
    finally:
        library.removeFilter(is_wanted)
