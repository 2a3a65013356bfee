"""How a command ends when it cannot do its work: one paragraph on standard error and an exit code.

0 done, 1 failed, 2 the request itself is wrong, 130 interrupted, 143 terminated.
"""

import os
import shutil
import signal
import sys
import textwrap
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

FAILED, MISUSED, INTERRUPTED, TERMINATED = 1, 2, 130, 143
GOES_ON = "the same command goes on"


class Terminated(BaseException):
    """SIGTERM arrived; like KeyboardInterrupt it passes every ``except Exception``."""


_STOPS: dict[int, type[BaseException]] = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: Terminated}
_arrived: list[int] = []


def heed_signals() -> None:
    """Raise again for a signal whose exception got lost: it may be raised inside a library that swallows all."""
    if _arrived:
        raise _STOPS[_arrived[0]]


class Ended(Exception):
    """The command is over with this exit code; everything has been said."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@contextmanager
def telling(*, debug: bool) -> Iterator[None]:
    """Turn whatever goes wrong inside into a paragraph and ``Ended``; with ``debug`` show the traceback too."""
    from elf.cache.errors import CacheError
    from elf.pipeline.errors import Failed, Misconfigured

    _arrived.clear()
    before = {number: signal.signal(number, _stop) for number in _STOPS}
    try:
        with _signals_first():
            yield
    except Misconfigured as error:
        raise _end(MISUSED, str(error), debug=debug) from None
    except (Failed, CacheError) as error:
        raise _end(FAILED, str(error), debug=debug) from None
    except KeyboardInterrupt:
        raise _end(INTERRUPTED, f"interrupted; {GOES_ON}", debug=debug) from None
    except Terminated:
        raise _end(TERMINATED, f"terminated; {GOES_ON}", debug=debug) from None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise Ended(FAILED) from None
    except Ended:
        raise
    except Exception as error:
        words = (
            f"{type(error).__name__}: {error}. This was not foreseen: run the command again with --debug to see where "
            "it comes from, and please report it."
        )
        raise _end(FAILED, words, debug=debug) from None
    finally:
        _arrived.clear()
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _signals_first() -> Iterator[None]:
    """Where a signal arrived, an error is what a library made of its exception."""
    try:
        yield
    except Exception:  # of any kind: libraries wrap what a signal raises in them
        heed_signals()
        raise


def complain(text: str) -> None:
    """Print ``text`` as one paragraph on standard error, wrapped where that is a terminal."""
    from elf.cache.redaction import redact

    paragraph = " ".join(f"elf: {redact(text)}".split())
    if sys.stderr.isatty():
        width = max(40, shutil.get_terminal_size().columns)
        paragraph = textwrap.fill(paragraph, width, break_long_words=False, break_on_hyphens=False)
    print(paragraph, file=sys.stderr, flush=True)


def _end(code: int, text: str, *, debug: bool) -> Ended:
    if debug:
        traceback.print_exc()
    complain(text)
    return Ended(code)


def _stop(number: int, frame: FrameType | None) -> None:
    _arrived.append(number)
    raise _STOPS[number]
