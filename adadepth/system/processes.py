"""The processes of a run: how many there are, what they tell each other, and the memory they allocate."""

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

_SECONDS_FOR_THE_FIRST = 60.0  # in which it says what is wrong, draws the report of what there is, and ends
_SECONDS_BETWEEN_LOOKS = 1.0
_OF_GROUPS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # variables of the environment


def is_first_process() -> bool:
    """Whether this process is the one that speaks and writes."""
    return os.environ.get("RANK", "0") == "0"


def is_one_of_several() -> bool:
    """Whether a launcher started further processes for this run."""
    return number_of_processes() > 1


def number_of_processes() -> int:
    """How many processes this run has."""
    processes = os.environ.get("WORLD_SIZE", "1")
    return int(processes) if processes.isdecimal() else 1


def join_again(backend: str | None, timeout_seconds: int) -> None:
    """Form the group of processes that torchrun has started anew, apart from what their forerunners have left.

    torchrun keeps one store for all its starts, in which the addresses of dead processes still stand: who looks before
    the new one is written is refused a connection. So each start has names of its own there.

    Args:
        backend: Of the messages; None: torch's own choice.
        timeout_seconds: For which messages are waited for.
    """
    count = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if count == "0" or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return
    import torch.distributed as dist

    if dist.is_initialized():
        return
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.PrefixStore(f"start {count}", dist.TCPStore(*place, is_master=False))
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    timeout = timedelta(seconds=timeout_seconds)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)


def check_launcher() -> None:
    """Refuse what no launcher sets: it would be waited for a group of processes that never comes.

    Raises:
        ConfigError: Naming the variable of the environment.
    """
    if problem := _wrong_with_launcher():
        raise ConfigError(f"{problem}; only a launcher sets it, such as torchrun")


def _wrong_with_launcher() -> str | None:
    """Return why the environment is that of no launcher; None: it is, or it says nothing of several processes."""
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": None}
    told = [name for name, value in alone.items() if os.environ.get(name, value) != value]
    missing = [name for name in _OF_GROUPS if name not in os.environ]
    if not told or not missing:
        return None
    lacking = f"is read together with {', '.join(missing)}, which the environment lacks"
    return f"{told[0]}={os.environ[told[0]]}: {lacking}"


def end_with_launcher() -> None:
    """End this process, with a checkpoint, when the process that started it has gone: nobody else would.

    A launcher that is killed leaves its processes running, on devices that look free to whoever starts the next run.
    """
    if is_one_of_several():
        end_with_parent(os.getppid())


def end_with_parent(parent: int) -> None:
    """Send this process SIGTERM when the process that started it, which has this number, has gone."""
    threading.Thread(target=_watch, args=(parent,), name="parent", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    os.kill(os.getpid(), signal.SIGTERM)


def exit_with(message: str, status: int) -> NoReturn:
    """Say what is wrong and end; of several processes the first speaks.

    A launcher ends all processes when one has ended. The others therefore wait for the first one, which found the same
    mistake; if it did not, it is their own, and they say it themselves. Without a launcher there is nobody to wait for.
    """
    if not is_first_process() and _wrong_with_launcher() is None:
        time.sleep(_SECONDS_FOR_THE_FIRST)  # until the launcher's SIGTERM
        message = f"process {os.environ['RANK']}: {message}"
    from adadepth.system.console import visible  # what it needs is not needed otherwise to say `--help`

    for line in visible(message).splitlines():
        print(f"error: {line}", file=sys.stderr, flush=True)
    raise SystemExit(status)


_T = TypeVar("_T")


def main_first(args: TrainingArguments, work: Callable[[], _T]) -> _T:
    """Run `work` on the main process, then on the others, which find the main one's results in the cache."""
    if args.world_size == 1:
        return work()
    found, failure = _attempt(work) if args.process_index == 0 else (None, None)
    _raise_everywhere(failure)
    return work() if found is None else found


def decide(args: TrainingArguments, work: Callable[[], _T]) -> _T:
    """Run `work` on the main process only and give every process what it returns."""
    from accelerate.utils import broadcast_object_list

    if args.world_size == 1:
        return work()
    found, failure = _attempt(work) if args.process_index == 0 else (None, None)
    _raise_everywhere(failure)
    shared: list[Any] = [found]
    broadcast_object_list(shared)
    decided: _T = shared[0]
    return decided


def wait_for_all(args: TrainingArguments) -> None:
    """Go on when every process has come this far."""
    from accelerate.utils import broadcast_object_list

    if args.world_size > 1:
        broadcast_object_list([None])


def _attempt(work: Callable[[], _T]) -> tuple[_T | None, UserError | None]:
    try:
        return work(), None
    except UserError as error:
        return None, error


def _raise_everywhere(failure: UserError | None) -> None:
    """Let every process end on the main one's mistake instead of waiting for it."""
    from accelerate.utils import broadcast_object_list

    shared = [None if failure is None else (type(failure), str(failure))]
    broadcast_object_list(shared)
    if shared[0] is not None:
        error_type, message = shared[0]
        raise error_type(message)


_Found = TypeVar("_Found")


def add_over_processes(tensors: Iterable[Tensor]) -> None:
    """Replace each tensor by its sum over processes, in place."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        for tensor in tensors:
            dist.all_reduce(tensor)


def of_all_processes(found: _Found) -> list[_Found]:
    """What each process has, in their order, on each of them."""
    import torch.distributed as dist
    from accelerate.utils import gather_object

    return gather_object([found]) if dist.is_available() and dist.is_initialized() else [found]


# glibc's numbers of what `mallopt` sets, from its malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3

_LESS_MEMORY = (
    "a smaller trainer.per_device_train_batch_size with more trainer.gradient_accumulation_steps needs less, as do a "
    "shorter dataset.sequence_length and, of models that can compute again, trainer.gradient_checkpointing=true; "
    "resume=latest goes on"
)
_NO_MEMORY = "can't allocate memory"  # what torch says


def keep_freed_memory() -> None:
    """Keep what is freed for the next step instead of giving it back to the system; nothing where glibc is not.

    A training step frees its tensors and the next one asks for as many bytes. glibc returns large ones in between, and
    the system hands out new pages one fault at a time, which costs up to a few percent of a training.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 2**25)  # what glibc's own threshold grows to at most; more would scatter the heap
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)


def short_memory(error: BaseException) -> str | None:
    """The line for memory that is not there, if that is an error: of a GPU, of the machine."""
    first = next(iter(str(error).splitlines()), "") or "out of memory"
    of_gpu = getattr(sys.modules.get("torch"), "OutOfMemoryError", MemoryError)  # torch may not be there whole
    is_short = getattr(error, "errno", None) == errno.ENOMEM or _NO_MEMORY in str(error)
    return f"{first}; {_LESS_MEMORY}" if is_short or isinstance(error, MemoryError | of_gpu) else None
