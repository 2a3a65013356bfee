"""What else this machine is at work on: estimates are for a free one."""

import os

from elf.pipeline.stage import Compute
from elf.pipeline.wording import count_of

BUSY = 0.5
"""Load of the last minute, as a share of the host's cores, above which others' work is felt."""


def busy_text(train: Compute | None) -> str:
    """A sentence to set beside times where the machine is busy now, else empty.

    ``train`` says how training computes; None where nothing is trained, or not on the cores.
    """
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load <= BUSY * cores:
        return ""
    many = count_of(cores, "core")
    words = f"Busy: a load of {load:.1f} on {many} in the last minute; while that lasts, times will be longer"
    if train is None or train.threads == 1:
        return f"{words}."
    return f"{words}, and `--set compute.train.threads=1` is often faster."
