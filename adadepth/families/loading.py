"""Strict `from_pretrained` of every model: no weight is drawn at random for a stored one, and none is left unread.

`DepthModel` extends `StrictLoading`, so that Python and the command line refuse the same checkpoints in the same words.
Exceptions are explicit: the head of another task may be new, which a warning tells; weights that are tied, buffers that
transformers derives, and those that a class says it ignores are no part of transformers' report; checkpoints of
transformers' own types may hold more than their class; `ignore_mismatched_sizes=True` draws weights of another shape.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open
from transformers import PreTrainedConfig, PreTrainedModel

from adadepth.errors import CheckpointError, WeightShapeError
from adadepth.families.generation_file import check_generation_file
from adadepth.families.registry import Family, families, load, one_of

logger = logging.getLogger(__name__)

# Arguments of `from_pretrained` that say where a model is, and in which version.
HUB_ARGUMENTS = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")
_ADAPTER = "adapter_config.json"
_TABLE = "LOAD REPORT"

_named_by: ContextVar[tuple[str, str]] = ContextVar("named_by", default=("", ""))
_allows_new: ContextVar[bool] = ContextVar("allows_new", default=False)


@contextmanager
def name_setting(key: str, path: str) -> Iterator[None]:
    """Let messages about a path name the setting that it comes from."""
    token = _named_by.set((key, path))
    try:
        yield
    finally:
        _named_by.reset(token)


def describe_place(path: Any) -> str:
    """Return `KEY=PATH` where a setting names the path, else the path."""
    key, named = _named_by.get()
    return f"{key}={path}" if key and named == str(path) else str(path)


@contextmanager
def allow_new_weights() -> Iterator[None]:
    """Let models be made of a state dict that has only some of their weights; the others are drawn."""
    token = _allows_new.set(True)
    try:
        yield
    finally:
        _allows_new.reset(token)


class StrictLoading:
    """A model whose `from_pretrained` refuses what does not fit; its class names `PreTrainedModel` after this one."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Load a checkpoint as transformers does, and refuse one that is not wholly this model's.

        Args:
            pretrained_model_name_or_path: A folder or hub id; None with `state_dict`.
            *args: As in transformers.
            **kwargs: As in transformers.

        Raises:
            CheckpointError: In one line, if the checkpoint is of another type, or a weight is missing, unknown or of
                another shape.
        """
        path: Any = pretrained_model_name_or_path
        parent: Any = super()
        is_empty = path is None and not kwargs.get("state_dict")  # nothing is stored, all weights are drawn
        if is_empty or _is_adapter(path, kwargs) or (path is None and _allows_new.get()):
            return parent.from_pretrained(path, *args, **kwargs)
        place = "state_dict" if path is None else describe_place(path)
        stored = read_stored_config(path, kwargs)
        check_model_type(cls, place, stored)
        if path is not None and getattr(cls, "can_generate", bool)():
            check_generation_file(place, Path(str(path), kwargs.get("subfolder") or ""))
        wants_report, draws = kwargs.pop("output_loading_info", False), kwargs.pop("ignore_mismatched_sizes", False)
        # Where there is no configuration, transformers may follow an adapter of the hub to a base that is not reported.
        options = {**kwargs, "output_loading_info": True, "ignore_mismatched_sizes": draws or bool(stored)}
        published = cls.read_published(path, stored, options)
        source, options = (path, options) if published is None else (None, published)
        with nullcontext() if draws else _without_table():
            model, report = parent.from_pretrained(source, *args, **options)
        if published is not None:
            model.name_or_path = model.config.name_or_path = str(path)
        _check_report(place, model, report, stored, draws)
        _refuse_integers(place, model, _read_types(path, kwargs))
        return (model, report) if wants_report else model

    @classmethod
    def read_published(cls, path: Any, stored: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any] | None:
        """Read a checkpoint that others published under other names; see `Family.published`.

        Args:
            path: A folder or hub id.
            stored: Its configuration as it is written.
            options: Of `from_pretrained`.

        Returns:
            The options with `config` and `state_dict`; None: it is read as it is.
        """
        return None


def read_stored_config(path: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration beside the weights as it is written; empty where there is none."""
    if path is None:
        return {}
    where = {name: options[name] for name in HUB_ARGUMENTS if name in options}
    try:
        return dict(PreTrainedConfig.get_config_dict(path, **where)[0])
    except OSError:  # transformers says what is wrong with it
        return {}


