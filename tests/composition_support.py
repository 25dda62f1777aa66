"""Caches of Hydra's compositions, since a command composes twice or more and most commands are a root and values."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import omegaconf._utils as omegaconf_utils
import pytest
import yaml
from hydra._internal import defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra.core.config_store import ConfigStore
from hydra.core.object_type import ObjectType
from omegaconf import OmegaConf


def read_yaml_fast(patch: pytest.MonkeyPatch) -> None:
    """Let OmegaConf, and so Hydra, use the C library's parser: equal values in seven eighths of the time."""
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
            except yaml.YAMLError:  # invalid YAML gets the message that users get
                if not isinstance(self.stream, str):
                    self.stream.seek(0)
                return usual(self.stream).get_single_data()

    patch.setattr(omegaconf_utils, "get_yaml_loader", lambda: Loader)


def compose_once(patch: pytest.MonkeyPatch) -> None:
    """Let Hydra read a file, list a root's files, and merge the same files and schemas, once a process."""
    _read_files_once(patch)
    _list_defaults_once(patch)
    _merge_once(patch)


_FILES: dict[Any, bytes] = {}
_LISTS: dict[Any, tuple[list[Any], Any, dict[str, Any]]] = {}
_MERGED: dict[Any, bytes] = {}


def _read_files_once(patch: pytest.MonkeyPatch) -> None:
    read = ConfigRepository.load_config

    def load_config(repo: ConfigRepository, config_path: str) -> Any:
        source = repo._find_object_source(config_path, ObjectType.CONFIG)
        if source is None or source.scheme() != "file":
            return read(repo, config_path)
        path = Path(source.path.removeprefix("file://"), f"{config_path.removesuffix('.yaml')}.yaml")
        key = (config_path, source.provider, source.path, path.resolve(), *_fingerprint_file(path.stat()))
        if key not in _FILES:
            _FILES[key] = pickle.dumps(read(repo, config_path))
        return pickle.loads(_FILES[key])  # merging changes what was read

    patch.setattr(ConfigRepository, "load_config", load_config)


class _Listed(list):
    """Files and schemas of a choice of options, in order, with the key of all that decides their content."""

    key: Any


def _list_defaults_once(patch: pytest.MonkeyPatch) -> None:
    make = defaults_list._create_defaults_list

    def create(repo: Any, config_name: Any, overrides: Any, prepend_hydra: bool, skip_missing: bool) -> Any:
        choices = (overrides.override_choices, overrides.append_group_defaults, overrides.deletions)
        key = (config_name, repr(choices), prepend_hydra, skip_missing, *_fingerprint_sources(repo))
        if key not in _LISTS:
            defaults, tree = make(repo, config_name, overrides, prepend_hydra, skip_missing)
            override_state = {name: value for name, value in vars(overrides).items() if name != "config_overrides"}
            _LISTS[key] = (defaults, tree, override_state)
        defaults, tree, override_state = _LISTS[key]
        vars(overrides).update(override_state)  # Hydra reads these choices from now on
        listed = _Listed(defaults)
        listed.key = key
        return listed, tree

    patch.setattr(defaults_list, "_create_defaults_list", create)


def _merge_once(patch: pytest.MonkeyPatch) -> None:
    merge = ConfigLoaderImpl._compose_config_from_defaults_list

    def compose(loader: ConfigLoaderImpl, defaults: _Listed, repo: Any) -> Any:
        if defaults.key not in _MERGED:
            _MERGED[defaults.key] = pickle.dumps(merge(loader, defaults, repo))
        return pickle.loads(_MERGED[defaults.key])

    patch.setattr(ConfigLoaderImpl, "_compose_config_from_defaults_list", compose)


def _fingerprint_sources(repo: Any) -> Iterator[Any]:
    """Yield all that a composition reads: the searched folders with their files, and the schemas."""
    for source in repo.get_sources():
        yield source.scheme(), source.provider, source.path
        if source.scheme() == "file":
            yield tuple(_fingerprint_folder(source.path.removeprefix("file://")))
    yield tuple(_fingerprint_store(ConfigStore.instance().repo))


def _fingerprint_folder(folder: str) -> Iterator[Any]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if entry.name.endswith(".yaml"):
            yield entry.name, *_fingerprint_file(entry.stat())
        elif entry.is_dir():
            yield entry.name, tuple(_fingerprint_folder(entry.path))


def _fingerprint_file(status: os.stat_result) -> tuple[int, ...]:
    return status.st_ino, status.st_mtime_ns, status.st_size


def _fingerprint_store(nodes: dict[str, Any]) -> Iterator[Any]:
    for name, node in nodes.items():
        if isinstance(node, dict):
            yield name, tuple(_fingerprint_store(node))
        else:
            yield name, node.package, node.provider, OmegaConf.get_type(node.node)
