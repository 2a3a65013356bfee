"""SIGTERM as a wish, not an end: the step in progress is finished and saved before the process goes."""

import signal
from types import FrameType

EXIT_CODE = 128 + signal.SIGTERM


class Interrupted(Exception):
    """The stage was asked to stop, saved its state and stopped."""


class StopWish:
    """Whether SIGTERM came, while in a ``with``; the main thread only."""

    def __init__(self) -> None:
        self.stop = False

    def __enter__(self) -> "StopWish":
        self._before = signal.signal(signal.SIGTERM, self._wished)
        return self

    def __exit__(self, *exc: object) -> None:
        signal.signal(signal.SIGTERM, self._before)

    def _wished(self, number: int, frame: FrameType | None) -> None:
        self.stop = True
