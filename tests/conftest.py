"""What every test may rely on: no network, scratch caches, one thread a process, a fixed seed, no state left behind."""

from __future__ import annotations

import copy
import gc
import ipaddress
import os
import random
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import omegaconf._utils as omegaconf_utils
import pytest
import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository, ConfigRepository
from hydra.core.default_element import ResultDefault
from hydra.core.object_type import ObjectType
from hypothesis import settings
from omegaconf import OmegaConf

ROOT = Path(__file__).resolve().parents[1]
DATA_ROOT = ROOT.parent / "shared" / "data"

# Set before any test module is imported, because the libraries read these when they are imported. Commands that a
# test starts inherit them. HF_HOME is a scratch directory, so that no test passes thanks to a machine's own cache.
_SCRATCH = tempfile.TemporaryDirectory(prefix="adadepth-tests-", ignore_cleanup_errors=True)
os.environ.update(
    {
        "ADADEPTH_CACHE": str(Path(_SCRATCH.name, "data")),
        "HF_HOME": str(Path(_SCRATCH.name, "hub")),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "MPLBACKEND": "Agg",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
)

# How long an example takes depends on what else the machine does: that is no property of the code.
settings.register_profile("quick", deadline=None, max_examples=40)
settings.register_profile("thorough", deadline=None)  # `make test-slow` runs tests/property with it
settings.load_profile("quick")


class NetworkBlockedError(RuntimeError):
    """A test tried to reach the network. Not an OSError, which code under test may rightly catch."""


def _is_local(host: object) -> bool:
    if not host or host in ("localhost", socket.gethostname()):
        return True
    try:
        return ipaddress.ip_address(host.decode() if isinstance(host, bytes) else str(host)).is_loopback
    except ValueError:
        return False


def _block_network(patch: pytest.MonkeyPatch) -> None:
    """Let sockets connect to this machine only, and names resolve to it only."""

    def guard(name: str) -> None:
        original = getattr(socket.socket, name)

        def connect(self: socket.socket, address: Any) -> Any:
            if self.family != getattr(socket, "AF_UNIX", None) and not _is_local(address[0]):
                raise NetworkBlockedError(f"connection to {address[0]!r}: tests run without a network")
            return original(self, address)

        patch.setattr(socket.socket, name, connect)

    guard("connect")
    guard("connect_ex")
    resolve = socket.getaddrinfo

    def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_local(host):
            raise NetworkBlockedError(f"look-up of {host!r}: tests run without a network")
        return resolve(host, *args, **kwargs)

    patch.setattr(socket, "getaddrinfo", getaddrinfo)


def _read_yaml_fast(patch: pytest.MonkeyPatch) -> None:
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


def _compose_fast(patch: pytest.MonkeyPatch) -> None:
    """Let Hydra read a file, and merge the same files and schemas, once a process: a command composes twice."""
    read, merge = ConfigRepository.load_config, ConfigLoaderImpl._compose_config_from_defaults_list
    files: dict[Any, Any] = {}
    merged: dict[Any, Any] = {}

    def state(folder: str, path: str) -> tuple[Any, ...]:
        file = Path(folder.removeprefix("file://"), f"{path.removesuffix('.yaml')}.yaml")
        found = file.stat()
        return file.resolve(), found.st_ino, found.st_mtime_ns, found.st_size

    def load_config(repo: ConfigRepository, config_path: str) -> Any:
        source = repo._find_object_source(config_path, ObjectType.CONFIG)
        if source is None or source.scheme() != "file":
            return read(repo, config_path)
        key = (config_path, source.provider, source.path, *state(source.path, config_path))
        if key not in files:
            files[key] = read(repo, config_path)
        return files[key]

    def origin(default: ResultDefault, repo: CachingConfigRepository) -> tuple[Any, ...]:
        found = repo.load_config(default.config_path)
        where = (repr(default), default.is_self, default.primary, found.path, OmegaConf.get_type(found.config))
        return (*where, *(state(found.path, default.config_path) if found.path.startswith("file://") else ()))

    def compose(loader: ConfigLoaderImpl, defaults: list[ResultDefault], repo: CachingConfigRepository) -> Any:
        key = tuple(origin(default, repo) for default in defaults)
        if key not in merged:
            with pytest.MonkeyPatch.context() as once:  # merging changes what was read
                once.setattr(ConfigRepository, "load_config", read)
                merged[key] = merge(loader, defaults, CachingConfigRepository(repo.delegate))
        return copy.deepcopy(merged[key])

    patch.setattr(ConfigRepository, "load_config", load_config)
    patch.setattr(ConfigLoaderImpl, "_compose_config_from_defaults_list", compose)


def _hear_signals() -> None:
    """Undo what `nohup` and a script's `&` have this process ignore: what a test starts would ignore it, too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_configure(config: pytest.Config) -> None:
    """Block the network before collection, so that an import cannot use it either; leave out what only costs time."""
    patch = pytest.MonkeyPatch()
    _block_network(patch)
    _read_yaml_fast(patch)
    _compose_fast(patch)
    _hear_signals()
    patch.setattr(os, "fsync", lambda descriptor: None)  # no scratch file has to survive a power cut
    config.add_cleanup(patch.undo)
    config.add_cleanup(_SCRATCH.cleanup)


def pytest_collection_finish() -> None:
    """Look for garbage less often: objects by the thousand are made and dropped at once, above all by Hydra."""
    gc.set_threshold(20_000)


@pytest.fixture(scope="module", autouse=True)
def _kept_is_kept() -> None:
    """Keep what modules and caches hold by now out of later garbage collections, which runs ask for themselves."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is marked `gpu` where there is no CUDA device. torch is imported only if such a test was collected."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of real corpora beside the repository; the test skips where there is none."""
    if not DATA_ROOT.is_dir():
        pytest.skip("no ../shared/data beside the repository")
    return DATA_ROOT


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(autouse=True)
def _restored_torch() -> Iterator[None]:
    """Undo what a test may leave in torch's global state. Tests that never import torch do not pay for it."""
    yield
    torch = sys.modules.get("torch")
    if torch is None:
        return
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(1)
    torch.set_grad_enabled(True)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
