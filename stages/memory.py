"""Memory and threads of CPU work.

glibc hands big buffers back to the kernel as soon as they are freed. A tensor program frees and asks for the
same megabytes at every step, so every step faults all of its pages in again; on small virtual machines that
costs more than the arithmetic. The settings here make freed memory stay with the process.
"""

import ctypes
import os

import torch

_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_M_ARENA_MAX = -8


def keep_freed_memory() -> bool:
    """Make this process keep what it frees; false where the C library has no ``mallopt`` (musl)."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = ((_M_ARENA_MAX, 1), (_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, -1))
    return all(mallopt(parameter, value) == 1 for parameter, value in settings)


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0))


def set_threads(threads: int | None) -> int:
    """Give torch ``threads`` threads in this process, all cores when None; returns the number."""
    count = threads if threads is not None else cores()
    torch.set_num_threads(count)
    return count
