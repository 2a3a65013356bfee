"""What else this machine is at work on: estimates are for a free one."""

import os

from elf.pipeline.stage import Compute

BUSY = 0.5
"""Load of the last minute, as a share of the host's cores, above which others' work is felt."""


def busy_text(train: Compute | None) -> str:
    """A sentence to set beside times where the machine is busy now, else empty.

    ``train`` says how training computes, or is None where nothing is trained.
    """
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load <= BUSY * cores:
        return ""
    many = f"{cores} core{'' if cores == 1 else 's'}"
    words = f"Busy: a load of {load:.1f} on {many} in the last minute; while that lasts, times will be longer"
    if train is None or train.threads == 1:
        return f"{words}."
    return f"{words}, and `--set compute.train.threads=1` is often faster."