def check_model_type(
    loaded_class: Any, place: str, stored: Mapping[str, Any], *, starts: bool = False, advice: str = ""
) -> None:
    """Refuse a configuration of a type that a class does not read.

    Args:
        loaded_class: A model's class, or a configuration's.
        place: Where it lies, for the message.
        stored: The configuration as it is written.
        starts: Whether the types are read, too, whose weights the class can start from.
        advice: What to do instead, behind the message.

    Raises:
        CheckpointError: Naming both types.
    """
    known = list_readable_types(getattr(loaded_class, "config_class", None) or loaded_class, starts)
    kind = stored.get("model_type")
    if known and kind is not None and kind not in known:
        what = f"holds a model of type {kind}; {loaded_class.__name__} reads {one_of(known)}"
        raise CheckpointError(f"{place}: {what}{advice}")


def list_readable_types(config_class: Any, starts: bool = False) -> list[str]:
    """Return the types of models whose configurations a class reads; empty: of any type."""
    own = getattr(config_class, "model_type", "")
    about = find_family(own) if own else None
    if about is None:
        return [own] if own else []
    return list(dict.fromkeys([own, *about.published, *(about.starts_from if starts else ())]))


def find_family(model_type: str) -> Family | None:
    """Return the family whose models have a type, or are read from published models of that type."""
    for about in families().values():
        if model_type == about.name or model_type in about.published:
            return about
    return None


def find_model_class(config: PreTrainedConfig | Mapping[str, Any]) -> Any:
    """Return the class of the model that a configuration describes: of this package, or else of transformers.

    A published model of a type that a family reads is that family's head of the same kind: an `OuroForCausalLM` is
    read by `LoopedForCausalLM`. None where nobody knows the class.
    """
    described = config if isinstance(config, Mapping) else vars(config)
    name = str(next(iter(described.get("architectures") or ()), ""))
    kind = str(described.get("model_type") or getattr(config, "model_type", ""))
    for about in families().values():
        for place in _classes(about):
            if place.rpartition(":")[2] == name:
                return load(place)
    about_kind, task = find_family(kind), name[name.find("For") :] if "For" in name else ""
    if about_kind is not None and about_kind.published and task:
        alike = [place for place in _classes(about_kind) if place.endswith(task)]
        return load(alike[0]) if alike else None
    model_class = getattr(transformers, name, None) if name else None
    return model_class if isinstance(model_class, type) and issubclass(model_class, PreTrainedModel) else None


def _classes(about: Family) -> Iterable[str]:
    return filter(None, (*about.heads.values(), *about.auto.values(), about.encoder))


def build_without_memory(config: PreTrainedConfig) -> Any:
    """Return the model that a configuration describes, on the meta device; None where it cannot be made so."""
    model_class = find_model_class(config)
    if model_class is None:
        return None
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            return model_class(copy.deepcopy(config))
    except Exception:  # of values that no model can have; its loading says what
        return None


def list_weight_names(config: PreTrainedConfig) -> frozenset[str]:
    """Return the names of all weights of the model that a configuration is of; empty where nobody knows its class."""
    model = build_without_memory(config)
    return frozenset(() if model is None else model.state_dict())


def split_report(
    model: Any, report: Mapping[str, Any], source: Collection[str] | None
) -> tuple[list[str], list[str], list[str]]:
    """Sort what transformers reports of a loaded model.

    Args:
        model: The model.
        report: Its `output_loading_info`.
        source: Names of all weights of the model that was stored, if that had another head; none known: the weights of
            the base are expected. None: the same model was stored.

    Returns:
        Names of weights that are missing, that nobody reads, and that are rightly new.
    """
    known = None if source is None else _list_spellings(source, model)
    new = sorted(name for name in report["missing_keys"] if known is not None and name not in known)
    surplus = sorted(name for name in report["unexpected_keys"] if name not in (known or ()))
    return sorted(set(report["missing_keys"]).difference(new)), surplus, new


def _list_spellings(names: Collection[str], model: Any) -> set[str]:
    """Return names as they are in a model with a base or in the base alone; where none is known, those of the base."""
    prefix = f"{model.base_model_prefix}."
    known = names or [name for name in model.state_dict() if name.startswith(prefix)]
    return {spelling for name in known for spelling in (name, prefix + name, name.removeprefix(prefix))}


def refuse_mismatched(place: str, report: Mapping[str, Any], advice: str = "") -> None:
    """Refuse what transformers tells of weights of another shape.

    Raises:
        WeightShapeError: Naming the first.
    """
    for name, stored, expected in sorted(report["mismatched_keys"]):
        raise WeightShapeError(
            f"{place}: its weights {name!r} have the shape {format_shape(stored)}, not {format_shape(expected)}{advice}"
        )


