"""Distributed runs: world size, communication, errors and exit of processes, and memory allocation."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from adadepth.errors import ConfigError, UserError

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import TrainingArguments

_MAIN_EXIT_S = 60.0  # time in which the main process prints its error, writes its report and exits
_POLL_INTERVAL_S = 1.0
_GROUP_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def is_main_process() -> bool:
    """Return whether this is the main process, which prints messages and writes files."""
    return os.environ.get("RANK", "0") == "0"


def is_distributed() -> bool:
    """Return whether the run has several processes."""
    return get_world_size() > 1


def get_world_size() -> int:
    """Return the world size, which is the number of processes of a distributed run."""
    size = os.environ.get("WORLD_SIZE", "1")
    return int(size) if size.isdecimal() else 1


def reinit_process_group(backend: str | None, timeout_seconds: int) -> None:
    """Initialise the process group after a restart by torchrun, under a new key prefix of the store.

    torchrun keeps one store for all restarts, which still contains the addresses of dead processes. A process that
    reads such an address before the new one is written cannot connect.

    Args:
        backend: Communication backend, or None for torch's default.
        timeout_seconds: Timeout of communication in seconds.
    """
    count = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if count == "0" or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return
    import torch.distributed as dist

    if dist.is_initialized():
        return
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.PrefixStore(f"start {count}", dist.TCPStore(*address, is_master=False))
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    timeout = timedelta(seconds=timeout_seconds)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)


def check_launcher() -> None:
    """Raise an error if a launcher's environment variables (such as RANK) are set incompletely.

    With them the run would wait for processes that never start.

    Raises:
        ConfigError: If a variable is missing; the message names the variables.
    """
    if problem := _check_launcher_variables():
        raise ConfigError(f"{problem}; only a launcher, such as torchrun, sets it")


def _check_launcher_variables() -> str | None:
    """Return which launcher variable is set without the others, or None.

    The result is None if all variables are set, or if none is needed.
    """
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": None}
    changed = [name for name, value in alone.items() if os.environ.get(name, value) != value]
    missing = [name for name in _GROUP_VARIABLES if name not in os.environ]
    if not changed or not missing:
        return None
    lacking = f"needs {', '.join(missing)}, which the environment lacks"
    return f"{changed[0]}={os.environ[changed[0]]}: {lacking}"


def stop_when_launcher_exits() -> None:
    """Watch the launcher, and stop this process with a checkpoint when it exits.

    Otherwise the processes of a killed launcher would keep running on devices that the next run assumes to be free.
    """
    if is_distributed():
        stop_when_parent_exits(os.getppid())


def stop_when_parent_exits(parent: int) -> None:
    """Start a thread that sends this process SIGTERM when the process with the id `parent` exits."""
    threading.Thread(target=_watch, args=(parent,), name="parent", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL_INTERVAL_S)
    os.kill(os.getpid(), signal.SIGTERM)


def exit_with_error(message: str, status: int) -> NoReturn:
    """Print an error and exit; in a distributed run only the main process prints.

    A launcher stops all processes when one exits. The other processes therefore wait for the main process, which
    usually fails with the same error. If it does not fail, they print the error. Without a launcher they do not wait.
    """
    if not is_main_process() and _check_launcher_variables() is None:
        time.sleep(_MAIN_EXIT_S)  # until the launcher's SIGTERM
        message = f"process {os.environ['RANK']}: {message}"
    from adadepth.runtime.console import visible  # imports that `--help` does not need

    for line in visible(message).splitlines():
        print(f"error: {line}", file=sys.stderr, flush=True)
    raise SystemExit(status)


_T = TypeVar("_T")


def run_main_process_first(args: TrainingArguments, work: Callable[[], _T]) -> _T:
    """Run `work` on the main process, then on the others, which can read the cache filled by the first."""
    if args.world_size == 1:
        return work()
    result, failure = _attempt(work) if args.process_index == 0 else (None, None)
    _raise_everywhere(failure)
    return work() if result is None else result


def decide(args: TrainingArguments, work: Callable[[], _T]) -> _T:
    """Run `work` on the main process only, and broadcast its result to all processes."""
    from accelerate.utils import broadcast_object_list

    if args.world_size == 1:
        return work()
    result, failure = _attempt(work) if args.process_index == 0 else (None, None)
    _raise_everywhere(failure)
    shared: list[Any] = [result]
    broadcast_object_list(shared)
    output: _T = shared[0]
    return output


def wait_for_processes(args: TrainingArguments) -> None:
    """Wait until every process has reached this call."""
    from accelerate.utils import broadcast_object_list

    if args.world_size > 1:
        broadcast_object_list([None])


def _attempt(work: Callable[[], _T]) -> tuple[_T | None, UserError | None]:
    try:
        return work(), None
    except UserError as error:
        return None, error


def _raise_everywhere(failure: UserError | None) -> None:
    """Raise an error of the main process in every process, because the others would wait for it forever."""
    from accelerate.utils import broadcast_object_list

    shared = [None if failure is None else (type(failure), str(failure))]
    broadcast_object_list(shared)
    if shared[0] is not None:
        error_type, message = shared[0]
        raise error_type(message)


def all_reduce_sum(tensors: Iterable[Tensor]) -> None:
    """Replace each tensor by its sum over all processes, in place."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        for tensor in tensors:
            dist.all_reduce(tensor)


def gather_from_processes(value: _T) -> list[_T]:
    """Gather a value from every process to all processes, as a list in order of rank."""
    import torch.distributed as dist
    from accelerate.utils import gather_object

    return gather_object([value]) if dist.is_available() and dist.is_initialized() else [value]


# Parameters of `mallopt`, from glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3

_LESS_MEMORY = (
    "use a smaller trainer.per_device_train_batch_size with more trainer.gradient_accumulation_steps, a shorter "
    "dataset.sequence_length or, if the model supports it, trainer.gradient_checkpointing=true; resume=latest "
    "resumes the run"
)
_NO_MEMORY = "can't allocate memory"  # in messages of torch


def set_malloc_thresholds() -> None:
    """Set glibc's thresholds for returning freed memory to the system; do nothing without glibc.

    A training step frees its tensors, and the next step allocates as many bytes. If the memory was returned to the
    system, every page of it costs a page fault, which takes up to a few percent of the training time.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 2**25)  # glibc's own maximum; more would fragment the heap
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)


def format_memory_error(error: BaseException) -> str | None:
    """Format an out-of-memory error of a GPU or of the machine as one line; return None for any other error."""
    first = next(iter(str(error).splitlines()), "") or "out of memory"
    of_gpu = getattr(sys.modules.get("torch"), "OutOfMemoryError", MemoryError)  # torch may be imported in part only
    is_short = getattr(error, "errno", None) == errno.ENOMEM or _NO_MEMORY in str(error)
    return f"{first}; {_LESS_MEMORY}" if is_short or isinstance(error, MemoryError | of_gpu) else None
