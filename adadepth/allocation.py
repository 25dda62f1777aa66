"""How this process holds memory."""

import ctypes
import sys

# glibc's numbers of what `mallopt` sets, from its malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> None:
    """Keep what is freed for the next step instead of giving it back to the system; nothing where glibc is not.

    A training step frees its tensors and the next one asks for as many bytes. glibc returns large ones in between, and
    the system hands out new pages one fault at a time, which can cost a small model as much as its arithmetic.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 2**25)  # what glibc's own threshold grows to at most; more would scatter the heap
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
