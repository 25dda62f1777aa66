"""Guarantees of every test: no network, scratch caches, one thread a process, a fixed seed, no state left behind."""

from __future__ import annotations

import gc
import ipaddress
import os
import random
import signal
import socket
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.composition_support import compose_once, read_yaml_fast

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

# The time of an example depends on the load of the machine, so there is no deadline.
settings.register_profile("quick", deadline=None, max_examples=10)
settings.register_profile("thorough", deadline=None)  # `make test-slow` runs tests/property with it
settings.load_profile("quick")


class NetworkBlockedError(RuntimeError):
    """Attempt of a test to reach the network. Not an OSError, which code under test may rightly catch."""


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

    def resolve_local(host: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_local(host):
            raise NetworkBlockedError(f"look-up of {host!r}: tests run without a network")
        return resolve(host, *args, **kwargs)

    patch.setattr(socket, "getaddrinfo", resolve_local)


def _restore_signals() -> None:
    """Restore the signals that `nohup` and a script's `&` ignore: commands under test would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--shuffle`, which finds tests that rely on what another left behind."""
    parser.addoption("--shuffle", type=int, metavar="SEED", help="draw the order of modules, and of the tests of each")


def pytest_configure(config: pytest.Config) -> None:
    """Block the network before collection, so that imports cannot use it either, and install the caches."""
    patch = pytest.MonkeyPatch()
    _block_network(patch)
    read_yaml_fast(patch)
    compose_once(patch)
    _restore_signals()
    patch.setattr(os, "fsync", lambda descriptor: None)  # no scratch file has to survive a power cut
    gc.set_threshold(20_000)  # objects by the thousand are made and dropped at once, above all by Hydra
    config.add_cleanup(patch.undo)
    config.add_cleanup(_SCRATCH.cleanup)


@pytest.fixture(scope="module", autouse=True)
def _freeze_garbage_collection() -> None:
    """Keep objects of modules and caches out of later garbage collections, which runs ask for themselves.

    Warnings of unclosed files are ignored here: a module that makes warnings errors did not open those of earlier ones.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    gc.freeze()


def _shuffle(items: list[pytest.Item], seed: int) -> None:
    """Draw the order of modules and of the tests in each: fixtures of a module are still made once."""
    draw = random.Random(seed)
    modules: dict[Path, list[pytest.Item]] = {}
    for item in items:
        modules.setdefault(item.path, []).append(item)
    parts = list(modules.values())
    draw.shuffle(parts)
    for part in parts:
        draw.shuffle(part)
    items[:] = [item for part in parts for item in part]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Shuffle if asked, and skip tests marked `gpu` without a CUDA device, unless they run on another device.

    torch is imported only if such a test was collected.
    """
    seed = config.getoption("--shuffle")
    if seed is not None:
        _shuffle(items, seed)
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked or "ADADEPTH_TEST_DEVICE" in os.environ:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(scope="session")
def data_root() -> Path:
    """Return the folder of real corpora beside the repository, or skip the test."""
    if not DATA_ROOT.is_dir():
        pytest.skip("no ../shared/data beside the repository")
    return DATA_ROOT


@pytest.fixture(scope="session")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a checkpoint of the first family with its tokenizer, and return the model folder of its run."""
    from adadepth import tasks
    from tests.configs.support import configured
    from tests.figures_support import shorten_runs

    folder = tmp_path_factory.mktemp("pretrained")
    quick = ("debug=default", "trainer.disable_tqdm=true", "trainer.halting_statistics=false")
    with shorten_runs():
        tasks.run(configured("act_tiny", *quick, f"output_dir={folder}"))
    (model,) = folder.glob("act_tiny/*/model")
    return model


@pytest.fixture(autouse=True)
def _fix_seed() -> None:
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules:
        _seed_torch()


def _seed_torch() -> None:
    """Set the seed as `torch.manual_seed` does, which without a device records every call for later: 1 ms a test."""
    import torch

    if torch.cuda.is_available():
        torch.manual_seed(0)
    else:
        torch.default_generator.manual_seed(0)


@pytest.fixture(autouse=True)
def _no_automatic_settings() -> None:
    """Forget the automatic settings of an earlier test's command, which the record of a run would contain."""
    if commands := sys.modules.get("adadepth.runs.commands"):
        commands.note_choices([])


@pytest.fixture(autouse=True)
def _reset_torch() -> Iterator[None]:
    """Reset torch's global state after a test. Tests that never import torch do not pay for it."""
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
