"""Hydra's compositions, once a process: a command composes twice or more, and most commands are a root and values."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import omegaconf._utils as omegaconf_utils
import pytest
import yaml
from hydra._internal import defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra.core.config_store import ConfigStore
from hydra.core.object_type import ObjectType
from omegaconf import DictConfig, OmegaConf


def read_yaml_fast(patch: pytest.MonkeyPatch) -> None:
    """Give OmegaConf, and so Hydra, the C library's parser: the same values, and a composition takes an eighth less."""
    usual = omegaconf_utils.get_yaml_loader()
    with pytest.MonkeyPatch.context() as once:
        once.setattr(yaml, "SafeLoader", yaml.CSafeLoader)
        in_c = omegaconf_utils.get_yaml_loader()

    class Loader(in_c):
        def __init__(self, stream: Any) -> None:
            super().__init__(stream)
            self.stream = stream

        def get_single_data(self) -> Any:
            try:
                return super().get_single_data()
            except yaml.YAMLError:  # what is no YAML is told in the words that users get
                if not isinstance(self.stream, str):
                    self.stream.seek(0)
                return usual(self.stream).get_single_data()

    patch.setattr(omegaconf_utils, "get_yaml_loader", lambda: Loader)


def copy_fast(patch: pytest.MonkeyPatch) -> None:
    """Let `copy.deepcopy` pickle a whole configuration: the same nodes, in half of the time."""
    usual = DictConfig.__deepcopy__

    def deepcopy(config: DictConfig, memo: dict[int, Any]) -> DictConfig:
        parent = config._get_parent()
        if memo or parent is not None:  # a part of what is copied, or of a larger configuration
            return usual(config, memo)
        try:
            copied: DictConfig = pickle.loads(pickle.dumps(config))
        except (pickle.PicklingError, TypeError, AttributeError):
            return usual(config, memo)
        return copied

    patch.setattr(DictConfig, "__deepcopy__", deepcopy)


def compose_once(patch: pytest.MonkeyPatch) -> None:
    """Let Hydra read a file, list a root's files, and merge the same files and schemas, once a process."""
    _read_files_once(patch)
    _skip_needless_choices(patch)
    _list_defaults_once(patch)
    _merge_once(patch)


_FILES: dict[Any, bytes] = {}
_LISTS: dict[Any, tuple[list[Any], Any, dict[str, Any]]] = {}
_MERGED: dict[Any, bytes] = {}
_STARTS: dict[Any, _Start] = {}


def _read_files_once(patch: pytest.MonkeyPatch) -> None:
    read = ConfigRepository.load_config

    def load_config(repo: ConfigRepository, config_path: str) -> Any:
        source = repo._find_object_source(config_path, ObjectType.CONFIG)
        if source is None or source.scheme() not in ("file", "structured"):
            return read(repo, config_path)
        key: tuple[Any, ...] = (config_path, source.provider, source.path)
        if source.scheme() == "file":
            path = Path(source.path.removeprefix("file://"), f"{config_path.removesuffix('.yaml')}.yaml")
            key += (path.resolve(), *_of_file(path.stat()))
        else:
            key += (OmegaConf.get_type(ConfigStore.instance()._load(f"{config_path.removesuffix('.yaml')}.yaml").node),)
        if key not in _FILES:
            _FILES[key] = pickle.dumps(read(repo, config_path))
        return pickle.loads(_FILES[key])  # merging changes what was read

    patch.setattr(ConfigRepository, "load_config", load_config)


class _Listed(list):
    """The files and schemas of a choice of options, in order, and all that decides what they hold."""

    key: Any


def _list_defaults_once(patch: pytest.MonkeyPatch) -> None:
    make = defaults_list._create_defaults_list

    def create(repo: Any, config_name: Any, overrides: Any, prepend_hydra: bool, skip_missing: bool) -> Any:
        asked = (overrides.override_choices, overrides.append_group_defaults, overrides.deletions)
        key = (config_name, repr(asked), prepend_hydra, skip_missing, *_state(repo))
        if key not in _LISTS:
            defaults, tree = make(repo, config_name, overrides, prepend_hydra, skip_missing)
            found = {name: value for name, value in vars(overrides).items() if name != "config_overrides"}
            _LISTS[key] = (defaults, tree, found)
        defaults, tree, found = _LISTS[key]
        vars(overrides).update(found)  # what choices there are, and which were made: read from now on
        known = _Listed(defaults)
        known.key = key
        return known, tree

    patch.setattr(defaults_list, "_create_defaults_list", create)


def _skip_needless_choices(patch: pytest.MonkeyPatch) -> None:
    """List the choices made so far only for a defaults list that refers to one: few do, and it takes long."""
    make = defaults_list._create_interpolation_map

    def create(overrides: Any, entries: list[Any], self_added: bool) -> Any:
        if "${" in repr((entries, overrides.override_choices)):
            return make(overrides, entries, self_added)
        return OmegaConf.create()

    patch.setattr(defaults_list, "_create_interpolation_map", create)


@dataclass
class _Start:
    """Stands for the first entries of a list, whose files and schemas are merged already."""

    config: bytes
    config_path: str = "the first entries"


def _merge_once(patch: pytest.MonkeyPatch) -> None:
    merge = ConfigLoaderImpl._compose_config_from_defaults_list
    load = ConfigLoaderImpl._load_single_config

    def load_single(loader: ConfigLoaderImpl, default: Any, repo: Any) -> Any:
        if isinstance(default, _Start):
            return SimpleNamespace(config=pickle.loads(default.config))
        return load(loader, default, repo)

    def compose(loader: ConfigLoaderImpl, defaults: _Listed, repo: Any) -> Any:
        if defaults.key not in _MERGED:
            count = _count_common(defaults)
            key = (repr(defaults[:count]), *_state(repo))
            if key not in _STARTS:
                _STARTS[key] = _Start(pickle.dumps(merge(loader, defaults[:count], repo)))
            _MERGED[defaults.key] = pickle.dumps(merge(loader, [_STARTS[key], *defaults[count:]], repo))
        return pickle.loads(_MERGED[defaults.key])

    patch.setattr(ConfigLoaderImpl, "_load_single_config", load_single)
    patch.setattr(ConfigLoaderImpl, "_compose_config_from_defaults_list", compose)


def _count_common(defaults: list[Any]) -> int:
    """Count the entries with which the lists of all roots start: Hydra's own, and the schema."""
    paths = [entry.config_path for entry in defaults]
    return next((number for number, path in enumerate(paths) if not path.startswith(("hydra/", "schema"))), len(paths))


def _state(repo: Any) -> Iterator[Any]:
    """All that a composition reads: the folders searched with every file in them, and the schemas."""
    for source in repo.get_sources():
        yield source.scheme(), source.provider, source.path
        if source.scheme() == "file":
            yield tuple(_of_folder(source.path.removeprefix("file://")))
    yield tuple(_of_store(ConfigStore.instance().repo))


def _of_folder(folder: str) -> Iterator[Any]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if entry.name.endswith(".yaml"):
            yield entry.name, *_of_file(entry.stat())
        elif entry.is_dir():
            yield entry.name, tuple(_of_folder(entry.path))


def _of_file(found: os.stat_result) -> tuple[int, ...]:
    return found.st_ino, found.st_mtime_ns, found.st_size


def _of_store(nodes: dict[str, Any]) -> Iterator[Any]:
    for name, node in nodes.items():
        if isinstance(node, dict):
            yield name, tuple(_of_store(node))
        else:
            yield name, node.package, node.provider, OmegaConf.get_type(node.node)
