"""Freed memory stays with the process, and children get their environment."""

import os
import subprocess
import sys

import torch

from elf.pipeline.launch import child_environment
from elf.stages.memory import cores, set_threads

CHURN = """
import resource, sys
import numpy as np
if sys.argv[1] == "keep":
    from elf.stages.memory import keep_freed_memory
    assert keep_freed_memory()
faults = []
for _ in range(6):
    block = np.ones(2**25)  # 256 MiB
    del block
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(faults[-1] - faults[0])
"""


def faults(mode: str, environment: dict[str, str]) -> int:
    command = [sys.executable, "-c", CHURN, mode]
    small = {"NUMPY_MADVISE_HUGEPAGE": "0"}  # one fault a page of 4 KiB: 65536 a block
    usual = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(
        command, env=usual | small | environment, capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def test_freed_pages_are_not_faulted_in_again() -> None:
    usual = faults("leave", {})
    assert usual > 100_000
    assert faults("keep", {}) < usual / 10
    assert faults("leave", child_environment(1)) < usual / 10


def test_threads_are_those_asked_for() -> None:
    before = torch.get_num_threads()
    try:
        assert set_threads(2) == 2
        assert torch.get_num_threads() == 2
        assert set_threads(None) == cores() == len(os.sched_getaffinity(0))
    finally:
        torch.set_num_threads(before)


def test_children_get_their_threads() -> None:
    environment = child_environment(3)
    assert {environment[f"{name}_NUM_THREADS"] for name in ("OMP", "MKL", "OPENBLAS")} == {"3"}
