"""How threads that compute together wait for each other.

GNU's OpenMP, which PyTorch comes with, lets a thread that is ready first spin for milliseconds. On a machine where
others compute it spins on the very core that the thread it waits for should run on.
"""

import os

VARIABLE, TURNS = "GOMP_SPINCOUNT", "1000"
"""Spins before a thread sleeps: long enough for the gaps within a step, short enough to let others work."""


def spin_briefly() -> None:
    """For this process and its children, unless the variable is set. Before PyTorch is imported, which reads it."""
    os.environ.setdefault(VARIABLE, TURNS)
