"""How a command ends: whoever is told to stop says so, whatever a library makes of it."""

import os
import signal
import subprocess
import sys

import pytest

from elf.flows.failing import Ended, telling
from elf.pipeline.errors import Failed, Misconfigured


@pytest.mark.parametrize(("number", "code", "word"), [(2, 130, "interrupted"), (15, 143, "terminated")])
@pytest.mark.parametrize("error", [Misconfigured, Failed, KeyError])
def test_a_signal_that_a_library_takes_for_an_error(
    number: int, code: int, word: str, error: type[Exception], capsys: pytest.CaptureFixture[str]
) -> None:
    def swallow() -> None:
        try:
            signal.raise_signal(number)
        except BaseException:
            raise error("the file is no YAML") from None

    with pytest.raises(Ended) as ended, telling(debug=False):
        swallow()
    assert ended.value.code == code
    assert capsys.readouterr().err == f"elf: {word}; the same command goes on\n"


ENTRY = """
import os, signal, sys, types
signal.signal(2, signal.default_int_handler)  # what starts tests in the background has it ignored
loading = types.ModuleType("elf.flows.cli")
loading.__getattr__ = lambda name: print(os.environ["GOMP_SPINCOUNT"], flush=True) or signal.raise_signal(2)
sys.modules["elf.flows.cli"] = loading
from elf.flows.__main__ import main
main()
"""


@pytest.mark.parametrize(("given", "found"), [({}, "1000\n"), ({"GOMP_SPINCOUNT": "7"}, "7\n")])
def test_an_interrupt_while_the_command_is_loaded_is_one_line(given: dict[str, str], found: str) -> None:
    """And threads were told before that how long to spin."""
    environment = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"} | given
    done = subprocess.run(
        [sys.executable, "-c", ENTRY], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, found, "elf: interrupted\n")
