"""The command ``elf``, and ``python -m elf.flows``."""

import os
import signal

from elf.pipeline.spinning import spin_briefly


def main() -> None:
    """Entry of the command. Ctrl-C while it is loaded, a second or so, ends it in one line."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    spin_briefly()
    from elf.flows.cli import main as run

    run()


def _leave(number: int, frame: object) -> None:
    os.write(2, b"elf: interrupted\n")
    os._exit(128 + number)


if __name__ == "__main__":
    main()
