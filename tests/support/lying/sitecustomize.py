"""A file system whose locks say yes to everybody: Python imports this at its start where PYTHONPATH leads here."""

import fcntl

import touches


def _granted(fd: object, operation: int) -> None:
    pass


fcntl.flock = _granted
touches.take_part()