def refuse_missing(place: str, missing: Iterable[str], surplus: Iterable[str] = ()) -> None:
    """Refuse a model that lacks weights: drawn at random, they would pass for trained.

    Args:
        place: The path, with the setting that names it.
        missing: Names of the weights.
        surplus: Names that nobody reads, of which one is told.

    Raises:
        CheckpointError: If weights are missing.
    """
    absent, unread = sorted(missing), sorted(surplus)
    if not absent:
        return
    listed = f"{absent[0]!r} is" if len(absent) == 1 else f"{absent[0]!r} and {len(absent) - 1} more are"
    wrapper = next((name.removesuffix(absent[0]) for name in unread if name.endswith(f".{absent[0]}")), None)
    other = f"; it has {unread[0]!r}" if unread else ""
    if wrapper is not None:
        other = f"; its names begin with {wrapper!r}: save the model that is inside of what wraps it"
    raise CheckpointError(f"{place}: of its weights {listed} missing{other}")


def refuse_unread(place: str, model: Any, surplus: Collection[str]) -> None:
    """Refuse weights that nobody reads; checkpoints of transformers' types may have some, as older releases wrote them.

    Raises:
        CheckpointError: Naming the first.
    """
    if surplus and not _is_of_transformers(model):
        raise CheckpointError(f"{place}: it has the weights {sorted(surplus)[0]!r}, which its model does not")


def warn_about_new_weights(place: str, names: Collection[str]) -> None:
    """Tell which weights were drawn at random."""
    if names:
        logger.warning("%s: new, drawn at random, for they are not there: %s", place, ", ".join(sorted(names)))


def format_shape(shape: Iterable[int]) -> str:
    """Return a shape as people write it."""
    return f"({', '.join(map(str, shape))})"


def _check_report(place: str, model: Any, report: Mapping[str, Any], stored: Mapping[str, Any], draws: bool) -> None:
    """Refuse what does not fit, and tell what is rightly new; see the module."""
    if not draws:
        refuse_mismatched(place, report, "" if _named_by.get()[0] else "; ignore_mismatched_sizes=True draws them anew")
    missing, surplus, new = split_report(model, report, _list_weights_of_other_head(model, stored))
    refuse_missing(place, missing, surplus)
    refuse_unread(place, model, surplus)
    _refuse_untied(place, model)
    warn_about_new_weights(place, {*new, *(name for name, *_ in report["mismatched_keys"])})


def _refuse_untied(place: str, model: Any) -> None:
    """Refuse weights that the configuration says are one, and that differ; transformers would leave them apart."""
    tied = {} if _is_of_transformers(model) else model.get_expanded_tied_weights_keys(all_submodels=True)
    for name, source in sorted(tied.items()):
        if name not in model.all_tied_weights_keys:
            raise CheckpointError(f"{place}: its weights {name!r} and {source!r} differ; its configuration ties them")


def _is_of_transformers(model: Any) -> bool:
    """Whether the checkpoints of a model are everybody's: its configuration is one of transformers."""
    return type(model.config).__module__.startswith("transformers.")


def _refuse_integers(place: str, model: Any, types: Iterable[tuple[str, str]]) -> None:
    """Refuse whole numbers, as quantised weights without their scales are, where a model computes with others."""
    if getattr(model.config, "quantization_config", None) is not None:
        return
    weights = model.state_dict()
    for name, stored in types:
        if name in weights and weights[name].is_floating_point() and not stored.startswith(("F", "BF")):
            raise CheckpointError(
                f"{place}: its weights {name!r} are of type {stored}, needed is one like {weights[name].dtype}"
            )


def _read_types(path: Any, options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield name and stored type of all weights in the safetensors of a folder."""
    folder = Path(str(path), options.get("subfolder") or "")
    for file in sorted(folder.glob("*.safetensors")) if path is not None else ():
        with safe_open(file, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118, it is no dictionary
                yield name, weights.get_slice(name).get_dtype()


def _list_weights_of_other_head(model: Any, stored: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the names of all weights of a stored model with another head; None: it has the same, or does not say."""
    name, source = next(iter(stored.get("architectures") or ()), None), find_model_class(stored)
    if name is None or source is type(model):
        return None
    if source is None or source.config_class.model_type != model.config_class.model_type:
        return None if name in {base.__name__ for base in type(model).__mro__} else frozenset()
    return list_weight_names(type(model.config).from_dict(dict(stored)))


def _is_adapter(path: Any, options: Mapping[str, Any]) -> bool:
    """Whether a folder holds an adapter, for which transformers loads the base that it names."""
    return path is not None and Path(str(path), options.get("subfolder") or "", _ADAPTER).is_file()


@contextmanager
def _without_table() -> Iterator[None]:
    """Drop transformers' table of what does not fit: this module says it in one line."""
    library = logging.getLogger("transformers.modeling_utils")

    def is_wanted(record: logging.LogRecord) -> bool:
        return _TABLE not in record.getMessage()

    library.addFilter(is_wanted)
    try:
        yield
    finally:
        library.removeFilter(is_wanted)
