"""Memory and threads of CPU work.

glibc hands big buffers back to the kernel as soon as they are freed. A tensor program frees and asks for the
same megabytes at every step, so every step faults all of its pages in again; on small virtual machines that
costs more than the arithmetic. The settings here make freed memory stay with the process.
"""

import ctypes
import os
from collections.abc import Mapping
from types import MappingProxyType

import torch

_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_M_ARENA_MAX = -8

CPU_CHILD: Mapping[str, str] = MappingProxyType(
    {
        "MALLOC_MMAP_THRESHOLD_": str(8 * 2**30),
        "MALLOC_TRIM_THRESHOLD_": str(16 * 2**30),
        # Arenas of other threads hold at most 64 MiB and unmap what empties, whatever the thresholds say.
        "MALLOC_ARENA_MAX": "1",
    }
)
"""Environment for a child process that computes on the CPU; it must be there before the process starts."""


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


def child_environment(threads: int) -> dict[str, str]:
    """Environment of a CPU child with ``threads`` threads."""
    limits = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    return {**CPU_CHILD, **limits, "TOKENIZERS_PARALLELISM": "false"}
