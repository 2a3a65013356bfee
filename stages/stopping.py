"""SIGTERM as a wish, not an end: what was trained is saved before the process goes."""

import signal
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

EXIT_CODE = 128 + signal.SIGTERM


class Interrupted(Exception):
    """The stage was asked to stop, saved its state and stopped."""


class GivenUp(BaseException):
    """What was being computed is not wanted any more; it has changed nothing. Like KeyboardInterrupt it passes those
    who make every ``Exception`` one of their own, as compilers do."""


class StopWish:
    """Whether SIGTERM came, while in a ``with``; the main thread only."""

    def __init__(self) -> None:
        self.stop = False
        self._gives_up = False

    def __enter__(self) -> "StopWish":
        self._before = signal.signal(signal.SIGTERM, self._wished)
        return self

    def __exit__(self, *exc: object) -> None:
        signal.signal(signal.SIGTERM, self._before)

    @contextmanager
    def giving_up(self, *, alone: bool) -> Generator[None]:
        """For work that changes nothing before it is done: where this process is ``alone``, the wish ends it at once
        with GivenUp, one from before too. Others would wait for a process that gave up."""
        try:
            self._gives_up = alone
            if alone and self.stop:
                raise GivenUp
            yield
        finally:
            self._gives_up = False

    def _wished(self, number: int, frame: FrameType | None) -> None:
        self.stop = True
        gives_up, self._gives_up = self._gives_up, False
        if gives_up:
            raise GivenUp
